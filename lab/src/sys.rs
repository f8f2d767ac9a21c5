//! System calls: namespaces entered or made between fork and exec, and by one thread.
//!
//! The only file of this crate with `unsafe`. What runs between fork and exec (the closures
//! given to `pre_exec`) calls async-signal-safe functions only and does not allocate: everything
//! it needs is prepared before. The forked child has one thread, which is why it may enter or
//! make a user namespace although this process has many threads.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

/// Which user namespace a process with a new network namespace lives in.
#[derive(Clone)]
pub(crate) enum User {
    /// The caller's own: it has the privilege already.
    Keep,
    /// A new one, where the caller is root.
    New,
    /// That of the lab's first host.
    Join(Arc<OwnedFd>),
}

/// The namespaces of one host.
#[derive(Clone, Debug)]
pub(crate) struct Namespaces {
    /// None where the host is in the caller's own user namespace.
    pub(crate) user: Option<Arc<OwnedFd>>,
    pub(crate) net: Arc<OwnedFd>,
}

/// Lets `command` start in a new network namespace (`net`), with `user` as its user namespace.
pub(crate) fn unshare_before_exec(command: &mut Command, user: User, net: bool) {
    // SAFETY: these two calls always succeed and touch no memory.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    let uid_map = format!("0 {uid} 1");
    let gid_map = format!("0 {gid} 1");
    let hook = move || {
        let net_flag = if net { libc::CLONE_NEWNET } else { 0 };
        match &user {
            User::Keep => unshare(net_flag)?,
            User::Join(fd) => {
                setns(fd.as_raw_fd(), libc::CLONE_NEWUSER)?;
                unshare(net_flag)?;
            }
            User::New => {
                unshare(libc::CLONE_NEWUSER | net_flag)?;
                write_file(c"/proc/self/setgroups", b"deny")?;
                write_file(c"/proc/self/uid_map", uid_map.as_bytes())?;
                write_file(c"/proc/self/gid_map", gid_map.as_bytes())?;
            }
        }
        if net {
            // No neighbour discovery among the frames that are counted. A kernel without IPv6 or
            // a read-only /proc/sys leaves a few stray frames, which harms nothing.
            let _ = write_file(c"/proc/sys/net/ipv6/conf/all/disable_ipv6", b"1");
            let _ = write_file(c"/proc/sys/net/ipv6/conf/default/disable_ipv6", b"1");
        }
        Ok(())
    };
    // SAFETY: the hook makes system calls only; it neither allocates nor takes locks.
    unsafe { command.pre_exec(hook) };
}

/// Lets `command` start inside `namespaces`.
pub(crate) fn enter_before_exec(command: &mut Command, namespaces: Namespaces) {
    let hook = move || {
        // The user namespace first: it gives the right to enter the other.
        if let Some(user) = &namespaces.user {
            setns(user.as_raw_fd(), libc::CLONE_NEWUSER)?;
        }
        setns(namespaces.net.as_raw_fd(), libc::CLONE_NEWNET)
    };
    // SAFETY: as above; the descriptors live as long as the hook that owns them.
    unsafe { command.pre_exec(hook) };
}

/// Lets `command` be killed when the thread that starts it ends, however that happens.
///
/// Must be added after the hooks that change namespaces: the kernel forgets the setting when a
/// process changes its credentials.
pub(crate) fn die_with_parent(command: &mut Command) {
    signal_with_parent(command, libc::SIGKILL);
}

/// As [`die_with_parent`], but with a signal that asks it to end.
pub(crate) fn end_with_parent(command: &mut Command) {
    signal_with_parent(command, libc::SIGTERM);
}

/// Says in the environment of a process which one it is to die with, and by which signal.
const WITH_PARENT: &str = "DOGWILD_WITH_PARENT";

/// Takes back what the kernel did to this process because its program has capabilities as a file
/// (`setcap`): it forgot [`die_with_parent`], and gave `/proc/self` to root, so that no user
/// namespace can be made. Others stay as far from it as its capabilities keep them.
pub(crate) fn after_exec() {
    // SAFETY: no pointers.
    if unsafe { libc::getauxval(libc::AT_SECURE) } == 0 {
        return;
    }
    let asked = std::env::var(WITH_PARENT).unwrap_or_default();
    let asked = asked
        .split_once(' ')
        .map(|(pid, signal)| (pid.parse(), signal.parse()));
    // SAFETY: prctl and getppid with plain integers; neither can fail with these.
    unsafe {
        libc::prctl(libc::PR_SET_DUMPABLE, 1);
        if let Some((Ok(parent), Ok::<libc::c_int, _>(signal))) = asked
            && libc::getppid() == parent
        {
            libc::prctl(libc::PR_SET_PDEATHSIG, signal);
        }
    }
}

fn signal_with_parent(command: &mut Command, signal: libc::c_int) {
    let parent = std::process::id();
    command.env(WITH_PARENT, format!("{parent} {signal}"));
    let hook = move || {
        // SAFETY: prctl and getppid with plain integers.
        let orphaned = unsafe {
            if libc::prctl(libc::PR_SET_PDEATHSIG, signal) != 0 {
                return Err(io::Error::last_os_error());
            }
            // The parent may have died before the call.
            libc::getppid() as u32 != parent
        };
        if orphaned {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        Ok(())
    };
    // SAFETY: system calls only.
    unsafe { command.pre_exec(hook) };
}

/// Lets `command` run on this core only. One that is not there is an error of starting it (EINVAL).
pub(crate) fn keep_on_core(command: &mut Command, core: usize) {
    // SAFETY: plain old data; all zero is the empty set.
    let mut cores: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    if core < libc::CPU_SETSIZE as usize {
        // SAFETY: below the size of the set.
        unsafe { libc::CPU_SET(core, &mut cores) };
    }
    let hook = move || {
        // SAFETY: the pointer and length are those of a set that outlives the call.
        check(unsafe { libc::sched_setaffinity(0, size_of_val(&cores), &raw const cores) })
    };
    // SAFETY: a system call only.
    unsafe { command.pre_exec(hook) };
}

/// Lets `command` start as leader of a session of its own, without a terminal.
pub fn new_session(command: &mut Command) {
    // SAFETY: setsid is async-signal-safe and touches no memory.
    unsafe { command.pre_exec(|| check(libc::setsid())) };
}

/// Moves the calling thread into the network namespace `net`.
pub(crate) fn enter_net(net: &OwnedFd) -> io::Result<()> {
    setns(net.as_raw_fd(), libc::CLONE_NEWNET)
}

/// Ignores the keyboard's interrupt and quit, so that the command started in a lab decides.
pub fn ignore_keyboard_signals() {
    for signal in [libc::SIGINT, libc::SIGQUIT] {
        // SAFETY: SIG_IGN installs no handler of ours.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Asks process `pid` to end (SIGTERM), or with `force` ends it (SIGKILL).
pub fn end(pid: u32, force: bool) -> io::Result<()> {
    send(pid, if force { libc::SIGKILL } else { libc::SIGTERM })
}

/// Sends `signal` to process `pid`.
pub(crate) fn send(pid: u32, signal: i32) -> io::Result<()> {
    // 0, 1 and negative numbers mean others than one ordinary process.
    let pid = i32::try_from(pid).ok().filter(|&pid| pid > 1);
    let pid = pid.ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
    // SAFETY: a system call with plain integers.
    check(unsafe { libc::kill(pid, signal) })
}

/// This process's effective user number.
pub fn effective_user() -> u32 {
    // SAFETY: always succeeds and touches no memory.
    unsafe { libc::geteuid() }
}

fn unshare(flags: i32) -> io::Result<()> {
    if flags == 0 {
        return Ok(());
    }
    // SAFETY: a system call with plain integers.
    check(unsafe { libc::unshare(flags) })
}

fn setns(fd: RawFd, kind: i32) -> io::Result<()> {
    // SAFETY: a system call with plain integers.
    check(unsafe { libc::setns(fd, kind) })
}

fn write_file(path: &CStr, bytes: &[u8]) -> io::Result<()> {
    // SAFETY: `path` ends in NUL, `bytes` is valid for its length; the descriptor is ours and
    // closed once.
    unsafe {
        let fd = libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        check(fd)?;
        let written = libc::write(fd, bytes.as_ptr().cast(), bytes.len());
        let result = if written < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        };
        libc::close(fd);
        result
    }
}

fn check(returned: i32) -> io::Result<()> {
    if returned < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

//! What can go wrong with a lab. Each message tells what to do.

use std::io;

/// Why a lab could not be made or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// Addresses are 10.77.0.1 to 10.77.0.254.
    #[error("a lab has 1 to 254 hosts, not {0}")]
    Hosts(usize),
    /// A plain veth pair has two ends.
    #[error("a direct cable joins exactly 2 hosts, not {0}: use Cable::Bridge (or Auto)")]
    Direct(usize),
    /// Below 68 IPv4 does not work; above 65535 veth refuses.
    #[error("an MTU is 68 to 65535 bytes, not {0}")]
    Mtu(u32),
    /// Loss is a probability.
    #[error("loss is a share from 0 (nothing) to 1 (everything), not {0}")]
    Loss(f64),
    /// The kernel has modules for some.
    #[error(
        "this kernel has no TCP congestion control `{asked}`: it has {known} (modprobe tcp_{asked})"
    )]
    Congestion {
        /// What was asked for.
        asked: String,
        /// What there is.
        known: String,
    },
    /// A program the set-up needs is not installed.
    #[error("cannot find the program `{program}`: install it (Debian: apt-get install {package})")]
    Missing {
        /// The program looked for in PATH, /usr/sbin and /sbin.
        program: &'static str,
        /// The Debian package that brings it.
        package: &'static str,
    },
    /// The kernel refused a new namespace.
    #[error(
        "the kernel refused a new namespace ({0}): run as root, or let ordinary users make \
         namespaces: sysctl user.max_user_namespaces (not 0), kernel.unprivileged_userns_clone=1 \
         (Debian), kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu); in a container also \
         its seccomp profile"
    )]
    Forbidden(#[source] io::Error),
    /// A set-up command failed; the lab is gone again.
    #[error("in {place}: `{command}` failed: {output}")]
    Command {
        /// Which namespace it ran in.
        place: String,
        /// The command line.
        command: String,
        /// What it said.
        output: String,
    },
    /// The link between the hosts stayed down.
    #[error("in {place}: interface {iface} did not come up in 10 s (last seen: {seen})")]
    Down {
        /// Which namespace.
        place: String,
        /// Which interface.
        iface: String,
        /// The last line of `ip link show`.
        seen: String,
    },
    /// No host of that number.
    #[error("the lab has hosts 0 to {last}, not {host}")]
    NoSuchHost {
        /// The number asked for.
        host: usize,
        /// The highest number there is.
        last: usize,
    },
    /// A thread may not enter a namespace of a user namespace that its process is not in.
    #[error(
        "this process may not enter a host ({0}): be root, or be inside a user namespace from the \
         start (`unshare -Ur`; in tests `dogwild_lab::enter_or_return!()`), or start a process \
         there with `Lab::command`"
    )]
    NotInside(#[source] io::Error),
    /// A test that was run again inside a user namespace failed there.
    #[error("test `{test}` failed inside its user namespace ({status})")]
    Inner {
        /// The test's name as libtest knows it.
        test: String,
        /// How the inner run ended.
        status: String,
    },
    /// Anything else the operating system refused.
    #[error("cannot {what}: {source}")]
    Io {
        /// Call that failed, in words.
        what: String,
        /// The system's reason.
        source: io::Error,
    },
}

impl LabError {
    /// An operating-system error with what was tried.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> LabError {
        let what = what.into();
        move |source| LabError::Io { what, source }
    }

    /// A failed spawn into a new namespace: refusals of the kernel get their own words.
    pub(crate) fn from_unshare(e: io::Error) -> LabError {
        match e.raw_os_error() {
            Some(
                libc::EPERM
                | libc::EACCES
                | libc::EINVAL
                | libc::ENOSPC
                | libc::EUSERS
                | libc::ENOSYS
                | libc::EROFS,
            ) => LabError::Forbidden(e),
            _ => LabError::Io {
                what: "start the process that holds a namespace".into(),
                source: e,
            },
        }
    }
}

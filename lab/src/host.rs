//! One host: the process that holds its namespace, its addresses, and how others get in.
//!
//! Touches processes only; a dropped host's holder is killed and waited for.

use crate::LabError;
use crate::sys::{self, Namespaces, User};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

/// One host: a network namespace held by a process.
#[derive(Debug)]
pub struct LabHost {
    pub(crate) index: usize,
    pub(crate) name: String,
    pub(crate) namespaces: Namespaces,
    /// Ends by itself when its standard input (a pipe from here) closes.
    holder: Child,
}

impl LabHost {
    /// Starts the holder of a new network namespace.
    ///
    /// The holder watches a pipe from this process instead of asking for a signal at its parent's
    /// death. That signal comes when the *thread* that started it ends, and a lab may outlive that.
    pub(crate) fn hold(index: usize, name: String, user: User) -> Result<LabHost, LabError> {
        let mut command = Command::new("sh");
        let script = format!("read -r end # dogwild-lab {name} of {}", std::process::id());
        command.args(["-c", &script]).current_dir("/");
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // Out of reach of the keyboard's signals.
        command.process_group(0);
        sys::unshare_before_exec(&mut command, user, true);
        let mut holder = command.spawn().map_err(LabError::from_unshare)?;
        let namespaces = open_namespaces(holder.id());
        match namespaces {
            Ok(namespaces) => Ok(LabHost {
                index,
                name,
                namespaces,
                holder,
            }),
            Err(e) => {
                let _ = holder.kill();
                let _ = holder.wait();
                Err(e)
            }
        }
    }

    /// The host's number, from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// `host0`, `host1`, ...
    pub fn name(&self) -> &str {
        &self.name
    }

    /// 02:44:57:00:00:(index + 1).
    pub fn mac(&self) -> [u8; 6] {
        mac(self.index)
    }

    /// 10.77.0.(index + 1).
    pub fn ipv4(&self) -> Ipv4Addr {
        ipv4(self.index)
    }

    /// The name of its interface inside: `eth0`.
    pub fn iface(&self) -> &'static str {
        "eth0"
    }

    /// The process that holds the namespace (`nsenter -t PID -U -n --preserve-credentials`).
    pub fn pid(&self) -> u32 {
        self.holder.id()
    }
}

impl Drop for LabHost {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// A command that will run in the namespaces of process `pid`, for example a host's holder
/// ([`LabHost::pid`]) of a lab that another process owns.
///
/// Nothing ties its life to the lab's: while it runs, it keeps the host's namespace.
///
/// # Errors
/// No such process, or one of another user.
pub fn command_in_namespaces_of(pid: u32, program: impl AsRef<OsStr>) -> Result<Command, LabError> {
    let mut command = Command::new(program);
    sys::enter_before_exec(&mut command, open_namespaces(pid)?);
    Ok(command)
}

/// The namespaces of process `pid`; the user namespace only if it is another than ours.
fn open_namespaces(pid: u32) -> Result<Namespaces, LabError> {
    let path = |pid: &str, kind: &str| format!("/proc/{pid}/ns/{kind}");
    let pid = pid.to_string();
    let open = |kind: &str| -> Result<Arc<OwnedFd>, LabError> {
        let path = path(&pid, kind);
        let file = File::open(&path).map_err(LabError::io(format!("open {path}")))?;
        Ok(Arc::new(file.into()))
    };
    let link = |pid: &str| {
        let path = path(pid, "user");
        fs::read_link(&path).map_err(LabError::io(format!("read {path}")))
    };
    // Entering the user namespace one is in already is an error to the kernel.
    let own_user = link(&pid)? == link("self")?;
    Ok(Namespaces {
        user: if own_user { None } else { Some(open("user")?) },
        net: open("net")?,
    })
}

/// 02:44:57:00:00:(i + 1): locally administered, "DW".
pub(crate) fn mac(i: usize) -> [u8; 6] {
    [0x02, 0x44, 0x57, 0, 0, (i + 1) as u8]
}

/// 10.77.0.(i + 1).
pub(crate) fn ipv4(i: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, (i + 1) as u8)
}

/// As `ip` writes it.
pub(crate) fn hex(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

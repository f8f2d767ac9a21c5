//! Tries the verbs transport: library, devices, ports, locked memory.
//!
//! Opens queue pairs on the ports that can send, and closes them again; sends nothing.

use dogwild_net::verbs::{self, Port};

use super::echo::session;
use super::host::has_capability;
use super::{Check, State};
use crate::node::{Transport, TransportSpec, open_link};

/// CAP_IPC_LOCK of linux/capability.h: no limit of locked memory.
const IPC_LOCK: u32 = 14;
/// Locked memory that a buffer of ten million weights needs in addition to the slots.
const LOCKED_BYTES: u64 = 64 << 20;

pub(super) fn check() -> Check {
    let ports = match verbs::ports() {
        Ok(ports) => ports,
        Err(error) => {
            let found = match error {
                verbs::VerbsError::NoLibrary { .. } => "no library",
                verbs::VerbsError::NoDevice => "no RDMA device",
                _ => "devices cannot be read",
            };
            return Check::new("verbs", State::Missing, found).needing(error.to_string());
        }
    };
    let (usable, other): (Vec<&Port>, Vec<&Port>) =
        ports.iter().partition(|port| port.trouble().is_none());
    let tried: Vec<Result<String, String>> = usable.into_iter().map(open).collect();
    let opened: Vec<&str> = tried.iter().flatten().map(String::as_str).collect();
    let mut check = if opened.is_empty() {
        Check::new("verbs", State::Missing, "no port that can be opened")
    } else {
        Check::works("verbs", opened.join("; "))
    };
    let refused = tried
        .iter()
        .filter_map(|tried| tried.as_ref().err().cloned());
    for need in refused.chain(other.into_iter().filter_map(Port::trouble)) {
        // A port that is down does not matter where another works.
        if opened.is_empty() {
            check.needs.push(need);
        } else {
            check.found += &format!("; not: {need}");
        }
    }
    match locked_limit_bytes() {
        Some(limit) if limit < LOCKED_BYTES && !has_capability(IPC_LOCK) => check.needing(format!(
            "to send large buffers without a copy: more locked memory than {} KiB (`ulimit -l`; memlock in \
             /etc/security/limits.conf)",
            limit >> 10
        )),
        _ => check,
    }
}

fn open(port: &Port) -> Result<String, String> {
    let name = format!("{}:{}", port.device, port.number);
    let spec = TransportSpec::of(Transport::Verbs, Some(name));
    match open_link(&spec, session()) {
        Ok(link) => Ok(format!(
            "opens on {port}: datagrams of {} bytes, {} multicast groups",
            link.tx.mtu(),
            port.groups
        )),
        Err(error) => Err(error.to_string()),
    }
}

/// What this process may lock once it has asked for it; none: no limit.
fn locked_limit_bytes() -> Option<u64> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max locked memory"))?;
    line.split_ascii_whitespace().nth(4)?.parse().ok()
}

//! Giving up what only the opening of sockets and rings needs.
//!
//! A component that faces the network goes on without any capability: an attacker who breaks into
//! it can use what it has open, and no more.

use caps::{CapSet, Capability, CapsHashSet};

use super::transport::Transport;

/// To be called before the link is opened: gives up all capabilities where the transport wants that
/// now. The kernel serves an RDMA device only to the credentials that opened it
/// (`ib_safe_file_access`). It needs no capability, only locked memory.
///
/// # Errors
/// The kernel refuses; giving up capabilities is always allowed (capset(2)).
pub fn drop_privileges_before_opening(transport: Transport) -> Result<(), caps::errors::CapsError> {
    if transport != Transport::Verbs {
        return Ok(());
    }
    dogwild_net::verbs::raise_locked_memory_limit();
    drop_privileges()
}

/// To be called after everything is open: gives up all capabilities where that was not done before.
///
/// # Errors
/// The kernel refuses; giving up capabilities is always allowed (capset(2)).
pub fn drop_privileges_after_opening(transport: Transport) -> Result<(), caps::errors::CapsError> {
    if transport == Transport::Verbs {
        return Ok(());
    }
    drop_privileges()
}

/// Gives up all capabilities of this thread, for good: permitted, effective, inheritable and
/// ambient. Where that is allowed (CAP_SETPCAP), the bounding set too, so that no program it starts
/// gets them back. Sockets, rings and mappings that are open stay usable.
///
/// # Errors
/// The kernel refuses; giving up capabilities is always allowed (capset(2)).
pub(crate) fn drop_privileges() -> Result<(), caps::errors::CapsError> {
    let held = caps::read(None, CapSet::Permitted)?;
    if held.contains(&Capability::CAP_SETPCAP) {
        for capability in caps::read(None, CapSet::Bounding)? {
            caps::drop(None, CapSet::Bounding, capability)?;
        }
    }
    // Ambient ones are a subset of these two and go with them.
    let none = CapsHashSet::new();
    caps::set(None, CapSet::Inheritable, &none)?;
    caps::set(None, CapSet::Effective, &none)?;
    caps::set(None, CapSet::Permitted, &none)?;
    if !held.is_empty() {
        log::debug!("{} capabilities given up", held.len());
    }
    Ok(())
}

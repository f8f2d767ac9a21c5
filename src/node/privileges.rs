//! Giving up what only the opening of sockets and rings needs.
//!
//! A component that faces the network goes on without any capability: whoever finds a hole in it
//! finds a process that can read and write what it has open, and no more.

use caps::{CapSet, Capability, CapsHashSet};

/// Gives up all capabilities of this thread, for good: permitted, effective, inheritable, ambient,
/// and the bounding set where that is allowed (CAP_SETPCAP), so that no program it starts gets them
/// back either. Called with everything open; sockets, rings and mappings stay usable.
///
/// # Errors
/// What the kernel says; it refuses nobody who only gives up (capset(2)).
pub fn drop_privileges() -> Result<(), caps::errors::CapsError> {
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
        log::debug!("everything is open: {} capabilities given up", held.len());
    }
    Ok(())
}

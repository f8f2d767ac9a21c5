//! When components on a buffer begin and end, and which node they are of.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use crate::weights::{Role, SharedWeights, StreamState};

/// Waits until the streamer has seen every range, and logs it. False if told to stop meanwhile.
pub(super) fn wait_until_ready(shared: &SharedWeights, stop: &AtomicBool) -> bool {
    let mut said = false;
    while shared.globals().ready.load(Relaxed) == 0 {
        if stop.load(Relaxed) || shared.globals().stop.load(Relaxed) != 0 {
            return false;
        }
        if !said {
            said = true;
            let streams = shared
                .slots()
                .iter()
                .any(|slot| slot.role == Role::Stream && slot.alive);
            log::info!(
                "waiting for {}",
                if streams {
                    "the streamer of this buffer to have seen the ranges of all other nodes"
                } else {
                    "a streamer on this buffer (dogwild stream), none runs"
                }
            );
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// Whether the solvers of this buffer, and who tests, are to end.
pub(super) fn is_finished(shared: &SharedWeights, stop: &AtomicBool) -> bool {
    let globals = shared.globals();
    let target = globals.target_iterations.load(Relaxed);
    stop.load(Relaxed)
        || globals.stop.load(Relaxed) != 0
        || (target > 0 && globals.iterations() >= target)
}

/// The node that streamed this buffer before, as its state file says.
pub(super) fn number_before(shared: &SharedWeights) -> Option<u16> {
    let path = StreamState::path_beside(shared.path());
    let state = StreamState::look(&path, shared.id(), shared.padded()).ok()?;
    Some(state.spec().node)
}

/// The number of the node whose buffer is ready, for its other components. 0 where it is streamed
/// by a program with a loop of its own, which leaves no state file.
pub(super) fn number_here(shared: &SharedWeights) -> u16 {
    let node = number_before(shared).unwrap_or(0);
    log::info!("this is node {node}, as the streamer of its buffer says");
    node
}

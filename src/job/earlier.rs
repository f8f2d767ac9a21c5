//! What an earlier start of a node has left running. Its launcher is dead, so it ends by itself: it
//! is waited for, by name.
//!
//! Touches nothing but the lock of the buffer, for a moment.

use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;

use super::children::LOOK_EVERY;
use super::progress::Progress;
use crate::node::{Interrupted, Stop};
use crate::weights::{BufferInfo, Look, look};

/// Waits until the buffer at `path` is free of an earlier start of this node. `users` names those
/// that are waited for; without any its text is empty.
///
/// # Errors
/// A signal came.
pub(super) fn wait_for_earlier(
    path: &Path,
    users: impl Fn(&BufferInfo) -> String,
    progress: &mut Progress,
    stop: &Stop,
) -> Result<(), Interrupted> {
    // Who opens it says what is wrong with a file that is no buffer.
    while let Ok(Look::Buffer(info)) = look(path) {
        let users = users(&info);
        if users.is_empty() {
            break;
        }
        if stop.load(Relaxed) {
            progress.finish();
            return stop.check();
        }
        progress.waiting(&format!("{users} of an earlier start of this node to end"));
        std::thread::sleep(LOOK_EVERY);
    }
    progress.finish();
    Ok(())
}

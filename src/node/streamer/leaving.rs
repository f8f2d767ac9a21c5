//! The end of a streamer that gives its ranges to other nodes: what it waits for, and when it no
//! longer does.
//!
//! Prints by `log`. Invariant: it ends once others have all, once nothing has moved for long, or by
//! a second signal ([`stop_on_signals`](super::super::stop_on_signals)); never by the time it took.

use std::sync::atomic::Ordering::Relaxed;

use super::{Loop, StreamerError};

/// Time between two lines about what is waited for, ns.
const SAY_EVERY_NS: u64 = 2_000_000_000;

/// Since when a node leaves, and when that was said last.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    since_ns: Option<u64>,
    said_ns: u64,
}

impl Loop<'_> {
    /// Whether this node may end now that it is told to: others have its ranges, and what was added
    /// to its buffer.
    pub(super) fn may_end(&mut self) -> Result<bool, StreamerError> {
        if !self.hand_over || self.shared.globals().stop.load(Relaxed) != 0 {
            return Ok(true);
        }
        let now = self.stream.now_ns();
        let Some(since_ns) = self.leaving.since_ns else {
            log::info!(
                "leaving: other nodes take what this one streams (a second signal ends it at once)"
            );
            self.stream.streamer_mut().leave();
            self.leaving = Leaving {
                since_ns: Some(now),
                said_ns: now,
            };
            return Ok(false);
        };
        let streamer = self.stream.streamer();
        let seconds = now.saturating_sub(since_ns) as f64 / 1e9;
        if streamer.has_left() {
            let delivered = streamer.has_delivered();
            // The last goodbye may still wait for its batch to be full.
            self.stream.flush()?;
            log::info!(
                "left after {seconds:.1} s: {}",
                if delivered {
                    "all that was added here is with other nodes"
                } else {
                    "no other node is there to take what this one has, so it stays in its buffer"
                }
            );
            return Ok(true);
        }
        if streamer.has_stalled() {
            log::warn!(
                "ending after {seconds:.1} s although not all is with other nodes, since nothing moved for long: {}; \
                 start this streamer again on the same buffer, and the rest is delivered",
                streamer.remains(now)
            );
            return Ok(true);
        }
        if now.saturating_sub(self.leaving.said_ns) >= SAY_EVERY_NS {
            self.leaving.said_ns = now;
            log::info!("leaving for {seconds:.0} s: {}", streamer.remains(now));
        }
        Ok(false)
    }
}

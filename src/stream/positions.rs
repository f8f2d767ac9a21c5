//! What the masters have, as far as it is known on a node.
//!
//! A replica is ahead of its masters by what its own solvers did, which counts less there than here
//! ([`Merge::Mean`](super::Merge)). What is tested, shown and kept is what the masters have.

use std::sync::atomic::Ordering::Relaxed;

use super::common::chunk_flags::{JOINED, OUTSTANDING};
use crate::weights::{StreamState, WeightsView};

/// Copies the newest positions to `to`: of the chunks that this node streams `w` itself; of all
/// others what the last frame brought, from the streamer's `state`. Racing with the streamer: a
/// chunk that it works on meanwhile may be a mixture of two positions.
///
/// # Panics
/// If `w` or `to` is shorter than the state's chunks.
pub fn copy_positions(state: &StreamState, w: WeightsView<'_>, to: WeightsView<'_>) {
    let spec = state.spec();
    let len = spec.chunk_weights as usize;
    for chunk in 0..spec.chunks {
        let at = chunk as usize * len;
        let flags = state.chunk(chunk).flags.load(Relaxed);
        let [w, last, sent] = [w, state.last(), state.sent()].map(|view| view.slice(at, len));
        let to = to.slice(at, len);
        let foreign = flags & JOINED != 0;
        let ahead = foreign && flags & OUTSTANDING != 0;
        for i in 0..len {
            let sent = if ahead { sent.load(i) } else { 0.0 };
            let from = if foreign { last } else { w };
            to.store(i, from.load(i) - sent);
        }
    }
}

//! Who masters what, as the state file of a streamer has it: for a person who looks from outside.

use std::sync::atomic::Ordering::Relaxed;

use super::Ranges;
use super::epochs::{counter, owner};
use crate::weights::StreamState;

/// What one streamer knows of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeSeen {
    /// Which range.
    pub range: u16,
    /// The node that streams it, or is about to, and how often it was begun; `None`: none is known.
    pub master: Option<(u16, u32)>,
    /// Whether this streamer streams it.
    pub here: bool,
}

/// The ranges that have chunks, as the streamer of `state` knows them.
pub fn ranges_seen(state: &StreamState) -> Vec<RangeSeen> {
    let spec = state.spec();
    let (nodes, places) = (spec.nodes, spec.places);
    if !(1..=nodes).contains(&spec.masters) || nodes > places {
        return Vec::new();
    }
    let ranges = Ranges::new(spec.chunks, nodes, spec.masters, places);
    let there = (0..places).filter(|range| !ranges.of(*range).is_empty());
    let seen = |range: u16| {
        let epoch = state.node(range).promised.load(Relaxed);
        RangeSeen {
            range,
            master: (epoch != 0).then(|| (owner(epoch), counter(epoch))),
            here: state.node(range).streamed.load(Relaxed) != 0,
        }
    };
    there.map(seen).collect()
}

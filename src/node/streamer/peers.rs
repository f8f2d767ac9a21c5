//! What the streamer tells of each other node: the table in the header of its buffer.

use std::sync::atomic::Ordering::Relaxed;

use crate::stream::{PeerCounters, Streamer};
use crate::watch::PeerMeter;
use crate::weights::{PEER_METERS, SharedWeights};

/// The table when this process took it over: totals go on, they do not start again.
pub(super) struct PeerTable {
    base: Vec<[u64; PEER_METERS]>,
}

impl PeerTable {
    /// Of `places` node numbers.
    pub(super) fn new(shared: &SharedWeights, places: u16) -> Self {
        let words = |node| {
            let meters = shared.peer_meters(node).each_ref();
            meters.map(|word| word.load(Relaxed))
        };
        Self {
            base: (0..places).map(words).collect(),
        }
    }

    /// Writes it.
    pub(super) fn publish(&self, shared: &SharedWeights, streamer: &Streamer<'_>, now_ns: u64) {
        let mut oldest_ns = vec![0; self.base.len()];
        for range in 0..streamer.places() {
            let master = usize::from(streamer.master(range));
            let age_ns = streamer.range_age_ns(range, now_ns);
            if let Some(oldest) = oldest_ns.get_mut(master) {
                *oldest = age_ns.max(*oldest);
            }
        }
        let members: Vec<u16> = streamer.others().collect();
        for (node, base) in (0..).zip(&self.base) {
            let (is_member, exchanged) = (members.contains(&node), streamer.exchanged(node));
            if !is_member && *exchanged == PeerCounters::default() {
                continue;
            }
            let meters = shared.peer_meters(node);
            for (meter, total) in [
                (PeerMeter::PositionsTaken, exchanged.positions_taken),
                (PeerMeter::PositionsMissed, exchanged.positions_missed),
                (PeerMeter::DeltasSent, exchanged.deltas_sent),
                (PeerMeter::DeltasRepeated, exchanged.deltas_repeated),
                (PeerMeter::DeltasApplied, exchanged.deltas_applied),
            ] {
                meter.set(meters, meter.of(base) + total);
            }
            let peer = streamer.peer(node);
            let silent_ns = now_ns.saturating_sub(peer.heard_ns);
            PeerMeter::Member.set(meters, is_member.into());
            PeerMeter::Iterations.set(meters, peer.iterations);
            PeerMeter::SilentMs.set(meters, silent_ns / 1_000_000);
            PeerMeter::OldestMs.set(meters, oldest_ns[usize::from(node)] / 1_000_000);
            let drift = exchanged.drift().unwrap_or(0.0) as f32;
            PeerMeter::DriftBits.set(meters, drift.to_bits().into());
        }
    }
}

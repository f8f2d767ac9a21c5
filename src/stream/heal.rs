//! The master's own range stays finite: what a solver made NaN or infinite goes back to its last
//! finite value before it is sent.
//!
//! Slaves refuse a position that is not finite, so one NaN would stop its chunk for ever. The check
//! is part of the copy into the frame. The values to go back to are in `last`, which a master does
//! not need otherwise; they are taken once per chunk at first, then every second or less often, so
//! that the copies cost little. Where the adapter reads the buffer itself there is no copy to check
//! in, and the check is made when values are taken.
//!
//! Invariant: what was kept is finite. A heal is a write to the master's weights like a solver's,
//! so it needs no number and no acknowledgement.

use std::sync::atomic::Ordering::Relaxed;

use super::Report;
use super::common::Common;
use super::common::chunk_flags::KEPT;
use crate::weights::{WeightsView, kernels};

/// Values to go back to are taken in one pass of so many, so that the copies are a small share of
/// the work; but not more often than the first time, and not less often than the second, ns.
const PASSES: u64 = 16;
const KEEP_NS_MIN: u64 = 1_000_000_000;
const KEEP_NS_MAX: u64 = 10_000_000_000;

/// When values to go back to are taken.
#[derive(Clone, Debug, Default)]
pub(super) struct Keeping {
    /// The present pass over the range takes them.
    now: bool,
    since_ns: u64,
    pass_ns: u64,
    /// One chunk on its way to the values that are kept.
    values: Vec<u8>,
}

impl Keeping {
    /// A pass over the own range begins.
    pub(super) fn begin_pass(&mut self, now_ns: u64) {
        let took = now_ns.saturating_sub(self.pass_ns);
        self.pass_ns = now_ns;
        let due = took.saturating_mul(PASSES).clamp(KEEP_NS_MIN, KEEP_NS_MAX);
        self.now = now_ns.saturating_sub(self.since_ns) >= due;
        if self.now {
            self.since_ns = now_ns;
        }
    }

    /// Takes the present values of a chunk of the own range as those to go back to, if it is time
    /// or there are none yet.
    #[inline]
    pub(super) fn poll(&mut self, common: &mut Common<'_>, chunk: u32) {
        if self.now || common.state.chunk(chunk).flags.load(Relaxed) & KEPT == 0 {
            self.keep(common, chunk);
        }
    }

    /// Takes them. Heals the chunk first.
    fn keep(&mut self, common: &mut Common<'_>, chunk: u32) {
        let (w, kept, _) = common.chunk_views(chunk);
        self.values.resize(4 * w.len(), 0);
        if kernels::copy_out_checked(w, &mut self.values) {
            let healed = heal(w, kept, &mut self.values);
            note_healed(common, chunk, healed);
        }
        kernels::copy_in_bytes(kept, &self.values);
        common.state.chunk(chunk).flags.fetch_or(KEPT, Relaxed);
    }
}

/// What was healed in a chunk.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Healed {
    first: usize,
    weights: u32,
}

/// Puts the values of `kept` in place of those of `payload`, a copy of `w`, that are not finite, in
/// both.
#[cold]
pub(super) fn heal(w: WeightsView<'_>, kept: WeightsView<'_>, payload: &mut [u8]) -> Healed {
    let mut healed = Healed::default();
    for (i, bytes) in payload.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        if f32::from_le_bytes(*bytes).is_finite() {
            continue;
        }
        let value = kept.load(i);
        *bytes = value.to_le_bytes();
        w.store(i, value);
        if healed.weights == 0 {
            healed.first = i;
        }
        healed.weights += 1;
    }
    healed
}

/// Counts and reports what was healed.
pub(super) fn note_healed(common: &mut Common<'_>, chunk: u32, healed: Healed) {
    if healed.weights == 0 {
        return;
    }
    common.counters.healed_weights += u64::from(healed.weights);
    common.report(Report::Healed {
        node: common.config.node,
        first_weight: first_weight(common, chunk) + healed.first as u64,
        weights: healed.weights,
        chunk_weights: common.config.chunk_weights,
    });
}

/// Counts weights for which a delta of `node` was not added.
pub(super) fn note_refused_sum(common: &mut Common<'_>, node: u16, chunk: u32, weights: u32) {
    if weights == 0 {
        return;
    }
    common.counters.refused_sums += u64::from(weights);
    common.report(Report::RefusedSum {
        node,
        first_weight: first_weight(common, chunk),
        weights,
        chunk_weights: common.config.chunk_weights,
    });
}

fn first_weight(common: &Common<'_>, chunk: u32) -> u64 {
    u64::from(chunk) * u64::from(common.config.chunk_weights)
}

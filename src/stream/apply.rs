//! What a master does with a delta that comes back: adds it to its weights, and acknowledges it.
//!
//! Invariant: a number is taken once, and only with all of its delta, however often it comes and
//! whichever node is killed meanwhile.

use std::sync::atomic::Ordering::Relaxed;

use super::common::Common;
use super::heal::note_refused_sum;
use crate::weights::{JournalOp, kernels};
use crate::wire::{DropReason, Header};

/// Adds a delta that was found good, once: `payload`, f32. `partials`: a killed predecessor left
/// deltas added in part.
pub(super) fn apply(
    common: &mut Common<'_>,
    partials: bool,
    header: &Header,
    payload: &[u8],
) -> Result<(), DropReason> {
    let (w, _, _) = common.chunk_views(header.chunk);
    let journal = common.state.journal();
    let applied = &common.state.applied(header.chunk)[usize::from(header.sender)];
    if !common.exactly_once() {
        // Whatever arrives is added, as in the original: no number is looked at, nothing is
        // worth a journal entry.
        let refused = kernels::apply_delta(w, payload, 0, journal, common.writes());
        note_refused_sum(common, header.sender, header.chunk, refused);
        return Ok(());
    }
    if header.seq != applied.load(Relaxed).wrapping_add(1) {
        return Err(DropReason::Repeated);
    }
    // More than 0 if a killed predecessor had added the first weights of this very delta.
    let first = if partials {
        common
            .state
            .partial(header.chunk, header.sender, header.seq)
    } else {
        0
    };
    journal.begin_at(
        JournalOp::Apply,
        header.chunk,
        header.sender,
        header.seq,
        header.chunk_version,
        first,
    );
    // What would not be finite is left out, for good: the number is taken all the same, else
    // the slave would send it for ever.
    let refused = kernels::apply_delta(w, payload, first, journal, common.writes());
    applied.store(header.seq, Relaxed);
    if first > 0 {
        common.state.forget_partial(header.chunk, header.sender);
    }
    journal.end();
    note_refused_sum(common, header.sender, header.chunk, refused);
    Ok(())
}

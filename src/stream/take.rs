//! What taking a position does to a chunk, and the delta that answers it.
//!
//! The rules (`docs/reference/stream-protocol.md`), per weight, in one pass over memory:
//!
//! ```text
//! new = w - last
//! confirmed:      w = pos + new; last = w;          sent = new, next number, send it
//! not confirmed:  last = pos + sent; w = last + new; send `sent` again, same number
//! no free slot:   w = pos + new; last = pos          (the delta stays in w - last)
//! ```
//!
//! In a narrower payload ([`narrow`](super::narrow)) `sent` is what of `new` it can say, and `last
//! = pos + sent`.
//!
//! What goes out is multiplied by the node's portion ([`Common::scale`]; 1 in a sum, and for what a
//! node did apart). Nothing
//! here depends on it: the walk ahead counts `sent` whole until the master's position replaces it.

use std::sync::atomic::Ordering::Relaxed;

use zerocopy::IntoBytes;

use super::common::chunk_flags::{OUTSTANDING, WHOLE};
use super::common::{Common, note_taken};
use super::narrow::Narrow;
use super::{Outbox, Report, To, header};
use crate::weights::{ChunkState, JournalOp, Taken, kernels};
use crate::wire::{self, Dtype, Frame, Header};

/// Takes position `pos`, f32, of a chunk that is joined, and answers it.
pub(super) fn take(
    common: &mut Common<'_>,
    narrow: &mut Narrow,
    header: &Header,
    pos: &[u8],
    ack: u8,
    out: &mut impl Outbox,
) {
    let state = common.state.chunk(header.chunk);
    let outstanding = state.flags.load(Relaxed) & OUTSTANDING != 0;
    // One delta of a chunk is under way at most, so its number alone tells whether it arrived: the
    // position acknowledges it, or the one before.
    let repeat = common.exactly_once() && outstanding && ack != state.seq.load(Relaxed);
    note_arrived(state, outstanding && !repeat);
    let leaves = common.leaves() && common.exactly_once();
    if leaves && !repeat && take_as_last(common, header, pos, ack, out) {
        return;
    }
    let taken = match (common.config.precision, repeat) {
        (Dtype::F32, true) => take_and_repeat(common, header, pos, out),
        (Dtype::F32, false) if !common.exactly_once() => take_and_forget(common, header, pos, out),
        (Dtype::F32, false) => take_and_answer(common, header, pos, out),
        (_, true) => take_and_repeat_narrow(common, narrow, header, pos, out),
        (_, false) => take_and_answer_narrow(common, narrow, header, pos, out),
    };
    common.counters.healed_weights += u64::from(taken.non_finite);
}

/// Takes position `pos`, f32, of a chunk that is joined, and answers nothing: what this node has
/// under way stays so, unless `ack` confirms it.
pub(super) fn take_unanswered(common: &Common<'_>, header: &Header, pos: &[u8], ack: u8) {
    let (w, last, sent) = common.chunk_views(header.chunk);
    let state = common.state.chunk(header.chunk);
    let (seq, version) = (state.seq.load(Relaxed), header.chunk_version);
    let outstanding = state.flags.load(Relaxed) & OUTSTANDING != 0;
    let journal = common.state.journal();
    let repeat = common.exactly_once() && outstanding && ack != seq;
    note_arrived(state, outstanding && !repeat);
    let (chunk, range) = (header.chunk, header.range);
    if repeat {
        journal.begin(JournalOp::Unconfirmed, chunk, range, seq, version);
        kernels::take_unconfirmed(w, last, sent, pos, None, 1.0, journal, common.writes());
    } else {
        journal.begin(JournalOp::Keep, chunk, range, seq, version);
        kernels::take_keep(w, last, pos, journal, common.writes());
    }
    note_taken(state, version, None, repeat);
    journal.end();
}

/// What was under way has `arrived`: what comes after it counts by the portion again.
#[inline]
fn note_arrived(state: &ChunkState, arrived: bool) {
    let flags = state.flags.load(Relaxed);
    if arrived && flags & WHOLE != 0 {
        state.flags.store(flags & !WHOLE, Relaxed);
    }
}

/// Takes a position when this node leaves, and answers with a number that was confirmed if there is
/// nothing left to say: nothing stays under way, and the master sees that its positions arrive.
/// True: it was taken.
#[cold]
#[inline(never)]
fn take_as_last(
    common: &mut Common<'_>,
    header: &Header,
    pos: &[u8],
    ack: u8,
    out: &mut impl Outbox,
) -> bool {
    let last = !common.has_new(header.chunk);
    if last {
        take_unanswered(common, header, pos, ack);
        answer_nothing_new(common, header, out);
    }
    last
}

/// Without answers the master's window would stay shut but for a few positions at a time, and
/// what is under way of other chunks would wait for theirs. Its number tells the master that this
/// delta was added. Under a limit of rate all room is for what others lack.
fn answer_nothing_new(common: &mut Common<'_>, header: &Header, out: &mut impl Outbox) {
    let seq = common.state.chunk(header.chunk).seq.load(Relaxed);
    let delta = header::delta(common, header, seq, common.config.precision);
    let went = out.room().is_none()
        && out.send(To::Node(header.sender), delta.frame_len(), &mut |slot| {
            delta.emit(slot).1.fill(0);
        });
    if went {
        common.counters.deltas_sent += 1;
        common.counters.deltas_repeated += 1;
    }
}

/// The master counts the deltas of this node otherwise than it does: what is outstanding goes back
/// into `w - last`, and goes out under its count `ack`. If it had been applied all the same, it
/// counts twice: no number tells, and losing it is worse.
#[cold]
pub(super) fn put_back(common: &mut Common<'_>, header: &Header, ack: u8) {
    let (_, last, sent) = common.chunk_views(header.chunk);
    let state = common.state.chunk(header.chunk);
    let version = state.version.load(Relaxed);
    if state.flags.load(Relaxed) & OUTSTANDING != 0 {
        let journal = common.state.journal();
        journal.begin(JournalOp::PutBack, header.chunk, header.range, ack, version);
        kernels::put_back(last, sent, 0, journal);
        note_taken(state, version, Some(ack), false);
        journal.end();
    } else {
        state.seq.store(ack, Relaxed);
    }
}

/// Counts and reports that a chunk and its master did not agree.
pub(super) fn report_resync(common: &mut Common<'_>, header: &Header) {
    common.counters.resyncs += 1;
    common.report(Report::Resync {
        node: header.range,
        first_weight: u64::from(header.chunk) * u64::from(common.config.chunk_weights),
        chunk_weights: common.config.chunk_weights,
    });
}

/// Whether `ack` is what this node expects of a chunk: its last delta is confirmed, or the one
/// before.
#[inline]
pub(super) fn agrees(common: &Common<'_>, chunk: u32, ack: u8) -> bool {
    let state = common.state.chunk(chunk);
    let seq = state.seq.load(Relaxed);
    let outstanding = state.flags.load(Relaxed) & OUTSTANDING != 0;
    ack == seq || (outstanding && ack.wrapping_add(1) == seq)
}

/// Keeps the acknowledgements of a position that is taken: they go with it, should its master need
/// it back. Before the position is: a kill in between makes them too new by one position, never too
/// old.
#[inline]
pub(super) fn note_acks(common: &Common<'_>, frame: &Frame<'_>) {
    let applied = common.state.applied(frame.header.chunk);
    for (kept, ack) in applied.iter().zip(frame.acks) {
        kept.store(*ack, Relaxed);
    }
}

/// Everything sent before has arrived (or nothing was): the present delta goes out.
pub(super) fn take_and_answer(
    common: &mut Common<'_>,
    header: &Header,
    pos: &[u8],
    out: &mut impl Outbox,
) -> Taken {
    let (w, last, sent) = common.chunk_views(header.chunk);
    let state = common.state.chunk(header.chunk);
    let version = header.chunk_version;
    let seq = state.seq.load(Relaxed).wrapping_add(1);
    let delta = header::delta(common, header, seq, Dtype::F32);
    let journal = common.state.journal();
    let mut taken = Taken::default();
    let went = common.shares.may_answer()
        && out.send(To::Node(header.sender), delta.frame_len(), &mut |slot| {
            let (_, payload) = delta.emit(slot);
            journal.begin(JournalOp::Confirmed, delta.chunk, delta.range, seq, version);
            taken = kernels::take_confirmed(
                w,
                last,
                sent,
                pos,
                payload,
                common.scale(header.chunk),
                journal,
                common.writes(),
            );
        });
    if went {
        note_taken(state, version, Some(seq), true);
        common.counters.deltas_sent += 1;
        common.shares.answer_sent();
    } else {
        // The number is not used up: nothing went under it.
        journal.begin(JournalOp::Keep, delta.chunk, delta.range, seq, version);
        taken = kernels::take_keep(w, last, pos, journal, common.writes());
        note_taken(state, version, None, false);
        common.counters.deltas_kept += 1;
    }
    journal.end();
    taken
}

/// The master has not got our last delta: it goes again, under the same number.
fn take_and_repeat(
    common: &mut Common<'_>,
    header: &Header,
    pos: &[u8],
    out: &mut impl Outbox,
) -> Taken {
    let (w, last, sent) = common.chunk_views(header.chunk);
    let state = common.state.chunk(header.chunk);
    let seq = state.seq.load(Relaxed);
    let version = header.chunk_version;
    let delta = header::delta(common, header, seq, Dtype::F32);
    let journal = common.state.journal();
    journal.begin(
        JournalOp::Unconfirmed,
        delta.chunk,
        delta.range,
        seq,
        version,
    );
    let mut taken = Taken::default();
    // `sent` is in `w` already, and the position lacks it: so `last` becomes `pos + sent`, what
    // the master will have when the repeat arrives. What solvers did since stays in `w - last`
    // for the next number; the repeat must not grow, or a first copy that arrives after all
    // would be taken for the whole.
    let went = common.shares.may_answer()
        && out.send(To::Node(header.sender), delta.frame_len(), &mut |slot| {
            let (_, payload) = delta.emit(slot);
            taken = kernels::take_unconfirmed(
                w,
                last,
                sent,
                pos,
                Some(payload),
                common.scale(header.chunk),
                journal,
                common.writes(),
            );
        });
    if went {
        common.counters.deltas_sent += 1;
        common.shares.answer_sent();
        common.counters.deltas_repeated += 1;
    } else {
        taken = kernels::take_unconfirmed(w, last, sent, pos, None, 1.0, journal, common.writes());
        common.counters.deltas_kept += 1;
    }
    note_taken(state, version, None, true);
    journal.end();
    taken
}

/// As [`take_and_answer`]; what the payload cannot say stays in `w -
/// last`.
pub(super) fn take_and_answer_narrow(
    common: &mut Common<'_>,
    narrow: &mut Narrow,
    header: &Header,
    pos: &[u8],
    out: &mut impl Outbox,
) -> Taken {
    let (w, last, sent) = common.chunk_views(header.chunk);
    let state = common.state.chunk(header.chunk);
    let version = header.chunk_version;
    let seq = state.seq.load(Relaxed).wrapping_add(1);
    let (portion, journal) = (common.scale(header.chunk), common.state.journal());
    let (dtype, rounding, goes) = narrow.rounding(common.config.precision, (w, last), portion);
    let delta = header::delta(common, header, seq, dtype);
    let mut taken = Taken::default();
    let went = common.shares.may_answer()
        && out.send(To::Node(header.sender), delta.frame_len(), &mut |slot| {
            let (_, payload) = delta.emit(slot);
            journal.begin(JournalOp::Rounded, delta.chunk, delta.range, seq, version);
            taken = kernels::take_rounded(
                w,
                last,
                sent,
                pos,
                goes.as_mut_bytes(),
                rounding,
                portion,
                journal,
                common.writes(),
            );
            wire::pack(dtype, goes, payload);
        });
    if went {
        narrow.note_outstanding(header.chunk, portion);
        note_taken(state, version, Some(seq), common.exactly_once());
        common.counters.deltas_sent += 1;
        common.counters.deltas_coarse += u64::from(dtype == Dtype::Int2);
        common.shares.answer_sent();
    } else {
        journal.begin(JournalOp::Keep, delta.chunk, delta.range, seq, version);
        taken = kernels::take_keep(w, last, pos, journal, common.writes());
        narrow.note_exact(header.chunk);
        note_taken(state, version, None, false);
        common.counters.deltas_kept += 1;
    }
    journal.end();
    taken
}

/// As [`take_and_repeat`](Self::take_and_repeat): the same values again, whatever the portion
/// is by now.
fn take_and_repeat_narrow(
    common: &mut Common<'_>,
    narrow: &mut Narrow,
    header: &Header,
    pos: &[u8],
    out: &mut impl Outbox,
) -> Taken {
    let (w, last, sent) = common.chunk_views(header.chunk);
    let state = common.state.chunk(header.chunk);
    let (seq, version) = (state.seq.load(Relaxed), header.chunk_version);
    // With the portion of now the values would not be ones that the payload can say, and what is
    // cut off would be lost: it is in `sent` already, and so no longer in `w - last`.
    let portion = narrow.portion_of(header.chunk);
    let portion = portion.unwrap_or_else(|| common.scale(header.chunk));
    let (dtype, goes) = narrow.repeat(common.config.precision, sent, portion);
    let delta = header::delta(common, header, seq, dtype);
    let went = common.shares.may_answer()
        && out.send(To::Node(header.sender), delta.frame_len(), &mut |slot| {
            wire::pack(dtype, goes, delta.emit(slot).1);
        });
    let journal = common.state.journal();
    journal.begin(
        JournalOp::Unconfirmed,
        delta.chunk,
        delta.range,
        seq,
        version,
    );
    let taken = kernels::take_unconfirmed(w, last, sent, pos, None, 1.0, journal, common.writes());
    if went {
        common.counters.deltas_sent += 1;
        common.shares.answer_sent();
        common.counters.deltas_repeated += 1;
    } else {
        common.counters.deltas_kept += 1;
    }
    note_taken(state, version, None, true);
    journal.end();
    taken
}

/// The paper's original: what is sent is forgotten.
fn take_and_forget(
    common: &mut Common<'_>,
    header: &Header,
    pos: &[u8],
    out: &mut impl Outbox,
) -> Taken {
    let (w, last, _) = common.chunk_views(header.chunk);
    let state = common.state.chunk(header.chunk);
    let seq = state.seq.load(Relaxed).wrapping_add(1);
    let delta = header::delta(common, header, seq, Dtype::F32);
    let mut taken = Taken::default();
    let went = common.shares.may_answer()
        && out.send(To::Node(header.sender), delta.frame_len(), &mut |slot| {
            let (_, payload) = delta.emit(slot);
            taken = kernels::take_forget(w, last, pos, payload, common.portion(), common.writes());
        });
    if went {
        common.counters.deltas_sent += 1;
        common.shares.answer_sent();
    } else {
        let journal = common.state.journal();
        taken = kernels::take_keep(w, last, pos, journal, common.writes());
        common.counters.deltas_kept += 1;
    }
    note_taken(state, header.chunk_version, went.then_some(seq), false);
    taken
}

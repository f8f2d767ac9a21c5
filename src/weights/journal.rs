//! The journal that makes kill -9 of a streamer in the middle of a chunk exact.
//!
//! Lives in the streamer's state file, has one writer, and is read by the next streamer before it
//! does anything else. A kernel works in units (a block of 16 weights, or where writes are atomic
//! one weight or four). For each it notes in the journal what it read, what it will write to `w`,
//! and one more value where that cannot be found elsewhere. Then it sets the mark, and then writes
//! `w`, `last` and `sent`. (It writes `sent` of a block, or rounded, before the mark: what `sent`
//! held is confirmed by then.) A process that is killed has made a prefix of its stores, in program
//! order: a kill is a precise interrupt on every processor. So compiler order is enough: release
//! stores and compiler fences.
//!
//! Invariant: the entry of the unit that the mark names is whole. Blocks therefore use two
//! entries in turn; smaller units clear the unit in the mark before they change theirs.
//!
//! A weight that solvers move on between the kill and the recovery does not show whether it was
//! written. So where writes are atomic the mark is set once more when it is ([`WRITTEN`], or that
//! nothing is in flight). What is left is the exchange itself: a kill right before or after it, and
//! then what is nearer decides.

use std::sync::atomic::{
    AtomicU32,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    compiler_fence,
};

use super::BLOCK;
use super::kernels::{Memory, Real};
use super::mapping::Shared;
use super::view::WeightsView;

/// What a kernel does to a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum JournalOp {
    /// `take_confirmed`.
    Confirmed = 1,
    /// `take_unconfirmed`.
    Unconfirmed = 2,
    /// `take_keep`.
    Keep = 3,
    /// `apply_delta`.
    Apply = 4,
    /// `take_rounded`.
    Rounded = 5,
    /// `put_back`.
    PutBack = 6,
    /// `apply_delta`, of a delta that is taken out again. The peer is this node, the number the
    /// node whose delta it is, the version the epoch in which it was added.
    TakeOut = 7,
}

impl JournalOp {
    fn from_code(code: u32) -> Option<Self> {
        [
            Self::Confirmed,
            Self::Unconfirmed,
            Self::Keep,
            Self::Apply,
            Self::Rounded,
            Self::PutBack,
            Self::TakeOut,
        ]
        .into_iter()
        .find(|&k| k as u32 == code)
    }
}

/// What a killed streamer was doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted {
    /// Which kernel it was in.
    pub kind: JournalOp,
    /// Index of the chunk.
    pub chunk: u32,
    /// Index of the peer: the node that sent the position or the delta.
    pub peer: u16,
    /// Sequence number of the delta, sent or received.
    pub seq: u8,
    /// Version of the chunk.
    pub version: u32,
    /// Weights of the chunk that are done, from its start (after `recover`; before, those begun).
    pub progress: u32,
}

/// One unit's values, as f32 bits.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Entry {
    /// What was read from `w`.
    pub(super) before: [AtomicU32; BLOCK],
    /// What `w` becomes.
    pub(super) after: [AtomicU32; BLOCK],
    /// Unconfirmed, keep, rounded, put back: `last`. Confirmed (`last` is `after`): `sent`, of a
    /// single weight; a block's is in its place before the mark. Apply, take out: unused.
    pub(super) third: [AtomicU32; BLOCK],
}

/// The journal. All zeros is an idle one.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Journal {
    kind: AtomicU32,
    chunk: AtomicU32,
    peer: AtomicU32,
    seq: AtomicU32,
    version: AtomicU32,
    /// Weights begun, times 256, plus the unit in flight: its width (16, [`FOUR`] or 1),
    /// [`WRITTEN`], or 0: none.
    pub(super) mark: AtomicU32,
    _pad: [AtomicU32; 10],
    pub(super) entries: [Entry; 2],
}

// SAFETY: `repr(C)`, atomics only.
unsafe impl Shared for Journal {}

impl Default for Journal {
    fn default() -> Self {
        let zeros = || std::array::from_fn(|_| AtomicU32::new(0));
        let entry = || Entry {
            before: zeros(),
            after: zeros(),
            third: zeros(),
        };
        Self {
            kind: AtomicU32::new(0),
            chunk: AtomicU32::new(0),
            peer: AtomicU32::new(0),
            seq: AtomicU32::new(0),
            version: AtomicU32::new(0),
            mark: AtomicU32::new(0),
            _pad: std::array::from_fn(|_| AtomicU32::new(0)),
            entries: [entry(), entry()],
        }
    }
}

/// In the mark: one weight in flight, whose `w` is written.
pub(super) const WRITTEN: usize = 2;

/// Weights that are exchanged at once where the processor can: the width of their unit.
pub(super) const FOUR: usize = 4;

/// The mark for `progress` weights begun, the last `unit` of them in flight.
pub(super) const fn mark(progress: usize, unit: usize) -> u32 {
    (progress as u32) << 8 | unit as u32
}

impl Journal {
    /// Notes what is about to be done to a chunk. Call it before the kernel, and
    /// [`Journal::end`] after the chunk's own numbers (version, sequence) were stored.
    #[inline]
    pub fn begin(&self, kind: JournalOp, chunk: u32, peer: u16, seq: u8, version: u32) {
        self.begin_at(kind, chunk, peer, seq, version, 0);
    }

    /// As [`Journal::begin`], with the first `first_weight` weights done earlier (the
    /// repetition of a delta that was interrupted).
    #[inline]
    pub fn begin_at(
        &self,
        kind: JournalOp,
        chunk: u32,
        peer: u16,
        seq: u8,
        version: u32,
        first_weight: u32,
    ) {
        self.kind.store(0, Relaxed);
        // After the old kind is gone, before anything changes: a kill in between finds an idle
        // journal.
        compiler_fence(SeqCst);
        self.chunk.store(chunk, Relaxed);
        self.peer.store(peer.into(), Relaxed);
        self.seq.store(seq.into(), Relaxed);
        self.version.store(version, Relaxed);
        self.mark.store(mark(first_weight as usize, 0), Relaxed);
        // Partner: the Acquire load in `pending`.
        self.kind.store(kind as u32, Release);
        // Before the kernel's first store.
        compiler_fence(SeqCst);
    }

    /// Notes that everything is done.
    #[inline]
    pub fn end(&self) {
        // After every store of the kernel and of the caller.
        self.kind.store(0, Release);
    }

    /// What a killed streamer was doing, without touching anything; `None` if nothing. The
    /// caller must check that there is such a chunk and peer: this may be any file.
    pub fn pending(&self) -> Option<Interrupted> {
        // Partner: the Release store in `begin_at`.
        let kind = JournalOp::from_code(self.kind.load(Acquire))?;
        Some(Interrupted {
            kind,
            chunk: self.chunk.load(Relaxed),
            peer: self.peer.load(Relaxed) as u16,
            seq: self.seq.load(Relaxed) as u8,
            version: self.version.load(Relaxed),
            progress: self.mark.load(Relaxed) >> 8,
        })
    }

    /// Finishes the unit that a killed streamer was working on, so that nothing is lost or
    /// doubled; `None` if it was idle. `w`, `last`, `sent` are the views of *that* chunk
    /// ([`Journal::pending`] names it).
    ///
    /// Afterwards, for a confirmed position (rounded or not), `sent` is what was taken before the
    /// kill and zero behind it. The caller stores sequence number and version as it would have
    /// done. For the others `last` and `w` fit together; what is put back is so for the first
    /// `progress` weights, and the caller goes on from there. A delta was applied to the first
    /// `progress` weights, and its rest must be applied from there when the peer repeats it
    /// ([`StreamState::remember_partial`](super::StreamState::remember_partial)). The journal stays
    /// as it is until [`Journal::end`]; recovering twice does no harm.
    ///
    /// Exact if no solver wrote to the very weights in flight between the kill and now, or the mark
    /// says that they were written. Else whichever of before and after is nearer to the present
    /// value decides. If that is wrong, one weight (a delta: four; racy: a block) is off by what
    /// the position or the delta brought, once.
    ///
    /// Panics if the three views differ in length.
    pub fn recover(
        &self,
        w: WeightsView,
        last: WeightsView,
        sent: WeightsView,
    ) -> Option<Interrupted> {
        self.recover_in::<Real>(w, last, sent)
    }

    pub(super) fn recover_in<M: Memory>(
        &self,
        w: WeightsView,
        last: WeightsView,
        sent: WeightsView,
    ) -> Option<Interrupted> {
        assert!(
            w.len() == last.len() && w.len() == sent.len(),
            "views of different chunks"
        );
        let mut found = self.pending()?;
        let unit = (self.mark.load(Relaxed) & 0xff) as usize;
        // A damaged file may say anything; what cannot be is taken for the end of the chunk.
        let progress = (found.progress as usize).min(w.len());
        found.progress = progress as u32;
        let width = if unit == WRITTEN { 1 } else { unit };
        if matches!(width, 1 | FOUR | BLOCK) && progress >= width && progress.is_multiple_of(width)
        {
            // The dead process has made any prefix of its stores to this unit. So each word is
            // stored again, whether it was or not; only `w` needs care, as solvers write it too.
            for i in progress - width..progress {
                let entry = self.entry(i, width);
                let [before, after, third] =
                    [&entry.before, &entry.after, &entry.third].map(|a| a[i % BLOCK].load(Relaxed));
                if unit != WRITTEN {
                    finish::<M>(w.word(i), before, after);
                }
                match found.kind {
                    JournalOp::Confirmed => {
                        M::store(last.word(i), after);
                        if width == 1 {
                            M::store(sent.word(i), third);
                        }
                    }
                    JournalOp::Unconfirmed
                    | JournalOp::Keep
                    | JournalOp::Rounded
                    | JournalOp::PutBack => M::store(last.word(i), third),
                    JournalOp::Apply | JournalOp::TakeOut => {}
                }
            }
        }
        if matches!(found.kind, JournalOp::Confirmed | JournalOp::Rounded) {
            // The position confirmed what was outstanding; behind `progress` nothing new is.
            for i in progress..sent.len() {
                M::store(sent.word(i), 0);
            }
        }
        // Only now is the unit done for good: solvers may move its weights on.
        M::store_mark(&self.mark, mark(progress, 0));
        Some(found)
    }

    /// The entry of the unit that holds weight `i`.
    pub(super) fn entry(&self, i: usize, unit: usize) -> &Entry {
        if unit == BLOCK {
            &self.entries[(i / BLOCK) & 1]
        } else {
            &self.entries[0]
        }
    }
}

/// Brings one weight from before to after, wherever it is now.
fn finish<M: Memory>(word: &AtomicU32, before: u32, after: u32) {
    let [old, new] = [before, after].map(f32::from_bits);
    loop {
        let bits = word.load(Relaxed);
        let now = f32::from_bits(bits);
        let next = if bits == after {
            return;
        } else if bits == before {
            after
        } else if (now - new).abs() <= (now - old).abs() || !(new - old).is_finite() || now.is_nan()
        {
            // Written, and then moved on by a solver. (A weight that was NaN or infinite is
            // left to the next position, which heals it.)
            return;
        } else {
            // Not written, but moved on by a solver: what it added stays, and ours is added to it.
            (now + (new - old)).to_bits()
        };
        if M::exchange(word, bits, next) {
            return;
        }
    }
}

//! What a slave does with a position: one pass over a chunk.
//!
//! Each take is a rule (`Rule::next`, pure arithmetic) put through one of two loops: blocks
//! of 16 weights read and written whole, or single weights exchanged atomically. Invariant:
//! the arithmetic and its order are those of the rule in both, so all paths agree.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::lanes::{Arith, Lanes, Memory};
use super::{Kernel, Taken};
use crate::weights::BLOCK;
use crate::weights::journal::{Entry, Journal, WRITTEN, mark};
use crate::weights::view::WeightsView;

/// What becomes of one weight (or block) at a position.
pub(super) struct Next<A> {
    pub(super) w: A,
    pub(super) last: A,
    /// What `sent` becomes, if the rule writes it.
    pub(super) sent: A,
    pub(super) out: A,
}

/// One way to take a position. `d` is what local solvers did since the last one.
pub(super) trait Rule: Copy {
    const JOURNAL: bool;
    const READS_SENT: bool;
    const WRITES_SENT: bool;
    /// `last` becomes what `w` becomes.
    const LAST_IS_W: bool;
    /// `i`: the weight, or the first of the block.
    fn next<A: Arith>(&self, i: usize, pos: A, sent: A, d: A) -> Next<A>;
}

/// The position includes what was sent.
#[derive(Clone, Copy)]
pub(super) struct Confirmed;
impl Rule for Confirmed {
    const JOURNAL: bool = true;
    const READS_SENT: bool = false;
    const WRITES_SENT: bool = true;
    const LAST_IS_W: bool = true;
    #[inline(always)]
    fn next<A: Arith>(&self, _: usize, pos: A, _: A, d: A) -> Next<A> {
        let y = pos.plus(d);
        Next {
            w: y,
            last: y,
            sent: d,
            out: d,
        }
    }
}

/// The position does not include what was sent: send the same again.
#[derive(Clone, Copy)]
pub(super) struct Unconfirmed;
impl Rule for Unconfirmed {
    const JOURNAL: bool = true;
    const READS_SENT: bool = true;
    const WRITES_SENT: bool = false;
    const LAST_IS_W: bool = false;
    #[inline(always)]
    fn next<A: Arith>(&self, _: usize, pos: A, sent: A, d: A) -> Next<A> {
        let b = pos.plus(sent);
        Next {
            w: b.plus(d),
            last: b,
            sent,
            out: sent,
        }
    }
}

/// The position includes what was sent, but there is no slot to send from: keep the delta for
/// later.
#[derive(Clone, Copy)]
pub(super) struct Keep;
impl Rule for Keep {
    const JOURNAL: bool = true;
    const READS_SENT: bool = false;
    const WRITES_SENT: bool = false;
    const LAST_IS_W: bool = false;
    #[inline(always)]
    fn next<A: Arith>(&self, _: usize, pos: A, _: A, d: A) -> Next<A> {
        Next {
            w: pos.plus(d),
            last: pos,
            sent: d,
            out: d,
        }
    }
}

/// Send and forget.
#[derive(Clone, Copy)]
pub(super) struct Forget;
impl Rule for Forget {
    const JOURNAL: bool = false;
    const READS_SENT: bool = false;
    const WRITES_SENT: bool = false;
    const LAST_IS_W: bool = true;
    #[inline(always)]
    fn next<A: Arith>(&self, _: usize, pos: A, _: A, d: A) -> Next<A> {
        let y = pos.plus(d);
        Next {
            w: y,
            last: y,
            sent: d,
            out: d,
        }
    }
}

/// A take of one chunk. `new` checks the lengths, so the loops need not.
pub(super) struct Take<'a, R> {
    w: WeightsView<'a>,
    last: WeightsView<'a>,
    /// Empty for a rule that neither reads nor writes it.
    sent: WeightsView<'a>,
    pos: &'a [u8],
    /// Null: the delta is not wanted.
    out: *mut u8,
    /// What the delta is multiplied by on its way out.
    scale: f32,
    journal: Option<&'a Journal>,
    rule: R,
    borrows_out: PhantomData<&'a mut [u8]>,
}

impl<'a, R: Rule> Take<'a, R> {
    #[inline]
    pub(super) fn new(
        rule: R,
        w: WeightsView<'a>,
        last: WeightsView<'a>,
        sent: Option<WeightsView<'a>>,
        pos: &'a [u8],
        out: Option<&'a mut [u8]>,
        journal: Option<&'a Journal>,
    ) -> Self {
        super::check_blocks(w.len(), pos.len());
        assert_eq!(w.len(), last.len(), "w and last of different chunks");
        assert!(
            out.as_ref().is_none_or(|o| o.len() == pos.len()),
            "a delta is as long as its position"
        );
        assert!(sent.map_or(!R::READS_SENT && !R::WRITES_SENT, |s| s.len() == w.len()));
        assert_eq!(journal.is_some(), R::JOURNAL);
        let out = out.map_or(std::ptr::null_mut(), <[u8]>::as_mut_ptr);
        Self {
            w,
            last,
            sent: sent.unwrap_or(w.slice(0, 0)),
            pos,
            out,
            scale: 1.0,
            journal,
            rule,
            borrows_out: PhantomData,
        }
    }

    /// The same with a delta that leaves multiplied by `scale`; `w`, `last` and `sent` do not
    /// depend on it.
    pub(super) fn scaled(self, scale: f32) -> Self {
        Self { scale, ..self }
    }

    /// The loop for solvers that write atomically: weight by weight, each exchanged against
    /// the very value that was read, so nothing they add is lost.
    pub(super) fn run_atomic<M: Memory>(self) -> Taken {
        let mut taken = Taken::default();
        for i in 0..self.w.len() {
            let at = i * 4..i * 4 + 4;
            let pos = float(&self.pos[at]);
            let sent = if R::READS_SENT {
                self.sent.load(i)
            } else {
                0.0
            };
            let last = self.last.load(i);
            let word = self.w.word(i);
            let (d, next, finite) = loop {
                let bits = word.load(Relaxed);
                let x = f32::from_bits(bits);
                let moved = x.minus(last);
                let finite = moved.is_finite();
                let d = if finite { moved } else { 0.0 };
                let next = self.rule.next(i, pos, sent, d);
                if let Some(journal) = self.journal {
                    let third = if R::LAST_IS_W { next.sent } else { next.last };
                    if R::WRITES_SENT && !R::LAST_IS_W {
                        // The journal has no word for `sent` here, so it is stored before the mark,
                        // as in a block.
                        M::store(self.sent.word(i), next.sent.to_bits());
                    }
                    // Before each try: once the exchange succeeds, only this entry has the `last`
                    // (or `sent`) that belongs to the new weight. If it fails, the next round notes
                    // what it reads.
                    note_one::<M>(journal, i, [bits, next.w.to_bits(), third.to_bits()]);
                }
                if M::exchange(word, bits, next.w.to_bits()) {
                    break (d, next, finite);
                }
            };
            if let Some(journal) = self.journal {
                M::store_mark(&journal.mark, mark(i + 1, WRITTEN));
            }
            taken.moved |= d != 0.0;
            taken.non_finite += u32::from(!finite);
            M::store(self.last.word(i), next.last.to_bits());
            if R::WRITES_SENT {
                M::store(self.sent.word(i), next.sent.to_bits());
            }
            if !self.out.is_null() {
                // SAFETY: `out` is as long as `pos`, checked in `new`, and not null.
                unsafe {
                    self.out
                        .add(i * 4)
                        .cast::<[u8; 4]>()
                        .write(next.out.times(self.scale).to_le_bytes())
                };
            }
        }
        taken
    }
}

impl<R: Rule> Kernel for Take<'_, R> {
    type Out = Taken;

    #[inline(always)]
    unsafe fn run<V: Lanes>(self) -> Taken {
        let scale = V::splat(self.scale);
        let mut moved = V::splat(0.0);
        let mut non_finite = 0;
        for i in (0..self.w.len()).step_by(BLOCK) {
            // SAFETY: every array has `w.len()` weights, a multiple of a block; see `new`.
            unsafe {
                let pos = V::load_bytes(self.pos.as_ptr().add(i * 4));
                let sent = if R::READS_SENT {
                    V::load(self.sent.as_ptr().add(i))
                } else {
                    V::splat(0.0)
                };
                let last = V::load(self.last.as_ptr().add(i));
                // Last of all loads: from here to the store of `w`, what solvers add is lost.
                let x = V::load(self.w.as_ptr().add(i));
                let (d, bad) = x.minus(last).finite_or_zero();
                let next = self.rule.next(i, pos, sent, d);
                if R::WRITES_SENT {
                    // Before the mark, so that the journal need not hold it: what was here is
                    // confirmed.
                    next.sent.store(self.sent.as_ptr().add(i));
                }
                if let Some(journal) = self.journal.filter(|_| R::JOURNAL) {
                    let third = (!R::LAST_IS_W).then_some(next.last);
                    note_block(journal, i, [x, next.w], third);
                }
                next.w.store(self.w.as_ptr().add(i));
                next.last.store(self.last.as_ptr().add(i));
                if !self.out.is_null() {
                    next.out.times(scale).store_bytes(self.out.add(i * 4));
                }
                moved = moved.or(d);
                if bad != 0 {
                    non_finite += bad.count_ones();
                }
            }
        }
        Taken {
            moved: moved.any_magnitude(),
            non_finite,
        }
    }
}

/// The first position ever: `w` and `last` become it, `sent` zero.
#[derive(Clone, Copy)]
pub(super) struct Adopt<'a> {
    w: WeightsView<'a>,
    last: WeightsView<'a>,
    sent: WeightsView<'a>,
    pos: &'a [u8],
}

impl<'a> Adopt<'a> {
    #[inline]
    pub(super) fn new(
        w: WeightsView<'a>,
        last: WeightsView<'a>,
        sent: WeightsView<'a>,
        pos: &'a [u8],
    ) -> Self {
        super::check_blocks(w.len(), pos.len());
        assert!(
            w.len() == last.len() && w.len() == sent.len(),
            "views of different chunks"
        );
        Self { w, last, sent, pos }
    }
}

impl Kernel for Adopt<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        let zero = V::splat(0.0);
        for i in (0..self.w.len()).step_by(BLOCK) {
            // SAFETY: all have the same length, a multiple of a block; see `new`.
            unsafe {
                // Plus zero: weights never hold -0.0.
                let pos = V::load_bytes(self.pos.as_ptr().add(i * 4)).plus(zero);
                pos.store(self.w.as_ptr().add(i));
                pos.store(self.last.as_ptr().add(i));
                zero.store(self.sent.as_ptr().add(i));
            }
        }
    }
}

/// Notes a block in the journal. It takes the two entries in turn: the one that the mark
/// still names stays whole while the other is written.
#[inline(always)]
pub(super) fn note_block<V: Lanes>(
    journal: &Journal,
    i: usize,
    [before, after]: [V; 2],
    third: Option<V>,
) {
    let entry: &Entry = journal.entry(i, BLOCK);
    // SAFETY: each array of the entry has 16 words.
    unsafe {
        before.store(entry.before.as_ptr() as *mut f32);
        after.store(entry.after.as_ptr() as *mut f32);
        if let Some(third) = third {
            third.store(entry.third.as_ptr() as *mut f32);
        }
    }
    // Between the entry and the caller's stores.
    V::store_mark(&journal.mark, mark(i + BLOCK, BLOCK));
}

/// Notes one weight: first that none is in flight, then its values, then that it is.
#[inline(always)]
pub(super) fn note_one<M: Memory>(journal: &Journal, i: usize, values: [u32; 3]) {
    let entry = journal.entry(i, 1);
    M::store_mark(&journal.mark, mark(i, 0));
    let places: [&[AtomicU32; BLOCK]; 3] = [&entry.before, &entry.after, &entry.third];
    for (place, value) in places.into_iter().zip(values) {
        M::store(&place[i % BLOCK], value);
    }
    M::store_mark(&journal.mark, mark(i + 1, 1));
}

#[inline]
pub(super) fn float(bytes: &[u8]) -> f32 {
    f32::from_le_bytes(bytes.try_into().expect("four bytes"))
}

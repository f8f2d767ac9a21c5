//! Killing a kernel, and the recovery after it, after every single store.
//!
//! The portable kernels run over memory whose stores have no effect after a given number. That is
//! what a kill leaves behind: a prefix of the stores in program order.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::apply::Apply;
use super::lanes::Words;
use super::rounded::Rounded;
use super::take::{Confirmed, Keep, Take, Unconfirmed};
use super::*;
use crate::weights::journal::JournalOp;

thread_local! {
    static STORES_LEFT: Cell<u64> = const { Cell::new(u64::MAX) };
}

/// Memory as a process sees it that will be killed.
#[derive(Clone, Copy)]
struct Dying;

impl Dying {
    fn alive() -> bool {
        STORES_LEFT.with(|s| {
            let left = s.get();
            s.set(left.saturating_sub(1));
            left > 0
        })
    }
}

impl Memory for Dying {
    fn store(word: &AtomicU32, value: u32) {
        if Self::alive() {
            word.store(value, Relaxed);
        }
    }
    fn store_mark(word: &AtomicU32, value: u32) {
        Self::store(word, value);
    }
    fn exchange(word: &AtomicU32, old: u32, new: u32) -> bool {
        if Self::alive() {
            word.compare_exchange(old, new, Relaxed, Relaxed).is_ok()
        } else {
            true
        }
    }
    #[cfg(target_arch = "x86_64")]
    fn store_two(words: &[AtomicU32], values: u64) {
        if Self::alive() {
            Real::store_two(words, values);
        }
    }
    #[cfg(target_arch = "x86_64")]
    unsafe fn exchange_four(words: *mut u32, old: [u64; 2], new: [u64; 2]) -> bool {
        // SAFETY: the caller's promise.
        !Self::alive() || unsafe { Real::exchange_four(words, old, new) }
    }
}

/// Lets `f` do `stores` stores; true if it wanted more.
fn kill_after(stores: u64, f: impl FnOnce()) -> bool {
    STORES_LEFT.with(|s| s.set(stores));
    f();
    // One was left: nothing was cut off.
    STORES_LEFT.with(|s| s.replace(u64::MAX)) == 0
}

const N: usize = 3 * BLOCK;

struct Chunk {
    w: Vec<AtomicU32>,
    last: Vec<AtomicU32>,
    sent: Vec<AtomicU32>,
    pos: Vec<u8>,
    journal: Journal,
}

/// Whole numbers, so that every sum is exact; all different, so that nothing cancels.
const W: fn(usize) -> f32 = |i| 1000.0 + i as f32;
const LAST: fn(usize) -> f32 =
    |i| 1000.0 - 2.0 * i as f32 - if i % 5 == 0 { -3.0 * i as f32 } else { 9.0 };
const SENT: fn(usize) -> f32 = |i| 5.0 + i as f32;
const POS: fn(usize) -> f32 = |i| 3000.0 + 7.0 * i as f32;
const D: fn(usize) -> f32 = |i| W(i) - LAST(i);
/// Leaves out a part of most deltas.
const ROUNDED: Rounded<'static> = Rounded {
    rounding: Rounding::Steps(&[8.0], 127.0),
    portion: 1.0,
};

impl Chunk {
    fn new(kind: JournalOp, first: u32) -> Self {
        let words = |f: fn(usize) -> f32| (0..N).map(|i| AtomicU32::new(f(i).to_bits())).collect();
        let pos = (0..N).flat_map(|i| POS(i).to_le_bytes()).collect();
        let chunk = Self {
            w: words(W),
            last: words(LAST),
            sent: words(SENT),
            pos,
            journal: Journal::default(),
        };
        chunk.journal.begin_at(kind, 4, 2, 200, 9, first);
        chunk
    }

    fn views(&self) -> [WeightsView<'_>; 3] {
        [&self.w, &self.last, &self.sent].map(|v| WeightsView::of(v))
    }

    fn at(&self, i: usize) -> [f32; 3] {
        [&self.w, &self.last, &self.sent].map(|v| f32::from_bits(v[i].load(Relaxed)))
    }

    fn run(&self, kind: JournalOp, writes: Writes, first: u32) {
        let [w, last, sent] = self.views();
        let mut out = vec![0; N * 4];
        let (pos, j) = (self.pos.as_slice(), Some(&self.journal));
        fn go<R: take::Rule>(take: Take<R>, writes: Writes) {
            match writes {
                // SAFETY: portable blocks need no instruction set.
                Writes::Racy => unsafe { take.run::<Words<Dying>>() },
                Writes::Atomic => take.run_atomic::<Dying>(),
            };
        }
        match kind {
            JournalOp::Confirmed => {
                go(
                    Take::new(Confirmed, w, last, Some(sent), pos, Some(&mut out), j),
                    writes,
                );
            }
            JournalOp::Unconfirmed => go(
                Take::new(Unconfirmed, w, last, Some(sent), pos, None, j),
                writes,
            ),
            JournalOp::Rounded => go(
                Take::new(ROUNDED, w, last, Some(sent), pos, Some(&mut out), j),
                writes,
            ),
            JournalOp::Keep => go(Take::new(Keep, w, last, None, pos, None, j), writes),
            JournalOp::PutBack => put_back::put_back::<Dying>(last, sent, first, &self.journal),
            JournalOp::Apply | JournalOp::TakeOut => {
                let apply = Apply::new(w, pos, first, &self.journal);
                match writes {
                    Writes::Racy => {
                        apply.run_atomic::<Dying>(apply.whole_blocks());
                        // SAFETY: portable blocks need no instruction set.
                        unsafe { apply.run::<Words<Dying>>() };
                    }
                    Writes::Atomic => {
                        apply.run_atomic::<Dying>(N);
                    }
                }
            }
        }
    }

    /// Nothing lost, nothing doubled; `added` is what solvers added after the kill.
    fn check(&self, found: Interrupted, first: u32, added: f32, what: &str) {
        let done = found.progress as usize;
        for i in 0..N {
            let [w, last, sent] = self.at(i);
            let what = format!("{what}, weight {i} of {done} done: w {w} last {last} sent {sent}");
            let outstanding = w - last;
            match found.kind {
                // The position held what was sent, so only the delta is on its way or kept.
                JournalOp::Confirmed | JournalOp::Rounded => {
                    assert_eq!(outstanding + sent, D(i) + added, "{what}");
                    let taken = if i < done { POS(i) + D(i) } else { W(i) };
                    assert_eq!(w, taken + added, "{what}");
                }
                JournalOp::Unconfirmed => {
                    assert_eq!(sent, SENT(i), "{what}");
                    assert_eq!(outstanding, D(i) + added, "{what}");
                }
                JournalOp::Keep => assert_eq!(outstanding, D(i) + added, "{what}"),
                JournalOp::PutBack => {
                    assert_eq!((w, sent), (W(i) + added, SENT(i)), "{what}");
                    let back = if i < done { SENT(i) } else { 0.0 };
                    assert_eq!(outstanding, D(i) + back + added, "{what}");
                }
                JournalOp::Apply | JournalOp::TakeOut => {
                    let delta = if (first as usize..done).contains(&i) {
                        POS(i)
                    } else {
                        0.0
                    };
                    assert_eq!(w, W(i) + delta + added, "{what}");
                }
            }
        }
    }
}

use crate::weights::Interrupted;

const OPS: [JournalOp; 6] = [
    JournalOp::Confirmed,
    JournalOp::Unconfirmed,
    JournalOp::Keep,
    JournalOp::Apply,
    JournalOp::Rounded,
    JournalOp::PutBack,
];

/// Every kind, both ways to write, from the start and (deltas) from within a block: kills it
/// after every store, and hands the remains over.
fn every_kill(mut each: impl FnMut(JournalOp, Writes, u32, &dyn Fn() -> (Chunk, bool), u64)) {
    for kind in OPS {
        for writes in [Writes::Racy, Writes::Atomic] {
            let starts: &[u32] = if kind == JournalOp::Apply {
                &[0, 5, 16, 21, 37]
            } else {
                &[0]
            };
            for &first in starts {
                for stores in 0.. {
                    let remains = || {
                        let chunk = Chunk::new(kind, first);
                        let killed = kill_after(stores, || chunk.run(kind, writes, first));
                        (chunk, killed)
                    };
                    each(kind, writes, first, &remains, stores);
                    if !remains().1 {
                        break;
                    }
                }
            }
        }
    }
}

#[test]
fn recovery_after_every_store() {
    let mut kills = 0;
    every_kill(|kind, writes, first, remains, stores| {
        let (chunk, _) = remains();
        let [w, last, sent] = chunk.views();
        let what = format!("{kind:?} {writes:?} from {first}, killed after {stores} stores");
        let found = chunk.journal.recover(w, last, sent).expect("it had begun");
        assert_eq!((found.kind, found.chunk, found.peer), (kind, 4, 2));
        assert_eq!((found.seq, found.version), (200, 9));
        chunk.check(found, first, 0.0, &what);
        // A second recovery, even after solvers have gone on, changes nothing.
        for i in 0..N {
            w.racy_add(i, 100_000.0);
        }
        assert_eq!(chunk.journal.recover(w, last, sent), Some(found), "{what}");
        chunk.check(found, first, 100_000.0, &what);
        chunk.journal.end();
        assert_eq!(chunk.journal.recover(w, last, sent), None);
        kills += 1;
    });
    assert!(kills > 2000, "{kills}");
}

#[test]
fn recovery_is_killed_too() {
    every_kill(|kind, writes, first, remains, stores| {
        if stores % 7 != 0 {
            return;
        }
        for stores_of_recovery in 0.. {
            let (chunk, _) = remains();
            let [w, last, sent] = chunk.views();
            let killed = kill_after(stores_of_recovery, || {
                chunk.journal.recover_in::<Dying>(w, last, sent);
            });
            let what = format!(
                "{kind:?} {writes:?} from {first}, killed after {stores} and again after {stores_of_recovery}"
            );
            let found = chunk.journal.recover(w, last, sent).expect("it had begun");
            chunk.check(found, first, 0.0, &what);
            if !killed {
                break;
            }
        }
    });
}

#[test]
fn recovery_after_solvers_went_on() {
    every_kill(|kind, writes, first, remains, stores| {
        let (chunk, _) = remains();
        let [w, last, sent] = chunk.views();
        for i in 0..N {
            w.racy_add(i, 1.0);
        }
        let found = chunk.journal.recover(w, last, sent).expect("it had begun");
        let what = format!("{kind:?} {writes:?} from {first}, killed after {stores}, then +1");
        chunk.check(found, first, 1.0, &what);
    });
}

/// However far solvers move a weight on, recovery is exact, but for a kill at the very exchange.
#[test]
fn recovery_after_solvers_went_far() {
    let (mut exact, mut open) = (0, 0);
    every_kill(|kind, writes, first, remains, stores| {
        if writes == Writes::Racy {
            return;
        }
        let (chunk, _) = remains();
        if matches!(chunk.journal.mark.load(Relaxed) & 0xff, 1 | 4) {
            open += 1;
            return;
        }
        let [w, last, sent] = chunk.views();
        for i in 0..N {
            w.racy_add(i, 100_000.0);
        }
        let found = chunk.journal.recover(w, last, sent).expect("it had begun");
        let what = format!("{kind:?} from {first}, killed after {stores}, then +100,000");
        chunk.check(found, first, 100_000.0, &what);
        exact += 1;
    });
    assert!(exact > 3 * open, "{exact} exact, {open} open");
}

#[test]
fn the_rest_is_taken_by_the_next_position() {
    every_kill(|kind, writes, first, remains, stores| {
        let (chunk, _) = remains();
        let [w, last, sent] = chunk.views();
        let found = chunk.journal.recover(w, last, sent).expect("it had begun");
        let (pos, journal) = (chunk.pos.as_slice(), &Journal::default());
        let end: fn(usize) -> f32 = match kind {
            JournalOp::Confirmed | JournalOp::Rounded => {
                take_unconfirmed(w, last, sent, pos, None, 1.0, journal, writes);
                |i| POS(i) + D(i)
            }
            JournalOp::Unconfirmed => {
                take_unconfirmed(w, last, sent, pos, None, 1.0, journal, writes);
                |i| POS(i) + SENT(i) + D(i)
            }
            JournalOp::Keep => {
                take_keep(w, last, pos, journal, writes);
                |i| POS(i) + D(i)
            }
            JournalOp::PutBack => {
                put_back(last, sent, found.progress, journal);
                take_keep(w, last, pos, journal, writes);
                |i| POS(i) + D(i) + SENT(i)
            }
            JournalOp::Apply | JournalOp::TakeOut => {
                apply_delta(w, pos, found.progress, journal, writes);
                |i| W(i) + POS(i)
            }
        };
        for i in 0..N {
            let expected = if kind == JournalOp::Apply && i < first as usize {
                W(i)
            } else {
                end(i)
            };
            assert_eq!(
                chunk.at(i)[0],
                expected,
                "{kind:?} {writes:?} {stores} weight {i}"
            );
        }
    });
}

#[test]
fn a_damaged_journal_never_panics() {
    use rand::{RngExt, SeedableRng};
    let mut rng = rand_xoshiro::Xoshiro256PlusPlus::seed_from_u64(1);
    for _ in 0..2000 {
        let chunk = Chunk::new(JournalOp::Keep, 0);
        let words = size_of::<Journal>() / 4;
        // SAFETY: the journal is `repr(C)` and consists of atomic words.
        let raw = unsafe {
            std::slice::from_raw_parts((&raw const chunk.journal).cast::<AtomicU32>(), words)
        };
        for word in raw {
            word.store(rng.random(), Relaxed);
        }
        raw[0].store(rng.random_range(0..7), Relaxed);
        let [w, last, sent] = chunk.views();
        if let Some(found) = chunk.journal.recover(w, last, sent) {
            assert!(found.progress as usize <= N);
        }
    }
}

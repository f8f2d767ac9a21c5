//! What a GPU syncer must not forget when it is killed: deltas that have come down from the device
//! and are not yet, or not wholly, in the buffer.
//!
//! One file next to the buffer, used by one live syncer at a time. Layout: header; number of landed
//! deltas; a journal for each landing slot; the slots; their words, which the device writes itself.
//! Invariants: a delta *has landed* once its slot says so; from then on it gets into the buffer
//! exactly once, whatever is killed when. What has not landed has died with the device. Deltas in
//! several slots are of different weights, so they may be added at once.

use std::path::{Path, PathBuf};
use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    compiler_fence,
};

use super::BLOCK;
use super::error::StateError;
use super::journal::{Journal, JournalOp};
use super::kernels::{self, Writes};
use super::mapping::{Mapping, Shared};
use super::state_file::{BufferId, STATE_HEAD_BYTES, StateFile, beside};
use super::state_layout::{LAST_IN_PAGE, in_page};
use super::view::WeightsView;

const JOURNALS_OFFSET: usize = 512;
const SLOTS_OFFSET: usize = 4096;
const _: () = assert!(JOURNALS_OFFSET + LANDING_SLOTS * size_of::<Journal>() <= SLOTS_OFFSET);

/// Deltas that may be on their way at once, or being added.
pub const LANDING_SLOTS: usize = 8;

/// Words at the start of a landing place that the device tells about the delta behind them.
pub const LANDING_HEAD: usize = 16;

const FREE: u32 = 0;
const LANDED: u32 = 1;

/// One place where a delta lands.
#[derive(Debug)]
#[repr(C)]
struct Landing {
    /// `LANDED` is stored last and read first.
    state: AtomicU32,
    len: AtomicU32,
    first: AtomicU64,
    /// Which landed delta it is, from 1.
    number: AtomicU64,
}

// SAFETY: `repr(C)`, atomics only.
unsafe impl Shared for Landing {}

/// The state of one GPU syncer.
#[derive(Debug)]
pub struct GpuState {
    mapping: Mapping,
    words: usize,
    slot_words: usize,
}

impl GpuState {
    /// The name of the state of syncer `index` for the buffer `buffer`.
    pub fn path_beside(buffer: &Path, index: u32) -> PathBuf {
        beside(buffer, &format!(".gpu{index}"))
    }

    /// Opens the state (`true`), or makes a new one of zeros (`false`), for a buffer of `used`
    /// weights. `slot_words` is the largest chunk and [`LANDING_HEAD`].
    ///
    /// # Errors
    /// See [`StateError`]: another live syncer holds it, it is of another session, model, buffer or
    /// size, it is not ours, or there is no space.
    pub fn open_or_create(
        path: &Path,
        buffer: BufferId,
        used: usize,
        slot_words: usize,
    ) -> Result<(Self, bool), StateError> {
        assert!(slot_words >= LANDING_HEAD, "a landing place has a head");
        let words = in_page(
            SLOTS_OFFSET + LANDING_SLOTS * size_of::<Landing>(),
            LAST_IN_PAGE,
        );
        let end = words.and_then(|at| {
            at.checked_add(slot_words.checked_mul(LANDING_SLOTS * 4)?)
                .filter(|&end| i64::try_from(end).is_ok())
        });
        let (Some(words), Some(end)) = (words, end) else {
            return Err(StateError::BadSpec {
                path: path.into(),
                what: format!("landing places of {slot_words} words are more than a file can hold"),
            });
        };
        let shape = [
            ("number of weights", used as u64),
            ("size of a landing place", slot_words as u64),
            ("number of landing places", LANDING_SLOTS as u64),
        ];
        let file = StateFile {
            magic: *b"DOGWGPU\0",
            buffer,
            shape: &shape,
            file_bytes: end as u64,
        };
        let (mapping, resumed) = file.open_or_create(path)?;
        Ok((
            Self {
                mapping,
                words,
                slot_words,
            },
            resumed,
        ))
    }

    /// All landing places, one behind the other, for the device to write to.
    pub fn landing(&self) -> WeightsView<'_> {
        self.mapping
            .weights(self.words, self.slot_words * LANDING_SLOTS)
    }

    /// Words of a landing place.
    pub fn slot_words(&self) -> usize {
        self.slot_words
    }

    /// Deltas that have landed since the file was made. Each is in the buffer, or in a slot.
    pub fn landed(&self) -> u64 {
        self.landed_word().load(Relaxed)
    }

    /// Notes that the delta for the weights from `first` on has come down into `slot`.
    ///
    /// # Panics
    /// If there is no such slot, it is longer than one, or the one before in this slot was not
    /// applied.
    pub fn land(&self, slot: usize, first: usize, len: usize) {
        let landing = &self.slots()[slot];
        assert!(len + LANDING_HEAD <= self.slot_words && landing.state.load(Relaxed) == FREE);
        let number = self.landed() + 1;
        landing.first.store(first as u64, Relaxed);
        landing.len.store(len as u32, Relaxed);
        landing.number.store(number, Relaxed);
        // Release: a kill is a precise interrupt, so program order is all that is needed. Partner:
        // the Acquire load in `recover`.
        landing.state.store(LANDED, Release);
        self.landed_word().store(number, Release);
    }

    /// Adds the delta in `slot` to `w`, all weights of the buffer, and frees the slot. Threads may
    /// do so for several slots at once.
    ///
    /// # Panics
    /// If nothing has landed there, or it does not lie within `w`.
    pub fn apply(&self, slot: usize, w: WeightsView<'_>, writes: Writes) {
        assert_eq!(self.slots()[slot].state.load(Relaxed), LANDED);
        self.journal(slot)
            .begin(JournalOp::Apply, slot as u32, 0, 0, 0);
        self.finish(slot, w, 0, writes);
    }

    /// Finishes what a killed syncer had begun; gives the number of deltas that were still to be
    /// added, or partly. To be called before anything else.
    ///
    /// # Errors
    /// A slot names weights that `w` does not have: the file is damaged.
    pub fn recover(&self, w: WeightsView<'_>, writes: Writes) -> Result<usize, Damaged> {
        let mut recovered = 0;
        for slot in 0..LANDING_SLOTS {
            let journal = self.journal(slot);
            let Some(found) = journal.pending() else {
                continue;
            };
            if found.kind != JournalOp::Apply || found.chunk as usize != slot {
                return Err(Damaged);
            }
            let part = self.part(slot, w).ok_or(Damaged)?;
            // A delta has no `last` and no `sent`: recovery of this kind touches neither.
            let found = journal.recover(part, part, part).ok_or(Damaged)?;
            if self.slots()[slot].state.load(Acquire) == LANDED {
                recovered += 1;
                self.finish(slot, w, found.progress, writes);
            } else {
                journal.end();
            }
        }
        for (slot, landing) in self.slots().iter().enumerate() {
            // Partner: the Release store in `land`.
            if landing.state.load(Acquire) == LANDED {
                self.part(slot, w).ok_or(Damaged)?;
                recovered += 1;
                let number = landing.number.load(Relaxed).max(self.landed());
                self.landed_word().store(number, Release);
                self.apply(slot, w, writes);
            }
        }
        Ok(recovered)
    }

    /// The rest of a delta, from weight `done` on; the journal has begun.
    fn finish(&self, slot: usize, w: WeightsView<'_>, done: u32, writes: Writes) {
        let part = self.part(slot, w).expect("weights of the buffer");
        let delta = self
            .landing()
            .slice(slot * self.slot_words + LANDING_HEAD, part.len());
        let journal = self.journal(slot);
        kernels::apply_view(part, delta, done, journal, writes);
        // Between the last weight and the journal's end: found in between, the slot says it is
        // done.
        compiler_fence(SeqCst);
        self.slots()[slot].state.store(FREE, Release);
        journal.end();
    }

    /// The weights that slot is for, if `w` has them.
    fn part<'w>(&self, slot: usize, w: WeightsView<'w>) -> Option<WeightsView<'w>> {
        let landing = &self.slots()[slot];
        let len = landing.len.load(Relaxed) as usize;
        let first = usize::try_from(landing.first.load(Relaxed)).ok()?;
        let fits = len <= self.slot_words - LANDING_HEAD
            && len.is_multiple_of(BLOCK)
            && first.checked_add(len).is_some_and(|end| end <= w.len());
        fits.then(|| w.slice(first, len))
    }

    fn journal(&self, slot: usize) -> &Journal {
        let journals: &[Journal] = self.mapping.slice(JOURNALS_OFFSET, LANDING_SLOTS);
        &journals[slot]
    }

    fn landed_word(&self) -> &AtomicU64 {
        self.mapping.at(STATE_HEAD_BYTES)
    }

    fn slots(&self) -> &[Landing] {
        self.mapping.slice(SLOTS_OFFSET, LANDING_SLOTS)
    }
}

/// The file contradicts itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the GPU syncer's state file names weights that the buffer does not have: it is damaged. Delete it; \
     at most the last deltas of one killed syncer are lost with it"
)]
pub struct Damaged;

/// Weights of a buffer that a device holds: the used ones, in whole blocks.
pub const fn device_len(used: usize) -> usize {
    used.next_multiple_of(BLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    const N: usize = 256;
    const BUFFER: BufferId = BufferId {
        session: 1,
        fingerprint: 2,
        identity: 3,
    };

    fn words() -> Vec<AtomicU32> {
        (0..N)
            .map(|i| AtomicU32::new((i as f32).to_bits()))
            .collect()
    }

    fn open(path: &Path) -> (GpuState, bool) {
        GpuState::open_or_create(path, BUFFER, N, 64 + LANDING_HEAD).unwrap()
    }

    fn put(state: &GpuState, slot: usize, value: f32) {
        let at = slot * state.slot_words() + LANDING_HEAD;
        (at..at + 64).for_each(|i| state.landing().store(i, value));
    }

    fn expect(w: WeightsView<'_>, added: impl Fn(usize) -> f32) {
        for i in 0..N {
            assert_eq!(w.load(i), i as f32 + added(i), "weight {i}");
        }
    }

    #[test]
    fn what_has_landed_is_added_once_whatever_happens() {
        let folder = tempfile::tempdir().unwrap();
        let path = GpuState::path_beside(&folder.path().join("w"), 3);
        assert!(path.ends_with("w.gpu3"));
        for writes in [Writes::Racy, Writes::Atomic] {
            let _ = std::fs::remove_file(&path);
            let weights = words();
            let w = WeightsView::of(&weights);
            let (state, resumed) = open(&path);
            assert!(!resumed && state.landed() == 0);
            put(&state, 0, 8.0);
            put(&state, 1, 0.5);
            put(&state, 2, 99.0);
            state.land(0, 0, 64);
            state.apply(0, w, writes);
            state.land(1, 128, 64);
            // Killed here: slot 1 has landed and is not applied, slot 2 has not landed.
            drop(state);
            let (state, resumed) = open(&path);
            assert!(resumed && state.landed() == 2);
            assert_eq!(state.recover(w, writes), Ok(1));
            assert_eq!(state.recover(w, writes), Ok(0));
            expect(w, |i| match i {
                0..64 => 8.0,
                128..192 => 0.5,
                _ => 0.0,
            });
        }
    }

    #[test]
    fn deltas_added_in_part_are_finished() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w.gpu0");
        for done in (0..=64).step_by(BLOCK) {
            let _ = std::fs::remove_file(&path);
            let weights = words();
            let w = WeightsView::of(&weights);
            let (state, _) = open(&path);
            put(&state, 0, 3.0);
            state.land(0, 64, 64);
            put(&state, 1, 7.0);
            state.land(1, 128, 64);
            // As far as two killed `apply` had come.
            for (slot, done) in [(0, done), (1, 64 - done)] {
                let journal = state.journal(slot);
                journal.begin(JournalOp::Apply, slot as u32, 0, 0, 0);
                let at = slot * state.slot_words() + LANDING_HEAD;
                let delta = state.landing().slice(at, done);
                let part = w.slice(64 + slot * 64, done);
                kernels::apply_view(part, delta, 0, journal, Writes::Racy);
            }
            drop(state);
            let (state, _) = open(&path);
            assert_eq!(state.recover(w, Writes::Racy), Ok(2));
            expect(w, |i| match i {
                64..128 => 3.0,
                128..192 => 7.0,
                _ => 0.0,
            });
            assert_eq!(state.recover(w, Writes::Racy), Ok(0));
        }
    }

    #[test]
    fn a_damaged_file_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w.gpu0");
        let weights = words();
        let (state, _) = open(&path);
        state.land(0, N - 16, 64);
        assert_eq!(
            state.recover(WeightsView::of(&weights), Writes::Racy),
            Err(Damaged)
        );
        let other = GpuState::open_or_create(&folder.path().join("w.gpu1"), BUFFER, N, usize::MAX);
        assert!(matches!(other, Err(StateError::BadSpec { .. })));
    }
}

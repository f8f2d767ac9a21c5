//! What a solver must not forget when it is killed: momentum, iteration, place in the data.
//!
//! One file next to the buffer, used by one live solver at a time. Plain shared memory without a
//! journal: a solver killed half way through an update has done half an update, which is what
//! Hogwild means.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::error::StateError;
use super::mapping::{Mapping, Shared};
use super::state_file::{BufferId, STATE_HEAD_BYTES, StateFile, beside};
use super::state_layout::{HISTORY_IN_PAGE, in_page};
use super::view::WeightsView;

/// How far a solver has got, as it lies in its file; zero at first.
#[derive(Debug)]
#[repr(C)]
pub struct SolverProgress {
    /// Iterations done.
    pub iteration: AtomicU64,
    /// The place in the data.
    pub cursor: AtomicU64,
    /// Training time so far, ns.
    pub elapsed_ns: AtomicU64,
    /// Smoothed loss, as f32 bits; 0: none yet.
    pub loss_bits: AtomicU64,
    /// What the solver knows of the rise of its loss: `Caution::to_words`.
    pub caution: [AtomicU64; 3],
    _reserved: [AtomicU64; 11],
}

// SAFETY: `repr(C)`, atomics only.
unsafe impl Shared for SolverProgress {}

impl SolverProgress {
    /// The words of [`caution`](Self::caution).
    pub fn caution_words(&self) -> [u64; 3] {
        self.caution.each_ref().map(|word| word.load(Relaxed))
    }

    /// Stores the words of [`caution`](Self::caution).
    pub fn set_caution(&self, words: [u64; 3]) {
        for (to, word) in self.caution.iter().zip(words) {
            to.store(word, Relaxed);
        }
    }

    /// The smoothed loss; `None`: there is none yet.
    pub fn loss(&self) -> Option<f32> {
        match self.loss_bits.load(Relaxed) {
            0 => None,
            bits => Some(f32::from_bits(bits as u32)),
        }
    }

    /// Stores the smoothed loss.
    pub fn set_loss(&self, loss: f32) {
        self.loss_bits.store(loss.to_bits().into(), Relaxed);
    }
}

/// The state of one solver.
#[derive(Debug)]
pub struct SolverState {
    mapping: Mapping,
    weights: usize,
    history: usize,
}

impl SolverState {
    /// The name of the state of solver `index` for the buffer `buffer`.
    pub fn path_beside(buffer: &Path, index: u32) -> PathBuf {
        beside(buffer, &format!(".solver{index}"))
    }

    /// Opens the state (`true`), or makes a new one of zeros (`false`), for `n` weights.
    ///
    /// # Errors
    /// See [`StateError`]: another live solver holds it, it is of another session, model, buffer or
    /// size, it is not ours, or there is no space.
    pub fn open_or_create(
        path: &Path,
        buffer: BufferId,
        n: usize,
    ) -> Result<(Self, bool), StateError> {
        let (file_bytes, history) = Self::layout(path, n)?;
        let shape = [("number of weights", n as u64)];
        let file = state_file(buffer, &shape, file_bytes);
        let (mapping, resumed) = file.open_or_create(path)?;
        let state = Self {
            mapping,
            weights: n,
            history,
        };
        Ok((state, resumed))
    }

    /// Opens a state to read it while its solver may be at work, without taking the place of a
    /// solver: what is read is as racy as the weights are.
    ///
    /// # Errors
    /// As [`SolverState::open_or_create`], but for the lock; and the file must be there.
    pub fn look(path: &Path, buffer: BufferId, n: usize) -> Result<Self, StateError> {
        let (file_bytes, history) = Self::layout(path, n)?;
        let shape = [("number of weights", n as u64)];
        let mapping = state_file(buffer, &shape, file_bytes).look(path)?;
        Ok(Self {
            mapping,
            weights: n,
            history,
        })
    }

    /// Bytes of the file for `n` weights, and where the momentum begins.
    fn layout(path: &Path, n: usize) -> Result<(u64, usize), StateError> {
        let history = in_page(
            STATE_HEAD_BYTES + size_of::<SolverProgress>(),
            HISTORY_IN_PAGE,
        );
        let ends = history.and_then(|h| Some((h, h.checked_add(n.checked_mul(4)?)?)));
        match ends.filter(|&(_, end)| i64::try_from(end).is_ok()) {
            Some((history, end)) => Ok((end as u64, history)),
            None => Err(StateError::BadSpec {
                path: path.into(),
                what: format!("{n} weights are more than a file can hold"),
            }),
        }
    }

    /// The momentum, one per weight.
    pub fn history(&self) -> WeightsView<'_> {
        self.mapping.weights(self.history, self.weights)
    }

    /// How far it has got.
    pub fn progress(&self) -> &SolverProgress {
        self.mapping.at(STATE_HEAD_BYTES)
    }
}

fn state_file<'a>(
    buffer: BufferId,
    shape: &'a [(&'static str, u64)],
    file_bytes: u64,
) -> StateFile<'a> {
    StateFile {
        magic: *b"DOGWSOLV",
        buffer,
        shape,
        file_bytes,
    }
}

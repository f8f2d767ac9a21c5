//! A new buffer until its weights are set.
//!
//! Touches the new buffer, and removes state files next to it. Invariant: the head is complete, and
//! has its checksum, before `state` says `ready`.

use std::path::PathBuf;
use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Relaxed, Release},
};

use xxhash_rust::xxh3::Xxh3;

use super::super::error::CreateError;
use super::super::header::{CHECKSUM_OFFSET, FIRST_WEIGHTS_OFFSET, READY, STATE_OFFSET};
use super::super::kernels;
use super::super::manifest::Manifest;
use super::super::remove::remove_beside;
use super::super::view::WeightsView;
use super::SharedWeights;

/// A new buffer whose weights its creator still has to set. Dropped without
/// [`Initialising::ready`], it stays `initialising`, which others report.
#[derive(Debug)]
pub struct Initialising {
    weights: SharedWeights,
    removed: Vec<PathBuf>,
}

impl Initialising {
    /// Removes what a former buffer of this name has left. No process can open the new one yet, so
    /// all state files there are of a former one.
    pub(super) fn new(weights: SharedWeights) -> Result<Self, CreateError> {
        match remove_beside(weights.path()) {
            Ok(removed) => Ok(Self { weights, removed }),
            Err(error) => {
                // The first error is the one to tell.
                let _ = std::fs::remove_file(weights.path());
                Err(error)
            }
        }
    }

    /// The weights, with their tail of zeros, which must stay zero.
    pub fn view(&self) -> WeightsView<'_> {
        self.weights.view()
    }

    /// Names, shapes and offsets of the tensors.
    pub fn manifest(&self) -> &Manifest {
        self.weights.manifest()
    }

    /// State files of a former buffer of this name, which were removed.
    pub fn removed(&self) -> &[PathBuf] {
        &self.removed
    }

    /// Lets others open the buffer.
    pub fn ready(self) -> SharedWeights {
        let mut weights = self.weights;
        let head = &mut weights.head;
        head.state = READY;
        head.first_weights = hash(
            weights
                .mapping
                .weights(head.weights_offset as usize, head.used as usize),
        );
        head.checksum = head.sum(weights.manifest.to_json().as_bytes());
        let word = |at, value| weights.mapping.at::<AtomicU64>(at).store(value, Relaxed);
        word(FIRST_WEIGHTS_OFFSET, head.first_weights);
        word(CHECKSUM_OFFSET, head.checksum);
        // Release: who sees `ready` sees the weights. Partner: the kernel's read of the
        // header in `inspect`, ordered before the opener's mapping.
        weights
            .mapping
            .at::<AtomicU32>(STATE_OFFSET)
            .store(READY, Release);
        weights
    }
}

/// A hash (xxh3) of weights that do not change meanwhile.
fn hash(weights: WeightsView<'_>) -> u64 {
    const PART: usize = 1 << 14;
    let mut bytes = vec![0; 4 * PART];
    let mut hash = Xxh3::new();
    for first in (0..weights.len()).step_by(PART) {
        let part = weights.slice(first, PART.min(weights.len() - first));
        let bytes = &mut bytes[..4 * part.len()];
        kernels::copy_out_bytes(part, bytes);
        hash.update(bytes);
    }
    hash.digest()
}

//! Snapshots: the weights of a buffer as a `.safetensors` file, and back.
//!
//! Touches the file named, a temporary file next to it, and the weights of the view it is given.
//! Format: <https://huggingface.co/docs/safetensors>, dtype F32, through the `safetensors` crate.
//!
//! Invariants: a snapshot appears whole or not at all. One with a NaN or an infinity is neither
//! written nor read. One of ours in which a bit has changed is not read. No weight is stored before
//! the whole file was checked. Weights stay free of -0.0. Solvers may go on while a snapshot is
//! made: each weight is one that was there, not all at the same instant.

pub(crate) mod checksum;
mod error;
mod load;
mod save;

pub use error::{LoadError, SaveError};
pub use load::load;
pub use save::save;

/// The first value that is not finite in f32, little-endian: its place.
fn first_non_finite(bytes: &[u8]) -> Option<usize> {
    if !crate::weights::kernels::any_non_finite(bytes) {
        return None;
    }
    let words = bytes.as_chunks::<4>().0;
    words
        .iter()
        .position(|&word| !f32::from_le_bytes(word).is_finite())
}

#[cfg(test)]
mod tests;

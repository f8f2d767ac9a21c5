//! Why a snapshot could not be saved or loaded.

use std::io;
use std::path::PathBuf;

use safetensors::{Dtype, SafeTensorError};

/// Why a snapshot could not be saved. A file that was there before is untouched.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// The manifest belongs to a larger buffer.
    #[error(
        "tensor {name:?} ends at weight {end}, but the buffer has {weights}; \
             use the manifest of this buffer"
    )]
    Outside {
        /// Name of the tensor.
        name: String,
        /// Its end, in weights.
        end: usize,
        /// Weights of the buffer.
        weights: usize,
    },
    /// A weight is NaN or infinite: training has diverged.
    #[error("{}: not saved: weight {index} of tensor {name:?} is {value}; training has diverged, \
             lower the learning rate and start from an earlier snapshot", path.display())]
    NonFinite {
        /// The file that was to be written.
        path: PathBuf,
        /// Name of the tensor.
        name: String,
        /// The first such weight in it.
        index: usize,
        /// NaN, inf or -inf.
        value: f32,
    },
    /// The format cannot express it.
    #[error("{}: not saved: {source}", path.display())]
    Format {
        /// The file that was to be written.
        path: PathBuf,
        /// What the safetensors library says.
        source: SafeTensorError,
    },
    /// The file could not be written.
    #[error("{}: cannot be written: {source}; is the folder there, writable and not full?", path.display())]
    Write {
        /// The file that was to be written.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

/// Why a snapshot could not be loaded. No weight was changed.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The manifest belongs to a larger buffer.
    #[error(
        "tensor {name:?} ends at weight {end}, but the buffer has {weights}; \
             use the manifest of this buffer"
    )]
    Outside {
        /// Name of the tensor.
        name: String,
        /// Its end, in weights.
        end: usize,
        /// Weights of the buffer.
        weights: usize,
    },
    /// The file could not be read.
    #[error("{}: cannot be read: {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The file is not of the format.
    #[error("{}: is not a safetensors file: {reason}", path.display())]
    Format {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The file is shorter or longer than its header says.
    #[error("{}: has {has} bytes, but its header speaks of {expected}; it was cut off or \
             damaged, copy it again", path.display())]
    Length {
        /// Path of the file.
        path: PathBuf,
        /// Bytes by its header.
        expected: u64,
        /// Bytes it has.
        has: u64,
    },
    /// The file has a checksum, and other bytes than those it was made of.
    #[error("{}: its checksum does not fit its bytes: it was damaged, copy it again or use another \
             snapshot; if another program changed it, that must leave out \"checksum\" and \"writer\"",
            path.display())]
    Checksum {
        /// Path of the file.
        path: PathBuf,
    },
    /// Tensors of the model are not in the file.
    #[error("{}: lacks {}, which the model has; is it a snapshot of another model?",
            path.display(), list(names))]
    Missing {
        /// Path of the file.
        path: PathBuf,
        /// Names of the tensors.
        names: Vec<String>,
    },
    /// The file has tensors that the model has not.
    #[error("{}: has {}, which the model has not; is it a snapshot of another model?",
            path.display(), list(names))]
    Extra {
        /// Path of the file.
        path: PathBuf,
        /// Names of the tensors.
        names: Vec<String>,
    },
    /// A tensor of another shape.
    #[error("{}: tensor {name:?} has shape {found:?}, but the model has {expected:?}; \
             is it a snapshot of another model?", path.display())]
    Shape {
        /// Path of the file.
        path: PathBuf,
        /// Name of the tensor.
        name: String,
        /// Its shape in the file.
        found: Vec<usize>,
        /// Its shape in the model.
        expected: Vec<usize>,
    },
    /// A tensor of another number format.
    #[error("{}: tensor {name:?} is {found}, but weights are F32; convert it first \
             (in PyTorch: tensor.float())", path.display())]
    Dtype {
        /// Path of the file.
        path: PathBuf,
        /// Name of the tensor.
        name: String,
        /// Its number format in the file.
        found: Dtype,
    },
    /// A weight is NaN or infinite.
    #[error("{}: weight {index} of tensor {name:?} is {value}; it was saved after training \
             diverged or is damaged, use another snapshot", path.display())]
    NonFinite {
        /// Path of the file.
        path: PathBuf,
        /// Name of the tensor.
        name: String,
        /// The first such weight in it.
        index: usize,
        /// NaN, inf or -inf.
        value: f32,
    },
}

/// The names, the first few of many.
fn list(names: &[String]) -> String {
    const SHOWN: usize = 5;
    let shown: Vec<String> = names
        .iter()
        .take(SHOWN)
        .map(|name| format!("{name:?}"))
        .collect();
    let noun = if names.len() == 1 {
        "tensor"
    } else {
        "tensors"
    };
    match names.len().saturating_sub(SHOWN) {
        0 => format!("{noun} {}", shown.join(", ")),
        more => format!("{noun} {} and {more} more", shown.join(", ")),
    }
}

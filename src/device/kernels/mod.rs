//! All kernels: as CUDA C (`*.cu` here), as Rust for the host device, and as functions to call.
//!
//! Touch only the parts they are given. [`ALL`] names every kernel, [`SOURCES`] every file of CUDA C; a
//! test compiles the files and looks for each name in them.

mod sync;

pub use sync::{ADD_SCALAR, TAKE_POSITION, TOLD, add_scalar, take_position};

use super::Kernel;

/// Files of CUDA C: name and text.
pub const SOURCES: [(&str, &str); 1] = [("sync.cu", include_str!("sync.cu"))];

/// Every kernel.
pub static ALL: [&Kernel; 2] = [&TAKE_POSITION, &ADD_SCALAR];

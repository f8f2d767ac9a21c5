//! The shared weight buffer: one file, mapped by every component of a job on a host.
//!
//! Holds the buffer ([`SharedWeights`]), the files next to it that must survive a killed process
//! ([`StreamState`], [`SolverState`], [`GpuState`]), the view through which weights are touched
//! ([`WeightsView`]) and the bulk [`kernels`]. It knows no network, no solver and no clock but the
//! wall clock of the heartbeats.
//!
//! Invariants:
//! - A weight is 32 bits, read and written with relaxed ordering. No `&[f32]` and no `&mut [f32]`
//!   over shared weights exists, ever. The vector kernels stand for the per-word loop and a
//!   property test holds the two equal.
//! - Weights never hold -0.0 (see [`kernels`]), so that `pos + 0.0` is `pos`, bit for bit.
//! - Nothing read from a file is used before it was checked against the file's length.
#![allow(unsafe_code)]

#[cfg(target_endian = "big")]
compile_error!(
    "the buffer and the frames are little-endian; a big-endian port needs byte swaps in `weights`"
);

mod buffer;
mod data_kind;
mod error;
mod fork_file;
mod gpu_state;
mod header;
mod inspect;
mod journal;
pub mod kernels;
mod look;
mod manifest;
mod mapping;
mod peers;
mod process;
mod publish;
mod remove;
mod slots;
mod solver_state;
mod state;
mod state_file;
mod state_layout;
mod view;

pub use buffer::{BufferSpec, Created, Existing, Expect, Initialising, SharedWeights};
pub use data_kind::DataKind;
pub use error::{CreateError, OpenError, SlotError, StateError};
pub use fork_file::{ForkFile, ForkKey, ForkKind, ForkRecord};
pub use gpu_state::{Damaged, GpuState, LANDING_HEAD, LANDING_SLOTS, device_len};
pub use header::{Globals, LAYOUT_VERSION, OWN_RANGES};
pub use journal::{Interrupted, Journal, JournalOp};
pub use kernels::{Taken, Writes};
pub use look::{BufferInfo, Look, look};
pub use manifest::{Manifest, ManifestError, TensorInfo};
pub use peers::{PEER_METERS, PEERS};
pub use publish::free_in;
pub use remove::remove_buffer;
pub use slots::{METERS, OwnedSlot, Role, SLOTS, Slot, SlotInfo};
pub use solver_state::{SolverProgress, SolverState};
pub use state::{ChunkState, PARTIALS, StreamState, StreamStateSpec};
pub use state_file::BufferId;
pub use view::WeightsView;

/// The session of a job of that name: the same on all nodes.
pub fn session_number(name: &str) -> u64 {
    xxhash_rust::xxh3::xxh3_64(name.as_bytes())
}

/// Weights that a kernel handles at once: one AVX-512 vector, one cache line.
pub const BLOCK: usize = 16;

/// The largest chunk, in weights. The buffer is padded by as many, so that no loop over
/// chunks of any size up to this needs a check at the end of the model.
pub const MAX_CHUNK: usize = 16384;

/// The length of a buffer for `used` weights with its tail of zeros, in weights.
pub const fn padded_len(used: usize) -> usize {
    used.next_multiple_of(BLOCK) + MAX_CHUNK
}

#[cfg(test)]
mod tests;

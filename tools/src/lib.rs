//! What the programs of the experimenter share: published nets, their layers, derived layer times,
//! folders in shared memory, and PyTorch with Gloo to compare with.

pub mod gloo;
pub mod nets;
pub mod scratch;

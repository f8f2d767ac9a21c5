//! What the programs of the experimenter share: published nets, their layers, derived layer times,
//! and folders in shared memory.

pub mod nets;
pub mod scratch;

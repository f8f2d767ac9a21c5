//! What the programs of the experimenter share: published nets, their layers, derived layer times.

pub mod nets;

//! dogwild keeps the weights of one model in step across processes and machines.

pub mod snapshot;
pub mod solver;
pub mod watch;
pub mod weights;

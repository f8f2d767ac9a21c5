//! dogwild keeps the weights of one model in step across processes and machines.

pub mod solver;
pub mod snapshot;
pub mod watch;
pub mod weights;

//! dogwild keeps the weights of one model in step across processes and machines.

pub mod sim;
pub mod snapshot;
pub mod solver;
pub mod stream;
pub mod watch;
pub mod weights;
pub mod wire;

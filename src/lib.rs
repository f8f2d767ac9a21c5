//! dogwild keeps the weights of one model in step across processes and machines.

pub mod sim;
pub mod stream;
pub mod weights;
pub mod wire;

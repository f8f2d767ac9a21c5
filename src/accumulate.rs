//! Gradients of the devices of one host, accumulated on the CPU while the backward pass still runs
//! (Le Duc et al., "Involving CPUs into Multi-GPU Deep Learning", 2018).
//!
//! [`Sum`] adds gradients in host memory, layer by layer, in the order of the devices.
//! [`Accumulate`] brings them down from the devices and the sums up again, on streams other than
//! the one that computes. [`join_small`] says which layers are copied together.
//! `docs/reference/accumulate.md` has the rules. May touch devices and host memory; threads are
//! lent to it, and it knows no solver, no clock and no network.

mod devices;
mod error;
mod groups;
mod sum;

#[cfg(test)]
mod tests;

pub use devices::{Accumulate, Work};
pub use error::AccumulateError;
pub use groups::{join_small, worth_a_copy};
pub use sum::{LayerRange, Order, Sink, Sum, Watch};

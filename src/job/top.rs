//! What the nodes of this host do, seen live: samples of their buffers, rates between two of them,
//! and how these are shown.
//!
//! Reads counters, changes nothing. Invariants: a frame follows from two samples alone, so that a
//! recording shows what was seen; what fits 80 columns and 24 lines is shown whole.

mod frame;
mod sample;
mod view;

pub use frame::{Frame, Node, Order, Peer};
pub use sample::{BufferSample, ComponentSample, Sample, open};
pub use view::{Screen, text};

#[cfg(test)]
mod tests;

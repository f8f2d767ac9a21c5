//! dogwild keeps the weights of one model in step across processes and machines, without locks and
//! without waiting, over networks that lose packets.
//!
//! The rooms, from the bottom up: [`weights`] (the shared buffer), [`wire`] (what a frame says),
//! [`stream`] (master and slave as state machines), [`solver`] (SGD on the buffer), [`node`] (the
//! loops that join them to transports and clocks), [`job`] (whole jobs on one machine), [`cli`].
//! [`poseidon`] is the reliable, layer-aware path: its protocol, and the processes that run it. [`device`] is what a GPU can do, and
//! who can do it here; [`accumulate`] adds the gradients of several on the CPU.
//! Beside them [`watch`] (counters and curves), [`snapshot`] (safetensors) and [`sim`] (a virtual
//! network over the same state machines). `docs/architecture.md` walks them.

pub mod accumulate;
pub mod cli;
pub mod device;
pub mod job;
pub mod node;
pub mod poseidon;
pub mod sim;
pub mod snapshot;
pub mod solver;
pub mod stream;
pub mod watch;
pub mod weights;
pub mod wire;

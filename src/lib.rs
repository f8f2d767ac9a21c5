//! dogwild keeps the weights of one model in step across processes and machines, without locks and
//! without waiting, over networks that lose packets.
//!
//! Two nodes of one process, over a network that loses a fifth of all frames:
//!
//! ```
//! use std::sync::atomic::AtomicU32;
//!
//! use dogwild::node::StreamLoop;
//! use dogwild::stream::{Config, Streamer};
//! use dogwild::weights::{StreamState, WeightsView, padded_len};
//! use dogwild_net::{fault, memory};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (folder, len) = (tempfile::tempdir()?, padded_len(1000));
//! let buffers: [Vec<AtomicU32>; 2] =
//!     std::array::from_fn(|_| (0..len).map(|_| AtomicU32::new(0)).collect());
//! let configs = [0, 1].map(|node| Config::new(node, 2, 1000, 1472).expect("a frame has room"));
//! let mut states = Vec::new();
//! for config in &configs {
//!     let path = folder.path().join(format!("node{}.stream", config.node));
//!     states.push(StreamState::open_or_create(&path, &config.state_spec(len))?.0);
//! }
//! let mut nodes = Vec::new();
//! for (config, link) in configs.into_iter().zip(memory::Hub::new(2, 1472, 256)) {
//!     let node = usize::from(config.node);
//!     let faults = fault::FaultConfig { drop: 0.2, ..Default::default() };
//!     let streamer = Streamer::new(config, WeightsView::of(&buffers[node]), &states[node]);
//!     nodes.push(StreamLoop::new(streamer, fault::wrap(link, &faults), None));
//! }
//! // Node 0 masters the first half: what it stores there reaches node 1, lost frames or not.
//! WeightsView::of(&buffers[0]).store(7, 0.5);
//! while WeightsView::of(&buffers[1]).load(7) != 0.5 {
//!     for node in &mut nodes {
//!         node.step()?;
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The folder `examples` has programs that train nothing but show more of it, and a transport of
//! one's own.
//!
//! The modules, from the bottom up: [`weights`] (the shared buffer), [`wire`] (what a frame says),
//! [`stream`] (master and slave as state machines), [`solver`] (SGD on the buffer), [`node`] (the
//! loops that join them to transports and clocks), [`settings`] (what these are started with),
//! [`job`] (whole jobs on one machine), [`cli`].
//! [`poseidon`] is the reliable, layer-aware path. [`device`] is what a GPU can do, and who can do
//! it here; [`accumulate`] adds the gradients of several on the CPU. [`watch`] has counters and
//! curves, [`snapshot`] safetensors, and [`sim`] a virtual network over the same state machines.
//! `docs/architecture.md` walks them.
//!
//! # Features
//!
//! By default everything is built. `default-features = false` leaves [`weights`], [`wire`],
//! [`stream`], [`sim`] and, of [`node`], the loop of the example above: a library that trains
//! nothing. Each feature adds:
//!
//! - `caffe`: [`solver`], [`snapshot`], [`device`], [`accumulate`], and solvers' loops in [`node`];
//! - `cuda`: NVIDIA's GPUs in [`device`], with `caffe`; needs nothing of CUDA to build;
//! - `poseidon`: [`poseidon`], with `caffe`;
//! - `plots`: learning curves as pictures, in [`watch`];
//! - `capture` and `verbs`: the modules of `dogwild-net` of those names;
//! - `data-get`: the program downloads published data sets;
//! - `metrics`: the program serves counters to Prometheus;
//! - `pages`: the program writes its man pages and shell completions;
//! - `program`: [`cli`], [`job`], [`settings`], the rest of [`node`] and the program `dogwild`,
//!   with all others but these two and `cuda`;
//! - `top`: what the program shows of running nodes, live.

#[cfg(feature = "caffe")]
pub mod accumulate;
#[cfg(feature = "program")]
pub mod cli;
#[cfg(feature = "caffe")]
pub mod device;
#[cfg(feature = "program")]
pub mod job;
pub mod node;
#[cfg(feature = "poseidon")]
pub mod poseidon;
#[cfg(feature = "program")]
pub mod settings;
pub mod sim;
#[cfg(feature = "caffe")]
pub mod snapshot;
#[cfg(feature = "caffe")]
pub mod solver;
pub mod stream;
pub mod watch;
pub mod weights;
pub mod wire;

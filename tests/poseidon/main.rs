//! The reliable path with real sockets on loopback: equality with one worker, bytes on the wire,
//! restarts, refusals, the papers' numbers. `cluster` starts members as threads of the test.

#![cfg(feature = "program")]

mod checkpoints;
mod client;
mod cluster;
mod equality;
mod filtered;
mod golden;
mod model_file;
mod raw_client;
mod refusals;
mod restart;
mod stragglers;
mod strangers;
#[path = "../support/mod.rs"]
mod support;
mod train;
mod wire;

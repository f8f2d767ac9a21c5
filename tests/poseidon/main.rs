//! The reliable path with real sockets on loopback: equality with one worker, bytes on the wire,
//! restarts, refusals, the papers' numbers. `cluster` starts members as threads of the test.

#![cfg(feature = "program")]

mod cluster;
mod equality;
mod golden;
mod raw_client;
mod refusals;
mod restart;
#[path = "../support/mod.rs"]
mod support;
mod train;
mod wire;

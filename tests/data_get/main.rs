//! `dogwild data get` against servers that break off, lie, are silent or are not there.
//!
//! `library` brings small sets of its own, `program` the published ones.

#![cfg(feature = "data-get")]

mod library;
mod program;
mod server;
#[path = "../support/mod.rs"]
mod support;

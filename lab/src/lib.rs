//! Hosts on one machine: network namespaces joined by veth cables, for tests, benchmarks and
//! `dogwild train --lab`.
//!
//! ```no_run
//! use dogwild_lab::{Lab, Spec};
//! let lab = Lab::up(&Spec { loss: Some(0.01), ..Spec::of(2) })?;
//! let status = lab.command(1, "ping").args(["-c", "1", "10.77.0.1"]).status();
//! # Ok::<(), dogwild_lab::LabError>(())
//! ```
//!
//! Host `i` has interface `eth0`, address 10.77.0.(i+1)/24, MAC 02:44:57:00:00:(i+1), loopback, a
//! multicast route and no IPv6. Its namespace lives in a holder process and in descriptors of the
//! process that made the lab. It has no name under /run/netns, and no interface of the machine's
//! own namespace is ever made or touched. So the kernel removes everything when the owner ends,
//! also after `kill -9`.
//!
//! No root is needed where the kernel lets ordinary users make user namespaces: the lab then
//! makes one for itself. Mount namespaces are not used (entering one loses the working
//! directory), so files, /dev/shm included, are shared among the hosts.
//!
//! Modules: `spec` (what is wanted), `lab` (all of it together), `host` (one namespace), `setup`
//! (cables and rules), `tool` (`ip` and its like), `sys` (system calls, the only `unsafe`), `enter`
//! (tests of ordinary users), `skip`, `out` (what programs print), `version`, `pages` (of man and
//! shells), `share` (an option that programs have in common).

pub mod enter;
mod error;
mod host;
mod lab;
pub mod out;
#[cfg(feature = "pages")]
pub mod pages;
pub mod process;
mod setup;
pub mod share;
pub mod skip;
mod spec;
#[doc(hidden)]
pub mod sys;
mod tool;
pub mod version;

pub use enter::inside;
pub use error::LabError;
pub use host::{LabHost, command_in_namespaces_of};
pub use lab::Lab;
pub use spec::{Cable, Spec};

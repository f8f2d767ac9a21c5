//! What works on this host, found by trying: transports, interfaces, labs, memory, processor.
//!
//! Opens sockets and rings and closes them again, sends a few frames on loopback and inside a lab
//! of its own, reads /proc and /sys; changes nothing. `transports` (and `verbs`) tries those,
//! `host` the rest, `echo` is the round trip. Invariant: a check that fails says what is missing;
//! none is an error.

mod echo;
mod gpu;
mod host;
mod transports;
mod verbs;

use std::path::Path;

use dogwild_lab::{Lab, Spec};
use serde::Serialize;

pub use echo::{EchoError, Half, half};

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Told for information.
    Info,
    /// It works.
    Works,
    /// It works, but less well than it could; `needs` says what for more.
    Limited,
    /// It does not work here; `needs` says what is missing.
    Missing,
}

impl State {
    /// As it stands in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Works => "works",
            Self::Limited => "limited",
            Self::Missing => "missing",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Name of what was checked.
    pub name: String,
    /// How it is.
    pub state: State,
    /// Result of the check, in words.
    pub found: String,
    /// What it needs to work, or to work better.
    pub needs: Vec<String>,
}

impl Check {
    fn new(name: impl Into<String>, state: State, found: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            state,
            found: found.into(),
            needs: Vec::new(),
        }
    }

    fn works(name: impl Into<String>, found: impl Into<String>) -> Self {
        Self::new(name, State::Works, found)
    }

    fn info(name: impl Into<String>, found: impl Into<String>) -> Self {
        Self::new(name, State::Info, found)
    }

    /// Adds what is needed; what works is then limited.
    fn needing(mut self, need: impl Into<String>) -> Self {
        if self.state == State::Works {
            self.state = State::Limited;
        }
        self.needs.push(need.into());
        self
    }
}

/// Everything that was looked at.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Kernel, processor, user.
    pub host: Vec<Check>,
    /// Each transport, tried.
    pub transports: Vec<Check>,
    /// Each network interface.
    pub interfaces: Vec<Check>,
    /// What `--iface auto` takes, and why.
    pub iface_auto: Vec<Check>,
    /// Hosts in network namespaces and the programs they need.
    pub labs: Vec<Check>,
    /// Shared memory and huge pages.
    pub memory: Vec<Check>,
    /// Devices other than the processor that weights can be trained on.
    pub devices: Vec<Check>,
}

impl Report {
    /// The sections with their titles.
    pub fn sections(&self) -> [(&'static str, &[Check]); 7] {
        [
            ("host", &self.host),
            ("transports", &self.transports),
            ("interfaces", &self.interfaces),
            ("--iface auto", &self.iface_auto),
            ("labs", &self.labs),
            ("memory", &self.memory),
            ("devices", &self.devices),
        ]
    }

    /// False if no transport leaves this process: then nothing else is useful.
    pub fn anything_works(&self) -> bool {
        self.transports
            .iter()
            .any(|check| matches!(check.state, State::Works | State::Limited))
    }
}

/// Looks at everything. `program` is this program's file: inside a lab it is run as
/// `PROGRAM doctor --half ...`, which calls [`half`].
pub fn examine(program: &Path) -> Report {
    let lab = Lab::up(&Spec::of(2));
    Report {
        host: host::host(),
        transports: transports::transports(program, lab.as_ref().ok()),
        interfaces: host::interfaces(),
        iface_auto: host::iface_auto(),
        labs: host::labs(lab.as_ref()),
        memory: host::memory(),
        devices: gpu::check(),
    }
}

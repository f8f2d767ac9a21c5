//! Where a cell is run.

use serde::{Deserialize, Serialize};

/// What makes a run of a cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Engine {
    /// Virtual time.
    #[default]
    Sim,
    /// Processes of this machine, over its loopback interface.
    Loopback,
    /// Processes in network namespaces, joined by virtual cables.
    Lab,
    /// Another program, the file's `command`.
    #[value(skip)]
    Program,
}

impl Engine {
    /// As a file names it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sim => "sim",
            Self::Loopback => "loopback",
            Self::Lab => "lab",
            Self::Program => "program",
        }
    }

    /// What it is, in words.
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Self::Sim => {
                "sim: the program's streamers and solvers with real gradients, under a virtual \
                 clock and over a virtual network; all chance comes from the seed"
            }
            Self::Loopback => {
                "loopback: processes in real time, UDP over the loopback interface; solvers are \
                 paced, each node keeps its rate, losses are made at each receiver"
            }
            Self::Lab => {
                "lab: processes in real time, each node in a network namespace, UDP over virtual \
                 cables; solvers are paced, the kernel's token bucket keeps the rate of links, \
                 losses are made at each receiver"
            }
            Self::Program => "program: another program, in real time, as its command says",
        }
    }
}

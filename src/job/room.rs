//! Whether a job's buffers and their state files fit under /dev/shm, before anything is made.

use std::path::Path;

use anyhow::{Result, ensure};
use dogwild_net::seal::REPLAY_WINDOWS_BYTES;

use super::buffers::SHM;
use crate::node::bound_net;
use crate::solver::data::DataSet;
use crate::solver::{Phase, SolverSpec};
use crate::weights::{free_in, padded_len};

/// Headers, manifests and the ends of pages: of a buffer, and of each file next to it.
const HEADS: u64 = 64 << 10;

/// What a node needs under /dev/shm.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    /// Weights in its buffer.
    pub(super) weights: usize,
    /// Streamers, each with what it has last seen and sent of every weight.
    pub(super) streamers: u64,
    /// Solvers, each with its momentum.
    pub(super) solvers: u64,
    /// Whether streamers seal frames: each then remembers in a file which ones it has taken.
    pub(super) sealed: bool,
}

impl Node {
    fn buffer_bytes(self) -> u64 {
        4 * padded_len(self.weights) as u64 + HEADS
    }

    fn state_bytes(self) -> u64 {
        let weights = 4 * padded_len(self.weights) as u64;
        self.streamers * (2 * weights + HEADS + self.seal_bytes())
            + self.solvers * (weights + HEADS)
    }

    /// Of each streamer.
    fn seal_bytes(self) -> u64 {
        if self.sealed { REPLAY_WINDOWS_BYTES } else { 0 }
    }
}

/// Weights of the model with these pictures.
pub(super) fn weights(spec: &SolverSpec, set: &DataSet) -> Result<usize> {
    let (shape, classes) = (set.train.shape, set.train.classes);
    Ok(bound_net(&spec.net, Phase::Train, 1, shape, classes)?
        .1
        .len())
}

/// Refuses a job that does not fit.
pub(super) fn check(nodes: u16, node: Node) -> Result<()> {
    // Without the folder, making the first buffer says so.
    let Ok(free) = free_in(Path::new(SHM)) else {
        return Ok(());
    };
    fits(nodes, node, free)
}

fn fits(nodes: u16, node: Node, free: u64) -> Result<()> {
    let needed = u64::from(nodes) * (node.buffer_bytes() + node.state_bytes());
    let mb = |bytes: u64| bytes.div_ceil(1_000_000);
    let seal = node.streamers * node.seal_bytes();
    let seal = match seal {
        0 => String::new(),
        bytes => format!(" ({} MB of it for --key-file)", mb(bytes)),
    };
    ensure!(
        needed <= free,
        "{SHM} has {} MB free, but this job needs {} MB: {nodes} times {} MB for a buffer and {} MB for the \
         state of its components{seal}. Make room (`dogwild clean` lists what jobs have left; \
         `mount -o remount,size={}M {SHM}`; docker: --shm-size), or use fewer nodes, solvers or workers",
        mb(free),
        mb(needed),
        mb(node.buffer_bytes()),
        mb(node.state_bytes()),
        (needed + needed / 2).div_ceil(1 << 20),
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_for_all_nodes_is_named() {
        let node = Node {
            weights: 1_000_000,
            streamers: 1,
            solvers: 2,
            sealed: false,
        };
        // 4 bytes for each weight in the buffer, 8 for the streamer, 4 for each solver.
        assert!(fits(3, node, 62_000_000).is_ok());
        let said = fits(3, node, 50_000_000)
            .expect_err("too little")
            .to_string();
        for part in ["50 MB free", "needs 62 MB", "3 times 5 MB", "17 MB"] {
            assert!(said.contains(part), "{part}: {said}");
        }
        // The same with 9 MB for each streamer's memory of sealed frames.
        let sealed = Node {
            sealed: true,
            ..node
        };
        assert!(fits(3, sealed, 90_000_000).is_ok());
        let said = fits(3, sealed, 62_000_000)
            .expect_err("too little")
            .to_string();
        for part in ["needs 89 MB", "26 MB", "9 MB of it for --key-file"] {
            assert!(said.contains(part), "{part}: {said}");
        }
        let alone = Node {
            streamers: 0,
            ..sealed
        };
        assert!(alone.state_bytes() < REPLAY_WINDOWS_BYTES);
    }
}

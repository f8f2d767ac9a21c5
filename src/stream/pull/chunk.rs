//! A chunk that is pulled: who offered the newest position of it, and what came of that.

use std::sync::atomic::Ordering::Relaxed;

use super::super::common::Common;
use super::super::epochs::is_later;

/// The newest position of a chunk that was offered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Newest {
    pub(super) node: u16,
    pub(super) epoch: u32,
    pub(super) version: u32,
}

impl Newest {
    pub(super) fn is_older(&self, epoch: u32, version: u32) -> bool {
        let later = version.wrapping_sub(self.version) as i32 > 0;
        is_later(epoch, self.epoch) || (epoch == self.epoch && later)
    }
}

/// A chunk of the range.
#[derive(Clone, Debug, Default)]
pub(super) struct Own {
    pub(super) newest: Option<Newest>,
    /// Pieces that came, one bit each, and what is in them, until all have.
    pub(super) pieces: u8,
    pub(super) bytes: Vec<u8>,
    pub(super) done: bool,
    /// When it was asked for, ns (0: not yet), and the how many-th of its node it was.
    pub(super) asked_ns: u64,
    pub(super) order: u32,
    /// How often that was.
    pub(super) tries: u8,
}

impl Own {
    /// What this node itself holds is an offer too.
    pub(super) fn held_here(common: &Common<'_>, chunk: u32) -> Self {
        let state = common.state.chunk(chunk);
        let newest = Newest {
            node: common.config.node,
            epoch: state.epoch.load(Relaxed),
            version: state.version.load(Relaxed),
        };
        Self {
            newest: common.holds(chunk).then_some(newest),
            ..Self::default()
        }
    }
}

//! The time of training that learning curves count by.

use std::sync::atomic::Ordering::Relaxed;

use super::clock::Clock;
use crate::weights::Globals;

/// How long a job has trained: time that a component and its earlier processes have spent, and no
/// less than what the rest of the cluster has. So one that begins late counts from where the others
/// are.
#[derive(Debug)]
pub(super) struct TrainClock {
    clock: Clock,
    /// Time before `clock` began, ns.
    before_ns: u64,
}

impl TrainClock {
    /// A clock that starts now and goes on from `before_ns`.
    pub(super) fn go_on(before_ns: u64) -> Self {
        Self {
            clock: Clock::start(),
            before_ns,
        }
    }

    /// Time of training so far, ns; told to the other nodes.
    pub(super) fn elapsed_ns(&mut self, globals: &Globals) -> u64 {
        let own = self.before_ns + self.clock.now_ns();
        let elapsed = own.max(globals.trained_ns());
        self.before_ns += elapsed - own;
        globals.local_trained_ns.fetch_max(elapsed, Relaxed);
        elapsed
    }
}

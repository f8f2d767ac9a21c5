//! When a solver's next step may begin: its pace, how old the weights it reads may be, and how many
//! nodes must be heard.
//!
//! Sleeps in short naps, so that the end of the job is not waited for. Invariant: each long wait is
//! logged, and all waits are counted.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::clock::Clock;
use super::repeat::{Repeat, times};
use crate::weights::SharedWeights;

/// Longest sleep between two looks at whether the job has ended, ns.
const NAP_NS: u64 = 50_000_000;
/// Sleep between two looks at the age of the weights, ns.
const LOOK_NS: u64 = 1_000_000;
/// A wait for other nodes that is longer is said, ns.
const LONG_NS: u64 = 1_000_000_000;
/// Stands for no node, but for as many as are to be heard.
const QUORUM: u64 = u64::MAX;

/// What a solver waits for.
pub(super) struct Turn {
    steps_per_s: Option<f64>,
    max_age: Option<u64>,
    /// When the next step of a paced solver may begin, ns.
    next_ns: u64,
    said: Repeat<u64>,
}

impl Turn {
    /// At most `steps_per_s` steps a second, from weights that are at most `max_age` local steps
    /// old.
    pub(super) fn new(
        steps_per_s: Option<f64>,
        max_age: Option<u64>,
        shared: &SharedWeights,
    ) -> Self {
        if max_age.is_some() {
            shared.globals().age_wanted.store(1, Relaxed);
        }
        Self {
            steps_per_s,
            max_age,
            next_ns: 0,
            said: Repeat::new(),
        }
    }

    /// Waits until the next step may begin, or the job has `finished`. Gives the time that was
    /// waited for other nodes, ns.
    pub(super) fn wait(
        &mut self,
        shared: &SharedWeights,
        clock: &Clock,
        finished: impl Fn() -> bool,
    ) -> u64 {
        if let Some(steps_per_s) = self.steps_per_s {
            while clock.now_ns() < self.next_ns && !finished() {
                let left_ns = self.next_ns.saturating_sub(clock.now_ns());
                std::thread::sleep(Duration::from_nanos(left_ns.min(NAP_NS)));
            }
            // What was missed is not made up for.
            self.next_ns = self.next_ns.max(clock.now_ns()) + (1e9 / steps_per_s) as u64;
        }
        let waited_ns = self.wait_for_quorum(shared, clock, &finished);
        waited_ns + self.wait_for_others(shared, clock, finished)
    }

    fn wait_for_quorum(
        &mut self,
        shared: &SharedWeights,
        clock: &Clock,
        finished: impl Fn() -> bool,
    ) -> u64 {
        let began_ns = clock.now_ns();
        while let Some((heard, quorum)) = shared.globals().lacks_quorum() {
            if finished() {
                break;
            }
            let now_ns = clock.now_ns();
            if now_ns - began_ns > LONG_NS
                && let Some(often) = self.said.say(QUORUM, now_ns, 1)
            {
                log::warn!(
                    "waiting for other nodes: {heard} of the {quorum} of the quorum are heard, this one included{}",
                    times(often)
                );
            }
            std::thread::sleep(Duration::from_nanos(LOOK_NS));
        }
        clock.now_ns() - began_ns
    }

    fn wait_for_others(
        &mut self,
        shared: &SharedWeights,
        clock: &Clock,
        finished: impl Fn() -> bool,
    ) -> u64 {
        let Some(max_age) = self.max_age else {
            return 0;
        };
        let began_ns = clock.now_ns();
        while let Some((node, age)) = oldest(shared).filter(|(_, age)| *age > max_age) {
            if finished() {
                break;
            }
            let now_ns = clock.now_ns();
            if now_ns - began_ns > LONG_NS
                && let Some(often) = self.said.say(node, now_ns, 1)
            {
                log::warn!(
                    "waiting for node {node}: what is known of its range is {age} steps old, and {max_age} is the most \
                     that is allowed (max_age){}",
                    times(often)
                );
            }
            std::thread::sleep(Duration::from_nanos(LOOK_NS));
        }
        clock.now_ns() - began_ns
    }
}

/// The node whose range is oldest here, and its age in steps of this node's solvers; `None`: no
/// other lives.
fn oldest(shared: &SharedWeights) -> Option<(u64, u64)> {
    let globals = shared.globals();
    let node = globals.oldest_node.load(Relaxed).checked_sub(1)?;
    let taken = globals.oldest_step.load(Relaxed);
    let now = globals.local_iterations.load(Relaxed);
    Some((node, now.saturating_sub(taken)))
}

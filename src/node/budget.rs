//! How much of a core the streamer takes: what the solvers of its node leave.
//!
//! Reads how long threads of local solvers waited for a core (/proc/PID/task/TID/schedstat,
//! scheduler statistics of the kernel: Documentation/scheduler/sched-stats.rst). While one of them
//! waits for more than [`WAITS`] of the time, and no core is [`idle`], the streamer's share
//! shrinks; else it grows. Naps keep the streamer within its share: after a nap it takes all frames
//! that have come at once, which also costs less per frame. Solvers that cannot be seen (another
//! PID namespace, no /proc) are not taken into account.
//!
//! Where cores are idle a solver that waits does not wait for the streamer: it has just woken up
//! (paced solvers do) where another one runs. A streamer that took less for that could not take all
//! that comes, and the queue in front of it would make weights seconds old.
//!
//! Invariant: the share never falls below [`LEAST`], so the stream goes on at any load.

mod idle;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use crate::weights::{Role, SharedWeights};
use idle::Idle;

/// Share of a core that the streamer takes in any case.
const LEAST: f64 = 0.03;
/// Share of the time that solvers may wait for a core before the streamer takes less.
const WAITS: f64 = 0.03;
/// With so many cores idle nothing is taken from solvers.
const IDLE_CORES: f64 = 0.25;
/// Time between two looks at solvers, ns.
const LOOK_NS: u64 = 100_000_000;
/// Time between two looks at which threads they have, ns.
const LIST_NS: u64 = 1_000_000_000;
/// Naps are at least this long: each wakes the streamer, and stops a solver, once.
const NAP_NS: f64 = 1e6;
/// And at most this long.
const NAP_NS_MAX: f64 = 20e6;
/// What may be saved up in CPU time, ns.
const SAVED_NS: f64 = 1e6;
/// What may be owed, ns: a tick of the kernel.
const OWED_NS: f64 = 4e6;

/// What the kernel tells of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Times {
    /// Time on a core, ns.
    ran_ns: u64,
    /// Time ready to run and without a core, ns.
    waited_ns: u64,
}

impl Times {
    /// From the first two words of a schedstat file.
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_ascii_whitespace().map(str::parse);
        Some(Self {
            ran_ns: words.next()?.ok()?,
            waited_ns: words.next()?.ok()?,
        })
    }
}

/// A thread that is looked at again and again.
struct Thread {
    stat: File,
    seen: Times,
}

impl Thread {
    fn open(path: &str) -> Option<Self> {
        let mut thread = Self {
            stat: File::open(path).ok()?,
            seen: Times::default(),
        };
        thread.advance()?;
        Some(thread)
    }

    /// What has come since the last look. `None`: it has ended.
    fn advance(&mut self) -> Option<Times> {
        let mut text = [0; 64];
        let len = self.stat.read_at(&mut text, 0).ok()?;
        let now = Times::parse(std::str::from_utf8(&text[..len]).ok()?)?;
        let before = std::mem::replace(&mut self.seen, now);
        Some(Times {
            ran_ns: now.ran_ns.saturating_sub(before.ran_ns),
            waited_ns: now.waited_ns.saturating_sub(before.waited_ns),
        })
    }
}

/// The streamer's share of a core, and what of it is left.
pub(super) struct Budget {
    /// The streamer's own thread; `None`: the kernel keeps no such statistics.
    own: Option<Thread>,
    idle: Option<Idle>,
    solvers: Vec<Thread>,
    listed_ns: u64,
    looked_ns: u64,
    /// Share of a core; 1: no limit.
    share: f64,
    /// Longest wait of a solver's thread since the last look, as a share of the time.
    waits: f64,
    /// CPU time that may be taken at once, ns.
    left_ns: f64,
    noted_ns: u64,
    /// When the kernel last told of time that was taken, ns.
    told_ns: u64,
}

impl Budget {
    /// A budget for the calling thread.
    pub(super) fn new() -> Self {
        let own = Thread::open("/proc/thread-self/schedstat");
        if own.is_none() {
            log::debug!("no scheduler statistics in /proc: the stream takes the CPU that it can");
        }
        Self {
            own,
            idle: Idle::of_whole_machine(),
            solvers: Vec::new(),
            listed_ns: 0,
            looked_ns: 0,
            share: 1.0,
            waits: 0.0,
            left_ns: 0.0,
            noted_ns: 0,
            told_ns: 0,
        }
    }

    /// Whether solvers want what the streamer would take.
    pub(super) fn is_limited(&self) -> bool {
        self.share < 1.0
    }

    /// Share of a core that the streamer takes at most.
    pub(super) fn share(&self) -> f64 {
        self.share
    }

    /// Share of the last interval that a solver's thread waited for a core, the largest of all.
    pub(super) fn solvers_wait(&self) -> f64 {
        self.waits
    }

    /// Time to sleep before more is done; `None`: there is budget left.
    pub(super) fn nap(&mut self, now_ns: u64) -> Option<Duration> {
        if !self.is_limited() {
            return None;
        }
        let own = self.own.as_mut()?;
        let spent_ns = own.advance()?.ran_ns as f64;
        if spent_ns > 0.0 {
            self.told_ns = now_ns;
        }
        let earned_ns = now_ns.saturating_sub(self.noted_ns) as f64 * self.share;
        self.noted_ns = now_ns;
        self.left_ns = (self.left_ns + earned_ns).min(SAVED_NS) - spent_ns;
        self.left_ns = self.left_ns.max(-OWED_NS);
        // The kernel adds up a thread's time when the thread leaves its core, or at a tick. A loop
        // that never sleeps would see no time spent and never nap, so after a while it naps to be
        // told.
        let untold = now_ns.saturating_sub(self.told_ns) as f64 > SAVED_NS;
        (self.left_ns < 0.0 || untold).then(|| {
            let nap_ns = (-self.left_ns / self.share).clamp(NAP_NS, NAP_NS_MAX);
            Duration::from_nanos(nap_ns as u64)
        })
    }

    /// Looks at the solvers of `shared` when it is time to, and adapts the share.
    pub(super) fn look(&mut self, now_ns: u64, shared: &SharedWeights) {
        let passed_ns = now_ns.saturating_sub(self.looked_ns);
        if passed_ns < LOOK_NS || self.own.is_none() {
            return;
        }
        self.looked_ns = now_ns;
        let mut waited_ns = 0;
        self.solvers.retain_mut(|thread| {
            let passed = thread.advance();
            waited_ns = waited_ns.max(passed.map_or(0, |passed| passed.waited_ns));
            passed.is_some()
        });
        self.waits = waited_ns as f64 / passed_ns as f64;
        let was_limited = self.is_limited();
        let idle = self.idle.as_mut().map_or(0.0, |idle| idle.cores(passed_ns));
        self.share = adapt(self.share, self.waits, idle);
        if self.is_limited() && !was_limited {
            // What was taken before there was a limit is not owed.
            self.own.as_mut().and_then(Thread::advance);
            (self.left_ns, self.noted_ns) = (0.0, now_ns);
        }
        if now_ns.saturating_sub(self.listed_ns) >= LIST_NS || self.listed_ns == 0 {
            self.listed_ns = now_ns;
            self.list(shared);
        }
    }

    /// Finds the threads of all that computes on the buffer.
    fn list(&mut self, shared: &SharedWeights) {
        self.solvers.clear();
        let computes = |role| matches!(role, Role::Solver | Role::Gpu | Role::Other);
        for slot in shared.slots() {
            if !computes(slot.role) || !slot.alive || slot.pid == std::process::id() {
                continue;
            }
            let Ok(threads) = std::fs::read_dir(format!("/proc/{}/task", slot.pid)) else {
                continue;
            };
            let paths = threads.flatten().map(|thread| thread.path());
            let stats = paths.filter_map(|path| Thread::open(path.join("schedstat").to_str()?));
            self.solvers.extend(stats);
        }
    }
}

/// The share that follows `share` after a look in which a solver waited for `waits` of the time and
/// so many cores were idle.
fn adapt(share: f64, waits: f64, idle_cores: f64) -> f64 {
    // Down faster than up: solvers get the core back within a few looks. From the least share back
    // to the whole core takes some 2.5 s.
    if waits > WAITS && idle_cores < IDLE_CORES {
        (share * 0.7).max(LEAST)
    } else {
        (share * 1.15).min(1.0)
    }
}

#[cfg(test)]
mod tests;

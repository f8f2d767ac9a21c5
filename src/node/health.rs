//! What makes no progress: ranges that grow old, nodes whose solvers stand still, solvers of this
//! buffer that are stopped or hang.
//!
//! Judges from what the stream noted, the slots of the buffer and /proc; changes nothing. Time is
//! an argument. Invariant: a process that was stopped itself does not blame others for that time.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, SystemTime};

use crate::stream::Streamer;
use crate::weights::{Role, SharedWeights, SlotInfo};

/// Time between two looks, ns.
pub(super) const LOOK_EVERY_NS: u64 = 500_000_000;
/// A node is silent after this time without a frame, ns.
pub(super) const SILENT_NS: u64 = 2_000_000_000;
/// A range is old after this time without a position of one of its chunks, ns, or after [`PASSES`]
/// passes.
const OLD_NS: u64 = 5_000_000_000;
const PASSES: u64 = 10;
/// Solvers stand still after this time without an iteration, ns, or after [`STEPS`] usual
/// iterations.
const STILL_NS: u64 = 10_000_000_000;
const STEPS: u64 = 20;
/// A solver that computes may be in a long test: it is named only after this time, ns.
const STILL_BUSY_NS: u64 = 120_000_000_000;
/// A solver that the kernel does not run (stopped) is named after this time, ns.
const STOPPED_NS: u64 = 2_000_000_000;

/// What to look at where short frames pass and long ones do not.
pub(crate) const SMALLER_MTU: &str = "look whether the path between the hosts carries a smaller MTU than their \
                                      interfaces have; if so, give that to the job, on all nodes, or to the interfaces";

/// What is wrong, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trouble {
    pub(crate) what: What,
    /// Node, or solver.
    pub(crate) who: u16,
    pub(crate) seconds: u64,
}

/// Kinds of trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum What {
    /// A node sends nothing.
    Silent,
    /// Of a node that masters a range short frames come, and none that is as long as the MTU
    /// allows.
    LongFramesLost,
    /// A node sends frames, but no positions of its range.
    NoPositions,
    /// A part of a node's range does not come.
    OldRange,
    /// A node sends frames, but its solvers make no iterations, while others do.
    StillNode,
    /// A solver of this buffer is stopped by a signal.
    SolverStopped,
    /// A solver of this buffer makes no iterations.
    SolverStill,
}

impl What {
    /// Its name in `summary.json`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Silent => "silent_node",
            Self::LongFramesLost => "long_frames_lost",
            Self::NoPositions => "no_positions",
            Self::OldRange => "old_range",
            Self::StillNode => "solvers_stand_still",
            Self::SolverStopped => "solver_stopped",
            Self::SolverStill => "solver_stands_still",
        }
    }
}

impl What {
    /// In two words, for a short line.
    pub(crate) fn name_of(self, who: u16) -> String {
        match self {
            Self::Silent => format!("node {who} silent"),
            Self::LongFramesLost => format!("no long frame of node {who}"),
            Self::NoPositions => format!("no positions of node {who}"),
            Self::OldRange => format!("range {who} old"),
            Self::StillNode => format!("solvers of node {who} still"),
            Self::SolverStopped => format!("solver {who} stopped"),
            Self::SolverStill => format!("solver {who} still"),
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, who, seconds } = self;
        match what {
            What::Silent => write!(
                f,
                "nothing heard of node {who} for {seconds} s; streaming goes on without it"
            ),
            What::LongFramesLost => write!(
                f,
                "node {who} is heard, but none of its long frames came for {seconds} s, and weights are in those: \
                 {SMALLER_MTU}"
            ),
            What::NoPositions => write!(
                f,
                "node {who} is heard, but no position of its ranges came for {seconds} s"
            ),
            What::OldRange => write!(
                f,
                "a part of what node {who} streams is {seconds} s old, though its positions come"
            ),
            What::StillNode => write!(
                f,
                "the solvers of node {who} stand still for {seconds} s, while others go on"
            ),
            What::SolverStopped => write!(
                f,
                "solver {who} is stopped for {seconds} s (kill -CONT lets it go on)"
            ),
            What::SolverStill => write!(
                f,
                "solver {who} lives, but made no iteration for {seconds} s"
            ),
        }
    }
}

/// Something counted that should become more.
#[derive(Clone, Copy, Debug, Default)]
struct Moving {
    value: u64,
    moved_ns: u64,
    /// Usual time between two changes, ns.
    usual_ns: u64,
}

impl Moving {
    fn see(&mut self, value: u64, now_ns: u64) {
        if value != self.value || self.moved_ns == 0 {
            let gap = now_ns.saturating_sub(self.moved_ns);
            if self.value != 0 {
                self.usual_ns = (3 * self.usual_ns + gap) / 4;
            }
            (self.value, self.moved_ns) = (value, now_ns);
        }
    }

    fn still_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.moved_ns)
    }

    /// For how long it has stood still, if that is too long.
    fn too_long_ns(&self, now_ns: u64) -> Option<u64> {
        let still = self.still_ns(now_ns);
        (self.value > 0 && still >= STILL_NS.max(STEPS * self.usual_ns)).then_some(still)
    }
}

/// Looks at the other nodes.
#[derive(Debug, Default)]
pub(super) struct Peers {
    iterations: Vec<Moving>,
    own: Moving,
    looked_ns: u64,
    /// Until when no node is judged, ns.
    grace_ns: u64,
}

impl Peers {
    /// What is wrong with other nodes. `target` is the number of iterations after which all end, 0:
    /// none.
    pub(super) fn look(
        &mut self,
        streamer: &Streamer<'_>,
        local_iterations: u64,
        target: u64,
        now_ns: u64,
    ) -> Vec<Trouble> {
        if now_ns.saturating_sub(self.looked_ns) > SILENT_NS {
            self.grace_ns = now_ns + SILENT_NS;
        }
        self.looked_ns = now_ns;
        self.own.see(local_iterations, now_ns);
        self.iterations
            .resize(streamer.places().into(), Moving::default());
        for node in streamer.others() {
            let seen = streamer.peer(node).iterations;
            self.iterations[usize::from(node)].see(seen, now_ns);
        }
        if now_ns < self.grace_ns {
            return Vec::new();
        }
        let all_iterations = local_iterations + streamer.remote_iterations();
        let running = target == 0 || all_iterations < target;
        let silent = |node: u16| now_ns.saturating_sub(streamer.peer(node).heard_ns) > SILENT_NS;
        let all_heard = !streamer.others().any(silent);
        let pass_ns = 1000 * streamer.ages_us().value_at_quantile(0.5);
        let old_ns = OLD_NS.max(PASSES * pass_ns);
        let mut troubles = Vec::new();
        for node in streamer.others() {
            let mut add = |what, ns: u64| {
                troubles.push(Trouble {
                    what,
                    who: node,
                    seconds: ns / 1_000_000_000,
                });
            };
            if silent(node) {
                add(
                    What::Silent,
                    now_ns.saturating_sub(streamer.peer(node).heard_ns),
                );
                continue;
            }
            // Before all are there, ranges that are new do not stream.
            let ranges = 0..streamer.places();
            let streams = |range: &u16| {
                let known = all_heard || streamer.has_joined(*range);
                known && streamer.master(*range) == node && !streamer.ranges().of(*range).is_empty()
            };
            let oldest = ranges
                .filter(streams)
                .map(|range| streamer.range_age_ns(range, now_ns));
            // Of a range that this node began just now, others sent positions before.
            if let Some(oldest) = oldest.max().filter(|oldest| *oldest > old_ns) {
                let newest = streamer.position_age_ns(node, now_ns);
                let longest = streamer.long_frame_age_ns(node, now_ns);
                match newest > old_ns {
                    true if longest > old_ns => add(What::LongFramesLost, longest),
                    true => add(What::NoPositions, newest),
                    false => add(What::OldRange, oldest),
                }
            }
            let still = self.iterations[usize::from(node)].too_long_ns(now_ns);
            if let Some(still) = still
                && running
                && self.others_move(node, now_ns)
            {
                add(What::StillNode, still);
            }
        }
        troubles
    }

    /// Whether solvers of another node than `node` have made an iteration lately.
    fn others_move(&self, node: u16, now_ns: u64) -> bool {
        let all = (0..).zip(&self.iterations);
        let others = all
            .filter(|(other, _)| *other != node)
            .map(|(_, moving)| moving);
        others
            .chain([&self.own])
            .any(|moving| moving.value > 0 && moving.still_ns(now_ns) < STILL_NS / 2)
    }
}

/// Looks at the solvers of a buffer.
#[derive(Debug, Default)]
pub(crate) struct SolverWatch {
    seen: BTreeMap<u32, Solver>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Solver {
    beat: Moving,
    cpu: Moving,
    stopped_ns: Option<u64>,
}

impl SolverWatch {
    /// What is wrong with solvers that run, once they may run.
    pub(crate) fn look(&mut self, shared: &SharedWeights, now_ns: u64) -> Vec<Trouble> {
        use std::sync::atomic::Ordering::Relaxed;
        let mut troubles = Vec::new();
        let globals = shared.globals();
        let ready = globals.ready.load(Relaxed) != 0 && globals.lacks_quorum().is_none();
        let slots = shared.slots();
        let solvers = slots
            .iter()
            .filter(|slot| slot.role == Role::Solver && slot.alive);
        for slot in solvers {
            let solver = self.seen.entry(slot.index).or_default();
            if let Some((what, ns)) = solver.look(slot, ready, now_ns) {
                troubles.push(Trouble {
                    what,
                    who: slot.index as u16,
                    seconds: ns / 1_000_000_000,
                });
            }
        }
        troubles
    }
}

impl SolverWatch {
    /// Whether a signal has stopped process `pid`.
    pub(crate) fn is_stopped(pid: u32) -> bool {
        process(pid).is_some_and(|(state, _)| matches!(state, 'T' | 't'))
    }
}

impl Solver {
    fn look(&mut self, slot: &SlotInfo, ready: bool, now_ns: u64) -> Option<(What, u64)> {
        self.beat.see(slot.heartbeat_unix_ns, now_ns);
        let (state, cpu_ticks) = process(slot.pid)?;
        self.cpu.see(cpu_ticks, now_ns);
        if matches!(state, 'T' | 't') {
            let since = *self.stopped_ns.get_or_insert(now_ns);
            let stopped = now_ns
                .saturating_sub(since)
                .max(self.still_since_ns(now_ns));
            return (stopped >= STOPPED_NS).then_some((What::SolverStopped, stopped));
        }
        self.stopped_ns = None;
        if !ready {
            // It waits as it is to.
            (self.beat.moved_ns, self.cpu.moved_ns) = (now_ns, now_ns);
            return None;
        }
        let still = self.beat.too_long_ns(now_ns)?;
        let hangs = self.cpu.still_ns(now_ns) >= STILL_NS / 2;
        (hangs || still >= STILL_BUSY_NS).then_some((What::SolverStill, still))
    }

    fn still_since_ns(&self, now_ns: u64) -> u64 {
        self.beat.still_ns(now_ns)
    }
}

/// State and CPU time (ticks) of a process, from /proc.
fn process(pid: u32) -> Option<(char, u64)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let ticks = fields
        .skip(10)
        .take(2)
        .filter_map(|f| f.parse::<u64>().ok());
    Some((state, ticks.sum()))
}

/// Time since `unix_ns`, as this host's clock has it.
pub(crate) fn since_unix(unix_ns: u64) -> Duration {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.unwrap_or_default()
        .saturating_sub(Duration::from_nanos(unix_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn what_moves_slowly_does_not_stand_still() {
        let mut slow = Moving::default();
        // One iteration in 20 s.
        for s in 0..200 {
            slow.see(1 + s / 20, s * S + 1);
            assert_eq!(slow.too_long_ns(s * S + 1).filter(|_| s > 60), None, "{s}");
        }
        assert_eq!(slow.too_long_ns(1000 * S), Some(1000 * S - 180 * S - 1));
        let mut fast = Moving::default();
        for ms in 1..1000 {
            fast.see(ms, ms * S / 1000);
        }
        assert!(fast.too_long_ns(10 * S).is_none());
        assert!(fast.too_long_ns(12 * S).is_some());
    }

    #[test]
    fn this_very_process_runs() {
        let (state, _) = process(std::process::id()).expect("/proc");
        assert!(matches!(state, 'R' | 'S'), "{state}");
        assert!(process(u32::MAX).is_none());
    }
}

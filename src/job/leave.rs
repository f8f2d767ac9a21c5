//! The end of a node whose others run elsewhere: what it waits for by its own counters, and how it
//! leaves.
//!
//! Reads the counters of its streamer, takes one slot of the buffer. Invariants: it waits while
//! anything gets nearer; a node that does not come to the end is named, and is not waited for
//! without end; what this node added is with others before its streamer ends, if any are there.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};

use super::buffers::Buffers;
use super::children::{LOOK_EVERY, stop_all};
use super::train::Crew;
use super::warnings::Warnings;
use crate::node::Stop;
use crate::watch::{SolverMeter, StreamMeter};
use crate::weights::{Role, SharedWeights};

/// Longest time without anything getting nearer.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time for a streamer to give what it has to others.
const LEAVES: Duration = Duration::from_secs(30);
/// What [`StreamMeter::Settled`] says of nodes that are all equal.
const EQUAL: u64 = 3;

/// How far a node has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Settled {
    level: u64,
    undelivered: u64,
    others: u64,
    interrupted: bool,
}

impl Settled {
    /// What the streamer of this buffer says of the end that `with` names; nothing while it speaks
    /// of another.
    fn look(shared: &SharedWeights, with: u64) -> Self {
        let slots = shared.slots();
        let streamer = slots.iter().find(|slot| slot.role == Role::Stream);
        let Some(slot) = streamer else {
            return Self::default();
        };
        let of = |meter: StreamMeter| meter.of(&slot.meters);
        if of(StreamMeter::FinishedWith) != with {
            return Self::default();
        }
        Self {
            level: of(StreamMeter::Settled),
            undelivered: of(StreamMeter::UndeliveredChunks),
            others: of(StreamMeter::UnsettledNodes),
            interrupted: false,
        }
    }

    /// What is lacking, in words.
    fn lack(&self) -> String {
        let others = (0..64).filter(|node| self.others >> node & 1 == 1);
        let others: Vec<String> = others.map(|node: u16| node.to_string()).collect();
        match (self.undelivered, others.is_empty()) {
            (0, true) => "positions of the last steps".to_owned(),
            (0, false) => format!("node {} to finish", others.join(", ")),
            (chunks, _) => format!("{chunks} chunks to be with others"),
        }
    }

    /// Whether the replicas are equal; `None`: that is not known. What is lacking is warned of.
    pub(super) fn verdict(&self, node: u16, warnings: &mut Warnings) -> Option<bool> {
        if self.level == EQUAL {
            return Some(true);
        }
        if self.interrupted {
            return None;
        }
        let text = format!("node {node} ended; it had waited for {}", self.lack());
        warnings.unfinished(node, text, PATIENCE.as_secs());
        // What was added here is with others where it says so: who is dead is not waited for.
        (self.level == 0).then_some(false)
    }
}

/// Waits until all nodes hold the same weights, as far as the streamer of `node` knows. `watch`
/// looks after it meanwhile, and is told what is still missing.
///
/// # Errors
/// The streamer cannot be kept alive, or the buffer has no room for one who says that all is done.
pub(super) fn settle(
    node: u16,
    shared: &SharedWeights,
    stop: &Stop,
    mut watch: impl FnMut(&str) -> Result<()>,
) -> Result<Settled> {
    // Solvers have ended. Who has their place says that they add nothing more.
    let slot = shared
        .claim_slot(Role::Solver, 0)
        .with_context(|| format!("node {node} cannot say that it has finished"))?;
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    let with = since.as_nanos() as u64 | 1;
    SolverMeter::Finished.set(slot.meters(), with);
    let (mut best, mut nearer) = (Settled::default(), Instant::now());
    loop {
        slot.heartbeat();
        let now = Settled::look(shared, with);
        if now != best {
            (best, nearer) = (now, Instant::now());
        }
        if now.level == EQUAL || nearer.elapsed() >= PATIENCE {
            return Ok(now);
        }
        if stop.load(Relaxed) {
            let interrupted = true;
            return Ok(Settled { interrupted, ..now });
        }
        watch(&now.lack())?;
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Ends a node: first who learns, then its streamer, once others have what it has.
pub(super) fn leave(crew: &mut Crew, buffers: &Buffers) {
    stop_all(crew.learners());
    // Said for solvers, who have ended: a streamer that hears it would not take its leave.
    for shared in &buffers.nodes {
        shared.globals().stop.store(0, Relaxed);
    }
    crew.streamers()
        .for_each(|streamer| streamer.signal(dogwild_lab::process::terminate));
    let end = Instant::now() + LEAVES;
    while crew.streamers().any(|streamer| streamer.still_runs()) && Instant::now() < end {
        std::thread::sleep(LOOK_EVERY);
    }
}

//! The meeting of a job's nodes: before one begins, all have come, and all have the same job.
//!
//! Node 0 listens; the others call it, in any order, for as long as it takes. One without a number
//! asks for one first. Lines of JSON over TCP, encrypted where the job has a key. Invariants: a
//! node that has another job, version or number than node 0 expects is refused by name on both
//! sides; a node that has begun goes on whatever becomes of the meeting; a stranger holds nothing
//! up.

mod first;
mod guest;
mod message;
mod precision;
mod rounds;
mod seats;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::precision::Wish;
use super::world::World;
use crate::node::Stop;
use crate::poseidon::ClusterKey;
pub use message::Round;
pub use precision::Precision;
pub use seats::ask_for_a_seat;

/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Time before the first line about what is waited for, and between two.
const SAY_AFTER: Duration = Duration::from_secs(1);
const SAY_EVERY: Duration = Duration::from_secs(5);
/// Time in which a node that goes on with its buffer looks for node 0.
const GOES_ON_AFTER: Duration = Duration::from_secs(10);

/// What a node brings.
#[derive(Clone, Debug)]
pub struct Card {
    /// Which node of which job it is.
    pub world: World,
    /// Nodes with which the job begins.
    pub least: u16,
    /// Node numbers that there are; no more than nodes: none may join.
    pub places: u16,
    /// The buffer of node 0, if it is this node: what it knows of others.
    pub buffer: PathBuf,
    /// What must be the same on all nodes, by name.
    pub fields: BTreeMap<String, String>,
    /// How weights are to travel; none: `fields` has it.
    pub precision: Option<Precision>,
}

/// The meeting, from one node's side.
pub struct Meeting {
    shared: Arc<Shared>,
}

/// What its threads know.
struct Shared {
    card: Card,
    key: Option<ClusterKey>,
    state: Mutex<State>,
    /// Who has it measures the link of node 0.
    measuring: Mutex<()>,
}

#[derive(Default)]
struct State {
    /// The job has begun.
    begun: bool,
    /// Why this node may not take part.
    refused: Option<String>,
    /// Nodes that have yet to come, as far as is known.
    waiting: Vec<u16>,
    /// Node 0 does not answer, and why.
    unreachable: Option<String>,
    /// Address of this node on the network of the job.
    own: Option<IpAddr>,
    /// Address of node 0 there.
    first: Option<IpAddr>,
    /// The job is to end, as a node's test has reached the target.
    ended: bool,
    /// Ways to tell others, by node.
    lines: BTreeMap<u16, message::Line>,
    /// Counts connections.
    connections: u64,
    /// Counts what was said on them, by node.
    said: BTreeMap<u16, u64>,
    /// Numbers that were given to nodes which have yet to come, and when.
    given: BTreeMap<u16, Instant>,
    /// Nodes on which nothing of a cluster runs, and the clocks of their checkpoints.
    ready: BTreeMap<u16, Vec<u64>>,
    /// The round that has begun, if it was not taken yet.
    round: Option<Round>,
    /// What this node wants, once it is known.
    wish: Option<Wish>,
    /// On node 0: what others want.
    wishes: BTreeMap<u16, Wish>,
    /// How weights travel, once the job has begun.
    settled: Option<Wish>,
}

/// Where a node is once all have met.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Host at which other nodes are found; none: all are on this host.
    pub join: Option<String>,
    /// How weights travel, where that was left to the nodes.
    pub precision: Option<Wish>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Meeting {
    /// Opens the meeting, or calls the one that opens it. Returns at once.
    ///
    /// # Errors
    /// The port is taken, or no thread can be started.
    pub fn open(card: Card, key: Option<ClusterKey>) -> Result<Self> {
        let first = card.world.rank == 0;
        let shared = Arc::new(Shared {
            card,
            key,
            state: Mutex::default(),
            measuring: Mutex::default(),
        });
        if first {
            first::listen(&shared)?;
        } else {
            guest::call(&shared)?;
        }
        Ok(Self { shared })
    }

    /// Waits until all have come, and says for whom. A node that `goes_on` with a buffer does not
    /// need the others for it. `None`: a signal came.
    ///
    /// # Errors
    /// This node is refused.
    pub fn wait(&self, goes_on: bool, stop: &Stop) -> Result<Option<Place>> {
        let start = Instant::now();
        let mut due = start + SAY_AFTER;
        let World { rank, size, .. } = self.shared.card.world;
        let alone = rank == 0 && size == 1;
        let own = self.shared.own_wish();
        loop {
            if stop.signal().is_some() {
                return Ok(None);
            }
            {
                let mut state = self.shared.state();
                if let Some(why) = &state.refused {
                    bail!("{why}");
                }
                let reached = state.begun || rank == 0;
                if state.begun || alone || goes_on && (reached || start.elapsed() >= GOES_ON_AFTER)
                {
                    if !state.begun && !alone {
                        log::info!("going on with the buffer that is here, without waiting");
                    }
                    self.begin(&mut state, own);
                    return self.place(&state).map(Some);
                }
                if Instant::now() >= due {
                    due = Instant::now() + SAY_EVERY;
                    log::info!("waiting for {}", self.lack(&state));
                }
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// The job has begun: those who have come already are told so.
    fn begin(&self, state: &mut State, own: Option<Wish>) {
        if !state.begun && self.shared.card.world.rank == 0 {
            state.settle(own);
            let settled = state.settled;
            let lines = state.lines.values_mut();
            lines.for_each(|line| line.say(&message::Word::Begin(settled)));
        }
        state.begun = true;
    }

    /// For whom the job waits, in words.
    fn lack(&self, state: &State) -> String {
        let World { first, port, .. } = &self.shared.card.world;
        if let Some(why) = &state.unreachable {
            return format!("node 0 at {first}, port {port} ({why})");
        }
        let nodes = state.waiting.iter().map(u16::to_string);
        let nodes: Vec<String> = nodes.collect();
        match self.shared.card.world.rank {
            0 => format!("node {} to call at port {port}", nodes.join(", ")),
            _ if nodes.is_empty() => format!("node 0 at {first}, port {port}"),
            _ => format!("node {}", nodes.join(", ")),
        }
    }

    fn place(&self, state: &State) -> Result<Place> {
        let first = match (self.shared.card.world.rank, state.first) {
            (0, _) => state.own,
            (_, first) => first,
        };
        let first = match first {
            Some(ip) => ip,
            // No node was reached: what the name of its host says has to do.
            None => message::resolve(&self.shared.card.world)
                .context("the host of node 0 is not known")?
                .ip(),
        };
        Ok(Place {
            join: (!first.is_loopback()).then(|| first.to_string()),
            precision: state.settled.or(self.shared.own_wish()),
        })
    }

    /// Whether another node has said that the job is to end.
    pub fn ended(&self) -> bool {
        self.shared.state().ended
    }

    /// Tells all nodes that the job is to end. Those that cannot be told make all iterations.
    pub fn end(&self) {
        first::end(&self.shared);
    }
}

#[cfg(test)]
mod tests;

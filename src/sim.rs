//! A seeded virtual network and clock over the same state machines that real nodes run.
//!
//! Holds [`Fleet`] (the memory of all nodes) and [`World`] (their streamers, the frames on the way,
//! the clock). Everything follows from the seed: the same seed gives the same run, frame by frame.
//! Touches no sockets and no real time; the state files it needs live in a folder of the caller.

use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

use rand::RngExt;

use crate::stream::{Config, Report, Streamer};
use crate::weights::{StateError, StreamState, WeightsView};

mod finish;
mod limit;
mod lives;
mod network;
mod port;
mod queue;
mod trace;
mod traffic;
#[cfg(feature = "caffe")]
pub mod training;

pub use dogwild_net::fault::Bursts;
pub use limit::Limit;
use network::Network;
pub use network::{Faults, INBOX_BYTES};
use port::{Port, survives};
use trace::{Told, Trace, Way};
use traffic::Meter;
pub use traffic::Traffic;

/// The memory of all nodes: weights and streamer state, which outlive a killed streamer.
pub struct Fleet {
    config: Config,
    nodes: Vec<Lives>,
}

/// The memories that a node has one after the other: the next one once the one before is lost.
struct Lives {
    memories: Vec<Memory>,
    /// Which it has now.
    now: AtomicUsize,
}

/// What a node's machine holds.
struct Memory {
    weights: Vec<AtomicU32>,
    state: StreamState,
    /// As each buffer has one.
    incarnation: u64,
}

impl Fleet {
    /// Memory for a node at each place of `config`, all weights zero; state files go to `folder`.
    /// Their incarnations count on from that of `config`.
    pub fn new(config: &Config, folder: &Path) -> Result<Self, StateError> {
        let mut fleet = Self {
            config: config.clone(),
            nodes: Vec::new(),
        };
        for node in 0..config.places() {
            fleet.nodes.push(Lives {
                memories: Vec::new(),
                now: AtomicUsize::new(0),
            });
            fleet.add_life(node, &folder.join(format!("n{node}.stream")))?;
        }
        Ok(fleet)
    }

    /// Gives `node` the memory for one more life, with zero weights and a state file at `path`. It
    /// has it when it loses the one before ([`World::lose`]).
    pub fn add_life(&mut self, node: u16, path: &Path) -> Result<(), StateError> {
        let lives = self.nodes[usize::from(node)].memories.len() as u64;
        let memory = Memory {
            weights: self.fresh_weights(),
            state: self.fresh_state(node, path)?,
            incarnation: self.config.incarnation + u64::from(node) + 1 + lives * 1_000_003,
        };
        self.nodes[usize::from(node)].memories.push(memory);
        Ok(())
    }

    fn fresh_weights(&self) -> Vec<AtomicU32> {
        let len = self.config.chunks as usize * self.config.chunk_weights as usize;
        std::iter::repeat_with(|| AtomicU32::new(0))
            .take(len)
            .collect()
    }

    fn fresh_state(&self, node: u16, path: &Path) -> Result<StreamState, StateError> {
        let config = Config {
            node,
            ..self.config.clone()
        };
        let padded = config.chunks as usize * config.chunk_weights as usize;
        let spec = config.state_spec(padded);
        Ok(StreamState::open_or_create(path, &spec)?.0)
    }

    /// What a node whose machine died comes back with: zero weights and a state file at `path`.
    pub fn lose(&mut self, node: u16, path: &Path) -> Result<(), StateError> {
        self.add_life(node, path)?;
        self.begin_next_life(node);
        Ok(())
    }

    fn begin_next_life(&self, node: u16) {
        self.nodes[usize::from(node)].now.fetch_add(1, Relaxed);
    }

    fn memory(&self, node: u16) -> &Memory {
        let lives = &self.nodes[usize::from(node)];
        &lives.memories[lives.now.load(Relaxed)]
    }

    /// What all nodes agree on.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The weights of `node`.
    pub fn weights(&self, node: u16) -> WeightsView<'_> {
        WeightsView::of(&self.memory(node).weights)
    }

    /// The state of the streamer of `node`.
    pub fn state(&self, node: u16) -> &StreamState {
        &self.memory(node).state
    }

    fn streamer(&self, node: u16) -> Streamer<'_> {
        let config = Config {
            node,
            incarnation: self.memory(node).incarnation,
            ..self.config.clone()
        };
        Streamer::new(config, self.weights(node), self.state(node))
    }

    /// True if the weights of all nodes are equal, bit for bit.
    pub fn identical(&self) -> bool {
        let first = self.weights(0);
        (1..self.config.nodes).all(|node| {
            let other = self.weights(node);
            (0..first.len()).all(|i| first.load(i).to_bits() == other.load(i).to_bits())
        })
    }
}

/// All streamers and the network between them.
pub struct World<'a> {
    fleet: &'a Fleet,
    streamers: Vec<Option<Streamer<'a>>>,
    network: Network,
    /// Reports that were told to the trace and are still to be taken.
    told: Vec<Vec<Report>>,
    /// Positions that a node may send in one step.
    pub burst: usize,
}

/// Length of one step of the virtual clock, ns.
pub const STEP_NS: u64 = 10_000;

impl<'a> World<'a> {
    /// A world over `fleet`; all chance comes from `seed`. Nodes that join later come with
    /// [`restart`](Self::restart).
    pub fn new(fleet: &'a Fleet, faults: Faults, seed: u64) -> Self {
        let (nodes, places) = (fleet.config.nodes, fleet.config.places());
        let begins = |node: u16| (node < nodes).then(|| fleet.streamer(node));
        Self {
            streamers: (0..places).map(begins).collect(),
            network: Network::new(
                faults,
                places,
                seed,
                Meter::new(fleet.config.chunk_weights, fleet.config.deltas),
            ),
            fleet,
            told: (0..places).map(|_| Vec::new()).collect(),
            burst: 4,
        }
    }

    /// From now on, writes a line to `out` for each frame that is sent, lost or taken, for each
    /// report, and for what is done to nodes and ways. Panics if `out` refuses one.
    pub fn trace(&mut self, out: impl Write + 'static) {
        let out = Box::new(out);
        self.network.trace = Some(Trace { out });
    }

    /// From now on, keeps what goes to all nodes for [`overhear`](Self::overhear).
    pub fn listen(mut self) -> Self {
        self.network.heard = Some(Vec::new());
        self
    }

    /// What went to all nodes since the last call, if it is kept.
    pub fn overhear(&mut self) -> Vec<Vec<u8>> {
        let heard = self.network.heard.as_mut();
        heard.map_or_else(Vec::new, std::mem::take)
    }

    /// Goes on from an earlier world's clock (after the fleet was changed between them).
    pub fn at(mut self, now_ns: u64) -> Self {
        self.network.now_ns = now_ns;
        self
    }

    /// Time that a frame of `node` would spend in the queue of its shaper, ns.
    pub fn queue_ns(&self, node: u16) -> u64 {
        let now_ns = self.network.now_ns;
        self.network.limits.queue_ns(now_ns, usize::from(node))
    }

    /// Frames of foreign traffic fill the queue of `node`'s shaper up to `queue_ns`, as TCP does.
    pub fn fill_queue(&mut self, node: u16, queue_ns: u64) {
        let now_ns = self.network.now_ns;
        self.network.limits.fill(now_ns, node.into(), queue_ns);
    }

    /// One step of the clock: due frames are handled, each node sends a burst.
    pub fn step(&mut self) {
        self.step_by(STEP_NS);
    }

    /// A step of another length. A longer one costs no more.
    pub fn step_by(&mut self, ns: u64) {
        self.network.step(ns);
        let now = self.network.now_ns;
        self.network.read(self.fleet);
        while let Some((to, bytes)) = self.network.next_due() {
            self.tell_arrival(to, &bytes);
            self.act(to, |streamer, port| {
                streamer.handle_frame(now, &bytes, port);
            });
        }
        for node in 0..self.streamers.len() as u16 {
            if !self.network.is_paused(node) {
                let burst = self.burst;
                self.act(node, |streamer, port| {
                    streamer.poll_transmit(now, burst, port);
                });
            }
        }
        self.tell_reports();
    }

    /// Lets the streamer of `node` act, if it lives. It may be killed in a send.
    fn act(&mut self, node: u16, act: impl FnOnce(&mut Streamer<'a>, &mut Port<'_>)) {
        if let Some(streamer) = &mut self.streamers[usize::from(node)] {
            let mut port = Port {
                network: &mut self.network,
                from: node,
            };
            if !survives(|| act(streamer, &mut port)) {
                self.kill(node);
            }
        }
    }

    fn tell_arrival(&mut self, to: u16, bytes: &[u8]) {
        if self.network.trace.is_none() {
            return;
        }
        let from = crate::wire::of_any_version(bytes).map_or(u16::MAX, |(_, sender)| sender);
        self.network
            .tell(format_args!("{from} : {to} {}", Told(bytes)));
    }

    /// What the streamers have reported since the last call, if there is a trace.
    fn tell_reports(&mut self) {
        if self.network.trace.is_none() {
            return;
        }
        for (node, streamer) in self.streamers.iter_mut().enumerate() {
            let reports = streamer.iter_mut().flat_map(Streamer::take_reports);
            for report in reports {
                let what = format_args!("node {node} reports: {report}");
                self.network.tell(what);
                self.told[node].push(report);
            }
        }
    }

    /// Injects bytes into `to`'s receive path, as any host on the wire could.
    pub fn inject(&mut self, to: u16, bytes: &[u8]) {
        self.tell_arrival(to, bytes);
        let now = self.network.now_ns;
        self.act(to, |streamer, port| {
            streamer.handle_frame(now, bytes, port);
        });
    }

    /// Sets what the network does from now on, the same on all ways.
    pub fn set_faults(&mut self, faults: Faults) {
        self.network
            .tell(format_args!("all ways: {}", Way(&faults)));
        self.network.set_faults(faults);
    }

    /// Sets what happens on the way from one node to another from now on. A limit there is a
    /// shaper with a queue, behind that of the sender; `no_slot` and `unread_ns` are of senders.
    pub fn set_way(&mut self, from: u16, to: u16, faults: Faults) {
        let what = format_args!("way {from} > {to}: {}", Way(&faults));
        self.network.tell(what);
        self.network.set_way(from, to, faults);
    }

    /// What the network has carried.
    pub fn traffic(&self) -> Traffic {
        self.network.meter.total
    }

    /// The streamer of `node`, if it lives.
    pub fn streamer(&self, node: u16) -> Option<&Streamer<'a>> {
        self.streamers[node as usize].as_ref()
    }

    /// Sets how many iterations the solvers of `node` have made.
    pub fn set_iterations(&mut self, node: u16, iterations: u64) {
        if let Some(streamer) = &mut self.streamers[node as usize] {
            streamer.set_local_iterations(iterations);
        }
    }

    /// Reports of the streamer of `node` since the last call.
    pub fn take_reports(&mut self, node: u16) -> Vec<Report> {
        let told = std::mem::take(&mut self.told[usize::from(node)]);
        let streamer = self.streamers[node as usize].iter_mut();
        let reports = streamer.flat_map(Streamer::take_reports);
        told.into_iter().chain(reports).collect()
    }

    /// The virtual clock, ns.
    pub fn now_ns(&self) -> u64 {
        self.network.now_ns
    }

    /// A random number below `bound`, from the world's seed.
    pub fn random_below(&mut self, bound: usize) -> usize {
        self.network.rng.random_range(0..bound)
    }

    /// Frames on the way.
    pub fn on_the_way(&self) -> usize {
        self.network.on_the_way()
    }
}

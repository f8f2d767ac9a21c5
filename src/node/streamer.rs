//! The streamer component: joins [`Streamer`] to a transport, a clock and the counters.
//!
//! One thread turns a [`StreamLoop`], publishes its counters, takes naps while solvers want the
//! core, and sleeps when there is nothing to do. It never waits for a peer.

mod error;
mod kinds;
mod leaving;
mod number;
mod peers;
mod publish;
mod say;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use dogwild_net::{Link, ReceiveStats};

pub use self::error::StreamerError;
use self::leaving::Leaving;
use self::peers::PeerTable;
use self::publish::Health;
use self::say::Say;
use super::budget::Budget;
use super::health::SILENT_NS;
use super::privileges::{drop_privileges_after_opening, drop_privileges_before_opening};
use super::stream_loop::StreamLoop;
use super::transport::{Transport, TransportSpec, open_link};
use crate::stream::{Config, Deltas, Merge, SILENCE_NS, Streamer, chunk_weights_for};
use crate::watch::{Kind, StreamMeter};
use crate::weights::{Expect, METERS, Role, SharedWeights, StreamState, Writes};
use crate::wire::Dtype;

/// Positions of a step while solvers want the core: so much work, at most, lies between two naps.
const BATCH_OF_A_NAP: usize = 16;
/// A streamer without a rate looks for frames this long before it sleeps, ns.
const SPIN_NS: u64 = 100_000;
/// Time between two publications of the counters, ns.
const PUBLISH_EVERY_NS: u64 = 50_000_000;
/// Time between two looks at the oldest chunk, where solvers wait for it, ns.
const TELL_EVERY_NS: u64 = 2_000_000;

/// What a streamer is started with.
#[derive(Clone, Debug)]
pub struct StreamJob {
    /// The buffer to stream.
    pub buffer: PathBuf,
    /// This node; from `nodes` on: it joins later. `None`: as its buffer was before, else a number
    /// that is free in the job, which must run.
    pub node: Option<u16>,
    /// Nodes that the job begins with.
    pub nodes: u16,
    /// Node numbers that there are, `nodes` and those that join.
    pub places: u16,
    /// Nodes that begin a new job; `None`: all.
    pub min_nodes: Option<u16>,
    /// Nodes that must be heard, this one included, for solvers to go on; `None`: any number.
    pub quorum: Option<u16>,
    /// Whether it gives its ranges to other nodes when it is told to end.
    pub hand_over: bool,
    /// Those of them that master a range: the first so many; `None`: all.
    pub masters: Option<u16>,
    /// How to reach the others.
    pub transport: TransportSpec,
    /// What becomes of lost deltas.
    pub deltas: Deltas,
    /// How deltas become part of positions.
    pub merge: Merge,
    /// How weights travel.
    pub precision: Dtype,
    /// Whether chunks that moved most go first.
    pub sparse: bool,
    /// How local solvers write.
    pub writes: Writes,
    /// Bytes per second that the node sends at most; `None`: as fast as it can.
    pub rate_bytes_per_s: Option<f64>,
    /// Bytes of positions on the way without an answer, at most; `None`: no limit.
    pub window_bytes: Option<f64>,
}

/// Runs the streamer of one node until `stop` is set. Once all is open, this thread gives up its
/// capabilities.
pub fn run_streamer(job: &StreamJob, stop: &AtomicBool) -> Result<(), StreamerError> {
    let known = job.nodes..=crate::stream::MAX_NODES;
    let node = job.node.unwrap_or(0);
    if job.nodes == 0 || node >= job.places || !known.contains(&job.places) {
        return Err(StreamerError::Node {
            node,
            nodes: job.nodes,
            places: job.places,
        });
    }
    let (masters, nodes) = (job.masters.unwrap_or(job.nodes), job.nodes);
    if !(1..=nodes).contains(&masters) {
        return Err(StreamerError::Masters { masters, nodes });
    }
    let shared = SharedWeights::open(&job.buffer, &Expect::default())?;
    let mut transport = job.transport.clone();
    transport.wrap.replay_windows = Some(replays_beside(&job.buffer));
    drop_privileges_before_opening(transport.transport)?;
    let mut link = open_link(&transport, shared.session())?;
    lend(&mut link, &shared);
    if transport.wrap.key_file.is_none() && transport.leaves_the_host() {
        log::warn!(
            "frames are not authenticated: any host on the link can change the weights; --key-file seals them"
        );
    }
    // Frames are read from here on. The files behind it need no capability.
    drop_privileges_after_opening(transport.transport)?;
    let Some(node) = number::number(job, &shared, &mut link, stop)? else {
        return Ok(());
    };
    let config = configure(job, node, &shared, link.tx.mtu())?;
    let spec = config.state_spec(shared.padded());
    let (state, resumed) =
        StreamState::open_or_create(&StreamState::path_beside(&job.buffer), &spec)?;
    let slot = shared.claim_slot(Role::Stream, u32::from(node))?;
    let chunk_weights = config.chunk_weights;
    forget_troubles(slot.meters());
    StreamMeter::LinkMtu.set(slot.meters(), transport.link_mtu().unwrap_or(0) as u64);
    StreamMeter::FrameBytes.set(slot.meters(), link.tx.mtu() as u64);
    StreamMeter::ChunkWeights.set(slot.meters(), u64::from(chunk_weights));
    let streamer = Streamer::new(config, shared.view(), &state);
    say_start(job, node, &shared, chunk_weights, resumed);
    tell_own_ranges(&shared, &streamer, node);
    let mut runner = Loop {
        shared: &shared,
        base: slot.meters().each_ref().map(|word| word.load(Relaxed)),
        meters: slot.meters(),
        peers: PeerTable::new(&shared, job.places),
        published_ns: 0,
        told_ns: 0,
        turns: streamer.turns(),
        node,
        said_ready: false,
        told_ready: false,
        said_heard: false,
        health: Health::default(),
        say: Say::new(shared.data_kind()),
        said: ReceiveStats::default(),
        waiting_since_ns: None,
        waited_ns: 0,
        budget: Budget::new(),
        join: (transport.transport == Transport::Udp && transport.leaves_the_host())
            .then_some(transport.join),
        quorum: job.quorum.unwrap_or(0),
        finished: 0,
        hand_over: job.hand_over,
        leaving: Leaving::default(),
        stream: StreamLoop::new(streamer, link, job.rate_bytes_per_s),
    };
    let result = runner.run(stop, || slot.heartbeat());
    runner.finish();
    result
}

/// Lends the buffer to the transport.
fn lend(link: &mut Link, shared: &SharedWeights) {
    match link.tx.lend(shared.view().words()) {
        Ok(true) => log::info!("positions are read from the buffer by the adapter"),
        Ok(false) => {}
        Err(error) => log::warn!(
            "the adapter cannot read the buffer itself ({error}): positions are copied; \
             raise the limit of locked memory (ulimit -l)"
        ),
    }
}

/// Tells solvers which weights this node masters. (Before a new job streams, those that it is to.)
fn tell_own_ranges(shared: &SharedWeights, streamer: &Streamer<'_>, node: u16) {
    let mut runs = streamer.streamed_weights();
    if runs.is_empty() && !streamer.ready() {
        runs.push(streamer.own_weights());
    }
    log::debug!("node {node} masters weights {runs:?}");
    shared.globals().tell_own_ranges(&runs);
    shared
        .globals()
        .portion_bits
        .store(streamer.portion().to_bits(), Relaxed);
}

/// What a former streamer said of other nodes may be over.
fn forget_troubles(meters: &[AtomicU64; METERS]) {
    let masks = StreamMeter::ALL.iter();
    let masks = masks.filter(|meter| meter.described().kind == Kind::Mask);
    masks.for_each(|meter| meter.set(meters, 0));
}

/// The first line of the log.
fn say_start(
    job: &StreamJob,
    node: u16,
    shared: &SharedWeights,
    chunk_weights: u32,
    resumed: bool,
) {
    log::info!(
        "node {node} of {}: {} weights in {} chunks of {chunk_weights}, {} over {}{}",
        job.nodes,
        shared.used(),
        shared.used().div_ceil(chunk_weights as usize),
        job.precision.name(),
        job.transport.transport.name(),
        if resumed {
            ", going on where the last streamer stopped"
        } else {
            ""
        },
    );
}

/// The file next to a buffer that remembers which sealed frames its streamer has taken. It belongs
/// to the key and not to the weights: it stays when the buffer is made anew.
fn replays_beside(buffer: &Path) -> PathBuf {
    let mut name = buffer.as_os_str().to_owned();
    name.push(".seal");
    name.into()
}

fn configure(
    job: &StreamJob,
    node: u16,
    shared: &SharedWeights,
    mtu: usize,
) -> Result<Config, StreamerError> {
    let chunk_weights =
        chunk_weights_for(mtu, job.places, job.precision).ok_or(StreamerError::Mtu { mtu })?;
    Ok(Config {
        session: shared.session(),
        fingerprint: shared.fingerprint(),
        data: shared.data(),
        first_weights: shared.first_weights(),
        incarnation: shared.identity(),
        node,
        nodes: job.nodes,
        later: job.places - job.nodes,
        min_nodes: job.min_nodes,
        masters: job.masters.unwrap_or(job.nodes),
        chunk_weights,
        chunks: shared.used().div_ceil(chunk_weights as usize) as u32,
        deltas: job.deltas,
        merge: job.merge,
        precision: job.precision,
        sparse: job.sparse,
        writes: job.writes,
        silence_ns: SILENCE_NS,
        window_frames: job
            .window_bytes
            .map_or(0, |bytes| (bytes / mtu as f64).ceil() as u32),
    })
}

struct Loop<'a> {
    shared: &'a SharedWeights,
    stream: StreamLoop<'a>,
    /// The slot's counters when this process took it over: they go on, they do not start again.
    base: [u64; METERS],
    meters: &'a [AtomicU64; METERS],
    /// What is told of each other node.
    peers: PeerTable,
    published_ns: u64,
    node: u16,
    /// Which ranges solvers were told last that this node masters: those of so many changes.
    turns: u32,
    /// When solvers were told last how old the weights are, ns.
    told_ns: u64,
    said_ready: bool,
    /// Solvers were told that they may start.
    told_ready: bool,
    said_heard: bool,
    health: Health,
    say: Say,
    /// What of the transport's counters has been said.
    said: ReceiveStats,
    /// Until when `waited_ns` is counted, while nothing comes and nothing can be sent.
    waiting_since_ns: Option<u64>,
    waited_ns: u64,
    /// How much CPU this thread takes.
    budget: Budget,
    /// Where others are asked for; `None`: they are on this host, or on this link.
    join: Option<Vec<String>>,
    /// Nodes that solvers want to be heard; 0: any number.
    quorum: u16,
    /// What all solvers have finished with; 0: one of them works, or there was none.
    finished: u64,
    /// Whether it leaves the job before it ends, and how long it does.
    hand_over: bool,
    leaving: Leaving,
}

impl Loop<'_> {
    fn run(&mut self, stop: &AtomicBool, heartbeat: impl Fn()) -> Result<(), StreamerError> {
        let mut busy_ns = 0;
        while !(stop.load(Relaxed) && self.may_end()?) {
            let local = self.shared.globals().local_iterations.load(Relaxed);
            self.stream.set_local_iterations(local);
            let step = self.stream.step_of(self.batch())?;
            let now = step.at_ns;
            self.budget.look(now, self.shared);
            if self.turns != self.stream.streamer().turns() {
                self.turns = self.stream.streamer().turns();
                tell_own_ranges(self.shared, self.stream.streamer(), self.node);
            }
            self.tell_oldest(now);
            let just_ready = !self.told_ready && self.stream.ready();
            if just_ready || now.saturating_sub(self.published_ns) > PUBLISH_EVERY_NS {
                self.publish(now);
                heartbeat();
            }
            let waiting = self.waiting_since_ns.take();
            self.waited_ns += waiting.map_or(0, |since| now - since);
            if let Some(nap) = self.budget.nap(now) {
                self.stream.flush()?;
                std::thread::sleep(nap);
                continue;
            }
            if !step.is_idle() {
                busy_ns = now;
                continue;
            }
            // What the first idle step handed to the kernel was work; the steps behind it only
            // look.
            let since = waiting.map_or_else(|| self.stream.now_ns(), |_| now);
            self.waiting_since_ns = Some(since);
            let may_spin = self.stream.is_unlimited() && !self.budget.is_limited();
            if may_spin && now - busy_ns < SPIN_NS {
                // At full speed the answer is microseconds away, a wake-up costs more than that.
                std::thread::yield_now();
            } else {
                // Nothing came and nothing may go: sleep until a frame comes or the rate allows
                // more.
                self.stream.wait()?;
            }
        }
        Ok(())
    }

    /// Positions of a step.
    fn batch(&self) -> usize {
        if self.budget.is_limited() {
            BATCH_OF_A_NAP
        } else {
            usize::MAX
        }
    }

    /// Tells solvers that wait for it how old the oldest chunk is. A node that is silent is not
    /// waited for.
    fn tell_oldest(&mut self, now: u64) {
        let globals = self.shared.globals();
        if globals.age_wanted.load(Relaxed) == 0 || now.saturating_sub(self.told_ns) < TELL_EVERY_NS
        {
            return;
        }
        self.told_ns = now;
        let lives =
            |node| now.saturating_sub(self.stream.streamer().peer(node).heard_ns) < SILENT_NS;
        let (node, step) = match self.stream.streamer().oldest_step(lives) {
            Some((node, step)) => (u64::from(node) + 1, step),
            None => (0, 0),
        };
        globals.oldest_step.store(step, Relaxed);
        globals.oldest_node.store(node, Relaxed);
    }
}

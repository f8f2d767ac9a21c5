//! The streamer component: joins [`Streamer`] to a transport, a clock and the counters.
//!
//! One thread, one loop: take what has come in (answering each position at once), send the next
//! positions, hand everything to the kernel; sleep only when there is nothing to do. It never
//! waits for a peer.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use dogwild_net::Link;

use super::clock::{Clock, cpu_ns};
use super::pace::Pace;
use super::port::{Port, lend};
use super::privileges::{drop_privileges_after_opening, drop_privileges_before_opening};
use super::transport::{TransportError, TransportSpec, open_link};
use crate::stream::{Config, Deltas, Severity, Streamer, chunk_weights_for};
use crate::watch::{DROPS_AT, StreamMeter as Meter};
use crate::weights::{
    Expect, METERS, OpenError, Role, SharedWeights, SlotError, StateError, StreamState,
    StreamStateSpec, Writes,
};

/// Positions sent before the loop looks at receiving again, at most; twice as many frames are taken
/// before it looks at sending again.
const MOST_BATCH: usize = 128;
/// A streamer without a rate looks for frames this long before it sleeps, ns.
const SPIN_NS: u64 = 100_000;
/// Time between two publications of the counters, ns.
const PUBLISH_EVERY_NS: u64 = 50_000_000;
/// A node is called silent after this time without a frame, ns.
const SILENT_NS: u64 = 2_000_000_000;

/// What a streamer is started with.
#[derive(Clone, Debug)]
pub struct StreamJob {
    /// The buffer to stream.
    pub buffer: PathBuf,
    /// This node.
    pub node: u16,
    /// Number of nodes.
    pub nodes: u16,
    /// How to reach the others.
    pub transport: TransportSpec,
    /// What becomes of lost deltas.
    pub deltas: Deltas,
    /// How local solvers write.
    pub writes: Writes,
    /// Bytes per second that the node sends at most; `None`: as fast as it can.
    pub rate_bytes_per_s: Option<f64>,
    /// Bytes of positions on the way without an answer, at most; `None`: no limit.
    pub window_bytes: Option<f64>,
}

/// Why a streamer could not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum StreamerError {
    /// The buffer.
    #[error(transparent)]
    Buffer(#[from] OpenError),
    /// The component slot.
    #[error(transparent)]
    Slot(#[from] SlotError),
    /// The streamer's own state file.
    #[error(transparent)]
    State(#[from] StateError),
    /// The transport.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// Node and nodes do not fit.
    #[error("node {node} of {nodes}: nodes count from 0, there are 1 to 255 of them")]
    Node {
        /// Given.
        node: u16,
        /// Given.
        nodes: u16,
    },
    /// The MTU holds no chunk.
    #[error("frames of {mtu} bytes are too small for one chunk: raise --mtu")]
    Mtu {
        /// Bytes of a frame.
        mtu: usize,
    },
    /// The kernel will not take capabilities back.
    #[error("cannot give up capabilities: {0}")]
    Privileges(#[from] caps::errors::CapsError),
    /// The transport broke.
    #[error("the transport failed: {0}")]
    Io(#[from] std::io::Error),
}

/// Runs the streamer of one node until `stop` is set. Once all is open, this thread gives up its
/// capabilities.
pub fn run_streamer(job: &StreamJob, stop: &AtomicBool) -> Result<(), StreamerError> {
    if job.node >= job.nodes || job.nodes > crate::stream::MAX_NODES {
        return Err(StreamerError::Node {
            node: job.node,
            nodes: job.nodes,
        });
    }
    let shared = SharedWeights::open(&job.buffer, &Expect::default())?;
    let mut transport = job.transport.clone();
    transport.wrap.replays = Some(replays_beside(&job.buffer));
    drop_privileges_before_opening(transport.transport)?;
    let mut link = open_link(&transport, shared.session())?;
    lend(&mut link, &shared);
    if transport.wrap.key_file.is_none() && transport.leaves_the_host() {
        log::warn!(
            "frames are not authenticated: anybody on the link can change the weights; --key-file seals them"
        );
    }
    let config = configure(job, &shared, link.tx.mtu())?;
    let spec = StreamStateSpec {
        session: config.session,
        fingerprint: config.fingerprint,
        identity: shared.identity(),
        node: config.node,
        nodes: config.nodes,
        chunk_weights: config.chunk_weights,
        chunks: config.chunks,
        padded: shared.padded(),
    };
    let (state, resumed) =
        StreamState::open_or_create(&StreamState::path_beside(&job.buffer), &spec)?;
    let slot = shared.claim_slot(Role::Stream, u32::from(job.node))?;
    drop_privileges_after_opening(transport.transport)?;
    let chunk_weights = config.chunk_weights;
    Meter::LinkMtu.set(slot.meters(), transport.link_mtu().unwrap_or(0) as u64);
    Meter::FrameBytes.set(slot.meters(), link.tx.mtu() as u64);
    Meter::ChunkWeights.set(slot.meters(), u64::from(chunk_weights));
    let streamer = Streamer::new(config, shared.view(), &state);
    log::info!(
        "node {} of {}: {} weights in {} chunks of {chunk_weights} over {}{}",
        job.node,
        job.nodes,
        shared.used(),
        streamer.ranges().chunks(),
        job.transport.transport.name(),
        if resumed {
            ", going on where the last streamer stopped"
        } else {
            ""
        },
    );
    let mut runner = Loop {
        clock: Clock::start(),
        shared: &shared,
        base: slot.meters().each_ref().map(|word| word.load(Relaxed)),
        meters: slot.meters(),
        published_ns: 0,
        said_ready: false,
        said_silent: u64::MAX,
        taken: 0,
        waiting_since_ns: None,
        waited_ns: 0,
        // Half of a short range, so that both nodes have something on the way all the time.
        batch: (streamer.ranges().of(job.node).len() / 2).clamp(8, MOST_BATCH),
        streamer,
    };
    let result = runner.run(job, &mut link, stop, || slot.heartbeat());
    runner.publish(&mut link, u64::MAX);
    result
}

/// The file beside a buffer that remembers which sealed frames its streamer has taken. It belongs to the
/// key and not to the weights: a buffer that is made afresh keeps it.
fn replays_beside(buffer: &Path) -> PathBuf {
    let mut name = buffer.as_os_str().to_owned();
    name.push(".seal");
    name.into()
}

fn configure(job: &StreamJob, shared: &SharedWeights, mtu: usize) -> Result<Config, StreamerError> {
    let chunk_weights =
        chunk_weights_for(mtu, job.nodes, false).ok_or(StreamerError::Mtu { mtu })?;
    Ok(Config {
        session: shared.session(),
        fingerprint: shared.fingerprint(),
        data: shared.data(),
        first_weights: shared.first_weights(),
        incarnation: shared.identity(),
        node: job.node,
        nodes: job.nodes,
        chunk_weights,
        chunks: shared.used().div_ceil(chunk_weights as usize) as u32,
        deltas: job.deltas,
        writes: job.writes,
        window_frames: job
            .window_bytes
            .map_or(0, |bytes| (bytes / mtu as f64).ceil() as u32),
    })
}

fn level(severity: Severity) -> log::Level {
    match severity {
        Severity::Info => log::Level::Info,
        Severity::Warning => log::Level::Warn,
        Severity::Error => log::Level::Error,
    }
}

struct Loop<'a> {
    clock: Clock,
    shared: &'a SharedWeights,
    streamer: Streamer<'a>,
    /// The slot's counters when this process took it over: they go on, they do not start again.
    base: [u64; METERS],
    meters: &'a [AtomicU64; METERS],
    published_ns: u64,
    said_ready: bool,
    said_silent: u64,
    taken: u64,
    /// Until when `waited_ns` is counted, while nothing comes and nothing can be sent.
    waiting_since_ns: Option<u64>,
    waited_ns: u64,
    batch: usize,
}

impl Loop<'_> {
    fn run(
        &mut self,
        job: &StreamJob,
        link: &mut Link,
        stop: &AtomicBool,
        heartbeat: impl Fn(),
    ) -> Result<(), StreamerError> {
        let mut pace = job.rate_bytes_per_s.map(Pace::new);
        let frame_len = link.tx.mtu();
        let mut busy_ns = 0;
        while !stop.load(Relaxed) {
            let now = self.clock.now_ns();
            self.streamer
                .set_local_iterations(self.shared.globals().local_iterations.load(Relaxed));
            let got = self.receive(now, link)?;
            let may = match &mut pace {
                Some(pace) => pace
                    .frames(now, link.tx.stats().bytes, frame_len)
                    .min(self.batch),
                None => self.batch,
            };
            let sent = self
                .streamer
                .poll_transmit(now, may, &mut Port(link.tx.as_mut()));
            // While frames come, more to send follows at once: full batches cost less per frame.
            // A transport whose batch is full does not wait for this.
            if got == 0 {
                link.tx.flush()?;
            }
            if now.saturating_sub(self.published_ns) > PUBLISH_EVERY_NS {
                self.publish(link, now);
                heartbeat();
            }
            let waiting = self.waiting_since_ns.take();
            self.waited_ns += waiting.map_or(0, |since| now - since);
            if got > 0 || sent > 0 {
                busy_ns = now;
                continue;
            }
            // What the first idle turn handed to the kernel was work; the turns behind it only look.
            let since = waiting.map_or_else(|| self.clock.now_ns(), |_| now);
            self.waiting_since_ns = Some(since);
            if pace.is_none() && link.tx.ready_in().is_zero() && now - busy_ns < SPIN_NS {
                // At full speed the answer is microseconds away, a wake-up costs more than that.
                std::thread::yield_now();
            } else {
                // Nothing came and nothing may go: sleep until a frame comes or the budget has grown.
                let pause = pace.as_ref().map_or(Duration::from_micros(500), Pace::wait);
                let pause = pause.max(link.tx.ready_in());
                link.rx
                    .wait(pause.clamp(Duration::from_micros(20), Duration::from_millis(5)))?;
            }
        }
        Ok(())
    }

    fn receive(&mut self, now: u64, link: &mut Link) -> Result<usize, StreamerError> {
        let Link { tx, rx } = link;
        let (streamer, taken) = (&mut self.streamer, &mut self.taken);
        let got = rx.recv(2 * self.batch, &mut |source, bytes| {
            if let Some(sender) = streamer.handle_frame(now, bytes, &mut Port(tx.as_mut())) {
                tx.learn(sender, source);
                *taken += 1;
            }
        })?;
        Ok(got)
    }

    fn publish(&mut self, link: &mut Link, now: u64) {
        self.published_ns = now;
        let globals = self.shared.globals();
        globals
            .remote_iterations
            .fetch_max(self.streamer.remote_iterations(), Relaxed);
        globals
            .ready
            .store(u32::from(self.streamer.ready()), Relaxed);
        let unseen = self.streamer.others().filter(|node| *node < 64);
        let unseen = unseen.filter(|node| !self.streamer.has_joined(*node));
        let mask = unseen.fold(0, |mask, node| mask | 1 << node);
        Meter::UnseenRanges.set(self.meters, mask);
        self.publish_counters(link);
        for report in self.streamer.take_reports() {
            log::log!(level(report.severity()), "{report}");
        }
        self.say_who_is_missing(now);
    }

    fn publish_counters(&mut self, link: &mut Link) {
        let counters = *self.streamer.counters();
        let (sent, received) = (link.tx.stats(), link.rx.stats());
        let ages = self.streamer.ages_us();
        let totals = [
            (Meter::Cycles, counters.cycles),
            (Meter::PositionsSent, counters.positions_sent),
            (Meter::PositionsTaken, counters.positions_taken),
            (Meter::PositionsMissed, counters.positions_missed),
            (Meter::DeltasSent, counters.deltas_sent),
            (Meter::DeltasRepeated, counters.deltas_repeated),
            (Meter::DeltasKept, counters.deltas_kept),
            (Meter::DeltasApplied, counters.deltas_applied),
            (Meter::HealedWeights, counters.healed_weights),
            (Meter::HellosSent, counters.hellos_sent),
            (Meter::RestoresSent, counters.restores_sent),
            (Meter::RestoresTaken, counters.restores_taken),
            (Meter::FramesSent, sent.frames),
            (Meter::BytesSent, sent.bytes),
            (Meter::FramesReceived, received.frames),
            (Meter::BytesReceived, received.bytes),
            (Meter::KernelDrops, received.kernel_drops),
            (Meter::NoSlot, sent.no_slot),
            (Meter::TransmitErrors, sent.errors + sent.dropped),
            (Meter::FaultDropped, received.fault.dropped),
            (Meter::FaultDuplicated, received.fault.duplicated),
            (Meter::FaultReordered, received.fault.reordered),
            (Meter::CpuNs, cpu_ns()),
            (Meter::FramesTaken, self.taken),
            (Meter::FaultCorrupted, received.fault.corrupted),
            (Meter::SealBadTag, received.seal.bad_tag),
            (Meter::SealReplayed, received.seal.replayed),
            (Meter::SealTruncated, received.seal.truncated),
            (Meter::SealTooManyLinks, received.seal.too_many_links),
            (Meter::WaitedNs, self.waited_ns),
            (Meter::RefusedSums, counters.refused_sums),
            (Meter::RefusedClaims, counters.refused_claims),
        ];
        for (meter, total) in totals {
            meter.set(self.meters, self.base[meter as usize] + total);
        }
        for (i, dropped) in counters.dropped.iter().enumerate() {
            self.meters[DROPS_AT + i].store(self.base[DROPS_AT + i] + dropped, Relaxed);
        }
        Meter::AgeP50.set(self.meters, ages.value_at_quantile(0.5));
        Meter::AgeP99.set(self.meters, ages.value_at_quantile(0.99));
        Meter::AgeMax.set(self.meters, ages.max());
    }

    /// Names the nodes that are not heard, once for each change.
    fn say_who_is_missing(&mut self, now: u64) {
        let silent =
            |node: &u16| now.saturating_sub(self.streamer.peer(*node).heard_ns) > SILENT_NS;
        let missing: Vec<u16> = self.streamer.others().filter(silent).collect();
        let mask = missing
            .iter()
            .filter(|node| **node < 64)
            .fold(0, |mask, node| mask | 1 << node);
        Meter::SilentNodes.set(self.meters, mask);
        if !self.said_ready && self.streamer.ready() {
            self.said_ready = true;
            log::info!("every range has been seen: solvers may start");
        }
        if mask != self.said_silent && now > SILENT_NS && now != u64::MAX {
            self.said_silent = mask;
            if missing.is_empty() {
                log::info!("all nodes are heard");
            } else {
                log::warn!(
                    "nothing heard of node(s) {missing:?} for 2 s; streaming goes on without them"
                );
            }
        }
    }
}

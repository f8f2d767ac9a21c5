//! [`Streamer`]: one node's end of the protocol; checks frames and hands them to the part that
//! knows (master, slave, hello).

use hdrhistogram::Histogram;

use super::age::AgeSteps;
use super::claims::Claims;
use super::heal::Keeping;
use super::hello::Standing;
use super::narrow::Narrow;
use super::portion::Portion;
use super::queue::Looks;
use super::report::Reports;
use super::shares::Shares;
use super::sparse::Sparse;
use super::strangers::Life;
use super::window::{Answers, Window};
use super::{Config, Counters, Deltas, Merge, Outbox, Ranges, Report};
use crate::weights::{ChunkState, Interrupted, JournalOp, StreamState, WeightsView, Writes};
use crate::wire::{self, DropReason, Frame, Kind, ParseError};

/// Bits of [`ChunkState::flags`].
pub(super) mod chunk_flags {
    /// The slave has taken a position of this chunk in this epoch.
    pub(in super::super) const JOINED: u8 = 1;
    /// The slave's delta number `seq` is not confirmed yet; it is in `sent`.
    pub(in super::super) const OUTSTANDING: u8 = 2;
    /// The chunk was given back to its master as it stands in `last`; counts until the master's
    /// next position.
    pub(in super::super) const GIVEN: u8 = 4;
    /// Of the own range: finite values to go back to are in `last`.
    pub(in super::super) const KEPT: u8 = 8;
}

/// What is known of another node.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    /// When its last valid frame came, ns; 0: never.
    pub heard_ns: u64,
    /// Iterations of its solvers, as far as believed.
    pub iterations: u64,
    /// True if its solvers run.
    pub ready: bool,
    /// Chunks of its range that we have taken in its present epoch.
    pub joined_chunks: u32,
    /// Epoch of its range in its last position, 0 until one was heard.
    pub epoch: u32,
    /// When its last position was taken, ns; 0: never.
    pub(super) streamed_ns: u64,
    /// What it last said of the ranges (its hello).
    pub(super) standing: Standing,
    /// What it answered (flow window).
    pub(super) answers: Answers,
    /// The iterations that its frames claim.
    pub(super) claims: Claims,
    /// Who it says it is.
    pub(super) life: Life,
}

/// One node's end of the stream. See the module for the order of calls.
pub struct Streamer<'a> {
    pub(super) config: Config,
    pub(super) ranges: Ranges,
    pub(super) weights: WeightsView<'a>,
    pub(super) state: &'a StreamState,
    pub(super) peers: Vec<Peer>,
    pub(super) counters: Counters,
    /// Next chunk of the own range to send.
    pub(super) cursor: u32,
    /// Positions sent; unlike the counter it also orders the flow window.
    pub(super) sent_positions: u64,
    pub(super) window: Window,
    pub(super) looks: Looks,
    pub(super) shares: Shares,
    pub(super) hello_due_ns: u64,
    pub(super) claims_due_ns: u64,
    pub(super) keeping: Keeping,
    /// Room for one chunk on its way to the values that are kept.
    pub(super) kept_chunk: Vec<u8>,
    pub(super) narrow: Narrow,
    pub(super) sparse: Sparse,
    pub(super) restore_cursor: u32,
    pub(super) local_iterations: u64,
    portion: Portion,
    /// When each foreign chunk was taken last, ns; 0: never.
    pub(super) taken_ns: Vec<u64>,
    pub(super) ages_us: Histogram<u64>,
    pub(super) age_steps: AgeSteps,
    /// The ticket of each own chunk's last position, counted from the start of the range.
    pub(super) tickets: Vec<u64>,
    /// Whether this node was ready when it last looked: what its frames say.
    pub(super) was_ready: bool,
    /// Whether a killed predecessor left deltas added in part.
    pub(super) partials: bool,
    reports: Reports,
}

impl<'a> Streamer<'a> {
    /// A streamer over `weights` (at least `chunks * chunk_weights` of them) and its state file.
    ///
    /// Finishes what a killed predecessor left half done before anything else happens.
    ///
    /// # Panics
    /// If sizes do not fit: the caller made the state for this very configuration.
    pub fn new(config: Config, weights: WeightsView<'a>, state: &'a StreamState) -> Self {
        assert!(
            config.chunk_weights.is_multiple_of(16),
            "chunks are whole blocks of 16 weights"
        );
        let needed = config.chunks as usize * config.chunk_weights as usize;
        assert!(
            weights.len() >= needed && state.last().len() >= needed,
            "buffer shorter than its chunks"
        );
        assert!(config.node < config.nodes && config.nodes <= super::MAX_NODES);
        let ranges = Ranges::new(config.chunks, config.nodes, config.masters);
        let mut streamer = Self {
            weights,
            state,
            peers: vec![Peer::default(); config.nodes as usize],
            counters: Counters::default(),
            cursor: ranges.of(config.node).start,
            sent_positions: 0,
            window: Window::new(config.window_frames, ranges.of(config.node).len()),
            looks: Looks::default(),
            shares: Shares::new(config.nodes),
            hello_due_ns: 0,
            claims_due_ns: 0,
            keeping: Keeping::default(),
            kept_chunk: Vec::new(),
            narrow: Narrow::new(&config, ranges.of(config.node).len()),
            sparse: Sparse::new(&config, ranges.of(config.node).len()),
            restore_cursor: 0,
            local_iterations: 0,
            portion: Portion::new(config.nodes),
            taken_ns: vec![0; config.chunks as usize],
            // 1 µs to 1 h, two significant digits.
            ages_us: Histogram::new_with_bounds(1, 3_600_000_000, 2).expect("bounds are constant"),
            age_steps: AgeSteps::new(config.chunks, config.nodes),
            tickets: vec![0; ranges.of(config.node).len()],
            was_ready: false,
            partials: false,
            reports: Reports::default(),
            ranges,
            config,
        };
        streamer.finish_interrupted();
        streamer.partials = state.has_partials();
        streamer.count_joined();
        streamer.was_ready = streamer.ready();
        streamer
    }

    fn count_joined(&mut self) {
        use std::sync::atomic::Ordering::Relaxed;
        for node in 0..self.config.nodes {
            let joined = |chunk: &u32| {
                self.state.chunk(*chunk).flags.load(Relaxed) & chunk_flags::JOINED != 0
            };
            self.peers[node as usize].joined_chunks =
                self.ranges.of(node).filter(joined).count() as u32;
        }
    }

    /// Completes the chunk that a killed streamer was working on, from its journal.
    fn finish_interrupted(&mut self) {
        let journal = self.state.journal();
        let Some(pending) = journal.pending() else {
            return;
        };
        // A damaged file may name anything; what is not there needs no finishing.
        if pending.chunk < self.config.chunks && pending.peer < self.config.nodes {
            let (w, last, sent) = self.chunk_views(pending.chunk);
            let state = self.state.chunk(pending.chunk);
            if let Some(was) = journal.recover(w, last, sent) {
                self.finish(state, &was);
            }
        }
        journal.end();
    }

    /// Stores the numbers of a chunk whose recovered work is `was`, as the killed streamer would
    /// have.
    fn finish(&self, state: &ChunkState, was: &Interrupted) {
        use std::sync::atomic::Ordering::Relaxed;
        match was.kind {
            JournalOp::Confirmed | JournalOp::Rounded => {
                self.note_taken(state, was.version, Some(was.seq), true)
            }
            JournalOp::Unconfirmed => self.note_taken(state, was.version, None, true),
            JournalOp::Keep => self.note_taken(state, was.version, None, false),
            JournalOp::Apply
                if was.progress < self.config.chunk_weights && self.state.remember_partial(was) => {
            }
            JournalOp::Apply => {
                self.state.applied(was.chunk)[usize::from(was.peer)].store(was.seq, Relaxed);
                self.state.forget_partial(was.chunk, was.peer);
            }
        }
    }

    /// Records that a position of `version` was taken.
    pub(super) fn note_taken(
        &self,
        state: &ChunkState,
        version: u32,
        seq: Option<u8>,
        outstanding: bool,
    ) {
        use std::sync::atomic::Ordering::Relaxed;
        if let Some(seq) = seq {
            state.seq.store(seq, Relaxed);
        }
        let flag = if outstanding {
            chunk_flags::OUTSTANDING
        } else {
            0
        };
        state.flags.store(chunk_flags::JOINED | flag, Relaxed);
        state.version.store(version, Relaxed);
    }

    /// The views of one chunk: weights, last, sent.
    pub(super) fn chunk_views(
        &self,
        chunk: u32,
    ) -> (WeightsView<'a>, WeightsView<'a>, WeightsView<'a>) {
        let len = self.config.chunk_weights as usize;
        let at = chunk as usize * len;
        let state = self.state;
        (
            self.weights.slice(at, len),
            state.last().slice(at, len),
            state.sent().slice(at, len),
        )
    }

    /// Takes one received frame. Returns the sender if the frame is a valid one of this session.
    pub fn handle_frame(
        &mut self,
        now_ns: u64,
        bytes: &[u8],
        out: &mut impl Outbox,
    ) -> Option<u16> {
        self.looks.note_frame(now_ns);
        match self.accept(now_ns, bytes, out) {
            Ok(sender) => Some(sender),
            Err(reason) => {
                self.counters.drop(reason);
                None
            }
        }
    }

    fn accept(
        &mut self,
        now_ns: u64,
        bytes: &[u8],
        out: &mut impl Outbox,
    ) -> Result<u16, DropReason> {
        let frame = Frame::parse(bytes).map_err(|error| self.not_parsed(&error, bytes))?;
        let header = &frame.header;
        if header.session != self.config.session {
            return Err(DropReason::Session);
        }
        let sender = header.sender;
        if sender >= self.config.nodes {
            return Err(DropReason::Foreign);
        }
        if sender == self.config.node {
            if header.kind == Kind::Hello {
                self.hear_own_index(&frame);
            }
            return Err(DropReason::Own);
        }
        if header.kind != Kind::Hello
            && (frame.payload.len() != self.payload_len(header)
                || self.peers[sender as usize].life.refused)
        {
            return Err(DropReason::Shape);
        }
        match header.kind {
            Kind::Position => self.handle_position(now_ns, &frame, out)?,
            Kind::Delta => self.handle_delta(now_ns, &frame, out)?,
            Kind::Hello => self.handle_hello(now_ns, &frame)?,
            Kind::Restore => self.handle_restore(&frame)?,
        }
        let peer = &mut self.peers[sender as usize];
        peer.heard_ns = now_ns.max(1);
        peer.claims.hear(header.iterations);
        peer.ready = header.flags & crate::wire::flags::READY != 0;
        Ok(sender)
    }

    /// Why bytes are no frame of ours; one of our session in another version is reported.
    #[cold]
    fn not_parsed(&mut self, error: &ParseError, bytes: &[u8]) -> DropReason {
        if let ParseError::Version(version) = *error
            && let Some((session, node)) = wire::of_any_version(bytes)
            && session == self.config.session
        {
            self.report(Report::OtherVersion { node, version });
        }
        error.into()
    }

    /// Sends a hello when one is due, then up to `max` frames of positions (or of a lost range that
    /// another node asks back). Returns the number of position frames sent.
    pub fn poll_transmit(&mut self, now_ns: u64, max: usize, out: &mut impl Outbox) -> usize {
        if self.config.nodes == 1 {
            return 0;
        }
        self.looks.note_turn(now_ns);
        let ready = self.ready();
        let just_ready = ready && !self.was_ready;
        self.was_ready = ready;
        self.poll_claims(now_ns, just_ready);
        self.poll_hello(now_ns, out);
        let positions = self.positions_wanted(now_ns).min(max);
        let asking = self.asking();
        let wanted = if asking.is_some() { max } else { positions };
        let may = self.shares.own_frames(wanted, out.room());
        let restored = asking.map_or(0, |node| {
            let restores = self.shares.restores(may, positions);
            self.poll_restore(node, restores, out)
        });
        self.poll_positions(now_ns, positions.min(may - restored), out)
    }

    /// Iterations of this node's solvers, to be carried in the next frames.
    pub fn set_local_iterations(&mut self, iterations: u64) {
        self.local_iterations = iterations;
        let others = || self.peers.iter().map(|peer| peer.iterations).sum();
        self.portion.note(iterations, others);
    }

    /// What this node's deltas are multiplied by, above 0, at most 1. Solvers that step by up to
    /// its inverse walk as fast as the cluster.
    pub fn portion(&self) -> f32 {
        match self.config.merge {
            Merge::Sum => 1.0,
            Merge::Mean => self.portion.value(),
        }
    }

    /// True once every foreign chunk has been seen and the own range streams: solvers may start.
    pub fn ready(&self) -> bool {
        self.config.nodes == 1
            || (self.streaming() && self.others().all(|node| self.has_joined(node)))
    }

    /// True if every chunk of `node`'s range has been taken in its present epoch.
    pub fn has_joined(&self, node: u16) -> bool {
        self.peers[node as usize].joined_chunks as usize == self.ranges.of(node).len()
    }

    /// All nodes but this one.
    pub fn others(&self) -> impl Iterator<Item = u16> + use<> {
        let own = self.config.node;
        (0..self.config.nodes).filter(move |node| *node != own)
    }

    /// What is known of `node`.
    pub fn peer(&self, node: u16) -> &Peer {
        &self.peers[node as usize]
    }

    /// The split of the buffer.
    pub fn ranges(&self) -> &Ranges {
        &self.ranges
    }

    /// Totals since the start.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// How old foreign chunks were, µs, when their next position was taken.
    pub fn ages_us(&self) -> &Histogram<u64> {
        &self.ages_us
    }

    /// What has come up since the last call that a person should know (another model on a node,
    /// say): one report for each [`Report::key`], the newest.
    pub fn take_reports(&mut self) -> impl Iterator<Item = Report> + use<> {
        self.reports.take()
    }

    pub(super) fn report(&mut self, report: Report) {
        self.reports.push(report);
    }

    pub(super) fn exactly_once(&self) -> bool {
        self.config.deltas == Deltas::ExactlyOnce
    }

    pub(super) fn writes(&self) -> Writes {
        self.config.writes
    }
}

//! What master, slave and restore of one node share: the job, the buffer and its state, what is
//! known of the others, the counters.
//!
//! [`Streamer`](super::Streamer) owns it and lends it to each part for one call. It sends nothing
//! and decides nothing. Invariant: the numbers of a chunk (version, sequence number, flags) and its
//! weights fit each other once [`Common::new`] has returned, whatever killed the predecessor.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::Relaxed;

use super::claims::Claims;
use super::forks::Forks;
use super::iterations::{Steps, Told};
use super::lease::Lease;
use super::lives::Lives;
use super::portion::Portion;
use super::queue::Looks;
use super::report::Reports;
use super::shares::Shares;
use super::silence::{Awake, Rhythm};
use super::strangers::Life;
use super::trained::Trained;
use super::{Config, Counters, Deltas, Merge, PeerCounters, Ranges, Report};
use crate::weights::{
    ChunkState, Interrupted, JournalOp, StreamState, WeightsView, Writes, kernels,
};
use crate::wire::{Dtype, NodeSeen, Stay, flags};

/// Bits of [`ChunkState::flags`].
pub(super) mod chunk_flags {
    /// The slave has taken a position of this chunk in this epoch.
    pub(in super::super) const JOINED: u8 = 1;
    /// The slave's delta number `seq` is not confirmed yet; it is in `sent`.
    pub(in super::super) const OUTSTANDING: u8 = 2;
    /// Of a chunk that this node streams: finite values to go back to are in `last`.
    pub(in super::super) const KEPT: u8 = 8;
    /// This node streamed the chunk until another began it: what it was then is in `last`.
    pub(in super::super) const FORKED: u8 = 16;
    /// It is known how the present master began the chunk, of which another's position is held.
    pub(in super::super) const SURE: u8 = 32;
    /// What this node did apart has yet to arrive: it counts as it is, not by the portion.
    pub(in super::super) const WHOLE: u8 = 64;
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
    /// Whether it stays, as its last hello said.
    pub stay: Stay,
    /// When it left with ranges that it streamed, as it heard no other, ns; 0: it did not.
    pub(super) left_with_ranges_ns: u64,
    /// Whether its solvers have finished and all that they added is with others, as its last hello
    /// said.
    pub settled: bool,
    /// When its last frame by multicast came, ns; 0: never.
    pub(super) multicast_ns: u64,
    /// When its last position was taken, ns; 0: never.
    pub(super) streamed_ns: u64,
    /// When its last frame with weights came, ns; 0: never. Those are long, and others are short.
    pub(super) long_ns: u64,
    /// The iterations that its frames claim.
    pub(super) claims: Claims,
    /// Who it says it is.
    pub(super) life: Life,
    /// Its lives before this one.
    pub(super) lives: Lives,
    /// Whether it knows this node's present life: only then is a chunk that it streams joined.
    pub(super) admits: bool,
    /// What its hellos said last, of each range.
    pub(super) told: Vec<Option<NodeSeen>>,
    /// What they told of each node's iterations.
    pub(super) told_iterations: Vec<Told>,
    /// In which rhythm it is heard.
    pub(super) rhythm: Rhythm,
}

impl Peer {
    fn of(nodes: u16) -> Self {
        Self {
            told: vec![None; nodes.into()],
            told_iterations: vec![Told::default(); nodes.into()],
            ..Self::default()
        }
    }
}

/// What the parts of a streamer share.
#[cfg_attr(test, derive(Clone))]
pub(super) struct Common<'a> {
    pub(super) config: Config,
    pub(super) ranges: Ranges,
    pub(super) state: &'a StreamState,
    pub(super) peers: Vec<Peer>,
    /// Of each range.
    pub(super) leases: Vec<Lease>,
    pub(super) forks: Forks<'a>,
    pub(super) awake: Awake,
    /// Counts the times that other ranges than before are streamed here.
    pub(super) turns: u32,
    pub(super) counters: Counters,
    /// Of each node.
    pub(super) exchanged: Vec<PeerCounters>,
    pub(super) looks: Looks,
    pub(super) shares: Shares,
    pub(super) trained: Trained,
    /// Something came up that the next hello should say soon.
    pub(super) tell_soon: bool,
    /// Chunks of which epoch and version are known, but not whether what is held is that position
    /// to the last bit: it came from a replica, or was taken in part by a killed predecessor.
    pub(super) inexact: BTreeMap<u32, (u32, u32)>,
    /// What the next masters have asked for, and were given, since this node leaves: parts of asks,
    /// and chunks.
    pub(super) asked: BTreeSet<(u8, u32)>,
    stay: Stay,
    settled: bool,
    weights: WeightsView<'a>,
    local_iterations: u64,
    /// Iterations of other nodes that were made long before this node was told.
    pub(super) leaps: u64,
    pub(super) portion: Portion,
    pub(super) steps: Steps,
    /// Whether this node was ready when it last looked: what its frames say.
    was_ready: bool,
    reports: Reports,
}

impl<'a> Common<'a> {
    /// Finishes what a killed predecessor left half done before anything else happens.
    ///
    /// # Panics
    /// If sizes do not fit: see [`Streamer::new`](super::Streamer::new).
    pub(super) fn new(config: Config, weights: WeightsView<'a>, state: &'a StreamState) -> Self {
        assert!(
            config.chunk_weights.is_multiple_of(16),
            "chunks are whole blocks of 16 weights"
        );
        let needed = config.chunks as usize * config.chunk_weights as usize;
        assert!(
            weights.len() >= needed && state.last().len() >= needed,
            "buffer shorter than its chunks"
        );
        assert!(config.node < config.places() && config.places() <= super::MAX_NODES);
        let mut common = Self {
            weights,
            state,
            ranges: Ranges::new(config.chunks, config.nodes, config.masters, config.places()),
            peers: vec![Peer::of(config.places()); config.places() as usize],
            leases: vec![Lease::default(); config.places() as usize],
            forks: Forks::of(state.forks(), config.chunks),
            awake: Awake::default(),
            turns: 0,
            counters: Counters::default(),
            exchanged: vec![PeerCounters::default(); config.places() as usize],
            looks: Looks::default(),
            shares: Shares::new(config.nodes),
            trained: Trained::default(),
            tell_soon: false,
            inexact: BTreeMap::new(),
            asked: BTreeSet::new(),
            stay: Stay::Stays,
            settled: false,
            local_iterations: 0,
            leaps: 0,
            portion: Portion::new(config.nodes),
            steps: Steps::new(config.nodes),
            was_ready: false,
            reports: Reports::default(),
            config,
        };
        common.finish_interrupted();
        if common.config.precision != Dtype::F32 {
            // Which were off by a rounding is not known any more.
            (0..common.config.chunks).for_each(|chunk| common.note_inexact(chunk));
        }
        common.finish_handovers();
        common.count_held();
        for (peer, node) in common.peers.iter_mut().zip(0..) {
            let before = state.node(node).iterations_before.load(Relaxed);
            peer.claims.set_before(before);
        }
        common.was_ready = common.ready();
        common
    }

    fn count_held(&mut self) {
        for range in 0..self.config.places() {
            let count = |flag: u8| {
                let has = |chunk: &u32| self.state.chunk(*chunk).flags.load(Relaxed) & flag != 0;
                self.ranges.of(range).filter(has).count() as u32
            };
            let counts = (count(chunk_flags::JOINED), count(chunk_flags::FORKED));
            let lease = &mut self.leases[usize::from(range)];
            (lease.joined_chunks, lease.forked_chunks) = counts;
        }
    }

    /// Completes the chunk that a killed streamer was working on, from its journal.
    fn finish_interrupted(&mut self) {
        let shared = self.state;
        let journal = shared.journal();
        let Some(pending) = journal.pending() else {
            return;
        };
        // A damaged file may name anything; what is not there needs no finishing.
        if pending.chunk < self.config.chunks && pending.peer < self.config.places() {
            let (w, last, sent) = self.chunk_views(pending.chunk);
            let state = shared.chunk(pending.chunk);
            if let Some(was) = journal.recover(w, last, sent) {
                if was.kind == JournalOp::PutBack {
                    kernels::put_back(last, sent, was.progress, journal);
                }
                self.finish(state, &was);
                self.note_inexact(pending.chunk);
            }
        }
        // Last: a streamer killed before this line leaves the journal open, and the next streamer
        // does the same once more.
        journal.end();
    }

    /// Notes that what is held of a chunk need not be the position that its numbers say.
    pub(super) fn note_inexact(&mut self, chunk: u32) {
        let state = self.state.chunk(chunk);
        let held = (state.epoch.load(Relaxed), state.version.load(Relaxed));
        self.inexact.insert(chunk, held);
    }

    /// Stores the numbers of a chunk whose recovered work is `was`, as the killed streamer would
    /// have.
    fn finish(&mut self, state: &ChunkState, was: &Interrupted) {
        match was.kind {
            JournalOp::Confirmed | JournalOp::Rounded => {
                note_taken(state, was.version, Some(was.seq), true)
            }
            JournalOp::Unconfirmed => note_taken(state, was.version, None, true),
            JournalOp::Keep => note_taken(state, was.version, None, false),
            JournalOp::PutBack => note_taken(state, was.version, Some(was.seq), false),
            // The rest of the delta died with the streamer that had its frame. The slave sends it
            // again, under the same number, and only what is missing is added then.
            JournalOp::Apply | JournalOp::TakeOut
                if was.progress < self.config.chunk_weights && self.state.remember_partial(was) => {
            }
            JournalOp::TakeOut => self.note_taken_out(was.chunk, was.seq.into(), was.version),
            JournalOp::Apply => {
                self.state.applied(was.chunk)[usize::from(was.peer)].store(was.seq, Relaxed);
                self.state.forget_partial(was.chunk, was.peer);
            }
        }
    }

    /// The views of one chunk: weights, last, sent.
    #[inline]
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

    /// True once each chunk is streamed here or was taken.
    #[inline]
    pub(super) fn ready(&self) -> bool {
        self.config.places() == 1 || (0..self.config.places()).all(|range| self.has_joined(range))
    }

    /// Looks whether this node is ready, for the frames that follow. True if it has just become so.
    #[inline]
    pub(super) fn look_if_ready(&mut self) -> bool {
        let ready = self.ready();
        let just_ready = ready && !self.was_ready;
        self.was_ready = ready;
        just_ready
    }

    /// Whether this node was ready when it last looked.
    #[inline]
    pub(super) fn was_ready(&self) -> bool {
        self.was_ready
    }

    /// The bit for the flags of frames.
    #[inline]
    pub(super) fn ready_flag(&self) -> u8 {
        if self.was_ready { flags::READY } else { 0 }
    }

    /// All node numbers but this one's.
    pub(super) fn others(&self) -> impl Iterator<Item = u16> + use<> {
        let own = self.config.node;
        (0..self.config.places()).filter(move |node| *node != own)
    }

    /// Whether this node stays in the job.
    #[inline]
    pub(super) fn stay(&self) -> Stay {
        self.stay
    }

    /// What this node's hellos say of whether it has settled.
    pub(super) fn settled(&self) -> bool {
        self.settled
    }

    /// What they say from now on.
    pub(super) fn say_settled(&mut self, settled: bool) {
        self.tell_soon |= self.settled != settled;
        self.settled = settled;
    }

    /// What this node says from now on of whether it stays.
    pub(super) fn set_stay(&mut self, stay: Stay) {
        self.stay = stay;
        self.tell_soon = true;
    }

    /// Iterations of this node's solvers.
    #[inline]
    pub(super) fn local_iterations(&self) -> u64 {
        self.local_iterations
    }

    /// Iterations of this node's solvers, to be carried in the next frames.
    pub(super) fn set_local_iterations(&mut self, iterations: u64) {
        self.local_iterations = iterations;
        let others = self.iterations_of_others() - self.leaps;
        self.portion.note(iterations, || others);
    }

    /// What this node's deltas are multiplied by, above 0, at most 1.
    #[inline]
    pub(super) fn portion(&self) -> f32 {
        match self.config.merge {
            Merge::Sum => 1.0,
            Merge::Mean => self.portion.value(),
        }
    }

    /// What the delta of a chunk that is under way, or else the next one, is multiplied by.
    #[inline]
    pub(super) fn scale(&self, chunk: u32) -> f32 {
        let flags = self.state.chunk(chunk).flags.load(Relaxed);
        if flags & chunk_flags::WHOLE == 0 {
            self.portion()
        } else {
            1.0
        }
    }

    pub(super) fn report(&mut self, report: Report) {
        self.reports.push(report);
    }

    pub(super) fn take_reports(&mut self) -> impl Iterator<Item = Report> + use<> {
        self.reports.take()
    }

    #[inline]
    pub(super) fn exactly_once(&self) -> bool {
        self.config.deltas == Deltas::ExactlyOnce
    }

    #[inline]
    pub(super) fn writes(&self) -> Writes {
        self.config.writes
    }
}

/// Records that a position of `version` was taken.
#[inline]
pub(super) fn note_taken(state: &ChunkState, version: u32, seq: Option<u8>, outstanding: bool) {
    if let Some(seq) = seq {
        state.seq.store(seq, Relaxed);
    }
    let flag = if outstanding {
        chunk_flags::OUTSTANDING
    } else {
        0
    };
    let whole = state.flags.load(Relaxed) & chunk_flags::WHOLE;
    state
        .flags
        .store(chunk_flags::JOINED | flag | whole, Relaxed);
    state.version.store(version, Relaxed);
}

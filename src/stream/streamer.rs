//! [`Streamer`]: one node's end of the protocol. It checks frames and hands them to the part that
//! knows: master, slave, hello, restore, replicas.
//!
//! Each part has fields of its own; what they share is lent to them for a call
//! ([`Common`]). Parts do not know each other.

use std::ops::Range;

use super::begun::{self, Begun};
use super::checks;
use super::claims::ClaimWindows;
use super::common::{Common, Peer};
use super::header::{self, Given};
use super::hello::{self, Hellos};
use super::lease::Turn;
use super::leave::Leave;
use super::master::Master;
use super::missing::Missing;
use super::momentum::Rule;
use super::owed::Debts;
use super::pieces::read_piece;
use super::rejoin::Rejoin;
use super::replicas::Replicas;
use super::restore::Restore;
use super::seekers::Seekers;
use super::settle::Settle;
use super::slave::Slave;
use super::strangers;
use super::takeover::Takeover;
use super::unsure::Unsure;
use super::{Config, Counters, Outbox, PeerCounters, Ranges, Report};
use crate::weights::{StreamState, WeightsView};
use crate::wire::{self, DropReason, Dtype, Frame, Kind, ParseError, Stay};

/// One node's end of the stream. See the module for the order of calls.
#[cfg_attr(test, derive(Clone))]
pub struct Streamer<'a> {
    pub(super) common: Common<'a>,
    pub(super) master: Master,
    pub(super) slave: Slave,
    takeover: Takeover,
    pub(super) restore: Restore,
    begun: Begun,
    rejoin: Rejoin,
    debts: Debts,
    replicas: Replicas,
    missing: Missing,
    unsure: Unsure,
    hellos: Hellos,
    pub(super) leave: Leave,
    seekers: Seekers,
    pub(super) settle: Settle,
    claim_windows: ClaimWindows,
}

impl<'a> Streamer<'a> {
    /// A streamer over `weights` (at least `chunks * chunk_weights` of them) and its state file.
    ///
    /// Finishes what a killed predecessor left half done before anything else happens.
    ///
    /// # Panics
    /// If sizes do not fit: the caller made the state for this very configuration.
    pub fn new(config: Config, weights: WeightsView<'a>, state: &'a StreamState) -> Self {
        let common = Common::new(config, weights, state);
        Self {
            master: Master::new(&common),
            slave: Slave::new(&common.config),
            takeover: Takeover::default(),
            restore: Restore::default(),
            begun: Begun::default(),
            rejoin: Rejoin::default(),
            debts: Debts::default(),
            replicas: Replicas::default(),
            missing: Missing::default(),
            unsure: Unsure::default(),
            hellos: Hellos::default(),
            leave: Leave::default(),
            seekers: Seekers::default(),
            settle: Settle::default(),
            claim_windows: ClaimWindows::default(),
            common,
        }
    }

    /// Takes one received frame. Returns the sender if the frame is a valid one of this session;
    /// [`NO_NODE`](wire::NO_NODE): a host that has no number yet.
    pub fn handle_frame(
        &mut self,
        now_ns: u64,
        bytes: &[u8],
        out: &mut impl Outbox,
    ) -> Option<u16> {
        self.common.looks.note_frame(now_ns);
        self.common.note_turn(now_ns);
        match self.accept(now_ns, bytes, out) {
            Ok(sender) => Some(sender),
            Err(reason) => {
                self.common.counters.drop(reason);
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
        if header.session != self.common.config.session {
            return Err(DropReason::Session);
        }
        if header.kind == Kind::Seek {
            let common = &mut self.common;
            self.seekers.handle(now_ns, common, &frame, out)?;
            return Ok(wire::NO_NODE);
        }
        let sender = header.sender;
        if sender >= self.common.config.places() {
            return Err(DropReason::Foreign);
        }
        if sender == self.common.config.node {
            if header.kind == Kind::Hello {
                strangers::hear_own_index(&mut self.common, &frame);
            }
            return Err(DropReason::Own);
        }
        let weights = header.kind.has_weights();
        if weights && header.dtype != Dtype::None {
            self.common.peers[sender as usize].long_ns = now_ns;
        }
        if weights && frame.payload.len() != self.common.config.payload_len(header)
            || header.kind != Kind::Hello && self.common.peers[sender as usize].life.refused
        {
            return Err(DropReason::Shape);
        }
        match header.kind {
            Kind::Position => {
                let came = self
                    .slave
                    .handle_position(now_ns, &mut self.common, &frame, out);
                if !self.common.was_ready() {
                    self.missing.note_position(&self.common, header);
                }
                came?;
            }
            Kind::Delta => self
                .master
                .handle_delta(now_ns, &mut self.common, &frame, out)?,
            Kind::Hello => hello::handle(now_ns, &mut self.common, &frame)?,
            Kind::Restore => self.handle_restore(now_ns, &frame)?,
            Kind::Ask => self.replicas.handle_ask(&mut self.common, &frame, out)?,
            Kind::Offer if header.part == header::BEGUN_BLOCK => {
                begun::handle(&mut self.common, &frame)?
            }
            Kind::Offer => self.restore.handle_offer(&mut self.common, &frame)?,
            Kind::Check => checks::handle(&mut self.common, &frame)?,
            // For the program around: see `reach`. Seeks went another way.
            Kind::Contacts | Kind::Seek => {}
        }
        let silence_ns = self.common.config.silence_ns;
        let peer = &mut self.common.peers[sender as usize];
        let gap_ns = now_ns.saturating_sub(peer.heard_ns);
        peer.rhythm.note(now_ns, gap_ns, silence_ns);
        peer.heard_ns = now_ns.max(1);
        peer.claims.hear(header.iterations);
        peer.ready = header.flags & wire::flags::READY != 0;
        Ok(sender)
    }

    /// Hands a piece that was asked for to the part that asked.
    fn handle_restore(&mut self, now_ns: u64, frame: &Frame<'_>) -> Result<(), DropReason> {
        let header = &frame.header;
        if header.range >= self.common.config.places() {
            return Err(DropReason::Foreign);
        }
        let payload = read_piece(&self.common, frame)?;
        let frame = &Frame {
            payload: &payload,
            ..*frame
        };
        let begun = header.content == Given::Begun.content();
        let told = begun || Given::Begun.is_nothing(header);
        if told && self.common.forks.unsure.contains(&header.chunk) {
            self.unsure.handle(&mut self.common, frame)
        } else if header.content != Given::Replica.content() {
            match self.rejoin.handle(now_ns, &mut self.common, frame) {
                Err(DropReason::Late) => self.debts.handle(&mut self.common, frame),
                taken => taken,
            }
        } else if self.restore.is_going(header.range) {
            self.restore.handle(now_ns, &mut self.common, frame)
        } else {
            self.missing.handle(now_ns, &mut self.common, frame)
        }
    }

    /// Why bytes are no frame of ours; one of our session in another version is reported.
    #[cold]
    fn not_parsed(&mut self, error: &ParseError, bytes: &[u8]) -> DropReason {
        if let ParseError::Version(version) = *error
            && let Some((session, node)) = wire::of_any_version(bytes)
            && session == self.common.config.session
        {
            self.common.report(Report::OtherVersion { node, version });
        }
        error.into()
    }

    /// Sends a hello when one is due, asks for the own range where it is lost, then sends up to
    /// `max` frames of positions and of replicas that others ask for. Returns the number of
    /// position frames sent.
    pub fn poll_transmit(&mut self, now_ns: u64, max: usize, out: &mut impl Outbox) -> usize {
        let common = &mut self.common;
        if common.config.places() == 1 {
            return 0;
        }
        common.looks.note_turn(now_ns);
        common.note_turn(now_ns);
        let just_ready = common.look_if_ready();
        self.claim_windows.poll(now_ns, common, just_ready);
        self.leave.poll(now_ns, common);
        self.settle.poll(now_ns, common, &mut self.slave);
        if self.hellos.poll(now_ns, common, out) {
            self.leave.note_hello(common);
        }
        if common.stay() == Stay::Gone {
            return 0;
        }
        self.takeover.poll(now_ns, common, &mut self.restore);
        self.restore.poll(now_ns, common, out);
        self.begun.poll(now_ns, common, out);
        self.rejoin.poll(now_ns, common, out);
        self.debts.poll(now_ns, common, out);
        self.missing.poll(now_ns, common, out);
        self.unsure.poll(now_ns, common, out);
        self.master.look_at_turns(common);
        self.slave.look_at_turns(now_ns, common);
        let positions = self.master.positions_wanted(now_ns).min(max);
        let restored = if self.replicas.wait() {
            let may = common.shares.restores(max, positions, out.room());
            self.replicas.poll(common, may, out)
        } else {
            common.shares.no_restores();
            0
        };
        let positions = positions.min(max - restored);
        let positions = common.shares.own_frames(positions, out.room());
        self.master.poll(now_ns, common, positions, out)
    }

    /// Iterations of this node's solvers, to be carried in the next frames.
    pub fn set_local_iterations(&mut self, iterations: u64) {
        self.common.set_local_iterations(iterations);
    }

    /// How long this node's solvers have trained, ns, to be carried in hellos.
    pub fn set_local_trained_ns(&mut self, ns: u64) {
        self.common.trained.note_own(ns);
    }

    /// How long the cluster has trained, as far as known here, ns.
    pub fn trained_ns(&self) -> u64 {
        self.common.trained.ns()
    }

    /// Iterations of all other nodes' solvers, as far as heard and believed.
    pub fn remote_iterations(&self) -> u64 {
        self.common.remote_iterations()
    }

    /// What this node's deltas are multiplied by, above 0, at most 1. Solvers that step by up to
    /// its inverse walk as fast as the cluster.
    pub fn portion(&self) -> f32 {
        self.common.portion()
    }

    /// Steps that a solver of this node may take at once: fewer, the older its weights are, as
    /// masters then go on with what came.
    pub fn most_stride(&self) -> f32 {
        let nodes = 1.0 / f64::from(self.common.portion());
        let age = self.age_steps().late(self.common.local_iterations());
        Rule::of(age, nodes).stride as f32
    }

    /// True once each chunk is streamed here or was taken: solvers may start.
    pub fn ready(&self) -> bool {
        self.common.ready()
    }

    /// True if this node streams `range`, or has taken all of it.
    pub fn has_joined(&self, range: u16) -> bool {
        self.common.has_joined(range)
    }

    /// The node that streams `range`, or is to, as far as known here.
    pub fn master(&self, range: u16) -> u16 {
        self.owner(range)
            .unwrap_or_else(|| self.ranges().home(range))
    }

    /// The node that streams `range`, as far as known here; `None`: nothing is known of it.
    pub fn owner(&self, range: u16) -> Option<u16> {
        self.common.owner(range)
    }

    /// The epoch of `range` that this node knows: a counter, and in the low byte the node that
    /// streams it. 0: none.
    pub fn epoch(&self, range: u16) -> u32 {
        self.common.promised(range)
    }

    /// The other nodes of the job: those that it begins with and those that were heard, but for
    /// those that have left.
    pub fn others(&self) -> impl Iterator<Item = u16> {
        self.common.members()
    }

    /// Node numbers that there are, and ranges.
    pub fn places(&self) -> u16 {
        self.common.config.places()
    }

    /// What is known of `node`.
    pub fn peer(&self, node: u16) -> &Peer {
        &self.common.peers[node as usize]
    }

    /// The split of the buffer.
    pub fn ranges(&self) -> &Ranges {
        &self.common.ranges
    }

    /// The weights that this node masters first in a new job; none if it joins later.
    pub fn own_weights(&self) -> Range<usize> {
        self.weights_of(self.ranges().begun_by(self.common.config.node))
    }

    fn weights_of(&self, chunks: Range<u32>) -> Range<usize> {
        let len = self.common.config.chunk_weights as usize;
        chunks.start as usize * len..chunks.end as usize * len
    }

    /// The weights that this node streams at present.
    pub fn streamed_weights(&self) -> Vec<Range<usize>> {
        let turn = Turn::of(&self.common);
        let runs = turn.runs().iter();
        runs.map(|run| self.weights_of(run.clone())).collect()
    }

    /// Counts the times that this node began to stream other ranges than before.
    pub fn turns(&self) -> u32 {
        self.common.turns
    }

    /// Totals since the start.
    pub fn counters(&self) -> &Counters {
        &self.common.counters
    }

    /// What was exchanged with `node` since the start.
    pub fn exchanged(&self, node: u16) -> &PeerCounters {
        &self.common.exchanged[usize::from(node)]
    }

    /// Whether a position or a delta of this job has so many bytes.
    pub fn is_usual_length(&self, bytes: usize) -> bool {
        let config = &self.common.config;
        let frame = |precision: Dtype| {
            wire::HEADER_LEN + precision.payload_len(config.chunk_weights as usize)
        };
        let delta = frame(config.precision);
        let acks = wire::acks_len(config.places() as u8);
        bytes == delta || bytes == delta + acks || bytes == frame(Dtype::Int2)
    }

    /// Time that frames lay in queues of the network of late, ns.
    pub fn queued_ns(&self) -> u64 {
        self.master.window().queued_ns()
    }

    /// Frames that positions may run ahead of answers at present; 0: no limit.
    pub fn window_frames(&self) -> u64 {
        self.master.window().frames()
    }

    /// What has come up since the last call that a person should know (another model on a node,
    /// say): one report for each [`Report::key`], the newest.
    pub fn take_reports(&mut self) -> impl Iterator<Item = Report> + use<> {
        self.common.take_reports()
    }
}

#[cfg(test)]
impl Streamer<'_> {
    /// What its parts keep beyond the state file and [`Common`], for tests that compare states.
    pub(super) fn kept(&self) -> impl std::fmt::Debug {
        let asks = (&self.restore, &self.begun, &self.rejoin, &self.missing);
        let turns = (
            self.master.kept(&self.common),
            self.slave.kept(&self.common),
        );
        let others = (&self.replicas, &self.unsure, &self.hellos, &self.leave);
        (&self.takeover, asks, others, turns)
    }
}

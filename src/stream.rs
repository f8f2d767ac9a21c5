//! Dogwild's stream: masters multicast positions, slaves return deltas.
//!
//! Holds the protocol as a state machine ([`Streamer`]) over the shared weights and the
//! streamer's own state next to them. Touches no sockets, no clock, no threads and no
//! randomness: frames, time and transmit slots are arguments, which is what lets the
//! simulator (`sim`) run the same code. `node` joins it to a transport and a clock.
//!
//! Call order: [`Streamer::new`] once (it finishes what a killed predecessor left half done),
//! then in any order, as often as wanted, [`Streamer::handle_frame`] for each received frame and
//! [`Streamer::poll_transmit`] to send the next positions.
//!
//! [`Streamer`] checks frames and hands them to its parts, which have fields of their own: master
//! (`master`, with `apply`, `window`, `lead`, `momentum`, `sparse`, `heal`), slave (`slave`, with
//! `take` and `early`), and what happens to ranges whose master is lost: `takeover` and `balance`
//! decide who is next, `restore` (with `pull`), `missing`, `begun`, `rejoin`, `owed` and `unsure`
//! ask for what is needed, `replicas` answers. `checks` finds replicas that differ from what their
//! master sent. `leave` has what a node does before it ends, `remains` how far it is. `lease` has
//! what is known of each range; `epochs`, `lives` and `silence` which frames count and who lives;
//! `handover` and `forks` what becomes of weights when the master changes; `reach` who hears whom
//! by multicast. `search` is how a host comes to a node number, `seekers` what nodes answer it.
//! What they share is lent to them (`common`); all headers are made in `header`.
//!
//! Who owns what: every node is at first the master of one contiguous range of chunks ([`Ranges`])
//! and slave of all others. `docs/reference/stream-protocol.md` has the rules and why they lose and
//! double nothing.

mod age;
mod answers;
mod apply;
mod balance;
mod begun;
mod checks;
mod claims;
mod coarse;
mod common;
mod counters;
mod early;
mod epochs;
mod forks;
mod handover;
mod header;
mod heal;
mod hello;
mod iterations;
mod kept;
mod lead;
mod lease;
mod leave;
mod lives;
mod map;
mod master;
mod missing;
mod momentum;
mod narrow;
mod owed;
mod pieces;
mod portion;
mod positions;
mod pull;
mod pull_window;
mod queue;
mod range;
mod rate;
mod reach;
mod rejoin;
mod remains;
mod replicas;
mod report;
mod restore;
mod search;
mod seekers;
mod settle;
mod shares;
mod silence;
mod slave;
mod sparse;
mod strangers;
mod streamer;
mod take;
mod takeover;
mod trained;
mod unsure;
mod window;

#[cfg(test)]
pub(crate) mod tests;

pub use age::AgeSteps;
pub use common::Peer;
pub use counters::{Counters, PeerCounters};
pub use map::{RangeSeen, ranges_seen};
pub use positions::copy_positions;
pub use range::Ranges;
pub use remains::Remains;
pub use report::{Difference, Report, Severity};
pub use search::{NoNumber, Search};
pub use settle::Settled;
pub use streamer::Streamer;

pub use dogwild_net::outbox::{FillLent, Room, To};

use std::ops::Range;

use crate::weights::{StreamStateSpec, Writes};
use crate::wire::Dtype;

/// Transmit slots, lent by the owner of a transport.
pub trait Outbox {
    /// Fills a free slot of `len` bytes in place; false (and `fill` not called): none is free now.
    fn send(&mut self, to: To, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> bool;

    /// As [`send`](Self::send), of a few bytes now and then for which no limit of rate may keep
    /// others waiting.
    fn send_hello(&mut self, to: To, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> bool {
        self.send(to, len, fill)
    }

    /// As [`send`](Self::send), of a frame that ends with `weights` (a range of the buffer). `fill`
    /// is given the `head_len` bytes before them, and room for the weights where they have to be
    /// copied; else the transport reads them in the buffer when it sends. The ticket is for
    /// [`has_read`](Self::has_read). By default they are copied.
    fn send_weights(
        &mut self,
        to: To,
        head_len: usize,
        weights: Range<usize>,
        fill: &mut FillLent<'_>,
    ) -> Option<u64> {
        let went = self.send(to, head_len + 4 * weights.len(), &mut |slot| {
            let (head, tail) = slot.split_at_mut(head_len);
            fill(head, Some(tail));
        });
        went.then_some(0)
    }

    /// What a limit of rate leaves, in frames with a chunk; `None`: there is no such limit, or it
    /// is not known here.
    fn room(&mut self) -> Option<Room> {
        None
    }

    /// Whether the transport has read the weights of the frame with this ticket.
    fn has_read(&mut self, ticket: u64) -> bool {
        let _ = ticket;
        true
    }
}

/// What becomes of a delta whose frame is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deltas {
    /// The next position says that it is missing, and it is sent again.
    ExactlyOnce,
    /// It is lost: the 2014 paper's behaviour, for comparison.
    FireAndForget,
}

/// How deltas become part of a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    /// They are added as they are.
    Sum,
    /// Each counts by its node's portion of the cluster's iterations: a weighted mean. Solvers
    /// make up for it with longer steps ([`Streamer::portion`]).
    Mean,
}

/// What all nodes of a job agree on, and who this node is.
#[derive(Clone, Debug)]
pub struct Config {
    /// Which job.
    pub session: u64,
    /// Fingerprint of the model.
    pub fingerprint: u64,
    /// Hash of the kind, shape and classes of the data; 0: not known. Nodes with others are
    /// refused.
    pub data: u64,
    /// Hash of the weights that this node began with; 0: not known.
    pub first_weights: u64,
    /// Random number of this node's memory, which tells two processes with one index apart; 0:
    /// none.
    pub incarnation: u64,
    /// This node.
    pub node: u16,
    /// Nodes that the job begins with, 1 to [`MAX_NODES`].
    pub nodes: u16,
    /// Node numbers behind those, for nodes that join later: [`MAX_NODES`] with them, at most.
    pub later: u16,
    /// Nodes that begin a new job, this one included: with fewer it waits. `None`: all `nodes`.
    pub min_nodes: Option<u16>,
    /// Nodes that master ranges, 1 to `nodes`: the first so many, and those that join later if it
    /// is all of them. The others are slaves of all weights.
    pub masters: u16,
    /// Weights in a chunk, a multiple of 16.
    pub chunk_weights: u32,
    /// Number of chunks.
    pub chunks: u32,
    /// What becomes of a lost delta.
    pub deltas: Deltas,
    /// How deltas become part of a position.
    pub merge: Merge,
    /// How weights travel; not [`Dtype::None`].
    pub precision: Dtype,
    /// Whether chunks that moved most go first, instead of all in turn.
    pub sparse: bool,
    /// Whether local writers add racily or atomically.
    pub writes: Writes,
    /// Positions that may be on the way without any slave having answered; 0: no limit.
    /// Bounds the queues between nodes, not correctness: silence opens it again.
    pub window_frames: u32,
    /// A node that was not heard for so long is silent, unless it is heard in longer gaps anyway:
    /// others take its ranges, ns.
    pub silence_ns: u64,
}

impl Config {
    /// Node numbers that there are: nodes of the beginning, and those that may join.
    #[inline]
    pub fn places(&self) -> u16 {
        self.nodes.saturating_add(self.later)
    }

    /// Whether `node` is to master ranges.
    pub(crate) fn is_master(&self, node: u16) -> bool {
        node < self.masters || (self.masters == self.nodes && node < self.places())
    }

    /// Node `node` of `nodes` that share `weights` weights, in frames of up to `frame_len` bytes:
    /// as `dogwild train` has it by default, in session 1. `None`: 16 weights do not fit into a
    /// frame.
    ///
    /// With another `precision` set `chunk_weights` and `chunks` too ([`chunk_weights_for`]).
    pub fn new(node: u16, nodes: u16, weights: usize, frame_len: usize) -> Option<Self> {
        let chunk_weights = chunk_weights_for(frame_len, nodes, Dtype::F32)?;
        Some(Self {
            session: 1,
            fingerprint: 0,
            data: 0,
            first_weights: 0,
            incarnation: 0,
            node,
            nodes,
            later: 0,
            min_nodes: None,
            masters: nodes,
            chunk_weights,
            chunks: weights.div_ceil(chunk_weights as usize) as u32,
            deltas: Deltas::ExactlyOnce,
            merge: Merge::Mean,
            precision: Dtype::F32,
            sparse: false,
            writes: Writes::Racy,
            window_frames: (WINDOW_BYTES / frame_len) as u32,
            silence_ns: SILENCE_NS,
        })
    }

    /// What the state file of this node's streamer is for, next to a buffer of `padded` weights
    /// ([`padded_len`](crate::weights::padded_len)).
    pub fn state_spec(&self, padded: usize) -> StreamStateSpec {
        StreamStateSpec {
            session: self.session,
            fingerprint: self.fingerprint,
            identity: self.incarnation,
            node: self.node,
            nodes: self.nodes,
            places: self.places(),
            masters: self.masters,
            chunk_weights: self.chunk_weights,
            chunks: self.chunks,
            padded,
        }
    }
}

/// The shortest time after which a node is silent, by default, ns.
pub const SILENCE_NS: u64 = 500_000_000;

/// Bytes of positions on the way without an answer, by default.
const WINDOW_BYTES: usize = 2_000_000;

/// Most nodes of one session: acks are counted in one byte.
pub const MAX_NODES: u16 = 255;

/// Weights of a chunk that fits into a frame of `mtu` bytes, for `nodes` nodes.
///
/// A multiple of 16 weights (one cache line). `None` if not even that many fit.
pub fn chunk_weights_for(mtu: usize, nodes: u16, precision: Dtype) -> Option<u32> {
    let acks = crate::wire::acks_len(nodes.min(MAX_NODES) as u8);
    let room = mtu.checked_sub(crate::wire::HEADER_LEN + acks)?;
    // Buffers are padded for a chunk as large as f32 can be.
    let weights = precision.weights_in(room).min(crate::wire::MAX_PAYLOAD / 4);
    (weights > 0).then_some(weights as u32)
}

//! Chunks that a slave lacks and that will not come by themselves soon: it asks for them.
//!
//! - *Their master is away:* they come from the replica of another node. So a node that comes late,
//!   or lost its memory, is ready although a master is dead. A replica is joined like a position,
//!   but nothing is sent to its master before that knows this life.
//! - *Their master's turn has gone by,* and their position did not come: it was lost. They come
//!   from the master, so that a node that joins does not wait for the next turn. [`Turn`] tells.
//!
//! [`replicas`](super::replicas) answers. Invariant: what comes from the master is of the epoch
//! that is promised, and that master knows this life.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

use super::common::{Common, note_taken};
use super::epochs::{is_later, owner};
use super::pieces::{all_pieces, pieces_of, send_list};
use super::take::note_acks;
use super::{Outbox, header};
use crate::weights::kernels;
use crate::wire::{self, DropReason, Frame, Header};

/// What did not come is asked for again after this, ns; of a master after twice the longest time
/// that a chunk of it took to come.
const AGAIN_NS: u64 = 100_000_000;

/// Chunks that one node is asked for at a time; more once half of them are there.
const CHUNKS: usize = wire::ASK_MAX;
/// Time between two looks at what was lost, ns; of many chunks so much for each: all are looked at.
const LOOK_NS: u64 = 2_000_000;
const LOOK_NS_PER_CHUNK: u64 = 40;
/// Positions overtake each other by less than this, chunks; in small jobs by less than a part of
/// all chunks.
const OVERTAKEN: u32 = 16;
const OVERTAKEN_PART: u32 = 64;

/// A chunk that was asked for.
#[derive(Clone, Copy, Debug)]
struct Asked {
    chunk: u32,
    node: u16,
    asked_ns: u64,
    /// The how many-th ask it was in.
    order: u32,
    /// Its master is away.
    away: bool,
    version: u32,
    /// Pieces that came, one bit each.
    pieces: u8,
}

/// What was asked for, and of whom.
#[derive(Clone, Debug, Default)]
pub(super) struct Missing {
    asked: Vec<Asked>,
    /// When a node was asked for what a master that is away streamed, ns.
    away_ns: u64,
    asks: u32,
    /// Since when this node lacks chunks, ns; 0: it does not.
    began_ns: u64,
    /// Of each node, once a position came.
    turns: Vec<Turn>,
    due_ns: u64,
}

/// How far a master's turn has come since this node listens to it.
#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    /// The first chunk of it that came, and the last one. `None`: none has.
    first: Option<u32>,
    at: u32,
    /// It has begun anew.
    anew: bool,
    /// It has come to where this node began to listen.
    whole: bool,
    /// Of what was asked for: the longest time that a chunk took to come, ns (0: none has), and the
    /// latest ask of which one did.
    slowest_ns: u64,
    came: u32,
}

impl Turn {
    fn note(&mut self, chunk: u32, overtaken: u32) {
        let Some(first) = self.first else {
            (self.first, self.at) = (Some(chunk), chunk);
            return;
        };
        // Not what was only overtaken by the first one.
        self.anew |= chunk <= first && self.at > first + overtaken;
        self.whole |= self.anew && chunk >= first;
        self.at = chunk;
    }

    /// Whether what was asked for is lost: it took too long, or what was asked for later came.
    fn is_lost(&self, now_ns: u64, one: &Asked) -> bool {
        let patience_ns = match self.slowest_ns {
            0 => AGAIN_NS / 4,
            slowest_ns => (2 * slowest_ns).clamp(2 * LOOK_NS, AGAIN_NS),
        };
        let passed_ns = now_ns.saturating_sub(one.asked_ns);
        passed_ns >= patience_ns || one.order < self.came
    }

    fn note_given(&mut self, now_ns: u64, one: &Asked) {
        let took_ns = now_ns.saturating_sub(one.asked_ns);
        self.slowest_ns = self.slowest_ns.max(took_ns.max(1));
        self.came = self.came.max(one.order);
    }

    /// Whether the position of a chunk should have come.
    fn has_passed(&self, chunk: u32, overtaken: u32) -> bool {
        let Some(first) = self.first else {
            return false;
        };
        let before = chunk + overtaken < self.at;
        let heard = match self.anew {
            false => chunk >= first && before,
            true => chunk >= first || before,
        };
        self.whole || heard
    }
}

impl Missing {
    /// Notes that a position of `chunk` came from `node`, taken or not.
    #[cold]
    pub(super) fn note_position(&mut self, common: &Common<'_>, header: &Header) {
        let (node, range) = (usize::from(header.sender), header.range);
        if range >= common.config.places() || !common.ranges.has(range, header.chunk) {
            return;
        }
        self.turns
            .resize(common.config.places().into(), Turn::default());
        if common.peers[node].admits && header.epoch == common.promised(range) {
            self.turns[node].note(header.chunk, overtaken(common));
        }
    }

    /// Asks for the next chunks that this node lacks, if it is not ready.
    #[inline]
    pub(super) fn poll(&mut self, now_ns: u64, common: &Common<'_>, out: &mut impl Outbox) {
        if !common.ready() {
            self.poll_asking(now_ns, common, out);
        } else if self.began_ns != 0 {
            *self = Self::default();
        }
    }

    #[cold]
    fn poll_asking(&mut self, now_ns: u64, common: &Common<'_>, out: &mut impl Outbox) {
        if self.began_ns == 0 {
            self.began_ns = now_ns.max(1);
        }
        let turns = std::mem::take(&mut self.turns);
        self.asked.retain(|one| {
            let turn = turns.get(usize::from(one.node));
            let lost = turn.is_none_or(|turn| turn.is_lost(now_ns, one));
            one.away || !lost && !common.holds(one.chunk)
        });
        self.turns = turns;
        let waits = self.asked.iter().any(|one| one.away);
        if (!waits || now_ns.saturating_sub(self.away_ns) >= AGAIN_NS)
            && let Some((range, holder)) = self.lacking(now_ns, common)
        {
            self.asked.retain(|one| !one.away);
            self.away_ns = now_ns;
            let chunks = self.lacks(common, range, |_| true);
            self.ask(now_ns, common, (range, holder, true), &chunks, out);
        }
        if self.turns.is_empty() || now_ns < self.due_ns {
            return;
        }
        let look_ns = u64::from(common.config.chunks) * LOOK_NS_PER_CHUNK;
        self.due_ns = now_ns + look_ns.max(LOOK_NS);
        for range in 0..common.config.places() {
            if let Some(master) = self.serves(now_ns, common, range) {
                let turn = self.turns[usize::from(master)];
                let chunks = self.lacks(common, range, |chunk| {
                    turn.has_passed(chunk, overtaken(common))
                });
                self.ask(now_ns, common, (range, master, false), &chunks, out);
            }
        }
    }

    /// The master of a range that can be asked for what was lost of it.
    fn serves(&self, now_ns: u64, common: &Common<'_>, range: u16) -> Option<u16> {
        let master = common.owner(range).filter(|_| !common.has_joined(range))?;
        let turn = self.turns.get(usize::from(master))?;
        let asked = self.asked.iter().filter(|one| one.node == master).count();
        let gives = master_gives(common) && common.peers[usize::from(master)].admits;
        let serves = gives && turn.first.is_some() && asked <= CHUNKS / 2;
        (serves && common.is_alive(now_ns, master)).then_some(master)
    }

    /// The first chunks of a range that this node lacks and has not asked for.
    fn lacks(&self, common: &Common<'_>, range: u16, of: impl Fn(u32) -> bool) -> Vec<u32> {
        let asked: BTreeSet<u32> = self.asked.iter().map(|one| one.chunk).collect();
        let lacks = |chunk: &u32| of(*chunk) && !common.holds(*chunk) && !asked.contains(chunk);
        let chunks = common.ranges.of(range).filter(lacks);
        chunks.take(CHUNKS / 2).collect()
    }

    fn ask(
        &mut self,
        now_ns: u64,
        common: &Common<'_>,
        (range, node, away): (u16, u16, bool),
        chunks: &[u32],
        out: &mut impl Outbox,
    ) {
        let epoch = common.promised(range);
        let header = header::ask(common, range, epoch, chunks, header::REPLICA);
        if !chunks.is_empty() && send_list(node, &header, chunks, out) {
            self.asks += 1;
            let order = self.asks;
            let asked = |chunk: &u32| Asked {
                chunk: *chunk,
                node,
                asked_ns: now_ns,
                order,
                away,
                version: 0,
                pieces: 0,
            };
            self.asked.extend(chunks.iter().map(asked));
        }
    }

    /// A range of which chunks are missing, whose master is away, and a living node that holds some
    /// of it.
    fn lacking(&self, now_ns: u64, common: &Common<'_>) -> Option<(u16, u16)> {
        let holds = |node: u16, range: u16| {
            let told = common.told(node, range);
            told.is_some_and(|told| told.held > 0)
        };
        // Of a range of which nothing is known here its home is the master.
        let master = |range: u16| {
            common
                .owner(range)
                .unwrap_or_else(|| common.ranges.home(range))
        };
        // One that was not heard yet may be in a moment.
        let early = now_ns.saturating_sub(self.began_ns) < common.config.silence_ns;
        let away = |range: &u16| {
            let master = master(*range);
            let may_come = early && common.peers[usize::from(master)].heard_ns == 0;
            master != common.config.node
                && !may_come
                && !common.has_joined(*range)
                && !common.is_alive(now_ns, master)
        };
        let mut ranges = (0..common.config.places()).filter(away);
        ranges.find_map(|range| {
            let mut living = common.living(now_ns);
            let holder = living.find(|node| holds(*node, range))?;
            Some((range, holder))
        })
    }

    /// Takes a piece of a replica.
    pub(super) fn handle(
        &mut self,
        now_ns: u64,
        common: &mut Common<'_>,
        frame: &Frame<'_>,
    ) -> Result<(), DropReason> {
        let header = &frame.header;
        let at = self.asked.iter().position(|one| one.chunk == header.chunk);
        // It may come late: the chunk came from its master meanwhile, or is streamed here by now.
        let lacks = !common.holds(header.chunk) && !common.streams(header.range);
        let at = at.filter(|at| header.sender == self.asked[*at].node && lacks);
        let at = at.ok_or(DropReason::Late)?;
        let asked = &mut self.asked[at];
        if !may_join(common, header, asked.away) {
            return Err(DropReason::Epoch);
        }
        if asked.version != header.chunk_version {
            // Pieces of one chunk have to be of one position.
            (asked.version, asked.pieces) = (header.chunk_version, 0);
        }
        let (w, last, sent) = common.chunk_views(header.chunk);
        let piece = common.config.restored(header);
        let [w, last, sent] = [w, last, sent].map(|view| view.slice(piece.start, piece.len()));
        kernels::adopt(w, last, sent, frame.payload);
        asked.pieces |= pieces_of(&common.config, header);
        common.counters.restores_taken += 1;
        if asked.pieces == all_pieces(&common.config) {
            let one = self.asked.swap_remove(at);
            if let Some(turn) = self.turns.get_mut(usize::from(one.node)) {
                turn.note_given(now_ns, &one);
            }
            join_replica(common, frame);
        }
        Ok(())
    }
}

/// By how many chunks positions may overtake each other.
fn overtaken(common: &Common<'_>) -> u32 {
    OVERTAKEN.min(common.config.chunks / OVERTAKEN_PART)
}

/// Whether what came of a chunk may be joined. Deltas of a former life may be in what its master
/// says before it knows this one, and in an earlier epoch. `away`: another node was asked for what
/// it holds; it may stream the chunk by now, in an epoch that is not known here yet.
fn may_join(common: &Common<'_>, header: &Header, away: bool) -> bool {
    let promised = common.promised(header.range);
    let by_master = owner(header.epoch) == header.sender;
    let admits = common.peers[usize::from(header.sender)].admits;
    let present = header.epoch == promised && admits;
    present || away && (!by_master || is_later(promised, header.epoch))
}

/// Whether masters give what they stream: a chunk is one piece, so that the acknowledgements fit
/// all of it.
pub(super) fn master_gives(common: &Common<'_>) -> bool {
    common.config.precision.f32_pieces() == 1
}

/// The replica of a chunk is whole, and in the buffer.
pub(super) fn join_replica(common: &mut Common<'_>, frame: &Frame<'_>) {
    let header = &frame.header;
    common.promise(header.range, header.epoch);
    note_acks(common, frame);
    let state = common.state.chunk(header.chunk);
    state.epoch.store(header.epoch, Relaxed);
    let ack = frame.acks[usize::from(common.config.node)];
    note_taken(state, header.chunk_version, Some(ack), false);
    common.note_inexact(header.chunk);
    let lease = &mut common.leases[usize::from(header.range)];
    lease.joined_chunks += 1;
    lease.by_replica = true;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The turn of a master of the chunks 100 to 199, of which this node hears the first at 150.
    #[test]
    fn a_turn_tells_what_has_gone_by() {
        let passed = |turn: &Turn| -> Vec<u32> {
            let all = 100..200;
            all.filter(|chunk| turn.has_passed(*chunk, OVERTAKEN))
                .collect()
        };
        let mut turn = Turn::default();
        assert!(passed(&turn).is_empty());
        // The first one was overtaken by its neighbour: that begins no turn anew.
        for chunk in [150, 149, 151, 180] {
            turn.note(chunk, OVERTAKEN);
        }
        let before = 180 - OVERTAKEN;
        assert_eq!(passed(&turn), (150..before).collect::<Vec<_>>());
        turn.note(120, OVERTAKEN);
        let again = (100..120 - OVERTAKEN).chain(150..200);
        assert_eq!(passed(&turn), again.collect::<Vec<_>>());
        turn.note(151, OVERTAKEN);
        assert_eq!(passed(&turn).len(), 100);
    }
}

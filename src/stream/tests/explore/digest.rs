//! What tells two states apart.
//!
//! Two states have one digest if no step can tell them apart, so only one of them is gone on from.
//! Left out or made alike is what the protocol's rules do not depend on:
//!
//! - *Times* count from now, and in the past up to [`PAST_NS`]: rules compare a time with now or
//!   with another time, and none of them asks for more than that, but for nodes that are silent for
//!   30 s, which no run here has. When another node was heard counts up to a pause, and by the
//!   rounds after which it would be silent.
//! - *Versions* of a chunk count from that of its master, *numbers* of a slave's deltas from its
//!   last one, *weights* of a node from what it added. Rules compare two versions by their
//!   difference, and numbers by equality and plus one; weights they add and subtract. So a state
//!   and its shift go on alike. (What depends on how far a number goes round is the limit of 128
//!   versions, of which `stream::tests` has the tests.) Where parts of a streamer hold such numbers
//!   of their own, in the middle of a restore or a fork, all are taken as they are.
//! - *Counters and measurements*: reports, ages, claims of iterations (all are 0), the window and
//!   the shares of a rate (there is none), how long a frame was held.
//! - Of a chunk that a node streams: `last`, `sent` and what belongs to them, which are read again
//!   only after they were written. Of a chunk without a delta under way: `sent`.
//! - How a node began a chunk, and the base, once no other may ask for it.
//! - In which window a long gap of another node was noted (`silence`): it is forgotten after 4 to
//!   8 s.

use std::fmt::Write;

use xxhash_rust::xxh3::xxh3_64;

use super::memory::{Chunk, Memory};
use super::state::{BEGIN_NS, Flight, Node, ROUND_NS, State};
use crate::stream::Streamer;
use crate::stream::common::chunk_flags::{FORKED, JOINED, OUTSTANDING};
use crate::stream::epochs::owner;
use crate::stream::header::Given;
use crate::wire::{Frame, HEADER_LEN, Kind};

/// Longest time that is told apart: beyond it are only waits for nodes that are away for good.
const PAST_NS: u64 = 3_100_000_000;
/// A longer gap is a pause, and no rhythm.
const GAP_NS: u64 = 1_700_000_000;
/// Where in a header they are.
const KIND: usize = 3;
const SEQ: usize = 7;
const VERSION: usize = 28;
const HELD: usize = 47;
/// Numbers above it are times.
const TIMES: u64 = BEGIN_NS / 2;

/// What numbers of a chunk count from.
struct Base {
    version: u32,
    seq: Vec<u8>,
    added: Vec<f32>,
    /// They are taken as they are: nothing may be counted from another one.
    absolute: bool,
}

impl Base {
    fn of(state: &State, chunk: usize, range: u16) -> Self {
        let master = state.nodes.iter().find(|one| one.streams(range).is_some());
        let master = master.unwrap_or(&state.nodes[0]);
        let seq = state.nodes.iter().map(|one| one.memory.chunks[chunk].seq);
        let added = state.nodes.iter().map(|one| f32::from(one.added[chunk]));
        Self {
            version: master.memory.chunks[chunk].version,
            seq: seq.collect(),
            added: added.collect(),
            absolute: false,
        }
    }

    fn version(&self, version: u32) -> u32 {
        version.wrapping_sub(self.version)
    }

    fn acks(&self, acks: &[u8], told: &mut Told) {
        let of = |(ack, seq): (&u8, &u8)| ack.wrapping_sub(*seq);
        told.bytes.extend(acks.iter().zip(&self.seq).map(of));
    }

    /// A position, or weights: each node adds to its own, and to no others.
    fn position(&self, values: impl Iterator<Item = f32>, told: &mut Told) {
        for (value, added) in values.zip(&self.added) {
            told.number((value - added).to_bits());
        }
    }
}

/// What is told of a state: words, and numbers as bytes.
#[derive(Default)]
struct Told {
    bytes: Vec<u8>,
    now_ns: u64,
}

impl Told {
    fn number(&mut self, number: u32) {
        self.bytes.extend_from_slice(&number.to_le_bytes());
    }

    fn words(&mut self, words: std::fmt::Arguments<'_>) {
        self.write_fmt(words).expect("memory");
    }

    fn position(&mut self, position: Option<(u32, u32)>) {
        let (epoch, version) = position.unwrap_or_default();
        self.number(epoch);
        self.number(version);
    }
}

impl Write for Told {
    /// A number comes as a whole. A time is told as what it is before or after now.
    fn write_str(&mut self, said: &str) -> std::fmt::Result {
        let time = Some(said).filter(|said| said.len() >= 18);
        match time.and_then(|said| said.parse::<u64>().ok()) {
            Some(time) if time > TIMES => {
                let before = self.now_ns.saturating_sub(time).min(PAST_NS);
                let later = time.saturating_sub(self.now_ns);
                self.bytes.push(b't');
                self.bytes.extend_from_slice(&before.to_le_bytes());
                self.bytes.extend_from_slice(&later.to_le_bytes());
            }
            _ => self.bytes.extend_from_slice(said.as_bytes()),
        }
        Ok(())
    }
}

/// What a node's process keeps, told for itself: it changes only with its steps and with time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    digest: u64,
    /// How much it is.
    pub(super) letters: usize,
    /// Whether there are numbers in it that others count from another one.
    absolute: bool,
}

/// Sets the digest of a state.
pub(super) fn set_digest(state: &mut State) {
    for node in &mut state.nodes {
        if node.kept.is_none() {
            node.kept = Some(tell_kept(node, state.now_ns));
        }
    }
    state.digest = digest(state);
}

fn digest(state: &State) -> u64 {
    let mut told = Told {
        bytes: Vec::with_capacity(2 << 10),
        now_ns: state.now_ns,
    };
    let mut bases = bases(state);
    let spent = state.spent;
    let of = [
        spent.frames,
        spent.restarts,
        spent.aways,
        spent.losses,
        spent.members,
        spent.ticks,
    ];
    told.bytes.extend(of);
    let marks = [state.excused, state.rests, state.broken.is_some()];
    told.bytes.extend(marks.map(u8::from));
    told.bytes.extend([state.turn as u8, state.away_rounds]);
    for node in &state.nodes {
        let kept = node.kept.expect("it is set");
        told.bytes.extend(kept.digest.to_le_bytes());
        told.bytes
            .extend([node.how as u8, node.life, node.leaves.into()]);
        node.past.iter().for_each(|past| told.number(*past));
        if kept.absolute {
            bases.iter_mut().for_each(|base| base.absolute = true);
        }
    }
    for base in bases.iter_mut().filter(|base| base.absolute) {
        told.number(base.version);
        told.bytes.extend(&base.seq);
        base.added
            .iter()
            .for_each(|added| told.number(added.to_bits()));
    }
    for node in &state.nodes {
        tell_memory(state, node, &bases, &mut told);
        tell_forks(state, node, &bases, &mut told);
        tell_frames(&node.inbox, &bases, &mut told);
    }
    tell_frames(&state.wire, &bases, &mut told);
    tell_frames(&state.aside, &bases, &mut told);
    xxh3_64(&told.bytes)
}

fn bases(state: &State) -> Vec<Base> {
    let Some(streamer) = state.nodes.iter().find_map(|one| one.streamer.as_ref()) else {
        return Vec::new();
    };
    let ranges = streamer.ranges();
    let chunks = 0..state.nodes[0].memory.chunks.len();
    chunks
        .map(|chunk| Base::of(state, chunk, ranges.range_of(chunk as u32)))
        .collect()
}

fn tell_kept(node: &Node, now_ns: u64) -> Kept {
    let mut told = Told {
        bytes: Vec::with_capacity(2 << 10),
        now_ns,
    };
    if let Some(streamer) = &node.streamer {
        let common = &streamer.common;
        told.words(format_args!("{:?}", streamer.kept()));
        let says = (
            common.tell_soon,
            common.stay(),
            common.settled(),
            common.ready_flag(),
        );
        told.words(format_args!("{:?}{says:?}", common.leases));
    }
    let version = b"version: ";
    let absolute = told
        .bytes
        .windows(version.len())
        .any(|some| some == version);
    if let Some(streamer) = &node.streamer {
        tell_peers(streamer, &mut told);
    }
    Kept {
        digest: xxh3_64(&told.bytes),
        letters: told.bytes.len(),
        absolute,
    }
}

fn tell_peers(streamer: &Streamer<'_>, told: &mut Told) {
    let (common, now_ns) = (&streamer.common, told.now_ns);
    for (at, peer) in (0..).zip(&common.peers) {
        let silent_in = |rounds: &u64| !common.is_alive(now_ns + rounds * ROUND_NS, at);
        let silent = (0..14).find(silent_in);
        let heard_ns = match peer.heard_ns {
            0 => 0,
            heard_ns => heard_ns.max(now_ns.saturating_sub(GAP_NS)),
        };
        let rhythm = format!("{:?}", peer.rhythm);
        let rhythm = rhythm.split(", began_ns").next();
        let of = (
            peer.ready,
            peer.stay,
            peer.settled,
            peer.admits,
            &peer.told,
            &peer.lives,
        );
        told.words(format_args!("{silent:?}{heard_ns}{rhythm:?}{of:?}"));
    }
}

fn tell_memory(state: &State, node: &Node, bases: &[Base], told: &mut Told) {
    for of in &node.memory.nodes {
        told.number(of.life as u32);
        told.number(of.promised);
        told.number(of.streamed);
    }
    if !node.memory.forks.is_empty() {
        // With the very versions: states that differ in those alone count as two.
        told.words(format_args!("{:?}", node.memory.forks));
    }
    let some = state.nodes.iter().find_map(|one| one.streamer.as_ref());
    for (at, (chunk, base)) in (0..).zip(node.memory.chunks.iter().zip(bases)) {
        let range = some.map_or(0, |one| one.ranges().range_of(at));
        let streams = node.memory.streamed(range) != 0;
        let Chunk {
            version,
            epoch,
            flags,
            ..
        } = *chunk;
        // Of a chunk that was never held and is not streamed the version is 0 and stays so.
        let never = epoch == 0 && !streams;
        told.number(if never {
            version
        } else {
            base.version(version)
        });
        told.number(epoch);
        told.number(chunk.given.into());
        base.acks(&chunk.applied, told);
        base.position(values(&chunk.w), told);
        if streams {
            continue;
        }
        told.bytes.push(flags);
        if flags & (JOINED | FORKED) != 0 {
            base.position(values(&chunk.last), told);
        }
        if flags & OUTSTANDING != 0 {
            let sent = &chunk.sent[..base.added.len()];
            sent.iter().for_each(|sent| told.number(*sent));
        }
    }
}

fn values(words: &[u32]) -> impl Iterator<Item = f32> {
    words.iter().map(|word| f32::from_bits(*word))
}

fn tell_forks(state: &State, node: &Node, bases: &[Base], told: &mut Told) {
    let Some(streamer) = &node.streamer else {
        for (chunk, base) in node.memory.chunks.iter().zip(bases) {
            let (epoch, version) = chunk.begun;
            told.position((epoch != 0).then(|| (epoch, base.version(version))));
        }
        return;
    };
    let forks = &streamer.common.forks;
    let sets = (&forks.unsure, &forks.apart, &forks.tellers, &forks.parted);
    told.words(format_args!("{sets:?}"));
    for (at, base) in (0..).zip(bases) {
        let asked = may_ask_how_it_began(state, node, streamer.node(), at);
        let begun = streamer.common.begun(at).filter(|_| asked);
        told.position(begun.map(|(epoch, version)| (epoch, base.version(version))));
        let last = forks.base(at).filter(|_| asked);
        for kept in last.into_iter().chain(forks.former(at)) {
            told.position(Some((kept.epoch, base.version(kept.version))));
            base.acks(&kept.acks, told);
            base.position(kept.weights.iter().copied(), told);
        }
        let own = usize::from(streamer.node());
        for master in 0..streamer.places() {
            if let Some(kept) = forks.contested(at, master, (Given::Contested(master as u8), 0)) {
                let seq = kept.seq.wrapping_sub(base.seq[own]);
                let next = owner(kept.next);
                let values = &kept.weights[..4];
                told.words(format_args!("{master} {next} {seq} {values:?}"));
            }
        }
    }
}

/// Whether any node may ask `own` how it began a chunk: one that streamed it, or holds a position
/// of another master. An ask may be on the way.
fn may_ask_how_it_began(state: &State, node: &Node, own: u16, chunk: u32) -> bool {
    let range = node
        .streamer
        .as_ref()
        .map_or(0, |one| one.ranges().range_of(chunk));
    let others = (0..).zip(&state.nodes).filter(|(at, _)| *at != own);
    let mut others = others.map(|(_, other)| &*other.memory);
    let apart = |memory: &Memory| {
        let held = &memory.chunks[chunk as usize];
        let of_another = held.flags & JOINED != 0 && owner(held.epoch) != own;
        memory.streamed(range) != 0 || held.flags & FORKED != 0 || of_another
    };
    let inboxes = state.nodes.iter().flat_map(|one| &one.inbox);
    let mut frames = state.wire.iter().chain(&state.aside).chain(inboxes);
    let is_ask = |flight: &Flight| flight.bytes[KIND] == Kind::Ask as u8;
    others.any(apart) || frames.any(is_ask)
}

fn tell_frames(flights: &[Flight], bases: &[Base], told: &mut Told) {
    for flight in flights {
        told.bytes.extend([b'>', flight.to as u8, flight.rounds]);
        tell_frame(flight, bases, told);
    }
}

/// The header as it is on the way, but for what counts from other numbers, and then the payload.
fn tell_frame(flight: &Flight, bases: &[Base], told: &mut Told) {
    let frame = Frame::parse(&flight.bytes).expect("a frame that a streamer made");
    let header = frame.header;
    let at = told.bytes.len();
    told.bytes.extend_from_slice(&flight.bytes[..HEADER_LEN]);
    told.bytes[at + HELD] = 0;
    let Some(base) = bases
        .get(header.chunk as usize)
        .filter(|_| header.kind.has_weights())
    else {
        if header.kind == Kind::Offer {
            tell_offer(&frame, bases, told);
        } else {
            told.bytes.extend_from_slice(frame.payload);
        }
        return;
    };
    let version = base.version(header.chunk_version).to_le_bytes();
    told.bytes[at + VERSION..at + VERSION + 4].copy_from_slice(&version);
    let contested = header.kind == Kind::Restore && header.content == 2;
    if header.kind == Kind::Delta || contested {
        let from = usize::from(header.sender);
        told.bytes[at + SEQ] = header.seq.wrapping_sub(base.seq[from]);
    }
    base.acks(frame.acks, told);
    // What is no position, or says that there is nothing, does not move with what was added.
    let plain = header.kind == Kind::Delta || header.content >= 2;
    let payload = frame.payload.as_chunks::<4>().0;
    for (bytes, added) in payload.iter().zip(&base.added) {
        let value = f32::from_le_bytes(*bytes) - if plain { 0.0 } else { *added };
        told.number(value.to_bits());
    }
}

fn tell_offer(frame: &Frame<'_>, bases: &[Base], told: &mut Told) {
    // Here the version of the header is an epoch.
    let offers = crate::wire::parse_offer(frame.payload).expect("offers");
    let bases = bases.iter().skip(frame.header.chunk as usize);
    for (offer, base) in offers.iter().zip(bases) {
        let position = offer.position();
        told.position(position.map(|(epoch, version)| (epoch, base.version(version))));
    }
}

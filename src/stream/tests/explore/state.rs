//! A state of all nodes and the network between them, and the steps that lead from one to another.
//!
//! A step runs one streamer once, on one frame or to send, and nothing else happens meanwhile.
//! Everything follows from the state and the action.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::super::*;
use super::Bounds;
use super::digest::{Kept, set_digest};
use super::memory::{Arena, Memory};
use crate::stream::common::chunk_flags::{FORKED, JOINED};
use crate::wire::{Frame, Kind};

/// What may happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// What a fair schedule does: each node sends in its turn, then all that is on the way arrives
    /// in its order, then time passes.
    Next,
    /// The frame that would arrive now is put aside: lost, or late.
    Late,
    /// It arrives, and a copy is put aside.
    Double,
    /// As `Next`, and there is no transmit slot.
    NoSlot,
    /// A frame that was put aside arrives.
    Come(u8),
    /// The streamer of a node is killed and starts again at once, on its memory.
    Restart(u16),
    /// It is killed.
    Kill(u16),
    /// It stands still; frames wait for it.
    Pause(u16),
    /// It starts again, or goes on.
    Back(u16),
    /// A node loses its memory and begins again.
    Lose(u16),
    /// A node leaves.
    Leave(u16),
    /// A node joins.
    Join(u16),
    /// Where all orders are tried: a node sends.
    Poll(u16),
    /// A frame on the way arrives, and it does so and stays on the way, and it is lost.
    Deliver(u8),
    Copy(u8),
    Drop(u8),
    /// The solvers of a node add to its weights.
    Add(u16),
    /// Time passes.
    Tick,
}

/// How a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    Up,
    Paused,
    Killed,
    /// It has not joined, or has left.
    Out,
}

/// One node.
#[derive(Clone)]
pub(super) struct Node {
    pub(super) memory: Arc<Memory>,
    pub(super) streamer: Option<Arc<Streamer<'static>>>,
    pub(super) how: How,
    /// Memories that it lost.
    pub(super) life: u8,
    /// Frames that wait until it goes on.
    pub(super) inbox: Vec<Flight>,
    /// What it added to each chunk.
    pub(super) added: Vec<u16>,
    pub(super) leaves: bool,
    /// Per range, the latest epoch that a former life streamed.
    pub(super) past: Vec<u32>,
    /// Of its streamer, as it is now; `None`: it is to be looked at again.
    pub(super) kept: Option<Kept>,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = (self.how, self.life, &self.added);
        write!(f, "{how:?} {:?}", self.memory.nodes)?;
        for chunk in &self.memory.chunks {
            let [w, last, sent] = [&chunk.w, &chunk.last, &chunk.sent].map(|words| {
                let values = words[..4].iter().map(|word| f32::from_bits(*word));
                values.collect::<Vec<_>>()
            });
            write!(
                f,
                " [epoch {:x} version {} seq {} flags {} applied {:?} w {w:?} {last:?} {sent:?}]",
                chunk.epoch, chunk.version, chunk.seq, chunk.flags, chunk.applied
            )?;
        }
        match &self.streamer {
            Some(one) => {
                let common = &one.common;
                let (kept, peers) = (one.kept(), &common.peers);
                write!(f, "\n    {kept:?}\n    {:?} {peers:?}", common.leases)
            }
            None => Ok(()),
        }
    }
}

impl Node {
    pub(super) fn is_up(&self) -> bool {
        self.how == How::Up
    }

    /// The epoch in which it streams a range, if its streamer runs.
    pub(super) fn streams(&self, range: u16) -> Option<u32> {
        let epoch = self.memory.streamed(range);
        (self.streamer.is_some() && epoch != 0).then_some(epoch)
    }
}

/// A frame on its way to one node.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Flight {
    pub(super) from: u16,
    pub(super) to: u16,
    pub(super) bytes: Arc<[u8]>,
    /// Rounds that it may still be late, if it is put aside.
    pub(super) rounds: u8,
}

impl fmt::Debug for Flight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let frame = Frame::parse(&self.bytes);
        let of = frame.map(|frame| (frame.header, frame.acks.to_vec()));
        write!(f, "{} > {}: {of:?}", self.from, self.to)
    }
}

/// What went wrong so far, of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Spent {
    pub(super) frames: u8,
    pub(super) restarts: u8,
    pub(super) aways: u8,
    pub(super) losses: u8,
    pub(super) members: u8,
    pub(super) ticks: u8,
}

impl Spent {
    pub(super) fn all(&self) -> u8 {
        self.frames + self.restarts + self.aways + self.losses + self.members
    }
}

/// A state.
#[derive(Clone)]
pub(super) struct State {
    pub(super) nodes: Vec<Node>,
    /// In the order in which frames were sent.
    pub(super) wire: Vec<Flight>,
    /// Frames that were put aside.
    pub(super) aside: Vec<Flight>,
    pub(super) now_ns: u64,
    /// The node that sends next in this round.
    pub(super) turn: u16,
    /// Rounds in which a node was away.
    pub(super) away_rounds: u8,
    pub(super) spent: Spent,
    /// What only one node's process had is gone: the protocol gives back no more than its end.
    pub(super) excused: bool,
    /// Solvers have stopped.
    pub(super) rests: bool,
    /// What a step did that none may do.
    pub(super) broken: Option<String>,
    pub(super) digest: u64,
}

/// What a fair schedule does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    Poll(u16),
    /// To this node.
    Deliver(u16),
    Tick,
}

/// Times begin here, so that a number that is a time is known as one.
pub(super) const BEGIN_NS: u64 = 1 << 60;
/// Time between two rounds: a quarter of the silence after which a node is given up, which is the
/// longest that is no pause of the node itself.
pub(super) const ROUND_NS: u64 = 100_000_000;
/// Additions of a node that not all have.
const AHEAD: f32 = 2.0;

impl State {
    /// All nodes that the job begins with, at the very beginning.
    pub(super) fn begin(config: &Config, arena: &mut Arena) -> Self {
        let node = |at: u16| {
            let memory = Arc::new(Memory::new(config));
            let begins = at < config.nodes;
            let streamer = begins.then(|| Arc::new(arena.begin(at, 0, &memory).0));
            Node {
                memory,
                streamer,
                how: if begins { How::Up } else { How::Out },
                life: 0,
                inbox: Vec::new(),
                added: vec![0; config.chunks as usize],
                leaves: false,
                past: vec![0; config.places().into()],
                kept: None,
            }
        };
        let mut state = Self {
            nodes: (0..config.places()).map(node).collect(),
            wire: Vec::new(),
            aside: Vec::new(),
            now_ns: BEGIN_NS,
            turn: 0,
            away_rounds: 0,
            spent: Spent::default(),
            excused: false,
            rests: false,
            broken: None,
            digest: 0,
        };
        set_digest(&mut state);
        state
    }

    fn places(&self) -> u16 {
        self.nodes.len() as u16
    }

    pub(super) fn node(&self, at: u16) -> &Node {
        &self.nodes[usize::from(at)]
    }

    fn node_mut(&mut self, at: u16) -> &mut Node {
        &mut self.nodes[usize::from(at)]
    }

    /// What a fair schedule does next.
    pub(super) fn due(&self) -> Due {
        let next = (self.turn..self.places()).find(|at| self.node(*at).is_up());
        match (next, self.wire.first()) {
            (Some(node), _) => Due::Poll(node),
            (None, Some(flight)) => Due::Deliver(flight.to),
            (None, None) => Due::Tick,
        }
    }

    /// The state after `action`.
    pub(super) fn after(&self, action: Action, bounds: &Bounds, arena: &mut Arena) -> Self {
        let mut state = self.clone();
        let mut step = Step {
            state: &mut state,
            bounds,
            arena,
            slots: true,
        };
        // A panic may leave anything behind; nothing follows from such a state.
        let ended = catch_unwind(AssertUnwindSafe(|| step.take(action)));
        if let Err(panic) = ended {
            let said = panic.downcast_ref::<String>().map(String::as_str);
            let said = said.or(panic.downcast_ref::<&str>().copied());
            state.broken = Some(format!("a step panics: {}", said.unwrap_or("?")));
        }
        set_digest(&mut state);
        state
    }

    /// The same with all nodes back, nothing put aside, and solvers at rest.
    pub(super) fn at_rest(&self, bounds: &Bounds, arena: &mut Arena) -> Self {
        let mut state = self.clone();
        state.aside.clear();
        state.rests = true;
        let away = |node: &Node| matches!(node.how, How::Paused | How::Killed);
        for at in (0..self.places()).filter(|at| away(self.node(*at))) {
            let mut step = Step {
                state: &mut state,
                bounds,
                arena,
                slots: true,
            };
            step.back(at);
        }
        set_digest(&mut state);
        state
    }
}

/// One step while it is taken.
struct Step<'s> {
    state: &'s mut State,
    bounds: &'s Bounds,
    arena: &'s mut Arena,
    /// Whether there are transmit slots.
    slots: bool,
}

/// What a streamer sends in one step.
struct Sent<'s> {
    frames: Vec<(To, Vec<u8>)>,
    /// Frames that fit on the way to each node.
    room: &'s [usize],
}

impl Outbox for Sent<'_> {
    fn send(&mut self, to: To, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> bool {
        let fits = match to {
            To::Node(node) => self.room[usize::from(node)] > 0,
            To::Group | To::All => self.room.iter().any(|room| *room > 0),
        };
        if fits {
            let mut bytes = vec![0; len];
            fill(&mut bytes);
            self.frames.push((to, bytes));
        }
        fits
    }
}

impl Step<'_> {
    fn take(&mut self, action: Action) {
        let spent = &mut self.state.spent;
        match action {
            Action::Late | Action::Double | Action::NoSlot => spent.frames += 1,
            Action::Restart(_) => spent.restarts += 1,
            Action::Kill(_) | Action::Pause(_) => spent.aways += 1,
            Action::Lose(_) => spent.losses += 1,
            Action::Leave(_) | Action::Join(_) => spent.members += 1,
            Action::Tick => spent.ticks += 1,
            _ => {}
        }
        match action {
            Action::Next => self.next(),
            Action::NoSlot => {
                self.slots = false;
                self.next();
            }
            Action::Late => {
                let flight = self.state.wire.remove(0);
                self.put_aside(flight);
            }
            Action::Double => {
                let flight = self.state.wire[0].clone();
                self.put_aside(flight);
                self.next();
            }
            Action::Come(at) => {
                let flight = self.state.aside.remove(at.into());
                self.arrive(flight);
            }
            Action::Restart(node) => {
                self.kill(node);
                self.back(node);
            }
            Action::Kill(node) => {
                self.add(node);
                self.kill(node);
            }
            Action::Pause(node) => {
                self.add(node);
                self.state.node_mut(node).how = How::Paused;
            }
            Action::Back(node) => self.back(node),
            Action::Lose(node) => self.lose(node),
            Action::Leave(node) => {
                self.state.node_mut(node).leaves = true;
                self.run(node, |streamer, _, _| streamer.leave());
            }
            Action::Join(node) => self.back(node),
            Action::Poll(node) => self.poll(node),
            Action::Deliver(at) => {
                let flight = self.state.wire.remove(at.into());
                self.arrive(flight);
            }
            Action::Copy(at) => {
                let flight = self.state.wire[usize::from(at)].clone();
                self.arrive(flight);
            }
            Action::Drop(at) => drop(self.state.wire.remove(at.into())),
            Action::Add(node) => self.add(node),
            Action::Tick => self.tick(),
        }
    }

    fn put_aside(&mut self, flight: Flight) {
        // In an order of their own: which was put aside first says nothing.
        let aside = &mut self.state.aside;
        let key = |flight: &Flight| {
            let way = (flight.rounds, flight.to, flight.from);
            (way, flight.bytes.clone())
        };
        let at = aside.partition_point(|one| key(one) < key(&flight));
        aside.insert(at, flight);
    }

    fn next(&mut self) {
        match self.state.due() {
            Due::Poll(node) => {
                self.state.turn = node + 1;
                if !self.state.rests {
                    self.add_if_near(node);
                }
                self.poll(node);
                self.end_leave(node);
            }
            Due::Deliver(_) => {
                self.state.turn = self.state.places();
                let flight = self.state.wire.remove(0);
                self.arrive(flight);
            }
            Due::Tick => self.tick(),
        }
    }

    fn tick(&mut self) {
        self.state.turn = 0;
        self.state.now_ns += ROUND_NS;
        self.state
            .nodes
            .iter_mut()
            .for_each(|node| node.kept = None);
        self.state.aside.retain_mut(|flight| {
            flight.rounds -= 1;
            flight.rounds > 0
        });
        let away = |node: &Node| matches!(node.how, How::Paused | How::Killed);
        if self.state.nodes.iter().any(away) {
            self.state.away_rounds += 1;
        }
    }

    /// Runs a node's streamer once. What it sends goes on its way.
    fn run(&mut self, at: u16, step: impl FnOnce(&mut Streamer<'static>, u64, &mut Sent<'_>)) {
        let (now_ns, free) = (self.state.now_ns, self.bounds.free);
        let on_way = |to: u16| {
            let wire = self.state.wire.iter();
            wire.filter(|one| (one.from, one.to) == (at, to)).count()
        };
        let room = |to: u16| match (self.slots, free) {
            (false, _) => 0,
            (true, true) => self.bounds.wire.saturating_sub(on_way(to)),
            (true, false) => usize::MAX,
        };
        let room: Vec<usize> = (0..self.state.places())
            .map(|to| if to == at { 0 } else { room(to) })
            .collect();
        let mut out = Sent {
            frames: Vec::new(),
            room: &room,
        };
        let node = &mut self.state.nodes[usize::from(at)];
        let Some(streamer) = &mut node.streamer else {
            return;
        };
        node.kept = None;
        let streamer = Arc::make_mut(streamer);
        let ran = self
            .arena
            .with(at, &node.memory, |_, _| step(streamer, now_ns, &mut out));
        node.memory = ran.1;
        for (to, bytes) in out.frames {
            let bytes: Arc<[u8]> = bytes.into();
            let others = (0..self.state.places()).filter(|other| *other != at);
            let all: Vec<u16> = match to {
                To::Node(node) => vec![node],
                To::Group | To::All => others.collect(),
            };
            for to in all {
                let out = self.state.node(to).how == How::Out;
                if !out && on_way_room(self.state, at, to, free, self.bounds.wire) {
                    let bytes = bytes.clone();
                    self.state.wire.push(Flight {
                        from: at,
                        to,
                        bytes,
                        rounds: self.bounds.late_rounds,
                    });
                }
            }
        }
    }

    fn poll(&mut self, at: u16) {
        // A position of each chunk that it may stream, where orders are given; else one.
        let max = if self.bounds.free {
            1
        } else {
            self.bounds.burst
        };
        self.run(at, |streamer, now_ns, out| {
            streamer.poll_transmit(now_ns, max, out);
        });
    }

    fn arrive(&mut self, flight: Flight) {
        let to = flight.to;
        match self.state.node(to).how {
            How::Up => self.run(to, |streamer, now_ns, out| {
                streamer.handle_frame(now_ns, &flight.bytes, out);
            }),
            How::Paused => self.state.node_mut(to).inbox.push(flight),
            How::Killed | How::Out => {}
        }
    }

    fn kill(&mut self, at: u16) {
        let node = self.state.node_mut(at);
        (node.streamer, node.how, node.kept) = (None, How::Killed, None);
    }

    fn back(&mut self, at: u16) {
        let node = &mut self.state.nodes[usize::from(at)];
        if node.streamer.is_none() {
            let (streamer, memory) = self.arena.begin(at, node.life, &node.memory);
            (node.streamer, node.memory) = (Some(Arc::new(streamer)), memory);
            node.kept = None;
        }
        node.how = How::Up;
        let inbox = std::mem::take(&mut node.inbox);
        self.state.wire.extend(inbox);
    }

    fn lose(&mut self, at: u16) {
        let away = |node: &Node| matches!(node.how, How::Paused | How::Killed);
        // A replica that is away may be the newest.
        self.state.excused |= self.state.nodes.iter().any(away);
        self.kill(at);
        let config = self.bounds.config();
        let node = &mut self.state.nodes[usize::from(at)];
        for (range, past) in (0..).zip(&mut node.past) {
            *past = (*past).max(node.memory.streamed(range));
        }
        node.memory = Arc::new(Memory::new(&config));
        node.life += 1;
        self.forget_past();
        self.back(at);
    }

    /// Where no node holds anything of a range any more it begins anew, under any epoch. (One that
    /// began anew itself may have promised the epoch of a frame, and not have said so yet.)
    fn forget_past(&mut self) {
        let ranges = self.bounds.ranges();
        for range in 0..self.state.places() {
            let holds = |node: &Node| {
                let mut chunks = ranges.of(range).map(|at| &node.memory.chunks[at as usize]);
                let held = chunks.any(|chunk| chunk.flags & (FORKED | JOINED) != 0);
                held || node.memory.streamed(range) != 0
            };
            if !self.state.nodes.iter().any(holds) {
                let nodes = self.state.nodes.iter_mut();
                nodes.for_each(|node| node.past[usize::from(range)] = 0);
            }
        }
    }

    /// A node that has left ends.
    fn end_leave(&mut self, at: u16) {
        let node = self.state.node(at);
        let gone = node.streamer.as_ref().is_some_and(|one| one.has_left());
        if gone {
            let node = self.state.node_mut(at);
            (node.streamer, node.how, node.kept) = (None, How::Out, None);
            self.state.wire.retain(|one| one.to != at);
        }
    }

    /// Solvers of a node add to its weights, unless they are far ahead of what others have.
    fn add_if_near(&mut self, at: u16) {
        if self.state.may_add(at) {
            self.add(at);
        }
    }

    fn add(&mut self, at: u16) {
        let node = &mut self.state.nodes[usize::from(at)];
        if node.leaves || !node.streamer.as_ref().is_some_and(|one| one.ready()) {
            return;
        }
        let memory = Arc::make_mut(&mut node.memory);
        for (chunk, added) in memory.chunks.iter_mut().zip(&mut node.added) {
            let w = &mut chunk.w[usize::from(at)];
            *w = (f32::from_bits(*w) + 1.0).to_bits();
            *added += 1;
        }
    }
}

/// Whether one more frame fits on a way.
fn on_way_room(state: &State, from: u16, to: u16, free: bool, most: usize) -> bool {
    let way = |one: &&Flight| (one.from, one.to) == (from, to);
    !free || state.wire.iter().filter(way).count() < most
}

impl State {
    /// Whether a node's solvers may add: all that are there have about what they added.
    pub(super) fn may_add(&self, at: u16) -> bool {
        let node = self.node(at);
        let up = || self.nodes.iter().filter(|one| one.is_up());
        let near = |(chunk, added): (usize, &u16)| {
            let least = up().map(|one| one.memory.w(chunk, at.into()));
            let least = least.fold(f32::MAX, f32::min);
            f32::from(*added) - least < AHEAD
        };
        let ready = node.streamer.as_ref().is_some_and(|one| one.ready());
        ready && !node.leaves && node.added.iter().enumerate().all(near)
    }

    /// Whether a node may send one more position: none of its chunks is on the way in one too old.
    pub(super) fn may_poll(&self, at: u16, lag: u32) -> bool {
        let node = self.node(at);
        self.wire.iter().all(|flight| {
            let Ok(frame) = Frame::parse(&flight.bytes) else {
                return true;
            };
            let header = &frame.header;
            let counts = matches!(header.kind, Kind::Position | Kind::Delta);
            if !counts || node.memory.streamed(header.range) == 0 {
                return true;
            }
            let version = node.memory.chunks[header.chunk as usize].version;
            version.wrapping_sub(header.chunk_version) < lag
        })
    }
}

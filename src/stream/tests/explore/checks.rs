//! What must hold in every state, and where each must come to rest.

use std::collections::HashSet;

use super::Bounds;
use super::memory::Arena;
use super::state::{Action, Due, How, Node, State};
use crate::stream::common::chunk_flags::{JOINED, OUTSTANDING};
use crate::stream::epochs::{is_later, owner};

/// Rounds within which all nodes are at rest.
const ROUNDS: usize = 400;
/// What a streamer keeps beyond its state file, in letters of its text, at most: some 40 for each
/// of its fields here.
const KEPT_MOST: usize = 8_000;
/// Frames that are on the way at once, for each node and chunk, at most.
const FRAMES_MOST: usize = 40;

/// What is wrong with a state; `None`: nothing.
pub(super) fn wrong(state: &State, bounds: &Bounds) -> Option<String> {
    let broken = state.broken.clone();
    broken
        .or_else(|| two_owners(state))
        .or_else(|| doubled(state))
        .or_else(|| unequal_sum(state, bounds))
        .or_else(|| too_much(state))
        .or_else(|| gave_up(state))
}

/// A range has one streaming owner in an epoch: the node that the epoch names, in one life.
fn two_owners(state: &State) -> Option<String> {
    for (at, node) in (0u16..).zip(&state.nodes) {
        for range in 0..node.past.len() as u16 {
            let Some(epoch) = node.streams(range) else {
                continue;
            };
            let past = node.past[usize::from(range)];
            if owner(epoch) != at {
                return Some(format!("node {at} streams range {range} in {epoch:#x}"));
            }
            if past != 0 && !is_later(epoch, past) {
                return Some(format!(
                    "node {at} streams range {range} in {epoch:#x}; a former life did in {past:#x}"
                ));
            }
        }
    }
    None
}

/// Nothing that was added is anywhere more than once.
fn doubled(state: &State) -> Option<String> {
    if state.excused {
        return None;
    }
    for (of, adder) in state.nodes.iter().enumerate() {
        for (at, node) in state.nodes.iter().enumerate() {
            for (chunk, added) in adder.added.iter().enumerate() {
                let w = node.memory.w(chunk, of);
                if w > f32::from(*added) || w < 0.0 {
                    return Some(format!(
                        "node {of} added {added} to chunk {chunk}, and node {at} has {w}"
                    ));
                }
            }
        }
    }
    None
}

/// What a slave added is what its master has of it, what is under way, and what is to be sent.
fn unequal_sum(state: &State, bounds: &Bounds) -> Option<String> {
    let ranges = bounds.ranges();
    for (at, node) in state.nodes.iter().enumerate() {
        if state.excused || node.life > 0 {
            continue;
        }
        for (chunk, (held, added)) in node.memory.chunks.iter().zip(&node.added).enumerate() {
            let range = ranges.range_of(chunk as u32);
            let master = usize::from(owner(held.epoch));
            let joined = held.flags & JOINED != 0 && node.memory.streamed(range) == 0;
            let Some(master) = state.nodes.get(master).filter(|_| joined) else {
                continue;
            };
            // It is the very one, and has not begun anew since.
            if master.memory.streamed(range) != held.epoch || master.life > 0 {
                continue;
            }
            let there = &master.memory.chunks[chunk];
            let outstanding = held.flags & OUTSTANDING != 0;
            let under_way = outstanding && there.applied[at] != held.seq;
            let [w, last, sent] =
                [&held.w, &held.last, &held.sent].map(|words| f32::from_bits(words[at]));
            let sent = if under_way { sent } else { 0.0 };
            let has = master.memory.w(chunk, at);
            let all = has + sent + (w - last);
            if all != f32::from(*added) {
                return Some(format!(
                    "node {at} added {added} to chunk {chunk}; its master has {has}, {sent} is under \
                     way and {} to be sent",
                    w - last
                ));
            }
        }
    }
    None
}

/// What is kept in memory and on the way is bounded.
fn too_much(state: &State) -> Option<String> {
    for (at, node) in state.nodes.iter().enumerate() {
        let letters = node.kept.map_or(0, |kept| kept.letters);
        if letters > KEPT_MOST {
            return Some(format!("node {at} keeps {letters} letters"));
        }
    }
    let most = FRAMES_MOST * state.nodes.len() * state.nodes[0].added.len();
    let frames = state.wire.len();
    (frames > most).then(|| format!("{frames} frames are on the way"))
}

/// Nothing is given up, and no count is put right, where no memory was lost.
fn gave_up(state: &State) -> Option<String> {
    if state.excused || state.spent.losses > 0 {
        return None;
    }
    for (at, node) in state.nodes.iter().enumerate() {
        let Some(streamer) = &node.streamer else {
            continue;
        };
        let counters = streamer.counters();
        if counters.abandoned_chunks > 0 || counters.resyncs > 0 {
            return Some(format!("node {at}: {counters:?}"));
        }
    }
    None
}

/// Whether all nodes are ready, equal and hold what was added.
fn lacks(state: &State) -> Option<String> {
    let there = || state.nodes.iter().filter(|one| one.how == How::Up);
    let ready = |node: &Node| node.streamer.as_ref().is_some_and(|one| one.ready());
    if !there().all(ready) {
        return Some("a node is not ready".into());
    }
    if let Some(at) = state.nodes.iter().position(|one| one.leaves && one.is_up()) {
        return Some(format!("node {at} is told to leave and is still there"));
    }
    let first = there().next()?;
    for (of, adder) in state.nodes.iter().enumerate() {
        for (chunk, added) in adder.added.iter().enumerate() {
            let has = first.memory.w(chunk, of);
            if there().any(|node| node.memory.w(chunk, of) != has) {
                let all: Vec<f32> = there().map(|node| node.memory.w(chunk, of)).collect();
                return Some(format!(
                    "node {of} added {added} to chunk {chunk}, and nodes have {all:?}"
                ));
            }
            let exact = adder.life == 0 && !state.excused;
            if exact && has != f32::from(*added) {
                return Some(format!(
                    "node {of} added {added} to chunk {chunk}, and all have {has}"
                ));
            }
        }
    }
    None
}

/// States from which a fair schedule, without loss, is known to lead to rest.
#[derive(Default)]
pub(super) struct Rests {
    known: HashSet<u64>,
    /// Steps that were taken to find that out.
    pub(super) steps: usize,
    /// The longest way, rounds.
    pub(super) rounds: usize,
}

impl Rests {
    /// Why a fair schedule does not lead to rest from a state; `None`: it does.
    pub(super) fn never(
        &mut self,
        state: &State,
        bounds: &Bounds,
        arena: &mut Arena,
    ) -> Option<String> {
        let mut state = state.at_rest(bounds, arena);
        let mut passed = Vec::new();
        let mut quiet = 0;
        let mut rounds = 0;
        let mut why = None;
        while rounds < ROUNDS {
            if self.known.contains(&state.digest) {
                self.known.extend(passed);
                return None;
            }
            passed.push(state.digest);
            if state.due() == Due::Tick {
                rounds += 1;
                why = lacks(&state);
                quiet = if why.is_none() { quiet + 1 } else { 0 };
                if quiet == 3 {
                    self.known.extend(passed);
                    self.rounds = self.rounds.max(rounds);
                    return None;
                }
            }
            self.steps += 1;
            state = state.after(Action::Next, bounds, arena);
            if let Some(wrong) = wrong(&state, bounds) {
                return Some(format!(
                    "in a fair continuation, after {rounds} rounds: {wrong}"
                ));
            }
        }
        let kept = |node: &Node| {
            node.streamer
                .as_ref()
                .map(|one| format!("{:?}", one.kept()))
        };
        let says: Vec<_> = state.nodes.iter().map(kept).collect();
        Some(format!("no rest in {ROUNDS} rounds: {why:?}; {says:?}"))
    }
}

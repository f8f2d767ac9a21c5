//! All that can happen, within bounds: every order of steps of a few nodes, with loss, copies,
//! frames that come late, kills, pauses and lost memories, over the streamer itself.
//!
//! `stateright` goes through the states, breadth first. A state is the memory of all nodes, copies
//! of their streamers, and the frames between them (`state`, `memory`); `digest` says which states
//! are one. In each of them the invariants of `checks` hold, and from each a fair schedule without
//! loss leads to rest: all nodes ready, their weights equal, and in them what was added, once.
//!
//! There are two ways to choose what happens next:
//!
//! - *All orders* ([`Bounds::free`]): any node may send, any frame may arrive, be lost or be
//!   copied, any time. Time passes only so often. There is no end to losses and copies; a frame is
//!   so many versions old at most.
//! - *So many faults*: a fair schedule, which takes turns, goes on for ever. At any step of it
//!   something may go wrong, so many times in all. So deep protocols are reached: takeovers,
//!   restores, forks, joins. What goes wrong at a node does so right before a step of that node. A
//!   frame that is put aside may come right before any step of its receiver for so many rounds, or
//!   never. Other orders of steps of different nodes within a round are not tried here.
//!
//! Solvers add to weights of their own node's all the while, as long as no other node is far
//! behind. Where a job is not new, numbers of deltas begin at 254 and versions at 2^32 - 3, so both
//! go round at once. Production code is not made generic over smaller numbers: they are bytes of
//! the frame, and only their difference counts (`digest`).

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use stateright::{Checker, HasDiscoveries, Model, Property};

mod checks;
mod digest;
mod memory;
mod state;
mod way;

use super::*;
use checks::Rests;
use memory::Arena;
use state::{Action, Due, Flight, How, State};

/// What may happen, how often.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    nodes: u16,
    later: u16,
    masters: u16,
    chunks: u32,
    /// Positions of a node in its turn.
    burst: usize,
    /// From the very beginning, instead of when all nodes are ready.
    new: bool,
    /// Whether all orders are tried.
    free: bool,
    /// Then: frames on a way, versions that a frame is old, times that time passes.
    wire: usize,
    lag: u32,
    ticks: u8,
    /// Else, and where all orders are tried only the second and fourth: so many times each, and in
    /// all.
    frames: u8,
    restarts: u8,
    aways: u8,
    losses: u8,
    members: u8,
    all: u8,
    /// Rounds that nodes are away, in all.
    away_rounds: u8,
    /// Rounds that a frame may be late.
    late_rounds: u8,
    /// States that are looked at, the nearest first; 0: all.
    states: usize,
}

impl Bounds {
    /// Nothing goes wrong.
    const NONE: Self = Self {
        nodes: 2,
        later: 0,
        masters: 1,
        chunks: 1,
        burst: 1,
        new: false,
        free: false,
        wire: 2,
        lag: 3,
        ticks: 0,
        frames: 0,
        restarts: 0,
        aways: 0,
        losses: 0,
        members: 0,
        all: 0,
        away_rounds: 0,
        late_rounds: 3,
        states: 0,
    };

    fn config(&self) -> Config {
        Config {
            nodes: self.nodes,
            later: self.later,
            masters: self.masters,
            chunk_weights: 16,
            chunks: self.chunks,
            silence_ns: 4 * state::ROUND_NS,
            ..super::config(Deltas::ExactlyOnce)
        }
    }

    /// With as many more of each fault that it has, and in all, as the environment says.
    fn and_more(mut self) -> Self {
        let Some(more) = number_told("DOGWILD_EXPLORE_MORE").map(|more| more as u8) else {
            return self;
        };
        self.states = 0;
        let faults = [
            &mut self.frames,
            &mut self.restarts,
            &mut self.aways,
            &mut self.losses,
            &mut self.members,
            &mut self.ticks,
            &mut self.all,
        ];
        let some = faults.into_iter().filter(|fault| **fault > 0);
        some.for_each(|fault| *fault += more);
        self
    }

    /// The same for a fair schedule, in which every frame has room.
    fn fair(&self) -> Self {
        Self {
            free: false,
            ..*self
        }
    }

    fn ranges(&self) -> Ranges {
        let places = self.nodes + self.later;
        Ranges::new(self.chunks, self.nodes, self.masters, places)
    }
}

/// The model that `stateright` goes through.
struct Explorer {
    bounds: Bounds,
    begin: State,
    arena: Mutex<Arena>,
    rests: Mutex<Rests>,
    /// What is wrong with the first state that is.
    why: Mutex<Option<String>>,
    /// When nothing more is looked at.
    ends: Option<Instant>,
    stopped: AtomicBool,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:x}", self.digest)
    }
}

impl std::hash::Hash for State {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        state.write_u64(self.digest);
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl Explorer {
    fn new(bounds: Bounds, folder: &Path) -> Self {
        let mut arena = Arena::new(&bounds.config(), folder);
        let mut begin = State::begin(&bounds.config(), &mut arena);
        if !bounds.new {
            begin = settled(begin, &bounds.fair(), &mut arena);
        }
        Self {
            bounds,
            begin,
            arena: Mutex::new(arena),
            rests: Mutex::default(),
            why: Mutex::default(),
            ends: None,
            stopped: AtomicBool::new(false),
        }
    }

    fn after(&self, state: &State, action: Action) -> State {
        let mut arena = self.arena.lock().unwrap_or_else(PoisonError::into_inner);
        state.after(action, &self.bounds, &mut arena)
    }

    fn holds(&self, what: Option<String>) -> bool {
        let holds = what.is_none();
        let mut why = self.why.lock().expect("no panic here");
        if why.is_none() {
            *why = what;
        }
        holds
    }

    fn is_right(&self, state: &State) -> bool {
        self.holds(checks::wrong(state, &self.bounds))
    }

    fn comes_to_rest(&self, state: &State) -> bool {
        if self.stopped.load(Relaxed) {
            return true;
        }
        let mut arena = self.arena.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rests = self.rests.lock().expect("no panic here");
        self.holds(rests.never(state, &self.bounds.fair(), &mut arena))
    }

    /// What may happen next.
    fn choices(&self, state: &State, actions: &mut Vec<Action>) {
        let late = self.ends.is_some_and(|ends| Instant::now() > ends);
        if late {
            self.stopped.store(true, Relaxed);
        }
        if state.broken.is_some() || late {
            return;
        }
        if self.bounds.free {
            self.free_choices(state, actions);
        } else {
            self.faults(state, actions);
        }
    }

    fn free_choices(&self, state: &State, actions: &mut Vec<Action>) {
        let bounds = &self.bounds;
        for at in 0..bounds.nodes {
            let busy = |to: u16| {
                let way = |one: &&Flight| (one.from, one.to) == (at, to);
                to != at && state.wire.iter().filter(way).count() >= bounds.wire
            };
            if !(0..bounds.nodes).any(busy) && state.may_poll(at, bounds.lag) {
                actions.push(Action::Poll(at));
            }
            if state.may_add(at) {
                actions.push(Action::Add(at));
            }
            if state.spent.restarts < bounds.restarts {
                actions.push(Action::Restart(at));
            }
            if state.spent.losses < bounds.losses {
                actions.push(Action::Lose(at));
            }
        }
        for at in 0..state.wire.len() {
            // Of frames that are the same, one.
            if state.wire[..at].contains(&state.wire[at]) {
                continue;
            }
            let at = at as u8;
            actions.extend([Action::Deliver(at), Action::Copy(at), Action::Drop(at)]);
        }
        if state.spent.ticks < bounds.ticks {
            actions.push(Action::Tick);
        }
    }

    fn faults(&self, state: &State, actions: &mut Vec<Action>) {
        let (bounds, spent) = (&self.bounds, &state.spent);
        let places = bounds.nodes + bounds.later;
        let away = |at: &u16| matches!(state.node(*at).how, How::Paused | How::Killed);
        if (0..places).any(|at| away(&at)) {
            actions.extend((0..places).filter(away).map(Action::Back));
            if state.due() == Due::Tick && state.away_rounds >= bounds.away_rounds {
                return;
            }
        }
        actions.push(Action::Next);
        let node = match state.due() {
            Due::Tick => return,
            Due::Poll(node) | Due::Deliver(node) => node,
        };
        let up = state.node(node).is_up();
        for (at, flight) in (0..).zip(&state.aside) {
            if flight.to == node && up {
                actions.push(Action::Come(at));
            }
        }
        if spent.all() >= bounds.all {
            return;
        }
        if spent.frames < bounds.frames {
            if let Due::Deliver(_) = state.due() {
                actions.extend([Action::Late, Action::Double]);
            }
            if up {
                actions.push(Action::NoSlot);
            }
        }
        if !up {
            return;
        }
        if spent.restarts < bounds.restarts {
            actions.push(Action::Restart(node));
        }
        if spent.aways < bounds.aways && state.away_rounds < bounds.away_rounds {
            actions.extend([Action::Kill(node), Action::Pause(node)]);
        }
        if spent.losses < bounds.losses {
            actions.push(Action::Lose(node));
        }
        if spent.members < bounds.members {
            if !state.node(node).leaves {
                actions.push(Action::Leave(node));
            }
            let out = |at: &u16| state.node(*at).how == How::Out && !state.node(*at).leaves;
            actions.extend((0..places).find(out).map(Action::Join));
        }
    }
}

/// The state in which all are ready and equal, with numbers that are about to go round.
fn settled(begin: State, bounds: &Bounds, arena: &mut Arena) -> State {
    let mut state = begin.at_rest(bounds, arena);
    let all_ready = |state: &State| {
        let mut there = state.nodes.iter().filter(|one| one.is_up());
        there.all(|one| one.streamer.as_ref().is_some_and(|one| one.ready()))
    };
    let (mut calm, mut steps) = (0, 0);
    while calm < 20 {
        steps += 1;
        assert!(steps < 10_000, "not ready: {:?}", state.broken);
        calm += u32::from(all_ready(&state) && state.due() == Due::Tick);
        state = state.after(Action::Next, bounds, arena);
    }
    let version = state.nodes.iter().map(|one| one.memory.chunks[0].version);
    let shift = (u32::MAX - 2).wrapping_sub(version.max().unwrap_or(0));
    let seq = state.nodes.iter().map(|one| one.memory.chunks[0].seq);
    let shift_seq = 254u8.wrapping_sub(seq.max().unwrap_or(0));
    for node in &mut state.nodes {
        let memory = Arc::make_mut(&mut node.memory);
        for chunk in &mut memory.chunks {
            chunk.version = chunk.version.wrapping_add(shift);
            let seq = [&mut chunk.seq].into_iter().chain(&mut chunk.applied);
            seq.for_each(|seq| *seq = seq.wrapping_add(shift_seq));
        }
    }
    state.rests = false;
    digest::set_digest(&mut state);
    state
}

impl Model for Explorer {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.begin.clone()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.choices(state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        Some(self.after(last, action))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("nothing is lost, doubled or kept for ever", Self::is_right),
            Property::always("a fair schedule leads to rest", Self::comes_to_rest),
        ]
    }
}

/// Goes through all states within `bounds`, and says how many there are.
fn explore(what: &str, bounds: Bounds) {
    let folder = folder();
    let bounds = bounds.and_more();
    let mut explorer = Explorer::new(bounds, folder.path());
    if let Ok(way) = std::env::var("DOGWILD_EXPLORE_WAY") {
        return explorer.follow(&way::parse(&way), true);
    }
    let began = Instant::now();
    let limit = number_told("DOGWILD_EXPLORE_SECONDS");
    explorer.ends = limit.map(|seconds| began + Duration::from_secs(seconds));
    let mut checker = explorer.checker().finish_when(HasDiscoveries::AnyFailures);
    if bounds.states > 0 {
        checker = checker.target_state_count(bounds.states);
    }
    let checker = checker.spawn_bfs().join();
    let explorer = checker.model();
    let rests = explorer.rests.lock().expect("no panic here");
    let found = checker.discoveries();
    let some = explorer.stopped.load(Relaxed) || bounds.states > 0 || !found.is_empty();
    let all = if some { "the nearest" } else { "all" };
    eprintln!(
        "{what}: {all} of its states: {}, by {} steps, {} deep; {} steps more to rest, in {} rounds at \
         most; {:.1} s; {bounds:?}",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        rests.steps,
        rests.rounds,
        began.elapsed().as_secs_f64(),
    );
    drop(rests);
    if let Some((property, path)) = found.into_iter().min_by_key(|(name, _)| *name) {
        let way = way::tell(&path.into_actions());
        let why = explorer.why.lock().expect("no panic here").take();
        panic!(
            "{what}: not \"{property}\": {}\nDOGWILD_EXPLORE_WAY={way:?} follows it step by step",
            why.unwrap_or_default()
        );
    }
}

/// A number that the environment gives.
fn number_told(name: &str) -> Option<u64> {
    let told = std::env::var(name).ok()?;
    Some(
        told.parse()
            .unwrap_or_else(|_| panic!("{name} is a number")),
    )
}

impl Explorer {
    /// Takes the steps of `way`, and sees that all holds in each state.
    fn follow(&self, way: &[Action], tells: bool) {
        let mut state = self.begin.clone();
        for (at, action) in way.iter().enumerate() {
            let mut choices = Vec::new();
            self.choices(&state, &mut choices);
            assert!(
                choices.contains(action),
                "step {at}, {action:?}, is none of {choices:?}"
            );
            if tells {
                eprintln!("step {at}: {action:?}, due {:?}", state.due());
                state
                    .wire
                    .iter()
                    .for_each(|flight| eprintln!("    {flight:?}"));
            }
            state = self.after(&state, *action);
            if tells {
                state.nodes.iter().for_each(|node| eprintln!("  {node:?}"));
            }
            let right = self.is_right(&state) && self.comes_to_rest(&state);
            let why = self.why.lock().expect("no panic here").take();
            assert!(
                right,
                "after step {at}, {action:?}: {}",
                why.unwrap_or_default()
            );
        }
    }
}

/// A job in which nothing goes wrong goes round in a circle: states are told apart by what counts.
#[test]
fn a_calm_job_is_a_circle_of_states() {
    let folder = folder();
    let explorer = Explorer::new(Bounds::NONE, folder.path());
    let mut seen = std::collections::HashMap::new();
    let mut state = explorer.begin.clone();
    for step in 0..4_000 {
        if let Some(first) = seen.insert(state.digest, step) {
            assert!(step - first < 100, "{}", step - first);
            return;
        }
        state = explorer.after(&state, Action::Next);
    }
    panic!("no state comes again: {:?}", state.nodes);
}

/// Tests of bounds, and their names.
macro_rules! explored {
    ($($(#[$of:meta])* $name:ident: $($field:ident $value:expr),*;)*) => {$(
        $(#[$of])*
        #[test]
        fn $name() {
            explore(stringify!($name), Bounds { $($field: $value,)* ..Bounds::NONE });
        }
    )*};
}

explored! {
    frames_that_are_late_lost_or_doubled: frames 2, all 2;
    a_restart: restarts 1, all 1;
    a_memory_that_is_lost: losses 1, all 1;
    a_node_that_is_away: aways 1, all 1, away_rounds 5;
    all_orders_of_a_pair: free true, wire 1, lag 2, states 40_000;
    #[ignore = "long: some 80,000 states"]
    a_restart_while_a_frame_is_late: frames 1, restarts 1, all 2;
    /// Each of two nodes is master and slave.
    #[ignore = "long: hundreds of thousands of states"]
    restarts_of_two_masters: masters 2, chunks 2, frames 1, restarts 1, all 2;
    #[ignore = "long: hundreds of thousands of states"]
    three_frames: frames 3, all 3, states 40_000;
    #[ignore = "long: hundreds of thousands of states"]
    a_frame_that_is_late_while_a_memory_is_lost: frames 1, losses 1, all 2, states 40_000;
    #[ignore = "long: hundreds of thousands of states"]
    a_new_job: new true, masters 2, chunks 2, frames 1, restarts 1, all 2, states 40_000;
    #[ignore = "long: hundreds of thousands of states"]
    a_master_of_two_is_away: masters 2, chunks 2, frames 1, aways 1, all 2, away_rounds 8,
        states 40_000;
    #[ignore = "long: hundreds of thousands of states"]
    a_range_of_three_is_taken_over: nodes 3, masters 3, chunks 3, aways 1, all 1, away_rounds 9,
        states 40_000;
    #[ignore = "long: hundreds of thousands of states"]
    a_slave_of_three_restarts: nodes 3, frames 1, restarts 1, all 2, states 40_000;
    #[ignore = "long: hundreds of thousands of states"]
    memories_of_two_masters: masters 2, chunks 2, losses 2, all 2, states 40_000;
    #[ignore = "long: hundreds of thousands of states"]
    a_memory_of_three: nodes 3, losses 1, frames 1, all 2, states 40_000;
    #[ignore = "long: hundreds of thousands of states"]
    a_node_joins_or_leaves: later 1, masters 2, chunks 3, members 1, frames 1, all 2,
        states 40_000;
    #[ignore = "long: hundreds of thousands of states"]
    all_orders_with_restarts: free true, wire 1, lag 3, restarts 1, losses 1, ticks 1,
        states 40_000;
}

/// Ways on which single changes of the protocol go wrong (`tools/src/xtask/mutants/list.rs`): they
/// are followed as they were printed.
fn follow(bounds: Bounds, way: &str) {
    let folder = folder();
    Explorer::new(bounds, folder.path()).follow(&way::parse(way), false);
}

const TWO_FRAMES: Bounds = Bounds {
    frames: 2,
    all: 2,
    ..Bounds::NONE
};

/// "Any number is applied."
#[test]
fn a_delta_that_comes_twice_counts_once() {
    follow(TWO_FRAMES, "3 Double 1 Come(0)");
}

/// A node takes the range of another, which then loses its memory. What that node had said to the
/// life before, that it holds nothing, does not make the range new.
#[test]
fn a_hello_to_a_former_life_begins_no_range() {
    let bounds = Bounds {
        masters: 2,
        chunks: 2,
        losses: 2,
        all: 2,
        ..Bounds::NONE
    };
    follow(bounds, "1 Lose(1) 8 Lose(0) 3");
}

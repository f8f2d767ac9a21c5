//! Storms: two to 64 nodes and those that join them, links that lose, double and delay, and
//! everything that can happen to a node, all from one seed. Afterwards all nodes are ready, hold
//! the same weights, and what living nodes added is there once.
//!
//! Each node adds to weights of its own, so that a sum tells whose work is missing or doubled.

use std::cell::Cell;
use std::fs::File;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::*;
use crate::stream::momentum::{Rule, trial};

/// What may happen to a node.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// Its streamer is killed and starts again on its memory.
    Kill,
    /// Its streamer stands still.
    Pause,
    /// Its memory is lost.
    Lose,
    /// Nothing that it sends arrives, or nothing that is sent to it.
    Mute,
    Deaf,
    /// It leaves, and joins again on its memory.
    Leave,
}

/// How much of what happens may happen at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Storm {
    /// One event after the other: all work of living nodes is kept.
    InTurn,
    /// Several at once, but no memory is lost: all work is kept.
    Overlapping,
    /// Several at once: a node may be away while a range is restored, so only its end is checked.
    AtOnce,
}

const LIVES: usize = 6;
/// Within so long all nodes are ready and equal again, ns.
const SOON_NS: u64 = 8_000_000_000;

/// After as long nothing is on the way, if round trips take less.
const QUIET_NS: u64 = 200_000_000;

thread_local! {
    /// Virtual time of the storms of a test, ns.
    static PASSED_NS: Cell<u64> = const { Cell::new(0) };
}

/// How fast the streams of a storm are.
#[derive(Clone, Copy)]
struct Tempo {
    step_ns: u64,
    /// Steps from one burst of a node to its next.
    bursts_every: usize,
    /// Times one of a node's weights grows in a step.
    additions: usize,
    soon_ns: u64,
    /// Steps from one iteration of each node to its next; 0: they say nothing of iterations.
    iterates_every: usize,
    /// Runs that may lose work and say so: so many, and one more of so many.
    may_lose: (usize, usize),
}

/// As fast as memory: many versions of a chunk are on the way at a time.
const DENSE: Tempo = Tempo {
    step_ns: STEP_NS,
    bursts_every: 1,
    // So many that few deltas are empty.
    additions: 8,
    soon_ns: SOON_NS,
    iterates_every: 0,
    may_lose: (1, 50),
};

/// Links that carry 100 to 400 frames of a node in a second: hellos, silence and asks matter as
/// much as positions, and hours pass in minutes.
const THIN: Tempo = Tempo {
    step_ns: 1_000_000,
    bursts_every: 10,
    additions: 8,
    soon_ns: 10 * SOON_NS,
    iterates_every: 0,
    may_lose: (1, 50),
};

/// Links of modems: 80 frames of a node in a second, 5 to 100 ms on the way.
const THINNEST: Tempo = Tempo {
    step_ns: 5 * THIN.step_ns,
    soon_ns: 2 * THIN.soon_ns,
    // Nodes are apart five times as long, and more die meanwhile.
    may_lose: (2, 40),
    ..THIN
};

struct Run<'w, 'a> {
    tempo: Tempo,
    /// Nodes that are killed are so in a send.
    kills_in_sends: bool,
    stepped: usize,
    /// Nodes add, and make iterations.
    works: bool,
    world: &'w mut World<'a>,
    fleet: &'a Fleet,
    /// Of all places: those whose node is there come first.
    places: u16,
    nodes: u16,
    /// The node that leaves: its solvers have stopped.
    leaving: Option<u16>,
    seed: u64,
    /// Per weight: what is there for certain, and what may be (of lives that are over).
    certain: Vec<f32>,
    possible: Vec<f32>,
    /// Per weight, what was added since all nodes were equal last.
    lately: Vec<f32>,
    /// Per weight, how far momentum of masters had moved it when all nodes were equal last.
    moved: Vec<f64>,
    lost: Vec<usize>,
    /// Nodes that reported that work of theirs is lost, or what they had of others.
    told_lost: Vec<bool>,
}

impl Run<'_, '_> {
    fn random(&mut self, bound: usize) -> usize {
        self.world.random_below(bound)
    }

    /// Lets time pass. Nodes that are ready add.
    fn work(&mut self, steps: usize) {
        self.works = true;
        for _ in 0..steps {
            for _ in 0..self.tempo.additions {
                self.add();
            }
            self.step();
        }
        self.works = false;
    }

    /// Adds what momentum has moved since the last call to what is there for certain.
    fn note_moved(&mut self) {
        for i in 0..self.moved.len() {
            let moved = |node| trial::moved(self.fleet.weights(node).slice(i, 1));
            let now: f64 = (0..self.places).map(moved).sum();
            let more = (now - std::mem::replace(&mut self.moved[i], now)) as f32;
            self.certain[i] += more;
            self.lately[i] += more.abs();
        }
    }

    fn step(&mut self) {
        let bursts = self.stepped.is_multiple_of(self.tempo.bursts_every);
        self.world.burst = if bursts { 4 } else { 0 };
        self.stepped += 1;
        self.world.step_by(self.tempo.step_ns);
        let every = self.tempo.iterates_every;
        if self.works && every > 0 && self.stepped.is_multiple_of(every) {
            let made = (self.stepped / every) as u64;
            (0..self.nodes).for_each(|node| self.world.set_iterations(node, made));
        }
    }

    /// Lets time pass until `holds`; false if it does not soon.
    fn passes(&mut self, mut holds: impl FnMut(&World<'_>) -> bool) -> bool {
        let until_ns = self.world.now_ns() + self.tempo.soon_ns;
        if self.tempo.step_ns == STEP_NS {
            let steps = (self.tempo.soon_ns / STEP_NS) as usize;
            return wait_until(self.world, steps, |world| holds(world));
        }
        while !holds(self.world) {
            if self.world.now_ns() >= until_ns {
                return false;
            }
            self.step();
        }
        true
    }

    /// A node that is ready adds 1.0 to one of its weights.
    fn add(&mut self) {
        let node = self.random(self.nodes.into()) as u16;
        let classes = self.certain.len() / usize::from(self.places);
        let i = self.random(classes) * usize::from(self.places) + usize::from(node);
        let ready = self.world.streamer(node).is_some_and(Streamer::ready);
        if ready && self.leaving != Some(node) {
            let w = self.fleet.weights(node);
            w.store(i, w.load(i) + 1.0);
            self.certain[i] += 1.0;
            self.lately[i] += 1.0;
        }
    }

    fn wait(&mut self, what: &str, holds: impl Fn(&World<'_>) -> bool) {
        if self.passes(holds) {
            return;
        }
        for node in 0..self.nodes {
            if let Some(streamer) = self.world.streamer(node) {
                let known = |range: u16| {
                    let joined = if streamer.has_joined(range) {
                        ""
                    } else {
                        " lacks"
                    };
                    let streamed = &self.fleet.state(node).node(range).streamed;
                    let streamed = streamed.load(std::sync::atomic::Ordering::Relaxed);
                    format!("{:x}/{streamed:x}{joined}", streamer.epoch(range))
                };
                let known: Vec<_> = (0..self.places).map(known).collect();
                eprintln!("node {node}: {known:?}, {:?}", streamer.counters());
            }
            for report in self.world.take_reports(node) {
                eprintln!("  {report}");
            }
        }
        panic!("seed {}: never {what}", self.seed);
    }

    fn wait_ready(&mut self) {
        let nodes = self.nodes;
        self.wait("ready", |world| {
            (0..nodes).all(|node| world.streamer(node).is_some_and(Streamer::ready))
        });
    }

    /// Waits until all nodes are equal, and checks what they hold.
    fn settle(&mut self, storm: Storm) {
        let (fleet, nodes) = (self.fleet, self.nodes);
        let identical = || {
            let first = fleet.weights(0);
            let equal = |node: u16| {
                let other = fleet.weights(node);
                (0..first.len()).all(|i| first.load(i).to_bits() == other.load(i).to_bits())
            };
            (1..nodes).all(equal)
        };
        let mut differed_ns = self.world.now_ns();
        let quiet_ns = QUIET_NS.max(200 * self.tempo.step_ns);
        let owes = |world: &World<'_>| {
            let now_ns = world.now_ns();
            let mut living = (0..nodes).filter_map(|node| world.streamer(node));
            living.any(|one| !one.remains(now_ns).owed.is_empty())
        };
        // Equal, and so it stays when all that was on the way has come, and nothing is owed.
        self.passes(|world| {
            if !identical() || owes(world) {
                differed_ns = world.now_ns();
            }
            world.now_ns() - differed_ns >= quiet_ns
        });
        self.wait("equal", |_| identical());
        let living = (0..nodes).filter_map(|node| self.world.streamer(node));
        let differing: u64 = living.map(|one| one.counters().differing_chunks).sum();
        assert_eq!(differing, 0, "seed {}: a false difference", self.seed);
        (0..nodes).for_each(|node| self.note_told(node));
        self.note_moved();
        // What momentum moves is rounded, and what is added to it too.
        let rounded = if self.moved.iter().any(|moved| *moved != 0.0) {
            0.25
        } else {
            0.0
        };
        let w = self.fleet.weights(0);
        for i in 0..self.certain.len() {
            let (have, certain) = (w.load(i), self.certain[i]);
            let most = certain + self.possible[i];
            // What a master lost it had of others too.
            let least = if self.told_lost.contains(&true) {
                certain - self.lately[i]
            } else {
                certain
            };
            if storm != Storm::AtOnce {
                assert!(
                    (least - rounded..=most + rounded).contains(&have),
                    "seed {}: weight {i} of node {} is {have}, not {least} to {most}",
                    self.seed,
                    i % usize::from(self.places),
                );
            }
            assert!(have.is_finite());
            (self.certain[i], self.possible[i], self.lately[i]) = (have, 0.0, 0.0);
        }
    }

    /// Notes whether the streamer of `node` reported that work is lost.
    fn note_told(&mut self, node: u16) {
        let streamer = self.world.streamer(node);
        let abandoned = streamer.map_or(0, |one| one.counters().abandoned_chunks);
        self.told_lost[usize::from(node)] |= abandoned > 0;
    }

    /// The node's work since all were equal may be gone with it, and what it owes stays twice.
    fn lose(&mut self, node: u16) -> bool {
        if self.lost[usize::from(node)] == LIVES {
            return false;
        }
        self.lost[usize::from(node)] += 1;
        let now_ns = self.world.now_ns();
        let streamer = self.world.streamer(node);
        let owed = streamer.map_or_else(Vec::new, |one| one.remains(now_ns).owed);
        for other in owed {
            for i in (usize::from(other)..self.certain.len()).step_by(self.places.into()) {
                self.possible[i] += self.lately[i];
            }
        }
        for i in (usize::from(node)..self.certain.len()).step_by(self.places.into()) {
            self.certain[i] -= self.lately[i];
            self.possible[i] += self.lately[i];
            self.lately[i] = 0.0;
        }
        self.world.lose(node);
        true
    }

    /// One more node joins, if there is one.
    fn join(&mut self, storm: Storm) {
        if self.nodes < self.places {
            self.world.restart(self.nodes);
            self.nodes += 1;
            if storm == Storm::InTurn {
                self.wait_ready();
            }
        }
    }

    fn begin(&mut self, event: Event, node: u16, faults: Faults) {
        let cut = Faults {
            drop: 1.0,
            ..faults
        };
        self.note_told(node);
        match event {
            Event::Kill if self.kills_in_sends => {
                let frames = 1 + self.random(12) as u32;
                self.world.kill_in_send(node, frames);
            }
            Event::Kill => self.world.kill(node),
            Event::Pause => self.world.pause(node),
            Event::Lose => {
                self.lose(node);
            }
            Event::Leave => {
                self.leaving = Some(node);
                self.world.leave(node);
            }
            Event::Mute | Event::Deaf => {
                for other in (0..self.nodes).filter(|other| *other != node) {
                    match event {
                        Event::Mute => self.world.set_way(node, other, cut),
                        _ => self.world.set_way(other, node, cut),
                    }
                }
            }
        }
    }

    fn end(&mut self, event: Event, node: u16, faults: Faults) {
        match event {
            Event::Kill => {
                self.world.kill(node);
                self.world.restart(node);
            }
            Event::Pause => self.world.go_on(node),
            Event::Lose => {}
            Event::Leave => {
                // Whether it has come to that or not: what it has not delivered, it remembers.
                self.leaving = None;
                self.note_told(node);
                self.world.kill(node);
                self.world.restart(node);
            }
            Event::Mute | Event::Deaf => self.world.set_faults(faults),
        }
    }
}

/// The last one only where nodes may join.
const EVENTS: [Event; 6] = [
    Event::Kill,
    Event::Pause,
    Event::Lose,
    Event::Mute,
    Event::Deaf,
    Event::Leave,
];

fn run(seed: u64, storm: Storm) {
    let nodes = 2 + (seed % 7) as u16;
    let faults = super::storm(seed % 31);
    run_of(seed, storm, (DENSE, false), nodes, faults);
}

/// The same on thin links. True: a node reported that work of its own is lost.
fn run_thin(seed: u64, nodes: u16, (tempo, kills_in_sends): (Tempo, bool)) -> bool {
    let dense = super::storm(seed % 31);
    let faults = Faults {
        delay_ns: tempo.step_ns * (1 + seed % 20),
        reorder_ns: tempo.step_ns * 30,
        ..dense
    };
    let told = (tempo, kills_in_sends);
    run_of(seed, Storm::Overlapping, told, nodes, faults)
}

/// What a storm is of.
fn config_of(seed: u64, tempo: Tempo, nodes: u16) -> Config {
    Config {
        nodes,
        later: if seed % 3 == 2 { 1 + nodes / 2 } else { 0 },
        masters: nodes - u16::from(seed.is_multiple_of(5) && nodes > 2),
        chunks: 3 + (seed % 11) as u32 + u32::from(nodes) / 8 * 8,
        // Of half of the seeds others take the range of who is away, again and again.
        silence_ns: match tempo.step_ns {
            STEP_NS if seed % 2 == 1 => 5_000_000,
            _ => SILENCE_NS,
        },
        ..config(Deltas::ExactlyOnce)
    }
}

fn run_of(
    seed: u64,
    storm: Storm,
    (tempo, kills_in_sends): (Tempo, bool),
    nodes: u16,
    faults: Faults,
) -> bool {
    let folder = folder();
    let config = config_of(seed, tempo, nodes);
    let mut fleet = Fleet::new(&config, folder.path()).unwrap();
    for node in 0..config.places() {
        for life in 1..=LIVES {
            let path = folder.path().join(format!("n{node}-life{life}.stream"));
            fleet.add_life(node, &path).unwrap();
        }
    }
    let mut world = World::new(&fleet, faults, seed);
    trace(&mut world, seed);
    let weights = (config.chunks * CHUNK_WEIGHTS) as usize;
    let mut run = Run {
        tempo,
        kills_in_sends,
        stepped: 0,
        works: false,
        world: &mut world,
        fleet: &fleet,
        places: config.places(),
        nodes,
        leaving: None,
        seed,
        certain: vec![0.0; weights],
        possible: vec![0.0; weights],
        lately: vec![0.0; weights],
        moved: vec![0.0; weights],
        lost: vec![0; config.places().into()],
        told_lost: vec![false; config.places().into()],
    };
    let events = if config.later > 0 { 6 } else { 5 };
    run.wait_ready();
    for _ in 0..6 {
        run.work(200);
        run.join(storm);
        let at_once = match storm {
            Storm::InTurn => 1,
            Storm::Overlapping | Storm::AtOnce => 1 + run.random(3),
        };
        let mut going = Vec::new();
        for _ in 0..at_once {
            let event = EVENTS[run.random(events)];
            let node = run.random(run.nodes.into()) as u16;
            let busy = going.iter().any(|(_, busy)| *busy == node);
            let spared = storm == Storm::Overlapping && matches!(event, Event::Lose);
            if busy || spared || matches!(event, Event::Leave) && run.leaving.is_some() {
                continue;
            }
            run.begin(event, node, faults);
            going.push((event, node));
            let wait = run.random(3_000);
            run.work(wait);
        }
        for (event, node) in going {
            run.end(event, node, faults);
            let wait = run.random(300);
            run.work(wait);
        }
        run.wait_ready();
        if run.random(2) == 0 {
            run.settle(storm);
        }
    }
    run.settle(storm);
    let passed_ns = run.world.now_ns();
    PASSED_NS.set(PASSED_NS.get() + passed_ns);
    let told = run.told_lost.contains(&true);
    assert!(tempo.step_ns != STEP_NS || storm == Storm::AtOnce || !told);
    told
}

/// What was added goes on by half as much again, over some turns.
const MOMENTUM: Rule = Rule {
    stride: 1.0,
    momentum: 0.5,
    rate: 0.75,
};

/// Masters move chunks on while everything happens to them: what was added and what was moved is
/// there once.
fn what_momentum_moves_counts_once(seeds: Range<u64>) {
    for seed in seeds {
        trial::forced(MOMENTUM, || {
            let nodes = 2 + (seed % 7) as u16;
            let faults = super::storm(seed % 31);
            let tempo = match seed % 2 {
                0 => Tempo {
                    iterates_every: 8,
                    ..DENSE
                },
                _ => Tempo {
                    iterates_every: 40,
                    ..THIN
                },
            };
            let kills_in_sends = seed % 4 > 1;
            run_of(
                seed,
                Storm::Overlapping,
                (tempo, kills_in_sends),
                nodes,
                faults,
            );
        });
        assert!(trial::has_moved(), "seed {seed}: the test tests nothing");
        trial::forget();
    }
}

storms! {
    what_momentum_moves_counts_once: 8 of 100;
    thin_links_lose_and_double_nothing: 20 of 1000;
    kills_in_sends_lose_and_double_nothing: 20 of 500;
    thinnest_links_lose_and_double_nothing: 20 of 500;
    dozens_of_members_lose_and_double_nothing: 1 of 3;
    living_nodes_keep_their_work: 2 of 40;
    troubles_that_overlap_lose_and_double_nothing: 2 of 16;
    nothing_stays_frozen: 2 of 40;
}

/// The seeds of `DOGWILD_STORM_SEEDS`; none if it is not set.
pub(super) fn seeds_of_choice_told() -> Range<u64> {
    let Ok(seeds) = std::env::var("DOGWILD_STORM_SEEDS") else {
        return 0..0;
    };
    let (from, to) = seeds.split_once("..").expect("FROM..TO");
    let [from, to] = [from, to].map(|seed| seed.parse().expect("a number"));
    from..to
}

/// Writes what happens in `world` to a file of its own in the folder `DOGWILD_STORM_TRACE`, if that
/// is set. The file is named after the test, the seed and the run of it.
pub(super) fn trace(world: &mut World<'_>, seed: u64) {
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    let Some(folder) = std::env::var_os("DOGWILD_STORM_TRACE") else {
        return;
    };
    let run = RUNS.fetch_add(1, Relaxed);
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("storm").replace("::", ".");
    let path = Path::new(&folder).join(format!("{test}-seed{seed}-run{run}.gz"));
    let file = File::create_new(&path).expect("an empty folder for traces");
    eprintln!("seed {seed} is written to {}", path.display());
    world.trace(GzEncoder::new(file, Compression::fast()));
}

/// `DOGWILD_STORM_SEEDS=100..200` of both storms: for a night, or one seed that failed.
#[test]
#[ignore = "long: as many seeds as it is told"]
fn seeds_of_choice() {
    for seed in seeds_of_choice_told() {
        eprintln!("seed {seed}");
        run(seed, Storm::InTurn);
        run(seed, Storm::Overlapping);
        run(seed, Storm::AtOnce);
    }
}

/// The same of thin links, which take a tenth of the time.
#[test]
#[ignore = "long: as many seeds as it is told"]
fn thin_seeds_of_choice() {
    for seed in seeds_of_choice_told() {
        eprintln!("seed {seed}");
        thin_links_lose_and_double_nothing(seed..seed + 1);
        kills_in_sends_lose_and_double_nothing(seed..seed + 1);
    }
}

/// And of links of modems.
#[test]
#[ignore = "long: as many seeds as it is told"]
fn thinnest_seeds_of_choice() {
    for seed in seeds_of_choice_told() {
        eprintln!("seed {seed}");
        thinnest_links_lose_and_double_nothing(seed..seed + 1);
    }
}

pub(super) fn living_nodes_keep_their_work(seeds: Range<u64>) {
    seeds.for_each(|seed| run(seed, Storm::InTurn));
}

fn troubles_that_overlap_lose_and_double_nothing(seeds: Range<u64>) {
    seeds.for_each(|seed| run(seed, Storm::Overlapping));
}

/// A master that is cut off may take its range again when the node that had it meanwhile is dead.
/// What it did apart is lost then, and it says so: in a few of these runs.
pub(super) fn thin_links_lose_and_double_nothing(seeds: Range<u64>) {
    few_lose_work(seeds, (THIN, false));
}

/// The same, and who is killed is so in a send.
fn kills_in_sends_lose_and_double_nothing(seeds: Range<u64>) {
    few_lose_work(seeds, (THIN, true));
}

/// Both on links of modems, where troubles last five times as long.
pub(super) fn thinnest_links_lose_and_double_nothing(seeds: Range<u64>) {
    few_lose_work(seeds.clone(), (THINNEST, false));
    few_lose_work(seeds, (THINNEST, true));
}

/// Runs that lost work once, or had it twice.
#[test]
fn runs_on_links_of_modems_that_lost_work_once_lose_none() {
    for seed in [
        331, 376, 981, 2232, 2377, 2510, 3062, 3134, 3200, 4520, 4637, 4763, 5489, 6791, 9305,
        9680, 12_747, 13_385,
    ] {
        for in_sends in [false, true] {
            let told = run_thin(seed, 2 + (seed % 5) as u16, (THINNEST, in_sends));
            assert!(!told, "seed {seed} lost work");
        }
    }
}

fn few_lose_work(seeds: Range<u64>, how: (Tempo, bool)) {
    let runs = seeds.clone().count();
    let told = seeds.filter(|seed| run_thin(*seed, 2 + (seed % 5) as u16, how));
    let began = Instant::now();
    let told: Vec<_> = told.collect();
    let (virtual_s, real_s) = (PASSED_NS.take() as f64 / 1e9, began.elapsed().as_secs_f64());
    let ratio = virtual_s / real_s;
    eprintln!("{virtual_s:.0} s in {real_s:.1} s ({ratio:.0} times); lost work: {told:?}");
    let (least, one_of) = how.0.may_lose;
    let most = least + runs / one_of;
    assert!(
        told.len() <= most,
        "of {runs} runs these lost work: {told:?}"
    );
}

fn dozens_of_members_lose_and_double_nothing(seeds: Range<u64>) {
    let told = seeds.filter(|seed| run_thin(*seed, 16 << (seed % 3), (THIN, false)));
    assert_eq!(told.count(), 0);
}

fn nothing_stays_frozen(seeds: Range<u64>) {
    seeds.for_each(|seed| run(seed, Storm::AtOnce));
}

//! The protocol under a seeded network: nothing lost, nothing doubled, replicas end equal.

use std::ops::Range;
use std::path::Path;

/// Tests of a function that takes a range of seeds: over a few of them, and over half of the
/// others, or with DOGWILD_ALL_SEEDS over all of those. CI has 90 minutes.
macro_rules! storms {
    ($($check:ident: $few:literal of $all:literal;)*) => {$(
        mod $check {
            #[test]
            fn a_few_seeds() {
                super::$check(0..$few);
            }

            #[test]
            #[ignore = "long: a storm of seeds"]
            fn more_seeds() {
                let others = $all - $few;
                let all = std::env::var_os("DOGWILD_ALL_SEEDS").is_some();
                let more = if all { others } else { others / 2 + 1 };
                super::$check($few..$few + more);
            }
        }
    )*};
}

mod apart;
mod checks;
mod early;
mod explore;
mod finite;
mod give_back;
mod iterations;
mod joins;
mod leave;
mod lives;
mod masters;
mod members;
mod merge;
mod moves;
mod narrow;
mod owed;
mod partial;
mod returns;
mod search;
mod settle;
mod storm;
mod strangers;
mod takeover;

use super::*;
use crate::sim::{Faults, Fleet, STEP_NS, World};
use crate::wire::DropReason;

const NODES: u16 = 3;
const CHUNKS: u32 = 7;
const CHUNK_WEIGHTS: u32 = 32;

pub(crate) fn config(deltas: Deltas) -> Config {
    Config {
        session: 0x5e55,
        fingerprint: 0xf1,
        data: 0xda,
        first_weights: 0x77,
        incarnation: 0,
        node: 0,
        nodes: NODES,
        later: 0,
        min_nodes: None,
        masters: NODES,
        chunk_weights: CHUNK_WEIGHTS,
        chunks: CHUNKS,
        deltas,
        merge: Merge::Sum,
        precision: Dtype::F32,
        sparse: false,
        writes: Writes::Racy,
        window_frames: 0,
        silence_ns: 500_000_000,
    }
}

/// A step of waits that take long. Silence takes half a second: in steps of [`STEP_NS`], nodes
/// would send hundreds of thousands of frames meanwhile.
const STRIDE_NS: u64 = 10 * STEP_NS;
/// Waits begin with steps of [`STEP_NS`], for so long.
const FINE_NS: u64 = 10_000_000;

/// Lets time pass until `holds`; false if it does not within so many steps of [`STEP_NS`].
fn wait_until(
    world: &mut World<'_>,
    steps: usize,
    mut holds: impl FnMut(&mut World<'_>) -> bool,
) -> bool {
    let begun_ns = world.now_ns();
    let until_ns = begun_ns + steps as u64 * STEP_NS;
    while !holds(world) {
        let left_ns = until_ns - world.now_ns();
        if left_ns == 0 {
            return false;
        }
        let fine = world.now_ns() < begun_ns + FINE_NS;
        let step_ns = if fine { STEP_NS } else { STRIDE_NS };
        world.step_by(step_ns.min(left_ns));
    }
    true
}

/// Lets the time of so many steps pass.
fn steps(world: &mut World<'_>, steps: usize) {
    wait_until(world, steps, |_| false);
}

fn wait_ready(world: &mut World<'_>, seed: u64) {
    let ready = |world: &mut World<'_>| {
        (0..NODES).all(|node| world.streamer(node).is_some_and(Streamer::ready))
    };
    assert!(wait_until(world, 200_000, ready), "seed {seed}: not ready");
}

/// Adds 1.0 to a random weight of a random node, now and then; returns how much each weight got.
fn add_for_a_while(world: &mut World<'_>, fleet: &Fleet, steps: usize) -> Vec<f32> {
    let len = (CHUNKS * CHUNK_WEIGHTS) as usize;
    let mut added = vec![0.0; len];
    for _ in 0..steps {
        for _ in 0..3 {
            let node = world.random_below(NODES as usize) as u16;
            let i = world.random_below(len);
            let w = fleet.weights(node);
            w.store(i, w.load(i) + 1.0);
            added[i] += 1.0;
        }
        world.step();
    }
    added
}

fn settle(world: &mut World<'_>, fleet: &Fleet, want: &[f32], seed: u64) {
    let mut looks = 0;
    let equal = |_: &mut World<'_>| {
        looks += 1;
        looks % 64 == 0 && fleet.identical() && holds(fleet, want)
    };
    if wait_until(world, 400_000, equal) {
        // Equal now; and still so after everything on the way has come in.
        steps(world, 2_000);
        assert!(
            fleet.identical() && holds(fleet, want),
            "seed {seed}: equal, then apart again"
        );
        return;
    }
    for node in 0..NODES {
        eprintln!(
            "node {node}: {:?}",
            world.streamer(node).map(Streamer::counters)
        );
    }
    let have: Vec<f32> = (0..want.len()).map(|i| fleet.weights(0).load(i)).collect();
    panic!("seed {seed}: replicas did not settle on what was added\nhave {have:?}\nwant {want:?}");
}

fn holds(fleet: &Fleet, want: &[f32]) -> bool {
    let w = fleet.weights(0);
    want.iter().enumerate().all(|(i, want)| w.load(i) == *want)
}

fn storm(seed: u64) -> Faults {
    // 0 to 60 % loss, with duplicates, reordering and missing slots, all from the seed.
    let share = (seed % 61) as f64 / 100.0;
    Faults {
        drop: share,
        duplicate: share / 2.0,
        reorder: 0.3,
        reorder_ns: 3_000_000,
        delay_ns: 20_000,
        no_slot: if seed.is_multiple_of(3) { 0.1 } else { 0.0 },
        unread_ns: 0,
        ..Faults::default()
    }
}

pub(super) fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").expect("a folder under /dev/shm")
}

fn run_storm(seed: u64, folder: &Path) {
    let fleet = Fleet::new(&config(Deltas::ExactlyOnce), folder).unwrap();
    let mut world = World::new(&fleet, storm(seed), seed);
    wait_ready(&mut world, seed);
    let added = add_for_a_while(&mut world, &fleet, 600);
    settle(&mut world, &fleet, &added, seed);
}

storms! {
    exactly_once_loses_and_doubles_nothing: 40 of 300;
    killed_streamers_lose_and_double_nothing: 20 of 60;
    a_master_that_lost_its_weights_gets_them_back: 8 of 40;
}

fn exactly_once_loses_and_doubles_nothing(seeds: Range<u64>) {
    for seed in seeds {
        run_storm(seed, folder().path());
    }
}

/// Positions are read in the buffer after they were sent, by up to as long as it takes others to
/// answer: a delta of such a chunk waits, and nothing is lost or doubled.
#[test]
fn what_the_adapter_has_not_read_takes_no_delta() {
    let mut refused = 0;
    for seed in 0..100 {
        let folder = folder();
        let fleet = Fleet::new(&config(Deltas::ExactlyOnce), folder.path()).unwrap();
        let faults = Faults {
            unread_ns: 300_000,
            ..storm(seed)
        };
        let mut world = World::new(&fleet, faults, seed);
        wait_ready(&mut world, seed);
        let mut added = add_for_a_while(&mut world, &fleet, 300);
        let victim = world.random_below(NODES as usize) as u16;
        world.kill(victim);
        world.restart(victim);
        let more = add_for_a_while(&mut world, &fleet, 300);
        added
            .iter_mut()
            .zip(more)
            .for_each(|(sum, more)| *sum += more);
        settle(&mut world, &fleet, &added, seed);
        let unread = |node| {
            world
                .streamer(node)
                .map(|s| s.counters().dropped_for(DropReason::Unread))
        };
        refused += (0..NODES).filter_map(unread).sum::<u64>();
    }
    assert!(refused > 1000, "{refused}");
}

/// A node stands still for five seconds, twice, while the others add and so does its own memory
/// (its solvers may go on where only the streamer is stopped).
#[test]
fn a_node_that_stood_still_loses_and_doubles_nothing() {
    for seed in [3, 20, 59] {
        let folder = folder();
        let fleet = Fleet::new(&config(Deltas::ExactlyOnce), folder.path()).unwrap();
        let mut world = World::new(&fleet, storm(seed), seed);
        wait_ready(&mut world, seed);
        let mut added = vec![0.0; (CHUNKS * CHUNK_WEIGHTS) as usize];
        for node in [1, 2] {
            world.pause(node);
            let before = world
                .streamer(node)
                .map(|one| one.counters().positions_sent);
            let more = add_for_a_while(&mut world, &fleet, 300);
            steps(&mut world, 500_000);
            let after = world
                .streamer(node)
                .map(|one| one.counters().positions_sent);
            assert_eq!(before, after, "seed {seed}: a node that is stopped sends");
            world.go_on(node);
            added
                .iter_mut()
                .zip(more)
                .for_each(|(sum, more)| *sum += more);
        }
        settle(&mut world, &fleet, &added, seed);
    }
}

/// Kills a node, starts it again, and adds all the while, so many times; then waits for everything
/// to arrive.
fn kill_and_settle(world: &mut World<'_>, fleet: &Fleet, times: usize, seed: u64) {
    wait_ready(world, seed);
    let mut added = vec![0.0; (CHUNKS * CHUNK_WEIGHTS) as usize];
    for _ in 0..times {
        let victim = world.random_below(NODES as usize) as u16;
        world.kill(victim);
        let more = add_for_a_while(world, fleet, 80);
        world.restart(victim);
        let still_more = add_for_a_while(world, fleet, 80);
        for (sum, (a, b)) in added.iter_mut().zip(more.iter().zip(&still_more)) {
            *sum += a + b;
        }
    }
    settle(world, fleet, &added, seed);
}

fn killed_streamers_lose_and_double_nothing(seeds: Range<u64>) {
    for seed in seeds {
        let folder = folder();
        let fleet = Fleet::new(&config(Deltas::ExactlyOnce), folder.path()).unwrap();
        let mut world = World::new(&fleet, storm(seed), seed);
        kill_and_settle(&mut world, &fleet, 6, seed);
    }
}

#[test]
fn fire_and_forget_loses_about_what_the_network_loses() {
    let folder = folder();
    let fleet = Fleet::new(&config(Deltas::FireAndForget), folder.path()).unwrap();
    let faults = Faults {
        drop: 0.3,
        delay_ns: 20_000,
        ..Faults::default()
    };
    let mut world = World::new(&fleet, faults, 7);
    wait_ready(&mut world, 7);
    let added: f32 = add_for_a_while(&mut world, &fleet, 20_000).iter().sum();
    world.set_faults(Faults {
        delay_ns: 20_000,
        ..Faults::default()
    });
    steps(&mut world, 5_000);
    assert!(fleet.identical());
    let w = fleet.weights(0);
    let have: f32 = (0..w.len()).map(|i| w.load(i)).sum();
    let lost = 1.0 - have / added;
    // Two thirds of the additions are foreign work and take a delta; 30 % of those frames are lost.
    assert!((0.15..0.25).contains(&lost), "lost {lost}");
}

fn a_master_that_lost_its_weights_gets_them_back(seeds: Range<u64>) {
    for seed in seeds {
        let folder = folder();
        let mut fleet = Fleet::new(&config(Deltas::ExactlyOnce), folder.path()).unwrap();
        let now = {
            let mut world = World::new(&fleet, storm(seed), seed);
            wait_ready(&mut world, seed);
            let added = add_for_a_while(&mut world, &fleet, 200);
            settle(&mut world, &fleet, &added, seed);
            world.now_ns()
        };
        let before: Vec<f32> = (0..fleet.weights(1).len())
            .map(|i| fleet.weights(1).load(i))
            .collect();
        fleet
            .lose(1, &folder.path().join("n1-again.stream"))
            .unwrap();
        let mut world = World::new(&fleet, storm(seed), seed + 1).at(now);
        wait_ready(&mut world, seed);
        settle(&mut world, &fleet, &before, seed);
        let more = add_for_a_while(&mut world, &fleet, 200);
        let want: Vec<f32> = before.iter().zip(&more).map(|(a, b)| a + b).collect();
        settle(&mut world, &fleet, &want, seed);
    }
}

#[test]
fn hostile_bytes_change_no_weight() {
    use rand::{RngExt, SeedableRng};
    let folder = folder();
    let fleet = Fleet::new(&config(Deltas::ExactlyOnce), folder.path()).unwrap();
    let mut world = World::new(&fleet, Faults::default(), 3);
    wait_ready(&mut world, 3);
    let mut rng = rand_xoshiro::Xoshiro256PlusPlus::seed_from_u64(11);
    let dropped = |world: &World<'_>| {
        world
            .streamer(0)
            .unwrap()
            .counters()
            .dropped
            .iter()
            .sum::<u64>()
    };
    let before = dropped(&world);
    for _ in 0..200_000 {
        let len = rng.random_range(0..300);
        let mut bytes: Vec<u8> = (0..len).map(|_| rng.random()).collect();
        if len > 4 && rng.random_bool(0.9) {
            // Past the magic, so that the deeper checks are reached; the session is unknown to
            // them.
            bytes[..4].copy_from_slice(&[b'D', b'W', crate::wire::VERSION, rng.random_range(0..6)]);
        }
        world.inject(0, &bytes);
    }
    assert_eq!(dropped(&world) - before, 200_000);
    for _ in 0..1_000 {
        world.step();
    }
    assert!(holds(&fleet, &vec![0.0; (CHUNKS * CHUNK_WEIGHTS) as usize]));
}

#[test]
fn another_model_under_the_same_session_is_named() {
    let folder = folder();
    let fleet = Fleet::new(&config(Deltas::ExactlyOnce), folder.path()).unwrap();
    let mut world = World::new(&fleet, Faults::default(), 3);
    let hello = crate::wire::Hello {
        fingerprint: 0xBAD,
        data: 0,
        first_weights: 0,
        incarnation: 0,
        chunk_weights: CHUNK_WEIGHTS,
        chunks: CHUNKS,
        nodes: NODES,
        later: 0,
        stay: crate::wire::Stay::Stays,
        settled: false,
        masters: NODES,
        trained_ms: 0,
        first: 0,
        seen: vec![crate::wire::NodeSeen::default(); NODES as usize],
    };
    let header = crate::wire::Header {
        kind: crate::wire::Kind::Hello,
        flags: 0,
        dtype: crate::wire::Dtype::None,
        acks: 0,
        seq: 0,
        session: 0x5e55,
        epoch: 0,
        sender: 2,
        range: u16::MAX,
        chunk: 0,
        chunk_version: 0,
        iterations: 0,
        payload_len: crate::wire::Hello::len(NODES.into()) as u32,
        content: 0,
        part: 0,
        held: 0,
    };
    let mut bytes = vec![0; header.frame_len()];
    hello.emit(header.emit(&mut bytes).1);
    world.inject(0, &bytes);
    let streamer = world.streamer(0).unwrap();
    assert_eq!(streamer.counters().dropped_for(DropReason::Shape), 1);
    let reports = world.take_reports(0);
    let difference = Difference::Model {
        theirs: 0xBAD,
        ours: 0xf1,
    };
    assert_eq!(
        reports,
        [Report::OtherShape {
            node: 2,
            difference
        }]
    );
    assert!(reports[0].to_string().contains("node 2"), "{}", reports[0]);
    // One of another version, from any node; the same of another session is none of our business.
    bytes[2] += 1;
    world.inject(0, &bytes);
    let version = bytes[2];
    assert_eq!(
        world.take_reports(0),
        [Report::OtherVersion { node: 2, version }]
    );
    bytes[8] ^= 1;
    world.inject(0, &bytes);
    assert_eq!(world.take_reports(0), []);
}

#[test]
fn the_flow_window_stops_at_silence_and_opens_again() {
    let folder = folder();
    let config = Config {
        window_frames: 8,
        ..config(Deltas::ExactlyOnce)
    };
    let fleet = Fleet::new(&config, folder.path()).unwrap();
    let mut world = World::new(
        &fleet,
        Faults {
            delay_ns: 20_000,
            ..Faults::default()
        },
        5,
    );
    wait_ready(&mut world, 5);
    for _ in 0..1_000 {
        world.step();
    }
    let sent = |world: &World<'_>| world.streamer(0).unwrap().counters().positions_sent;
    world.set_faults(Faults {
        drop: 1.0,
        ..Faults::default()
    });
    for _ in 0..20 {
        world.step();
    }
    let stopped = sent(&world);
    for _ in 0..20 {
        world.step();
    }
    assert!(
        sent(&world) - stopped <= 8,
        "the window holds for the first 0.2 ms of silence"
    );
    for _ in 0..1_000 {
        world.step();
    }
    let after = sent(&world) - stopped;
    assert!(after >= 4, "silence opens it again: {after}");
}

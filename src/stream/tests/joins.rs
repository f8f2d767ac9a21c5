//! How long it takes until a node is ready, in turns of the masters and in virtual time.

use super::takeover::{quick, with_run};
use super::*;
use crate::sim::Limit;

const CHUNKS: u32 = 6000;
/// Bytes per second that a node sends.
const BYTES_PER_S: f64 = 3e6;
/// Steps within which everything here happens.
const LONG: usize = 600_000;

pub(super) fn job(nodes: u16) -> Config {
    Config {
        nodes,
        masters: nodes,
        later: 2,
        chunks: CHUNKS,
        window_frames: 300,
        ..config(Deltas::ExactlyOnce)
    }
}

pub(super) fn thin(drop: f64) -> Faults {
    let limit = Some(Limit {
        bytes_per_s: BYTES_PER_S,
        burst_bytes: 32 << 10,
        known_frame_bytes: 0,
    });
    Faults {
        drop,
        delay_ns: 100_000,
        limit,
        ..Faults::default()
    }
}

/// Virtual time until `holds`, ns.
pub(super) fn time_until(
    world: &mut World<'_>,
    what: &str,
    holds: impl Fn(&World<'_>) -> bool,
) -> u64 {
    let began_ns = world.now_ns();
    for _ in 0..LONG {
        if holds(world) {
            return world.now_ns() - began_ns;
        }
        world.step();
    }
    panic!("never {what}");
}

pub(super) fn is_ready(world: &World<'_>, node: u16) -> bool {
    world.streamer(node).is_some_and(Streamer::ready)
}

/// Time in which the first `nodes` send each position once, over three turns, ns.
fn transfer_ns(world: &mut World<'_>, nodes: u16) -> u64 {
    let turns = |world: &World<'_>| -> Vec<u64> {
        let turns = |node| world.streamer(node).map_or(0, |one| one.counters().cycles);
        (0..nodes).map(turns).collect()
    };
    let begin = turns(world);
    let turned = |world: &World<'_>, by: u64| {
        let now = turns(world).into_iter().zip(&begin);
        now.into_iter().all(|(now, begin)| now >= begin + by)
    };
    time_until(world, "a turn", |world| turned(world, 1));
    time_until(world, "three more", |world| turned(world, 4)) / 3
}

/// Positions that each of the first two nodes has sent, as a ratio to the chunks that it streams.
fn turns(world: &World<'_>) -> [f64; 2] {
    [0, 1].map(|node| {
        let master = world.streamer(node).expect("it is there");
        let runs = master.streamed_weights();
        let weights: usize = runs.iter().map(ExactSizeIterator::len).sum();
        let chunks = weights as f64 / f64::from(CHUNK_WEIGHTS);
        master.counters().positions_sent as f64 / chunks
    })
}

/// What is lost of the first turn is asked for: who joins does not wait for the next one of a
/// master.
#[test]
fn who_joins_waits_for_one_turn_of_each_master() {
    for (seed, drop) in [(1, 0.0), (2, 0.02), (3, 0.05)] {
        let folder = folder();
        let fleet = Fleet::new(&job(2), folder.path()).unwrap();
        let mut world = World::new(&fleet, thin(drop), seed);
        let both = |world: &World<'_>| is_ready(world, 0) && is_ready(world, 1);
        time_until(&mut world, "ready", both);
        let transfer_ns = transfer_ns(&mut world, 2);
        let began = turns(&world);
        world.restart(2);
        let ready_ns = time_until(&mut world, "joined", |world| is_ready(world, 2));
        let turned = turns(&world).into_iter().zip(began);
        let turned: Vec<f64> = turned.map(|(now, began)| now - began).collect();
        let slowest = turned[0].min(turned[1]);
        let asked = world
            .streamer(2)
            .expect("it joined")
            .counters()
            .restores_taken;
        let said = format!(
            "loss of {drop}: after turns {turned:.3?}, {asked} chunks asked for, {:.3} transfers",
            ready_ns as f64 / transfer_ns as f64
        );
        eprintln!("{said}");
        assert!(slowest < 1.2, "{said}");
        assert!(asked > 0 || drop == 0.0, "{said}");
    }
}

/// Where no slave is ready yet that would answer, a new one does from the first position on: else
/// its master's window would open by silence alone.
#[test]
fn the_first_slave_of_a_master_does_not_wait_for_its_window() {
    let folder = folder();
    let fleet = Fleet::new(&job(2), folder.path()).unwrap();
    let mut world = World::new(&fleet, thin(0.0), 1);
    let both = |world: &World<'_>| is_ready(world, 0) && is_ready(world, 1);
    let ready_ns = time_until(&mut world, "ready", both);
    let transfer_ns = transfer_ns(&mut world, 2);
    let ratio = ready_ns as f64 / transfer_ns as f64;
    eprintln!("{ready_ns} ns, {ratio:.3} transfers");
    assert!(ratio < 1.5, "{ratio:.3} transfers until both are ready");
}

/// A small job of two nodes that a third joins: its turns are long against the time in which what
/// was lost is asked for.
fn small(seed: u64) -> Config {
    Config {
        masters: 1,
        later: 1,
        chunks: 640,
        precision: Dtype::F32,
        ..quick(2, seed)
    }
}

/// A master dies as soon as a node has joined. What it had given to that one may be the newest that
/// is left: no acknowledgement there is of a delta that is not in the weights.
#[test]
fn what_a_master_gives_has_what_it_acknowledges() {
    let mut asked = 0;
    for seed in 0..12 {
        let faults = Faults {
            drop: 0.5,
            ..storm(seed)
        };
        with_run(seed, &small(seed), faults, |run| {
            run.world.burst = 1;
            run.work(&[1], 600);
            run.world.restart(2);
            while !is_ready(run.world, 2) {
                run.work(&[1], 1);
            }
            let joined = run.world.streamer(2).expect("it joined");
            asked += joined.counters().restores_taken;
            run.world.kill(0);
            run.living = vec![1, 2];
            // Else the one may begin without the other, which it does not hear.
            run.world.set_faults(storm(0));
            run.work(&[1, 2], 200);
            run.wait("taken over", |run| run.is_taken(0, &[1, 2]));
            run.settle();
        });
    }
    assert!(asked > 500, "{asked} chunks were asked for");
}

/// A node loses its memory once it has joined, and joins again. What its former life had asked for
/// comes late, with the numbers of that life: it is not joined.
#[test]
fn what_a_former_life_asked_for_is_not_joined() {
    let mut refused = 0;
    for seed in 0..12 {
        let faults = Faults {
            drop: 0.3,
            duplicate: 0.5,
            reorder: 0.5,
            reorder_ns: 30_000_000,
            ..storm(seed)
        };
        with_run(seed, &small(seed), faults, |run| {
            run.world.burst = 1;
            run.work(&[1], 600);
            run.world.restart(2);
            run.living.push(2);
            while !is_ready(run.world, 2) {
                run.work(&[1], 1);
            }
            run.world.lose(2);
            while !is_ready(run.world, 2) {
                run.work(&[1], 1);
            }
            run.work(&[1, 2], 2000);
            let joined = run.world.streamer(2).expect("it joined");
            refused += joined.counters().dropped_for(DropReason::Epoch);
            run.settle();
            assert_eq!(run.counts(|one| one.resyncs), 0, "seed {seed}");
        });
    }
    assert!(refused > 0, "nothing came late");
}

//! A weighted mean: each delta counts by its node's portion, once; positions can be told from the
//! walk ahead.

use std::collections::HashSet;
use std::sync::atomic::AtomicU32;

use super::*;
use crate::weights::WeightsView;

fn mean() -> Config {
    Config {
        merge: Merge::Mean,
        ..config(Deltas::ExactlyOnce)
    }
}

/// Adds 3.0 to random weights of random nodes; returns what each weight must come to. Of three
/// nodes that say nothing of iterations each counts a third, so every sum is exact.
fn add_thirds(world: &mut World<'_>, fleet: &Fleet, steps: usize) -> Vec<f32> {
    let len = (CHUNKS * CHUNK_WEIGHTS) as usize;
    let mut want = vec![0.0; len];
    for _ in 0..steps {
        let node = world.random_below(NODES as usize) as u16;
        let i = world.random_below(len);
        let w = fleet.weights(node);
        w.store(i, w.load(i) + 3.0);
        let own = world.streamer(node).unwrap().own_weights().contains(&i);
        want[i] += if own { 3.0 } else { 1.0 };
        world.step();
    }
    want
}

storms! {
    every_delta_counts_by_its_portion_once: 20 of 100;
}

pub(super) fn every_delta_counts_by_its_portion_once(seeds: Range<u64>) {
    for seed in seeds {
        let folder = folder();
        let fleet = Fleet::new(&mean(), folder.path()).unwrap();
        let mut world = World::new(&fleet, storm(seed), seed);
        wait_ready(&mut world, seed);
        let want = add_thirds(&mut world, &fleet, 600);
        settle(&mut world, &fleet, &want, seed);
    }
}

/// What `copy_positions` gives on a slave is what the master had a moment ago, never the slave's
/// own walk.
#[test]
fn positions_are_what_the_master_had() {
    for seed in 0..20 {
        let folder = folder();
        let fleet = Fleet::new(&mean(), folder.path()).unwrap();
        let mut world = World::new(&fleet, storm(seed), seed);
        wait_ready(&mut world, seed);
        let watched = world.streamer(0).unwrap().own_weights().start;
        let len = (CHUNKS * CHUNK_WEIGHTS) as usize;
        let copy: Vec<AtomicU32> = (0..len).map(|_| AtomicU32::new(0)).collect();
        let mut had = HashSet::from([0]);
        let mut ahead = 0;
        for step in 0..3000 {
            if step % 7 == 0 {
                let w = fleet.weights(1);
                w.store(watched, w.load(watched) + 3.0);
            }
            world.step();
            had.insert(fleet.weights(0).load(watched).to_bits());
            copy_positions(fleet.state(1), fleet.weights(1), WeightsView::of(&copy));
            let position = WeightsView::of(&copy).load(watched);
            assert!(had.contains(&position.to_bits()), "seed {seed}: {position}");
            ahead += usize::from(fleet.weights(1).load(watched) > position);
        }
        assert!(
            ahead > 1000,
            "seed {seed}: the slave was ahead {ahead} times"
        );
    }
}

/// The portion follows the iterations that the frames tell.
#[test]
fn the_portion_is_that_of_the_iterations() {
    let folder = folder();
    let fleet = Fleet::new(&mean(), folder.path()).unwrap();
    let mut world = World::new(&fleet, Faults::default(), 1);
    wait_ready(&mut world, 1);
    // Node 0 makes two steps where node 1 makes one; node 2 has no solver.
    for iteration in 1..600 {
        world.set_iterations(0, 2 * iteration);
        world.set_iterations(1, iteration);
        for _ in 0..300 {
            world.step();
        }
    }
    let portion = |node| world.streamer(node).unwrap().portion();
    assert!((portion(0) - 2.0 / 3.0).abs() < 0.05, "{}", portion(0));
    // Never below a third: no solver walks further than three nodes alike would.
    assert!((portion(1) - 1.0 / 3.0).abs() < 0.05, "{}", portion(1));
}

/// A range is given away while its weights move, in int8. The next master begins from rounded
/// weights, and the rest counts as the rest of that range did: as it is.
#[test]
fn what_a_narrow_position_leaves_out_counts_as_it_is() {
    use super::takeover::{quick, with_run};
    let config = Config {
        merge: Merge::Mean,
        precision: Dtype::Int8,
        ..quick(2, 0)
    };
    with_run(1, &config, Faults::default(), |run| {
        for node in 0..2 {
            run.world.set_iterations(node, 100);
        }
        steps(run.world, 1_000);
        let own = run.world.streamer(0).unwrap().own_weights();
        let w = run.fleet.weights(0);
        run.world.leave(0);
        let mut moves = 0;
        while run.world.streamer(0).unwrap().owner(0) == Some(0) {
            for i in own.clone() {
                w.store(i, w.load(i) + 0.001 * (1 + i % 7) as f32);
            }
            moves += 1;
            run.world.step();
        }
        steps(run.world, 20_000);
        let there = run.fleet.weights(1);
        let largest = 0.007 * moves as f32;
        for i in own {
            let want = 0.001 * ((1 + i % 7) * moves) as f32;
            let off = (there.load(i) - want).abs();
            assert!(off < largest / 2_000.0, "{i}: {off} of {want}");
        }
    });
}

/// What a master did apart, while others had its range, counts as it is. Nor does its replica run
/// ahead of that meanwhile: its solvers would compute from weights that no node has.
#[test]
fn what_a_node_did_apart_counts_as_it_is() {
    use super::takeover::{quick, with_run};
    let config = Config {
        merge: Merge::Mean,
        ..quick(4, 0)
    };
    let faults = storm(1);
    with_run(1, &config, faults, |run| {
        for node in 0..4 {
            run.world.set_iterations(node, 100);
        }
        steps(run.world, 1_000);
        let nothing = Faults {
            drop: 1.0,
            ..faults
        };
        for other in [0, 2, 3] {
            run.world.set_way(1, other, nothing);
            run.world.set_way(other, 1, nothing);
        }
        let own = run.world.streamer(1).unwrap().own_weights();
        let w = run.fleet.weights(1);
        for _ in 0..64 {
            own.clone().for_each(|i| w.store(i, w.load(i) + 1.0));
            run.world.step();
        }
        run.wait("taken over", |run| run.is_taken(1, &[0, 2, 3]));
        run.world.set_faults(faults);
        let mut most = 0.0f32;
        while !run.fleet.identical() {
            run.world.step();
            most = own.clone().map(|i| w.load(i)).fold(most, f32::max);
        }
        assert_eq!(most, 64.0, "the replica ran ahead");
        assert!(own.clone().all(|i| w.load(i) == 64.0));
        assert!(run.counts(|one| one.forks_joined) > 0);
    });
}

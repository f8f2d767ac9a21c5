//! Iterations outlive the memory of the node that made them, and of those that counted them.

use super::*;
use crate::wire::NodeSeen;

const MS: u64 = 1_000_000;

/// Nodes that make iterations, and what they made.
struct Makers<'w, 'a> {
    world: &'w mut World<'a>,
    /// Of each node, in its present life.
    made: [u64; NODES as usize],
    all: u64,
    seed: u64,
}

impl Makers<'_, '_> {
    /// Lets time pass; `makers` make an iteration each 2 ms. No node counts one that was not made.
    fn pass(&mut self, ms: u64, makers: &[u16]) {
        for at in 0..ms {
            if at.is_multiple_of(2) {
                for node in makers {
                    self.made[usize::from(*node)] += 1;
                    self.all += 1;
                    self.world
                        .set_iterations(*node, self.made[usize::from(*node)]);
                }
            }
            self.world.step_by(MS);
            let all = self.all;
            for node in 0..NODES {
                let known = self.known(node);
                assert!(
                    known <= all,
                    "seed {}, node {node}: {known} of {all}",
                    self.seed
                );
            }
        }
    }

    /// What `node` knows of.
    fn known(&self, node: u16) -> u64 {
        let streamer = self.world.streamer(node);
        let own = self.made[usize::from(node)];
        streamer.map_or(0, |streamer| own + streamer.remote_iterations())
    }

    fn lose(&mut self, node: u16) {
        self.world.lose(node);
        self.made[usize::from(node)] = 0;
    }

    /// All `nodes` know of all that was made, before long.
    fn settle(&mut self, nodes: &[u16]) {
        for _ in 0..100 {
            if nodes.iter().all(|node| self.known(*node) == self.all) {
                return;
            }
            self.pass(100, &[]);
        }
        let known: Vec<_> = nodes.iter().map(|node| self.known(*node)).collect();
        panic!("seed {}: {known:?} of {}", self.seed, self.all);
    }
}

fn with_makers(seed: u64, run: impl FnOnce(&mut Makers<'_, '_>)) {
    let folder = folder();
    let fleet = lives::fleet_with_lives(&config(Deltas::ExactlyOnce), 4, folder.path());
    let faults = Faults {
        drop: 0.1,
        delay_ns: MS,
        ..Faults::default()
    };
    let mut world = World::new(&fleet, faults, seed);
    world.burst = 1;
    wait_ready(&mut world, seed);
    run(&mut Makers {
        world: &mut world,
        made: [0; NODES as usize],
        all: 0,
        seed,
    });
}

storms! {
    iterations_outlive_all_memories: 2 of 20;
    who_is_dead_for_good_still_counts: 2 of 20;
}

/// One machine after the other is replaced, so that none is left that was there at first.
fn iterations_outlive_all_memories(seeds: Range<u64>) {
    for seed in seeds {
        with_makers(seed, |makers| {
            for node in [0, 1, 2, 1, 0, 2, 2] {
                makers.pass(500, &[0, 1, 2]);
                makers.settle(&[0, 1, 2]);
                makers.lose(node);
                // A second life that is a short one.
                makers.pass(200, &[]);
                makers.settle(&[0, 1, 2]);
            }
        });
    }
}

/// Who knew it goes, and comes back without its memory; then the dead one comes back with its own.
fn who_is_dead_for_good_still_counts(seeds: Range<u64>) {
    for seed in seeds {
        with_makers(seed, |makers| {
            makers.pass(500, &[0, 1, 2]);
            makers.settle(&[0, 1, 2]);
            makers.world.kill(2);
            makers.pass(2_000, &[0, 1]);
            for node in [1, 0] {
                makers.settle(&[0, 1]);
                makers.lose(node);
            }
            makers.settle(&[0, 1]);
            makers.world.restart(2);
            makers.world.set_iterations(2, makers.made[2]);
            makers.pass(500, &[0, 1, 2]);
            makers.settle(&[0, 1, 2]);
            makers.lose(2);
            makers.pass(500, &[0, 1, 2]);
            makers.settle(&[0, 1, 2]);
        });
    }
}

/// One node knows a new life, and another the former one alone: that is not counted twice there.
#[test]
fn what_a_new_life_came_after_is_not_added_to_the_former_one() {
    with_makers(1, |makers| {
        makers.pass(500, &[0, 1, 2]);
        makers.settle(&[0, 1, 2]);
        // Others take its range: a new life counts on without it.
        makers.world.kill(1);
        makers.pass(2_000, &[0, 2]);
        makers.lose(1);
        let cut = Faults {
            drop: 1.0,
            ..Faults::default()
        };
        makers.world.set_way(1, 0, cut);
        // Node 2 counts on from the former life first, and then tells so.
        makers.pass(8_000, &[0, 2]);
        makers.world.set_way(1, 0, Faults::default());
        makers.settle(&[0, 1, 2]);
    });
}

/// Without a key a host can say anything in the name of another.
#[test]
fn forged_iterations_of_former_lives_are_not_believed() {
    let config = config(Deltas::ExactlyOnce);
    let told = |silent: bool| {
        strangers::hello(&config, 1, |_, hello| {
            let seen = (0..NODES).map(|node| NodeSeen {
                life: (config.incarnation + u64::from(node) + 1) as u32,
                silent,
                iterations: u32::MAX,
                ..NodeSeen::default()
            });
            hello.seen = seen.collect();
        })
    };
    with_makers(1, |makers| {
        for at in 0..60 {
            makers.world.inject(0, &told(at % 2 == 0));
            makers.world.inject(0, &told(false));
            makers.pass(100, &[0, 1, 2]);
        }
        makers.settle(&[0, 1, 2]);
        // In place of a dead one, whose range another has taken.
        makers.world.kill(1);
        makers.pass(2_000, &[0, 2]);
        for _ in 0..60 {
            makers.world.inject(0, &told(false));
            makers.pass(100, &[0, 2]);
        }
        makers.settle(&[0, 2]);
    });
}

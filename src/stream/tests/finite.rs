//! NaN and infinity in a master's own range: healed, counted, named; replicas end equal.

use super::*;

/// The weights of `node`'s range, as places in the buffer.
fn range(config: &Config, node: u16) -> std::ops::Range<usize> {
    let chunks = Ranges::new(config.chunks, config.nodes, config.masters, config.places()).of(node);
    let len = config.chunk_weights as usize;
    chunks.start as usize * len..chunks.end as usize * len
}

fn run_until(world: &mut World<'_>, what: &str, seed: u64, done: impl Fn(&World<'_>) -> bool) {
    for _ in 0..400_000 {
        if done(world) {
            return;
        }
        world.step();
    }
    for node in 0..8 {
        if let Some(streamer) = world.streamer(node) {
            eprintln!("node {node}: {:?}", streamer.counters());
        }
    }
    panic!("seed {seed}: {what}");
}

fn all_ready(world: &World<'_>, nodes: u16) -> bool {
    (0..nodes).all(|node| world.streamer(node).is_some_and(Streamer::ready))
}

fn all_finite(fleet: &Fleet, nodes: u16) -> bool {
    (0..nodes).all(|node| {
        let w = fleet.weights(node);
        (0..w.len()).all(|i| w.load(i).is_finite())
    })
}

/// Solvers add ones and now and then write something that is not finite, anywhere; then all is
/// quiet. What was never hit has exactly what was added.
fn poisoned(config: &Config, seed: u64, unread_ns: u64) {
    let folder = folder();
    let fleet = Fleet::new(config, folder.path()).unwrap();
    let faults = Faults {
        unread_ns,
        ..storm(seed)
    };
    let mut world = World::new(&fleet, faults, seed);
    let nodes = config.nodes;
    run_until(&mut world, "not ready", seed, |world| {
        all_ready(world, nodes)
    });
    let len = fleet.weights(0).len();
    let (mut added, mut hit) = (vec![0.0; len], vec![false; len]);
    for step in 0..400 {
        let (node, i) = (world.random_below(nodes.into()), world.random_below(len));
        let w = fleet.weights(node as u16);
        if step % 20 == 0 {
            // In the node's own range each second time.
            let own = range(config, node as u16);
            let i = if step % 40 == 0 && !own.is_empty() {
                own.start + i % own.len()
            } else {
                i
            };
            let bad = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][step % 3];
            w.store(i, bad);
            hit[i] = true;
        } else {
            w.store(i, w.load(i) + 1.0);
            added[i] += 1.0;
        }
        world.step();
    }
    if unread_ns > 0 {
        // Adapters read the buffer themselves: it is looked at once a second.
        let later = world.now_ns() + 2_000_000_000;
        world = world.at(later);
    }
    let as_added = |fleet: &Fleet| {
        let w = fleet.weights(0);
        (0..len).all(|i| hit[i] || w.load(i) == added[i])
    };
    run_until(
        &mut world,
        "not healed, or not what was added",
        seed,
        |world| {
            world.now_ns().is_multiple_of(640_000)
                && all_finite(&fleet, nodes)
                && fleet.identical()
                && as_added(&fleet)
        },
    );
    let mut named = 0;
    for node in 0..nodes {
        let own = range(config, node);
        for report in world.take_reports(node) {
            let Report::Healed { first_weight, .. } = report else {
                continue;
            };
            assert!(own.contains(&(first_weight as usize)), "{report}");
            let chunk = report.weights().unwrap();
            assert!(chunk.contains(&first_weight) && chunk.end <= own.end as u64);
            named += 1;
        }
    }
    assert!(named > 0, "seed {seed}: no node names what it healed");
    let healed = |node| world.streamer(node).unwrap().counters().healed_weights;
    assert!((0..nodes).map(healed).sum::<u64>() > 0, "seed {seed}");
}

#[test]
fn nan_in_a_masters_own_range_heals_and_replicas_end_equal() {
    for seed in (0..60).step_by(4) {
        poisoned(&config(Deltas::ExactlyOnce), seed, 0);
    }
}

#[test]
fn the_same_on_eight_nodes() {
    let config = Config {
        nodes: 8,
        chunks: 19,
        ..config(Deltas::ExactlyOnce)
    };
    for seed in [0, 7, 30, 59] {
        poisoned(&config, seed, 0);
    }
}

#[test]
fn the_same_where_the_adapter_reads_the_buffer() {
    for seed in 0..10 {
        poisoned(&config(Deltas::ExactlyOnce), seed, 300_000);
    }
}

/// A weight goes back to its last finite value, not to zero, and a killed streamer still knows it.
#[test]
fn what_heals_goes_back_to_its_last_finite_value() {
    let config = config(Deltas::ExactlyOnce);
    let folder = folder();
    let fleet = Fleet::new(&config, folder.path()).unwrap();
    let own = range(&config, 1);
    fleet.weights(1).store(own.start, 0.25);
    fleet.weights(1).store(own.start + 1, f32::NAN);
    let mut world = World::new(&fleet, Faults::default(), 2);
    wait_ready(&mut world, 2);
    world.kill(1);
    fleet.weights(1).store(own.start, f32::INFINITY);
    world.restart(1);
    let has = |value: f32, i: usize| {
        (0..NODES).all(|node| fleet.weights(node).load(own.start + i) == value)
    };
    run_until(&mut world, "not healed", 2, |_| has(0.25, 0));
    // What never was finite is zero.
    assert!(has(0.0, 1));
    let report = Report::Healed {
        node: 1,
        first_weight: own.start as u64,
        weights: 1,
        chunk_weights: CHUNK_WEIGHTS,
    };
    let reports = world.take_reports(1);
    assert!(reports.contains(&report), "{reports:?}");
}

/// Master and slave move a weight at once, each by a finite amount, to a sum that is not: the
/// delta's part for that weight is dropped, the rest of it counts, and no node repeats it forever.
#[test]
fn a_sum_that_overflows_is_refused_and_the_rest_of_the_delta_counts() {
    let refused = |deltas: Deltas, writes: Writes| {
        let config = Config {
            writes,
            ..config(deltas)
        };
        let folder = folder();
        let fleet = Fleet::new(&config, folder.path()).unwrap();
        let mut world = World::new(&fleet, Faults::default(), 4);
        wait_ready(&mut world, 4);
        let at = range(&config, 0).start;
        let everywhere =
            |i: usize, value: f32| (0..NODES).all(|node| fleet.weights(node).load(i) == value);
        fleet.weights(0).store(at, 2e38);
        run_until(&mut world, "2e38 did not arrive", 4, |_| {
            everywhere(at, 2e38)
        });
        for node in [0, 2] {
            let w = fleet.weights(node);
            w.store(at, w.load(at) + 1e38);
        }
        fleet.weights(2).store(at + 1, 5.0);
        run_until(&mut world, "the rest did not arrive", 4, |_| {
            everywhere(at, 3e38) && everywhere(at + 1, 5.0)
        });
        // The next delta of that node comes through: the refused one does not stand in its way.
        fleet.weights(2).store(at + 1, 7.0);
        run_until(&mut world, "the next delta did not arrive", 4, |_| {
            everywhere(at, 3e38) && everywhere(at + 1, 7.0)
        });
        let report = Report::RefusedSum {
            node: 2,
            first_weight: at as u64,
            weights: 1,
            chunk_weights: CHUNK_WEIGHTS,
        };
        assert!(world.take_reports(0).contains(&report));
        world.streamer(0).unwrap().counters().refused_sums
    };
    for deltas in [Deltas::ExactlyOnce, Deltas::FireAndForget] {
        for writes in [Writes::Racy, Writes::Atomic] {
            assert_eq!(refused(deltas, writes), 1, "{deltas:?} {writes:?}");
        }
    }
}

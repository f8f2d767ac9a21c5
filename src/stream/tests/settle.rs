//! The end of training: when a node says that all is delivered, and that it holds what all hold.

use super::takeover::{Run, quick, with_run};
use super::*;

/// Of a position in pieces the last may come long after the first.
fn very_lossy() -> Faults {
    Faults {
        drop: 0.7,
        ..lossy()
    }
}

fn lossy() -> Faults {
    Faults {
        drop: 0.3,
        duplicate: 0.1,
        ..Faults::default()
    }
}

fn at_least(run: &Run<'_, '_>, node: u16, settled: Settled) -> bool {
    let streamer = run.world.streamer(node);
    streamer.is_some_and(|one| one.settled() >= settled)
}

/// Iterations that a node has made at its end.
fn made(node: u16) -> u64 {
    1000 * (1 + u64::from(node))
}

/// What a narrow payload cannot say: neighbours of very different size.
fn add_uneven(run: &mut Run<'_, '_>, node: u16) {
    let w = run.fleet.weights(node);
    for (i, added) in run.added.iter_mut().enumerate() {
        let more = (i % 7 * i * 1001) as f32;
        w.racy_add(i, more);
        *added += more;
    }
}

fn finish(run: &mut Run<'_, '_>, nodes: &[u16]) {
    for node in nodes {
        run.world.set_iterations(*node, made(*node));
        run.world.finish(*node, 1);
    }
}

/// At the moment at which a node says that it is equal, its weights are all that was ever added,
/// and it knows what the others have made.
fn is_equal_once_it_says_so(run: &mut Run<'_, '_>) {
    is_equal_at_tempo(run, STEP_NS);
}

/// The same where a streamer has its turn so often.
fn is_equal_at_tempo(run: &mut Run<'_, '_>, step_ns: u64) {
    let mut left = run.living.clone();
    let until_ns = run.world.now_ns() + step_ns * 100_000;
    while !left.is_empty() {
        // Step by step: what comes a moment later hides what was said too early.
        run.world.step_by(step_ns);
        assert!(run.world.now_ns() < until_ns, "{left:?} never equal");
        let says = |node: &u16| at_least(run, *node, Settled::Equal);
        let Some(at) = left.iter().position(says) else {
            continue;
        };
        let node = left.swap_remove(at);
        let w = run.fleet.weights(node);
        let differ = (0..run.added.len()).filter(|i| w.load(*i) != run.added[*i]);
        assert_eq!(differ.count(), 0, "seed {}: node {node}", run.seed);
        let others = run.living.iter().filter(|other| **other != node);
        let known = run.world.streamer(node).map(Streamer::remote_iterations);
        let all = others.map(|other| made(*other)).sum();
        assert_eq!(known, Some(all), "seed {}: node {node}", run.seed);
    }
}

#[test]
fn who_says_equal_is_equal() {
    for precision in [Dtype::F32, Dtype::Bf16, Dtype::Int8] {
        for seed in 0..12 {
            let config = Config {
                precision,
                ..quick(3, seed)
            };
            let faults = [lossy(), very_lossy()][seed as usize / 2 % 2];
            with_run(seed, &config, faults, |run| {
                run.work(&[0, 1, 2], 300);
                add_uneven(run, 1);
                finish(run, &[0, 1, 2]);
                // A link may be so thin that claims go round before a turn of all chunks does.
                is_equal_at_tempo(run, [STEP_NS, 5_000_000][seed as usize % 2]);
            });
        }
    }
}

/// Those that leave give what they stream to others, who begin with rounded positions.
#[test]
fn who_is_equal_stays_so_while_others_leave() {
    for (precision, seed) in [Dtype::F32, Dtype::Bf16, Dtype::Int8]
        .into_iter()
        .flat_map(|precision| [0, 1, 2, 3].map(|seed| (precision, seed)))
    {
        let config = Config {
            precision,
            ..quick(4, seed)
        };
        with_run(seed, &config, lossy(), |run| {
            run.work(&[0, 1, 2, 3], 300);
            add_uneven(run, 1);
            finish(run, &[0, 1, 2, 3]);
            is_equal_once_it_says_so(run);
            for node in [0, 2, 1] {
                run.world.leave(node);
                let until_ns = run.world.now_ns() + 1_000_000_000;
                while run.world.streamer(node).is_some_and(|one| !one.has_left()) {
                    run.world.step();
                    assert!(run.world.now_ns() < until_ns, "node {node} stays");
                    for node in run.living.iter().copied() {
                        let w = run.fleet.weights(node);
                        let differ = (0..run.added.len()).filter(|i| w.load(*i) != run.added[*i]);
                        assert_eq!(differ.count(), 0, "seed {seed}, {precision:?}: node {node}");
                    }
                }
                run.world.kill(node);
                run.living.retain(|other| *other != node);
            }
        });
    }
}

#[test]
fn who_still_works_is_waited_for() {
    with_run(1, &quick(3, 1), lossy(), |run| {
        run.work(&[0, 1, 2], 300);
        finish(run, &[0, 2]);
        for node in [0, 2] {
            run.wait("delivered", |run| at_least(run, node, Settled::Delivered));
        }
        let waits_for_one = |run: &Run<'_, '_>, node| {
            let one = run.world.streamer(node).expect("it is there");
            one.unsettled(run.world.now_ns()).collect::<Vec<u16>>() == [1]
        };
        for node in [0, 2] {
            run.wait("only node 1 is waited for", |run| waits_for_one(run, node));
        }
        run.work(&[1], 300);
        assert!(!at_least(run, 0, Settled::All) && !at_least(run, 2, Settled::All));
        assert!(waits_for_one(run, 0) && waits_for_one(run, 2));
        finish(run, &[1]);
        is_equal_once_it_says_so(run);
        // One goes on: all see that it does, and the end comes again.
        run.world.finish(0, 0);
        let is_back = |run: &Run<'_, '_>| (1..3).all(|node| !at_least(run, node, Settled::All));
        run.wait("not equal any more", is_back);
        run.work(&[0], 100);
        finish(run, &[0]);
        is_equal_once_it_says_so(run);
        // So short a time that no streamer has looked meanwhile.
        let w = run.fleet.weights(0);
        for (i, added) in run.added.iter_mut().enumerate() {
            w.store(i, w.load(i) + 1.0);
            *added += 1.0;
        }
        run.world.finish(0, 2);
        assert!(!at_least(run, 0, Settled::Delivered));
        run.wait("equal again", |run| at_least(run, 0, Settled::Equal));
        run.settle();
    });
}

#[test]
fn who_is_silent_is_waited_for() {
    with_run(2, &quick(3, 2), Faults::default(), |run| {
        run.work(&[0, 1, 2], 300);
        run.settle();
        finish(run, &[0, 1, 2]);
        run.world.kill(2);
        run.living.retain(|node| *node != 2);
        run.wait("its range taken", |run| run.is_taken(2, &[0, 1]));
        for node in [0, 1] {
            run.wait("delivered", |run| at_least(run, node, Settled::Delivered));
            let others = run.world.streamer(node).expect("it is there");
            let others: Vec<u16> = others.unsettled(run.world.now_ns()).collect();
            assert!(others.contains(&2) && !at_least(run, node, Settled::Equal));
        }
        run.world.restart(2);
        run.living.push(2);
        finish(run, &[2]);
        is_equal_once_it_says_so(run);
    });
}

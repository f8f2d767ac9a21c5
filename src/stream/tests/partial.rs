//! A master is killed while it adds a delta, and another node takes its range: what of the delta it
//! has added counts once.

use std::sync::atomic::Ordering::Relaxed;

use zerocopy::IntoBytes;

use super::takeover::{Run, quick, with_run};
use super::*;
use crate::stream::common::chunk_flags::OUTSTANDING;
use crate::weights::{JournalOp, kernels};

/// Weights of the delta that are added when the kill comes.
const DONE: usize = 16;

fn faults() -> Faults {
    Faults {
        delay_ns: 50_000,
        ..Faults::default()
    }
}

/// `master` is killed while it adds the first weights of what is under way to it from `slave`.
fn kill_in_a_delta(run: &mut Run<'_, '_>, master: u16, slave: u16) {
    let (theirs, own) = (run.fleet.state(slave), run.fleet.state(master));
    // The first chunk of all is in the range of node 0.
    let (state, applied) = (theirs.chunk(0), &own.applied(0)[usize::from(slave)]);
    let sent = theirs.sent().slice(0, 2 * DONE);
    let delta = || -> Vec<f32> { (0..2 * DONE).map(|i| sent.load(i)).collect() };
    // Both what is added before the kill and what is not.
    let is_there = || {
        delta()
            .chunks(DONE)
            .all(|part| part.iter().sum::<f32>() > 0.0)
    };
    let is_under_way = || {
        let number = applied.load(Relaxed).wrapping_add(1);
        state.flags.load(Relaxed) & OUTSTANDING != 0 && state.seq.load(Relaxed) == number
    };
    while !is_under_way() || !is_there() {
        let i = run.world.random_below(2 * DONE);
        let w = run.fleet.weights(slave);
        w.store(i, w.load(i) + 1.0);
        run.added[i] += 1.0;
        run.world.step();
    }
    run.world.kill(master);
    let (journal, number) = (own.journal(), state.seq.load(Relaxed));
    journal.begin_at(JournalOp::Apply, 0, slave, number, 0, 0);
    let w = run.fleet.weights(master).slice(0, DONE);
    kernels::apply_delta(w, delta()[..DONE].as_bytes(), 0, journal, Writes::Racy);
}

/// Another node has the range meanwhile, and the slave sends the delta to that one.
#[test]
fn what_a_killed_master_added_of_a_delta_counts_once() {
    for nodes in [2, 3, 5] {
        with_run(1, &quick(nodes, 0), faults(), |run| {
            let all: Vec<u16> = (0..nodes).collect();
            run.work(&all, 500);
            run.settle();
            kill_in_a_delta(run, 0, 1);
            run.living.retain(|node| *node != 0);
            let others = run.living.clone();
            if nodes > 2 {
                run.wait("taken over", |run| run.is_taken(0, &others));
            }
            run.work(&others, 500);
            run.world.restart(0);
            run.living.clone_from(&all);
            run.work(&all, 500);
            run.settle();
            assert!(!run.fleet.state(0).has_partials());
            assert_eq!(run.counts(|one| one.doubled_deltas), 0);
        });
    }
}

/// The same, but the slave is dead when the master is back: it says later what the delta was.
#[test]
fn it_counts_once_where_the_slave_was_dead_too() {
    with_run(1, &quick(4, 0), faults(), |run| {
        run.work(&[0, 1, 2, 3], 500);
        run.settle();
        kill_in_a_delta(run, 0, 2);
        run.living = vec![1, 2, 3];
        run.wait("taken over", |run| run.is_taken(0, &[1, 2, 3]));
        run.work(&[1, 2, 3], 500);
        run.world.kill(2);
        run.living = vec![1, 3];
        run.wait("taken over again", |run| run.is_taken(2, &[1, 3]));
        run.world.restart(0);
        run.living = vec![0, 1, 3];
        run.wait("joined", |run| run.counts(|one| one.forks_joined) > 0);
        run.work(&[0, 1, 3], 500);
        run.world.restart(2);
        run.living = vec![0, 1, 2, 3];
        run.settle();
        assert_eq!(run.counts(|one| one.doubled_deltas), 0);
    });
}

/// A slave has a delta under way to a master that is killed while it adds it. That master is back
/// before another has its range, and gives the range away before it hears the slave again. Gives
/// master and slave, which it does not hear still.
fn given_away(run: &mut Run<'_, '_>) -> (u16, u16) {
    run.work(&[0, 1, 2], 500);
    run.settle();
    run.world.kill(0);
    run.living = vec![1, 2];
    run.wait("taken over", |run| run.is_taken(0, &[1, 2]));
    let heir = run.world.streamer(1).and_then(|one| one.owner(0)).unwrap();
    let slave = 3 - heir;
    run.work(&[1, 2], 500);
    kill_in_a_delta(run, heir, slave);
    let nothing = Faults {
        drop: 1.0,
        ..faults()
    };
    run.world.set_way(slave, heir, nothing);
    steps(run.world, 100);
    run.world.restart(heir);
    run.world.restart(0);
    run.living = vec![0, 1, 2];
    run.wait("back at home", |run| {
        run.is_taken(0, &[0, 1, 2]) && run.is_taken(0, &[0])
    });
    (heir, slave)
}

#[test]
fn it_counts_once_where_the_range_is_given_away() {
    with_run(1, &quick(3, 0), faults(), |run| {
        given_away(run);
        run.world.set_faults(faults());
        run.work(&[0, 1, 2], 500);
        run.settle();
        assert_eq!(run.counts(|one| one.doubled_deltas), 0);
    });
}

/// That master leaves meanwhile. It stays until the slave has said what the delta was, and others
/// have what it then takes out; also where all else was delivered long before.
#[test]
fn who_leaves_settles_what_it_owes() {
    [3, 2].into_iter().for_each(settles_what_it_owes);
}

fn settles_what_it_owes(masters: u16) {
    let config = Config {
        masters,
        ..quick(3, 0)
    };
    with_run(1, &config, faults(), |run| {
        let (heir, slave) = given_away(run);
        run.world.leave(heir);
        steps(run.world, 20_000);
        let left = |run: &Run<'_, '_>| run.world.streamer(heir).is_some_and(Streamer::has_left);
        assert!(!left(run), "the slave is silent");
        let remains = |run: &Run<'_, '_>| {
            let one = run.world.streamer(heir).expect("it is there");
            one.remains(run.world.now_ns()).to_string()
        };
        assert!(
            remains(run).contains(&format!("node {slave} has yet to say which")),
            "{}",
            remains(run)
        );
        run.world.set_faults(faults());
        run.wait("left", left);
        assert!(
            run.world
                .streamer(heir)
                .is_some_and(Streamer::has_delivered)
        );
        run.world.kill(heir);
        run.living = vec![0, slave];
        run.settle();
        assert_eq!(run.counts(|one| one.doubled_deltas), 0);
    });
}

//! Nodes that master nothing: they take all positions, send deltas, and lose and double nothing.

use super::*;

fn with_masters(masters: u16) -> Config {
    Config {
        masters,
        ..config(Deltas::ExactlyOnce)
    }
}

/// One or two masters of three nodes; any of them gets killed.
#[test]
fn slaves_of_all_weights_lose_and_double_nothing() {
    for seed in 0..60 {
        let folder = folder();
        let fleet = Fleet::new(&with_masters(1 + (seed % 2) as u16), folder.path()).unwrap();
        let mut world = World::new(&fleet, storm(seed), seed);
        kill_and_settle(&mut world, &fleet, 4, seed);
        let sent = |node| world.streamer(node).unwrap().counters().positions_sent;
        assert!(sent(0) > 0);
        assert_eq!(sent(2), 0, "a slave sends no positions");
    }
}

/// The only master loses its memory, then a slave does: both get everything back from the others.
#[test]
fn a_lost_memory_comes_back_from_slaves_and_to_slaves() {
    for (seed, loser) in (0..40).zip([0, 2].into_iter().cycle()) {
        let folder = folder();
        let mut fleet = Fleet::new(&with_masters(1), folder.path()).unwrap();
        let (before, now) = {
            let mut world = World::new(&fleet, storm(seed), seed);
            wait_ready(&mut world, seed);
            let added = add_for_a_while(&mut world, &fleet, 200);
            settle(&mut world, &fleet, &added, seed);
            (added, world.now_ns())
        };
        let again = folder.path().join("again.stream");
        fleet.lose(loser, &again).unwrap();
        let mut world = World::new(&fleet, storm(seed), seed + 1).at(now);
        wait_ready(&mut world, seed);
        settle(&mut world, &fleet, &before, seed);
        let more = add_for_a_while(&mut world, &fleet, 200);
        let want: Vec<f32> = before.iter().zip(&more).map(|(a, b)| a + b).collect();
        settle(&mut world, &fleet, &want, seed);
    }
}

#[test]
fn nodes_that_count_masters_otherwise_are_named() {
    let folder = folder();
    let one = with_masters(1);
    let all = with_masters(NODES);
    let fleet = Fleet::new(&one, folder.path()).unwrap();
    let mut world = World::new(&fleet, Faults::default(), 1);
    let stranger = strangers::hello(&all, 2, |_, _| {});
    world.inject(0, &stranger);
    let difference = Difference::Masters {
        theirs: NODES,
        ours: 1,
    };
    let report = Report::OtherShape {
        node: 2,
        difference,
    };
    assert_eq!(world.take_reports(0), [report]);
    assert!(report.to_string().contains("masters there"), "{report}");
}

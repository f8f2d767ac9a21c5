//! Frames that claim too much, two processes with one index, other data, other first weights.

use super::*;
use crate::wire::{Dtype, Frame, Header, Hello, Kind, NodeSeen};

/// A hello as `sender` of a job like `config` would send it, with `change` made to both parts.
pub(super) fn hello(
    config: &Config,
    sender: u16,
    change: impl FnOnce(&mut Header, &mut Hello),
) -> Vec<u8> {
    let mut hello = Hello {
        fingerprint: config.fingerprint,
        data: config.data,
        first_weights: config.first_weights,
        incarnation: config.incarnation + u64::from(sender) + 1,
        chunk_weights: config.chunk_weights,
        chunks: config.chunks,
        nodes: config.nodes,
        later: 0,
        stay: crate::wire::Stay::Stays,
        settled: false,
        masters: config.masters,
        trained_ms: 0,
        first: 0,
        seen: vec![NodeSeen::default(); config.nodes.into()],
    };
    let mut header = Header {
        kind: Kind::Hello,
        flags: 0,
        dtype: Dtype::None,
        acks: 0,
        seq: 0,
        session: config.session,
        epoch: 0,
        sender,
        range: u16::MAX,
        chunk: 0,
        chunk_version: 0,
        iterations: 0,
        payload_len: Hello::len(config.nodes.into()) as u32,
        content: 0,
        part: 0,
        held: 0,
    };
    change(&mut header, &mut hello);
    let mut bytes = vec![0; header.frame_len()];
    hello.emit(header.emit(&mut bytes).1);
    bytes
}

/// What goes to all nodes in one world arrives at all of the other, as on one network.
fn join<'a>(one: &mut World<'a>, two: &mut World<'a>, steps: usize) {
    for _ in 0..steps {
        one.step();
        two.step();
        let (from_one, from_two) = (one.overhear(), two.overhear());
        for (world, frames) in [(&mut *one, from_two), (two, from_one)] {
            for frame in frames {
                (0..NODES).for_each(|node| world.inject(node, &frame));
            }
        }
    }
}

/// The fleet of another job with the same session: its own memory, what else `change` makes.
fn another(folder: &Path, change: impl FnOnce(&mut Config)) -> (Config, Fleet) {
    let mut config = Config {
        incarnation: 1000,
        ..config(Deltas::ExactlyOnce)
    };
    change(&mut config);
    let folder = folder.join("another");
    std::fs::create_dir(&folder).unwrap();
    let fleet = Fleet::new(&config, &folder).unwrap();
    (config, fleet)
}

fn remote(world: &World<'_>, node: u16) -> u64 {
    world.streamer(node).unwrap().remote_iterations()
}

#[test]
fn forged_iterations_are_not_believed_and_are_named() {
    let config = config(Deltas::ExactlyOnce);
    let folder = folder();
    let fleet = Fleet::new(&config, folder.path()).unwrap();
    let mut world = World::new(&fleet, Faults::default(), 6);
    // As nodes of a job that goes on where another ended.
    let forged = [1, 2].map(|node| hello(&config, node, |header, _| header.iterations = u64::MAX));
    for node in 0..NODES {
        world.set_iterations(node, 40_000 + u64::from(node));
    }
    // Before the job begins, and all the time.
    forged.iter().for_each(|frame| world.inject(0, frame));
    wait_ready(&mut world, 6);
    world.step();
    assert_eq!(remote(&world, 0), 80_003, "high, and known at once");
    let mut named = Vec::new();
    for step in 0..30_000 {
        if step % 7 == 0 {
            forged.iter().for_each(|frame| world.inject(0, frame));
        }
        if step == 10_000 {
            world.set_iterations(1, 41_001);
        }
        world.step();
        assert!(remote(&world, 0) <= 81_003, "{}", remote(&world, 0));
        named.extend(world.take_reports(0));
    }
    assert_eq!(remote(&world, 0), 81_003, "what is true is still learnt");
    for node in [1, 2] {
        assert!(
            named.iter().any(|report| matches!(
                report,
                Report::Iterations { node: n, claimed: u64::MAX, .. } if *n == node
            )),
            "{named:?}"
        );
    }
    assert!(world.streamer(0).unwrap().counters().refused_claims > 0);
    // In the place of a node that is gone: hellos bring nothing.
    world.kill(1);
    steps(&mut world, 5_000);
    for _ in 0..100 {
        world.inject(0, &forged[0]);
        steps(&mut world, 1_000);
    }
    assert_eq!(remote(&world, 0), 81_003);
}

/// The order in which the sum of two forged claims ran over its 64 bits and ended the streamer.
#[test]
fn the_highest_claims_of_all_nodes_do_not_overflow() {
    let config = config(Deltas::ExactlyOnce);
    let folder = folder();
    let fleet = Fleet::new(&config, folder.path()).unwrap();
    let mut world = World::new(&fleet, Faults::default(), 8);
    for node in 0..NODES {
        world.set_iterations(node, u64::MAX);
    }
    wait_ready(&mut world, 8);
    steps(&mut world, 10_000);
    for node in 0..NODES {
        assert!(remote(&world, node) < 1 << 60);
    }
}

#[test]
fn two_jobs_with_one_session_are_named_on_both_sides() {
    let folder = folder();
    let fleet = Fleet::new(&config(Deltas::ExactlyOnce), folder.path()).unwrap();
    let (_, other_fleet) = another(folder.path(), |_| {});
    let mut one = World::new(&fleet, Faults::default(), 1).listen();
    let mut two = World::new(&other_fleet, Faults::default(), 2).listen();
    join(&mut one, &mut two, 20_000);
    for world in [&mut one, &mut two] {
        for node in 0..NODES {
            let reports = world.take_reports(node);
            assert!(
                reports.contains(&Report::SameNode { node }),
                "node {node}: {reports:?}"
            );
        }
    }
}

#[test]
fn a_second_process_with_an_index_is_named_by_all_three() {
    let folder = folder();
    let fleet = Fleet::new(&config(Deltas::ExactlyOnce), folder.path()).unwrap();
    let (_, other_fleet) = another(folder.path(), |_| {});
    let mut one = World::new(&fleet, Faults::default(), 1).listen();
    wait_ready(&mut one, 1);
    let mut two = World::new(&other_fleet, Faults::default(), 2).listen();
    [0, 2].into_iter().for_each(|node| two.kill(node));
    one.overhear();
    (one.burst, two.burst) = (1, 1);
    // Hellos of nodes that are ready are half a second apart.
    join(&mut one, &mut two, 110_000);
    for (world, node) in [(&mut one, 1), (&mut two, 1)] {
        let reports = world.take_reports(node);
        assert!(reports.contains(&Report::SameNode { node }), "{reports:?}");
    }
    for node in [0, 2] {
        let reports = one.take_reports(node);
        let wanted = Report::TwoLives { node: 1 };
        assert!(reports.contains(&wanted), "{node}: {reports:?}");
    }
}

#[test]
fn a_node_that_lost_its_memory_is_no_second_process() {
    let folder = folder();
    let fleet = Fleet::new(&config(Deltas::ExactlyOnce), folder.path()).unwrap();
    let (_, other_fleet) = another(folder.path(), |config| config.first_weights = 0xbad);
    let mut one = World::new(&fleet, Faults::default(), 1).listen();
    wait_ready(&mut one, 1);
    steps(&mut one, 1_000);
    one.kill(1);
    let mut two = World::new(&other_fleet, Faults::default(), 2).listen();
    [0, 2].into_iter().for_each(|node| two.kill(node));
    one.overhear();
    join(&mut one, &mut two, 30_000);
    for node in [0, 2] {
        assert_eq!(one.take_reports(node), [Report::NewLife { node: 1 }]);
    }
    // Nor does it complain of weights that are not those it began with.
    assert_eq!(two.take_reports(1), []);
}

#[test]
fn a_node_with_other_data_is_named_and_nothing_is_taken_from_it() {
    let config = config(Deltas::ExactlyOnce);
    let folder = folder();
    let fleet = Fleet::new(&config, folder.path()).unwrap();
    let (other, other_fleet) = another(folder.path(), |config| config.data = 0xbad);
    let mut one = World::new(&fleet, Faults::default(), 1).listen();
    let mut two = World::new(&other_fleet, Faults::default(), 2).listen();
    one.kill(1);
    [0, 2].into_iter().for_each(|node| two.kill(node));
    join(&mut one, &mut two, 10_000);
    for node in [0, 2] {
        let wanted = Report::OtherData {
            node: 1,
            theirs: 0xbad,
            ours: 0xda,
        };
        assert_eq!(one.take_reports(node), [wanted]);
    }
    let theirs = two.take_reports(1);
    for node in [0, 2] {
        let wanted = Report::OtherData {
            node,
            theirs: 0xda,
            ours: 0xbad,
        };
        assert!(theirs.contains(&wanted), "{theirs:?}");
    }
    // A position of it, as it would come if it went on from an earlier run.
    let header = Header {
        kind: Kind::Position,
        dtype: Dtype::F32,
        acks: NODES as u8,
        epoch: crate::stream::epochs::epoch_of(1, 1),
        range: 1,
        chunk: Ranges::new(CHUNKS, NODES, NODES, NODES).of(1).start,
        chunk_version: 1,
        payload_len: CHUNK_WEIGHTS * 4,
        ..Frame::parse(&hello(&other, 1, |_, _| {})).unwrap().header
    };
    let mut position = vec![0; header.frame_len()];
    header.emit(&mut position).1.fill(1);
    let taken = |world: &World<'_>| world.streamer(0).unwrap().counters().positions_taken;
    let before = taken(&one);
    one.inject(0, &position);
    assert_eq!(taken(&one), before);
    // Its hello fits again: its positions count again.
    let fits = hello(&config, 1, |_, hello| {
        hello.incarnation = 1002;
        hello.seen[0].life = config.incarnation as u32 + 1;
    });
    one.inject(0, &fits);
    one.inject(0, &position);
    assert_eq!(taken(&one), before + 1);
}

#[test]
fn a_forged_hello_with_other_data_shuts_nobody_out() {
    let config = config(Deltas::ExactlyOnce);
    let folder = folder();
    let fleet = Fleet::new(&config, folder.path()).unwrap();
    let mut world = World::new(&fleet, Faults::default(), 5);
    wait_ready(&mut world, 5);
    let forged = hello(&config, 1, |_, hello| {
        hello.data = 0xbad;
        hello.incarnation = 77;
    });
    let shape = |world: &World<'_>| {
        let counters = world.streamer(0).unwrap().counters();
        counters.dropped_for(DropReason::Shape)
    };
    for _ in 0..100 {
        world.inject(0, &forged);
        steps(&mut world, 100);
    }
    // The hellos themselves, and no other frame.
    assert_eq!(shape(&world), 100);
    // One with the right incarnation does, until the next hello of the node.
    let copied = hello(&config, 1, |_, hello| hello.data = 0xbad);
    world.inject(0, &copied);
    world.burst = 1;
    steps(&mut world, 60_000);
    let dropped = shape(&world);
    assert!(dropped > 101, "{dropped}");
    steps(&mut world, 1_000);
    assert_eq!(shape(&world), dropped);
}

#[test]
fn other_first_weights_are_named_while_the_job_is_new() {
    let config = config(Deltas::ExactlyOnce);
    let folder = folder();
    let fleet = Fleet::new(&config, folder.path()).unwrap();
    let mut world = World::new(&fleet, Faults::default(), 5);
    let other = hello(&config, 1, |_, hello| hello.first_weights = 0xbad);
    let trained = hello(&config, 1, |header, hello| {
        header.iterations = 5;
        hello.first_weights = 0xbad;
    });
    // Either goes on with a job that was new once.
    world.inject(0, &trained);
    world.set_iterations(0, 5);
    world.inject(0, &other);
    assert_eq!(world.take_reports(0), []);
    world.set_iterations(0, 0);
    world.inject(0, &other);
    let report = Report::OtherFirstWeights {
        node: 1,
        theirs: 0xbad,
        ours: 0x77,
    };
    assert_eq!(world.take_reports(0), [report]);
    // The job goes on all the same, and a node that comes back with others later is welcome.
    wait_ready(&mut world, 5);
    world.inject(0, &other);
    assert_eq!(world.take_reports(0), []);
}

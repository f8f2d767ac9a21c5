//! Nodes that lose their memory, one or several, once or twice, with frames of former lives still
//! on the way: no chunk is refused for ever, nothing that a living node added is lost or doubled.

use super::*;
use crate::stream::epochs::epoch_of;
use crate::wire::{Frame, Header, Kind};

/// A fleet whose nodes may each lose their memory so many times.
pub(super) fn fleet_with_lives(config: &Config, lives: usize, folder: &Path) -> Fleet {
    let mut fleet = Fleet::new(config, folder).unwrap();
    for node in 0..config.nodes {
        for life in 1..=lives {
            let path = folder.join(format!("n{node}-life{life}.stream"));
            fleet.add_life(node, &path).unwrap();
        }
    }
    fleet
}

/// Adds 1.0 to random weights of the nodes that are ready, now and then.
fn add(world: &mut World<'_>, fleet: &Fleet, added: &mut [f32], steps: usize) {
    for _ in 0..steps {
        let node = world.random_below(NODES as usize) as u16;
        if world.streamer(node).is_some_and(Streamer::ready) {
            let i = world.random_below(added.len());
            let w = fleet.weights(node);
            w.store(i, w.load(i) + 1.0);
            added[i] += 1.0;
        }
        world.step();
    }
}

/// A frame of zeros that `sender` could send: what `of` makes of the header of its hello.
fn frame_of(config: &Config, sender: u16, of: impl FnOnce(Header) -> Header) -> Vec<u8> {
    let hello = strangers::hello(config, sender, |_, _| {});
    let header = of(Frame::parse(&hello).unwrap().header);
    let mut bytes = vec![0; header.frame_len()];
    header.emit(&mut bytes);
    bytes
}

fn nothing() -> Vec<f32> {
    vec![0.0; (CHUNKS * CHUNK_WEIGHTS) as usize]
}

storms! {
    memory_that_is_lost_twice_in_a_row_freezes_nothing: 8 of 40;
    living_nodes_lose_nothing_when_a_master_loses_its_memory: 20 of 100;
    a_slave_that_lost_its_memory_takes_no_number_of_its_former_life: 20 of 100;
    memory_is_lost_while_another_is_given_back: 10 of 60;
}

/// A node loses its memory, and again before, while and right after it has its range back.
fn memory_that_is_lost_twice_in_a_row_freezes_nothing(seeds: Range<u64>) {
    for seed in seeds {
        let folder = folder();
        let fleet = fleet_with_lives(&config(Deltas::ExactlyOnce), 5, folder.path());
        let mut world = World::new(&fleet, storm(seed), seed);
        wait_ready(&mut world, seed);
        let mut added = nothing();
        add(&mut world, &fleet, &mut added, 300);
        settle(&mut world, &fleet, &added, seed);
        for _ in 0..5 {
            world.lose(1);
            let wait = world.random_below(20_000);
            steps(&mut world, wait);
        }
        wait_ready(&mut world, seed);
        settle(&mut world, &fleet, &added, seed);
        add(&mut world, &fleet, &mut added, 300);
        settle(&mut world, &fleet, &added, seed);
    }
}

/// A master loses its memory in the middle of the work of others. What they added stays, whatever
/// of it was confirmed, under way or applied and not heard of. What the master added and had
/// not yet sent is gone, so it adds nothing here.
fn living_nodes_lose_nothing_when_a_master_loses_its_memory(seeds: Range<u64>) {
    for seed in seeds {
        let folder = folder();
        let fleet = fleet_with_lives(&config(Deltas::ExactlyOnce), 2, folder.path());
        let mut world = World::new(&fleet, storm(seed), seed);
        wait_ready(&mut world, seed);
        let mut added = nothing();
        let lost = (seed % u64::from(NODES)) as u16;
        for _ in 0..2 {
            for _ in 0..400 {
                // So many that no delta is empty.
                for _ in 0..16 {
                    let node = (lost + 1 + world.random_below(2) as u16) % NODES;
                    let i = world.random_below(added.len());
                    let w = fleet.weights(node);
                    w.store(i, w.load(i) + 1.0);
                    added[i] += 1.0;
                }
                world.step();
            }
            world.lose(lost);
        }
        wait_ready(&mut world, seed);
        settle(&mut world, &fleet, &added, seed);
    }
}

/// A slave loses its memory with deltas on the way, which come late. What the new life adds is
/// neither taken for them nor the other way round.
fn a_slave_that_lost_its_memory_takes_no_number_of_its_former_life(seeds: Range<u64>) {
    for seed in seeds {
        let folder = folder();
        // Many chunks, one at a time: late deltas are not so many versions late that they are
        // refused for that.
        let config = Config {
            masters: 1,
            chunks: 60,
            ..config(Deltas::ExactlyOnce)
        };
        let fleet = fleet_with_lives(&config, 3, folder.path());
        let late = Faults {
            reorder: 0.5,
            reorder_ns: 60_000_000,
            ..storm(seed)
        };
        let mut world = World::new(&fleet, late, seed);
        world.burst = 1;
        wait_ready(&mut world, seed);
        let mut added = vec![0.0; fleet.weights(0).len()];
        for _ in 0..3 {
            // The former life adds powers of two above those of the living, which tells them apart.
            for _ in 0..2_000 {
                for _ in 0..4 {
                    let i = world.random_below(added.len());
                    let w = fleet.weights(2);
                    w.store(i, w.load(i) + 4096.0);
                }
                world.step();
            }
            world.lose(2);
            let ready = |world: &mut World<'_>| world.streamer(2).unwrap().ready();
            assert!(
                wait_until(&mut world, 200_000, ready),
                "seed {seed}: not ready"
            );
            add(&mut world, &fleet, &mut added, 2_000);
            // All of it arrives before the memory is lost again.
            for _ in 0..600 {
                steps(&mut world, 500);
                if fleet.identical() {
                    break;
                }
            }
            assert!(fleet.identical(), "seed {seed}: replicas are not equal");
        }
        let w = fleet.weights(0);
        for (i, added) in added.iter().enumerate() {
            let living = w.load(i) % 4096.0;
            assert_eq!(living, *added, "seed {seed}: weight {i} of {}", w.load(i));
        }
    }
}

/// Two nodes lose their memory, the second while the first is asking; the third has all of it.
fn memory_is_lost_while_another_is_given_back(seeds: Range<u64>) {
    for seed in seeds {
        let folder = folder();
        let fleet = fleet_with_lives(&config(Deltas::ExactlyOnce), 2, folder.path());
        let mut world = World::new(&fleet, storm(seed), seed);
        wait_ready(&mut world, seed);
        let mut added = nothing();
        add(&mut world, &fleet, &mut added, 300);
        settle(&mut world, &fleet, &added, seed);
        world.lose(1);
        let wait = world.random_below(3_000);
        steps(&mut world, wait);
        world.lose(2);
        wait_ready(&mut world, seed);
        settle(&mut world, &fleet, &added, seed);
    }
}

/// Node 2 was cut off while the others went on; then node 1 loses its memory. It has it back from
/// node 0, whose replica is the newest, and not from the node that was away.
#[test]
fn a_range_comes_back_from_the_newest_replica() {
    for seed in 0..10 {
        let folder = folder();
        let fleet = fleet_with_lives(&config(Deltas::ExactlyOnce), 1, folder.path());
        let faults = Faults {
            delay_ns: 20_000,
            ..Faults::default()
        };
        let mut world = World::new(&fleet, faults, seed);
        wait_ready(&mut world, seed);
        // The lowest index is the one that was away.
        let cut = Faults {
            drop: 1.0,
            ..faults
        };
        for other in [1, 2] {
            world.set_way(0, other, cut);
            world.set_way(other, 0, cut);
        }
        let mut added = nothing();
        for _ in 0..400 {
            let i = world.random_below(added.len());
            let w = fleet.weights(2);
            w.store(i, w.load(i) + 1.0);
            added[i] += 1.0;
            world.step();
        }
        steps(&mut world, 5_000);
        world.set_faults(faults);
        world.lose(1);
        wait_ready(&mut world, seed);
        settle(&mut world, &fleet, &added, seed);
    }
}

/// The node that was asked dies for good in the middle: another gives the rest.
#[test]
fn who_gives_may_die() {
    for seed in 0..10 {
        let folder = folder();
        let fleet = fleet_with_lives(&config(Deltas::ExactlyOnce), 1, folder.path());
        let mut world = World::new(&fleet, storm(seed), seed);
        wait_ready(&mut world, seed);
        let mut added = nothing();
        add(&mut world, &fleet, &mut added, 300);
        settle(&mut world, &fleet, &added, seed);
        world.lose(1);
        while world.streamer(1).unwrap().counters().restores_taken == 0 {
            world.step();
        }
        let giver = (0..NODES)
            .find(|node| world.streamer(*node).unwrap().counters().restores_sent > 0)
            .unwrap();
        world.kill(giver);
        let range = world.streamer(1).unwrap().own_weights();
        let streams = |world: &mut World<'_>| world.streamer(1).unwrap().has_joined(1);
        assert!(
            wait_until(&mut world, 500_000, streams),
            "seed {seed}: asks a dead node for ever"
        );
        let w = fleet.weights(1);
        assert!(range.clone().all(|i| w.load(i) == added[i]), "seed {seed}");
        world.restart(giver);
        wait_ready(&mut world, seed);
        settle(&mut world, &fleet, &added, seed);
    }
}

/// Nothing is sent to an asker that died: the queue of what it asked for ends.
#[test]
fn who_asked_and_died_is_answered_no_more() {
    let folder = folder();
    let fleet = fleet_with_lives(&config(Deltas::ExactlyOnce), 1, folder.path());
    let mut world = World::new(&fleet, Faults::default(), 4);
    wait_ready(&mut world, 4);
    world.lose(1);
    while world.streamer(1).unwrap().counters().restores_taken == 0 {
        world.step();
    }
    world.kill(1);
    let sent = |world: &World<'_>| -> u64 {
        [0, 2]
            .map(|node| world.streamer(node).unwrap().counters().restores_sent)
            .iter()
            .sum()
    };
    steps(&mut world, 1_000);
    let before = sent(&world);
    steps(&mut world, 100_000);
    assert_eq!(sent(&world), before);
}

/// An ask of a former life comes when its node streams again, and asks that were never made: the
/// range goes on after a hello, in a later epoch.
#[test]
fn a_late_or_forged_ask_freezes_nothing() {
    let folder = folder();
    let config = config(Deltas::ExactlyOnce);
    let fleet = fleet_with_lives(&config, 1, folder.path());
    let mut world = World::new(&fleet, Faults::default(), 4);
    wait_ready(&mut world, 4);
    let mut added = nothing();
    for counter in [2, 3, 40, 1 << 22, (1 << 24) - 1] {
        let ask = frame_of(&config, 1, |header| Header {
            kind: Kind::Ask,
            epoch: epoch_of(counter, 1),
            range: 1,
            chunk: Ranges::new(CHUNKS, NODES, NODES, NODES).of(1).start,
            payload_len: 0,
            ..header
        });
        world.inject(0, &ask);
        steps(&mut world, 10_000);
        add(&mut world, &fleet, &mut added, 100);
        settle(&mut world, &fleet, &added, 4);
    }
}

/// What one forged frame of a job without a key does to a chunk is over after a while: a version or
/// an epoch far ahead, a number that was not used, an acknowledgement that lies.
#[test]
fn a_forged_frame_freezes_no_chunk() {
    let config = config(Deltas::ExactlyOnce);
    let chunk = Ranges::new(CHUNKS, NODES, NODES, NODES).of(1).start;
    let forge = |change: &dyn Fn(&mut Header), acks: u8| {
        let mut header = Header {
            kind: Kind::Position,
            dtype: crate::wire::Dtype::F32,
            acks: NODES as u8,
            epoch: epoch_of(1, 1),
            range: 1,
            chunk,
            payload_len: CHUNK_WEIGHTS * 4,
            ..Frame::parse(&strangers::hello(&config, 1, |_, _| {}))
                .unwrap()
                .header
        };
        change(&mut header);
        let mut bytes = vec![0; header.frame_len()];
        header.emit(&mut bytes).0.fill(acks);
        bytes
    };
    let far = |header: &mut Header| header.chunk_version = 1 << 30;
    let later = |header: &mut Header| (header.epoch, header.chunk_version) = (epoch_of(9, 1), 5);
    let both = |header: &mut Header| {
        (header.epoch, header.chunk_version) = (epoch_of(60, 1), u32::MAX / 2)
    };
    let lies = |header: &mut Header| header.chunk_version = 60_000;
    let changes: [&dyn Fn(&mut Header); 4] = [&far, &later, &both, &lies];
    for (change, acks) in changes.into_iter().zip([0, 0, 9, 77]) {
        let folder = folder();
        let fleet = Fleet::new(&config, folder.path()).unwrap();
        let mut world = World::new(&fleet, Faults::default(), 4);
        wait_ready(&mut world, 4);
        world.inject(0, &forge(change, acks));
        // A second, and then hellos.
        steps(&mut world, 200_000);
        let mut added: Vec<f32> = (0..nothing().len())
            .map(|i| fleet.weights(1).load(i))
            .collect();
        settle(&mut world, &fleet, &added, 4);
        add(&mut world, &fleet, &mut added, 300);
        settle(&mut world, &fleet, &added, 4);
    }
}

/// A delta that was never sent, with the next number: the slave goes on under the master's count.
#[test]
fn a_forged_delta_stops_no_slave() {
    let config = config(Deltas::ExactlyOnce);
    let folder = folder();
    let fleet = Fleet::new(&config, folder.path()).unwrap();
    let mut world = World::new(&fleet, Faults::default(), 4);
    wait_ready(&mut world, 4);
    let chunk = Ranges::new(CHUNKS, NODES, NODES, NODES).of(1).start;
    steps(&mut world, 100);
    for seq in 0..=255 {
        let header = Header {
            kind: Kind::Delta,
            dtype: crate::wire::Dtype::F32,
            epoch: fleet
                .state(1)
                .node(1)
                .streamed
                .load(std::sync::atomic::Ordering::Relaxed),
            range: 1,
            chunk,
            seq,
            chunk_version: fleet
                .state(1)
                .chunk(chunk)
                .version
                .load(std::sync::atomic::Ordering::Relaxed),
            payload_len: CHUNK_WEIGHTS * 4,
            ..Frame::parse(&strangers::hello(&config, 0, |_, _| {}))
                .unwrap()
                .header
        };
        let mut bytes = vec![0; header.frame_len()];
        header.emit(&mut bytes);
        world.inject(1, &bytes);
    }
    steps(&mut world, 2_000);
    let resyncs = world.streamer(0).unwrap().counters().resyncs;
    assert!(
        resyncs > 0,
        "the forged deltas were not taken: the test tests nothing"
    );
    let mut added: Vec<f32> = (0..nothing().len())
        .map(|i| fleet.weights(1).load(i))
        .collect();
    settle(&mut world, &fleet, &added, 4);
    add(&mut world, &fleet, &mut added, 300);
    settle(&mut world, &fleet, &added, 4);
}

/// One node is dead for good, another loses its memory: that one is ready all the same, with what
/// the dead one had sent, and they go on. When the dead one comes back nothing is lost.
#[test]
fn a_node_is_ready_again_while_another_is_dead() {
    let cases = [
        (1, Dtype::F32, NODES),
        (2, Dtype::F32, NODES),
        (3, Dtype::Int8, NODES),
        (4, Dtype::F32, 1),
    ];
    for (seed, precision, masters) in cases {
        let folder = folder();
        let config = Config {
            precision,
            masters,
            ..config(Deltas::ExactlyOnce)
        };
        let fleet = fleet_with_lives(&config, 1, folder.path());
        let mut world = World::new(&fleet, storm(seed), seed);
        wait_ready(&mut world, seed);
        let mut added = nothing();
        add(&mut world, &fleet, &mut added, 300);
        settle(&mut world, &fleet, &added, seed);
        world.kill(2);
        world.lose(1);
        let ready = |world: &mut World<'_>| world.streamer(1).unwrap().ready();
        assert!(
            wait_until(&mut world, 800_000, ready),
            "seed {seed}: not ready"
        );
        let w = fleet.weights(1);
        assert!(
            (0..added.len()).all(|i| w.load(i) == added[i]),
            "seed {seed}"
        );
        for _ in 0..300 {
            let node = world.random_below(2) as u16;
            let i = world.random_below(added.len());
            let w = fleet.weights(node);
            w.store(i, w.load(i) + 1.0);
            added[i] += 1.0;
            world.step();
        }
        world.restart(2);
        wait_ready(&mut world, seed);
        settle(&mut world, &fleet, &added, seed);
    }
}

/// Hellos that were never sent: of an epoch far ahead, of a life that is not there.
#[test]
fn a_forged_hello_freezes_nothing() {
    let folder = folder();
    let config = config(Deltas::ExactlyOnce);
    let fleet = fleet_with_lives(&config, 1, folder.path());
    let mut world = World::new(&fleet, Faults::default(), 4);
    wait_ready(&mut world, 4);
    let mut added = nothing();
    for (counter, life) in [(7, 0), (1 << 22, 0), ((1 << 24) - 1, 77), (3, 78)] {
        let epoch = epoch_of(counter, 1);
        let forged = strangers::hello(&config, 0, |header, hello| {
            header.epoch = epoch;
            hello.incarnation = life;
            hello.seen[1].epoch = epoch;
            hello.seen[1].life = 99;
        });
        for node in [1, 2] {
            world.inject(node, &forged);
        }
        add(&mut world, &fleet, &mut added, 300);
        settle(&mut world, &fleet, &added, 4);
    }
    // One of them is told to a node that has just lost its memory.
    world.lose(1);
    steps(&mut world, 1);
    let forged = strangers::hello(&config, 0, |_, hello| {
        hello.seen[1].epoch = epoch_of(1 << 22, 1)
    });
    world.inject(1, &forged);
    wait_ready(&mut world, 4);
    settle(&mut world, &fleet, &added, 4);
}

/// Frames of this job with anything in their fields, at a node that streams and at one that asks.
#[test]
fn frames_with_any_fields_panic_nothing() {
    use rand::{RngExt, SeedableRng};
    let folder = folder();
    let config = config(Deltas::ExactlyOnce);
    let fleet = fleet_with_lives(&config, 1, folder.path());
    let mut world = World::new(&fleet, Faults::default(), 4);
    wait_ready(&mut world, 4);
    world.lose(1);
    let mut rng = rand_xoshiro::Xoshiro256PlusPlus::seed_from_u64(5);
    let genuine = strangers::hello(&config, 0, |_, _| {});
    let genuine = Frame::parse(&genuine).unwrap().header;
    for _ in 0..60_000 {
        let kind = Kind::ALL[rng.random_range(0..Kind::ALL.len())];
        let any = |rng: &mut rand_xoshiro::Xoshiro256PlusPlus| match rng.random_range(0..3) {
            0 => rng.random_range(0..8u32),
            1 => u32::MAX - rng.random_range(0..8u32),
            _ => rng.random(),
        };
        let header = Header {
            kind,
            dtype: if kind.has_weights() {
                Dtype::F32
            } else {
                Dtype::None
            },
            acks: [0, NODES as u8, 255][rng.random_range(0..3)],
            epoch: any(&mut rng),
            sender: rng.random_range(0..NODES),
            range: any(&mut rng) as u16,
            chunk: any(&mut rng),
            chunk_version: any(&mut rng),
            content: any(&mut rng) as u16,
            part: any(&mut rng) as u8,
            payload_len: 4 * [0, 2, 13, CHUNK_WEIGHTS][rng.random_range(0..4)],
            ..genuine
        };
        let mut bytes = vec![0; header.frame_len()];
        header.emit(&mut bytes).1.fill(rng.random_range(0..3));
        world.inject(rng.random_range(0..2), &bytes);
        world.step();
    }
    wait_ready(&mut world, 4);
}

/// A node asks for a replica where a master is away. The answer comes when that master is back, and
/// once more when the node streams the range itself: it runs over nothing.
#[test]
fn a_replica_that_comes_late_runs_over_nothing() {
    let folder = folder();
    let config = config(Deltas::ExactlyOnce);
    let fleet = fleet_with_lives(&config, 1, folder.path());
    let mut world = World::new(&fleet, Faults::default(), 5);
    wait_ready(&mut world, 5);
    let mut added = nothing();
    add(&mut world, &fleet, &mut added, 100);
    settle(&mut world, &fleet, &added, 5);
    world.kill(1);
    let far = Faults {
        delay_ns: 200_000_000,
        ..Faults::default()
    };
    world.set_way(0, 2, far);
    world.lose(2);
    let sent = |world: &World<'_>| world.streamer(0).unwrap().counters().restores_sent;
    let before = sent(&world);
    while sent(&world) == before {
        world.step();
    }
    let sent_ns = world.now_ns();
    world.restart(1);
    while !world.streamer(2).unwrap().has_joined(1) {
        world.step();
    }
    assert!(
        world.now_ns() < sent_ns + far.delay_ns,
        "its master was sooner"
    );
    world.set_way(0, 2, Faults::default());
    wait_ready(&mut world, 5);
    world.kill(1);
    let streams = |world: &World<'_>| world.streamer(2).unwrap().streamed_weights();
    let own = streams(&world);
    while streams(&world) == own {
        world.step();
    }
    world.restart(1);
    add(&mut world, &fleet, &mut added, 100);
    for chunk in Ranges::new(CHUNKS, NODES, NODES, NODES).of(1) {
        let late = frame_of(&config, 0, |header| Header {
            kind: Kind::Restore,
            dtype: crate::wire::Dtype::F32,
            acks: NODES as u8,
            epoch: epoch_of(1, 1),
            range: 1,
            chunk,
            payload_len: CHUNK_WEIGHTS * 4,
            ..header
        });
        world.inject(2, &late);
    }
    settle(&mut world, &fleet, &added, 5);
}

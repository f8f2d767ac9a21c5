//! Checks: replicas that differ from what their master sent are found, named and set right, and
//! nothing that is as it should be is.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

use super::*;
use crate::stream::common::chunk_flags::{JOINED, OUTSTANDING};
use crate::wire::{Frame, Kind};

/// Chunks of which a pass takes several steps.
const MANY: u32 = 12;
const PRECISIONS: [Dtype; 3] = [Dtype::F32, Dtype::Bf16, Dtype::Int8];

fn many(precision: Dtype, merge: Merge) -> Config {
    Config {
        precision,
        merge,
        chunks: MANY,
        ..config(Deltas::ExactlyOnce)
    }
}

fn counts(world: &World<'_>, of: impl Fn(&Counters) -> u64) -> u64 {
    let streamers = (0..NODES).filter_map(|node| world.streamer(node));
    streamers.map(|one| of(one.counters())).sum()
}

/// Adds whole numbers to random weights.
fn add_some(world: &mut World<'_>, fleet: &Fleet, added: &mut [f32]) {
    for _ in 0..3 {
        let node = world.random_below(NODES.into()) as u16;
        let i = world.random_below(added.len());
        let w = fleet.weights(node);
        w.store(i, w.load(i) + 1.0);
        added[i] += 1.0;
    }
}

/// What is damaged of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    Last,
    WeightAndLast,
    Sent,
}

/// A value that one flipped bit of `x` makes (of a zero: two), and that is far from it.
fn flipped(x: f32) -> f32 {
    let masks = (0..32).rev().map(|bit| 1 << bit).chain([3 << 29]);
    let flips = masks.map(|mask| f32::from_bits(x.to_bits() ^ mask));
    let far = |flip: &f32| !flip.is_finite() || (flip - x).abs() > 1e6;
    flips.into_iter().find(far).expect("bits of an exponent")
}

/// The bits of weight `i` of a node: `w`, `last`, `sent`.
fn bits(fleet: &Fleet, node: u16, i: usize) -> [u32; 3] {
    let state = fleet.state(node);
    [fleet.weights(node), state.last(), state.sent()].map(|view| view.load(i).to_bits())
}

/// Damages a weight of the chunk that `check` is of, if the node holds that very position. Returns
/// the weight.
fn damage(fleet: &Fleet, node: u16, check: &Frame<'_>, at: usize, damage: Damage) -> Option<usize> {
    let (header, state) = (&check.header, fleet.state(node));
    let chunk = state.chunk(header.chunk);
    let flags = chunk.flags.load(Relaxed);
    let held = (chunk.epoch.load(Relaxed), chunk.version.load(Relaxed));
    if flags & JOINED == 0 || held != (header.epoch, header.chunk_version) {
        return None;
    }
    let pieces = match header.part {
        0 => 0..CHUNK_WEIGHTS as usize,
        part => fleet.config().piece(part - 1),
    };
    let i = (header.chunk * CHUNK_WEIGHTS) as usize + pieces.start + at % pieces.len();
    match damage {
        Damage::Last => state.last().store(i, flipped(state.last().load(i))),
        Damage::WeightAndLast => {
            for view in [state.last(), fleet.weights(node)] {
                view.store(i, view.load(i) + 1_048_576.0);
            }
        }
        Damage::Sent if flags & OUTSTANDING != 0 => {
            state.sent().store(i, flipped(state.sent().load(i)));
        }
        Damage::Sent => return None,
    }
    Some(i)
}

/// Damages a slave's memory while a check of it is on its way: it is named with its master and its
/// weight, and all is as it was. `whole`: all weights are whole numbers. Returns how often.
fn damage_and_check(
    world: &mut World<'_>,
    fleet: &Fleet,
    damaged: &mut BTreeSet<(u32, u16)>,
    (what, whole): (Damage, bool),
    seed: u64,
) -> u64 {
    let mut times = 0;
    for bytes in world.overhear() {
        let frame = Frame::parse(&bytes).expect("a frame of a streamer");
        if frame.header.kind != Kind::Check {
            continue;
        }
        for node in (0..NODES).filter(|node| *node != frame.header.sender) {
            let at = world.random_below(CHUNK_WEIGHTS as usize);
            let first = (frame.header.chunk * CHUNK_WEIGHTS) as usize;
            let before: Vec<_> = (first..first + CHUNK_WEIGHTS as usize)
                .map(|i| bits(fleet, node, i))
                .collect();
            // What is off by a rounding is not compared.
            let inexact = &world.streamer(node).expect("it lives").common.inexact;
            let held = (frame.header.epoch, frame.header.chunk_version);
            if inexact.get(&frame.header.chunk) == Some(&held) {
                continue;
            }
            let Some(i) = damage(fleet, node, &frame, at, what) else {
                continue;
            };
            let was = before[i - first];
            assert_ne!(bits(fleet, node, i), was);
            world.take_reports(node);
            world.inject(node, &bytes);
            let report = Report::Differs {
                node: frame.header.sender,
                first_weight: i as u64,
                weights: 1,
                chunk_weights: CHUNK_WEIGHTS,
            };
            let reports = world.take_reports(node);
            assert!(reports.contains(&report), "seed {seed}: {reports:?}");
            let now = bits(fleet, node, i);
            // What was rounded on the way cannot be had back: a large number was added to `w` and
            // taken from it, and `sent` is made from a sum.
            let rounding = match what {
                Damage::Last => [0.0, 0.0, 0.0],
                Damage::WeightAndLast if whole => [0.0, 0.0, 0.0],
                Damage::WeightAndLast => [0.25, 0.0, 0.0],
                Damage::Sent => [0.0, 0.0, 1e-3],
            };
            for ((was, now), rounding) in was.iter().zip(now).zip(rounding) {
                let apart = (f32::from_bits(*was) - f32::from_bits(now)).abs();
                assert!(
                    *was == now || apart < rounding,
                    "seed {seed}: weight {i} of node {node} is off by {apart}, {what:?}"
                );
            }
            for (other, was) in (first..).zip(&before).filter(|(other, _)| *other != i) {
                assert_eq!(
                    bits(fleet, node, other),
                    *was,
                    "seed {seed}: weight {other}"
                );
            }
            damaged.insert((frame.header.chunk, node));
            times += 1;
        }
    }
    times
}

storms! {
    a_bit_that_flips_is_named_and_set_right: 1 of 6;
    damage_that_goes_on_is_found_wherever_it_is: 2 of 20;
    what_is_as_it_should_be_is_never_named: 6 of 60;
}

/// In all precisions and merges, with and without loss, while all add and at rest.
fn a_bit_that_flips_is_named_and_set_right(seeds: Range<u64>) {
    for (precision, merge) in PRECISIONS
        .into_iter()
        .flat_map(|precision| [(precision, Merge::Sum), (precision, Merge::Mean)])
    {
        for what in [Damage::Last, Damage::WeightAndLast, Damage::Sent] {
            for seed in seeds.clone() {
                let folder = folder();
                let fleet = Fleet::new(&many(precision, merge), folder.path()).unwrap();
                let faults = Faults {
                    drop: 0.2 * (seed % 2) as f64,
                    delay_ns: 20_000,
                    ..Faults::default()
                };
                let mut world = World::new(&fleet, faults, seed).listen();
                world.burst = 1;
                wait_ready(&mut world, seed);
                let mut added = vec![0.0; (MANY * CHUNK_WEIGHTS) as usize];
                let mut damaged = BTreeSet::new();
                let (mut times, mut named) = (0, 0);
                for step in 0..60_000 {
                    if step < 30_000 {
                        add_some(&mut world, &fleet, &mut added);
                    }
                    world.step();
                    times += damage_and_check(
                        &mut world,
                        &fleet,
                        &mut damaged,
                        (what, merge == Merge::Sum),
                        seed,
                    );
                    named = counts(&world, |one| one.differing_chunks);
                }
                assert_eq!(named, times, "seed {seed}");
                assert!(
                    times > 20,
                    "{precision:?} {what:?} seed {seed}: {times} times"
                );
                if what != Damage::Sent && merge == Merge::Sum {
                    settle(&mut world, &fleet, &added, seed);
                }
            }
        }
    }
}

/// A program writes over what a slave holds of some chunks, all the time: each of them is named
/// within two rounds, and all is well again when it stops.
fn damage_that_goes_on_is_found_wherever_it_is(seeds: Range<u64>) {
    for precision in PRECISIONS {
        for seed in seeds.clone() {
            let folder = folder();
            let fleet = Fleet::new(&many(precision, Merge::Sum), folder.path()).unwrap();
            let faults = Faults {
                drop: 0.1,
                reorder: 0.1,
                reorder_ns: 100_000,
                delay_ns: 20_000,
                ..Faults::default()
            };
            let mut world = World::new(&fleet, faults, seed);
            world.burst = 1;
            wait_ready(&mut world, seed);
            let mut added = vec![0.0; (MANY * CHUNK_WEIGHTS) as usize];
            let victim = world.random_below(NODES.into()) as u16;
            let own = world.streamer(victim).unwrap().own_weights();
            let foreign = (0..MANY).map(|chunk| (chunk * CHUNK_WEIGHTS) as usize);
            let mut lacking: BTreeSet<u64> = foreign
                .filter(|first| !own.contains(first))
                .map(|first| first as u64)
                .collect();
            let begun_ns = world.now_ns();
            while !lacking.is_empty() {
                assert!(
                    world.now_ns() < begun_ns + 400_000_000,
                    "seed {seed}: {precision:?} not named: {lacking:?}"
                );
                if seed % 2 == 0 {
                    add_some(&mut world, &fleet, &mut added);
                }
                for first in &lacking {
                    let i = *first as usize + 7;
                    for view in [fleet.state(victim).last(), fleet.weights(victim)] {
                        view.store(i, view.load(i) + 1024.0);
                    }
                }
                world.step();
                for report in world.take_reports(victim) {
                    if let Report::Differs { first_weight, .. } = report {
                        let chunk = u64::from(CHUNK_WEIGHTS);
                        lacking.remove(&(first_weight / chunk * chunk));
                    }
                }
            }
            settle(&mut world, &fleet, &added, seed);
        }
    }
}

/// Kills, standstills, losses, doubled and late frames, frames that the adapter reads late, sparse
/// streams: many chunks are compared, and none differs.
fn what_is_as_it_should_be_is_never_named(seeds: Range<u64>) {
    for seed in seeds {
        let folder = folder();
        let config = Config {
            sparse: seed % 4 == 3,
            ..many(
                PRECISIONS[(seed % 3) as usize],
                [Merge::Sum, Merge::Mean][(seed / 3 % 2) as usize],
            )
        };
        let fleet = Fleet::new(&config, folder.path()).unwrap();
        let faults = Faults {
            unread_ns: if seed % 5 == 0 { 30_000 } else { 0 },
            ..storm(seed % 31)
        };
        let mut world = World::new(&fleet, faults, seed);
        world.burst = 1 + (seed % 4) as usize;
        wait_ready(&mut world, seed);
        let mut added = vec![0.0; (MANY * CHUNK_WEIGHTS) as usize];
        for round in 0..12 {
            let victim = world.random_below(NODES.into()) as u16;
            for step in 0..4_000 {
                match step {
                    1_000 if round % 2 == 0 => {
                        world.kill(victim);
                        world.restart(victim);
                    }
                    1_000 => world.pause(victim),
                    1_500 => world.go_on(victim),
                    _ => {}
                }
                if round % 3 < 2 {
                    add_some(&mut world, &fleet, &mut added);
                }
                world.step();
            }
            assert_eq!(counts(&world, |one| one.differing_chunks), 0, "seed {seed}");
        }
        let checked = counts(&world, |one| one.chunks_checked);
        assert!(checked > 10, "seed {seed}: {checked} compared");
    }
}

/// A forged check of a position that is not held changes nothing; one of a position that is held
/// puts other values in its place until the next position.
#[test]
fn a_forged_check_lasts_no_longer_than_a_forged_position() {
    let folder = folder();
    let config = many(Dtype::F32, Merge::Sum);
    let fleet = Fleet::new(&config, folder.path()).unwrap();
    let mut world = World::new(&fleet, Faults::default(), 9);
    world.burst = 1;
    wait_ready(&mut world, 9);
    let mut added = vec![0.0; (MANY * CHUNK_WEIGHTS) as usize];
    (0..500).for_each(|_| add_some(&mut world, &fleet, &mut added));
    settle(&mut world, &fleet, &added, 9);
    let held = fleet.state(1).chunk(0);
    let now = || (held.epoch.load(Relaxed), held.version.load(Relaxed));
    let forged = |epoch: u32, version: u32| {
        let genuine = strangers::hello(&config, 0, |_, _| {});
        let header = crate::wire::Header {
            kind: Kind::Check,
            dtype: Dtype::F32,
            epoch,
            range: 0,
            chunk: 0,
            chunk_version: version,
            payload_len: 4 * CHUNK_WEIGHTS,
            ..Frame::parse(&genuine).unwrap().header
        };
        let mut bytes = vec![0; header.frame_len()];
        let payload = header.emit(&mut bytes).1.as_chunks_mut::<4>().0;
        payload.fill(777f32.to_le_bytes());
        bytes
    };
    let (epoch, version) = now();
    for (epoch, version) in [
        (epoch, version + 1),
        (epoch, version - 1),
        (epoch + 256, version),
    ] {
        world.inject(1, &forged(epoch, version));
    }
    let counters = world.streamer(1).unwrap().counters();
    assert_eq!(counters.dropped_for(DropReason::Epoch), 1);
    assert_eq!(
        world.streamer(1).unwrap().epoch(0),
        epoch,
        "nothing is promised"
    );
    assert_eq!(counts(&world, |one| one.differing_chunks), 0);
    assert_eq!(fleet.weights(1).load(3), added[3]);
    world.inject(1, &forged(epoch, version));
    assert_eq!(fleet.weights(1).load(3), 777.0);
    let report = Report::Differs {
        node: 0,
        first_weight: 0,
        weights: CHUNK_WEIGHTS,
        chunk_weights: CHUNK_WEIGHTS,
    };
    assert!(world.take_reports(1).contains(&report));
    settle(&mut world, &fleet, &added, 9);
}

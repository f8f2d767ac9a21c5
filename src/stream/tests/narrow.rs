//! Payloads narrower than f32: nothing is lost or doubled, and replicas still end equal to the bit.

use std::sync::atomic::AtomicU32;

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::*;
use crate::sim::Limit;
use crate::weights::WeightsView;
use crate::wire::{Frame, Kind};

const NARROW: [Dtype; 2] = [Dtype::Bf16, Dtype::Int8];

fn narrow(precision: Dtype) -> Config {
    Config {
        precision,
        ..config(Deltas::ExactlyOnce)
    }
}

storms! {
    nothing_is_lost_or_doubled_in_any_precision: 12 of 80;
    killed_streamers_lose_and_double_nothing_in_any_precision: 10 of 30;
    replicas_end_equal_to_the_bit_in_any_precision: 5 of 30;
    a_master_that_lost_its_weights_gets_the_very_bits_back: 4 of 20;
    sparse_streams_lose_nothing_and_send_what_moves: 5 of 30;
    deltas_that_change_their_precision_lose_and_double_nothing: 12 of 80;
}

pub(super) fn nothing_is_lost_or_doubled_in_any_precision(seeds: Range<u64>) {
    for precision in NARROW {
        for seed in seeds.clone() {
            let folder = folder();
            let fleet = Fleet::new(&narrow(precision), folder.path()).unwrap();
            let mut world = World::new(&fleet, storm(seed), seed);
            wait_ready(&mut world, seed);
            // Sums that neither payload can say at once.
            let mut added = add_for_a_while(&mut world, &fleet, 600);
            let (node, i) = (world.random_below(NODES as usize) as u16, 5);
            let w = fleet.weights(node);
            w.store(i, w.load(i) + 1_000_003.0);
            added[i] += 1_000_003.0;
            let more = add_for_a_while(&mut world, &fleet, 200);
            added.iter_mut().zip(more).for_each(|(a, b)| *a += b);
            settle(&mut world, &fleet, &added, seed);
        }
    }
}

pub(super) fn killed_streamers_lose_and_double_nothing_in_any_precision(seeds: Range<u64>) {
    for precision in NARROW {
        for seed in seeds.clone() {
            let folder = folder();
            let fleet = Fleet::new(&narrow(precision), folder.path()).unwrap();
            let mut world = World::new(&fleet, storm(seed), seed);
            wait_ready(&mut world, seed);
            let mut added = vec![0.0; (CHUNKS * CHUNK_WEIGHTS) as usize];
            for _ in 0..5 {
                let victim = world.random_below(NODES as usize) as u16;
                world.kill(victim);
                let more = add_for_a_while(&mut world, &fleet, 80);
                added.iter_mut().zip(more).for_each(|(a, b)| *a += b);
                world.restart(victim);
                let more = add_for_a_while(&mut world, &fleet, 80);
                added.iter_mut().zip(more).for_each(|(a, b)| *a += b);
            }
            settle(&mut world, &fleet, &added, seed);
        }
    }
}

/// Deltas are coarse now and then, and streamers are killed: a delta that is sent again is the
/// same, whatever its precision is by then.
fn deltas_that_change_their_precision_lose_and_double_nothing(seeds: Range<u64>) {
    for seed in seeds {
        let folder = folder();
        let fleet = Fleet::new(&narrow(Dtype::Int8), folder.path()).unwrap();
        let mut world = World::new(&fleet, storm(seed), seed);
        wait_ready(&mut world, seed);
        let mut added = vec![0.0; (CHUNKS * CHUNK_WEIGHTS) as usize];
        for turn in 0..12 {
            crate::stream::coarse::force(Some(world.random_below(2) == 0));
            let victim = world.random_below(2 * NODES as usize) as u16;
            let dies = victim < NODES && turn % 2 == 0;
            if dies {
                world.kill(victim);
            }
            let more = add_for_a_while(&mut world, &fleet, 100);
            added.iter_mut().zip(more).for_each(|(a, b)| *a += b);
            if dies {
                world.restart(victim);
            }
        }
        crate::stream::coarse::force(None);
        settle(&mut world, &fleet, &added, seed);
    }
}

/// Turns of several steps make deltas coarse, and solvers that stand make them fine again.
#[test]
fn deltas_are_coarse_where_turns_take_steps() {
    let folder = folder();
    let fleet = Fleet::new(&narrow(Dtype::Int8), folder.path()).unwrap();
    let limit = Limit {
        bytes_per_s: 20_000.0,
        burst_bytes: 2_000,
        known_frame_bytes: 128,
    };
    let faults = Faults {
        limit: Some(limit),
        ..Faults::default()
    };
    let mut world = World::new(&fleet, Faults::default(), 1);
    wait_ready(&mut world, 1);
    world.set_faults(faults);
    let mut made = 0;
    // New deltas in int8, and in int2.
    let mut pass = |ms: u64, works: bool| {
        let sent = |world: &World<'_>| {
            let counters = *world.streamer(0).unwrap().counters();
            let new = counters.deltas_sent - counters.deltas_repeated;
            [new - counters.deltas_coarse, counters.deltas_coarse]
        };
        let before = sent(&world);
        for _ in 0..ms {
            made += u64::from(works);
            for node in 0..NODES {
                world.set_iterations(node, made);
                let w = fleet.weights(node);
                let i = world.random_below(w.len());
                w.store(i, w.load(i) + if works { 1.0 } else { 0.0 });
            }
            world.step_by(1_000_000);
        }
        let now = sent(&world);
        [now[0] - before[0], now[1] - before[1]]
    };
    pass(3_000, true);
    let [fine, coarse] = pass(3_000, true);
    assert!(coarse > 0 && fine == 0, "{fine} fine, {coarse} coarse");
    pass(10_000, false);
    let [fine, coarse] = pass(3_000, false);
    assert!(fine > 0 && coarse == 0, "{fine} fine, {coarse} coarse");
    assert!(fleet.identical());
}

/// Moves weights by amounts of all sizes, those that bf16 has no bits for among them.
fn move_for_a_while(world: &mut World<'_>, fleet: &Fleet, steps: usize, seed: u64) {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    for _ in 0..steps {
        let node = random.random_range(0..NODES);
        let i = random.random_range(0..(CHUNKS * CHUNK_WEIGHTS) as usize);
        let size = 10f32.powi(random.random_range(-44..3));
        let w = fleet.weights(node);
        w.store(i, w.load(i) + random.random_range(-1.0..1.0) * size);
        world.step();
    }
}

/// Steps until all nodes hold the same bits, positions too, and still do a while later.
fn settle_equal(world: &mut World<'_>, fleet: &Fleet, seed: u64) {
    for _ in 0..60 {
        for _ in 0..1_000 {
            world.step();
        }
        if fleet.identical() {
            for _ in 0..2_000 {
                world.step();
                assert!(fleet.identical(), "seed {seed}: equal, then apart again");
            }
            return check_positions(fleet);
        }
    }
    for i in 0..(CHUNKS * CHUNK_WEIGHTS) as usize {
        let all: Vec<f32> = (0..NODES).map(|node| fleet.weights(node).load(i)).collect();
        if all.iter().any(|x| x.to_bits() != all[0].to_bits()) {
            eprintln!("weight {i}: {all:?}");
        }
    }
    panic!("seed {seed}: replicas did not become equal");
}

/// What of a delta a payload cannot say follows in ever smaller parts, and those move no bit of the
/// master. They keep no slave from the exact values, which come in pieces.
#[test]
fn a_delta_that_moves_nothing_keeps_no_piece_away() {
    for precision in NARROW {
        let folder = folder();
        let config = Config {
            merge: Merge::Mean,
            ..narrow(precision)
        };
        let fleet = Fleet::new(&config, folder.path()).unwrap();
        let mut world = World::new(&fleet, Faults::default(), 1);
        // A pass takes longer than a frame.
        world.burst = 1;
        wait_ready(&mut world, 1);
        (0..NODES).for_each(|node| world.set_iterations(node, 100));
        let cycles = |world: &World<'_>| world.streamer(0).unwrap().counters().cycles;
        let before = cycles(&world);
        // Opposite movements: the master stays near 0, where a rest has all bits of a float.
        for i in 0..CHUNK_WEIGHTS as usize {
            fleet.weights(1).store(i, 0.1 * (1 + i) as f32);
            fleet.weights(2).store(i, -0.1 * (1 + i) as f32);
        }
        while !fleet.identical() {
            world.step();
        }
        let passes = cycles(&world) - before;
        // 14, and 38 where pieces wait.
        assert!(passes < 25, "{precision:?}: equal after {passes} passes");
        check_positions(&fleet);
    }
}

fn check_positions(fleet: &Fleet) {
    let len = (CHUNKS * CHUNK_WEIGHTS) as usize;
    for node in 0..NODES {
        let copy: Vec<AtomicU32> = (0..len).map(|_| AtomicU32::new(0)).collect();
        let (state, w) = (fleet.state(node), fleet.weights(node));
        copy_positions(state, w, WeightsView::of(&copy));
        for i in 0..len {
            let position = WeightsView::of(&copy).load(i);
            assert_eq!(position.to_bits(), w.load(i).to_bits(), "weight {i}");
        }
    }
}

pub(super) fn replicas_end_equal_to_the_bit_in_any_precision(seeds: Range<u64>) {
    for precision in NARROW {
        for merge in [Merge::Sum, Merge::Mean] {
            for seed in seeds.clone() {
                let folder = folder();
                let config = Config {
                    merge,
                    ..narrow(precision)
                };
                let fleet = Fleet::new(&config, folder.path()).unwrap();
                let mut world = World::new(&fleet, storm(seed), seed);
                wait_ready(&mut world, seed);
                move_for_a_while(&mut world, &fleet, 1_000, seed);
                settle_equal(&mut world, &fleet, seed);
            }
        }
    }
}

fn a_master_that_lost_its_weights_gets_the_very_bits_back(seeds: Range<u64>) {
    for precision in NARROW {
        for seed in seeds.clone() {
            let folder = folder();
            let mut fleet = Fleet::new(&narrow(precision), folder.path()).unwrap();
            let now = {
                let mut world = World::new(&fleet, storm(seed), seed);
                wait_ready(&mut world, seed);
                move_for_a_while(&mut world, &fleet, 500, seed);
                settle_equal(&mut world, &fleet, seed);
                world.now_ns()
            };
            let bits = |fleet: &Fleet| -> Vec<u32> {
                let w = fleet.weights(1);
                (0..w.len()).map(|i| w.load(i).to_bits()).collect()
            };
            let before = bits(&fleet);
            fleet
                .lose(1, &folder.path().join("n1-again.stream"))
                .unwrap();
            let mut world = World::new(&fleet, storm(seed), seed + 1).at(now);
            wait_ready(&mut world, seed);
            settle_equal(&mut world, &fleet, seed);
            assert_eq!(bits(&fleet), before, "{precision:?} seed {seed}");
        }
    }
}

/// A frame that no streamer sends: a restore in bytes.
#[test]
fn a_restore_that_is_not_f32_is_refused() {
    let folder = folder();
    let mut fleet = Fleet::new(&narrow(Dtype::Int8), folder.path()).unwrap();
    wait_ready(&mut World::new(&fleet, Faults::default(), 1), 1);
    fleet
        .lose(1, &folder.path().join("n1-again.stream"))
        .unwrap();
    let faults = Faults {
        drop: 0.5,
        ..Faults::default()
    };
    let mut world = World::new(&fleet, faults, 2).at(1_000_000_000);
    let refused = |world: &World<'_>| {
        let streamer = world.streamer(1).unwrap();
        let shapes = streamer.counters().dropped_for(DropReason::Shape);
        (streamer.ready(), shapes)
    };
    let chunk = Ranges::new(CHUNKS, NODES, NODES, NODES).of(1).start;
    let piece = CHUNK_WEIGHTS as usize / 2;
    let header = crate::wire::Header {
        kind: Kind::Restore,
        flags: 0,
        dtype: Dtype::Int8,
        acks: 0,
        seq: 0,
        session: 0x5e55,
        epoch: crate::stream::epochs::epoch_of(1, 0),
        sender: 0,
        range: 1,
        chunk,
        chunk_version: 1,
        iterations: 0,
        payload_len: Dtype::Int8.payload_len(piece) as u32,
        content: 0,
        part: 0,
        held: 0,
    };
    let mut bytes = vec![0; header.frame_len()];
    header.emit(&mut bytes);
    for _ in 0..100_000 {
        world.step();
        world.inject(1, &bytes);
        if refused(&world).0 {
            break;
        }
    }
    let (ready, shapes) = refused(&world);
    assert!(ready && shapes > 0, "{shapes}");
}

/// While weights move none but the first piece is sent (between two moves); when they rest pieces
/// in f32 follow, and a slave that missed the whole does not take them.
#[test]
fn pieces_follow_when_weights_rest() {
    for precision in NARROW {
        let folder = folder();
        let fleet = Fleet::new(&narrow(precision), folder.path()).unwrap();
        let mut world = World::new(&fleet, Faults::default(), 1).listen();
        wait_ready(&mut world, 1);
        let own = world.streamer(0).unwrap().own_weights();
        let parts = |world: &mut World<'_>| -> Vec<u8> {
            let frames = world.overhear();
            let frames = frames.iter().filter_map(|bytes| Frame::parse(bytes).ok());
            let of_node_0 =
                frames.filter(|f| f.header.kind == Kind::Position && f.header.sender == 0);
            of_node_0.map(|frame| frame.header.part).collect()
        };
        parts(&mut world);
        let mut random = Xoshiro256PlusPlus::seed_from_u64(3);
        for _ in 0..500 {
            for i in own.clone() {
                let w = fleet.weights(0);
                w.store(i, w.load(i) + random.random_range(-1.0..1.0));
            }
            world.step();
        }
        let moving = parts(&mut world);
        assert!(
            moving.len() > 50 && moving.iter().all(|part| *part < 2),
            "{moving:?}"
        );
        for _ in 0..500 {
            world.step();
        }
        let resting = parts(&mut world);
        assert!(resting.contains(&0) && resting.contains(&2), "{resting:?}");
        // With loss, some pieces come without their whole.
        world.set_faults(Faults {
            drop: 0.3,
            ..Faults::default()
        });
        let w = fleet.weights(0);
        for _ in 0..20 {
            own.clone().for_each(|i| w.store(i, w.load(i) + 0.3));
            for _ in 0..300 {
                world.step();
            }
        }
        let refused = world
            .streamer(1)
            .unwrap()
            .counters()
            .dropped_for(DropReason::Piece);
        assert!(refused > 0);
        settle_equal(&mut world, &fleet, 1);
    }
}

/// Those that move most go first, none is left for good: sums are kept, and ends are equal, in any
/// precision.
fn sparse_streams_lose_nothing_and_send_what_moves(seeds: Range<u64>) {
    for precision in [Dtype::F32, Dtype::Bf16, Dtype::Int8] {
        for seed in seeds.clone() {
            let folder = folder();
            let config = Config {
                sparse: true,
                ..narrow(precision)
            };
            let fleet = Fleet::new(&config, folder.path()).unwrap();
            let mut world = World::new(&fleet, storm(seed), seed);
            wait_ready(&mut world, seed);
            let added = add_for_a_while(&mut world, &fleet, 600);
            settle(&mut world, &fleet, &added, seed);
        }
        let sent = |sparse| {
            let folder = folder();
            let config = Config {
                sparse,
                ..narrow(precision)
            };
            let fleet = Fleet::new(&config, folder.path()).unwrap();
            let mut world = World::new(&fleet, Faults::default(), 1).listen();
            wait_ready(&mut world, 1);
            world.overhear();
            // A thin link: one frame between two moves.
            world.burst = 1;
            let own = world.streamer(0).unwrap().own_weights();
            for _ in 0..500 {
                // The first chunk moves, the others rest.
                let w = fleet.weights(0);
                w.store(own.start, w.load(own.start) + 1.0);
                world.step();
            }
            let frames = world.overhear();
            let frames = frames.iter().filter_map(|bytes| Frame::parse(bytes).ok());
            let own = frames.filter(|f| f.header.kind == Kind::Position && f.header.sender == 0);
            let chunks: Vec<u32> = own.map(|frame| frame.header.chunk).collect();
            let first = chunks.iter().filter(|chunk| **chunk == 0).count();
            (first as f64 / chunks.len() as f64, chunks.len() - first)
        };
        let ((in_turn, _), (sparse, others)) = (sent(false), sent(true));
        // Two chunks: half of the frames each, or eight of nine for the one that moves.
        assert!((in_turn - 0.5).abs() < 0.05, "{in_turn}");
        assert!(
            (0.8..0.95).contains(&sparse) && others > 10,
            "{sparse}, {others}"
        );
    }
}

#[test]
fn a_frame_holds_twice_and_nearly_four_times_the_weights() {
    let weights = |precision| chunk_weights_for(1472, 2, precision).unwrap();
    assert_eq!(weights(Dtype::F32), 352);
    assert_eq!(weights(Dtype::Bf16), 704);
    assert_eq!(weights(Dtype::Int8), 1344);
}

//! Answers that leave before the next turn of their chunk: in storms nothing is lost or doubled,
//! and what a slave did is in the next position.

use std::sync::atomic::Ordering::Relaxed;

use super::*;
use crate::sim::Limit;
use crate::stream::lead::forced;
use crate::wire::{Dtype, Frame, Header, Kind};

storms! {
    storms_lose_and_double_nothing: 8 of 200;
    thin_links_lose_and_double_nothing: 8 of 200;
    every_delta_counts_by_its_portion_once: 8 of 60;
    nothing_is_lost_in_any_precision: 8 of 60;
    kills_lose_nothing_in_any_precision: 8 of 40;
    replicas_end_equal_in_any_precision: 4 of 20;
    who_joins_and_leaves_loses_nothing: 4 of 20;
}

/// A quarter of the seeds for each lead: one chunk to half of a range.
fn early(seeds: Range<u64>, check: fn(Range<u64>)) {
    let quarter = (seeds.end - seeds.start).div_ceil(4);
    for (place, lead) in (0..).zip([1, 40, 64, 128]) {
        let from = seeds.start + place * quarter;
        forced(lead, || check(from..(from + quarter).min(seeds.end)));
    }
}

fn storms_lose_and_double_nothing(seeds: Range<u64>) {
    early(seeds, storm::living_nodes_keep_their_work);
}

fn thin_links_lose_and_double_nothing(seeds: Range<u64>) {
    early(seeds, storm::thin_links_lose_and_double_nothing);
}

fn every_delta_counts_by_its_portion_once(seeds: Range<u64>) {
    early(seeds, merge::every_delta_counts_by_its_portion_once);
}

fn nothing_is_lost_in_any_precision(seeds: Range<u64>) {
    early(seeds, narrow::nothing_is_lost_or_doubled_in_any_precision);
}

fn kills_lose_nothing_in_any_precision(seeds: Range<u64>) {
    early(
        seeds,
        narrow::killed_streamers_lose_and_double_nothing_in_any_precision,
    );
}

fn replicas_end_equal_in_any_precision(seeds: Range<u64>) {
    early(
        seeds,
        narrow::replicas_end_equal_to_the_bit_in_any_precision,
    );
}

fn who_joins_and_leaves_loses_nothing(seeds: Range<u64>) {
    early(seeds, members::who_joins_and_leaves_loses_nothing);
}

/// Mean time until node 2 has what node 1 does in the range of node 0, in turns that take some 28
/// ms, ns.
fn seen_after_ns() -> u64 {
    let folder = folder();
    let config = Config {
        chunks: 288,
        ..config(Deltas::ExactlyOnce)
    };
    let faults = Faults {
        delay_ns: 100_000,
        limit: Some(Limit {
            bytes_per_s: 2e6,
            burst_bytes: 1500,
            known_frame_bytes: 192,
        }),
        ..Faults::default()
    };
    let fleet = Fleet::new(&config, folder.path()).unwrap();
    let mut world = World::new(&fleet, faults, 1);
    wait_ready(&mut world, 1);
    let mut made = 0;
    let mut step = |world: &mut World<'_>| {
        world.step_by(STRIDE_NS);
        made += 1;
        if made % 100 == 0 {
            for node in 0..NODES {
                world.set_iterations(node, made / 100);
            }
        }
    };
    (0..1000).for_each(|_| step(&mut world));
    let own = world.streamer(0).unwrap().own_weights();
    let mut took_ns = 0;
    const TRIALS: u64 = 100;
    for trial in 0..TRIALS {
        let i = own.start + world.random_below(own.len());
        let before = fleet.weights(2).load(i);
        fleet.weights(1).racy_add(i, 1.0);
        let begun_ns = world.now_ns();
        while fleet.weights(2).load(i) == before {
            step(&mut world);
            assert!(world.now_ns() < begun_ns + 1_000_000_000, "trial {trial}");
        }
        took_ns += world.now_ns() - begun_ns;
    }
    took_ns / TRIALS
}

/// An answer at once waits for a whole turn at the master, half of one on the average before it.
#[test]
fn what_a_slave_did_is_in_the_next_position_where_turns_take_steps() {
    let early = seen_after_ns();
    let mut at_once = 0;
    forced(0, || at_once = seen_after_ns());
    assert!(early * 10 < at_once * 6, "{early} and {at_once} ns");
}

/// A turn with the first lead calls for what was answered at once before. Without answers its
/// master would take every other look for a silence, and send a short window after each.
#[test]
fn a_turn_with_the_first_lead_is_no_silence() {
    let folder = folder();
    let config = Config {
        chunks: 288,
        window_frames: 8,
        ..config(Deltas::ExactlyOnce)
    };
    let faults = Faults {
        delay_ns: 100_000,
        ..Faults::default()
    };
    let fleet = Fleet::new(&config, folder.path()).unwrap();
    let mut world = World::new(&fleet, faults, 1);
    wait_ready(&mut world, 1);
    let mut turn_ns = |lead| {
        let cycles = |world: &World<'_>| world.streamer(0).unwrap().counters().cycles;
        let (began, begun_ns) = (cycles(&world), world.now_ns());
        forced(lead, || {
            while cycles(&world) == began {
                world.step_by(STRIDE_NS);
                assert!(world.now_ns() < begun_ns + 10_000_000_000, "lead {lead}");
            }
        });
        world.now_ns() - begun_ns
    };
    let before_ns = (0..20).map(|_| turn_ns(0)).max().unwrap();
    for lead in [64, 64, 0, 64] {
        let took_ns = turn_ns(lead);
        assert!(took_ns < 2 * before_ns, "{took_ns} and {before_ns} ns");
    }
}

/// A position that was answered early gets no second answer when it is called for again: so nothing
/// goes twice that is not known to be lost. The next position does. One that was answered at once
/// is answered once more.
#[test]
fn no_position_is_answered_twice() {
    let config = config(Deltas::ExactlyOnce);
    let first = Ranges::new(CHUNKS, NODES, NODES, NODES).of(1).start;
    answers_once(&config, first, first + 1);
}

/// A node may stream several ranges, one after the other in its turn. The last chunks of one call
/// for the first ones of the next.
#[test]
fn a_position_calls_for_a_chunk_of_the_next_range() {
    let config = Config {
        later: 13,
        chunks: 48,
        ..config(Deltas::ExactlyOnce)
    };
    let ranges = Ranges::new(config.chunks, NODES, NODES, config.places());
    let own = ranges.begun_by(1);
    let next = (0..config.places()).map(|range| ranges.of(range).start);
    let next = next.filter(|start| own.contains(start) && *start > own.start);
    for start in next {
        answers_once(&config, start - 1, start);
    }
    answers_once(&config, own.end - 1, own.start);
}

/// Position `calling` of node 1 calls for the delta of chunk `called`.
fn answers_once(config: &Config, calling: u32, called: u32) {
    let folder = folder();
    let ranges = Ranges::new(config.chunks, NODES, NODES, config.places());
    let fleet = Fleet::new(config, folder.path()).unwrap();
    let mut world = World::new(&fleet, Faults::default(), 1);
    wait_ready(&mut world, 1);
    // From here on positions of node 1 come by hand.
    [1, 2].into_iter().for_each(|node| world.kill(node));
    steps(&mut world, 100);
    let mut answers = |chunk: u32, lead: u8| {
        let state = fleet.state(0).chunk(chunk);
        let header = Header {
            kind: Kind::Position,
            dtype: Dtype::F32,
            acks: config.places() as u8,
            epoch: state.epoch.load(Relaxed),
            range: ranges.range_of(chunk),
            chunk,
            chunk_version: state.version.load(Relaxed) + 1,
            held: lead,
            payload_len: CHUNK_WEIGHTS * 4,
            ..Frame::parse(&strangers::hello(config, 1, |_, _| {}))
                .unwrap()
                .header
        };
        let mut bytes = vec![0; header.frame_len()];
        header.emit(&mut bytes).0.fill(state.seq.load(Relaxed));
        let sent = |world: &World<'_>| world.streamer(0).unwrap().counters().deltas_sent;
        let before = sent(&world);
        world.inject(0, &bytes);
        steps(&mut world, 2);
        assert_eq!(state.version.load(Relaxed), header.chunk_version);
        sent(&world) - before
    };
    // One chunk further on.
    const LEAD: u8 = 1;
    answers(called, LEAD);
    assert_eq!(answers(calling, LEAD), 1);
    assert_eq!(answers(calling, LEAD), 0, "answered early");
    assert_eq!(answers(called, 0), 1, "at once");
    assert_eq!(answers(calling, LEAD), 1, "answered at once");
    assert_eq!(answers(calling, LEAD), 0, "answered at once and early");
    answers(called, LEAD);
    assert_eq!(answers(calling, LEAD), 1);
    let range = ranges.range_of(called);
    if ranges.range_of(calling) != range {
        answers(called, LEAD);
        // Node 1 is to begin that range anew: it takes no answer to what it streamed before.
        let promised = &fleet.state(0).node(range).promised;
        promised.fetch_add(1 << 8, Relaxed);
        assert_eq!(answers(calling, LEAD), 0, "of the reign before");
    }
}

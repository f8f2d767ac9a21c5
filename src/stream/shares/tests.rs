//! Who gets how much of a link that carries less than all would send.

use crate::sim::{Faults, Fleet, Limit, STEP_NS, World};
use crate::stream::{Config, Counters, Deltas, Merge};
use crate::weights::Writes;
use crate::wire::Dtype;

const CHUNK_WEIGHTS: u32 = 352;
/// 100 Mbit/s.
const BYTES_PER_S: f64 = 12.5e6;

fn config(nodes: u16) -> Config {
    Config {
        session: 0x5e55,
        fingerprint: 0xf1,
        data: 0xda,
        first_weights: 0xf2,
        incarnation: 0,
        node: 0,
        nodes,
        later: 0,
        min_nodes: None,
        masters: nodes,
        chunk_weights: CHUNK_WEIGHTS,
        chunks: 400,
        deltas: Deltas::ExactlyOnce,
        merge: Merge::Sum,
        precision: Dtype::F32,
        sparse: false,
        writes: Writes::Racy,
        window_frames: 1400,
        silence_ns: crate::stream::SILENCE_NS,
    }
}

/// Bytes of a position.
fn frame_bytes(nodes: u16) -> usize {
    crate::wire::HEADER_LEN + crate::wire::acks_len(nodes as u8) + 4 * CHUNK_WEIGHTS as usize
}

fn known(nodes: u16) -> Limit {
    let frame = frame_bytes(nodes);
    Limit {
        bytes_per_s: BYTES_PER_S,
        burst_bytes: (BYTES_PER_S * 0.005) as usize + 8 * frame,
        known_frame_bytes: frame,
    }
}

/// As a laboratory's `tbf` has it: what does not fit is dropped, and no sender is told.
fn shaper() -> Limit {
    Limit {
        bytes_per_s: BYTES_PER_S,
        burst_bytes: 256 << 10,
        known_frame_bytes: 0,
    }
}

fn faults(limit: Limit) -> Faults {
    Faults {
        delay_ns: 50_000,
        limit: Some(limit),
        ..Faults::default()
    }
}

/// Of nodes that come later each answers too: so many more answers go to an own frame.
#[test]
fn who_comes_later_has_its_share_of_answers() {
    let room = Some(super::Room { now: 1, most: 8 });
    let answers = |shares: &mut super::Shares| {
        let mut went = 0;
        // Own frames always want to go.
        for _ in 0..800 {
            match shares.own_frames(1, room) {
                0 => {
                    shares.answer_sent();
                    went += 1;
                }
                _ => shares.own_sent(),
            }
        }
        went
    };
    let mut shares = super::Shares::new(2);
    assert_eq!(answers(&mut shares), 400);
    shares.share_with(7);
    let went = answers(&mut shares);
    assert!((690..=710).contains(&went), "{went}");
}

/// Who asks for a range holds it up until it has it: half of all frames are for that, however many
/// nodes answer. What the others leave goes to restores.
#[test]
fn half_of_the_frames_are_restores_where_any_are_wanted() {
    for nodes in [2, 3, 8] {
        let mut shares = super::Shares::new(nodes);
        // A frame at a time; answers come first, as they do in the streamer.
        let room = super::Room { now: 1, most: 8 };
        let none = super::Room { now: 0, ..room };
        let [mut answers, mut restores, mut own] = [0; 3];
        for _ in 0..700 {
            shares.restores(1, 1, Some(none));
            shares.own_frames(1, Some(none));
            if shares.may_answer() {
                shares.answer_sent();
                answers += 1;
            } else if shares.restores(1, 1, Some(room)) > 0 {
                shares.restore_sent();
                restores += 1;
            } else if shares.own_frames(1, Some(room)) > 0 {
                shares.own_sent();
                own += 1;
            }
        }
        let each = 350 / i32::from(nodes);
        assert!((330..370).contains(&restores), "{nodes} nodes: {restores}");
        assert!(
            (each - 20..each + 20).contains(&own),
            "{nodes} nodes: {own}"
        );
        assert!(answers + restores + own > 690, "{nodes} nodes");
    }
    let mut ahead = super::Shares::new(2);
    (0..8).for_each(|_| ahead.restore_sent());
    for (now, may) in [(6, 0), (7, 1), (8, 2)] {
        let room = Some(super::Room { now, most: 8 });
        assert_eq!(ahead.restores(8, 1, room), may, "others leave {now} frames");
    }
}

fn run(world: &mut World<'_>, ms: u64) {
    for _ in 0..ms * 1_000_000 / STEP_NS {
        world.step();
    }
}

fn counters(world: &World<'_>, nodes: u16) -> Vec<Counters> {
    (0..nodes)
        .filter_map(|node| world.streamer(node).map(|one| *one.counters()))
        .collect()
}

/// A second of streaming under `limit`, after one to get going: what each node counted in it.
fn second(nodes: u16, limit: Limit) -> Vec<Counters> {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let fleet = Fleet::new(&config(nodes), folder.path()).unwrap();
    let mut world = World::new(&fleet, faults(limit), 1);
    world.burst = 64;
    run(&mut world, 1000);
    let before = counters(&world, nodes);
    run(&mut world, 1000);
    let after = counters(&world, nodes);
    let pairs = after.iter().zip(&before);
    pairs
        .map(|(after, before)| Counters {
            positions_sent: after.positions_sent - before.positions_sent,
            positions_taken: after.positions_taken - before.positions_taken,
            deltas_sent: after.deltas_sent - before.deltas_sent,
            deltas_applied: after.deltas_applied - before.deltas_applied,
            ..Counters::default()
        })
        .collect()
}

/// `uneven`: the share by which nodes may differ.
fn check(nodes: u16, limit: Limit, uneven: f64) {
    let all = second(nodes, limit);
    let link = BYTES_PER_S / frame_bytes(nodes) as f64;
    let even = link / f64::from(nodes);
    for (node, one) in all.iter().enumerate() {
        let sent = one.positions_sent as f64;
        assert!(
            sent > even / (1.0 + uneven) && sent < even * (1.0 + uneven),
            "node {node} of {nodes}: {sent} positions, {even} would be even\n{all:#?}"
        );
        assert!(
            one.deltas_applied as f64 > 0.6 * sent * f64::from(nodes - 1),
            "node {node} of {nodes}: positions without an answer\n{all:#?}"
        );
        assert!(
            one.deltas_sent as f64 > 0.7 * one.positions_taken as f64,
            "node {node} of {nodes}: too few answers\n{all:#?}"
        );
    }
}

#[test]
fn positions_and_answers_share_a_rate_that_is_known() {
    for nodes in [2, 8] {
        check(nodes, known(nodes), 0.3);
    }
}

#[test]
fn positions_and_answers_share_a_link_that_drops_in_silence() {
    for nodes in [2, 8] {
        check(nodes, shaper(), 1.5);
    }
}

/// A node that has no other to answer uses all of the rate for its positions.
#[test]
fn a_share_that_is_not_used_goes_to_the_other_kind() {
    let nodes = 2;
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    // Without a window: where no node answers, it would be what limits.
    let config = Config {
        window_frames: 0,
        ..config(nodes)
    };
    let fleet = Fleet::new(&config, folder.path()).unwrap();
    let mut world = World::new(&fleet, faults(known(nodes)), 1);
    world.burst = 64;
    run(&mut world, 500);
    world.kill(1);
    let sent = |world: &World<'_>| world.streamer(0).unwrap().counters().positions_sent;
    run(&mut world, 100);
    let before = sent(&world);
    run(&mut world, 500);
    let link = 0.5 * BYTES_PER_S / frame_bytes(nodes) as f64;
    let went = (sent(&world) - before) as f64;
    assert!(went > 0.9 * link, "{went} of {link}");
}

/// While a range is given back, no node waits for another: the giver's own range streams on, and
/// answers go.
#[test]
fn restores_positions_and_answers_share_a_rate() {
    let nodes = 3;
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut fleet = Fleet::new(&config(nodes), folder.path()).unwrap();
    let now = {
        let mut world = World::new(&fleet, faults(known(nodes)), 1);
        world.burst = 64;
        run(&mut world, 1000);
        assert!((0..nodes).all(|node| world.streamer(node).unwrap().ready()));
        world.now_ns()
    };
    fleet.lose(2, &folder.path().join("lost.stream")).unwrap();
    let mut world = World::new(&fleet, faults(known(nodes)), 1).at(now);
    world.burst = 64;
    let mut ms = 0;
    while !world.streamer(2).unwrap().ready() {
        run(&mut world, 1);
        ms += 1;
        assert!(ms < 5_000, "not ready: {:#?}", counters(&world, nodes));
    }
    let after = counters(&world, nodes);
    let link = BYTES_PER_S / frame_bytes(nodes) as f64 / 1000.0 * f64::from(ms);
    assert!(after[0].restores_sent >= 133, "{after:#?}");
    // An even share is a third of the frames, half of it with restores.
    assert!(
        after[0].positions_sent as f64 > link / 6.0 * 0.5,
        "{ms} ms of {link} frames: {after:#?}"
    );
    assert!(after[0].deltas_sent as f64 > 0.5 * after[0].positions_taken as f64);
}

/// Frames that get lost by chance do so with a short window too, and must not keep it short.
#[test]
fn loss_by_chance_does_not_close_the_window() {
    let nodes = 2;
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let fleet = Fleet::new(&config(nodes), folder.path()).unwrap();
    let mut world = World::new(
        &fleet,
        Faults {
            drop: 0.3,
            delay_ns: 50_000,
            ..Faults::default()
        },
        1,
    );
    world.burst = 64;
    while !(0..nodes).all(|node| world.streamer(node).unwrap().ready()) {
        run(&mut world, 1);
    }
    let mut widest = 0;
    for _ in 0..20 {
        run(&mut world, 10);
        widest = widest.max(world.streamer(0).unwrap().window_frames());
    }
    let sent = world.streamer(0).unwrap().counters().positions_sent;
    // The range has 200 chunks; 8 frames in each 100 µs would be 16,000 at most.
    assert!(widest > 100, "{widest} frames");
    assert!(sent > 20_000, "{sent} positions in 200 ms");
}

const QUEUES_MS: u64 = 80;

/// Share of its link that node 0 of two fills in `ms`, and the time that frames spend in its queue,
/// ms, while other traffic fills it up to `others_ms`.
fn share_of_link(world: &mut World<'_>, ms: u64, others_ms: u64) -> (f64, f64) {
    let frames = |world: &World<'_>| {
        let counters = world.streamer(0).unwrap().counters();
        counters.positions_sent + counters.deltas_sent
    };
    let before = frames(world);
    let mut queued_ns = 0;
    for _ in 0..ms {
        for _ in 0..1_000_000 / STEP_NS {
            if others_ms > 0 {
                world.fill_queue(0, others_ms * 1_000_000);
            }
            world.step();
        }
        queued_ns += world.queue_ns(0);
    }
    let bytes = (frames(world) - before) as f64 * frame_bytes(2) as f64;
    let link = BYTES_PER_S * ms as f64 / 1e3;
    (bytes / link, queued_ns as f64 / ms as f64 / 1e6)
}

/// A link's rate is found without its queue being filled; who fills it gets the link, and gives it
/// back.
#[test]
fn a_queue_is_kept_short_and_left_to_who_fills_it() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let config = Config {
        chunks: 2000,
        ..config(2)
    };
    let fleet = Fleet::new(&config, folder.path()).unwrap();
    let deep = Limit {
        burst_bytes: (BYTES_PER_S * QUEUES_MS as f64 / 1e3) as usize,
        ..shaper()
    };
    let mut world = World::new(&fleet, faults(deep), 1);
    world.burst = 64;
    run(&mut world, 2000);
    let (share, queued_ms) = share_of_link(&mut world, 20_000, 0);
    assert!(share > 0.9, "{share} of the link");
    assert!(queued_ms < 10.0, "{queued_ms} ms in the queue");
    run_beside(&mut world, 1000);
    let (share, _) = share_of_link(&mut world, 2000, QUEUES_MS / 2);
    assert!((0.01..0.3).contains(&share), "{share} of the link with TCP");
    run(&mut world, 1000);
    let (share, queued_ms) = share_of_link(&mut world, 1000, 0);
    assert!(share > 0.9, "{share} of the link, afterwards");
    assert!(queued_ms < 10.0, "{queued_ms} ms in the queue, afterwards");
}

fn run_beside(world: &mut World<'_>, ms: u64) {
    share_of_link(world, ms, QUEUES_MS / 2);
}

/// A node without solvers has all its time for answers: it does not set the pace as long as a node
/// that learns lives.
#[test]
fn the_window_goes_by_the_answers_of_nodes_that_learn() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let fleet = Fleet::new(&config(3), folder.path()).unwrap();
    let mut world = World::new(&fleet, faults(shaper()), 1);
    world.set_iterations(1, 1);
    run(&mut world, 1000);
    let sent = |world: &mut World<'_>, ms: u64| {
        let positions = |world: &World<'_>| {
            let streamer = world.streamer(0).expect("it lives");
            streamer.counters().positions_sent
        };
        let before = positions(world);
        run(world, ms);
        positions(world) - before
    };
    let both = sent(&mut world, 400);
    // The node that learns is silent; the idle one goes on answering.
    world.kill(1);
    sent(&mut world, 100);
    let idle = sent(&mut world, 400);
    assert!(
        idle * 2 < both,
        "{idle} positions by answers of an idle node, {both} before"
    );
    // It is dead after a second: the idle one is all there is.
    sent(&mut world, 1000);
    let alone = sent(&mut world, 400);
    assert!(
        alone > both / 2,
        "{alone} positions for an idle node alone, {both} before"
    );
}

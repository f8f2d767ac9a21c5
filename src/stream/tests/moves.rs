//! Ranges that move between nodes that live: how long their positions stay away.

use super::joins::{is_ready, job, thin, time_until};
use super::*;

/// The oldest position that any of the nodes has of another's range, at any time until `over`, ms.
fn oldest_ms(world: &mut World<'_>, mut over: impl FnMut(&World<'_>) -> bool) -> f64 {
    let mut oldest_ns = 0;
    while !over(world) {
        world.step();
        let now_ns = world.now_ns();
        for node in 0..3 {
            let one = world.streamer(node).expect("it is there");
            let ages = (0..one.places()).map(|range| one.range_age_ns(range, now_ns));
            oldest_ns = ages.fold(oldest_ns, u64::max);
        }
    }
    oldest_ns as f64 / 1e6
}

/// The same for so many seconds from now on.
fn oldest_ms_in(world: &mut World<'_>, seconds: u64) -> f64 {
    let end_ns = world.now_ns() + seconds * 1_000_000_000;
    oldest_ms(world, |world| world.now_ns() >= end_ns)
}

/// Weights that `node` streams.
fn streamed(world: &World<'_>, node: u16) -> usize {
    let runs = world.streamer(node).map(Streamer::streamed_weights);
    let runs = runs.unwrap_or_default();
    runs.iter().map(ExactSizeIterator::len).sum()
}

/// A third node takes five ranges of sixteen over a thin link, one after the other. Positions are
/// older meanwhile, by two turns or three, and are as they stay in the second that follows.
#[test]
fn ranges_that_move_miss_few_turns() {
    for (seed, drop) in [(1, 0.0), (2, 0.02)] {
        let folder = folder();
        let config = Config {
            later: 14,
            ..job(2)
        };
        let fleet = Fleet::new(&config, folder.path()).unwrap();
        let mut world = World::new(&fleet, thin(drop), seed);
        let both = |world: &World<'_>| is_ready(world, 0) && is_ready(world, 1);
        time_until(&mut world, "ready", both);
        world.restart(2);
        time_until(&mut world, "joined", |world| is_ready(world, 2));
        let share = (CHUNK_WEIGHTS * config.chunks / 16 * 5) as usize;
        let moving = oldest_ms(&mut world, |world| streamed(world, 2) >= share);
        let moving = moving.max(oldest_ms_in(&mut world, 2));
        let next = oldest_ms_in(&mut world, 1);
        oldest_ms_in(&mut world, 8);
        let still = oldest_ms_in(&mut world, 4);
        assert_eq!(streamed(&world, 2), share);
        let said = format!(
            "loss of {drop}: the oldest position is {moving} ms old while ranges move, {next} ms \
             in the next second, {still} ms later"
        );
        eprintln!("{said}");
        assert!(moving < 4.0 * still && next < 1.5 * still, "{said}");
    }
}

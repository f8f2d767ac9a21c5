//! Masters that lost a range, or gave it away, and come back when those that know how it went on
//! are gone, silent or have just started.

use std::sync::atomic::Ordering::Relaxed;

use super::takeover::{Run, SILENCE_NS, SOON, quick, with_run};
use super::*;

fn near() -> Faults {
    Faults {
        delay_ns: 50_000,
        ..Faults::default()
    }
}

fn nothing() -> Faults {
    Faults {
        drop: 1.0,
        ..near()
    }
}

/// Who a range is streamed by, as far as `node` knows.
fn owner_at(run: &Run<'_, '_>, node: u16, range: u16) -> Option<u16> {
    run.world.streamer(node).and_then(|one| one.owner(range))
}

/// Steps until something holds, while `who` work.
fn work_until(run: &mut Run<'_, '_>, who: &[u16], holds: impl Fn(&Run<'_, '_>) -> bool) {
    let there = (0..16 * SOON).any(|_| {
        run.work(who, 1);
        holds(run)
    });
    assert!(there, "seed {}: never", run.seed);
}

/// Whether node 0 is about to stream range 0.
fn takes(run: &Run<'_, '_>) -> bool {
    let one = run.world.streamer(0);
    one.is_some_and(|one| one.restore.is_going(0))
}

/// A node gives a range back in order, and is cut off: before what it gives arrives, or after. The
/// next master dies before it is asked what it began from. The first node takes the range again,
/// from a third. Whether that has what it did is known by its number.
fn gives_back_and_takes_again(run: &mut Run<'_, '_>, arrives: bool) {
    let far = Faults {
        delay_ns: 1_000_000,
        ..near()
    };
    run.work(&[0, 1, 2], 500);
    run.settle();
    run.world.pause(0);
    run.wait("taken over", |run| run.is_taken(0, &[1, 2]));
    let before = owner_at(run, 1, 0).expect("a master");
    let third = 3 - before;
    // It is asked late.
    run.world.set_way(0, before, far);
    run.world.go_on(0);
    work_until(run, &[before], takes);
    if arrives {
        // What it was asked for is under way, and no position of that one comes.
        let asked = |run: &Run<'_, '_>| {
            let chunks = &mut run.world.streamer(before).unwrap().common.ranges.of(0);
            chunks.all(|chunk| run.fleet.state(before).chunk(chunk).given.load(Relaxed) != 0)
        };
        work_until(run, &[before], asked);
        run.world.set_way(0, before, nothing());
        work_until(run, &[before], |run| !takes(run));
    } else {
        // What it offers went by then, and the ask for it is under way.
        let until_ns = run.world.now_ns() + 1_500_000;
        work_until(run, &[before], |run| run.world.now_ns() >= until_ns);
    }
    for other in [0, third] {
        run.world.set_way(before, other, nothing());
    }
    run.wait("begun", |run| run.is_taken(0, &[0, third]));
    steps(run.world, 1_000);
    for dead in [0, third] {
        run.world.kill(dead);
    }
    run.living = vec![before];
    // So long it lets others go first.
    let until_ns = run.world.now_ns() + 100 * SILENCE_NS;
    while run.world.now_ns() < until_ns {
        run.world.step_by(STRIDE_NS);
    }
    run.world.set_faults(near());
    run.world.restart(third);
    run.living.push(third);
    run.wait("taken again", |run| run.is_taken(0, &[before]));
}

/// (In f32: what a narrow position leaves out dies with its master.)
#[test]
fn what_the_next_master_began_from_counts_where_that_is_dead() {
    for seed in 0..4 {
        with_run(seed, &quick(3, seed), Faults::default(), |run| {
            gives_back_and_takes_again(run, true);
            assert_eq!(run.counts(|one| one.abandoned_chunks), 0, "seed {seed}");
            run.settle();
        });
    }
}

#[test]
fn what_came_too_late_for_the_next_master_is_counted_where_that_is_dead() {
    for seed in 0..5 {
        with_run(seed, &quick(3, seed), Faults::default(), |run| {
            gives_back_and_takes_again(run, false);
            assert!(run.counts(|one| one.abandoned_chunks) > 0, "seed {seed}");
        });
    }
}

/// What becomes of the heir that a node gave a range to.
#[derive(Clone, Copy, Debug)]
enum Heir {
    /// It is silent until the node has given it up.
    ComesLate,
    /// It is silent, and the node takes the range back.
    LosesIt,
    /// The same, and another part of the network takes the range too.
    HasRival,
}

/// Cuts the ways from `from` to `to`, or makes them good.
fn set_ways(run: &mut Run<'_, '_>, from: &[u16], to: &[u16], faults: Faults) {
    for one in from {
        to.iter()
            .for_each(|other| run.world.set_way(*one, *other, faults));
    }
}

/// A node gives a range back in order to node 0, which is cut off before it is heard. All that was
/// done apart counts once when it is back.
fn gives_to_a_silent_heir(run: &mut Run<'_, '_>, heir: Heir) {
    let far = Faults {
        delay_ns: 1_000_000,
        ..near()
    };
    let all: Vec<u16> = (0..run.living.len() as u16).collect();
    run.work(&all, 500);
    run.settle();
    run.world.pause(0);
    run.wait("taken over", |run| run.is_taken(0, &all[1..]));
    let giver = owner_at(run, 1, 0).expect("a master");
    // One that is with it, where there are two parts.
    let with = all.iter().skip(4).map(|_| giver % 4 + 1);
    let part: Vec<u16> = [giver].into_iter().chain(with).collect();
    let others: Vec<u16> = all[1..]
        .iter()
        .copied()
        .filter(|node| !part.contains(node))
        .collect();
    run.world.set_way(0, giver, far);
    run.world.go_on(0);
    work_until(run, &[giver], takes);
    set_ways(run, &part, &others, nothing());
    let asked = |run: &Run<'_, '_>| {
        let chunks = &mut run.world.streamer(giver).unwrap().common.ranges.of(0);
        chunks.all(|chunk| run.fleet.state(giver).chunk(chunk).given.load(Relaxed) != 0)
    };
    work_until(run, &[giver], asked);
    set_ways(run, &[0], &all[1..], nothing());
    work_until(run, &[giver], |run| !takes(run));
    run.work(&all, 100);
    set_ways(run, &all[1..], &[0], nothing());
    match heir {
        Heir::ComesLate => run.wait("begun", |run| run.is_taken(0, &others)),
        Heir::LosesIt => {
            set_ways(run, &part, &others, near());
            run.wait("taken back", |run| run.is_taken(0, &all[1..]));
        }
        Heir::HasRival => {
            set_ways(run, &others, &part, nothing());
            run.wait("taken by both parts", |run| {
                run.is_taken(0, &part) && run.is_taken(0, &others)
            });
        }
    }
    run.work(&all, 100);
    set_ways(run, &all[1..], &all[1..], near());
    let until_ns = run.world.now_ns() + 30 * SILENCE_NS;
    while run.world.now_ns() < until_ns {
        run.world.step_by(STRIDE_NS);
    }
    run.world.set_faults(near());
    run.settle();
    // What it keeps is for none that is away.
    run.world.leave(giver);
    run.wait("left", |run| {
        run.world.streamer(giver).is_some_and(Streamer::has_left)
    });
}

#[test]
fn what_was_given_to_a_silent_heir_counts_once() {
    for heir in [Heir::ComesLate, Heir::LosesIt, Heir::HasRival] {
        for seed in [0, 3] {
            let nodes = if matches!(heir, Heir::HasRival) { 5 } else { 4 };
            with_run(seed, &quick(nodes, seed), near(), |run| {
                gives_to_a_silent_heir(run, heir);
                let lost = run.counts(|one| one.abandoned_chunks + one.doubled_deltas);
                assert_eq!(lost, 0, "seed {seed}");
            });
        }
    }
}

/// Node 0 stands still until others have its range, with work that is in no replica. Returns who
/// has it, and the third.
fn stands_still(run: &mut Run<'_, '_>) -> (u16, u16) {
    run.work(&[0, 1, 2], 500);
    run.settle();
    run.world.pause(0);
    run.work(&[0], 20);
    run.work(&[1, 2], 500);
    run.wait("taken over", |run| run.is_taken(0, &[1, 2]));
    let heir = owner_at(run, 1, 0).expect("a master");
    (heir, 3 - heir)
}

/// A node gives a range to one that gives it on at once and leaves. It stood still meanwhile, and
/// the third does not know what it gave. Positions tell that they have what it did.
#[test]
fn what_was_given_to_a_node_that_left_is_known_by_its_number() {
    for seed in 0..4 {
        with_run(seed, &quick(3, seed), near(), |run| {
            let (giver, third) = stands_still(run);
            run.world.go_on(0);
            work_until(run, &[giver], takes);
            work_until(run, &[giver], |run| !takes(run));
            run.world.pause(giver);
            run.world.leave(0);
            let left = |run: &Run<'_, '_>| {
                let one = run.world.streamer(0);
                one.is_some_and(|one| one.has_left() || one.has_stalled())
            };
            run.wait("left", left);
            run.world.kill(0);
            run.world.go_on(giver);
            run.living = vec![giver, third];
            run.settle();
            assert_eq!(run.counts(|one| one.abandoned_chunks), 0, "seed {seed}");
        });
    }
}

/// A node that leaves has what another needs that stands still. It stays while that one is silent,
/// and until it has asked.
#[test]
fn who_leaves_waits_for_one_that_is_just_back() {
    for seed in 0..4 {
        with_run(seed, &quick(3, seed), near(), |run| {
            let (heir, third) = stands_still(run);
            run.world.leave(heir);
            run.wait("given on", |run| run.is_taken(0, &[third, heir]));
            let left = |run: &Run<'_, '_>| {
                let one = run.world.streamer(heir);
                one.is_some_and(Streamer::has_left)
            };
            steps(run.world, SOON / 10);
            assert!(!left(run), "seed {seed}: another needs it");
            run.world.go_on(0);
            run.wait("left", left);
            run.world.kill(heir);
            run.living = vec![0, third];
            run.settle();
            assert_eq!(run.counts(|one| one.abandoned_chunks), 0, "seed {seed}");
        });
    }
}

/// The one node that knows where another went apart has joined later, and is silent. The other has
/// just started, and never heard it: it waits, as others tell of it.
#[test]
fn who_has_just_started_waits_for_nodes_that_others_tell_of() {
    let mut seen = 0;
    for seed in 0..4 {
        let config = Config {
            later: 1,
            ..quick(3, seed)
        };
        with_run(seed, &config, near(), |run| {
            run.world.restart(3);
            run.living.push(3);
            run.wait("a share", |run| {
                let one = run.world.streamer(3);
                one.is_some_and(|one| one.streamed_weights() != vec![])
            });
            run.work(&[0, 1, 2, 3], 500);
            run.settle();
            let of = |run: &Run<'_, '_>, node: u16| -> Vec<u16> {
                let owner = |range: &u16| owner_at(run, 0, *range);
                (0..4).filter(|range| owner(range) == Some(node)).collect()
            };
            let ranges = of(run, 2);
            run.world.set_way(3, 2, nothing());
            steps(run.world, 10);
            run.world.pause(2);
            run.work(&[2], 20);
            run.work(&[0, 1, 3], 500);
            run.wait("taken over", |run| {
                ranges.iter().all(|range| run.is_taken(*range, &[3, 0, 1]))
            });
            seen += ranges
                .iter()
                .filter(|range| of(run, 3).contains(*range))
                .count();
            run.world.pause(3);
            run.wait("taken over again", |run| {
                ranges.iter().all(|range| run.is_taken(*range, &[0, 1]))
            });
            run.world.kill(2);
            run.world.go_on(2);
            run.world.restart(2);
            run.living.retain(|node| *node != 3);
            run.work(&[0, 1, 2], 20_000);
            assert_eq!(run.counts(|one| one.abandoned_chunks), 0, "seed {seed}");
            run.world.set_faults(near());
            run.world.go_on(3);
            run.living.push(3);
            run.settle();
            assert_eq!(run.counts(|one| one.abandoned_chunks), 0, "seed {seed}");
        });
    }
    assert!(seen > 0, "node 3 never knew where node 2 went apart");
}

/// A node is asked for the range that it began the job with, and what it answers gets lost: its
/// offers, or some of its weights. The next master begins without that: no number of before is
/// taken for the present one.
#[test]
fn what_a_first_master_did_is_no_part_of_an_older_beginning() {
    for seed in 0..12 {
        let config = Config {
            later: 1,
            ..quick(2, seed)
        };
        with_run(seed, &config, near(), |run| {
            let far = Faults {
                delay_ns: 1_000_000,
                ..near()
            };
            run.world.restart(2);
            run.living.push(2);
            run.wait("ready", |run| run.all(|one| one.ready()));
            run.world.set_way(2, 0, far);
            let goes = |run: &Run<'_, '_>| {
                let one = run.world.streamer(2).unwrap();
                (0..3).any(|range| one.restore.is_going(range))
            };
            work_until(run, &[0], goes);
            let until_ns = run.world.now_ns() + 1_000_000 + 300_000 * seed;
            work_until(run, &[0], |run| run.world.now_ns() >= until_ns);
            for other in [1, 2] {
                run.world.set_way(0, other, nothing());
            }
            work_until(run, &[0], |run| !goes(run));
            run.work(&[0, 1, 2], 500);
            run.world.set_faults(near());
            run.work(&[0, 1, 2], 500);
            run.settle();
            assert_eq!(run.counts(|one| one.abandoned_chunks), 0, "seed {seed}");
        });
    }
}

/// A node takes a range over, starts anew, and leaves. The master before stands still, so that this
/// life has never heard it. It is waited for: no other has what it needs.
#[test]
fn who_leaves_waits_for_a_master_that_it_has_not_heard() {
    for seed in 0..4 {
        with_run(seed, &quick(3, seed), near(), |run| {
            run.work(&[0, 1, 2], 500);
            run.settle();
            run.world.pause(0);
            run.work(&[0], 20);
            run.wait("taken over", |run| run.is_taken(0, &[1, 2]));
            run.work(&[1, 2], 100);
            let heir = owner_at(run, 1, 0).expect("a master");
            run.world.kill(heir);
            run.world.restart(heir);
            run.wait("streamed again", |run| run.is_taken(0, &[1, 2]));
            run.world.leave(heir);
            let until_ns = run.world.now_ns() + 10 * SILENCE_NS;
            while run.world.now_ns() < until_ns {
                run.world.step_by(STRIDE_NS);
            }
            let one = run.world.streamer(heir).expect("it waits");
            let remains = one.remains(run.world.now_ns());
            assert!(!one.has_left(), "seed {seed}: {remains}");
            run.world.go_on(0);
            run.wait("over", |run| {
                run.world.streamer(heir).is_some_and(Streamer::has_left)
            });
            run.world.kill(heir);
            run.living.retain(|node| *node != heir);
            run.settle();
            assert_eq!(run.counts(|one| one.abandoned_chunks), 0, "seed {seed}");
        });
    }
}

/// A node takes a range over, and is cut off. The master of before is back, hears of the later
/// epoch from a node that leaves, and goes on by itself. All that was done apart counts once.
#[test]
fn a_master_that_goes_on_says_what_it_has_taken_by_then() {
    let mut joined = 0;
    for seed in 0..8 {
        let config = Config {
            masters: 2,
            ..quick(3, seed)
        };
        with_run(seed, &config, near(), |run| {
            run.work(&[0, 1, 2], 500);
            run.settle();
            run.work(&[0, 1, 2], 50);
            for (from, to) in [(0, 1), (0, 2), (1, 0), (2, 0)] {
                run.world.set_way(from, to, nothing());
            }
            run.work(&[0], 20);
            run.wait("taken over", |run| run.is_taken(0, &[1, 2]));
            run.work(&[0, 1, 2], 500);
            run.world.set_way(1, 2, nothing());
            run.world.leave(2);
            let until_ns = run.world.now_ns() + 3 * SILENCE_NS;
            work_until(run, &[0, 1], |run| run.world.now_ns() >= until_ns);
            // A new life of node 0 knows nothing of the others.
            run.world.kill(0);
            run.world.restart(0);
            for (from, to) in [(0, 1), (0, 2), (2, 0)] {
                run.world.set_way(from, to, near());
            }
            run.wait("gone on", |run| owner_at(run, 1, 0) == Some(0));
            run.work(&[0, 1], 500);
            run.world.set_faults(near());
            run.wait("left", |run| {
                run.world.streamer(2).is_some_and(Streamer::has_left)
            });
            run.world.kill(2);
            run.living = vec![0, 1];
            run.settle();
            assert_eq!(run.counts(|one| one.abandoned_chunks), 0, "seed {seed}");
            joined += run.counts(|one| one.forks_joined);
        });
    }
    assert!(joined > 0, "no two went apart");
}

/// Node 0 is cut off, and goes on with its range when two others have had it one after the other.
/// The first of them may have joined the second by then.
fn two_take_it_in_turns(run: &mut Run<'_, '_>, joins: bool) {
    run.work(&[0, 1, 2, 3], 500);
    run.settle();
    run.work(&[0, 1, 2, 3], 50);
    set_ways(run, &[0], &[1, 2, 3], nothing());
    set_ways(run, &[1, 2, 3], &[0], nothing());
    run.work(&[0], 20);
    run.wait("taken over", |run| run.is_taken(0, &[1, 2, 3]));
    let second = owner_at(run, 3, 0).expect("a master");
    let third = 3 - second;
    run.work(&[0, 1, 2, 3], 500);
    set_ways(run, &[second], &[third, 3], nothing());
    set_ways(run, &[third, 3], &[second], nothing());
    run.work(&[second], 20);
    run.wait("taken over again", |run| run.is_taken(0, &[third, 3]));
    run.work(&[0, 1, 2, 3], 500);
    if joins {
        set_ways(run, &[second], &[third, 3], near());
        set_ways(run, &[third, 3], &[second], near());
        run.wait("joined", |run| run.is_taken(0, &[1, 2, 3]));
        run.work(&[0, 1, 2, 3], 2_000);
    }
    run.world.set_way(third, 3, nothing());
    run.world.leave(3);
    let until_ns = run.world.now_ns() + 3 * SILENCE_NS;
    work_until(run, &[0, 1, 2], |run| run.world.now_ns() >= until_ns);
    // A new life of node 0 knows nothing of the others, and hears of them from one that leaves.
    run.world.kill(0);
    run.world.restart(0);
    set_ways(run, &[0], &[1, 2, 3], near());
    set_ways(run, &[3], &[0], near());
    run.wait("gone on", |run| owner_at(run, third, 0) == Some(0));
    run.work(&[0, 1, 2], 500);
    run.world.set_faults(near());
    run.wait("left", |run| {
        run.world.streamer(3).is_some_and(Streamer::has_left)
    });
    run.world.kill(3);
    run.living = vec![0, 1, 2];
}

/// Of two that took a range over in turns the second has a base of the first alone. The master of
/// before both goes on by itself. All that was done apart counts once: each brings its own, and two
/// that are apart tell each other what they have of the other.
#[test]
fn who_took_over_from_another_brings_what_it_did_since() {
    for seed in 0..8 {
        let config = Config {
            masters: 3,
            ..quick(4, seed)
        };
        with_run(seed, &config, near(), |run| {
            two_take_it_in_turns(run, false);
            run.settle();
            let lost = run.counts(|one| one.abandoned_chunks + one.doubled_deltas);
            assert_eq!(lost, 0, "seed {seed}");
            assert!(run.counts(|one| one.forks_joined) > 0, "seed {seed}");
        });
    }
}

/// The first of the two joins the second, which has all that both did then. What was done before it
/// took over is in no base: that is told.
#[test]
fn who_took_over_from_one_that_has_joined_it_tells_what_is_lost() {
    for seed in 0..4 {
        let config = Config {
            masters: 3,
            ..quick(4, seed)
        };
        with_run(seed, &config, near(), |run| {
            two_take_it_in_turns(run, true);
            run.wait("equal", |run| {
                let weights = |node: u16| {
                    let w = run.fleet.weights(node);
                    (0..run.added.len()).map(move |i| w.load(i))
                };
                weights(0).eq(weights(1)) && weights(0).eq(weights(2))
            });
            assert!(run.counts(|one| one.abandoned_chunks) > 0, "seed {seed}");
        });
    }
}

/// When the master of before is back.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Back {
    /// As soon as the two parts come together.
    AtOnce,
    /// Once all others are in step, as far as they are without it.
    Late,
    /// Before: it has joined the part that has its newer positions.
    WithNewer,
    /// At once, without its memory.
    Empty,
}

/// The master of range 0 dies when one part of a network has newer positions of it than the other.
/// Both parts take the range over, and the one with the older ones goes on with it.
fn older_of_two_parts_goes_on(run: &mut Run<'_, '_>, back: Back) {
    let (all, newer, older) = ([0, 1, 2, 3, 4], [1, 2], [3, 4]);
    run.work(&all, 500);
    run.settle();
    set_ways(run, &older, &[0, 1, 2], nothing());
    set_ways(run, &[0, 1, 2], &older, nothing());
    // What it adds to ranges of the other part would be lost with its memory.
    let adds: &[u16] = if back == Back::Empty {
        &newer
    } else {
        &[0, 1, 2]
    };
    run.work(adds, 100);
    steps(run.world, 200);
    run.world.kill(0);
    run.living = vec![1, 2, 3, 4];
    run.wait("taken over by both parts", |run| {
        run.is_taken(0, &newer) && run.is_taken(0, &older)
    });
    run.work(&[1, 2, 3, 4], 300);
    match back {
        Back::Late => {}
        Back::Empty => run.world.lose(0),
        Back::AtOnce | Back::WithNewer => run.world.restart(0),
    }
    if back == Back::WithNewer {
        run.wait("joined", |run| run.is_taken(0, &[0, 1, 2]));
        run.work(&[0, 1, 2], 2_000);
    }
    run.world.set_faults(near());
    if back == Back::Late {
        run.work(&[1, 2, 3, 4], 2_000);
    }
    run.world.restart(0);
    run.living = all.to_vec();
    run.work(&[1, 2, 3, 4], 500);
}

/// The two parts parted at the older position. What the master of before did until the newer one is
/// its own to bring, if it still can; else the master that began from there brings it.
#[test]
fn what_only_one_of_two_parts_had_of_a_dead_master_counts_once() {
    for back in [Back::AtOnce, Back::Late, Back::WithNewer, Back::Empty] {
        let mut won = 0;
        for seed in 0..6 {
            with_run(seed, &quick(5, seed), near(), |run| {
                older_of_two_parts_goes_on(run, back);
                won += u32::from(owner_at(run, 3, 0).is_some_and(|node| node > 2));
                run.settle();
                let lost = run.counts(|one| one.abandoned_chunks + one.doubled_deltas);
                assert_eq!(lost, 0, "seed {seed}, {back:?}");
            });
        }
        assert!(won > 2, "{back:?}: the newer positions won");
    }
}

/// A master lost its memory, and began from its own last position, as another holds it. The node
/// that had taken over from it meanwhile was cut off before any heard that.
#[test]
fn who_took_over_from_a_master_that_lost_its_memory_brings_what_it_did() {
    let (mut back, mut older) = (0, 0);
    for seed in 0..12 {
        with_run(seed, &quick(4, seed), near(), |run| {
            run.work(&[0, 1, 2, 3], 500);
            run.settle();
            // Then one alone has its newest positions, and may be the next master.
            if seed % 2 == 1 {
                set_ways(run, &[0], &[2, 3], nothing());
                run.work(&[1], 100);
                steps(run.world, 200);
            }
            run.world.kill(0);
            run.living = vec![1, 2, 3];
            let far = Faults {
                delay_ns: 1_000_000,
                ..near()
            };
            set_ways(run, &[1, 2, 3], &[1, 2, 3], far);
            let going = |run: &Run<'_, '_>, node: u16| {
                let one = run.world.streamer(node);
                one.is_some_and(|one| one.restore.is_going(0))
            };
            let next = |run: &Run<'_, '_>| (1..4).find(|node| going(run, *node));
            work_until(run, &[1, 2, 3], |run| next(run).is_some());
            let next = next(run).expect("one takes it");
            // What it asks has arrived by then, and what it is told is under way.
            let until_ns = run.world.now_ns() + 1_500_000;
            work_until(run, &[next], |run| run.world.now_ns() >= until_ns);
            let others: Vec<u16> = (0..4).filter(|node| *node != next).collect();
            set_ways(run, &[next], &others, nothing());
            work_until(run, &[next], |run| !going(run, next));
            set_ways(run, &[0], &others, near());
            // The one that is back has to hear that it is there.
            let few = Faults {
                drop: 0.9,
                ..near()
            };
            run.world.set_way(next, 0, few);
            run.world.lose(0);
            run.living = vec![0, 1, 2, 3];
            work_until(run, &[1, 2, 3], |run| {
                let one = run.world.streamer(0);
                one.is_some_and(|one| one.common.is_alive(run.world.now_ns(), next))
            });
            set_ways(run, &[next], &others, nothing());
            set_ways(run, &others, &[next], nothing());
            run.work(&[1, 2, 3], 100);
            run.wait("taken by the others", |run| run.is_taken(0, &others));
            back += u32::from(owner_at(run, 0, 0) == Some(0));
            older += u32::from(next == 1 && seed % 2 == 1);
            run.work(&[0, 1, 2, 3], 300);
            run.world.set_faults(near());
            run.work(&[0, 1, 2, 3], 500);
            run.settle();
            let lost = run.counts(|one| one.abandoned_chunks + one.doubled_deltas);
            assert_eq!(lost, 0, "seed {seed}");
        });
    }
    assert!(back > 3 && older > 1, "{back} and {older} of 12 runs");
}

/// Two parts of a network take the range of a node over, from positions of it that are not the
/// same, and come together; then a third master has it. The node is back: two know where one parted
/// from it, and the line of masters says which of them counts.
#[test]
fn the_line_of_masters_tells_where_a_node_went_apart() {
    for seed in 0..4 {
        with_run(seed, &quick(5, seed), near(), |run| {
            run.work(&[0, 1, 2, 3, 4], 500);
            run.settle();
            for (one, other) in [(1, 2), (1, 3), (4, 2), (4, 3), (1, 0), (4, 0)] {
                run.world.set_way(one, other, nothing());
                run.world.set_way(other, one, nothing());
            }
            // That goes to nodes 2 and 3 alone.
            run.work(&[0], 100);
            steps(run.world, 200);
            run.world.pause(0);
            run.work(&[0], 20);
            run.wait("taken over by both parts", |run| {
                run.is_taken(0, &[1, 4]) && run.is_taken(0, &[2, 3])
            });
            let [older, newer] = [1, 2].map(|node| owner_at(run, node, 0));
            assert_ne!(older, newer);
            run.work(&[1, 2, 3, 4], 100);
            run.world.set_faults(near());
            run.wait("together", |run| run.is_taken(0, &[1, 2, 3, 4]));
            run.work(&[1, 2, 3, 4], 500);
            let second = owner_at(run, 1, 0).expect("a master");
            run.world.pause(second);
            let left: Vec<u16> = (1..5).filter(|node| *node != second).collect();
            run.wait("taken over again", |run| run.is_taken(0, &left));
            run.world.go_on(second);
            run.work(&[1, 2, 3, 4], 500);
            run.world.go_on(0);
            run.settle();
            assert_eq!(run.counts(|one| one.abandoned_chunks), 0, "seed {seed}");
        });
    }
}

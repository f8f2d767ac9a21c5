//! Which bases are given, and how long they are kept.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use super::super::common::Common;
use super::super::epochs::epoch_of;
use super::super::tests::{config, folder};
use super::*;
use crate::sim::Fleet;
use crate::stream::Deltas;

const S: u64 = 1_000_000_000;

/// A delta that was under way to node `master` in its epoch `counter`.
fn contested(counter: u32, master: u16) -> Contested {
    Contested {
        master,
        epoch: epoch_of(counter, master),
        next: epoch_of(counter + 9, 1),
        seq: 7,
        weights: vec![1.0; 4],
        back_ns: 0,
    }
}

fn base(counter: u32, node: u16, version: u32) -> Base {
    Base {
        epoch: epoch_of(counter, node),
        version,
        acks: vec![0; 3],
        weights: vec![1.0; 4],
        by: node,
        back_ns: 0,
    }
}

/// A node that went apart in a reign gets a base of that one, or of what it began from: no base of
/// a reign that it had long before, and none of what came after.
#[test]
fn the_last_base_before_the_end_of_a_reign_is_given() {
    let folder = folder();
    let fleet = Fleet::new(&config(Deltas::ExactlyOnce), folder.path()).unwrap();
    let mut forks = Forks::of(fleet.state(0).forks(), 9);
    for one in [base(1, 2, 400), base(10, 1, 900)] {
        forks.begin_from(3, one);
    }
    let given = |forks: &Forks<'_>, last: u32| {
        let base = forks.base_for(3, [2, 1], last);
        base.map(|base| (base.epoch, base.version))
    };
    let of_first = Some((epoch_of(1, 2), 400));
    let of_second = Some((epoch_of(10, 1), 900));
    assert_eq!(given(&forks, epoch_of(11, 2)), of_second);
    assert_eq!(given(&forks, 0), of_second);
    assert_eq!(given(&forks, epoch_of(9, 2)), of_first);
    assert!(forks.base_for(3, [0, 0], 0).is_none());
}

/// A base of a master that is back is kept for 8 s, and as long after a start.
#[test]
fn a_streamer_that_starts_keeps_bases_for_a_while() {
    let folder = folder();
    let fleet = Fleet::new(&config(Deltas::ExactlyOnce), folder.path()).unwrap();
    let file = fleet.state(0).forks();
    let mut forks = Forks::of(file, 9);
    forks.begin_from(3, base(1, 2, 400));
    forks.note_back(100 * S, 2, 3);
    let mut next = Forks::of(file, 9);
    assert_eq!(last_kept(&mut next, 200..300), Some(207));
}

/// Looks each second of a time whether the base of node 2 is kept. Returns the last one in which it
/// was.
fn last_kept(forks: &mut Forks<'_>, seconds: Range<u64>) -> Option<u64> {
    let looks = seconds.map(|s| {
        forks.forget_old(s * S);
        forks.base_for(3, [2, 2], 0).is_some().then_some(s)
    });
    looks.collect::<Vec<_>>().into_iter().flatten().last()
}

/// While this node stands still none can ask it: the time begins anew then.
#[test]
fn a_streamer_that_stood_still_keeps_bases_and_deltas_for_a_while() {
    let folder = folder();
    let fleet = Fleet::new(&config(Deltas::ExactlyOnce), folder.path()).unwrap();
    let mut forks = Forks::of(fleet.state(0).forks(), 9);
    forks.begin_from(3, base(1, 2, 400));
    forks.forget_old(99 * S);
    forks.note_back(100 * S, 2, 3);
    forks.set_contested(3, contested(1, 2));
    forks.note_streams(100 * S, 3, 2);
    assert_eq!(last_kept(&mut forks, 100..103), Some(102));
    let has_delta = |forks: &Forks<'_>| forks.contested.contains_key(&3);
    assert_eq!(last_kept(&mut forks, 113..120), Some(119));
    assert!(has_delta(&forks));
    assert_eq!(last_kept(&mut forks, 120..200), Some(120));
    assert!(!has_delta(&forks));
}

/// Those that the master gave a chunk to may be silent, and need its base when they are back.
#[test]
fn a_base_is_kept_while_members_are_silent() {
    let folder = folder();
    let fleet = Fleet::new(&config(Deltas::ExactlyOnce), folder.path()).unwrap();
    let mut forks = Forks::of(fleet.state(0).forks(), 9);
    forks.begin_from(3, base(1, 2, 400));
    forks.forget_old(99 * S);
    forks.note_back(100 * S, 2, 3);
    forks.silent_ns = 105 * S;
    assert_eq!(last_kept(&mut forks, 100..200), Some(112));
}

/// What a slave put back is in no position that it holds. The master of that reign may have it, and
/// asks for it, also when a third master streams the chunk by then.
#[test]
fn what_was_put_back_is_kept_when_a_third_master_comes() {
    for (counter, kept) in [(5, true), (3, false)] {
        let folder = folder();
        let config = config(Deltas::ExactlyOnce);
        let fleet = Fleet::new(&config, folder.path()).unwrap();
        let chunk = fleet.state(0).chunk(0);
        chunk.epoch.store(epoch_of(5, 1), Relaxed);
        let mut common = Common::new(config, fleet.weights(0), fleet.state(0));
        common.forks.set_contested(0, contested(counter, 1));
        common.note_contested(0, 0, epoch_of(7, 2));
        assert_eq!(common.forks.contested.contains_key(&0), kept);
    }
}

/// Node 3 streamed a chunk, gave it away, and took it back from node 2 much later. What was under
/// way to it in the first reign has nothing to do with the second one.
#[test]
fn a_delta_of_a_reign_before_the_last_is_not_given() {
    let folder = folder();
    let fleet = Fleet::new(&config(Deltas::ExactlyOnce), folder.path()).unwrap();
    let mut forks = Forks::of(fleet.state(0).forks(), 9);
    forks.set_contested(3, contested(1, 3));
    forks.set_contested(3, contested(17, 2));
    let given = |forks: &Forks<'_>, last: u32| {
        let of = (Given::Contested(2), last);
        forks.contested(3, 3, of).map(|one| one.epoch)
    };
    assert_eq!(given(&forks, epoch_of(18, 3)), Some(epoch_of(17, 2)));
    assert_eq!(given(&forks, epoch_of(2, 3)), Some(epoch_of(1, 3)));
    forks.set_contested(3, contested(18, 3));
    assert_eq!(given(&forks, epoch_of(18, 3)), Some(epoch_of(18, 3)));
}

/// Node 2 was the master, and brings itself what it did before it lost the chunk. But not once it
/// has joined the node that took it over, 1, or has lost its memory: then that is left to node 1,
/// also after a kill.
#[test]
fn what_a_joined_or_empty_master_did_is_left_to_the_next() {
    for (lost, node, left) in [
        (false, 2, true),
        (true, 2, true),
        (false, 0, false),
        (true, 0, false),
    ] {
        let folder = folder();
        let fleet = Fleet::new(&config(Deltas::ExactlyOnce), folder.path()).unwrap();
        let file = fleet.state(0).forks();
        let mut forks = Forks::of(file, 9);
        forks.begin_from(3, base(1, 2, 400));
        if lost {
            forks.note_lost(node, 1);
        } else {
            forks.note_joined(S, node, (1, 3));
        }
        for forks in [forks, Forks::of(file, 9)] {
            let by = forks.base(3).map(|base| base.by);
            assert_eq!(by, Some(if left { 1 } else { 2 }), "{lost} {node}");
        }
    }
}

/// A chunk that the master before gave in order needs no weights to find back. Others that began it
/// from an older position ask what it was.
#[test]
fn of_a_chunk_that_was_given_in_order_the_numbers_are_kept() {
    let folder = folder();
    let config = config(Deltas::ExactlyOnce);
    let fleet = Fleet::new(&config, folder.path()).unwrap();
    let chunk = fleet.state(0).chunk(0);
    chunk.epoch.store(epoch_of(5, 1), Relaxed);
    let mut common = Common::new(config, fleet.weights(0), fleet.state(0));
    for (before, kept) in [(Some(1), true), (None, false)] {
        common.begin_whole(0, before);
        let base = common.forks.base(0);
        assert_eq!(base.is_some_and(|base| base.is_numbers_of(1)), kept);
        assert!(!base.is_some_and(|base| base.is_numbers_of(2)));
        assert!(common.forks.of_bases().next().is_none());
    }
}

//! Which bases are given, and how long they are kept.

use super::super::epochs::epoch_of;
use super::super::tests::{config, folder};
use super::*;
use crate::sim::Fleet;
use crate::stream::Deltas;

const S: u64 = 1_000_000_000;

fn base(counter: u32, node: u16, version: u32) -> Base {
    Base {
        epoch: epoch_of(counter, node),
        version,
        acks: vec![0; 3],
        weights: vec![1.0; 4],
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
    let has = |forks: &Forks<'_>| forks.base_for(3, [2, 2], 0).is_some();
    for (s, kept) in [(200, true), (207, true), (209, false)] {
        next.forget_old(s * S);
        assert_eq!(has(&next), kept, "{s} s");
    }
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
    for (s, kept) in [(109, true), (112, true), (114, false)] {
        forks.forget_old(s * S);
        let has = forks.base_for(3, [2, 2], 0).is_some();
        assert_eq!(has, kept, "{s} s");
    }
}

//! What is kept of the position that a range was begun from.

use std::sync::atomic::Ordering::Relaxed;

use super::super::common::chunk_flags::JOINED;
use super::super::epochs::epoch_of;
use super::super::tests::{config, folder};
use super::super::{Config, Deltas};
use super::*;
use crate::sim::Fleet;

/// Node 0 begins chunk 0 from a position of node 1. Where node 1 gave that itself, it has not gone
/// apart. But a third node may have had it from node 1 too, and gone on from there: it needs the
/// weights when it is back.
#[test]
fn weights_of_the_beginning_are_kept_for_one_that_may_have_gone_apart() {
    for (master, giver, rivals, keeps) in [
        (1, 1, vec![], false),
        (1, 1, vec![1], false),
        (1, 1, vec![2], true),
        (1, 2, vec![], true),
        // Its own, of before it lost its memory.
        (0, 2, vec![], true),
    ] {
        let folder = folder();
        let config = Config {
            nodes: 3,
            masters: 3,
            ..config(Deltas::ExactlyOnce)
        };
        let fleet = Fleet::new(&config, folder.path()).unwrap();
        let mut common = Common::new(config, fleet.weights(0), fleet.state(0));
        let chunks = common.ranges.of(0);
        common.promise(0, epoch_of(9, 0));
        let mut going = Going::new(&common, 0, (0, rivals.clone()));
        let epoch = epoch_of(5, master);
        for chunk in chunks.clone() {
            let state = common.state.chunk(chunk);
            state.epoch.store(epoch, Relaxed);
            state.flags.store(JOINED, Relaxed);
        }
        let offers = vec![wire::Held::new(Some((epoch, 40))); chunks.len()];
        going.note_offer(0, giver, &offers).expect("a block");
        end(1, &mut common, &going);
        let base = common.forks.base(0).expect("its numbers at least");
        assert_eq!(base.epoch, epoch);
        assert_eq!(!base.weights.is_empty(), keeps, "{giver}, {rivals:?}");
    }
}

//! Which masters a slave trusts, and what it asks of the others.

use super::super::epochs::epoch_of;
use super::super::tests::{config, folder};
use super::super::{Config, Deltas};
use super::*;
use crate::sim::Fleet;

/// What node 3 holds of chunk 0: a position of node 0, and a delta that went to it.
const HELD: u32 = 10;

fn fleet(folder: &tempfile::TempDir) -> (Config, Fleet) {
    let all = Config {
        nodes: 4,
        masters: 4,
        ..config(Deltas::ExactlyOnce)
    };
    let fleet = Fleet::new(&all, folder.path()).unwrap();
    let chunk = fleet.state(3).chunk(0);
    chunk.epoch.store(epoch_of(1, 0), Relaxed);
    chunk.version.store(HELD, Relaxed);
    chunk.seq.store(7, Relaxed);
    chunk.flags.store(JOINED | OUTSTANDING, Relaxed);
    let node = fleet.state(3).node(0);
    node.promised.store(epoch_of(7, 2), Relaxed);
    (Config { node: 3, ..all }, fleet)
}

/// A position of `epoch` whose master heard all members before it began.
fn position(common: &Common<'_>, epoch: u32) -> Header {
    Header {
        sender: owner(epoch),
        seq: 1,
        ..header::survey(common, 0, 0, epoch)
    }
}

/// A node that surveyed this one, and began later than next, may have taken the chunk from a master
/// that this node knows nothing of: numbers are not trusted. Nor are they where it heard none: it
/// may have begun without the answer.
#[test]
fn who_was_asked_trusts_the_next_master_alone() {
    let folder = folder();
    let (config, fleet) = fleet(&folder);
    let mut common = Common::new(config, fleet.weights(3), fleet.state(3));
    common.leases[0].surveyed = true;
    for (counter, heard, trusted) in [
        (2, 1, true),
        (9, 1, true),
        (4, 1, false),
        (16, 1, false),
        (2, 0, false),
        (9, 0, false),
    ] {
        common.forks.unsure.clear();
        let header = Header {
            seq: heard,
            ..position(&common, epoch_of(counter, 2))
        };
        assert_eq!(common.may_go_over(&header), trusted, "epoch {counter}");
        assert_eq!(common.forks.unsure.contains(&0), !trusted);
    }
}

/// Node `by` says that it began chunk 0 from a position.
fn says(unsure: &mut Unsure, common: &mut Common<'_>, by: u16, (epoch, version): (u32, u32)) {
    let header = Header {
        sender: by,
        chunk_version: version,
        content: Given::Begun.content(),
        ..header::survey(common, 0, 0, epoch)
    };
    let frame = Frame {
        header,
        acks: &[9; 4],
        payload: &[],
    };
    unsure.handle(common, &frame).expect("it was asked");
}

/// The present master, node 2, began from one of which this node knows nothing, node 1. That one
/// says whether it began from what this node holds, or from something older: then what is under way
/// did not come with it.
#[test]
fn a_slave_follows_the_line_of_masters() {
    for (version, apart) in [(HELD, false), (HELD + 2, false), (HELD - 2, true)] {
        let folder = folder();
        let (config, fleet) = fleet(&folder);
        let mut common = Common::new(config, fleet.weights(3), fleet.state(3));
        let mut unsure = Unsure::default();
        unsure.asked.insert(0, Doubt::of(epoch_of(7, 2)));
        common.forks.unsure.insert(0);
        says(&mut unsure, &mut common, 2, (epoch_of(4, 1), 3));
        assert_eq!(unsure.asked[&0].of, epoch_of(4, 1));
        let flags = &fleet.state(3).chunk(0).flags;
        assert_eq!(flags.load(Relaxed), JOINED | OUTSTANDING);
        says(&mut unsure, &mut common, 1, (epoch_of(1, 0), version));
        let under_way = if apart { 0 } else { OUTSTANDING };
        assert_eq!(flags.load(Relaxed), JOINED | SURE | under_way);
        let seq = fleet.state(3).chunk(0).seq.load(Relaxed);
        assert_eq!(seq, if apart { 9 } else { 7 });
        assert!(common.forks.unsure.is_empty() && unsure.asked.is_empty());
    }
}

//! Which of the bases that come counts.

use std::sync::atomic::Ordering::Relaxed;

use super::super::begun::Link;
use super::super::epochs::epoch_of;
use super::super::header::Given;
use super::super::tests::{config, folder};
use super::super::{Config, Deltas, To};
use super::*;
use crate::sim::Fleet;
use crate::wire::Stay;

/// Node 0 began chunk 0 from a position of node 1, in its epoch 5, and streamed it until epoch 9.
fn fleet(folder: &tempfile::TempDir) -> (Config, Fleet) {
    let config = Config {
        nodes: 4,
        masters: 4,
        ..config(Deltas::ExactlyOnce)
    };
    let fleet = Fleet::new(&config, folder.path()).unwrap();
    let chunk = fleet.state(0).chunk(0);
    chunk.begun_epoch.store(epoch_of(5, 1), Relaxed);
    chunk.epoch.store(epoch_of(9, 0), Relaxed);
    (config, fleet)
}

/// Node 0 took the chunk over at `version` of node 1. The epoch of that position.
fn took_over_at(common: &mut Common<'_>, version: u32) -> u32 {
    let state = common.state.chunk(0);
    let (epoch, last) = (epoch_of(5, 1), state.epoch.load(Relaxed));
    state.epoch.store(epoch, Relaxed);
    state.version.store(version, Relaxed);
    common.keep_base(0);
    common.note_begun(0);
    common.state.chunk(0).epoch.store(last, Relaxed);
    epoch
}

/// A base of `epoch` comes from the node that is asked.
fn comes(asked: &mut Asked, common: &Common<'_>, epoch: u32) {
    let header = wire::Header {
        sender: asked.node,
        chunk_version: 40,
        content: Given::Base(asked.before as u8).content(),
        dtype: Dtype::F32,
        ..header::survey(common, 0, asked.chunk, epoch)
    };
    let frame = Frame {
        header,
        acks: &[0; 4],
        payload: &[],
    };
    asked.weigh_base(0, common, &frame);
}

fn epoch_taken(asked: &Asked) -> Option<u32> {
    asked.base.as_ref().map(|base| base.epoch)
}

/// A base of what this node began from may be from long ago: another node may have one of the reign
/// that it had itself.
#[test]
fn a_base_of_the_reign_before_waits() {
    let folder = folder();
    let (config, fleet) = fleet(&folder);
    let common = Common::new(config, fleet.weights(0), fleet.state(0));
    let mut asked = Asked::new(0, &common, 0, (2, 0));
    comes(&mut asked, &common, epoch_of(5, 1));
    assert_eq!((epoch_taken(&asked), &asked.without), (None, &vec![2]));
    asked.node = 3;
    comes(&mut asked, &common, epoch_of(8, 0));
    assert_eq!(epoch_taken(&asked), Some(epoch_of(8, 0)));
}

/// The line of masters leads to node 3. A base of another node is that of a line that has ended,
/// whichever is later.
#[test]
fn only_the_base_of_the_line_of_masters_counts() {
    let folder = folder();
    let (config, fleet) = fleet(&folder);
    let mut common = Common::new(config, fleet.weights(0), fleet.state(0));
    let epoch = epoch_of(7, 0);
    common.forks.parted.insert(0, Link { by: 3, epoch });
    let mut asked = Asked::new(0, &common, 0, (2, 0));
    for (node, counter) in [(2, 7), (1, 9)] {
        asked.node = node;
        comes(&mut asked, &common, epoch_of(counter, 0));
        assert_eq!(epoch_taken(&asked), None);
    }
    asked.node = 3;
    comes(&mut asked, &common, epoch);
    assert_eq!(epoch_taken(&asked), Some(epoch));
    // If no node says what the line was, the first that came counts.
    assert!(asked.perhaps.is_some_and(|base| base.epoch == epoch));
}

/// Node 1 went on with the chunk by itself once, and says what it had taken by then. To a node that
/// keeps no base of it that is nothing: the next node is asked.
#[test]
fn numbers_without_a_base_are_nothing() {
    for parted in [false, true] {
        let folder = folder();
        let (config, fleet) = fleet(&folder);
        fleet.state(0).chunk(0).flags.store(FORKED, Relaxed);
        let mut common = Common::new(config, fleet.weights(0), fleet.state(0));
        common.forks.apart.insert(0);
        let epoch = epoch_of(5, 1);
        if parted {
            common.forks.parted.insert(0, Link { by: 1, epoch });
        }
        let mut rejoin = Rejoin::default();
        let asked = Asked::new(0, &common, 0, (1, 1));
        let given = Given::Base(1);
        let says = (Dtype::None, 0, 0);
        let header = header::restore(&common, 0, (epoch, 40), given, says);
        let frame = Frame {
            header: wire::Header {
                sender: 1,
                seq: 1,
                ..header
            },
            acks: &[0; 4],
            payload: &[],
        };
        rejoin.asked.push(asked);
        rejoin.handle(0, &mut common, &frame).expect("it was asked");
        assert_eq!(rejoin.asked[0].without, [1]);
        assert_eq!(epoch_taken(&rejoin.asked[0]), None);
    }
}

/// Node 0 took the chunk over from node 1, at version `own`, and so did node 3, which keeps numbers
/// alone: node 1 gave it what it streamed last, version 40. They say enough where that is not
/// older: what node 1 had taken in between is with node 3.
#[test]
fn numbers_of_a_position_that_is_not_older_are_enough() {
    for (own, enough, others) in [
        (30, true, vec![(1, Given::Former(1))]),
        (40, true, vec![]),
        (50, false, vec![]),
    ] {
        let folder = folder();
        let (config, fleet) = fleet(&folder);
        fleet.state(0).chunk(0).flags.store(FORKED, Relaxed);
        let mut common = Common::new(config, fleet.weights(0), fleet.state(0));
        let epoch = took_over_at(&mut common, own);
        fleet.state(0).applied(0)[1].store(5, Relaxed);
        common.forks.apart.insert(0);
        common.forks.parted.insert(0, Link { by: 3, epoch });
        let mut rejoin = Rejoin::default();
        rejoin.asked.push(Asked::new(0, &common, 0, (3, 1)));
        let says = (Dtype::None, 0, 0);
        let header = header::restore(&common, 0, (epoch, 40), Given::Base(1), says);
        let frame = Frame {
            header: wire::Header {
                sender: 3,
                seq: 1,
                ..header
            },
            acks: &[0, if own == 30 { 5 } else { 0 }, 0, 0],
            payload: &[],
        };
        rejoin.handle(0, &mut common, &frame).expect("it was asked");
        let one = &rejoin.asked[0];
        let taken = one.base.as_ref().map(|base| base.version);
        assert_eq!(taken, enough.then_some(own));
        let mut former = one.others.clone();
        former.retain(|(_, given)| matches!(given, Given::Former(_)));
        assert_eq!(former, others, "version {own}");
        assert_eq!(one.without.contains(&3), !enough);
    }
}

/// Node 0 took the chunk over at version 50 of node 1. Where node 1 itself says that it began from
/// version 40, as it had lost its memory, it brings nothing of what is in between. Node 3 would.
#[test]
fn a_master_that_began_from_its_own_older_position_is_not_waited_for() {
    for (node, at_once) in [(1, true), (3, false)] {
        let folder = folder();
        let (config, fleet) = fleet(&folder);
        fleet.state(0).chunk(0).flags.store(FORKED, Relaxed);
        let mut common = Common::new(config, fleet.weights(0), fleet.state(0));
        let epoch = took_over_at(&mut common, 50);
        let parted = Link { by: node, epoch };
        common.forks.parted.insert(0, parted);
        let mut asked = Asked::new(0, &common, 0, (node, 1));
        comes(&mut asked, &common, epoch);
        let taken = asked.base.as_ref().map(|base| base.version);
        assert_eq!(taken, at_once.then_some(40), "of node {node}");
        assert_eq!(asked.perhaps.is_none(), at_once, "of node {node}");
    }
}

/// Node 0 began the chunk from what node 1 streamed last. Node 3 began it from something older, so
/// that the two went apart. Another brings what node 1 did: that one gives it in place of a delta.
/// Of others only what came after it may be contested. What node 1 streamed at another time is not
/// it.
#[test]
fn what_another_brings_takes_the_place_of_the_base() {
    let given = |asked: &Asked| Given::Contested(asked.before as u8);
    for (version, taken) in [(44, true), (45, false), (39, false)] {
        let folder = folder();
        let (config, fleet) = fleet(&folder);
        let begun = [39, 44].into_iter().find(|begun| *begun == version);
        fleet
            .state(0)
            .chunk(0)
            .begun_version
            .store(begun.unwrap_or(44), Relaxed);
        for (applied, ack) in fleet.state(0).applied(0).iter().zip([0, 9, 3, 1]) {
            applied.store(ack, Relaxed);
        }
        let mut common = Common::new(config, fleet.weights(0), fleet.state(0));
        let epoch = epoch_of(5, 1);
        common.forks.parted.insert(0, Link { by: 3, epoch });
        let mut asked = Asked::new(0, &common, 0, (3, 1));
        asked.came.fill(1.0);
        // That is version 40.
        comes(&mut asked, &common, epoch);
        let nodes = |asked: &Asked| {
            asked
                .others
                .iter()
                .map(|(node, _)| *node)
                .collect::<Vec<_>>()
        };
        assert_eq!((nodes(&asked), asked.node), (vec![1, 2, 3], 1));
        asked.came.fill(2.0);
        let says = (Dtype::F32, 0, 0);
        let header = header::restore(&common, 0, (epoch, version), given(&asked), says);
        let frame = Frame {
            header: wire::Header {
                sender: 1,
                ..header
            },
            acks: &[0, 9, 3, 0],
            payload: &[],
        };
        asked.take_contested(0, &common, &frame, false);
        let (weight, left) = if taken {
            (2.0, vec![3])
        } else {
            (1.0, vec![2, 3])
        };
        let base = asked.base.as_ref().expect("it came");
        assert_eq!(
            (base.weights[0], base.epoch, base.version),
            (weight, epoch, 40)
        );
        assert_eq!(base.acks, [0; 4]);
        assert_eq!(nodes(&asked), left, "version {version}");
    }
}

/// To whom something was sent.
struct Whom(Vec<To>);

impl Outbox for Whom {
    fn send(&mut self, to: To, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> bool {
        fill(&mut vec![0; len]);
        self.0.push(to);
        true
    }
}

/// Node 0 went apart from the present master, 3, at its own base, a position of node 1. What that
/// did until then it brings itself, and is waited for. If it is dead that is lost, which is told.
#[test]
fn the_master_of_the_own_base_is_waited_for() {
    let (own, given) = (epoch_of(9, 0), Given::Contested(0));
    for lives in [true, false] {
        let folder = folder();
        let (config, fleet) = fleet(&folder);
        let state = fleet.state(0).chunk(0);
        state.flags.store(FORKED, Relaxed);
        let mut common = Common::new(config, fleet.weights(0), fleet.state(0));
        let epoch = epoch_of(5, 1);
        common.promise(0, epoch_of(20, 3));
        state.epoch.store(epoch, Relaxed);
        state
            .begun_version
            .store(state.version.load(Relaxed), Relaxed);
        common.keep_base(0);
        state.epoch.store(own, Relaxed);
        fleet.state(0).applied(0)[2].store(7, Relaxed);
        common.forks.apart.insert(0);
        common.forks.parted.insert(0, Link { by: 0, epoch });
        let mut rejoin = Rejoin::default();
        let mut asked = Whom(Vec::new());
        for now_ns in [1, LOST_NS, LOST_NS + LOOK_NS] {
            common.peers[3].heard_ns = now_ns;
            common.peers[1].heard_ns = if lives { now_ns } else { 0 };
            let waits = rejoin.asked.iter().all(|one| one.base.is_none());
            assert!(waits || lives, "at {now_ns} ns");
            rejoin.poll(now_ns, &mut common, &mut asked);
        }
        let one = &rejoin.asked[0];
        assert_eq!(
            (epoch_taken(one), &one.others),
            (Some(epoch), &vec![(2, given)])
        );
        assert_eq!(common.counters.abandoned_chunks, u64::from(!lives));
        assert!(asked.0.iter().all(|to| *to == To::Node(2)) && !asked.0.is_empty());
    }
}

/// Node 0 took the chunk over at version 50 of node 1, and node 3 at version 40. What node 1 did in
/// between it brings itself, and is waited for. Node 0 brings it where node 1 has joined it, or is
/// dead: then that one may be back, and bring it too, which is told.
#[test]
fn what_was_done_before_a_later_beginning_is_brought_by_one() {
    for (lives, joined, waits, taken, doubled) in [
        (true, false, false, 50, 0),
        (false, false, true, 40, 1),
        (true, true, false, 40, 0),
        (false, true, false, 40, 0),
    ] {
        let folder = folder();
        let (config, fleet) = fleet(&folder);
        fleet.state(0).chunk(0).flags.store(FORKED, Relaxed);
        let mut common = Common::new(config, fleet.weights(0), fleet.state(0));
        common.promise(0, epoch_of(20, 3));
        let epoch = took_over_at(&mut common, 50);
        // So that a slave is asked for what is contested.
        fleet.state(0).applied(0)[2].store(7, Relaxed);
        if joined {
            common.forks.note_joined(1, 1, (0, 0));
        }
        common.forks.apart.insert(0);
        common.forks.parted.insert(0, Link { by: 3, epoch });
        let mut rejoin = Rejoin {
            range: 0,
            epoch: common.promised(0),
            ..Rejoin::default()
        };
        let mut asked = Asked::new(1, &common, 0, (3, 1));
        comes(&mut asked, &common, epoch);
        assert_eq!((epoch_taken(&asked), asked.node), (None, 0));
        rejoin.asked.push(asked);
        let mut out = Whom(Vec::new());
        let mut version = None;
        for now_ns in [1, LOST_NS - 1, LOST_NS + 1] {
            common.peers[3].heard_ns = now_ns;
            common.peers[1].heard_ns = if lives { now_ns } else { 0 };
            rejoin.due_ns = 0;
            rejoin.poll(now_ns, &mut common, &mut out);
            let base = rejoin.asked.first().and_then(|one| one.base.as_ref());
            version = version.or(base.map(|base| base.version));
            let has = !waits || now_ns > LOST_NS;
            assert_eq!(version.is_some(), has, "at {now_ns} ns");
        }
        assert_eq!(version, Some(taken), "lives: {lives}, joined: {joined}");
        assert_eq!(common.counters.doubled_deltas, doubled);
        assert_eq!(common.counters.abandoned_chunks, 0);
    }
}

/// A streamer that has just started, and that all members send positions to, knows of others once
/// all of them have told it.
#[test]
fn who_has_just_started_waits_until_all_have_told_of_others() {
    let folder = folder();
    let (config, fleet) = fleet(&folder);
    let places = usize::from(config.places());
    let started_ns = STARTED * config.silence_ns;
    let mut common = Common::new(config, fleet.weights(0), fleet.state(0));
    let rejoin = Rejoin {
        started_ns: 1,
        ..Rejoin::default()
    };
    let heard = |common: &mut Common<'_>, now_ns: u64| {
        (1..4).for_each(|node| common.peers[node].heard_ns = now_ns);
    };
    heard(&mut common, 1);
    for node in 1..4 {
        assert!(!rejoin.all_live(1, &common), "node {node} has told nothing");
        common.peers[node].told = vec![Some(wire::NodeSeen::default()); places];
    }
    assert!(rejoin.all_live(1, &common));
    common.peers[2].told[3] = None;
    assert!(!rejoin.all_live(1, &common), "it did not tell of all");
    // It may tell nothing at all.
    heard(&mut common, 1 + started_ns);
    assert!(rejoin.all_live(1 + started_ns, &common));
}

/// A node that hears none leaves with its ranges, and with the bases that it keeps for others. It
/// may be back: others wait for that as for one that is silent. Not so one that gave all away.
#[test]
fn who_left_with_its_ranges_is_waited_for() {
    for (streams, again, waits) in [
        (true, Stay::Gone, true),
        (true, Stay::Stays, false),
        (false, Stay::Gone, false),
    ] {
        let folder = folder();
        let (config, fleet) = fleet(&folder);
        let mut common = Common::new(config, fleet.weights(0), fleet.state(0));
        let rejoin = Rejoin {
            started_ns: 1,
            ..Rejoin::default()
        };
        let now_ns = LOST_NS;
        if streams {
            common.promise(2, epoch_of(9, 3));
        }
        common.hear_stay(now_ns, 3, Stay::Gone);
        common.hear_stay(now_ns, 3, again);
        for later_ns in [1, LOST_NS - 1, LOST_NS] {
            let now_ns = now_ns + later_ns;
            (1..4).for_each(|node| common.peers[node].heard_ns = now_ns);
            let live = rejoin.all_live(now_ns, &common);
            let waits = waits && later_ns < LOST_NS;
            assert_eq!(live, !waits, "{streams} {again:?} after {later_ns} ns");
        }
    }
}

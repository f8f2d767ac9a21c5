//! Who may say what of its own is contested.

use super::super::common::chunk_flags::FORKED;
use super::super::epochs::epoch_of;
use super::super::tests::{config, folder};
use super::super::{Config, Deltas};
use super::*;
use crate::sim::Fleet;

/// Node 0 knows that node 3 streams its range in epoch 20. It says what of its own is contested
/// once it has taken a position of that epoch, or is about to bring what it did itself. Not while
/// another node may bring that, as it had asked for it: then what it says depends on who does.
#[test]
fn what_is_contested_is_said_once_it_is_settled() {
    let now = epoch_of(20, 3);
    let (before, later) = (epoch_of(12, 3), epoch_of(28, 2));
    for (flags, taken, apart, heir, asked, says) in [
        (JOINED, now, false, None, now, true),
        (JOINED, before, false, None, now, false),
        (0, now, false, None, now, false),
        (FORKED, before, false, None, now, false),
        (FORKED, before, true, None, now, true),
        (FORKED, before, true, None, later, false),
        (FORKED, before, true, Some(2), now, false),
        (FORKED, before, true, Some(1), now, false),
    ] {
        let folder = folder();
        let config = Config {
            nodes: 4,
            masters: 4,
            ..config(Deltas::ExactlyOnce)
        };
        let fleet = Fleet::new(&config, folder.path()).unwrap();
        let chunk = fleet.state(0).chunk(0);
        chunk.flags.store(flags, Relaxed);
        chunk.epoch.store(taken, Relaxed);
        fleet.state(0).node(0).promised.store(now, Relaxed);
        let mut common = Common::new(config, fleet.weights(0), fleet.state(0));
        if apart {
            common.forks.apart.insert(0);
        }
        match heir {
            Some(1) => common.give_up_heir(0, 1),
            Some(node) => common.note_given(0, node),
            None => {}
        }
        let given = Given::Contested(1);
        let header = Header {
            sender: 1,
            ..header::ask_of_parting(&common, 0, (asked, 0), &[0], given)
        };
        let frame = Frame {
            header,
            acks: &[],
            payload: &0_u32.to_le_bytes(),
        };
        let mut replicas = Replicas::default();
        replicas.note_wanted(&mut common, &frame, given).unwrap();
        assert_eq!(replicas.wait(), says, "{flags} {taken} {heir:?} {asked}");
    }
}

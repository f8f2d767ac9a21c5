//! Who has said what it holds.

use super::super::tests::{config, folder};
use super::super::{Config, Deltas};
use super::*;
use crate::sim::Fleet;

/// All members have, once each of them has offered each block: but for the master before.
#[test]
fn all_are_heard_once_each_has_offered_all() {
    let folder = folder();
    let config = Config {
        nodes: 3,
        masters: 1,
        chunks: wire::BLOCK_CHUNKS + 1,
        ..config(Deltas::ExactlyOnce)
    };
    let fleet = Fleet::new(&config, folder.path()).unwrap();
    let common = Common::new(config, fleet.weights(0), fleet.state(0));
    let mut going = Going::new(&common, 0, (0, Vec::new()));
    let before = BTreeSet::from([2]);
    let mut offer = |own: u32, node: u16, chunks: u32| {
        let offers = vec![wire::Held::new(None); chunks as usize];
        going.note_offer(own, node, &offers).expect("a block");
        [BTreeSet::new(), before.clone()].map(|before| going.heard_all(&common, &before))
    };
    assert_eq!(offer(0, 1, wire::BLOCK_CHUNKS), [false, false]);
    assert_eq!(offer(wire::BLOCK_CHUNKS, 1, 1), [false, true]);
    assert_eq!(offer(0, 2, wire::BLOCK_CHUNKS), [false, true]);
    assert_eq!(offer(wire::BLOCK_CHUNKS, 2, 1), [true, true]);
}

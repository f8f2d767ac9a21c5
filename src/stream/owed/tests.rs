//! Which deltas a debt is about.

use super::super::Deltas;
use super::super::epochs::epoch_of;
use super::super::tests::{config, folder};
use super::*;
use crate::sim::Fleet;

/// Node 0 had a chunk from node 1, went apart in that one's epoch 5, and streamed it until its own
/// epoch 9: a delta that is owed since then went to one of the two.
#[test]
fn a_debt_is_about_one_of_the_two_masters_that_the_slave_had() {
    let own = |counter: u32| epoch_of(counter, 0);
    let sent = [
        (epoch_of(5, 1), 7, true),
        (own(6), 7, true),
        (own(9), 7, true),
        (own(9), 8, false),
        (own(10), 7, false),
        (own(4), 7, false),
        (epoch_of(3, 1), 7, false),
        (epoch_of(6, 2), 7, false),
    ];
    for (epoch, seq, is_owed) in sent {
        let folder = folder();
        let config = config(Deltas::ExactlyOnce);
        let fleet = Fleet::new(&config, folder.path()).unwrap();
        let mut common = Common::new(config, fleet.weights(0), fleet.state(0));
        let key = OwedKey {
            chunk: 0,
            node: 2,
            epoch: own(9),
        };
        let owed = Owed {
            seq: 7,
            life: 0,
            weights: common.config.chunk_weights,
            parted: epoch_of(5, 1),
        };
        assert_eq!(owed.went_apart_from(key), 1);
        let record = key.record(owed);
        assert_eq!(OwedKey::of(&record).1.parted, owed.parted);
        common.forks.owe(key, owed);
        common.pay(key, Some((epoch, seq)), &[1.0; 32]);
        let left = if is_owed { -1.0 } else { 0.0 };
        assert_eq!(fleet.weights(0).load(0), left, "epoch {epoch:x}");
        // What it gave away is no delta.
        let doubled = u64::from(epoch == epoch_of(6, 2));
        assert_eq!(common.counters.doubled_deltas, doubled);
        assert!(common.forks.owed().is_empty());
    }
}

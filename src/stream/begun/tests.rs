//! Who is asked how a chunk went on that this node streamed.

use super::super::epochs::epoch_of;
use super::super::tests::{config, folder};
use super::super::{Config, Deltas};
use super::*;
use crate::sim::Fleet;

/// Node 0 streamed chunk 0 until its epoch 9, from a position of node 1 in epoch 5.
fn fleet(folder: &tempfile::TempDir) -> (Config, Fleet) {
    let config = Config {
        nodes: 5,
        masters: 5,
        ..config(Deltas::ExactlyOnce)
    };
    let fleet = Fleet::new(&config, folder.path()).unwrap();
    let chunk = fleet.state(0).chunk(0);
    chunk.begun_epoch.store(epoch_of(5, 1), Relaxed);
    chunk.epoch.store(epoch_of(9, 0), Relaxed);
    chunk.flags.store(FORKED, Relaxed);
    fleet
        .state(0)
        .node(0)
        .promised
        .store(epoch_of(20, 4), Relaxed);
    (config, fleet)
}

/// Node 4 streams the chunk now, and began from something older. All that had asked for the chunk
/// are asked before it: one may have got it, and lost the range since.
#[test]
fn all_that_asked_for_a_chunk_are_asked_how_it_went_on() {
    for askers in [vec![2], vec![2, 3], vec![2, 4], vec![2, 3, 4, 3]] {
        let folder = folder();
        let (config, fleet) = fleet(&folder);
        let mut common = Common::new(config, fleet.weights(0), fleet.state(0));
        askers.iter().for_each(|node| common.note_given(0, *node));
        let older = Held::new(Some((epoch_of(6, 0), 40)));
        let mut asked = Vec::new();
        assert_eq!(common.knows_how_begun(0), 4);
        while common.is_untold(0) {
            let node = common.knows_how_begun(0);
            asked.push(node);
            common.ask_further(0, node, &older);
        }
        asked[1..].sort_unstable();
        let mut others: Vec<u16> = askers.into_iter().filter(|node| *node != 4).collect();
        others.sort_unstable();
        others.dedup();
        assert_eq!((asked[0], &asked[1..]), (4, &others[..]));
        // Then the line of the present master counts, and no answer of those.
        assert_eq!(common.forks.parted.get(&0).map(|link| link.by), Some(4));
    }
}

//! Who is asked how a chunk went on that this node streamed.

use super::super::epochs::epoch_of;
use super::super::tests::{config, folder};
use super::super::{Config, Deltas};
use super::*;
use crate::sim::Fleet;
use crate::weights::ForkKind;

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

/// Which nodes get what node 0 streamed last in place of a contested delta, where `askers` had
/// asked for it, and one may have been given up. The present master has it from node `with` (0:
/// node 0 brings it). Also where a later life of node 0 is asked, or finds out (`restarts`) who has
/// it.
fn who_gets_it(askers: &[u16], unheard: Option<u16>, with: u16, restarts: bool) -> Vec<u16> {
    let folder = folder();
    let (config, fleet) = fleet(&folder);
    let life = || Common::new(config.clone(), fleet.weights(0), fleet.state(0));
    let mut common = life();
    askers.iter().for_each(|node| common.note_given(0, *node));
    unheard
        .into_iter()
        .for_each(|node| common.give_up_heir(0, node));
    if restarts {
        common = life();
    }
    match with {
        0 => common.keep_for_unheard(0),
        node => common.keep_for_others(0, node),
    }
    common.forget_heirs(0);
    let records = fleet.state(0).forks().records();
    assert!(records.iter().all(|one| one.key.kind == ForkKind::Base));
    let gets = |common: &Common<'_>| -> Vec<u16> {
        let given = |node: &u16| common.forks.given_away(0, 0, *node).is_some();
        (1..4).filter(given).collect()
    };
    assert_eq!(gets(&life()), gets(&common));
    gets(&common)
}

/// What node 0 streamed last went to several nodes. One of them brings it, or node 0, or it is with
/// the present master: the others leave it out.
#[test]
fn what_several_nodes_may_have_is_kept_for_all_but_one() {
    for (askers, unheard, with, gets) in [
        (vec![2], None, 2, vec![]),
        (vec![2, 3], None, 3, vec![1, 2]),
        (vec![3, 2, 1], None, 3, vec![1, 2]),
        (vec![3], Some(2), 3, vec![1, 2]),
        (vec![2, 3], None, 4, vec![1, 2, 3]),
        (vec![2], None, 4, vec![]),
        (vec![2], Some(2), 0, vec![1, 2, 3]),
        (vec![2], None, 0, vec![]),
    ] {
        for restarts in [false, true] {
            let got = who_gets_it(&askers, unheard, with, restarts);
            assert_eq!(got, gets, "{askers:?}, {with}, {restarts}");
        }
    }
}

/// What a silent node may have would count twice: it is waited for. One along the line of masters
/// has nothing that this node did.
#[test]
fn an_heir_is_waited_for_while_it_is_silent() {
    let folder = folder();
    let (config, fleet) = fleet(&folder);
    let silence_ns = config.silence_ns;
    let mut common = Common::new(config, fleet.weights(0), fleet.state(0));
    common.note_given(0, 2);
    let older = Held::new(Some((epoch_of(15, 3), 40)));
    common.ask_further(0, 4, &older);
    for silences in [0, 1, 15] {
        common.give_up_tellers(1 + silences * silence_ns, 0);
        assert_eq!(common.knows_how_begun(0), 2, "{silences}");
        assert!(common.is_untold(0));
    }
    assert_eq!(common.forks.unheard(0).next(), None);
    // Then the node is asked that the present master had the chunk from, which is silent, too.
    common.give_up_tellers(1 + 16 * silence_ns, 0);
    assert_eq!(common.forks.unheard(0).next(), Some(2));
    assert_eq!(common.knows_how_begun(0), 3);
    common.give_up_tellers(1 + 16 * silence_ns, 0);
    assert!(!common.is_untold(0));
}

/// Node 0 keeps what it took the chunk over from: a position of node 1. The line of masters leads
/// back to before that, and by no reign of node 0: it parts from it at its own base. Not if the
/// line ends at a node that does not know.
#[test]
fn a_line_that_passes_a_node_by_parts_from_it_at_its_own_base() {
    let older = Some((epoch_of(3, 4), 7));
    let later = Some((epoch_of(12, 2), 60));
    for (told, version, parts) in [
        (vec![older], 40, true),
        (vec![None], 40, true),
        (vec![later, Some((epoch_of(3, 2), 7))], 40, true),
        (vec![later, None], 40, false),
        (vec![older, None], 41, false),
    ] {
        let folder = folder();
        let (config, fleet) = fleet(&folder);
        let state = fleet.state(0).chunk(0);
        let (last, epoch) = (state.epoch.load(Relaxed), epoch_of(5, 1));
        let mut common = Common::new(config, fleet.weights(0), fleet.state(0));
        state.epoch.store(epoch, Relaxed);
        state.version.store(40, Relaxed);
        common.keep_base(0);
        state.epoch.store(last, Relaxed);
        state.begun_version.store(version, Relaxed);
        for position in &told {
            assert!(common.is_untold(0), "{told:?}");
            let node = common.knows_how_begun(0);
            common.ask_further(0, node, &Held::new(*position));
        }
        assert!(!common.is_untold(0), "{told:?}");
        let own = Link { by: 0, epoch };
        let parted = common.forks.parted.get(&0).copied();
        assert_eq!(parted, parts.then_some(own), "{told:?}");
    }
}

/// Node 1 gave node 0 what it streamed last, version 40 of its epoch 5, and gave it to another one
/// too. So the two parted there. Another position of it says nothing of that.
#[test]
fn what_was_given_to_two_is_where_they_parted() {
    let folder = folder();
    let (config, fleet) = fleet(&folder);
    let chunk = fleet.state(0).chunk(0);
    chunk.begun_version.store(40, Relaxed);
    let common = Common::new(config, fleet.weights(0), fleet.state(0));
    let epoch = epoch_of(5, 1);
    assert!(common.is_of_parting(0, 1, (epoch, 40)));
    assert!(!common.is_of_parting(0, 1, (epoch, 41)));
    assert!(!common.is_of_parting(0, 1, (epoch_of(4, 1), 40)));
    // A base of it that another node keeps.
    assert!(common.is_of_parting(0, 3, (epoch, 41)));
}

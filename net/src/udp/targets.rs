//! Where a frame to the group goes: by multicast, and as copies to nodes that it does not reach.
//!
//! Touches nothing. Invariant: the lists are made when an address or a way changes, because they
//! are read for every frame.

use std::net::SocketAddr;

use crate::address_table::AddressTable;
use crate::{To, Way};

pub(super) struct Targets {
    own: SocketAddr,
    /// Addresses where nodes may be.
    given: Vec<SocketAddr>,
    addresses: AddressTable<SocketAddr>,
    /// Per node with an address.
    ways: Vec<Way>,
    group: Vec<To>,
    /// Whether that is multicast alone.
    plain: bool,
    all: Vec<To>,
    /// Those of them at which no node is known.
    seeds: Vec<SocketAddr>,
}

impl Targets {
    pub(super) fn new(own: SocketAddr, seeds: Vec<SocketAddr>) -> Self {
        let mut targets = Targets {
            own,
            given: seeds,
            addresses: AddressTable::new(),
            ways: Vec::new(),
            group: Vec::new(),
            plain: true,
            all: Vec::new(),
            seeds: Vec::new(),
        };
        targets.update();
        targets
    }

    pub(super) fn address(&self, node: u16) -> Option<SocketAddr> {
        self.addresses.get(node)
    }

    /// Takes note of an address; false if it was known already.
    pub(super) fn learn(&mut self, node: u16, address: SocketAddr) -> bool {
        let changed = self.addresses.learn(node, address);
        if changed {
            self.update();
        }
        changed
    }

    pub(super) fn forget(&mut self, node: u16) {
        self.addresses.forget(node);
        self.set_way(node, Way::default());
        self.update();
    }

    pub(super) fn set_way(&mut self, node: u16, way: Way) {
        let index = usize::from(node);
        if self.ways.len() <= index {
            self.ways.resize(index + 1, Way::default());
        }
        if self.ways[index] != way {
            self.ways[index] = way;
            self.update();
        }
    }

    /// Whether a frame to the group goes by multicast and no other way.
    #[inline]
    pub(super) fn is_plain(&self) -> bool {
        self.plain
    }

    /// Where the datagrams of a frame go, multicast first.
    pub(super) fn of(&self, to: To) -> &[To] {
        match to {
            To::All => &self.all,
            _ => &self.group,
        }
    }

    /// Where a frame to all goes in addition.
    pub(super) fn seeds(&self) -> &[SocketAddr] {
        &self.seeds
    }

    fn update(&mut self) {
        let way = |node: u16| {
            self.ways
                .get(usize::from(node))
                .copied()
                .unwrap_or_default()
        };
        let nodes: Vec<(u16, Way)> = self
            .addresses
            .nodes()
            .map(|node| (node, way(node)))
            .collect();
        let by = |wanted: &[Way]| {
            let wanted = nodes.iter().filter(|(_, way)| wanted.contains(way));
            wanted.map(|(node, _)| To::Node(*node)).collect::<Vec<_>>()
        };
        let copies = by(&[Way::Copy]);
        // Frames of a node that knows no other yet go where they always went.
        let multicast = nodes.is_empty() || !by(&[Way::Multicast, Way::Unsure]).is_empty();
        self.group.clear();
        self.group.extend(multicast.then_some(To::Group));
        self.group.extend(copies);
        self.plain = self.group == [To::Group];
        self.all = vec![To::Group];
        self.all.extend(by(&[Way::Unsure, Way::Copy, Way::Rest]));
        let known = |seed: &SocketAddr| {
            *seed == self.own
                || nodes
                    .iter()
                    .any(|(node, _)| self.address(*node) == Some(*seed))
        };
        self.seeds = self
            .given
            .iter()
            .copied()
            .filter(|seed| !known(seed))
            .collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], port))
    }

    #[test]
    fn multicast_and_copies_together_reach_each_node_once() {
        let mut targets = Targets::new(at(1), vec![at(1), at(5), at(9)]);
        assert!(targets.is_plain());
        assert_eq!(targets.seeds(), [at(5), at(9)]);
        for node in [3, 4, 5, 6] {
            assert!(targets.learn(node, at(node)));
        }
        assert_eq!(targets.seeds(), [at(9)]);
        // Who is not known to hear it is told where this node is all the same.
        assert!(targets.is_plain());
        assert_eq!(targets.of(To::All)[1..], [3, 4, 5, 6].map(To::Node));
        targets.set_way(3, Way::Multicast);
        targets.set_way(4, Way::Copy);
        targets.set_way(6, Way::Rest);
        assert_eq!(targets.of(To::Group), [To::Group, To::Node(4)]);
        assert_eq!(targets.of(To::All)[1..], [4, 5, 6].map(To::Node));
        // No node hears it: positions do not go there, hellos try it.
        targets.set_way(3, Way::Copy);
        targets.set_way(5, Way::Copy);
        assert_eq!(targets.of(To::Group), [3, 4, 5].map(To::Node));
        assert_eq!(targets.of(To::All)[0], To::Group);
        targets.forget(4);
        assert_eq!(targets.of(To::Group), [3, 5].map(To::Node));
        assert_eq!(targets.address(4), None);
    }
}

//! Nodes that multicast does not bring together: where they are, and to whom copies go.
//!
//! Holds the address of each node, and how frames to the group reach it ([`Way`]). Of a node that
//! does not hear this one's multicast, that says its hellos. It then gets a copy of each frame, and
//! is told at which addresses the others are: so one address is enough to find all. A node that was
//! not heard for a while gets hellos alone.
//!
//! Time is an argument. Invariants: what another node says of an address never replaces one at
//! which a node is heard; where all hear each other by multicast nothing is sent from here.

use std::net::SocketAddr;

use dogwild_net::{Source, Transmit, Way};

use super::port::Port;
use crate::stream::Streamer;
use crate::wire::{CONTACTS_MAX, Contact, NO_NODE, Stay};

/// Time between two looks, ns.
const LOOK_NS: u64 = 50_000_000;
/// A node that hears other frames of this one, and none by multicast for so long, gets copies, ns.
const DENIED_NS: u64 = 300_000_000;
/// Contacts may get lost: they are told again after this, ns.
const AGAIN_NS: u64 = 2_000_000_000;
/// A node that was not heard for so long gets no copies of positions, ns.
const SILENT_NS: u64 = 2_000_000_000;
/// A host without a number that was not heard for so long is forgotten, ns.
const SEEKER_NS: u64 = 1_000_000_000;
/// Nodes that are told at one look.
const TOLD_AT_ONCE: usize = 8;

/// What is known of a node.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    address: Option<SocketAddr>,
    way: Way,
    /// Since when it says that it does not hear this node's multicast, ns; 0: it does not.
    denied_ns: u64,
    /// When it was told last where others are, ns; 0: never.
    told_ns: u64,
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(super) struct Contacts {
    known: Vec<Known>,
    looked_ns: u64,
    /// When a host without a number was heard last, and told where nodes are, ns; 0: there is none.
    seeker_ns: u64,
    seeker_told_ns: u64,
}

impl Contacts {
    /// Takes note that a valid frame of `node` came from `source`.
    #[inline]
    pub(super) fn note_source(
        &mut self,
        now_ns: u64,
        node: u16,
        source: Source,
        streamer: &mut Streamer<'_>,
    ) {
        let address = match source {
            Source::Multicast(address) => {
                streamer.note_multicast(now_ns, node);
                address
            }
            Source::Socket(address) => address,
            _ => return,
        };
        let known = self.of(node, streamer.places());
        if known.address != Some(address) {
            (known.address, known.told_ns) = (Some(address), 0);
        }
    }

    fn of(&mut self, node: u16, places: u16) -> &mut Known {
        if self.known.is_empty() {
            self.known = vec![Known::default(); places.into()];
        }
        &mut self.known[usize::from(node)]
    }

    /// Takes what another node says of where others are: hellos go there.
    #[cold]
    pub(super) fn take(
        &mut self,
        now_ns: u64,
        payload: &[u8],
        streamer: &mut Streamer<'_>,
        tx: &mut dyn Transmit,
    ) {
        for Contact { node, address } in Contact::parse(payload).unwrap_or_default() {
            let places = streamer.places();
            let own = node == streamer.node();
            if node >= places || own || is_heard(now_ns, node, streamer) {
                continue;
            }
            let known = self.of(node, places);
            if known.address != Some(address) {
                known.address = Some(address);
                known.way = Way::Rest;
                tx.learn(node, Source::Socket(address));
                tx.set_way(node, Way::Rest);
                streamer.say_hello();
                log::debug!("node {node} may be at {address}");
            }
        }
    }

    /// Takes a frame of a host that has no number: it is answered, and told where all nodes are.
    /// True if it is of this session.
    #[cold]
    pub(super) fn take_seek(
        &mut self,
        now_ns: u64,
        source: Source,
        bytes: &[u8],
        streamer: &mut Streamer<'_>,
        tx: &mut dyn Transmit,
    ) -> bool {
        if streamer.is_seek(bytes) {
            tx.learn(NO_NODE, source);
            tx.set_way(NO_NODE, Way::Rest);
            self.seeker_ns = now_ns.max(1);
        }
        let mut port = Port::new(tx, None);
        let taken = streamer.handle_frame(now_ns, bytes, &mut port).is_some();
        if taken && now_ns.saturating_sub(self.seeker_told_ns) >= LOOK_NS {
            self.seeker_told_ns = now_ns;
            for list in self.contacts(now_ns, streamer).chunks(CONTACTS_MAX) {
                streamer.send_contacts(NO_NODE, list, &mut port);
            }
        }
        taken
    }

    /// Looks which nodes need copies, and tells nodes where others are, if it is time to.
    #[inline]
    pub(super) fn poll(&mut self, now_ns: u64, streamer: &Streamer<'_>, tx: &mut dyn Transmit) {
        if self.seeker_ns != 0 && now_ns.saturating_sub(self.seeker_ns) >= SEEKER_NS {
            self.seeker_ns = 0;
            tx.forget(NO_NODE);
        }
        if !self.known.is_empty() && now_ns.saturating_sub(self.looked_ns) >= LOOK_NS {
            self.looked_ns = now_ns;
            self.look(now_ns, streamer, tx);
        }
    }

    fn look(&mut self, now_ns: u64, streamer: &Streamer<'_>, tx: &mut dyn Transmit) {
        for (node, known) in (0..).zip(&mut self.known) {
            let Some(address) = known.address else {
                continue;
            };
            if streamer.peer(node).stay == Stay::Gone {
                *known = Known::default();
                tx.forget(node);
                continue;
            }
            let way = known.next_way(now_ns, node, streamer);
            if way != known.way {
                say(node, address, known.way, way);
                known.way = way;
                tx.set_way(node, way);
            }
        }
        let apart = |known: &Known| matches!(known.way, Way::Unsure | Way::Copy);
        if self
            .known
            .iter()
            .any(|known| known.address.is_some() && apart(known))
        {
            self.tell(now_ns, streamer, tx);
        }
    }

    /// Tells nodes that are heard where all others are.
    fn tell(&mut self, now_ns: u64, streamer: &Streamer<'_>, tx: &mut dyn Transmit) {
        let contacts = self.contacts(now_ns, streamer);
        let due = |known: &&mut Known| {
            let again = now_ns.saturating_sub(known.told_ns) >= AGAIN_NS;
            known.address.is_some() && known.way != Way::Rest && (known.told_ns == 0 || again)
        };
        let nodes = (0..).zip(&mut self.known).filter(|(_, known)| due(known));
        for (node, known) in nodes.take(TOLD_AT_ONCE) {
            let mut others = contacts.clone();
            others.retain(|contact| contact.node != node);
            let mut port = Port::new(&mut *tx, None);
            let mut lists = others.chunks(CONTACTS_MAX);
            if lists.all(|list| streamer.send_contacts(node, list, &mut port)) {
                known.told_ns = now_ns.max(1);
            }
        }
    }

    /// Where nodes are that are heard.
    fn contacts(&self, now_ns: u64, streamer: &Streamer<'_>) -> Vec<Contact> {
        let known = (0..).zip(&self.known);
        let heard = known.filter_map(|(node, known)| {
            let address = known.address.filter(|_| is_heard(now_ns, node, streamer))?;
            Some(Contact { node, address })
        });
        heard.collect()
    }

    /// Nodes to which copies go.
    pub(super) fn copies(&self) -> usize {
        let copies = self.known.iter().filter(|known| known.way == Way::Copy);
        copies.count()
    }
}

impl Known {
    fn next_way(&mut self, now_ns: u64, node: u16, streamer: &Streamer<'_>) -> Way {
        if !is_heard(now_ns, node, streamer) {
            return Way::Rest;
        }
        match streamer.multicast_reaches(node) {
            Some(false) if self.denied_ns == 0 => {
                self.denied_ns = now_ns;
                Way::Unsure
            }
            Some(false) if now_ns - self.denied_ns >= DENIED_NS => Way::Copy,
            Some(false) => Way::Unsure,
            reaches => {
                self.denied_ns = 0;
                reaches.map_or(Way::Unsure, |_| Way::Multicast)
            }
        }
    }
}

fn is_heard(now_ns: u64, node: u16, streamer: &Streamer<'_>) -> bool {
    let heard_ns = streamer.peer(node).heard_ns;
    heard_ns != 0 && now_ns.saturating_sub(heard_ns) < SILENT_NS
}

fn say(node: u16, address: SocketAddr, before: Way, way: Way) {
    match way {
        Way::Copy => {
            log::info!("multicast does not reach node {node}: it gets copies, at {address}");
        }
        Way::Multicast if before == Way::Copy => {
            log::info!("multicast reaches node {node} now");
        }
        _ => log::debug!("node {node} at {address}: {way:?}"),
    }
}

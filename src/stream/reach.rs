//! Which nodes hear each other by multicast, and where nodes are that do not.
//!
//! A node says in its hellos of which nodes it hears frames by multicast: so each finds by trying
//! which nodes its own reach. What is done about the others, and at which addresses they are, is
//! for the program around the streamer; contacts only pass through here.

use super::common::Common;
use super::{Outbox, Streamer, To, header};
use crate::wire::{Contact, Frame, Kind};

/// Multicast works while the last frame by it is no older, ns: ten hellos.
const HEARD_NS: u64 = 5_000_000_000;

impl Common<'_> {
    /// Whether frames of `node` come by multicast.
    pub(super) fn hears_by_multicast(&self, now_ns: u64, node: u16) -> bool {
        let last_ns = self.peers[usize::from(node)].multicast_ns;
        last_ns != 0 && now_ns.saturating_sub(last_ns) < HEARD_NS
    }
}

impl Streamer<'_> {
    /// Notes that a frame of `node` came by multicast.
    #[inline]
    pub fn note_multicast(&mut self, now_ns: u64, node: u16) {
        if let Some(peer) = self.common.peers.get_mut(usize::from(node)) {
            peer.multicast_ns = now_ns.max(1);
        }
    }

    /// Whether this node's multicast reaches `node`, as that said last; `None`: it knows nothing of
    /// this node yet.
    pub fn multicast_reaches(&self, node: u16) -> Option<bool> {
        let config = &self.common.config;
        let told = self.common.told(node, config.node)?;
        (told.life == config.incarnation as u32).then_some(told.by_multicast)
    }

    /// Tells `node` where others are, at most [`CONTACTS_MAX`](crate::wire::CONTACTS_MAX); false:
    /// not now.
    pub fn send_contacts(&self, node: u16, contacts: &[Contact], out: &mut impl Outbox) -> bool {
        let header = header::contacts(&self.common, contacts.len());
        out.send_hello(To::Node(node), header.frame_len(), &mut |slot| {
            Contact::emit(contacts, header.emit(slot).1);
        })
    }

    /// Whether `bytes` are a frame of this session from a host that has no number yet. The answer
    /// goes to the address of [`NO_NODE`](crate::wire::NO_NODE).
    #[cold]
    pub fn is_seek(&self, bytes: &[u8]) -> bool {
        Frame::parse(bytes).is_ok_and(|frame| {
            let header = &frame.header;
            header.kind == Kind::Seek && header.session == self.common.config.session
        })
    }

    /// This node.
    pub fn node(&self) -> u16 {
        self.common.config.node
    }

    /// Sends a hello soon: there may be a node that has not heard of this one.
    pub fn say_hello(&mut self) {
        self.common.tell_soon = true;
    }
}

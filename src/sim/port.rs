//! A node's outbox: frames go to the virtual network, with its faults and limits.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use rand::RngExt;

use super::network::{Bytes, Network, Unread};
use crate::stream::{FillLent, Outbox, Room, To};
use crate::wire::NO_NODE;

/// Where a node sends.
pub(super) struct Port<'n> {
    pub(super) network: &'n mut Network,
    pub(super) from: u16,
}

/// What unwinds a streamer that is killed in a send.
struct Killed;

impl Port<'_> {
    /// A signal that arrives in a system call takes effect when that is done: the frame is on its
    /// way, and nothing that comes after the call happens.
    fn note_sent(&mut self) {
        let Some(left) = &mut self.network.kills[usize::from(self.from)] else {
            return;
        };
        *left -= 1;
        if *left == 0 {
            // Not a panic: nothing is wrong, and nothing is printed.
            resume_unwind(Box::new(Killed));
        }
    }
}

/// Lets a streamer act; false: it was killed in a send.
pub(super) fn survives(act: impl FnOnce()) -> bool {
    match catch_unwind(AssertUnwindSafe(act)) {
        Ok(()) => true,
        Err(why) if why.is::<Killed>() => false,
        Err(why) => resume_unwind(why),
    }
}

impl Outbox for Port<'_> {
    fn send(&mut self, to: To, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> bool {
        if !self.network.admit(self.from, len) {
            return false;
        }
        let mut bytes: Bytes = std::iter::repeat_n(0, len).collect();
        fill(Arc::make_mut(&mut bytes));
        match to {
            // Hosts without a number are not simulated.
            To::Node(NO_NODE) => {}
            To::Node(node) => self.network.deliver(self.from, node, &bytes),
            To::Group | To::All => self.network.send_to_others(self.from, &bytes),
        }
        self.note_sent();
        true
    }

    fn send_weights(
        &mut self,
        to: To,
        head_len: usize,
        weights: Range<usize>,
        fill: &mut FillLent<'_>,
    ) -> Option<u64> {
        let network = &mut *self.network;
        if network.faults.unread_ns == 0 {
            let len = head_len + 4 * weights.len();
            let went = self.send(to, len, &mut |slot| {
                let (head, tail) = slot.split_at_mut(head_len);
                fill(head, Some(tail));
            });
            return went.then_some(0);
        }
        assert_eq!(to, To::Group, "positions go to all");
        if !network.admit(self.from, head_len + 4 * weights.len()) {
            return None;
        }
        let mut head = vec![0; head_len];
        fill(&mut head, None);
        network.tickets += 1;
        let ticket = network.tickets;
        let wait = network.rng.random_range(0..=network.faults.unread_ns);
        network.unread.push(Unread {
            due_ns: network.now_ns + wait,
            ticket,
            from: self.from,
            head,
            weights,
        });
        self.note_sent();
        Some(ticket)
    }

    fn room(&mut self) -> Option<Room> {
        let network = &mut *self.network;
        let from = usize::from(self.from);
        network
            .limits
            .room(network.faults.limit, network.now_ns, from)
    }

    fn has_read(&mut self, ticket: u64) -> bool {
        !self.network.unread.iter().any(|one| one.ticket == ticket)
    }
}

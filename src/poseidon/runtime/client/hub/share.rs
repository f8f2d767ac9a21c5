//! A worker's share of the layers under `p2p`: it adds up the gradients of its pairs, makes their
//! steps and gives the weights to all workers, itself too.

use std::sync::Arc;

use super::super::super::checkpoint::SHARE;
use super::super::super::sync::lock;
use super::Hub;
use crate::poseidon::{
    Destination, KvStore, Made, Member, MemberRole, Message, ProtocolViolation, Saved,
};

impl Hub {
    /// True if this worker holds a part of the weights for all others.
    pub(in super::super) fn has_share(&self) -> bool {
        self.share.is_some()
    }

    /// What a checkpoint must hold of the syncers and of this worker's share. All steps that the
    /// worker has sent its part of must be made; none that it has not can be.
    pub(in super::super) fn saved(&self) -> Vec<Saved> {
        let saved = self.syncers.iter().flat_map(|syncer| lock(syncer).saved());
        let share = self.share.iter().flat_map(KvStore::saved);
        let share = share.map(|(name, values)| (format!("{SHARE}{name}"), values));
        saved.chain(share).collect()
    }

    /// Adds an update, of a peer or of this worker.
    pub(super) fn add_to_share(&self, message: Arc<Message>, from: &str) {
        let (kind, subject) = (message.kind, message.subject);
        let Some(share) = &self.share else {
            return self.violation(from, ProtocolViolation::UnexpectedSubject { kind, subject });
        };
        let message = Arc::unwrap_or_clone(message);
        let added = share.receive(message, &self.math, |made| self.give_out(&made));
        if let Err(why) = added {
            self.violation(from, why);
        }
    }

    /// Sends the weights that a step has made. A reading thread does so: it must not wait until the
    /// other end has read, whose reading thread may be waiting for this one.
    fn give_out(&self, made: &Made<'_>) {
        for message in &made.messages {
            if let Some(budget) = &self.budget {
                let copies = self.links.peers();
                let priority = made.priority(message.subject);
                budget.push(Destination::Peers, message.clone(), copies, priority);
            } else {
                self.links.each(Destination::Peers, |link| {
                    self.traffic.sent(message);
                    link.send_later(message.clone());
                });
            }
            let layer = self.pairs[message.subject as usize].layer;
            self.take(layer, message.clone(), "this worker");
        }
    }

    /// Workers that have not sent their part of a step that others wait for.
    pub(super) fn late_in_share(&self) -> Vec<Member> {
        let late = self.share.as_ref().and_then(|share| share.late());
        let late = late.into_iter().flat_map(|(_, workers)| workers);
        let role = MemberRole::Worker;
        late.map(|index| Member { role, index }).collect()
    }
}

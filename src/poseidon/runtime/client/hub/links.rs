//! The writing halves of a client's connections.
//!
//! A thread that sends may wait for the other end while it looks at them, so others must be able to
//! look too.

use std::sync::{Arc, Mutex, RwLock};

use super::super::super::link::Link;
use super::super::super::sync::{lock, read, write};
use crate::poseidon::{Destination, Member, MemberRole, Message};

#[derive(Default)]
struct All {
    coordinator: Option<Link>,
    /// Servers and, where workers talk to each other, all other workers.
    members: Vec<(Member, Link)>,
}

/// See the module.
#[derive(Default)]
pub(in super::super) struct Links {
    all: RwLock<All>,
    /// Members that send nothing more.
    left: Mutex<Vec<Member>>,
}

impl Links {
    /// Adds a connection to a server or a peer.
    pub(in super::super) fn add(&self, member: Member, link: Link) {
        write(&self.all).members.push((member, link));
    }

    /// Adds the connection to the coordinator.
    pub(in super::super) fn add_coordinator(&self, link: Link) {
        write(&self.all).coordinator = Some(link);
    }

    /// Notes that a member sends nothing more.
    pub(super) fn leaves(&self, member: Member) {
        lock(&self.left).push(member);
    }

    /// True if that member sends nothing more.
    pub(super) fn has_left(&self, member: Member) -> bool {
        lock(&self.left).contains(&member)
    }

    /// Members that may still send something.
    pub(super) fn staying(&self) -> Vec<Member> {
        let all = read(&self.all);
        let members = all.members.iter().map(|(member, _)| *member);
        members.filter(|member| !self.has_left(*member)).collect()
    }

    /// Number of other workers that are connected.
    pub(super) fn peers(&self) -> usize {
        let all = read(&self.all);
        let members = all.members.iter();
        members
            .filter(|(m, _)| m.role == MemberRole::Worker)
            .count()
    }

    /// Calls `send` for each connection to `to`.
    pub(super) fn each(&self, to: Destination, send: impl Fn(&Link)) {
        let all = read(&self.all);
        let receives = |member: Member| match to {
            Destination::Home(home) => member == home,
            Destination::Peers => member.role == MemberRole::Worker,
        };
        let receivers = all.members.iter().filter(|(member, _)| receives(*member));
        receivers.for_each(|(_, link)| send(link));
    }

    pub(super) fn to_coordinator(&self, message: Arc<Message>) {
        if let Some(link) = &read(&self.all).coordinator {
            link.send(message);
        }
    }

    /// Sends to all members, and to the coordinator last.
    pub(super) fn to_all(&self, message: &Arc<Message>) {
        let all = read(&self.all);
        let members = all.members.iter().map(|(_, link)| link);
        members
            .chain(&all.coordinator)
            .for_each(|link| link.send(message.clone()));
    }

    /// Removes all connections, for the caller to close.
    pub(in super::super) fn take(&self) -> Vec<Link> {
        let all = std::mem::take(&mut *write(&self.all));
        let members = all.members.into_iter().map(|(_, link)| link);
        members.chain(all.coordinator).collect()
    }
}

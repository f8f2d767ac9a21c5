//! What a cluster goes on from: the newest checkpoint that all members have, whole and equal.
//!
//! Knows clocks and hashes only. Invariant: a clock that is chosen, or said to be common, is one
//! that every member has named. A server that holds nothing names none, and does not count.

use std::collections::BTreeSet;

use super::super::plan::Stragglers;
use super::{Coordinator, Member, MemberHello, MemberRole, Refusal};

impl Coordinator {
    /// The checkpoint that all resume from. Members that died at different moments have different
    /// newest ones, one apart at most: it is the newest that they have in common, so that no step
    /// is missing on one and made on another.
    pub(super) fn start(&self, hellos: &[&MemberHello]) -> Option<u64> {
        let holds = |hello: &&&MemberHello| !self.idle.contains(&hello.member);
        let hellos: Vec<_> = hellos.iter().filter(holds).collect();
        let (first, others) = hellos.split_first()?;
        let common = first.checkpoints.iter().copied().filter(|clock| {
            let has = |hello: &&&MemberHello| hello.checkpoints.contains(clock);
            self.resume && others.iter().all(has) && self.differing(*clock).is_none()
        });
        common.max()
    }

    /// Two workers whose checkpoints of `clock` hold other weights. Where late updates are dropped
    /// none does: there the servers' weights count.
    pub fn differing(&self, clock: u64) -> Option<[Member; 2]> {
        if self.plan.stragglers != Stragglers::Wait {
            return None;
        }
        let hellos = self.members.iter().filter_map(|(_, hello)| hello.as_ref());
        let workers = hellos.filter(|hello| hello.member.role == MemberRole::Worker);
        let mut replicas = workers.filter_map(|hello| {
            let at = hello.checkpoints.iter().position(|c| *c == clock)?;
            Some((hello.member, *hello.replicas.get(at)?))
        });
        let (first, weights) = replicas.next()?;
        let other = replicas.find(|(_, other)| *other != weights);
        other.map(|(other, _)| [first, other])
    }

    /// Checkpoints newer than `start` of which workers hold [`differing`](Self::differing) weights.
    pub fn passed_over(&self, start: u64) -> Vec<(u64, [Member; 2])> {
        let hellos = self.members.iter().filter_map(|(_, hello)| hello.as_ref());
        let clocks: BTreeSet<u64> = hellos.flat_map(|h| h.checkpoints.iter().copied()).collect();
        let newer = clocks.into_iter().filter(|clock| *clock > start);
        newer
            .filter_map(|clock| Some((clock, self.differing(clock)?)))
            .collect()
    }

    /// Why all cannot go on, once all have joined: there is no checkpoint in common.
    pub fn nothing_in_common(&self) -> Option<Refusal> {
        let hellos: Option<Vec<&MemberHello>> =
            self.members.iter().map(|(_, h)| h.as_ref()).collect();
        let hellos = hellos?;
        if !self.resume || self.start(&hellos).is_some() {
            return None;
        }
        let of = |hello: &&MemberHello| match hello.checkpoints.as_slice() {
            [] => format!("{}: none", hello.member),
            clocks => format!("{}: {clocks:?}", hello.member),
        };
        let holds = |hello: &&&MemberHello| !self.idle.contains(&hello.member);
        let all: Vec<String> = hellos.iter().filter(holds).map(of).collect();
        Some(Refusal::NothingInCommon(all.join("; ")))
    }

    /// Notes that `member` has the checkpoint of `clock`; gives the newest that all are known to
    /// have, or 0.
    pub fn saved(&mut self, member: Member, clock: u64) -> u64 {
        self.saved.entry(member).or_default().insert(clock);
        let members = self.members.iter().map(|(member, _)| member);
        let hold = members.filter(|member| !self.idle.contains(member));
        let sets: Option<Vec<_>> = hold.map(|member| self.saved.get(member)).collect();
        let newest = sets.and_then(|sets| {
            let (first, others) = sets.split_first()?;
            let mut common = first.iter().rev();
            common.find(|clock| others.iter().all(|set| set.contains(clock)))
        });
        let common = newest.copied().unwrap_or(0);
        self.saved
            .values_mut()
            .for_each(|set| set.retain(|clock| *clock >= common));
        common
    }
}

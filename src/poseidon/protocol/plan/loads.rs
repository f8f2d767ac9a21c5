//! How KV pairs are dealt evenly to the members of a role. Numbers only.

use super::super::coordinator::{Member, MemberRole};

/// The weights that each member of a role holds so far.
pub(super) struct Loads {
    role: MemberRole,
    weights: Vec<usize>,
}

impl Loads {
    /// Of so many members, which hold nothing.
    pub(super) fn new(role: MemberRole, members: u16) -> Self {
        let weights = vec![0; usize::from(members).max(1)];
        Self { role, weights }
    }

    /// The first of those that hold least.
    pub(super) fn least(&self) -> usize {
        let members = 0..self.weights.len();
        members.min_by_key(|&i| self.weights[i]).unwrap_or(0)
    }

    /// Gives `weights` more to a member.
    pub(super) fn add(&mut self, member: usize, weights: usize) -> Member {
        self.weights[member] += weights;
        let (role, index) = (self.role, member as u16);
        Member { role, index }
    }

    /// Gives `weights` more to the first of those that hold least.
    pub(super) fn add_to_least(&mut self, weights: usize) -> Member {
        self.add(self.least(), weights)
    }
}

//! How long what is kept of forks is kept: until those that need it take part again, and some more.

use std::collections::BTreeSet;

use super::super::common::Common;
use super::super::epochs::owner;
use super::super::kept::Base;
use super::Forks;

/// Time between two looks at what may be forgotten, ns.
const FORGET_NS: u64 = 1_000_000_000;

impl Forks<'_> {
    /// Whether a member was silent of late: at most so long ago.
    pub(in super::super) fn was_silent(&self, now_ns: u64, most_ns: u64) -> bool {
        self.silent_ns != 0 && now_ns.saturating_sub(self.silent_ns) < most_ns
    }

    /// `master` streams a chunk again: what was contested with it is kept for a while, as it may
    /// owe that.
    pub(super) fn note_streams(&mut self, now_ns: u64, chunk: u32, master: u16) {
        let all = self.contested.get_mut(&chunk).into_iter().flatten();
        for one in all.filter(|one| one.master == master) {
            one.back_ns = now_ns.max(1);
        }
    }

    /// Forgets what was contested with masters that stream again for long, and bases of those that
    /// take part again.
    pub(super) fn forget_old(&mut self, now_ns: u64) {
        if now_ns > self.due_ns + FORGET_NS {
            self.begin_to_forget(now_ns);
        }
        self.due_ns = now_ns + FORGET_NS;
        self.forget_old_bases(now_ns);
        let all = self.contested.iter();
        let old = all.flat_map(|(chunk, all)| {
            let old = all.iter().filter(|one| one.is_old(now_ns));
            old.map(|one| (*chunk, one.master))
        });
        for (chunk, master) in old.collect::<Vec<_>>() {
            self.forget_contested(chunk, master);
        }
    }

    /// This node has just started, or stood still: meanwhile those that need what is kept could not
    /// ask for it.
    fn begin_to_forget(&mut self, now_ns: u64) {
        let former = self.former.values_mut().flatten();
        let bases = self.bases.values_mut().chain(former);
        let bases = bases.map(|base| &mut base.back_ns);
        let contested = self.contested.values_mut().flatten();
        let all = bases.chain(contested.map(|one| &mut one.back_ns));
        all.filter(|back_ns| **back_ns != 0)
            .for_each(|back_ns| *back_ns = now_ns.max(1));
    }

    /// A delta or a position of `node` came for `chunk`: if it streamed that before, it needs the
    /// base no more.
    #[inline]
    pub(in super::super) fn note_back(&mut self, now_ns: u64, node: u16, chunk: u32) {
        if !(self.bases.is_empty() && self.former.is_empty()) {
            self.change_bases(chunk, |base| base.note_back(now_ns, node));
        }
    }

    /// A delta of `node` came for `chunk`, which `own`, this node, streams. If it streamed that
    /// before, it has joined: what it did then is this node's to bring.
    #[inline]
    pub(in super::super) fn note_joined(
        &mut self,
        now_ns: u64,
        node: u16,
        (own, chunk): (u16, u32),
    ) {
        if !(self.bases.is_empty() && self.former.is_empty()) {
            let joined =
                |base: &mut Base| base.note_back(now_ns, node) | base.is_left_to(own, node);
            self.change_bases(chunk, joined);
        }
    }

    /// `node` lost its memory: what it did before it gave chunks away is left to `own`, this node.
    pub(in super::super) fn note_lost(&mut self, node: u16, own: u16) {
        let chunks: BTreeSet<u32> = self
            .bases
            .keys()
            .chain(self.former.keys())
            .copied()
            .collect();
        for chunk in chunks {
            self.change_bases(chunk, |base| base.is_left_to(own, node));
        }
    }

    /// Changes bases of a chunk: those for which `change` returns true.
    #[cold]
    fn change_bases(&mut self, chunk: u32, mut change: impl FnMut(&mut Base) -> bool) {
        let mut records = Vec::new();
        if let Some(base) = self.bases.get_mut(&chunk)
            && change(base)
        {
            records.push(base.record(chunk));
        }
        for base in self.former.get_mut(&chunk).into_iter().flatten() {
            if change(base) {
                records.push(base.former_record(chunk));
            }
        }
        records.iter().for_each(|record| self.put(record));
    }

    fn forget_old_bases(&mut self, now_ns: u64) {
        let silent_ns = self.silent_ns;
        let is_old = |base: &&Base| base.is_old(now_ns, silent_ns);
        let former = self.former.iter();
        let old = former.flat_map(|(chunk, all)| {
            let old = all.iter().filter(is_old);
            old.map(|base| (*chunk, owner(base.epoch)))
        });
        for (chunk, master) in old.collect::<Vec<_>>() {
            self.forget_former(master, chunk);
        }
        let bases = self.bases.iter();
        let old = bases.filter(|(_, base)| is_old(base) && !base.weights.is_empty());
        for (chunk, base) in old
            .map(|(chunk, base)| (*chunk, base.clone()))
            .collect::<Vec<_>>()
        {
            let numbers = Base {
                weights: Vec::new(),
                ..base
            };
            self.set_base(chunk, numbers);
        }
    }
}

impl Common<'_> {
    /// Forgets what no node needs any more of forks.
    #[inline]
    pub(in super::super) fn forget_old_forks(&mut self, now_ns: u64) {
        if now_ns >= self.forks.due_ns {
            self.look_for_silent(now_ns);
            self.forks.forget_old(now_ns);
        }
    }

    /// Notes whether a member is silent, or one that needs a base and that this life may have never
    /// heard.
    pub(in super::super) fn look_for_silent(&mut self, now_ns: u64) {
        let is_away = |node: u16| !self.is_gone(node) && !self.is_alive(now_ns, node);
        if self.silent(now_ns).next().is_some() || self.forks.of_bases().any(is_away) {
            self.forks.silent_ns = now_ns;
        }
    }
}

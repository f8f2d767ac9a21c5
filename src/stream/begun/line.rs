//! The line of masters of a chunk that this node streamed, back from the present one to where it
//! went apart from this node. And those who may have what this node streamed last: its *heirs*.
//!
//! Invariant: who may have it is asked before anything is brought that it would bring too.

use std::sync::atomic::Ordering::Relaxed;

use super::super::common::Common;
use super::super::epochs::{are_of_one_reign, is_later, owner};
use super::super::kept::Base;
use crate::wire::Held;

/// An heir that is silent is waited for so many times the shortest silence: what it has of this
/// node would count twice.
const HEIR: u64 = 16;

/// A step back along the line of masters of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Link {
    /// The node that began the chunk,
    pub(in super::super) by: u16,
    /// from a position of this epoch; 0: it does not know, or it was the first.
    pub(in super::super) epoch: u32,
}

/// Another node than the present master that is to say how it began a chunk: the heir, which had
/// asked this node for it, or the next along the line of masters.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Teller {
    pub(super) node: u16,
    /// How far the line is known: it leads to this node, or is followed once the heir has answered.
    link: Option<Link>,
    /// Since when it is found silent, ns.
    silent_ns: Option<u64>,
}

impl Teller {
    fn new(node: u16, link: Option<Link>) -> Self {
        Self {
            node,
            link,
            silent_ns: None,
        }
    }
}

impl Common<'_> {
    /// Whether this node and others may have gone apart at a position of `epoch`: it is of the
    /// reign that this node had last, or of the one that it took the chunk over from. A node may
    /// have streamed a chunk several times, and bases are asked for by its number.
    pub(in super::super) fn may_have_parted(&self, chunk: u32, epoch: u32) -> bool {
        let last = self.state.chunk(chunk).epoch.load(Relaxed);
        let begun = self.begun(chunk);
        let of_before = begun.is_some_and(|begun| are_of_one_reign(begun.0, epoch));
        self.is_of_last_reign(chunk, epoch) || of_before && !is_later(epoch, last)
    }

    /// Whether `epoch` is of the reign that this node had of a chunk last.
    pub(in super::super) fn is_of_last_reign(&self, chunk: u32, epoch: u32) -> bool {
        let last = self.state.chunk(chunk).epoch.load(Relaxed);
        let begun = self.begun(chunk).map(|begun| begun.0);
        owner(epoch) == self.config.node
            && !is_later(epoch, last)
            && begun.is_none_or(|begun| is_later(epoch, begun))
    }

    /// `sender` began a chunk from something else than what this node streamed last: asks the node
    /// that had asked for that, and then along the line of masters.
    pub(super) fn ask_further(&mut self, chunk: u32, sender: u16, begun: &Held) {
        let told = Link {
            by: sender,
            epoch: begun.position().map_or(0, |(epoch, _)| epoch),
        };
        self.forks.remove_heir(chunk, sender);
        let (teller, given) = (self.forks.tellers.remove(&chunk), self.given(chunk));
        let by_heir = teller.is_some() && given == Some(sender);
        let heir = match teller {
            None if given.is_some_and(|heir| heir != sender) => given,
            Some(_) if !by_heir => None,
            _ => self.next_heir(chunk),
        };
        if by_heir && heir.is_none() {
            // It is not asked twice.
            self.state.chunk(chunk).given.store(0, Relaxed);
        }
        let link = match teller {
            None => Some(told),
            Some(teller) if by_heir => teller.link,
            // What it began later than what it was asked about is of no use.
            Some(teller) => {
                let before = teller.link.map(|of| is_later(of.epoch, told.epoch));
                (before == Some(true)).then_some(told)
            }
        };
        match heir {
            Some(node) => {
                let teller = Teller::new(node, link);
                self.forks.tellers.insert(chunk, teller);
            }
            None => self.follow(chunk, link),
        }
    }

    /// Follows the line of masters of a chunk, back from the present one, to where it went apart
    /// from this node.
    fn follow(&mut self, chunk: u32, link: Option<Link>) {
        let went_on = link.and_then(|link| self.went_on(chunk, link));
        let passed = link.and_then(|link| self.passed_by(chunk, link));
        let link = link.filter(|link| link.epoch != 0);
        let parted = link.filter(|link| self.may_have_parted(chunk, link.epoch));
        let next = link.map(|link| owner(link.epoch));
        match (went_on.or(parted).or(passed), next) {
            (Some(link), _) => {
                self.forks.parted.insert(chunk, link);
                self.forks.apart.insert(chunk);
            }
            (None, Some(node)) if node != self.config.node && node < self.config.places() => {
                self.forks.tellers.insert(chunk, Teller::new(node, link));
            }
            _ => {
                self.forks.apart.insert(chunk);
            }
        }
    }

    /// Whether a master began a chunk before this node took it over from that one: so it went on
    /// from there without this node, and the two parted at the base that is kept here.
    fn went_on(&self, chunk: u32, link: Link) -> Option<Link> {
        let base = self.forks.base_for(chunk, [link.by, link.by], 0);
        let since = base.filter(|base| is_later(base.epoch, link.epoch));
        since.map(|base| Link {
            epoch: base.epoch,
            ..link
        })
    }

    /// Whether the line leads from the present master to before the position that this node took
    /// the chunk over at, and by no reign of it. So what this node did since then is not in it: the
    /// two part at the own base. What was done before that the master of then brings by itself,
    /// unless it has joined this node.
    fn passed_by(&self, chunk: u32, link: Link) -> Option<Link> {
        let own = self.own_base(chunk).filter(|own| own.back_ns == 0)?;
        // The present master knows what it began from, if there was anything.
        let master = owner(self.promised(self.ranges.range_of(chunk)));
        let known = link.epoch != 0 || link.by == master;
        (known && is_later(own.epoch, link.epoch)).then_some(Link {
            by: self.config.node,
            epoch: own.epoch,
        })
    }

    /// The position of another master that this node took the chunk over at, if it is kept.
    pub(in super::super) fn own_base(&self, chunk: u32) -> Option<&Base> {
        let base = self.forks.base(chunk)?;
        let begun = self.begun(chunk) == Some((base.epoch, base.version));
        let foreign = owner(base.epoch) != self.config.node;
        (begun && foreign && !base.weights.is_empty()).then_some(base)
    }

    /// Whether a base that came from `node`, at (epoch, version), may tell where this node and
    /// others went apart. Its own position is one only where that node went on by itself, or gave
    /// it to this one, and to another.
    pub(in super::super) fn is_of_parting(
        &self,
        chunk: u32,
        node: u16,
        position: (u32, u32),
    ) -> bool {
        let epoch = position.0;
        let of_fork = owner(epoch) != node && self.may_have_parted(chunk, epoch);
        let given = owner(epoch) == node && self.begun(chunk) == Some(position);
        of_fork || given || self.has_gone_on(chunk, node, epoch)
    }

    /// Whether the numbers alone of a position that another node began from say enough: this node
    /// took the chunk over from the same master, at a position that is not later.
    pub(in super::super) fn knows_by_numbers(&self, chunk: u32, came: &Base) -> bool {
        let own = self.own_base(chunk);
        own.is_some_and(|own| are_of_one_reign(own.epoch, came.epoch) && !own.is_later(came))
    }

    /// Whether `node`, of which a base is kept here, went on by itself in the reign of `epoch`.
    pub(in super::super) fn has_gone_on(&self, chunk: u32, node: u16, epoch: u32) -> bool {
        let parted = self.forks.parted.get(&chunk);
        let of_line = |link: &Link| link.by == node && are_of_one_reign(link.epoch, epoch);
        let kept = self.forks.base_for(chunk, [node, node], 0).is_some();
        owner(epoch) == node && kept && parted.is_some_and(of_line)
    }

    /// A node that is silent is not asked. An heir may have what this node did, and is to bring it
    /// then: it is waited for. But it may never be back, and have nothing.
    pub(super) fn give_up_tellers(&mut self, now_ns: u64, range: u16) {
        let all = self.forks.tellers.range(self.ranges.of(range));
        for (chunk, mut teller) in all.map(|(c, t)| (*c, *t)).collect::<Vec<_>>() {
            if self.is_alive(now_ns, teller.node) {
                continue;
            }
            let heir = self.given(chunk) == Some(teller.node);
            let since_ns = *teller.silent_ns.get_or_insert(now_ns);
            if heir && now_ns.saturating_sub(since_ns) < HEIR * self.config.silence_ns {
                self.forks.tellers.insert(chunk, teller);
                continue;
            }
            self.forks.tellers.remove(&chunk);
            if heir {
                self.give_up_heir(chunk, teller.node);
            }
            let next = heir.then(|| self.next_heir(chunk)).flatten();
            if let Some(next) = next {
                let teller = Teller::new(next, teller.link);
                self.forks.tellers.insert(chunk, teller);
                continue;
            }
            let further = |link: &Link| heir && owner(link.epoch) != teller.node;
            let link = teller.link.filter(further);
            self.follow(chunk, link);
        }
    }
}

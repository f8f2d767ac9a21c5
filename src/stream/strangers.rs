//! Who is no member of this job although it uses its session: another model, other data, a second
//! process with the same index.
//!
//! Each buffer has a random number, its incarnation, which its node says in every hello. One index
//! with two of them is two processes, or a node that lost its memory and began again.
//!
//! Invariant: nothing is taken from a node that said that it has another model or other data, until
//! it says otherwise. A hello of another incarnation than the one that is known to fit does not
//! shut that one out, so that one forged hello, or a second process, does not.

use super::common::Common;
use super::epochs::counter;
use super::{Config, Difference, Report};
use crate::wire::{Frame, Hello};

/// A node whose hello fitted less than this ago is not shut out by a hello of another incarnation,
/// ns.
const FITTED_NS: u64 = 2_000_000_000;
/// Two processes with one index change places with every hello, at most this far apart, ns. A node
/// that lost its memory changes, and not back.
const CHANGES_WITHIN_NS: u64 = 5_000_000_000;
const CHANGES: u32 = 3;

/// What a node's hellos said of who it is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Life {
    /// Nothing is taken from this node.
    pub(super) refused: bool,
    /// Incarnation in its last hello; 0: none yet.
    incarnation: u64,
    /// The one before that.
    former: u64,
    changed_ns: u64,
    /// Changes in a short time, and those of them that went back to the one before.
    changes: u32,
    returns: u32,
    /// Incarnation in its last hello that fitted, and when that came, ns.
    fitted: u64,
    fitted_ns: u64,
}

impl Life {
    /// Takes the incarnation of a hello; returns how often it has changed in a short time, if it
    /// has.
    fn hear(&mut self, now_ns: u64, incarnation: u64) -> Option<u32> {
        if incarnation == 0 || incarnation == self.incarnation {
            return None;
        }
        let began = self.incarnation == 0;
        let returns = incarnation == self.former;
        self.former = std::mem::replace(&mut self.incarnation, incarnation);
        if began {
            return None;
        }
        if now_ns.saturating_sub(self.changed_ns) > CHANGES_WITHIN_NS {
            (self.changes, self.returns) = (0, 0);
        }
        self.changed_ns = now_ns;
        self.changes = self.changes.saturating_add(1);
        self.returns = self.returns.saturating_add(returns.into());
        Some(self.changes)
    }

    /// Whether two processes seem to have this index.
    fn flaps(&self, now_ns: u64) -> bool {
        let since_ns = now_ns.saturating_sub(self.changed_ns);
        self.changes >= CHANGES && self.returns > 0 && since_ns <= CHANGES_WITHIN_NS
    }

    fn shut_out(&mut self, now_ns: u64, incarnation: u64) {
        let another = self.fitted_ns != 0
            && self.fitted != incarnation
            && now_ns.saturating_sub(self.fitted_ns) < FITTED_NS;
        self.refused = !another;
    }

    fn fits(&mut self, now_ns: u64, incarnation: u64) {
        self.refused = false;
        self.fitted = incarnation;
        self.fitted_ns = now_ns.max(1);
    }
}

/// Looks at who says hello: whether it is of this job.
pub(super) fn belongs(now_ns: u64, common: &mut Common<'_>, node: u16, hello: &Hello) -> bool {
    let report = other_job(&common.config, node, hello);
    let life = &mut common.peers[usize::from(node)].life;
    let changes = life.hear(now_ns, hello.incarnation);
    let flaps = life.flaps(now_ns);
    if report.is_some() {
        life.shut_out(now_ns, hello.incarnation);
    } else {
        life.fits(now_ns, hello.incarnation);
    }
    match changes {
        Some(_) if flaps => common.report(Report::TwoLives { node }),
        Some(_) if report.is_none() => common.report(Report::NewLife { node }),
        _ => {}
    }
    if let Some(report) = report {
        common.report(report);
    }
    report.is_none()
}

/// A frame with our own index: our own come back (a socket is in the group that it sends to),
/// but not with another incarnation.
#[cold]
pub(super) fn hear_own_index(common: &mut Common<'_>, frame: &Frame<'_>) {
    let own = common.config.incarnation;
    let other = Hello::parse(frame.payload)
        .is_some_and(|hello| hello.incarnation != 0 && own != 0 && hello.incarnation != own);
    if other {
        common.report(Report::SameNode {
            node: common.config.node,
        });
    }
}

/// Says that the sender begins with other weights than ours, if both are new: neither has trained.
/// A node that comes late, or back without its memory, may have others: it gets those of the job.
pub(super) fn check_first_weights(common: &mut Common<'_>, frame: &Frame<'_>, hello: &Hello) {
    let (theirs, ours) = (hello.first_weights, common.config.first_weights);
    // Who joins later has other first weights, and takes those of the job.
    let begin = common.config.node.max(frame.header.sender) < common.config.nodes;
    let begins_here = |(range, _): &(u16, _)| common.ranges.home(*range) == common.config.node;
    let mut of_us = (hello.first..)
        .zip(&hello.seen)
        .filter(begins_here)
        .peekable();
    let both_new = begin
        && common.local_iterations() == 0
        && frame.header.iterations == 0
        && common.streamed_first() == 0
        && counter(frame.header.epoch) <= 1
        && of_us.peek().is_some()
        && of_us.all(|(_, seen)| seen.held == 0);
    if both_new && theirs != ours && theirs != 0 && ours != 0 {
        common.report(Report::OtherFirstWeights {
            node: frame.header.sender,
            theirs,
            ours,
        });
    }
}

fn other_job(own: &Config, node: u16, hello: &Hello) -> Option<Report> {
    if let Some(difference) = other_shape(own, hello) {
        return Some(Report::OtherShape { node, difference });
    }
    let (theirs, ours) = (hello.data, own.data);
    // 0: made without data, or by a program that does not know them.
    (theirs != ours && theirs != 0 && ours != 0).then_some(Report::OtherData { node, theirs, ours })
}

fn other_shape(own: &Config, hello: &Hello) -> Option<Difference> {
    let theirs = hello.nodes;
    if theirs != own.nodes {
        return Some(Difference::Nodes {
            theirs,
            ours: own.nodes,
        });
    }
    let (theirs, ours) = (hello.places(), own.places());
    if theirs != ours {
        return Some(Difference::Places { theirs, ours });
    }
    if hello.masters != own.masters {
        return Some(Difference::Masters {
            theirs: hello.masters,
            ours: own.masters,
        });
    }
    if hello.fingerprint != own.fingerprint {
        return Some(Difference::Model {
            theirs: hello.fingerprint,
            ours: own.fingerprint,
        });
    }
    if (hello.chunk_weights, hello.chunks) != (own.chunk_weights, own.chunks) {
        return Some(Difference::ChunkWeights {
            theirs: hello.chunk_weights,
            ours: own.chunk_weights,
        });
    }
    None
}

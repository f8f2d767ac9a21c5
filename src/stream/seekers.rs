//! What a node answers to hosts that look for a number ([`Search`](super::Search)).
//!
//! An answer is a hello to the host alone. A number that a host claims is kept for it a while: the
//! answer says so as if it was there already, so that another host takes another number. Of two
//! that claim one number the lower incarnation has it, at all nodes alike.
//!
//! Invariants: nothing but answers depends on a claim; a claim that is not repeated ends; there is
//! one claim per number, and an answer per [`ANSWER_NS`] at most.

use super::common::Common;
use super::hello::hello;
use super::{Outbox, To, header};
use crate::wire::{DropReason, Frame, NO_NODE, Seek};

/// A claim that was not heard again for so long is over, ns: its host may stand still between its
/// last seek and its first hello.
const CLAIM_NS: u64 = 10_000_000_000;
/// Least time between two answers, ns: the hosts ask again.
const ANSWER_NS: u64 = 500_000;

#[derive(Clone, Copy, Debug)]
struct Claim {
    node: u16,
    incarnation: u64,
    heard_ns: u64,
}

/// See the head of this file.
#[derive(Clone, Debug, Default)]
pub(super) struct Seekers {
    claims: Vec<Claim>,
    /// When the next answer may go, ns.
    due_ns: u64,
}

impl Seekers {
    /// Takes a seek and answers it, if it is time to.
    #[cold]
    pub(super) fn handle(
        &mut self,
        now_ns: u64,
        common: &mut Common<'_>,
        frame: &Frame<'_>,
        out: &mut impl Outbox,
    ) -> Result<(), DropReason> {
        let seek = Seek::parse(frame.payload).ok_or(DropReason::Malformed)?;
        if seek.first >= common.config.places() || frame.header.sender != NO_NODE {
            return Err(DropReason::Foreign);
        }
        if let Some(node) = seek.claimed {
            self.note(now_ns, common, node, seek.incarnation);
        }
        if now_ns < self.due_ns {
            return Ok(());
        }
        self.due_ns = now_ns + ANSWER_NS;
        let mut answer = hello(now_ns, common, seek.first);
        for (node, seen) in (seek.first..).zip(&mut answer.seen) {
            if let Some(claim) = self.claim_of(now_ns, node)
                && is_free(common, node)
            {
                (seen.life, seen.gone) = (claim.incarnation as u32, false);
            }
        }
        let header = header::hello(common, answer.seen.len());
        let went = out.send_hello(To::Node(NO_NODE), header.frame_len(), &mut |slot| {
            answer.emit(header.emit(slot).1)
        });
        common.counters.hellos_sent += u64::from(went);
        Ok(())
    }

    fn note(&mut self, now_ns: u64, common: &Common<'_>, node: u16, incarnation: u64) {
        let later = common.config.nodes..common.config.places();
        if incarnation == 0 || !later.contains(&node) || !is_free(common, node) {
            return;
        }
        let before = self.claim_of(now_ns, node);
        if before.is_some_and(|claim| claim.incarnation < incarnation) {
            return;
        }
        self.claims.retain(|claim| claim.node != node);
        self.claims.push(Claim {
            node,
            incarnation,
            heard_ns: now_ns,
        });
    }

    fn claim_of(&self, now_ns: u64, node: u16) -> Option<Claim> {
        let lives = |claim: &&Claim| now_ns.saturating_sub(claim.heard_ns) < CLAIM_NS;
        let claims = self.claims.iter().filter(|claim| claim.node == node);
        claims.copied().find(|claim| lives(&claim))
    }
}

/// Whether no node has this number, or one that has left in order: nothing of it is missing.
fn is_free(common: &Common<'_>, node: u16) -> bool {
    node != common.config.node && (common.life(node) == 0 || common.is_gone(node))
}

//! What keeps a node that leaves from going, and whether that becomes less.
//!
//! Invariant: only what was never reached before counts as nearer, and there is a bounded number of
//! such steps. So a node that others ask for the same again and again does not stay for ever.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use super::common::Common;
use super::leave::UnderWay;

/// A node that leaves gives up once nothing moved for so many times the shortest silence.
const PATIENCE: u64 = 20;
/// Time between two looks at most, of the shortest silence. What is longer is time in which this
/// node itself stood still.
const LOOKS: u64 = 4;

/// Stands for the part of an ask: the chunk went out.
pub(super) const GIVEN: u8 = u8::MAX;

/// What a node that leaves has yet to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remains {
    /// Ranges that no other node has begun to take.
    pub ranges: usize,
    /// Nodes, each with the chunks that it has yet to take over, or to confirm.
    pub lacking: Vec<(u16, usize)>,
    /// Nodes that are silent, or were, and may need what only this one keeps of a fork.
    pub silent: Vec<u16>,
    /// Nodes that have yet to say what this one is to take out of its weights, as it counts
    /// elsewhere.
    pub owed: Vec<u16>,
}

impl Remains {
    pub(super) fn of(now_ns: u64, common: &Common<'_>, under_way: &VecDeque<UnderWay>) -> Self {
        let mut lacking = BTreeMap::new();
        let mut note = |range: u16, chunks: usize| {
            if let Some(owner) = common.owner(range).filter(|_| chunks > 0) {
                *lacking.entry(owner).or_insert(0) += chunks;
            }
        };
        let ranges = common.streamed_ranges().count();
        if ranges == 0 {
            for one in under_way {
                note(common.ranges.range_of(one.chunk), 1);
            }
        } else {
            // What is under way is looked at once all ranges are taken.
            for range in 0..common.config.places() {
                note(
                    range,
                    common.leases[usize::from(range)].forked_chunks as usize,
                );
            }
        }
        Self {
            ranges,
            lacking: lacking.into_iter().collect(),
            silent: common.kept_for(now_ns),
            owed: common.owed_to().collect(),
        }
    }
}

impl fmt::Display for Remains {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = Vec::new();
        if self.ranges > 0 {
            words.push(format!(
                "{} ranges are streamed here, which no node has begun to take",
                self.ranges
            ));
        }
        for (node, chunks) in &self.lacking {
            words.push(format!(
                "node {node} has yet to take or confirm {chunks} chunks"
            ));
        }
        for node in &self.silent {
            words.push(format!(
                "node {node} is or was silent and may need what this node keeps"
            ));
        }
        for node in &self.owed {
            words.push(format!(
                "node {node} has yet to say which of its deltas are here and elsewhere"
            ));
        }
        if words.is_empty() {
            words.push("nothing is left but to say so".to_owned());
        }
        f.write_str(&words.join(", "))
    }
}

/// The furthest that a node that leaves has come, and for how long it came no further.
#[derive(Clone, Debug, Default)]
pub(super) struct Nearer {
    /// Ranges with the nodes that began to take them: each once.
    heirs: BTreeSet<(u16, u16)>,
    /// Most blocks and chunks that others had asked for and were given.
    asked: usize,
    /// Most positions of chunks under way, and goodbyes.
    further: usize,
    /// Fewest chunks that are forked and that are left to deliver, since the last range was taken.
    forked: u32,
    left: usize,
    looked_ns: u64,
    still_ns: u64,
}

impl Nearer {
    /// Looks how far it is: `left` chunks may have something under way; `further`: steps that it
    /// took, of which there is a bounded number.
    pub(super) fn poll(&mut self, now_ns: u64, common: &Common<'_>, left: usize, further: usize) {
        let silence_ns = common.config.silence_ns;
        let first = self.looked_ns == 0;
        let passed_ns = now_ns.saturating_sub(self.looked_ns);
        self.looked_ns = now_ns;
        self.still_ns += passed_ns.min(silence_ns / LOOKS);
        let forked = common.leases.iter().map(|lease| lease.forked_chunks).sum();
        let taken = self.note_heirs(common) || first;
        if taken {
            (self.forked, self.left) = (forked, left);
        }
        let asked = common.asked.len();
        let nearer = asked > self.asked || further > self.further;
        if taken || nearer || forked < self.forked || left < self.left {
            self.still_ns = 0;
        }
        self.asked = self.asked.max(asked);
        self.further = self.further.max(further);
        self.forked = self.forked.min(forked);
        self.left = self.left.min(left);
    }

    /// Notes who is to stream each range; true: for one of them this is new.
    fn note_heirs(&mut self, common: &Common<'_>) -> bool {
        let mut new = false;
        for range in 0..common.config.places() {
            let heir = common.owner(range).filter(|_| !common.streams(range));
            new |= heir.is_some_and(|heir| self.heirs.insert((range, heir)));
        }
        new
    }

    pub(super) fn has_stalled(&self, common: &Common<'_>) -> bool {
        self.still_ns >= PATIENCE * common.config.silence_ns
    }
}

impl Common<'_> {
    /// Notes that the next master of a range asks for `chunk`, or (in a survey) for the block that
    /// begins there, or was given it: by the part of its ask, or [`GIVEN`].
    pub(super) fn note_asked(&mut self, part: u8, chunk: u32) {
        if self.leaves() {
            self.asked.insert((part, chunk));
        }
    }
}

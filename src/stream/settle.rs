//! The end of training without the end of the job: when all that was added is everywhere.
//!
//! A node whose solvers have finished looks through the chunks that others stream, until none has
//! anything under way. It says so in its hellos. Once all nodes say it, no weight moves any more,
//! and each node waits for two positions of each chunk: the second was sent after the last delta.
//! Where positions are rounded it waits for all pieces of what that one said. From then on it takes
//! no rounding for a movement: a node that leaves gives its ranges to others, who round anew.
//! It also waits until it believes what the others have made, which takes two windows of claims.
//!
//! Invariants: it changes no weight. A node says it only while its solvers have finished, and takes
//! it back when a chunk has something under way again (a master was lost, say). A node that is
//! silent is waited for; one that has left is not.

use std::sync::atomic::Ordering::Relaxed;

use super::common::Common;
use super::common::chunk_flags::{FORKED, OUTSTANDING};
use super::slave::Slave;

/// Chunks that are looked at in one turn.
const LOOKED_AT: u32 = 64;
/// Time between two looks at the ages of all chunks, ns. Unit tests live for less.
const LOOK_EVERY_NS: u64 = if cfg!(test) { 100_000 } else { 5_000_000 };

/// How far a node is whose solvers have finished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Settled {
    /// Its solvers have not finished, or others lack something that they added.
    #[default]
    No,
    /// The masters of all chunks have what its solvers added.
    Delivered,
    /// All other nodes have said the same of themselves.
    All,
    /// And this node holds what the masters hold, and knows the iterations of all.
    Equal,
}

/// What a streamer remembers of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Settle {
    /// What solvers finished with last; 0: they work.
    finished: u64,
    /// The chunk that is looked at next, and how many before it had nothing under way.
    at: u32,
    clean: u32,
    settled: Settled,
    /// Every chunk is to be taken after this time, ns; and how often that was waited for.
    since_ns: u64,
    rounds: u8,
    /// When all had settled, ns.
    all_ns: u64,
    looked_ns: u64,
}

impl Settle {
    /// Tells whether the solvers of this node have finished. Another number than before is another
    /// end: they worked in between.
    pub(super) fn set_finished(&mut self, finished: u64) {
        if self.finished != finished {
            self.finished = finished;
            self.clean = 0;
            self.settled = Settled::No;
        }
    }

    /// How far this node is.
    pub(super) fn settled(&self) -> Settled {
        self.settled
    }

    /// Looks how far it is.
    #[inline]
    pub(super) fn poll(&mut self, now_ns: u64, common: &mut Common<'_>, slave: &mut Slave) {
        if self.finished != 0 || common.settled() {
            self.poll_finished(now_ns, common, slave);
        }
        slave.set_at_rest(self.settled == Settled::Equal);
    }

    #[cold]
    fn poll_finished(&mut self, now_ns: u64, common: &mut Common<'_>, slave: &Slave) {
        if self.finished != 0 {
            self.look(common);
        }
        let before = self.settled;
        // Who leaves is not ready, and who is silent says nothing: neither lacks anything for that.
        let was_equal = before == Settled::Equal;
        let ready = common.ready() || was_equal;
        let waits = || {
            common
                .unsettled(now_ns)
                .any(|node| !was_equal || common.goes_on(node))
        };
        self.settled = if self.clean < common.config.chunks || !ready {
            Settled::No
        } else if waits() {
            Settled::Delivered
        } else if before < Settled::All {
            (self.since_ns, self.rounds, self.all_ns) = (now_ns, 0, now_ns);
            Settled::All
        } else {
            before
        };
        if self.settled == Settled::All && now_ns.saturating_sub(self.looked_ns) >= LOOK_EVERY_NS {
            self.looked_ns = now_ns;
            self.look_at_ages(now_ns, common, slave);
        }
        common.say_settled(self.settled != Settled::No);
    }

    /// Looks at the next chunks. One that has something under way is looked at again.
    fn look(&mut self, common: &Common<'_>) {
        let chunks = common.config.chunks;
        for _ in 0..LOOKED_AT.min(chunks) {
            let range = common.ranges.range_of(self.at);
            let lacks = || {
                common.lacks(self.at) || self.settled < Settled::Equal && common.is_forked(self.at)
            };
            if !common.streams(range) && lacks() {
                self.clean = 0;
                return;
            }
            self.clean = (self.clean + 1).min(chunks);
            self.at = (self.at + 1) % chunks;
        }
    }

    /// The first positions since all have settled may have been sent before the last delta came.
    fn look_at_ages(&mut self, now_ns: u64, common: &Common<'_>, slave: &Slave) {
        let foreign = (0..common.config.places()).filter(|range| !common.streams(*range));
        let mut chunks = foreign.map(|range| common.ranges.of(range));
        let passed_ns = now_ns.saturating_sub(self.since_ns);
        if chunks.all(|chunks| chunks.is_empty() || slave.age_ns(chunks, now_ns) < passed_ns) {
            self.since_ns = now_ns;
            self.rounds = (self.rounds + 1).min(2);
        }
        let ranges = (0..common.config.places()).filter(|range| !common.streams(*range));
        let mut foreign = ranges.flat_map(|range| common.ranges.of(range));
        if self.rounds == 2
            && common.knows_iterations_since(self.all_ns)
            && foreign.all(|chunk| slave.has_bits(chunk))
        {
            self.settled = Settled::Equal;
        }
    }

    /// Chunks that are not known to have nothing under way.
    pub(super) fn undelivered(&self, common: &Common<'_>) -> u32 {
        common.config.chunks - self.clean
    }
}

impl Common<'_> {
    /// Whether the master of a chunk lacks something of what this node did to it. Each position is
    /// answered: an answer that brings nothing is always under way.
    fn lacks(&self, chunk: u32) -> bool {
        let flags = self.state.chunk(chunk).flags.load(Relaxed);
        let brings = || {
            let (_, _, sent) = self.chunk_views(chunk);
            (0..sent.len()).any(|i| sent.load(i) != 0.0)
        };
        self.has_new(chunk) || flags & OUTSTANDING != 0 && brings()
    }

    /// Whether another node began to stream a chunk, from what is not known here. Where all hold
    /// the same it is that.
    fn is_forked(&self, chunk: u32) -> bool {
        self.state.chunk(chunk).flags.load(Relaxed) & FORKED != 0
    }

    /// Whether the iterations that all others had made by `when_ns` are known here.
    fn knows_iterations_since(&self, when_ns: u64) -> bool {
        let known = |node: u16| self.peers[usize::from(node)].claims.known_since(when_ns);
        self.members().all(known)
    }

    /// Whether another node's last word is that its solvers have not finished.
    fn goes_on(&self, node: u16) -> bool {
        !self.peers[usize::from(node)].settled
    }

    /// Other nodes of the job that have not said that their solvers have finished, with all that
    /// they added delivered; and those that are silent.
    pub(super) fn unsettled(&self, now_ns: u64) -> impl Iterator<Item = u16> {
        let settled = move |node: &u16| {
            self.peers[usize::from(*node)].settled && self.is_alive(now_ns, *node)
        };
        self.members().filter(move |node| !settled(node))
    }
}

impl super::Streamer<'_> {
    /// Tells whether all solvers of this node have finished, so that nothing more is added here; 0:
    /// they work. Another number than before is another end.
    pub fn set_finished(&mut self, finished: u64) {
        self.settle.set_finished(finished);
        self.master.set_finished(finished != 0);
    }

    /// How far this node is since its solvers have finished.
    pub fn settled(&self) -> Settled {
        self.settle.settled()
    }

    /// Chunks of which this node has not seen yet that nothing is under way.
    pub fn undelivered(&self) -> u32 {
        self.settle.undelivered(&self.common)
    }

    /// Other nodes whose solvers have not finished, or that have yet to deliver what these added.
    pub fn unsettled(&self, now_ns: u64) -> impl Iterator<Item = u16> {
        self.common.unsettled(now_ns)
    }
}

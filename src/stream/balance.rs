//! Ranges that move between nodes that live: to one that joined or came back, from one that leaves.
//!
//! Every node follows the same rule on what it has heard, and takes one range at a time:
//!
//! - *Who takes:* the master that streams fewest ranges, of several the first by index. It holds
//!   all weights, and does not leave.
//! - *From whom:* a node that leaves, or is to master nothing. Else the one that streams most, if
//!   that is two ranges more at least.
//! - *Which range:* one that begins on the taker, else one next to a range of its own.
//! - *When:* from a node that leaves at once. Else once this was so for a while, and then one after
//!   the other. After each time that the taker lost ranges again, it waits twice as long.

use super::common::Common;
use super::epochs::{after, is_later};
use super::restore::Restore;

/// A node takes ranges back after so many times the shortest patience; doubled so often, at most.
const PATIENCE: u64 = 4;
const DOUBLED_MAX: u32 = 6;

/// What this node waits for before it takes ranges of living nodes.
#[derive(Clone, Debug, Default)]
pub(super) struct Balance {
    /// Since when it has less than its share, ns; 0: it has not.
    since_ns: u64,
    /// Ranges that it streamed when it had its share last, and how often it lost some since.
    streamed: usize,
    lost: u32,
}

impl Balance {
    /// Takes the next range, if it is time.
    pub(super) fn poll(
        &mut self,
        now_ns: u64,
        common: &mut Common<'_>,
        restore: &mut Restore,
        told_ns: u64,
    ) {
        if restore.is_busy() {
            return;
        }
        let Some(Next { range, from }) = next(now_ns, common) else {
            self.since_ns = 0;
            self.streamed = common.streamed_ranges().count();
            return;
        };
        if self.since_ns == 0 {
            self.since_ns = now_ns.max(1);
            if common.streamed_ranges().count() < self.streamed {
                self.lost = (self.lost + 1).min(DOUBLED_MAX);
            }
        }
        let patience_ns = (PATIENCE * common.config.silence_ns) << self.lost;
        let due = common.gives_up(from) || now_ns - self.since_ns >= patience_ns;
        let turn = || first_taker(now_ns, common) == Some(common.config.node);
        if due && common.is_settled(range, from) && turn() {
            restore.begin(common, range, told_ns, after);
        }
    }
}

/// What this node is to take next.
struct Next {
    range: u16,
    from: u16,
}

/// The range that this node lacks most, and who has it; `None`: it has its share.
fn next(now_ns: u64, common: &Common<'_>) -> Option<Next> {
    let own = common.config.node;
    if !common.config.is_master(own) || !common.ready() {
        return None;
    }
    let streamed = common.streamed_by_each();
    let mine = streamed[usize::from(own)];
    let mut best: Option<(_, Next)> = None;
    for from in common.living(now_ns) {
        let gives_all = common.gives_up(from) || !common.config.is_master(from);
        let has = streamed[usize::from(from)];
        if has == 0 || !gives_all && has < mine + 2 {
            continue;
        }
        let fits = |range: &u16| common.may_stream(*range);
        for range in common.streamed_by(from).filter(fits) {
            let home = common.ranges.home(range) == own;
            let rank = (
                !gives_all,
                usize::MAX - has,
                !home,
                !common.is_beside(range),
            );
            // Of equal ones the last: it is next to what begins on later nodes.
            if best.as_ref().is_none_or(|(before, _)| rank <= *before) {
                best = Some((rank, Next { range, from }));
            }
        }
    }
    best.map(|(_, next)| next)
}

/// The master whose turn it is to take a range.
fn first_taker(now_ns: u64, common: &Common<'_>) -> Option<u16> {
    let own = common.config.node;
    let takes = |node: &u16| {
        let ready = *node == own || common.peers[usize::from(*node)].ready;
        common.config.is_master(*node) && ready && !common.gives_up(*node)
    };
    let living = common.living(now_ns).chain([own]);
    let takers = living.filter(takes);
    takers.min_by_key(|node| (common.streamed_by(*node).count(), *node))
}

impl Common<'_> {
    /// The ranges with chunks that `node` streams, or is about to, as far as known here.
    pub(super) fn streamed_by(&self, node: u16) -> impl Iterator<Item = u16> {
        let ranges = 0..self.config.places();
        ranges.filter(move |range| {
            self.owner(*range) == Some(node) && !self.ranges.of(*range).is_empty()
        })
    }

    /// How many ranges each node streams, or is about to.
    fn streamed_by_each(&self) -> Vec<usize> {
        let mut streamed = vec![0; usize::from(self.config.places())];
        let ranges = (0..self.config.places()).filter(|range| !self.ranges.of(*range).is_empty());
        for owner in ranges.filter_map(|range| self.owner(range)) {
            if let Some(ranges) = streamed.get_mut(usize::from(owner)) {
                *ranges += 1;
            }
        }
        streamed
    }

    /// Whether `from` streams a range in the latest epoch that is known.
    fn is_settled(&self, range: u16, from: u16) -> bool {
        let promised = self.promised(range);
        let told = self.told(from, range);
        let streams = told.is_some_and(|told| told.epoch == promised);
        streams && !is_later(self.latest_told(range), promised)
    }

    fn is_beside(&self, range: u16) -> bool {
        let own = |range: Option<u16>| {
            range.is_some_and(|range| range < self.config.places() && self.streams(range))
        };
        own(range.checked_sub(1)) || own(range.checked_add(1))
    }
}

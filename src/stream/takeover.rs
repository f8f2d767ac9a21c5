//! Who streams a range: its home at first, another node where its master is silent, and its home
//! again once that is back.
//!
//! Every node follows the same rules on what it has heard, so all come to the same map. If two
//! begin one range all the same, the later epoch wins ([`epochs`](super::epochs)).
//!
//! - A range of which no node holds anything is begun by its home.
//! - A master is silent if no living node hears it. The range then goes to the living node that
//!   streams fewest ranges, of several to the next by index; the others wait a little longer, each
//!   for its turn, in case that one does not see it. A node that hears no other takes nothing:
//!   there is none to stream to, and what it adds waits for the master.
//! - A home takes its range back from another node after a while in which it held all of it. Each
//!   time it loses it again, it waits twice as long.

use super::common::Common;
use super::epochs::{after, is_later, owner};
use super::restore::Restore;

/// A node that was not heard at all is waited for so long where others hold the range, ns.
const GRACE_NS: u64 = 3_000_000_000;
/// Time between two looks, ns.
const LOOK_NS: u64 = 1_000_000;
/// A home takes its range back after so many times the shortest patience; doubled so often, at
/// most.
const HOME_PATIENCE: u64 = 4;
const DOUBLED_MAX: u32 = 6;
/// Ranges that one node streams, at most: solvers are told so many runs of weights.
const RANGES_MAX: usize = crate::weights::OWN_RANGES;

/// What this node waits for before it begins a range.
#[derive(Debug, Default)]
pub(super) struct Takeover {
    due_ns: u64,
    /// When the first of the others told what it holds, ns; 0: none has.
    told_ns: u64,
    /// Per range, since when its master is silent, ns; 0: it is not.
    silent_ns: Vec<u64>,
    /// Since when the home range is held in whole while another node streams it, ns; 0: it is not.
    whole_ns: u64,
    /// How often the home range was lost to another node.
    lost: u32,
    streamed_home: bool,
}

impl Takeover {
    /// Begins ranges that it is this node's turn to stream.
    pub(super) fn poll(&mut self, now_ns: u64, common: &mut Common<'_>, restore: &mut Restore) {
        if now_ns < self.due_ns {
            return;
        }
        self.due_ns = now_ns + LOOK_NS.min(common.config.silence_ns / 8);
        let nodes = common.config.nodes;
        self.silent_ns.resize(nodes.into(), 0);
        let told = |node: u16| common.told(node, common.config.node).is_some();
        if self.told_ns == 0 && common.others().any(told) {
            self.told_ns = now_ns.max(1);
        }
        for range in 0..nodes {
            if common.ranges.of(range).is_empty() {
                continue;
            }
            if common.streams(range) || restore.is_going(range) {
                self.silent_ns[usize::from(range)] = 0;
            } else {
                self.look_at(now_ns, common, restore, range);
            }
        }
        self.look_at_home(now_ns, common, restore);
    }

    fn look_at(&mut self, now_ns: u64, common: &mut Common<'_>, restore: &mut Restore, range: u16) {
        let own = common.config.node;
        let latest = common.latest_told(range);
        let begun_by = if latest == 0 { range } else { owner(latest) };
        if begun_by == own {
            self.look_at_lost(now_ns, common, restore, range);
        } else if latest != 0 && self.is_deserted(now_ns, common, range, begun_by) {
            restore.begin(common, range, self.told_ns);
        }
    }

    /// A range of this node's that it does not stream: it is new, or this node lost its memory, or
    /// others promised it to this node.
    fn look_at_lost(
        &self,
        now_ns: u64,
        common: &mut Common<'_>,
        restore: &mut Restore,
        range: u16,
    ) {
        let held_here = common.leases[usize::from(range)].held() > 0;
        let told = || common.others().filter_map(|node| common.told(node, range));
        let all = told().count() == usize::from(common.config.nodes) - 1;
        let waited = now_ns.saturating_sub(self.told_ns) >= GRACE_NS && self.told_ns != 0;
        let holds = |node: u16| common.told(node, range).is_some_and(|told| told.held > 0);
        if all && told().all(|told| told.held == 0) && !held_here {
            // All of them: one that was not heard may hold what a predecessor of this node trained,
            // and initial weights must never replace that.
            let epoch = after(common.latest_told(range), common.config.node);
            common.promise(range, epoch);
            if common.promised(range) == epoch {
                common.begin_streaming(range);
            }
        } else if (all || waited) && (held_here || common.living(now_ns).any(holds)) {
            restore.begin(common, range, self.told_ns);
        }
    }

    /// Whether no living node has heard the master of a range for so long that it is this node's
    /// turn to begin it.
    fn is_deserted(
        &mut self,
        now_ns: u64,
        common: &mut Common<'_>,
        range: u16,
        master: u16,
    ) -> bool {
        let silent_ns = &mut self.silent_ns[usize::from(range)];
        let never = common.peers[usize::from(master)].heard_ns == 0;
        let early = never && now_ns.saturating_sub(self.told_ns) < GRACE_NS;
        if early || common.is_alive(now_ns, master) {
            *silent_ns = 0;
            return false;
        }
        if *silent_ns == 0 {
            *silent_ns = now_ns.max(1);
            // Others wait for all to say so.
            common.tell_soon = true;
        }
        let agrees = |node: u16| common.told(node, master).is_some_and(|told| told.silent);
        let mut others = 0;
        let all = common.living(now_ns).all(|node| {
            others += 1;
            agrees(node)
        });
        let streams = |node: u16| {
            let ranges = 0..common.config.nodes;
            ranges
                .filter(|range| common.owner(*range) == Some(node))
                .count()
        };
        let rank_of = |node: u16| {
            let distance = (node + common.config.nodes - master) % common.config.nodes;
            (node >= common.config.masters, streams(node), distance)
        };
        let own = common.config.node;
        let before = common
            .living(now_ns)
            .filter(|node| rank_of(*node) < rank_of(own));
        // Who has yet to join the range comes last.
        let forked = common.leases[usize::from(range)].forked_chunks > 0;
        let last = if forked { common.config.nodes } else { 0 };
        let wait_ns = (before.count() as u64 + u64::from(last)) * common.config.silence_ns / 2;
        let waited = now_ns.saturating_sub(*silent_ns) >= wait_ns;
        others > 0 && all && waited && streams(own) < RANGES_MAX
    }

    /// Takes the home range back from the node that streams it, once this node holds all of it.
    fn look_at_home(&mut self, now_ns: u64, common: &mut Common<'_>, restore: &mut Restore) {
        let home = common.config.node;
        if common.streams(home) {
            (self.whole_ns, self.streamed_home) = (0, true);
            return;
        }
        if std::mem::take(&mut self.streamed_home) {
            self.lost = (self.lost + 1).min(DOUBLED_MAX);
        }
        let master = common.owner(home).filter(|master| *master != home);
        let lives = master.is_some_and(|master| common.is_alive(now_ns, master));
        let streamed = master
            .and_then(|master| common.told(master, home))
            .is_some_and(|told| told.epoch == common.promised(home));
        let whole = common.ready() && !common.ranges.of(home).is_empty();
        if !(lives && streamed && whole) || restore.is_going(home) {
            self.whole_ns = 0;
        } else if self.whole_ns == 0 {
            self.whole_ns = now_ns.max(1);
        } else {
            let patience_ns = (HOME_PATIENCE * common.config.silence_ns) << self.lost;
            let latest = common.latest_told(home);
            if now_ns - self.whole_ns >= patience_ns && !is_later(latest, common.promised(home)) {
                self.whole_ns = 0;
                restore.begin(common, home, self.told_ns);
            }
        }
    }
}

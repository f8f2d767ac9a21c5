//! Who streams a range: the node that begins it, and another node where its master is silent.
//!
//! Every node follows the same rules on what it has heard, so all come to the same map. If two
//! begin one range all the same, the later epoch wins ([`epochs`](super::epochs)). How ranges move
//! between nodes that live is in [`balance`](super::balance).
//!
//! - A range of which no node holds anything is begun by its home, once all nodes that the job
//!   begins with are there, or as many as are to be waited for.
//! - A master is silent if no living node hears it. The range then goes to the living node that
//!   streams fewest ranges, of several to the next by index; the others wait a little longer, each
//!   for its turn, in case that one does not see it. A node that no other hears takes nothing:
//!   there is none to stream to, and what it adds waits for the master. Nor does one that hears
//!   only nodes that do not hear it: to a node that hears none all are silent.

use super::balance::Balance;
use super::common::Common;
use super::epochs::{after, after_parting, owner};
use super::restore::Restore;
use crate::wire::NodeSeen;

/// A node that was not heard at all is waited for so long where others hold the range, ns.
const GRACE_NS: u64 = 3_000_000_000;
/// A node that streamed a range once, and has yet to hear how the next master began it, lets so
/// many others go first: that master may only be cut off from it.
const FORKED_TURNS: u16 = 120;
/// Time between two looks, ns.
const LOOK_NS: u64 = 1_000_000;

/// What this node waits for before it begins a range.
#[derive(Clone, Debug, Default)]
pub(super) struct Takeover {
    due_ns: u64,
    /// When the first of the others told what it holds, ns; 0: none has.
    told_ns: u64,
    /// Per range, since when its master is silent, ns; 0: it is not.
    silent_ns: Vec<u64>,
    balance: Balance,
}

impl Takeover {
    /// Begins ranges that it is this node's turn to stream.
    pub(super) fn poll(&mut self, now_ns: u64, common: &mut Common<'_>, restore: &mut Restore) {
        if now_ns < self.due_ns {
            return;
        }
        let places = common.config.places();
        // What each node said of each range is looked at: of many nodes that takes long.
        let look_ns = LOOK_NS * u64::from(places / 8).max(1);
        self.due_ns = now_ns + look_ns.min(common.config.silence_ns / 8);
        self.silent_ns.resize(places.into(), 0);
        let told = |node: u16| common.told(node, common.config.node).is_some();
        if self.told_ns == 0 && common.others().any(told) {
            self.told_ns = now_ns.max(1);
        }
        if common.leaves() {
            return;
        }
        for range in 0..places {
            if common.ranges.of(range).is_empty() {
                continue;
            }
            if common.streams(range) || restore.is_going(range) {
                self.silent_ns[usize::from(range)] = 0;
            } else {
                self.look_at(now_ns, common, restore, range);
            }
        }
        self.balance.poll(now_ns, common, restore, self.told_ns);
    }

    fn look_at(&mut self, now_ns: u64, common: &mut Common<'_>, restore: &mut Restore, range: u16) {
        let own = common.config.node;
        let latest = common.latest_told(range);
        let begun_by = match latest {
            0 => common.ranges.home(range),
            _ => owner(latest),
        };
        if begun_by == own {
            self.look_at_own(now_ns, common, restore, range);
        } else if latest != 0 {
            if self.is_deserted(now_ns, common, range, begun_by) {
                restore.begin(common, range, self.told_ns, after_parting);
            }
        } else if self.is_new(now_ns, common, range)
            && self.is_deserted(now_ns, common, range, begun_by)
        {
            begin_new(common, range);
        }
    }

    /// A range of this node's that it does not stream: it is new, or this node lost its memory, or
    /// others promised it to this node.
    fn look_at_own(&self, now_ns: u64, common: &mut Common<'_>, restore: &mut Restore, range: u16) {
        let held_here = common.leases[usize::from(range)].held() > 0;
        let holds = |node: u16| common.told(node, range).is_some_and(|told| told.held > 0);
        if self.is_new(now_ns, common, range) {
            begin_new(common, range);
        } else if (self.all_told(common, range) || self.has_waited(now_ns))
            && (held_here || common.living(now_ns).any(holds))
        {
            restore.begin(common, range, self.told_ns, after);
        }
    }

    /// Whether all nodes that the job begins with have told what they hold of a range.
    fn all_told(&self, common: &Common<'_>, range: u16) -> bool {
        let mut first = common.others().filter(|node| *node < common.config.nodes);
        first.all(|node| told_here(common, node, range).is_some())
    }

    fn has_waited(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.told_ns) >= GRACE_NS && self.told_ns != 0
    }

    /// Whether a range is to begin with the initial weights.
    fn is_new(&self, now_ns: u64, common: &Common<'_>, range: u16) -> bool {
        let told = || {
            let others = common.others();
            others.filter_map(|node| told_here(common, node, range))
        };
        // All of them: one that was not heard may hold what a predecessor of this node trained,
        // and initial weights must never replace that. Fewer only if the user says so.
        let least = common.config.min_nodes.map(usize::from);
        let enough =
            self.has_waited(now_ns) && least.is_some_and(|least| 1 + told().count() >= least);
        (enough || self.all_told(common, range))
            && told().all(|told| told.held == 0)
            && common.leases[usize::from(range)].held() == 0
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
        let told_here = |node: u16| common.told(node, common.config.node);
        let hears = |node: &u16| told_here(*node).is_some_and(|told| !told.silent);
        let others = common.living(now_ns).filter(hears).count();
        let all = common.living(now_ns).all(agrees);
        let places = common.config.places();
        let rank_of = |node: u16| {
            let distance = (node + places - master) % places;
            let last = !common.config.is_master(node) || common.gives_up(node);
            (last, common.streamed_by(node).count(), distance)
        };
        let own = common.config.node;
        let before = common
            .living(now_ns)
            .filter(|node| rank_of(*node) < rank_of(own));
        // Who has yet to join the range comes last, and late: what it did apart would be lost.
        let forked = common.leases[usize::from(range)].forked_chunks > 0;
        let last = if forked { FORKED_TURNS.max(places) } else { 0 };
        let wait_ns = (before.count() as u64 + u64::from(last)) * common.config.silence_ns / 2;
        let waited = now_ns.saturating_sub(*silent_ns) >= wait_ns;
        others > 0 && all && waited && common.may_stream(range)
    }
}

/// What `node` says of a range since it knows this life. What it said to a former one may be old:
/// it may have taken the range from that one since.
fn told_here(common: &Common<'_>, node: u16, range: u16) -> Option<NodeSeen> {
    let admits = common.peers[usize::from(node)].admits;
    common.told(node, range).filter(|_| admits)
}

/// Begins a range with the initial weights.
fn begin_new(common: &mut Common<'_>, range: u16) {
    let epoch = after(common.latest_told(range), common.config.node);
    common.promise(range, epoch);
    if common.promised(range) == epoch {
        common.begin_streaming(range);
    }
}

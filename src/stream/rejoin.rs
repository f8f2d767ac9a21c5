//! A node whose range another has begun without it becomes a slave of that range: what it did apart
//! becomes a delta. [`forks`](super::forks) has why; [`replicas`](super::replicas) answers.
//!
//! Per chunk: it asks the present master for the base, and others where that has none, then each
//! slave of which it has applied another delta than the base acknowledges for what is contested.
//! Where it took the range over from an older position itself, that one is the base. Slaves are
//! then asked, too, for what the master before had taken after it: they may have sent that to both.
//! Then
//!
//! ```text
//! last = base + contested deltas that are in w
//! ```
//!
//! and the chunk is joined, as if the base was the last position that came. In a mean the delta
//! that leaves then is not multiplied by the portion: what a master does counts as it is. Of a
//! slave that is silent, or does not say, the delta is *owed*: it is in `w`, and is taken out
//! when that slave is back ([`owed`](super::owed)).
//!
//! Invariant: until then nothing of the chunk is taken or sent, and `last` is what this node
//! streamed last.

mod asked;
#[cfg(test)]
mod tests;

use std::sync::atomic::Ordering::Relaxed;

use asked::Asked;

use super::common::Common;
use super::common::chunk_flags::FORKED;
use super::epochs::owner;
use super::pieces::{all_pieces, pieces_of, send_list};
use super::{Outbox, Report, header};
use crate::wire::{self, DropReason, Dtype, Frame};

/// What did not come is asked for again after this, ns.
const AGAIN_NS: u64 = 50_000_000;
/// A slave that does not say for so long what is contested is not waited for, ns.
const WAIT_NS: u64 = 5_000_000_000;
/// A node that is silent and may have the base is waited for so long, ns.
const LOST_NS: u64 = 30_000_000_000;
/// Silent nodes that only others tell of are waited for so many times the shortest silence from the
/// start on: they may start too.
const STARTED: u64 = 16;
/// Time between two looks, ns.
const LOOK_NS: u64 = 1_000_000;
/// Chunks that are asked for at a time.
const CHUNKS: usize = 256;

/// The chunks that this node streamed and another has begun.
#[derive(Clone, Debug, Default)]
pub(super) struct Rejoin {
    range: u16,
    epoch: u32,
    asked: Vec<Asked>,
    /// Silent nodes that were waited for.
    mute: Vec<u16>,
    /// When this streamer looked first, ns.
    started_ns: u64,
    due_ns: u64,
}

impl Rejoin {
    /// Asks for what is missing to join chunks again.
    #[inline]
    pub(super) fn poll(&mut self, now_ns: u64, common: &mut Common<'_>, out: &mut impl Outbox) {
        if now_ns >= self.due_ns {
            self.due_ns = now_ns + LOOK_NS;
            self.look(now_ns, common, out);
        }
    }

    fn look(&mut self, now_ns: u64, common: &mut Common<'_>, out: &mut impl Outbox) {
        if self.started_ns == 0 {
            self.started_ns = now_ns.max(1);
        }
        if common.forks.apart.is_empty() {
            self.asked.clear();
            return;
        }
        let forked = |range: &u16| {
            let master = owner(common.promised(*range));
            let lives = master != common.config.node && common.is_alive(now_ns, master);
            let mut apart = common.forks.apart.range(common.ranges.of(*range));
            lives && apart.next().is_some()
        };
        let Some(range) = (0..common.config.places()).find(forked) else {
            self.asked.clear();
            return;
        };
        let epoch = common.promised(range);
        if (range, epoch) != (self.range, self.epoch) {
            // Another master has other bases.
            self.asked.clear();
            (self.range, self.epoch) = (range, epoch);
        }
        self.join_done(common);
        self.give_up_silent(now_ns, common);
        self.join_done(common);
        self.choose(now_ns, common, owner(epoch));
        self.ask(now_ns, common, out);
    }

    /// Puts chunks on the list until it is full.
    fn choose(&mut self, now_ns: u64, common: &Common<'_>, master: u16) {
        for chunk in common
            .forks
            .apart
            .range(common.ranges.of(self.range))
            .copied()
        {
            if self.asked.len() >= CHUNKS {
                return;
            }
            let forked = common.state.chunk(chunk).flags.load(Relaxed) & FORKED != 0;
            if forked && !self.asked.iter().any(|one| one.chunk == chunk) {
                let own = common
                    .forks
                    .base(chunk)
                    .filter(|base| !base.weights.is_empty());
                let parted = common.forks.parted.get(&chunk);
                let before = own.map_or(common.config.node, |base| owner(base.epoch));
                let node = parted.map_or(master, |link| link.by);
                let before = parted.map_or(before, |link| owner(link.epoch));
                self.asked
                    .push(Asked::new(now_ns, common, chunk, (node, before)));
            }
        }
    }

    fn ask(&mut self, now_ns: u64, common: &Common<'_>, out: &mut impl Outbox) {
        let mut waiting: Vec<_> = self.asked.iter_mut().collect();
        // What this node has itself is not asked for.
        waiting.retain(|one| one.node != common.config.node);
        waiting.retain(|one| one.asked_ns == 0 || now_ns - one.asked_ns >= AGAIN_NS);
        while let Some(first) = waiting.first() {
            let last_of = |one: &Asked| common.state.chunk(one.chunk).epoch.load(Relaxed);
            let (node, wanted, last) = (first.node, first.wanted(), last_of(first));
            let same = |one: &&mut &mut Asked| {
                (one.node, one.wanted(), last_of(one)) == (node, wanted, last)
            };
            let mut list: Vec<_> = waiting.iter_mut().filter(same).collect();
            list.truncate(wire::ASK_MAX);
            let chunks: Vec<u32> = list.iter().map(|one| one.chunk).collect();
            let (range, epoch) = (self.range, self.epoch);
            let header = header::ask_of_parting(common, range, (epoch, last), &chunks, wanted);
            if !send_list(node, &header, &chunks, out) {
                return;
            }
            list.iter_mut().for_each(|one| one.asked_ns = now_ns.max(1));
            waiting.retain(|one| one.asked_ns != now_ns.max(1));
        }
    }

    /// Slaves that are silent, or do not answer, are not waited for: what they have is owed.
    fn give_up_silent(&mut self, now_ns: u64, common: &mut Common<'_>) {
        if self.asked.is_empty() {
            return;
        }
        let all_live = self.all_live(now_ns, common);
        // One that was waited for without effect is not waited for again, chunk by chunk.
        self.mute.retain(|node| !common.is_alive(now_ns, *node));
        for one in &mut self.asked {
            let waits = one.base.is_some();
            let waited_ns = now_ns.saturating_sub(one.since_ns);
            let alive = common.is_alive(now_ns, one.node);
            // Where two parts of a network come together it may be heard in a moment.
            let silent = !alive && waited_ns > 2 * common.config.silence_ns;
            if waits && silent && !self.mute.contains(&one.node) {
                self.mute.push(one.node);
            }
            if waits && (waited_ns > WAIT_NS || self.mute.contains(&one.node)) {
                one.mute.push((one.node, one.wanted()));
                one.next(now_ns);
            } else if !waits {
                one.look_for_base(now_ns, common, (self.range, all_live));
            }
        }
    }

    /// Whether no node is silent that may have a base. A streamer that has just started does not
    /// know all of them itself.
    fn all_live(&self, now_ns: u64, common: &Common<'_>) -> bool {
        let started = now_ns.saturating_sub(self.started_ns) < STARTED * common.config.silence_ns;
        let lives = |node: u16| common.is_alive(now_ns, node);
        let known = || common.all_have_told(now_ns) && common.known(now_ns).all(lives);
        // One that heard none left with all that it kept, and may be back.
        let took_all = |node: u16| {
            let left_ns = common.peers[usize::from(node)].left_with_ranges_ns;
            left_ns != 0 && now_ns.saturating_sub(left_ns) < LOST_NS
        };
        common.members().all(lives) && (!started || known()) && !common.others().any(took_all)
    }

    /// Takes a piece of what was asked for.
    pub(super) fn handle(
        &mut self,
        now_ns: u64,
        common: &mut Common<'_>,
        frame: &Frame<'_>,
    ) -> Result<(), DropReason> {
        let header = &frame.header;
        let at = self.asked.iter().position(|one| one.chunk == header.chunk);
        let one = &mut self.asked[at.ok_or(DropReason::Late)?];
        let wanted = one.wanted();
        let nothing = wanted.is_nothing(header);
        // Numbers alone are no base, unless one is kept here that they belong to.
        let numbers = header.dtype == Dtype::None;
        let of_own = || {
            let gone_on = common.has_gone_on(one.chunk, one.node, header.epoch);
            gone_on || common.knows_by_numbers(one.chunk, &one.came_as_base(frame))
        };
        let nothing = nothing || wanted.is_given(header) && numbers && !of_own();
        let forked = common.state.chunk(one.chunk).flags.load(Relaxed) & FORKED != 0;
        if !forked || header.sender != one.node || !nothing && !wanted.is_given(header) {
            return Err(DropReason::Late);
        }
        common.counters.restores_taken += 1;
        let weights = common.config.restored(header);
        let payload = frame.payload.as_chunks::<4>().0;
        for (value, bytes) in one.came[weights].iter_mut().zip(payload) {
            *value = f32::from_le_bytes(*bytes);
        }
        one.pieces |= pieces_of(&common.config, header);
        if one.pieces == all_pieces(&common.config) {
            let of_fork = !nothing
                && common.is_of_parting(one.chunk, one.node, (header.epoch, header.chunk_version));
            match (&one.base, nothing) {
                (None, _) if of_fork => one.weigh_base(now_ns, common, frame),
                (None, _) => one.without.push(one.node),
                (Some(_), _) => one.take_contested(now_ns, common, frame, nothing),
            }
            self.join_done(common);
            // More may be asked for.
            self.due_ns = 0;
        }
        Ok(())
    }

    /// Joins the chunks of which all is there.
    fn join_done(&mut self, common: &mut Common<'_>) {
        let range = self.range;
        self.asked.retain(|one| {
            let forked = common.state.chunk(one.chunk).flags.load(Relaxed) & FORKED != 0;
            let done = one.base.is_some() && one.others.is_empty();
            if forked && done {
                one.join(common, range);
            }
            // Else it has another master, and how that began it is asked first.
            forked && common.forks.apart.contains(&one.chunk)
        });
    }
}

impl Common<'_> {
    /// Counts and reports chunks of a range of which what this node did apart is lost.
    pub(super) fn note_abandoned(&mut self, range: u16, chunks: u32) {
        if chunks > 0 {
            self.counters.abandoned_chunks += u64::from(chunks);
            self.report(Report::Abandoned { range });
        }
    }
}

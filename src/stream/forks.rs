//! Forks: what two masters of one chunk did apart comes together again, and counts once.
//!
//! A node may lose a range while it streams it: it stood still, its cable was cut, only its
//! streamer was dead. Others go on from the newest position that they have, the *base*; what the
//! node did since is not in it. So the next master keeps the base, and the node, when it is back,
//! asks for it: `w - base` is a delta as any other. A chunk may be taken over again before that
//! node is back: the base of each master that is still away is kept.
//!
//! Deltas that the node had applied after the base are in its weights, and their slaves have sent
//! them again, since the base does not acknowledge them: they are *contested*. So each slave keeps,
//! at the first position of another master, the delta that this one does not acknowledge, for each
//! master before. (A slave that was away may go from a master to the same one in a later reign.)
//! The node knows by its own acknowledgements which of them it has, asks for those, and leaves them
//! out. One that it cannot be told, as its slave is silent, it *owes*: it takes it out when that
//! slave is back ([`owed`](super::owed)).
//!
//! A master may go on by itself, where the node that took its range over is silent. That node has
//! the base, and the master keeps what it has acknowledged by then.
//!
//! Bases, contested deltas, what is owed and who had asked for a chunk are in memory, and in a file
//! that outlives a kill ([`ForkFile`]). Where that cannot be written they are in memory only: a
//! report says so.

mod forget;
mod heirs;
mod keep;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use super::begun::{Link, Teller};
use super::epochs::{are_of_one_reign, is_later, owner};
use super::header::Given;
use super::kept::{Base, Contested, Owed, OwedKey};
use crate::weights::{ForkFile, ForkKind, ForkRecord};

/// Masters of a chunk before the present one for which a slave keeps a delta, and the next master a
/// base, at most.
const MASTERS: usize = 4;

/// What this node keeps for those whose ranges others have begun.
#[derive(Clone, Debug)]
pub(super) struct Forks<'a> {
    file: &'a ForkFile,
    /// Why something could not be kept in the file.
    failed: Option<i32>,
    /// What this node began from when it took a chunk over last.
    bases: BTreeMap<u32, Base>,
    /// The same of times before that, as long as the master of then is away.
    former: BTreeMap<u32, Vec<Base>>,
    contested: BTreeMap<u32, Vec<Contested>>,
    owed: BTreeMap<OwedKey, Owed>,
    due_ns: u64,
    /// When a member was silent last, ns.
    silent_ns: u64,
    /// Chunks of which this node does not know how their master began them.
    pub(super) unsure: BTreeSet<u32>,
    /// Chunks that this node streamed, and the present master began from something else.
    pub(super) apart: BTreeSet<u32>,
    /// Chunks that this node streamed, of which another node than the present master is to say how
    /// it began them.
    pub(super) tellers: BTreeMap<u32, Teller>,
    /// Nodes that had asked for a chunk that this node streamed, before the one that `given` names.
    heirs: BTreeMap<u32, BTreeSet<u16>>,
    /// Those that were silent for so long that they were given up.
    unheard: BTreeMap<u32, BTreeSet<u16>>,
    /// Where the line of their masters went apart from this node, as far as that is known.
    pub(super) parted: BTreeMap<u32, Link>,
}

impl<'a> Forks<'a> {
    /// What a predecessor kept in `file`, as far as it fits `chunks`.
    pub(super) fn of(file: &'a ForkFile, chunks: u32) -> Self {
        let mut forks = Self {
            file,
            failed: None,
            bases: BTreeMap::new(),
            former: BTreeMap::new(),
            contested: BTreeMap::new(),
            owed: BTreeMap::new(),
            due_ns: 0,
            silent_ns: 0,
            unsure: BTreeSet::new(),
            apart: BTreeSet::new(),
            tellers: BTreeMap::new(),
            heirs: BTreeMap::new(),
            unheard: BTreeMap::new(),
            parted: BTreeMap::new(),
        };
        let there = file.records().into_iter();
        there
            .filter(|record| record.key.chunk < chunks)
            .for_each(|record| forks.take_record(record));
        forks
    }

    fn take_record(&mut self, record: ForkRecord) {
        let chunk = record.key.chunk;
        match record.key.kind {
            ForkKind::Base if record.key == Base::key(chunk) => {
                self.bases.insert(chunk, Base::of(record));
            }
            ForkKind::Base => {
                let all = self.former.entry(chunk).or_default();
                all.push(Base::of(record));
            }
            ForkKind::Contested => {
                let all = self.contested.entry(chunk).or_default();
                all.push(Contested::of(record));
            }
            ForkKind::Owed => self.owed.extend([OwedKey::of(&record)]),
            ForkKind::Heir => self.take_heir(&record),
        }
    }

    fn put(&mut self, record: &ForkRecord) {
        if let Err(error) = self.file.put(record) {
            self.failed = Some(error.raw_os_error().unwrap_or(0));
        }
    }

    /// Keeps what this node takes a chunk over from.
    fn begin_from(&mut self, chunk: u32, base: Base) {
        self.make_former(chunk, owner(base.epoch));
        self.set_base(chunk, base);
    }

    fn set_base(&mut self, chunk: u32, base: Base) {
        self.put(&base.record(chunk));
        self.bases.insert(chunk, base);
    }

    /// This node begins a chunk anew. What it began from the time before is kept, unless that was a
    /// position of the same master, `before`: that one has been back.
    fn make_former(&mut self, chunk: u32, before: u16) {
        self.forget_former(before, chunk);
        let Some(base) = self.bases.remove(&chunk) else {
            return;
        };
        self.file.remove(&Base::key(chunk));
        if base.weights.is_empty() || owner(base.epoch) == before {
            return;
        }
        self.set_former(chunk, base);
    }

    pub(super) fn set_former(&mut self, chunk: u32, base: Base) {
        self.forget_former(owner(base.epoch), chunk);
        self.put(&base.former_record(chunk));
        let all = self.former.entry(chunk).or_default();
        all.push(base);
        if all.len() >= MASTERS {
            let oldest = all.remove(0);
            self.file.remove(&oldest.former_record(chunk).key);
        }
    }

    fn forget_former(&mut self, node: u16, chunk: u32) {
        let Some(all) = self.former.get_mut(&chunk) else {
            return;
        };
        for one in all.extract_if(.., |one| owner(one.epoch) == node) {
            self.file.remove(&one.former_record(chunk).key);
        }
        if all.is_empty() {
            self.former.remove(&chunk);
        }
    }

    /// What this node owes.
    pub(super) fn owed(&self) -> &BTreeMap<OwedKey, Owed> {
        &self.owed
    }

    /// Owes a delta from now on.
    pub(super) fn owe(&mut self, key: OwedKey, owed: Owed) {
        self.put(&key.record(owed));
        self.owed.insert(key, owed);
    }

    /// Owes that delta no more.
    pub(super) fn settle(&mut self, key: OwedKey) {
        self.owed.remove(&key);
        self.file.remove(&key.key());
    }

    pub(super) fn base(&self, chunk: u32) -> Option<&Base> {
        self.bases.get(&chunk)
    }

    /// The bases of `chunk` of takeovers before the last one.
    pub(super) fn former(&self, chunk: u32) -> impl Iterator<Item = &Base> {
        self.former.get(&chunk).into_iter().flatten()
    }

    /// The bases of `chunk` that one of `masters` streamed, as far as the weights are there.
    pub(super) fn bases_of(&self, chunk: u32, masters: &[u16]) -> impl Iterator<Item = &Base> {
        let all = self.base(chunk).into_iter().chain(self.former(chunk));
        all.filter(|base| !base.weights.is_empty() && masters.contains(&owner(base.epoch)))
    }

    /// What `node`, this one, had taken of `chunk` when it went on with it: numbers alone.
    pub(super) fn gone_on(&self, chunk: u32, node: u16) -> Option<&Base> {
        let mut all = self.former(chunk);
        all.find(|base| owner(base.epoch) == node && base.weights.is_empty())
    }

    /// What `node`, this one, streamed last of `chunk` and gave away, for an heir: another one
    /// brings it.
    pub(super) fn given_away(&self, chunk: u32, node: u16, heir: u16) -> Option<&Base> {
        let mut all = self.former(chunk);
        all.find(|base| {
            let own = owner(base.epoch) == node && !base.weights.is_empty();
            own && base.by != heir
        })
    }

    /// The last of these for a node that streamed the chunk last in epoch `last` (0: not known): a
    /// base of a later one is no place where it went apart.
    pub(super) fn base_for(&self, chunk: u32, masters: [u16; 2], last: u32) -> Option<&Base> {
        let all = self.bases_of(chunk, &masters);
        let before = all.filter(|base| last == 0 || !is_later(base.epoch, last));
        before.reduce(|a, b| if b.is_later(a) { b } else { a })
    }

    /// Whether there is anything that a node whose range another has begun may ask for, or that
    /// this one has to ask for.
    pub(super) fn keeps_any(&self) -> bool {
        let keeps = self.of_bases().next().is_some() || !self.contested.is_empty();
        keeps || !self.owed.is_empty()
    }

    /// The masters of bases that have yet to take part again.
    pub(super) fn of_bases(&self) -> impl Iterator<Item = u16> {
        let former = self.former.values().flatten();
        let bases = self.bases.values().chain(former);
        let kept = bases.filter(|base| !base.weights.is_empty() && base.back_ns == 0);
        kept.map(|base| owner(base.epoch))
    }

    /// The masters that contested deltas went to, of those that have yet to stream again.
    pub(super) fn of_contested(&self) -> impl Iterator<Item = u16> {
        let all = self.contested.values().flatten();
        let kept = all.filter(|one| one.back_ns == 0);
        kept.map(|one| one.master)
    }

    /// Another epoch of `chunk` begins, or it is joined: what is known of the present one is over.
    pub(super) fn forget_parting(&mut self, chunk: u32) {
        self.apart.remove(&chunk);
        self.tellers.remove(&chunk);
        self.parted.remove(&chunk);
    }

    /// What of `chunk` was under way to `master` when another began it, or to a master before that
    /// one, as `given` says.
    pub(super) fn contested(
        &self,
        chunk: u32,
        master: u16,
        (given, last): (Given, u32),
    ) -> Option<&Contested> {
        Contested::of_given(self.contested.get(&chunk)?, master, given, last)
    }

    /// Whether a delta is kept that was under way to the master of `epoch` in that reign.
    fn has_contested_of(&self, chunk: u32, epoch: u32) -> bool {
        let mut all = self.contested.get(&chunk).into_iter().flatten();
        all.any(|one| are_of_one_reign(one.epoch, epoch))
    }

    fn forget_contested(&mut self, chunk: u32, master: u16) {
        if let Some(all) = self.contested.get_mut(&chunk) {
            all.retain(|one| one.master != master);
            if all.is_empty() {
                self.contested.remove(&chunk);
            }
            self.file.remove(&Contested::key(chunk, master));
        }
    }

    /// Keeps a delta, in place of one that was under way to the same master; of more masters than
    /// [`MASTERS`] the oldest goes.
    fn set_contested(&mut self, chunk: u32, contested: Contested) {
        let mut all = self.contested.remove(&chunk).unwrap_or_default();
        all.retain(|one| one.master != contested.master);
        self.put(&contested.record(chunk));
        all.push(contested);
        if all.len() > MASTERS {
            let oldest = all.remove(0);
            self.file.remove(&Contested::key(chunk, oldest.master));
        }
        self.contested.insert(chunk, all);
    }
}

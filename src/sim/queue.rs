//! What is on its way, in the order in which it comes.
//!
//! With 64 nodes some hundred thousand frames are on the way, and each look into a heap of them
//! misses the cache. So those of a later interval wait unsorted; only those of the present one are
//! in order.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};

/// Shortest interval, ns.
const INTERVAL_NS: u64 = 1 << 16;
/// Empty lists that are kept for intervals to come.
const SPARE: usize = 64;

/// When something is due, ns; of two at one time the one that was pushed first comes first.
type Key = (u64, u64);

struct Entry<T> {
    key: Key,
    what: T,
}

/// The one that comes first is the greatest.
impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        other.key.cmp(&self.key)
    }
}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl<T> Eq for Entry<T> {}

/// Things with the time at which they are due.
pub(super) struct Queue<T> {
    /// Of the present interval, as it began: the next one is last.
    present: Vec<Entry<T>>,
    /// Those that were pushed since for times before its end.
    pushed: BinaryHeap<Entry<T>>,
    /// End of the present interval, ns.
    end_ns: u64,
    /// Length of an interval, ns.
    interval_ns: u64,
    /// By interval.
    later: BTreeMap<u64, Vec<Entry<T>>>,
    spare: Vec<Vec<Entry<T>>>,
    /// How many were pushed.
    order: u64,
    len: usize,
}

impl<T> Queue<T> {
    pub(super) fn new() -> Self {
        Self {
            present: Vec::new(),
            pushed: BinaryHeap::new(),
            end_ns: 0,
            interval_ns: INTERVAL_NS,
            later: BTreeMap::new(),
            spare: Vec::new(),
            order: 0,
            len: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn push(&mut self, due_ns: u64, what: T) {
        self.order += 1;
        self.len += 1;
        let entry = Entry {
            key: (due_ns, self.order),
            what,
        };
        if due_ns < self.end_ns {
            self.pushed.push(entry);
        } else {
            self.put_later(entry);
        }
    }

    fn put_later(&mut self, entry: Entry<T>) {
        let interval = self.later.entry(entry.key.0 / self.interval_ns);
        let spare = &mut self.spare;
        let entries = interval.or_insert_with(|| spare.pop().unwrap_or_default());
        entries.push(entry);
    }

    /// The clock goes on by `step_ns` at once: what comes within a step need not be told apart
    /// before, so intervals are as long from now on.
    pub(super) fn note_step(&mut self, step_ns: u64) {
        if step_ns <= self.interval_ns {
            return;
        }
        self.interval_ns = step_ns;
        for (_, entries) in std::mem::take(&mut self.later) {
            for entry in entries {
                self.put_later(entry);
            }
        }
    }

    /// What is due next, and when, if that is at `now_ns` or before.
    pub(super) fn pop_due(&mut self, now_ns: u64) -> Option<(u64, T)> {
        if self.present.is_empty() && self.pushed.is_empty() {
            let (interval, entries) = self.later.pop_first()?;
            self.end_ns = (interval + 1) * self.interval_ns;
            let empty = std::mem::replace(&mut self.present, entries);
            if self.spare.len() < SPARE {
                self.spare.push(empty);
            }
            self.present.sort_unstable();
        }
        let first = self.present.last().max(self.pushed.peek())?;
        if first.key.0 > now_ns {
            return None;
        }
        self.len -= 1;
        let entry = if self.present.last() >= self.pushed.peek() {
            self.present.pop()
        } else {
            self.pushed.pop()
        };
        entry.map(|entry| (entry.key.0, entry.what))
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};
    use rand_xoshiro::Xoshiro256PlusPlus;

    use super::*;

    /// As from a sorted list, whatever is pushed meanwhile.
    #[test]
    fn all_come_in_order_and_none_early() {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
        let mut queue = Queue::new();
        let mut list: Vec<(u64, u64)> = Vec::new();
        let mut number = 0;
        for now_ns in (0..100 * INTERVAL_NS).step_by(INTERVAL_NS as usize / 7) {
            if now_ns > 50 * INTERVAL_NS {
                queue.note_step(INTERVAL_NS * 5 / 3);
            }
            for _ in 0..random.random_range(0..8) {
                let due_ns = now_ns + random.random_range(0..4 * INTERVAL_NS);
                number += 1;
                queue.push(due_ns, number);
                list.push((due_ns, number));
            }
            list.sort_unstable();
            while let Some(popped) = queue.pop_due(now_ns) {
                assert_eq!(popped, list.remove(0));
                if random.random_bool(0.2) {
                    number += 1;
                    queue.push(now_ns, number);
                    list.push((now_ns, number));
                    list.sort_unstable();
                }
            }
            assert!(list.first().is_none_or(|(due_ns, _)| *due_ns > now_ns));
            assert_eq!(queue.len(), list.len());
        }
        assert!(number > 1_000 && queue.pop_due(u64::MAX).is_some());
    }
}

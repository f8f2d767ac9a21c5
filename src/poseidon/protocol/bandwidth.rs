//! The bandwidth manager: what matters most goes first, and no more than the budget allows.
//!
//! A queue of messages that wait for their share of a budget in bytes per second. They leave in the
//! order of the relative magnitude of the update (its length over that of the weights). Equal ones
//! leave upper layers first, and those of one layer first come, first served. Messages about the
//! same subject keep their order: the priority of the newest lets the oldest go. Time is an
//! argument.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap, VecDeque};

/// Time for which an unused budget may be saved up.
const BURST_NS: u64 = 5_000_000;

/// How early a message is sent: by magnitude, then by layer, the largest first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Priority {
    /// Length of the update over the length of the weights it changes.
    pub magnitude: f32,
    /// The layer; those near the loss have the larger numbers.
    pub layer: u32,
}

/// A turn for the oldest message about a subject.
#[derive(Clone, Copy, Debug)]
struct Turn {
    priority: Priority,
    order: u64,
    subject: u64,
}

impl Ord for Turn {
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |w: &Self| (w.priority.layer, std::cmp::Reverse(w.order));
        let magnitude = self.priority.magnitude.total_cmp(&other.priority.magnitude);
        magnitude.then_with(|| key(self).cmp(&key(other)))
    }
}

impl PartialOrd for Turn {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Turn {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Turn {}

/// What [`Bandwidth::pop`] gave.
#[derive(Debug, PartialEq, Eq)]
pub enum Next<T> {
    /// This one may go now.
    Now(T),
    /// Not before this time, ns.
    At(u64),
    /// The queue is empty.
    Empty,
}

/// The budget of one node and what waits for it.
pub struct Bandwidth<T> {
    ns_per_byte: f64,
    free_at_ns: f64,
    orders: u64,
    turns: BinaryHeap<Turn>,
    /// By subject: messages and their bytes, the oldest first; as many as turns.
    waiting: HashMap<u64, VecDeque<(T, u64)>>,
}

impl<T> Bandwidth<T> {
    /// A budget; it must be positive.
    pub fn new(bytes_per_s: f64) -> Self {
        Self {
            ns_per_byte: 1e9 / bytes_per_s.max(f64::MIN_POSITIVE),
            free_at_ns: 0.0,
            orders: 0,
            turns: BinaryHeap::new(),
            waiting: HashMap::new(),
        }
    }

    /// Adds a message about `subject`, of so many bytes on the wire.
    pub fn push(&mut self, item: T, subject: u64, bytes: usize, priority: Priority) {
        self.orders += 1;
        self.turns.push(Turn {
            priority,
            order: self.orders,
            subject,
        });
        let of_subject = self.waiting.entry(subject).or_default();
        of_subject.push_back((item, bytes as u64));
    }

    /// The message that matters most, as soon as the budget allows.
    pub fn pop(&mut self, now_ns: u64) -> Next<T> {
        if self.free_at_ns > now_ns as f64 && !self.turns.is_empty() {
            return Next::At(self.free_at_ns.ceil() as u64);
        }
        let turn = self.turns.pop();
        let queue = turn.and_then(|turn| self.waiting.get_mut(&turn.subject));
        let Some((item, bytes)) = queue.and_then(VecDeque::pop_front) else {
            return Next::Empty;
        };
        let earliest = now_ns.saturating_sub(BURST_NS) as f64;
        self.free_at_ns = self.free_at_ns.max(earliest) + bytes as f64 * self.ns_per_byte;
        Next::Now(item)
    }

    /// Number of messages that wait.
    pub fn len(&self) -> usize {
        self.turns.len()
    }

    /// True if no message waits.
    pub fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn priority(magnitude: f32, layer: u32) -> Priority {
        Priority { magnitude, layer }
    }

    #[test]
    fn what_matters_most_goes_first() {
        let mut queue = Bandwidth::new(1e12);
        for (subject, (name, magnitude, layer)) in (0..).zip([
            ("small", 0.01, 9),
            ("low layer", 0.5, 1),
            ("high layer", 0.5, 3),
            ("high layer, later", 0.5, 3),
            ("large", 2.0, 0),
        ]) {
            queue.push(name, subject, 1, priority(magnitude, layer));
        }
        let order: Vec<_> = std::iter::from_fn(|| match queue.pop(u64::MAX / 4) {
            Next::Now(name) => Some(name),
            _ => None,
        })
        .collect();
        let expected = [
            "large",
            "high layer",
            "high layer, later",
            "low layer",
            "small",
        ];
        assert_eq!(order, expected);
    }

    /// A step must not overtake the one before it, however much larger it is.
    #[test]
    fn messages_about_the_same_keep_their_order() {
        let mut queue = Bandwidth::new(1e12);
        for (name, subject, magnitude) in [
            ("a1", 1, 0.1),
            ("b1", 2, 0.5),
            ("a2", 1, 2.0),
            ("b2", 2, 0.01),
        ] {
            queue.push(name, subject, 1, priority(magnitude, 0));
        }
        assert_eq!(queue.len(), 4);
        for expected in ["a1", "b1", "a2", "b2"] {
            assert_eq!(queue.pop(u64::MAX / 4), Next::Now(expected));
        }
        assert!(queue.is_empty());
    }

    #[test]
    fn the_budget_is_kept() {
        // 1,000 bytes at 1 MB/s: one message per millisecond.
        let mut queue = Bandwidth::new(1e6);
        (0..100).for_each(|i| queue.push(i, i, 1000, priority(1.0, 0)));
        let (start, mut now, mut sent) = (1_000_000_000u64, 1_000_000_000u64, 0u64);
        loop {
            match queue.pop(now) {
                Next::Now(_) => sent += 1000,
                Next::At(later) => {
                    assert!(later > now);
                    now = later;
                }
                Next::Empty => break,
            }
            let budget = (now - start) as f64 / 1e3 + 1000.0 + BURST_NS as f64 / 1e3;
            assert!(
                sent as f64 <= budget,
                "{sent} bytes after {} ns",
                now - start
            );
        }
        assert_eq!(sent, 100_000);
        assert!(now - start >= 90_000_000, "{}", now - start);
    }
}

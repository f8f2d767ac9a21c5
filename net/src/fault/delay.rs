//! Frames held back on purpose, in slots that are used again.
//!
//! Touches nothing but memory. Invariants: the number of slots is bounded; a frame that was pushed
//! comes out once.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

use crate::Source;

/// The frames held back, in slots that are used again.
///
/// Each is listed twice: by time, which always releases it in the end, and, if it waits to be
/// overtaken, by the count of arrivals that does. `generation` tells a stale entry of either list.
pub(super) struct Held {
    slots: Vec<Slot>,
    free: Vec<usize>,
    by_time: BinaryHeap<Reverse<(Instant, u64, usize)>>,
    by_count: BinaryHeap<Reverse<(u64, u64, usize)>>,
    generation: u64,
    slots_max: usize,
}

struct Slot {
    /// The generation of the frame in it; 0 when the slot is free.
    generation: u64,
    source: Source,
    frame: Vec<u8>,
}

impl Held {
    pub(super) fn new(slots_max: usize) -> Self {
        Held {
            slots: Vec::new(),
            free: Vec::new(),
            by_time: BinaryHeap::new(),
            by_count: BinaryHeap::new(),
            generation: 0,
            slots_max,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies a frame in; false if all slots are taken. `overtaken_at` 0: by time alone.
    pub(super) fn push(
        &mut self,
        due: Instant,
        overtaken_at: u64,
        source: Source,
        frame: &[u8],
    ) -> bool {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() < self.slots_max => {
                self.slots.push(Slot {
                    generation: 0,
                    source,
                    frame: Vec::new(),
                });
                self.slots.len() - 1
            }
            None => return false,
        };
        self.generation += 1;
        let slot = &mut self.slots[index];
        slot.generation = self.generation;
        slot.source = source;
        slot.frame.clear();
        slot.frame.extend_from_slice(frame);
        self.by_time.push(Reverse((due, self.generation, index)));
        if overtaken_at > 0 {
            self.by_count
                .push(Reverse((overtaken_at, self.generation, index)));
        }
        true
    }

    /// The next frame that is due, if any. Its slot is free again at once: the content stays until
    /// the next `push`, which the borrow holds off.
    pub(super) fn pop(&mut self, now: Instant, arrived: u64) -> Option<(Source, &[u8])> {
        self.forget_stale();
        let index = match (self.by_count.peek(), self.by_time.peek()) {
            (Some(&Reverse((at, _, index))), _) if at <= arrived => index,
            (_, Some(&Reverse((due, _, index)))) if due <= now => index,
            _ => return None,
        };
        self.slots[index].generation = 0;
        self.free.push(index);
        let slot = &self.slots[index];
        Some((slot.source, &slot.frame))
    }

    pub(super) fn next_due(&mut self) -> Option<Instant> {
        self.forget_stale();
        self.by_time.peek().map(|&Reverse((due, ..))| due)
    }

    /// Whether enough frames have passed for one that waits for that.
    pub(super) fn overtaken(&self, arrived: u64) -> bool {
        self.by_count
            .peek()
            .is_some_and(|&Reverse((at, ..))| at <= arrived)
    }

    /// Drops the entries on top of the lists whose frame was released through the other list.
    fn forget_stale(&mut self) {
        while let Some(&Reverse((_, generation, index))) = self.by_time.peek()
            && self.slots[index].generation != generation
        {
            self.by_time.pop();
        }
        while let Some(&Reverse((_, generation, index))) = self.by_count.peek()
            && self.slots[index].generation != generation
        {
            self.by_count.pop();
        }
    }
}

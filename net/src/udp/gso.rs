//! Gathering: frames for one destination are written one behind the other into a long buffer, which
//! the kernel (or the adapter) cuts into datagrams again. This is generic segmentation offload: one
//! system call and one pass through the network stack for some forty frames.
//!
//! Touches only memory. Invariants:
//! - The frames of a batch have one destination and one length, but that the last may be shorter;
//!   an empty frame is alone. There are at most [`FRAMES_MAX`], and [`BATCH_BYTES`] in all: what
//!   the kernel takes.
//! - A batch is free, open (frames may be added; at most one per destination) or ready (waits for
//!   the kernel), and in exactly one of these states.

use std::collections::VecDeque;

use socket2::SockAddr;

use super::skew::{SKEW_BYTES, Skew};
use super::sys::{MESSAGES_MAX, Outgoing};
use crate::To;

/// Frames in one batch, at most: `UDP_MAX_SEGMENTS` of the kernel (64 before Linux 6.9, then 128).
pub(super) const FRAMES_MAX: usize = 64;
/// Bytes in one batch, at most: the largest UDP payload over IPv4.
pub(super) const BATCH_BYTES: usize = 65_507;
/// Batches in all, unless copies go to more nodes. More destinations than this still work, in
/// smaller batches.
const BATCHES: usize = 32;

/// Frames for one destination.
struct Batch {
    bytes: Box<[u8]>,
    /// Where the first frame begins in `bytes`.
    origin: usize,
    len: usize,
    to: To,
    address: SockAddr,
    segment: usize,
    frames: usize,
    /// It was open when old batches were last closed.
    old: bool,
    /// Frames the kernel has taken already, where it takes them one by one.
    handed: usize,
}

impl Batch {
    fn new(any: &SockAddr) -> Self {
        Batch {
            bytes: vec![0; BATCH_BYTES + SKEW_BYTES].into_boxed_slice(),
            origin: 0,
            len: 0,
            to: To::Group,
            address: any.clone(),
            segment: 0,
            frames: 0,
            old: false,
            handed: 0,
        }
    }

    fn has_room(&self, len: usize) -> bool {
        let whole = self.len == self.segment * self.frames;
        whole
            && len > 0
            && len <= self.segment
            && self.frames < FRAMES_MAX
            && self.len + len <= BATCH_BYTES
    }

    /// Whether not even a frame like the first would fit.
    fn is_full(&self) -> bool {
        !self.has_room(self.segment)
    }

    fn messages(&self, segmentation: bool) -> impl Iterator<Item = Outgoing<'_>> {
        let (step, count) = if segmentation {
            (self.len, 1)
        } else {
            (self.segment, self.frames)
        };
        let segment = u16::try_from(self.segment)
            .ok()
            .filter(|_| segmentation && self.frames > 1);
        (self.handed..count).map(move |i| Outgoing {
            to: &self.address,
            bytes: &self.bytes[self.origin..]
                [(i * step).min(self.len)..((i + 1) * step).min(self.len)],
            segment,
        })
    }
}

/// Everything that waits to be sent.
pub(super) struct Gather {
    /// The address of a batch that is free.
    any: SockAddr,
    batches: Vec<Batch>,
    free: Vec<usize>,
    ready: VecDeque<usize>,
    skew: Skew,
    open_group: Option<usize>,
    /// Open batch by node.
    open_nodes: Vec<Option<usize>>,
    /// How many of `open_nodes` are set, so that nothing is searched when none is.
    open_nodes_len: usize,
}

/// What became of the oldest ready frames.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Left {
    pub(super) frames: u64,
    /// Messages among them that went to the group.
    pub(super) group_messages: u64,
}

impl Gather {
    pub(super) fn new(any: &SockAddr) -> Self {
        Gather {
            any: any.clone(),
            batches: (0..BATCHES).map(|_| Batch::new(any)).collect(),
            free: (0..BATCHES).rev().collect(),
            ready: VecDeque::with_capacity(BATCHES),
            skew: Skew::default(),
            open_group: None,
            open_nodes: Vec::new(),
            open_nodes_len: 0,
        }
    }

    fn open_slot(&mut self, to: To) -> &mut Option<usize> {
        match to {
            To::Group | To::All => &mut self.open_group,
            To::Node(node) => {
                let index = usize::from(node);
                if self.open_nodes.len() <= index {
                    self.open_nodes.resize(index + 1, None);
                }
                &mut self.open_nodes[index]
            }
        }
    }

    /// Whether a frame of `len` bytes fits the open batch of `to`; closes that batch if not.
    pub(super) fn fits(&mut self, to: To, len: usize) -> bool {
        let open = *self.open_slot(to);
        match open {
            Some(index) if self.batches[index].has_room(len) => true,
            Some(_) => {
                self.close(to);
                false
            }
            None => false,
        }
    }

    /// Batches that are free.
    pub(super) fn free(&self) -> usize {
        self.free.len()
    }

    /// Has room for a batch of each of `targets`, open, while as many wait for the kernel.
    pub(super) fn grow(&mut self, targets: usize) {
        for index in self.batches.len()..BATCHES.max(2 * targets) {
            self.batches.push(Batch::new(&self.any));
            self.free.push(index);
        }
    }

    /// Opens a batch for frames of `len` bytes; false if none is free. The one before must be
    /// closed.
    pub(super) fn open(&mut self, to: To, address: &SockAddr, len: usize) -> bool {
        let Some(index) = self.free.pop() else {
            return false;
        };
        let batch = &mut self.batches[index];
        batch.origin = self.skew.advance();
        batch.len = 0;
        batch.frames = 0;
        batch.old = false;
        batch.handed = 0;
        batch.segment = len;
        batch.to = to;
        batch.address = address.clone();
        *self.open_slot(to) = Some(index);
        self.open_nodes_len += usize::from(to != To::Group);
        true
    }

    /// Appends a frame to the open batch of `to`; returns whether the batch is ready now.
    pub(super) fn append(&mut self, to: To, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> bool {
        let Some(index) = *self.open_slot(to) else {
            return false;
        };
        let batch = &mut self.batches[index];
        let start = batch.origin + batch.len;
        fill(&mut batch.bytes[start..start + len]);
        batch.len += len;
        batch.frames += 1;
        let full = batch.is_full();
        if full {
            self.close(to);
        }
        full
    }

    /// Makes the open batch of `to`, if any, ready to leave.
    pub(super) fn close(&mut self, to: To) {
        if let Some(index) = self.open_slot(to).take() {
            self.open_nodes_len -= usize::from(to != To::Group);
            self.ready.push_back(index);
        }
    }

    /// Makes all open batches ready to leave.
    pub(super) fn close_all(&mut self) {
        self.close(To::Group);
        if self.open_nodes_len > 0 {
            for node in 0..self.open_nodes.len() {
                self.close(To::Node(node as u16));
            }
        }
    }

    /// Makes batches ready to leave that were open at the last call of this.
    pub(super) fn close_old(&mut self) {
        self.close_if_old(To::Group);
        if self.open_nodes_len > 0 {
            for node in 0..self.open_nodes.len() {
                self.close_if_old(To::Node(node as u16));
            }
        }
    }

    fn close_if_old(&mut self, to: To) {
        if let Some(index) = *self.open_slot(to)
            && std::mem::replace(&mut self.batches[index].old, true)
        {
            self.close(to);
        }
    }

    /// Whether nothing is ready to leave.
    pub(super) fn is_idle(&self) -> bool {
        self.ready.is_empty()
    }

    /// What is ready to leave, oldest first.
    pub(super) fn messages(&self, segmentation: bool) -> impl Iterator<Item = Outgoing<'_>> {
        self.ready
            .iter()
            .flat_map(move |&index| self.batches[index].messages(segmentation))
    }

    /// How many of the messages that fit one system call go to the group.
    pub(super) fn group_messages(&self, segmentation: bool) -> u64 {
        let mut room = MESSAGES_MAX;
        let mut count = 0;
        for &index in &self.ready {
            let batch = &self.batches[index];
            let messages = if segmentation {
                1
            } else {
                batch.frames - batch.handed
            };
            let messages = messages.min(room);
            room -= messages;
            count += if batch.to == To::Group { messages } else { 0 };
        }
        count as u64
    }

    /// Takes note that the first `count` of [`messages`](Self::messages) have left.
    pub(super) fn left(&mut self, mut count: usize, segmentation: bool) -> Left {
        let mut left = Left::default();
        while count > 0
            && let Some(&index) = self.ready.front()
        {
            let batch = &mut self.batches[index];
            let (messages, frames) = if segmentation {
                (1, batch.frames)
            } else {
                let messages = count.min(batch.frames - batch.handed);
                (messages, messages)
            };
            count -= messages;
            batch.handed += frames;
            left.frames += frames as u64;
            left.group_messages += if batch.to == To::Group {
                messages as u64
            } else {
                0
            };
            if batch.handed >= batch.frames {
                self.ready.pop_front();
                self.free.push(index);
            }
        }
        left
    }

    /// Gives up the first of [`messages`](Self::messages); returns how many frames that were.
    pub(super) fn give_up(&mut self, segmentation: bool) -> u64 {
        self.left(1, segmentation).frames
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    fn gather() -> (Gather, SockAddr) {
        let address = SockAddr::from(SocketAddr::from(([127, 0, 0, 1], 1)));
        (Gather::new(&address), address)
    }

    /// Sends one frame the way `Tx` does; false if no batch is free.
    fn put(gather: &mut Gather, address: &SockAddr, to: To, len: usize) -> bool {
        if !gather.fits(to, len) && !gather.open(to, address, len) {
            return false;
        }
        gather.append(to, len, &mut |slot| slot.fill(len as u8));
        true
    }

    fn shapes(gather: &Gather, segmentation: bool) -> Vec<(usize, Option<u16>)> {
        gather
            .messages(segmentation)
            .map(|message| (message.bytes.len(), message.segment))
            .collect()
    }

    /// What came since the call before may be joined by others.
    #[test]
    fn old_batches_are_those_of_the_call_before() {
        let (mut gather, address) = gather();
        put(&mut gather, &address, To::Node(3), 100);
        gather.close_old();
        assert!(gather.is_idle());
        put(&mut gather, &address, To::Group, 50);
        put(&mut gather, &address, To::Node(3), 100);
        gather.close_old();
        assert_eq!(shapes(&gather, true), [(200, Some(100))]);
        gather.close_old();
        assert_eq!(shapes(&gather, true), [(200, Some(100)), (50, None)]);
        gather.close_old();
        assert_eq!(gather.messages(true).count(), 2, "none is open any more");
    }

    #[test]
    fn frames_of_one_length_and_a_shorter_last_share_a_message() {
        let (mut gather, address) = gather();
        for len in [100, 100, 100, 40, 100, 0, 100, 200] {
            assert!(put(&mut gather, &address, To::Group, len));
        }
        gather.close_all();
        let wanted = [
            (340, Some(100)),
            (100, None),
            (0, None),
            (100, None),
            (200, None),
        ];
        assert_eq!(shapes(&gather, true), wanted);
        let singles: Vec<usize> = shapes(&gather, false).iter().map(|shape| shape.0).collect();
        assert_eq!(singles, [100, 100, 100, 40, 100, 0, 100, 200]);
        assert_eq!(gather.left(5, true).frames, 8);
        assert!(gather.is_idle());
    }

    #[test]
    fn a_message_is_never_more_than_the_kernel_takes() {
        let (mut gather, address) = gather();
        for _ in 0..200 {
            assert!(put(&mut gather, &address, To::Group, 10));
        }
        for _ in 0..100 {
            assert!(put(&mut gather, &address, To::Node(3), 8972));
        }
        gather.close_all();
        for (len, segment) in shapes(&gather, true) {
            let frames = segment.map_or(1, |segment| len.div_ceil(segment.into()));
            assert!(
                len <= BATCH_BYTES && frames <= FRAMES_MAX,
                "{len} {segment:?}"
            );
        }
    }

    #[test]
    fn one_by_one_a_batch_can_leave_in_parts() {
        let (mut gather, address) = gather();
        for _ in 0..10 {
            assert!(put(&mut gather, &address, To::Group, 10));
        }
        gather.close_all();
        let left = gather.left(4, false);
        assert_eq!((left.frames, left.group_messages), (4, 4));
        assert_eq!(gather.group_messages(false), 6);
        assert_eq!(shapes(&gather, false).len(), 6);
        assert_eq!(gather.give_up(false), 1);
        assert_eq!(gather.left(5, false).frames, 5);
        assert!(gather.is_idle());
    }

    #[test]
    fn when_all_batches_wait_there_is_no_slot_until_one_leaves() {
        let (mut gather, address) = gather();
        let mut frames = 0;
        while put(&mut gather, &address, To::Group, 1472) {
            frames += 1;
        }
        assert_eq!(frames, BATCHES * (BATCH_BYTES / 1472));
        assert!(!put(&mut gather, &address, To::Node(1), 1));
        gather.left(1, true);
        assert!(put(&mut gather, &address, To::Node(1), 1));
    }

    #[test]
    fn more_destinations_than_batches_take_turns() {
        let (mut gather, address) = gather();
        for node in 0..BATCHES as u16 {
            assert!(put(&mut gather, &address, To::Node(node), 10));
        }
        assert!(!put(&mut gather, &address, To::Node(999), 10));
        gather.close_all();
        assert_eq!(gather.left(BATCHES, true).frames, BATCHES as u64);
        assert!(put(&mut gather, &address, To::Node(999), 10));
    }
}

//! The `memory` transport: bounded rings between nodes in one process, for tests, the simulator
//! and nodes that are threads.
//!
//! Touches only memory and its own locks.
//!
//! Invariants:
//! - No lock is held while `fill` or `each` runs, so a receiver may send from inside `recv`.
//! - Slots are made once; sending and receiving move them between lists and never allocate.
//! - Back pressure: a frame that no receiver had a slot for is refused (`false`). A group frame
//!   that some had a slot for is sent; the others count a `kernel_drops`, as a full receive buffer
//!   would.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::address_table::AddressTable;
use crate::{Link, Receive, ReceiveStats, Source, To, Transmit, TransmitStats};

/// Makes links that are joined in memory.
#[derive(Debug)]
pub struct Hub;

impl Hub {
    /// One [`Link`] per node, each with space for `slots` received frames of up to `mtu` bytes.
    ///
    /// Like any other transport, a link reaches the group at once and a node after
    /// [`Transmit::learn`]; the address of node `i` is `Source::Memory(i)`.
    #[must_use]
    #[expect(
        clippy::new_ret_no_self,
        reason = "the hub lives in the links it makes"
    )]
    pub fn new(nodes: u16, mtu: usize, slots: usize) -> Vec<Link> {
        let inboxes: Arc<[Inbox]> = (0..nodes).map(|_| Inbox::new(mtu, slots)).collect();
        (0..nodes)
            .map(|node| Link {
                tx: Box::new(Tx {
                    inboxes: Arc::clone(&inboxes),
                    node,
                    mtu,
                    addresses: AddressTable::new(),
                    reserved: Vec::with_capacity(usize::from(nodes)),
                    unread: vec![0; mtu].into_boxed_slice(),
                    stats: TransmitStats::default(),
                }),
                rx: Box::new(Rx {
                    inboxes: Arc::clone(&inboxes),
                    node,
                    taken: VecDeque::with_capacity(slots),
                    used: Vec::with_capacity(slots),
                    stats: ReceiveStats {
                        buffer_bytes: (slots * mtu) as u64,
                        ..ReceiveStats::default()
                    },
                }),
            })
            .collect()
    }
}

/// A received frame: who sent it, its length, and the slot that holds it.
type Frame = (u16, usize, Box<[u8]>);

/// What waits for one node.
struct Inbox {
    queue: Mutex<Queue>,
    arrived: Condvar,
}

struct Queue {
    free: Vec<Box<[u8]>>,
    full: VecDeque<Frame>,
    drops: u64,
    /// The receiving half is gone: frames for it vanish, as they do on a wire.
    closed: bool,
}

impl Inbox {
    fn new(mtu: usize, slots: usize) -> Self {
        Inbox {
            queue: Mutex::new(Queue {
                free: (0..slots)
                    .map(|_| vec![0; mtu].into_boxed_slice())
                    .collect(),
                full: VecDeque::with_capacity(slots),
                drops: 0,
                closed: false,
            }),
            arrived: Condvar::new(),
        }
    }

    /// A poisoned lock is taken all the same: no closure of a caller runs under it, so the lists
    /// are whole whatever happened to the other thread.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Tx {
    inboxes: Arc<[Inbox]>,
    node: u16,
    mtu: usize,
    addresses: AddressTable<u16>,
    /// Slots of the frame in hand, by the node they belong to; empty between calls.
    reserved: Vec<(u16, Box<[u8]>)>,
    /// The slot of a frame that no receiver is there for.
    unread: Box<[u8]>,
    stats: TransmitStats,
}

impl Tx {
    /// Takes one slot of each receiver of `to`; false if there are open receivers and all are full.
    fn reserve(&mut self, to: To) -> bool {
        let (first, last) = match to {
            To::Node(node) => match self.addresses.get(node) {
                Some(at) => (at, at),
                None => return false,
            },
            To::Group | To::All => (0, self.inboxes.len().saturating_sub(1) as u16),
        };
        let mut full = 0;
        for node in first..=last {
            if !matches!(to, To::Node(_)) && node == self.node {
                continue;
            }
            let mut queue = self.inboxes[usize::from(node)].lock();
            if queue.closed {
                continue;
            }
            match queue.free.pop() {
                Some(slot) => self.reserved.push((node, slot)),
                None => full += 1,
            }
        }
        if full > 0 && !self.reserved.is_empty() {
            self.count_drops(first, last);
        }
        full == 0 || !self.reserved.is_empty()
    }

    /// Some had a free slot and get the frame; the others lose it.
    fn count_drops(&self, first: u16, last: u16) {
        for node in (first..=last).filter(|&node| node != self.node) {
            if self.reserved.iter().all(|(holder, _)| *holder != node) {
                let mut queue = self.inboxes[usize::from(node)].lock();
                queue.drops += u64::from(!queue.closed);
            }
        }
    }
}

impl Transmit for Tx {
    fn mtu(&self) -> usize {
        self.mtu
    }

    fn send(&mut self, to: To, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> bool {
        if len > self.mtu {
            self.stats.too_long += 1;
            return false;
        }
        if let To::Node(node) = to
            && self.addresses.get(node).is_none()
        {
            self.stats.no_address += 1;
            return false;
        }
        if !self.reserve(to) {
            self.stats.no_slot += 1;
            return false;
        }
        match self.reserved.split_first_mut() {
            Some(((_, first), others)) => {
                fill(&mut first[..len]);
                for (_, slot) in others {
                    slot[..len].copy_from_slice(&first[..len]);
                }
            }
            None => fill(&mut self.unread[..len]),
        }
        for (node, slot) in self.reserved.drain(..) {
            let inbox = &self.inboxes[usize::from(node)];
            inbox.lock().full.push_back((self.node, len, slot));
            inbox.arrived.notify_one();
        }
        self.stats.frames += 1;
        self.stats.bytes += len as u64;
        true
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn learn(&mut self, node: u16, source: Source) {
        if let Source::Memory(at) = source
            && usize::from(at) < self.inboxes.len()
        {
            self.addresses.learn(node, at);
        }
    }

    fn knows(&self, node: u16) -> bool {
        self.addresses.get(node).is_some()
    }

    fn stats(&self) -> TransmitStats {
        self.stats
    }
}

struct Rx {
    inboxes: Arc<[Inbox]>,
    node: u16,
    /// Frames taken from the inbox, not lent yet.
    taken: VecDeque<Frame>,
    /// Slots lent, to be given back.
    used: Vec<Box<[u8]>>,
    stats: ReceiveStats,
}

impl Receive for Rx {
    fn recv(&mut self, max: usize, each: &mut dyn FnMut(Source, &[u8])) -> io::Result<usize> {
        let inbox = &self.inboxes[usize::from(self.node)];
        {
            let mut queue = inbox.lock();
            let count = max.min(queue.full.len());
            self.taken.extend(queue.full.drain(..count));
        }
        let mut count = 0;
        while let Some((from, len, slot)) = self.taken.pop_front() {
            each(Source::Memory(from), &slot[..len]);
            self.stats.frames += 1;
            self.stats.bytes += len as u64;
            self.used.push(slot);
            count += 1;
        }
        if count > 0 {
            inbox.lock().free.append(&mut self.used);
        }
        Ok(count)
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<bool> {
        let inbox = &self.inboxes[usize::from(self.node)];
        let (queue, _) = inbox
            .arrived
            .wait_timeout_while(inbox.lock(), timeout, |queue| queue.full.is_empty())
            .unwrap_or_else(PoisonError::into_inner);
        Ok(!queue.full.is_empty())
    }

    fn stats(&mut self) -> ReceiveStats {
        let drops = self.inboxes[usize::from(self.node)].lock().drops;
        ReceiveStats {
            kernel_drops: drops,
            ..self.stats
        }
    }
}

impl Drop for Rx {
    fn drop(&mut self) {
        let mut queue = self.inboxes[usize::from(self.node)].lock();
        queue.closed = true;
        queue.full.clear();
    }
}

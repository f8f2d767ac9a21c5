//! The ring of slots that datagrams arrive in.
//!
//! Touches its own slots.
//!
//! Invariants:
//! - A slot is with the device (posted), or lent to the caller, or waits to be posted again.
//! - What the device says of lengths is checked against the slot.
#![allow(unsafe_code)]

use std::io;
use std::ptr;

use super::device::check;
use super::ffi::{GRH_BYTES, RecvWr, Sge, WC_SUCCESS, Wc};
use super::queue::Queue;

/// Completions taken in one go.
const BATCH: usize = 64;

/// A received datagram, in its slot.
pub(super) struct Received<'a> {
    pub(super) wc: Wc,
    /// The routing header, or what stands in its place.
    pub(super) header: &'a [u8; GRH_BYTES],
    pub(super) payload: &'a [u8],
}

/// What came out of the completion queue.
pub(super) enum Next<'a> {
    /// Nothing now.
    Nothing,
    Datagram(Received<'a>),
    /// The device has given up on the queue, for this reason.
    Failed(u32),
}

/// Slots, their work requests, and the completions in hand.
pub(super) struct ReceiveRing {
    pub(super) queue: Queue,
    requests: Vec<RecvWr>,
    /// Their pieces, at the places that the requests point to.
    _pieces: Vec<Sge>,
    wcs: [Wc; BATCH],
    next: usize,
    taken: usize,
    /// Slots to be posted again.
    spent: Vec<usize>,
}

// SAFETY: the pointers inside requests lead to this ring's own vectors and memory.
unsafe impl Send for ReceiveRing {}

impl ReceiveRing {
    /// All slots are posted.
    pub(super) fn new(queue: Queue) -> io::Result<Self> {
        let (slots, key) = (queue.slots, queue.key());
        let piece = |index: usize| Sge {
            addr: queue.slot(index).addr() as u64,
            length: slots.bytes as u32,
            lkey: key,
        };
        let mut pieces: Vec<Sge> = (0..slots.count).map(piece).collect();
        let request = |(index, piece): (usize, &mut Sge)| RecvWr {
            wr_id: index as u64,
            next: ptr::null_mut(),
            sg_list: piece,
            num_sge: 1,
        };
        let mut ring = ReceiveRing {
            requests: pieces.iter_mut().enumerate().map(request).collect(),
            _pieces: pieces,
            wcs: [Wc::default(); BATCH],
            next: 0,
            taken: 0,
            spent: (0..slots.count).collect(),
            queue,
        };
        ring.post()?;
        Ok(ring)
    }

    /// Gives spent slots back to the device.
    pub(super) fn post(&mut self) -> io::Result<()> {
        let Some(&first) = self.spent.first() else {
            return Ok(());
        };
        let base = self.requests.as_mut_ptr();
        for (i, &slot) in self.spent.iter().enumerate() {
            let next = self.spent.get(i + 1);
            self.requests[slot].next =
                next.map_or(ptr::null_mut(), |&next| base.wrapping_add(next));
        }
        let (qp, mut bad) = (self.queue.qp, ptr::null_mut());
        // SAFETY: the queue pair is ours; the chain ends with a null pointer; the slots are not
        // lent (`&mut self`) and stay until the queue is dropped.
        check(unsafe {
            ((*(*qp).context).ops.post_recv)(qp, base.wrapping_add(first), &raw mut bad)
        })?;
        self.spent.clear();
        Ok(())
    }

    /// Whether a datagram is there; looks once.
    pub(super) fn is_ready(&mut self) -> io::Result<bool> {
        if self.next == self.taken {
            self.next = 0;
            self.taken = 0;
            self.taken = self.queue.poll(&mut self.wcs)?.len();
        }
        Ok(self.next < self.taken)
    }

    /// The next datagram. Its slot is spent with the next call.
    pub(super) fn next(&mut self) -> io::Result<Next<'_>> {
        if !self.is_ready()? {
            return Ok(Next::Nothing);
        }
        let wc = self.wcs[self.next];
        self.next += 1;
        if wc.status != WC_SUCCESS {
            return Ok(Next::Failed(wc.status));
        }
        let slot = wc.wr_id as usize;
        // On the list now, with the device only after the next `post`. That needs `&mut self`,
        // which the datagram that is lent below keeps from being called.
        self.spent.push(slot);
        let len = (wc.byte_len as usize).clamp(GRH_BYTES, self.queue.slots.bytes);
        // SAFETY: the device has completed the slot, which is inside the memory (`slot` checks), at
        // least `len` bytes long, and not posted again while the borrow of `self` lasts.
        let bytes = unsafe { std::slice::from_raw_parts(self.queue.slot(slot), len) };
        let Some((header, payload)) = bytes.split_first_chunk() else {
            return Ok(Next::Nothing);
        };
        Ok(Next::Datagram(Received {
            wc,
            header,
            payload,
        }))
    }

    /// Starts again after a failure: all slots are posted anew.
    pub(super) fn restart(&mut self) -> io::Result<()> {
        self.queue.restart()?;
        // The reset has dropped all requests, and with them what the completions in hand stand
        // for: every slot is ours again.
        (self.next, self.taken) = (0, 0);
        self.spent = (0..self.requests.len()).collect();
        self.post()
    }
}

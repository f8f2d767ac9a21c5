//! The ring of datagrams on their way out: slots that are filled in place and posted in chains.
//!
//! Touches its own slots, and passes on where lent memory lies.
//!
//! Invariants:
//! - Datagrams are numbered in the order they are filled. `done <= posted <= filled`, and at most
//!   all slots lie between `done` and `filled`; a slot is written only while it lies outside.
//! - The last of each chain asks for a completion, which stands for all before it.
#![allow(unsafe_code)]

use std::io;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::AtomicU32;

use super::device::check;
use super::ffi::{SEND_SIGNALED, SendWr, Sge, WC_SUCCESS, WR_SEND_WITH_IMM, Wc};
use super::queue::{Handle, Queue};

/// Where a datagram goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target {
    pub(super) handle: Handle,
    pub(super) qpn: u32,
}

/// Memory that datagrams may take their ends from.
#[derive(Debug, Clone, Copy)]
struct Lent {
    start: u64,
    words: usize,
    key: u32,
}

/// Slots, their work requests, and how far datagrams have got.
pub(super) struct SendRing {
    pub(super) queue: Queue,
    qkey: u32,
    requests: Vec<SendWr>,
    pieces: Vec<[Sge; 2]>,
    lent: Option<Lent>,
    filled: u64,
    posted: u64,
    done: u64,
}

// SAFETY: the pointers inside requests lead to this ring's own vectors and memory.
unsafe impl Send for SendRing {}

impl SendRing {
    /// `answer_to`: the number of the queue pair that answers should go to.
    pub(super) fn new(queue: Queue, qkey: u32, answer_to: u32) -> Self {
        let request = |index: usize| SendWr {
            wr_id: index as u64,
            next: ptr::null_mut(),
            sg_list: ptr::null_mut(),
            num_sge: 1,
            opcode: WR_SEND_WITH_IMM,
            send_flags: 0,
            imm_data: answer_to.to_be(),
            ah: ptr::null_mut(),
            remote_qpn: 0,
            remote_qkey: qkey,
            rest_of_wr: [0; 2],
            others: [0; 7],
        };
        let (count, key) = (queue.slots.count, queue.key());
        let piece = |index: usize| {
            let head = Sge {
                addr: queue.slot(index).addr() as u64,
                length: 0,
                lkey: key,
            };
            [head, Sge::default()]
        };
        let mut ring = SendRing {
            qkey,
            requests: (0..count).map(request).collect(),
            pieces: (0..count).map(piece).collect(),
            queue,
            lent: None,
            filled: 0,
            posted: 0,
            done: 0,
        };
        for (request, pieces) in ring.requests.iter_mut().zip(&mut ring.pieces) {
            request.sg_list = pieces.as_mut_ptr();
        }
        ring
    }

    /// Makes words known to the device, once.
    pub(super) fn lend(&mut self, words: &[AtomicU32]) -> io::Result<()> {
        let key = self.queue.lend(words)?;
        self.lent = Some(Lent {
            start: words.as_ptr().addr() as u64,
            words: words.len(),
            key,
        });
        Ok(())
    }

    /// Whether these words were lent.
    pub(super) fn has(&self, words: &Range<usize>) -> bool {
        let known = self.lent.map_or(0, |lent| lent.words);
        words.start <= words.end && words.end <= known
    }

    pub(super) fn is_free(&self) -> bool {
        self.filled - self.done < self.requests.len() as u64
    }

    /// Datagrams filled so far.
    pub(super) fn filled(&self) -> u64 {
        self.filled
    }

    /// Datagrams that the device has sent: it reads nothing for them any more.
    pub(super) fn done(&self) -> u64 {
        self.done
    }

    pub(super) fn waiting(&self) -> u64 {
        self.filled - self.posted
    }

    /// Fills the next slot: `len` bytes in place, and behind them the lent `words`, which the
    /// device reads when it sends. The slot must be free, the words lent.
    pub(super) fn put(
        &mut self,
        target: Target,
        len: usize,
        words: Option<Range<usize>>,
        fill: &mut dyn FnMut(&mut [u8]),
    ) {
        let index = (self.filled % self.requests.len() as u64) as usize;
        assert!(
            self.is_free() && len <= self.queue.slots.bytes,
            "no slot of {len} bytes"
        );
        // SAFETY: the slot is free, so neither the device nor other code here looks at it; it is
        // `slots.bytes` long and was zeroed by the kernel.
        fill(unsafe { std::slice::from_raw_parts_mut(self.queue.slot(index), len) });
        let pieces = &mut self.pieces[index];
        pieces[0].length = len as u32;
        let mut count = 1;
        if let Some((words, lent)) = words.zip(self.lent) {
            assert!(words.end <= lent.words, "words {words:?} were not lent");
            pieces[1] = Sge {
                addr: lent.start + 4 * words.start as u64,
                length: 4 * words.len() as u32,
                lkey: lent.key,
            };
            count = 2;
        }
        let request = &mut self.requests[index];
        request.wr_id = self.filled;
        request.num_sge = count;
        request.send_flags = 0;
        request.ah = target.handle.0;
        request.remote_qpn = target.qpn;
        request.remote_qkey = self.qkey;
        self.filled += 1;
    }

    /// Hands everything that was filled to the device.
    pub(super) fn post(&mut self) -> io::Result<()> {
        if self.waiting() == 0 {
            return Ok(());
        }
        let size = self.requests.len() as u64;
        let at = |number: u64| (number % size) as usize;
        let base = self.requests.as_mut_ptr();
        for number in self.posted..self.filled {
            let last = number + 1 == self.filled;
            let request = &mut self.requests[at(number)];
            // The next one lies in the same vector, which never moves.
            request.next = if last {
                ptr::null_mut()
            } else {
                base.wrapping_add(at(number + 1))
            };
            // A queue pair sends in order, so the completion of the last tells of all before it:
            // one completion to poll per chain instead of one per datagram.
            request.send_flags = if last { SEND_SIGNALED } else { 0 };
        }
        let (qp, mut bad) = (self.queue.qp, ptr::null_mut());
        let first = base.wrapping_add(at(self.posted));
        // SAFETY: the queue pair is ours; the chain from `first` on ends with a null pointer, and
        // slots, pieces and lent memory stay until the device is done with them.
        let result = check(unsafe { ((*(*qp).context).ops.post_send)(qp, first, &raw mut bad) });
        // After an error too: the device may have taken a part of the chain, so nothing of it is
        // posted again. What did not leave is counted by `restart`.
        self.posted = self.filled;
        result
    }

    /// Takes note of what the device has sent; if a datagram failed, its status: nothing that was
    /// filled after it will leave until [`restart`](Self::restart).
    pub(super) fn reap(&mut self) -> io::Result<Option<u32>> {
        let mut wcs = [Wc::default(); 16];
        loop {
            let took = self.queue.poll(&mut wcs)?;
            for wc in took {
                if wc.status != WC_SUCCESS {
                    self.done = self.done.max(wc.wr_id);
                    return Ok(Some(wc.status));
                }
                self.done = self.done.max(wc.wr_id + 1);
            }
            if took.len() < wcs.len() {
                return Ok(None);
            }
        }
    }

    /// Starts again after a failure; returns how many datagrams never left.
    pub(super) fn restart(&mut self) -> io::Result<u64> {
        self.queue.restart()?;
        let lost = self.filled - self.done;
        (self.done, self.posted) = (self.filled, self.filled);
        Ok(lost)
    }
}

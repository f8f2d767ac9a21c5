//! The rings that are shared with the kernel: a `TPACKET_V2` transmit ring of frames and a
//! `TPACKET_V3` receive ring of blocks.
//!
//! Touches the mapped memory only.
//!
//! Invariants:
//! - A status word says who owns a frame or block. User space reads or writes the rest only while
//!   the word says that it is the user's. The word is loaded with `Acquire` and stored with
//!   `Release`. Their partners are the kernel's barriers around its own accesses
//!   (`__packet_get_status`, `prb_close_block` in `net/packet/af_packet.c`).
//! - No reference to ring memory outlives the call it is made in. Everything the kernel wrote about
//!   offsets and lengths is checked against the block before it is used.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{tpacket_block_desc, tpacket2_hdr, tpacket3_hdr};
use memmap2::{MmapOptions, MmapRaw};
use socket2::Socket;

/// Where a frame of a `TPACKET_V2` transmit ring has its data: the header, aligned to 16
/// (`TPACKET2_HDRLEN - sizeof(struct sockaddr_ll)`).
pub(super) const TRANSMIT_DATA: usize = size_of::<tpacket2_hdr>().next_multiple_of(16);

/// Dimensions of a ring: `blocks` of `block_bytes`, each holding whole frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) block_bytes: usize,
    pub(super) blocks: usize,
    pub(super) frame_bytes: usize,
}

impl Layout {
    pub(super) fn frames_per_block(&self) -> usize {
        self.block_bytes / self.frame_bytes
    }

    pub(super) fn frames(&self) -> usize {
        self.frames_per_block() * self.blocks
    }

    pub(super) fn bytes(&self) -> usize {
        self.block_bytes * self.blocks
    }
}

fn map(socket: &Socket, layout: Layout) -> io::Result<MmapRaw> {
    MmapOptions::new()
        .len(layout.bytes())
        .populate()
        .map_raw(socket.as_raw_fd())
}

/// Who owns a frame of the transmit ring, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FrameState {
    /// Ours: free.
    Free,
    /// The kernel's: it has not looked at it yet.
    Waiting,
    /// The kernel's: on its way; the kernel still reads the memory.
    Sending,
    /// The kernel has refused it and has stopped there.
    Refused,
}

/// The transmit ring: filled frame by frame, read by the kernel in the same order.
pub(super) struct TransmitRing {
    memory: MmapRaw,
    layout: Layout,
    /// Where each frame begins: cheaper than two divisions per access.
    offsets: Vec<usize>,
}

impl TransmitRing {
    /// Maps the ring that was set up on the socket with the same layout.
    pub(super) fn map(socket: &Socket, layout: Layout) -> io::Result<Self> {
        let per_block = layout.frames_per_block();
        let offset = |index: usize| {
            index / per_block * layout.block_bytes + index % per_block * layout.frame_bytes
        };
        Ok(TransmitRing {
            memory: map(socket, layout)?,
            layout,
            offsets: (0..layout.frames()).map(offset).collect(),
        })
    }

    pub(super) fn frames(&self) -> usize {
        self.offsets.len()
    }

    /// The header of frame `index`.
    fn header(&self, index: usize) -> *mut tpacket2_hdr {
        // SAFETY: offsets are those of whole frames inside the mapping (an index beyond them
        // panics); frames are multiples of 16 bytes in page-aligned blocks, which aligns the
        // header.
        unsafe { self.memory.as_mut_ptr().add(self.offsets[index]).cast() }
    }

    fn status(&self, index: usize) -> &AtomicU32 {
        // SAFETY: the word is aligned, inside the mapping, lives as long as `self`, and is only
        // accessed atomically on this side. The kernel's accesses are those of another CPU.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.header(index)).tp_status) }
    }

    pub(super) fn state(&self, index: usize) -> FrameState {
        let status = self.status(index).load(Ordering::Acquire);
        match status {
            libc::TP_STATUS_AVAILABLE => FrameState::Free,
            _ if status & libc::TP_STATUS_WRONG_FORMAT != 0 => FrameState::Refused,
            _ if status & libc::TP_STATUS_SENDING != 0 => FrameState::Sending,
            _ => FrameState::Waiting,
        }
    }

    /// Lets `fill` write the `len` bytes of frame `index` and gives it to the kernel. False, and
    /// nothing is done, if the frame is the kernel's or `len` does not fit.
    pub(super) fn put(
        &mut self,
        index: usize,
        len: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> bool {
        let ours = matches!(self.state(index), FrameState::Free | FrameState::Refused);
        if !ours || TRANSMIT_DATA + len > self.layout.frame_bytes {
            return false;
        }
        let header = self.header(index);
        // SAFETY: the state says that the frame is ours, and `&mut self` that nothing else in this
        // process has it; `TRANSMIT_DATA + len` bytes lie inside the frame.
        let data =
            unsafe { std::slice::from_raw_parts_mut(header.cast::<u8>().add(TRANSMIT_DATA), len) };
        fill(data);
        // SAFETY: as above; plain integers of a header that is ours.
        unsafe {
            (*header).tp_len = len as u32;
            (*header).tp_snaplen = len as u32;
        }
        // Last, with Release: from this store on the frame is the kernel's. It may read at any
        // time, and must find the whole payload and both lengths.
        let status = libc::TP_STATUS_SEND_REQUEST;
        self.status(index).store(status, Ordering::Release);
        true
    }
}

/// Where reading a block has got to.
#[derive(Debug, Clone, Copy, Default)]
struct Cursor {
    block: usize,
    /// Frames left in the block.
    left: u32,
    /// Offset of the next one in the block.
    offset: usize,
}

/// A received frame, in the ring.
pub(super) struct Received<'a> {
    /// From the Ethernet header on.
    pub(super) bytes: &'a [u8],
    /// The frame was longer than this.
    pub(super) truncated: bool,
}

/// The receive ring: the kernel fills block after block, we read and give them back in order.
pub(super) struct ReceiveRing {
    memory: MmapRaw,
    layout: Layout,
    cursor: Cursor,
    /// Whether the block of the cursor is ours.
    held: bool,
}

impl ReceiveRing {
    /// Maps the ring that was set up on the socket with the same layout.
    pub(super) fn map(socket: &Socket, layout: Layout) -> io::Result<Self> {
        Ok(ReceiveRing {
            memory: map(socket, layout)?,
            layout,
            cursor: Cursor::default(),
            held: false,
        })
    }

    fn block(&self) -> *mut tpacket_block_desc {
        let at = self.cursor.block * self.layout.block_bytes;
        // SAFETY: `cursor.block` is kept below `layout.blocks`; blocks are page-aligned.
        unsafe { self.memory.as_mut_ptr().add(at).cast() }
    }

    fn status(&self) -> &AtomicU32 {
        // SAFETY: as for the transmit ring. `bh1` is the only member of the union `hdr`.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.block()).hdr.bh1.block_status) }
    }

    /// Whether a frame can be read now.
    pub(super) fn is_ready(&self) -> bool {
        self.held || self.status().load(Ordering::Acquire) & libc::TP_STATUS_USER != 0
    }

    /// Gives the block in hand back to the kernel if it was read to the end.
    pub(super) fn settle(&mut self) {
        if self.held && self.cursor.left == 0 {
            self.give_back();
        }
    }

    /// The next frame, if the kernel has handed over the block it is in.
    pub(super) fn next(&mut self) -> Option<Received<'_>> {
        self.settle();
        if !self.held && !self.take() {
            return None;
        }
        let Cursor { offset, left, .. } = self.cursor;
        let block_bytes = self.layout.block_bytes;
        if offset + size_of::<tpacket3_hdr>() > block_bytes || !offset.is_multiple_of(8) {
            // Never seen: the kernel contradicts itself. The rest of the block is given up.
            self.give_back();
            return None;
        }
        // SAFETY: the block is ours until `give_back`, which needs `&mut self`; the header lies
        // inside of it (checked) and is aligned (checked); plain integers.
        let (header, base) = unsafe {
            let base = self.block().cast::<u8>();
            (&*base.add(offset).cast::<tpacket3_hdr>(), base)
        };
        let start = offset + usize::from(header.tp_mac);
        let len = header.tp_snaplen as usize;
        self.cursor.left = left - 1;
        self.cursor.offset = offset + header.tp_next_offset as usize;
        if start + len > block_bytes {
            self.cursor.left = 0;
            return Some(Received {
                bytes: &[],
                truncated: true,
            });
        }
        Some(Received {
            // SAFETY: inside the block (checked), which is ours while the borrow of `self` lasts.
            bytes: unsafe { std::slice::from_raw_parts(base.add(start), len) },
            truncated: header.tp_snaplen < header.tp_len,
        })
    }

    /// Takes the block of the cursor, if the kernel has handed it over and it holds frames.
    fn take(&mut self) -> bool {
        loop {
            if self.status().load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
                return false;
            }
            self.held = true;
            // SAFETY: the block is ours; its description is plain integers.
            let (left, offset) = unsafe {
                let header = &(*self.block()).hdr.bh1;
                (header.num_pkts, header.offset_to_first_pkt as usize)
            };
            self.cursor.left = left;
            self.cursor.offset = offset;
            if left > 0 {
                return true;
            }
            self.give_back();
        }
    }

    fn give_back(&mut self) {
        // Release: all our reads of the block come before this store, after which the kernel may
        // fill it anew. It fills blocks in turn: the next one is the only one to look at.
        let status = libc::TP_STATUS_KERNEL;
        self.status().store(status, Ordering::Release);
        self.held = false;
        self.cursor.block = (self.cursor.block + 1) % self.layout.blocks;
    }
}

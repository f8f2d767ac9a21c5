//! The memory that is shared with the kernel: the UMEM, cut into chunks of one frame each, and the
//! fill, completion, rx and tx rings that pass chunks both ways. Touches the mapped memory only.
//!
//! Invariants:
//! - A chunk has one owner: a ring, the kernel, or the half of the transport that took it out of a
//!   ring. The halves own disjoint ranges of chunks.
//! - Descriptors are written before `producer` is stored (Release) and read after it was loaded
//!   (Acquire). Slots are used again after `consumer` was loaded (Acquire). The partners are the
//!   kernel's barriers in `net/xdp/xsk_queue.h`.
//! - No reference to the UMEM outlives the borrow it is made in. Addresses and lengths that the
//!   kernel wrote are checked before they are used.
#![allow(unsafe_code)]

use std::io;
use std::marker::PhantomData;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use libc::{xdp_desc, xdp_mmap_offsets, xdp_ring_offset, xdp_umem_reg};
use memmap2::{MmapMut, MmapOptions, MmapRaw};
use socket2::Socket;

/// Frames received before chunks go back to the kernel in the midst of a long `recv`.
const RELEASE_FRAMES: u32 = 64;

/// The frames of both halves: `tx_frames` chunks for sending, then `rx_frames` for receiving.
pub(super) struct Umem {
    memory: MmapRaw,
    chunk_bytes: usize,
    tx_frames: usize,
}

impl Umem {
    pub(super) fn map(tx_frames: usize, rx_frames: usize, chunk_bytes: usize) -> io::Result<Umem> {
        let memory = MmapMut::map_anon((tx_frames + rx_frames) * chunk_bytes)?;
        Ok(Umem {
            memory: memory.into(),
            chunk_bytes,
            tx_frames,
        })
    }

    /// What the kernel has to know to pin the memory.
    pub(super) fn registration(&self) -> xdp_umem_reg {
        xdp_umem_reg {
            addr: self.memory.as_mut_ptr().expose_provenance() as u64,
            len: self.memory.len() as u64,
            chunk_size: self.chunk_bytes as u32,
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.memory.len()
    }

    /// Where the chunk begins that holds `address`.
    fn chunk(&self, address: u64) -> u64 {
        address & !(self.chunk_bytes as u64 - 1)
    }

    /// Addresses of the chunks of one half.
    fn chunks(&self, transmit: bool) -> std::ops::Range<u64> {
        let between = (self.tx_frames * self.chunk_bytes) as u64;
        if transmit {
            0..between
        } else {
            between..self.memory.len() as u64
        }
    }
}

/// One mapped ring of `T`: `xdp_desc` or `u64`.
struct Ring<T> {
    memory: MmapRaw,
    producer: usize,
    consumer: usize,
    flags: usize,
    descs: usize,
    frames: u32,
    entries: PhantomData<T>,
}

impl<T: Copy> Ring<T> {
    fn map(socket: &Socket, page: u64, at: xdp_ring_offset, frames: usize) -> io::Result<Self> {
        let [producer, consumer, flags, descs] =
            [at.producer, at.consumer, at.flags, at.desc].map(|offset| offset as usize);
        let memory = MmapOptions::new()
            .offset(page)
            .len(descs + frames * size_of::<T>())
            .populate()
            .map_raw(socket.as_raw_fd())?;
        let words = [producer, consumer, flags];
        let sound = words.iter().all(|at| at + 4 <= descs && at % 4 == 0)
            && descs.is_multiple_of(align_of::<T>())
            && frames.is_power_of_two();
        if !sound {
            // Never seen: a kernel with another layout.
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(Ring {
            memory,
            producer,
            consumer,
            flags,
            descs,
            frames: frames as u32,
            entries: PhantomData,
        })
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: offsets of words are aligned and inside the mapping (checked in `map`), which
        // lives as long as `self`; on this side they are only accessed atomically.
        unsafe { AtomicU32::from_ptr(self.memory.as_mut_ptr().add(offset).cast()) }
    }

    fn slot(&self, index: u32) -> *mut T {
        let slot = (index & (self.frames - 1)) as usize;
        let start = self.memory.as_mut_ptr();
        // SAFETY: `slot` is below the number of entries that the mapping has behind `descs`, which
        // is aligned for them (checked in `map`).
        unsafe { start.add(self.descs).cast::<T>().add(slot) }
    }

    fn needs_wakeup(&self) -> bool {
        // The kernel sets the flag and then looks at the ring once more; we have written to the
        // ring and now look at the flag. Neither may be moved before the other.
        fence(Ordering::SeqCst);
        self.word(self.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

/// A ring that we write: tx or fill.
struct Producer<T> {
    ring: Ring<T>,
    /// Where the next entry goes; the kernel sees it after `publish`.
    head: u32,
}

impl<T: Copy> Producer<T> {
    fn new(ring: Ring<T>) -> Self {
        Producer { ring, head: 0 }
    }

    /// Entries that the kernel has not taken.
    fn waiting(&self) -> u32 {
        let taken = self.ring.word(self.ring.consumer).load(Ordering::Acquire);
        self.head.wrapping_sub(taken)
    }

    /// Writes an entry. A slot is always free: a chunk comes back to us only after the kernel has
    /// read its entry. (Its consumer index may follow later: `xsk_flush` submits frames before it
    /// moves that of the fill ring.)
    fn push(&mut self, entry: T) {
        // SAFETY: the kernel has read this slot and leaves it alone until `publish`; plain
        // integers.
        unsafe { self.ring.slot(self.head).write(entry) };
        self.head = self.head.wrapping_add(1);
    }

    fn publish(&mut self) {
        // Release: the entries are in the ring before the index that gives them to the kernel. One
        // store per batch: each moves the cache line of the index from one core to another.
        let producer = self.ring.word(self.ring.producer);
        producer.store(self.head, Ordering::Release);
    }
}

/// A ring that the kernel writes: rx or completion.
struct Consumer<T> {
    ring: Ring<T>,
    /// Where the next entry is read; the kernel sees it after `release`.
    tail: u32,
    /// The kernel's index when it was last loaded.
    seen: u32,
}

impl<T: Copy> Consumer<T> {
    fn new(ring: Ring<T>) -> Self {
        Consumer {
            ring,
            tail: 0,
            seen: 0,
        }
    }

    fn is_ready(&self) -> bool {
        self.tail != self.seen || self.tail != self.produced()
    }

    fn produced(&self) -> u32 {
        self.ring.word(self.ring.producer).load(Ordering::Acquire)
    }

    fn pop(&mut self) -> Option<T> {
        if self.tail == self.seen {
            // The kernel writes that index: it is loaded only when everything known of is read.
            self.seen = self.produced();
            if self.tail == self.seen {
                return None;
            }
        }
        // SAFETY: the kernel has written this entry (`seen` was loaded with `Acquire`) and leaves
        // it alone until `release`; plain integers.
        let entry = unsafe { self.ring.slot(self.tail).read() };
        self.tail = self.tail.wrapping_add(1);
        Some(entry)
    }

    fn release(&mut self) {
        let consumer = self.ring.word(self.ring.consumer);
        consumer.store(self.tail, Ordering::Release);
    }
}

/// The tx and completion rings, and the chunks that go through them.
pub(super) struct TransmitRings {
    umem: Arc<Umem>,
    tx: Producer<xdp_desc>,
    completion: Consumer<u64>,
    /// Chunks that are ours; the one used last is used first, while it is in the cache.
    free: Vec<u64>,
}

impl TransmitRings {
    /// Maps the rings that were set up on the socket with as many entries as the UMEM has for
    /// sending. Once per socket.
    pub(super) fn map(
        socket: &Socket,
        umem: &Arc<Umem>,
        offsets: &xdp_mmap_offsets,
    ) -> io::Result<Self> {
        let frames = umem.tx_frames;
        let tx = Ring::map(socket, libc::XDP_PGOFF_TX_RING as u64, offsets.tx, frames)?;
        let page = libc::XDP_UMEM_PGOFF_COMPLETION_RING;
        let completion = Ring::map(socket, page, offsets.cr, frames)?;
        Ok(TransmitRings {
            tx: Producer::new(tx),
            completion: Consumer::new(completion),
            free: umem.chunks(true).step_by(umem.chunk_bytes).collect(),
            umem: Arc::clone(umem),
        })
    }

    /// Chunks for sending, and their bytes.
    pub(super) fn size(&self) -> (usize, usize) {
        let frames = self.umem.tx_frames;
        (frames, frames * self.umem.chunk_bytes)
    }

    pub(super) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Lets `fill` write a frame of `len` bytes and puts it into the tx ring. False, and nothing is
    /// done, if no chunk is free or `len` is more than a chunk.
    pub(super) fn put(&mut self, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> bool {
        if len > self.umem.chunk_bytes {
            return false;
        }
        let Some(address) = self.free.pop() else {
            return false;
        };
        // SAFETY: addresses in `free` are those of whole chunks of this half inside the UMEM; one
        // that is there is not the kernel's, and `&mut self` says that it is not lent to anything
        // else.
        let frame = unsafe {
            let start = self.umem.memory.as_mut_ptr().add(address as usize);
            std::slice::from_raw_parts_mut(start, len)
        };
        fill(frame);
        self.tx.push(xdp_desc {
            addr: address,
            len: len as u32,
            options: 0,
        });
        true
    }

    /// Shows the kernel what was put.
    pub(super) fn publish(&mut self) {
        self.tx.publish();
    }

    /// Frames that the kernel has not looked at.
    pub(super) fn waiting(&self) -> u32 {
        self.tx.waiting()
    }

    /// Whether the kernel looks at the ring only when told to.
    pub(super) fn needs_wakeup(&self) -> bool {
        self.tx.ring.needs_wakeup()
    }

    /// Takes back the chunks whose frames have left.
    pub(super) fn reap(&mut self) {
        let chunks = self.umem.chunks(true);
        while let Some(address) = self.completion.pop() {
            let chunk = self.umem.chunk(address);
            // Never false, unless the kernel contradicts itself.
            if chunks.contains(&chunk) && self.free.len() < self.umem.tx_frames {
                self.free.push(chunk);
            }
        }
        self.completion.release();
    }
}

/// The rx and fill rings, and the chunks that go through them.
pub(super) struct ReceiveRings {
    umem: Arc<Umem>,
    rx: Consumer<xdp_desc>,
    fill: Producer<u64>,
    /// The chunk that was lent last.
    lent: Option<u64>,
    /// Frames taken since the kernel was told.
    taken: u32,
}

impl ReceiveRings {
    /// Maps the rings that were set up on the socket with as many entries as the UMEM has for
    /// receiving, and hands all of them to the kernel. Once per socket.
    pub(super) fn map(
        socket: &Socket,
        umem: &Arc<Umem>,
        offsets: &xdp_mmap_offsets,
        frames: usize,
    ) -> io::Result<Self> {
        let rx = Ring::map(socket, libc::XDP_PGOFF_RX_RING as u64, offsets.rx, frames)?;
        let page = libc::XDP_UMEM_PGOFF_FILL_RING;
        let mut fill = Producer::new(Ring::map(socket, page, offsets.fr, frames)?);
        for chunk in umem.chunks(false).step_by(umem.chunk_bytes) {
            fill.push(chunk);
        }
        fill.publish();
        Ok(ReceiveRings {
            umem: Arc::clone(umem),
            rx: Consumer::new(rx),
            fill,
            lent: None,
            taken: 0,
        })
    }

    /// Whether a frame can be read now.
    pub(super) fn is_ready(&self) -> bool {
        self.rx.is_ready()
    }

    /// The next frame, from its Ethernet header on. The one before goes back to the kernel.
    pub(super) fn next(&mut self) -> Option<&[u8]> {
        if let Some(chunk) = self.lent.take() {
            self.fill.push(chunk);
            self.taken += 1;
            if self.taken >= RELEASE_FRAMES {
                self.settle();
            }
        }
        let desc = self.rx.pop()?;
        let chunks = self.umem.chunks(false);
        let chunk = self.umem.chunk(desc.addr);
        let end = chunk + self.umem.chunk_bytes as u64;
        if !chunks.contains(&chunk) || desc.addr + u64::from(desc.len) > end {
            // Never seen: the kernel contradicts itself. The frame counts as cut off.
            return Some(&[]);
        }
        self.lent = Some(chunk);
        // SAFETY: inside one chunk of this half (checked), which the kernel has handed over and
        // gets back with the next call, which needs `&mut self`.
        Some(unsafe {
            let start = self.umem.memory.as_ptr().add(desc.addr as usize);
            std::slice::from_raw_parts(start, desc.len as usize)
        })
    }

    /// Gives everything that was read back to the kernel.
    pub(super) fn settle(&mut self) {
        if let Some(chunk) = self.lent.take() {
            self.fill.push(chunk);
            self.taken += 1;
        }
        if self.taken > 0 {
            self.taken = 0;
            // Slots of the rx ring first, chunks second: the rings are as long as there are chunks,
            // so each chunk in the fill ring has a slot to come back through. The other way round
            // the kernel could fill a chunk, find the rx ring full and drop the frame.
            self.rx.release();
            self.fill.publish();
        }
    }

    /// Whether the driver looks at the fill ring only when told to.
    pub(super) fn needs_wakeup(&self) -> bool {
        self.fill.ring.needs_wakeup()
    }
}

//! The sending half: gathers frames and hands batches to the kernel.
//!
//! Invariants: never blocks; a frame that had a slot is either with the kernel, waiting, or counted
//! as `dropped`.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use socket2::{SockAddr, Socket};

use super::gso::{Gather, Left};
use super::socket::Sockets;
use super::sys;
use super::targets::Targets;
use crate::{Source, To, Transmit, TransmitStats, Way};

pub(super) struct Tx {
    socket: Arc<Socket>,
    group: SockAddr,
    gather: Gather,
    targets: Targets,
    /// A frame of which copies go, and those that have no batch with room.
    copied: Vec<u8>,
    lacking: Vec<To>,
    mtu: usize,
    segmentation: bool,
    echoes: Arc<AtomicU64>,
    /// A lasting failure; `flush` returns it.
    fatal: Option<io::Error>,
    /// Errors that were logged already.
    told: Vec<i32>,
    stats: TransmitStats,
}

/// What to do about an error of `sendmmsg`.
enum Remedy {
    /// The kernel's buffers are full: later.
    Wait,
    /// At once again.
    Retry,
    /// Without segmentation offload.
    Plain,
    /// Not these frames: the destination or the link is not there.
    GiveUp,
    /// Nothing helps.
    Fatal,
}

impl Tx {
    pub(super) fn new(sockets: &Sockets) -> Self {
        let group = SockAddr::from(sockets.group_address);
        Tx {
            socket: Arc::clone(&sockets.node),
            gather: Gather::new(&group),
            group,
            targets: Targets::new(sockets.own_address, sockets.seeds.clone()),
            copied: Vec::new(),
            lacking: Vec::new(),
            mtu: sockets.payload_max,
            segmentation: sockets.segmentation,
            echoes: Arc::clone(&sockets.echoes),
            fatal: None,
            told: Vec::new(),
            stats: TransmitStats {
                buffer_bytes: sockets.send_bytes as u64,
                ..TransmitStats::default()
            },
        }
    }

    /// Hands over what is ready, as far as the kernel takes it now.
    fn submit(&mut self) {
        while !self.gather.is_idle() {
            self.stats.calls += 1;
            // The kernel may have dropped an echo before the call returns: it has to be known by
            // then, or the receiving half would take it for a loss. Relaxed: no other memory
            // depends on it.
            let announced = self.gather.group_messages(self.segmentation);
            self.echoes.fetch_add(announced, Ordering::Relaxed);
            let result = sys::send(&self.socket, self.gather.messages(self.segmentation));
            let left = match result {
                Ok(count) => self.gather.left(count, self.segmentation),
                Err(_) => Left::default(),
            };
            let unsent = announced - left.group_messages;
            self.echoes.fetch_sub(unsent, Ordering::Relaxed);
            match result {
                Ok(_) => {}
                Err(error) => match self.remedy(&error) {
                    Remedy::Wait => return,
                    Remedy::Retry => {}
                    Remedy::Plain => {
                        log::warn!("udp: segmentation offload refused ({error}): going on without");
                        self.segmentation = false;
                    }
                    Remedy::GiveUp => {
                        self.tell(&error);
                        self.stats.errors += 1;
                        self.stats.dropped += self.gather.give_up(self.segmentation);
                    }
                    Remedy::Fatal => {
                        self.stats.errors += 1;
                        self.stats.dropped += self.gather.give_up(self.segmentation);
                        self.fatal = Some(error);
                        return;
                    }
                },
            }
        }
    }

    fn remedy(&self, error: &io::Error) -> Remedy {
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => Remedy::Wait,
            Some(libc::EINTR) => Remedy::Retry,
            // The interface has no checksum offload, or a smaller MTU than it had.
            Some(libc::EIO | libc::EINVAL | libc::EMSGSIZE) if self.segmentation => Remedy::Plain,
            Some(libc::EBADF | libc::ENOTSOCK | libc::EFAULT | libc::ENODEV | libc::ENXIO) => {
                Remedy::Fatal
            }
            _ => Remedy::GiveUp,
        }
    }

    /// Logs each kind of error once.
    fn tell(&mut self, error: &io::Error) {
        let code = error.raw_os_error().unwrap_or(0);
        if !self.told.contains(&code) {
            self.told.push(code);
            log::warn!("udp: the kernel refuses to send: {error} (counted; logged once)");
        }
    }

    fn address(&self, to: To) -> Option<SockAddr> {
        match to {
            To::Group | To::All => Some(self.group.clone()),
            To::Node(node) => self.targets.address(node).map(SockAddr::from),
        }
    }

    /// Opens a batch for `to`; says in the statistics why not.
    fn open_batch(&mut self, to: To, len: usize) -> bool {
        let Some(address) = self.address(to) else {
            self.stats.no_address += 1;
            return false;
        };
        self.submit();
        if self.gather.open(to, &address, len) {
            return true;
        }
        self.gather.close_all();
        self.submit();
        let opened = self.gather.open(to, &address, len);
        self.stats.no_slot += u64::from(!opened);
        opened
    }

    /// Sends a frame to the group as several datagrams: all of them have a slot, or none.
    fn send_copies(&mut self, to: To, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> bool {
        if !self.make_room(to, len) {
            self.stats.no_slot += 1;
            return false;
        }
        let mut frame = std::mem::take(&mut self.copied);
        frame.resize(len, 0);
        fill(&mut frame);
        let mut full = false;
        for target in self.targets.of(to) {
            self.stats.frames += 1;
            self.stats.bytes += len as u64;
            full |= self
                .gather
                .append(*target, len, &mut |slot| slot.copy_from_slice(&frame));
        }
        if to == To::All {
            self.send_to_seeds(&frame);
        }
        self.copied = frame;
        if full {
            self.submit();
        }
        true
    }

    /// Opens a batch for each datagram of a frame to `to` that has none with room.
    fn make_room(&mut self, to: To, len: usize) -> bool {
        self.gather.grow(self.targets.of(to).len());
        let mut lacking = std::mem::take(&mut self.lacking);
        let fill = |lacking: &mut Vec<To>, tx: &mut Self| {
            lacking.clear();
            let targets = tx.targets.of(to).iter().copied();
            lacking.extend(targets.filter(|target| !tx.gather.fits(*target, len)));
            lacking.len() <= tx.gather.free()
        };
        let mut fits = fill(&mut lacking, self);
        if !fits {
            self.gather.close_all();
            self.submit();
            fits = fill(&mut lacking, self);
        }
        let mut open = |target: &To| {
            let address = self.address(*target);
            address.is_some_and(|address| self.gather.open(*target, &address, len))
        };
        let opened = fits && lacking.iter().all(&mut open);
        self.lacking = lacking;
        opened
    }

    /// No node may be there, so a failure is nothing to tell of.
    fn send_to_seeds(&mut self, frame: &[u8]) {
        for seed in self.targets.seeds() {
            let sent = self.socket.send_to(frame, &SockAddr::from(*seed));
            self.stats.calls += 1;
            self.stats.errors += u64::from(sent.is_err());
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
        let plain = match to {
            To::Node(_) => true,
            To::Group => self.targets.is_plain(),
            To::All => false,
        };
        if !plain {
            return self.send_copies(to, len, fill);
        }
        if !self.gather.fits(to, len) && !self.open_batch(to, len) {
            return false;
        }
        self.stats.frames += 1;
        self.stats.bytes += len as u64;
        if self.gather.append(to, len, fill) {
            self.submit();
        }
        true
    }

    fn flush(&mut self) -> io::Result<()> {
        self.gather.close_all();
        self.submit();
        self.fatal.take().map_or(Ok(()), Err)
    }

    fn flush_old(&mut self) -> io::Result<()> {
        self.gather.close_old();
        self.submit();
        self.fatal.take().map_or(Ok(()), Err)
    }

    fn learn(&mut self, node: u16, source: Source) {
        if let Source::Socket(address) | Source::Multicast(address) = source
            && self.targets.learn(node, address)
        {
            // What was written for the old address leaves for it.
            self.gather.close(To::Node(node));
        }
    }

    fn set_way(&mut self, node: u16, way: Way) {
        self.targets.set_way(node, way);
    }

    fn forget(&mut self, node: u16) {
        self.gather.close(To::Node(node));
        self.targets.forget(node);
    }

    fn copies(&self, to: To) -> usize {
        match to {
            To::Node(_) => 1,
            to => self.targets.of(to).len().max(1),
        }
    }

    fn knows(&self, node: u16) -> bool {
        self.targets.address(node).is_some()
    }

    fn stats(&self) -> TransmitStats {
        self.stats
    }
}

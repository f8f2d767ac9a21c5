//! The receiving half: takes messages from both sockets and lends the frames in them.
//!
//! Invariants: never blocks in `recv`; a message is lent where the kernel wrote it; sockets take
//! turns, so that neither positions nor deltas starve.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use socket2::Socket;

use super::skew::{SKEW_BYTES, Skew};
use super::socket::Sockets;
use super::sys::{self, Incoming, Slots};
use crate::syscalls::{poll, readable};
use crate::{Receive, ReceiveStats, Source};

/// Messages per system call when each may hold some forty frames: half a megabyte, which stays in
/// the second-level cache.
const JOINED_MESSAGES: usize = 8;
/// Longest joined message: what an IP packet can carry.
const JOINED_BYTES: usize = 65_536;
/// Shortest buffer for single frames: others may use jumbo frames where this node does not.
const SINGLE_BYTES_MIN: usize = 9216;
/// Added to each buffer, so that their beginnings do not fall into the same cache sets.
const APART_BYTES: usize = 192;

pub(super) struct Rx {
    node: Arc<Socket>,
    group: Socket,
    /// Whether the group socket is next.
    group_next: bool,
    buffer: Vec<u8>,
    /// Where the first message begins in the buffer.
    origin: usize,
    skew: Skew,
    /// Distance of messages in the buffer, and space for each.
    layout: (usize, usize),
    slots: Slots,
    incoming: Vec<Incoming>,
    /// Whether the messages came by multicast.
    by_group: bool,
    /// The message to lend from, and how much of it was lent.
    message: usize,
    offset: usize,
    drops: [DropCounter; 2],
    echoes: Arc<AtomicU64>,
    has_echo: bool,
    stats: ReceiveStats,
}

/// Continues the 32-bit count of the kernel.
#[derive(Default)]
struct DropCounter {
    last: u32,
    total: u64,
}

impl DropCounter {
    fn update(&mut self, socket: &Socket) -> u64 {
        if let Ok(now) = sys::drops(socket) {
            self.total += u64::from(now.wrapping_sub(self.last));
            self.last = now;
        }
        self.total
    }
}

impl Rx {
    pub(super) fn new(sockets: Sockets) -> Self {
        let (messages, size) = if sockets.segmentation {
            (JOINED_MESSAGES, JOINED_BYTES)
        } else {
            (sys::MESSAGES_MAX, sockets.payload_max.max(SINGLE_BYTES_MIN))
        };
        let stride = size + APART_BYTES;
        Rx {
            node: sockets.node,
            group: sockets.group,
            group_next: true,
            buffer: vec![0; messages * stride + SKEW_BYTES],
            origin: 0,
            skew: Skew::default(),
            layout: (stride, size),
            slots: Slots::new(messages),
            incoming: Vec::with_capacity(messages),
            by_group: false,
            message: 0,
            offset: 0,
            drops: [DropCounter::default(), DropCounter::default()],
            echoes: sockets.echoes,
            has_echo: sockets.has_echo,
            stats: ReceiveStats {
                buffer_bytes: sockets.receive_bytes as u64,
                ..ReceiveStats::default()
            },
        }
    }

    /// Takes messages from the next socket; false if that has no more for now.
    fn refill(&mut self) -> io::Result<bool> {
        let socket = if self.group_next {
            &self.group
        } else {
            &self.node
        };
        self.by_group = self.group_next;
        self.message = 0;
        self.offset = 0;
        self.stats.calls += 1;
        let room = self.buffer.len() - SKEW_BYTES;
        let wanted = room / self.layout.0;
        self.origin = self.skew.advance();
        let buffer = &mut self.buffer[self.origin..][..room];
        let (slots, incoming) = (&mut self.slots, &mut self.incoming);
        match sys::receive(socket, buffer, self.layout, slots, incoming) {
            Ok(count) => Ok(count == wanted),
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN) => Ok(false),
                Some(libc::EINTR) => Ok(true),
                Some(libc::EBADF | libc::ENOTSOCK | libc::EFAULT | libc::EINVAL) => Err(error),
                _ => {
                    self.stats.errors += 1;
                    Ok(false)
                }
            },
        }
    }

    /// Lends frames of the messages at hand, up to `max`.
    fn lend(&mut self, max: usize, each: &mut dyn FnMut(Source, &[u8])) -> usize {
        let mut count = 0;
        while let Some(message) = self.incoming.get(self.message) {
            if message.truncated {
                self.stats.truncated += 1;
                self.message += 1;
                continue;
            }
            let start = self.origin + message.index * self.layout.0;
            let bytes = &self.buffer[start..start + message.len];
            let source = if self.by_group {
                Source::Multicast(message.from)
            } else {
                Source::Socket(message.from)
            };
            loop {
                if count == max {
                    return count;
                }
                let end = (self.offset + message.segment).min(message.len);
                let frame = &bytes[self.offset..end];
                self.offset = end;
                count += 1;
                self.stats.frames += 1;
                self.stats.bytes += frame.len() as u64;
                let last = end == message.len;
                if last {
                    self.message += 1;
                    self.offset = 0;
                }
                each(source, frame);
                if last {
                    break;
                }
            }
        }
        count
    }
}

impl Receive for Rx {
    fn recv(&mut self, max: usize, each: &mut dyn FnMut(Source, &[u8])) -> io::Result<usize> {
        let mut count = self.lend(max, each);
        // A socket that gave less than it was asked for is left alone until the next call.
        let mut more = [true, true];
        while count < max && more != [false, false] {
            let turn = usize::from(self.group_next);
            if more[turn] {
                more[turn] = self.refill()?;
                count += self.lend(max - count, each);
            }
            self.group_next = !self.group_next;
        }
        Ok(count)
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<bool> {
        if self.message < self.incoming.len() {
            return Ok(true);
        }
        let start = Instant::now();
        loop {
            let left = timeout.saturating_sub(start.elapsed());
            let (ready, failed) = poll(&mut [readable(&self.group), readable(&self.node)], left)?;
            if ready {
                return Ok(true);
            }
            if failed {
                // Taking the error is what ends the condition.
                let taken = [self.group.take_error()?, self.node.take_error()?];
                self.stats.errors += taken.iter().flatten().count() as u64;
            }
            if start.elapsed() >= timeout {
                return Ok(false);
            }
        }
    }

    fn stats(&mut self) -> ReceiveStats {
        let [group, node] = &mut self.drops;
        // The drops first: an echo among them was announced before. Relaxed: no memory depends on
        // it.
        let mut group = group.update(&self.group);
        if self.has_echo {
            group = group.saturating_sub(self.echoes.load(Ordering::Relaxed));
        }
        ReceiveStats {
            kernel_drops: group + node.update(&self.node),
            ..self.stats
        }
    }
}

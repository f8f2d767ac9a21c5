//! The receiving half: lends frames out of the UMEM, queue after queue.
//!
//! Invariants: never blocks in `recv`; a frame is lent where the kernel put it; its chunk goes back
//! to the fill ring as soon as it was read.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::pollfd;
use socket2::Socket;

use super::program::Program;
use super::ring::ReceiveRings;
use super::{AfXdpConfig, sys};
use crate::ethernet::{Filter, Port, Verdict};
use crate::syscalls::{poll, readable};
use crate::{Receive, ReceiveStats, Source};

/// Longest sleep before looking whether the interface is still there: poll(2) does not tell.
const LOOK: Duration = Duration::from_secs(1);

/// One queue of the interface.
pub(super) struct Queue {
    rings: ReceiveRings,
    socket: Arc<Socket>,
}

impl Queue {
    pub(super) fn new(socket: Arc<Socket>, rings: ReceiveRings) -> Self {
        Queue { rings, socket }
    }
}

pub(super) struct Rx {
    /// Goes first: nothing is steered to a socket that is being closed.
    _program: Program,
    queues: Vec<Queue>,
    /// For poll(2), in the order of `queues`.
    fds: Vec<pollfd>,
    /// The queue that is read first next time: none starves.
    turn: usize,
    filter: Filter,
    /// Keeps the interface in the group.
    _membership: Socket,
    stats: ReceiveStats,
}

impl Rx {
    pub(super) fn new(
        queues: Vec<Queue>,
        program: Program,
        membership: Socket,
        config: &AfXdpConfig,
        port: &Port,
        bytes: usize,
    ) -> Self {
        Rx {
            _program: program,
            fds: queues.iter().map(|queue| readable(&queue.socket)).collect(),
            queues,
            turn: 0,
            filter: Filter {
                group: config.group,
                mac: port.mac,
            },
            _membership: membership,
            stats: ReceiveStats {
                buffer_bytes: bytes as u64,
                ..ReceiveStats::default()
            },
        }
    }

    fn is_ready(&self) -> bool {
        self.queues.iter().any(|queue| queue.rings.is_ready())
    }

    /// Sockets get an error only when their interface goes for good.
    fn take_error(&mut self) -> io::Result<()> {
        for queue in &self.queues {
            if let Some(error) = queue.socket.take_error()? {
                self.stats.errors += 1;
                return Err(error);
            }
        }
        Ok(())
    }
}

/// Lends up to `max` frames of one queue.
fn receive(
    queue: &mut Queue,
    filter: Filter,
    stats: &mut ReceiveStats,
    max: usize,
    each: &mut dyn FnMut(Source, &[u8]),
) -> usize {
    let mut count = 0;
    while count < max
        && let Some(frame) = queue.rings.next()
    {
        match filter.judge(frame) {
            Verdict::Ours(from, payload) => {
                count += 1;
                stats.frames += 1;
                stats.bytes += payload.len() as u64;
                each(Source::Mac(from), payload);
            }
            Verdict::NotOurs => stats.not_ours += 1,
            Verdict::Truncated => stats.truncated += 1,
        }
    }
    queue.rings.settle();
    if queue.rings.needs_wakeup() {
        stats.calls += 1;
        sys::wake(&queue.socket);
    }
    count
}

impl Receive for Rx {
    fn recv(&mut self, max: usize, each: &mut dyn FnMut(Source, &[u8])) -> io::Result<usize> {
        let mut count = 0;
        for _ in 0..self.queues.len() {
            if count == max {
                break;
            }
            let queue = &mut self.queues[self.turn];
            count += receive(queue, self.filter, &mut self.stats, max - count, each);
            self.turn += 1;
            if self.turn == self.queues.len() {
                self.turn = 0;
            }
        }
        Ok(count)
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<bool> {
        let start = Instant::now();
        loop {
            if self.is_ready() {
                return Ok(true);
            }
            let left = timeout.saturating_sub(start.elapsed());
            self.stats.calls += 1;
            let (woken, failed) = poll(&mut self.fds, left.min(LOOK))?;
            if woken && self.is_ready() {
                return Ok(true);
            }
            if failed || !woken {
                self.take_error()?;
            }
            if start.elapsed() >= timeout {
                return Ok(false);
            }
        }
    }

    fn stats(&mut self) -> ReceiveStats {
        let mut stats = ReceiveStats {
            kernel_drops: 0,
            rx_ring_full: 0,
            fill_ring_empty: 0,
            ..self.stats
        };
        for queue in &self.queues {
            if let Ok(kernel) = sys::statistics(&queue.socket) {
                stats.kernel_drops += kernel.rx_dropped + kernel.rx_ring_full;
                stats.rx_ring_full += kernel.rx_ring_full;
                stats.fill_ring_empty += kernel.rx_fill_ring_empty_descs;
            }
        }
        stats
    }
}

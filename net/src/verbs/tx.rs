//! The sending half: fills slots in place and posts them in chains.
//!
//! Invariants: never blocks, but for the kernel's look for a neighbour when an address is learnt
//! that it does not know. A datagram that had a slot is sent, waits, or is counted as `dropped`.

use std::io;
use std::ops::Range;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

use super::ffi::{Gid, MULTICAST_QPN};
use super::queue::Handle;
use super::send_ring::{SendRing, Target};
use crate::address_table::AddressTable;
use crate::{FillLent, Source, To, Transmit, TransmitStats};

/// Datagrams handed to the device in one go.
const CHAIN: u64 = 64;
/// A queue pair that failed is started again at most this often.
const RESTART_EVERY: Duration = Duration::from_millis(10);

/// Where a node is: its port (and local identifier, InfiniBand) and its queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    gid: Gid,
    lid: u16,
    qpn: u32,
}

pub(super) struct Tx {
    ring: SendRing,
    device: String,
    gid_index: u8,
    mtu: usize,
    group: Target,
    addresses: AddressTable<Place>,
    targets: Vec<Option<Target>>,
    ways: Vec<(Gid, u16, Handle)>,
    /// The queue pair has failed, and was last started again then.
    failed: Option<Instant>,
    fatal: Option<io::Error>,
    stats: TransmitStats,
}

impl Tx {
    pub(super) fn new(
        ring: SendRing,
        group: Handle,
        device: String,
        gid_index: u8,
        mtu: usize,
    ) -> Self {
        let slots = ring.queue.slots;
        Tx {
            ring,
            device,
            gid_index,
            mtu,
            group: Target {
                handle: group,
                qpn: MULTICAST_QPN,
            },
            addresses: AddressTable::new(),
            targets: Vec::new(),
            ways: Vec::new(),
            failed: None,
            fatal: None,
            stats: TransmitStats {
                buffer_bytes: (slots.count * slots.bytes) as u64,
                ..TransmitStats::default()
            },
        }
    }

    fn target(&mut self, to: To) -> Option<Target> {
        match to {
            To::Group | To::All => Some(self.group),
            To::Node(node) => {
                let known = self.targets.get(usize::from(node)).copied().flatten();
                self.stats.no_address += u64::from(known.is_none());
                known
            }
        }
    }

    /// Hands over what was filled and takes note of what is done.
    fn turn(&mut self) {
        if self.failed.is_some() && !self.restart() {
            return;
        }
        if self.ring.waiting() > 0 {
            self.stats.calls += 1;
            if let Err(error) = self.ring.post() {
                self.fail(&error.to_string());
                return;
            }
        }
        self.reap();
    }

    fn reap(&mut self) {
        match self.ring.reap() {
            Ok(None) => {}
            Ok(Some(status)) => {
                let why = self.ring.queue.status(status);
                self.fail(&why);
            }
            Err(error) => self.fatal = Some(error),
        }
    }

    fn fail(&mut self, why: &str) {
        if self.stats.errors == 0 {
            log::warn!(
                "verbs: `{}` cannot send for now: {why} (counted; logged once)",
                self.device
            );
        }
        self.stats.errors += 1;
        self.failed = Some(Instant::now());
    }

    /// Starts a failed queue pair again, not too often; true if it works again.
    fn restart(&mut self) -> bool {
        if self.failed.is_none_or(|at| at.elapsed() < RESTART_EVERY) {
            return false;
        }
        self.failed = Some(Instant::now());
        match self.ring.restart() {
            Ok(lost) => {
                self.stats.dropped += lost;
                self.failed = None;
                true
            }
            Err(error) => {
                self.stats.errors += 1;
                if matches!(error.raw_os_error(), Some(libc::ENODEV | libc::EIO)) {
                    self.fatal = Some(error);
                }
                false
            }
        }
    }

    /// A free slot for `len` bytes to `to`; says in the statistics why not.
    fn ready(&mut self, to: To, len: usize) -> Option<Target> {
        if len > self.mtu {
            self.stats.too_long += 1;
            return None;
        }
        let target = self.target(to)?;
        if self.failed.is_some() || !self.ring.is_free() {
            self.turn();
        }
        if self.failed.is_some() || !self.ring.is_free() {
            self.stats.no_slot += 1;
            return None;
        }
        Some(target)
    }

    fn filled(&mut self, len: usize) {
        self.stats.frames += 1;
        self.stats.bytes += len as u64;
        if self.ring.waiting() >= CHAIN {
            self.turn();
        }
    }

    fn way(&mut self, gid: Gid, lid: u16) -> io::Result<Handle> {
        let known = self.ways.iter().find(|(g, l, _)| (*g, *l) == (gid, lid));
        if let Some((_, _, handle)) = known {
            return Ok(*handle);
        }
        let handle = self.ring.queue.handle(gid, lid, self.gid_index)?;
        self.ways.push((gid, lid, handle));
        Ok(handle)
    }
}

impl Transmit for Tx {
    fn mtu(&self) -> usize {
        self.mtu
    }

    fn send(&mut self, to: To, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> bool {
        let Some(target) = self.ready(to, len) else {
            return false;
        };
        self.ring.put(target, len, None, fill);
        self.filled(len);
        true
    }

    fn flush(&mut self) -> io::Result<()> {
        self.turn();
        self.fatal.take().map_or(Ok(()), Err)
    }

    fn learn(&mut self, node: u16, source: Source) {
        let Source::Queue { gid, lid, qpn } = source else {
            return;
        };
        let place = Place {
            gid: Gid(gid),
            lid,
            qpn,
        };
        if self.addresses.get(node) == Some(place) {
            return;
        }
        match self.way(place.gid, lid) {
            Ok(handle) => {
                self.addresses.learn(node, place);
                let index = usize::from(node);
                if self.targets.len() <= index {
                    self.targets.resize(index + 1, None);
                }
                self.targets[index] = Some(Target { handle, qpn });
            }
            // The next frame of the node tries again.
            Err(error) => {
                log::debug!("verbs: no way to node {node} at {source}: {error}");
                self.stats.errors += 1;
            }
        }
    }

    fn knows(&self, node: u16) -> bool {
        self.addresses.get(node).is_some()
    }

    fn stats(&self) -> TransmitStats {
        self.stats
    }

    fn lend(&mut self, words: &[AtomicU32]) -> io::Result<bool> {
        self.ring.lend(words).map(|()| true)
    }

    fn send_lent(
        &mut self,
        to: To,
        head_len: usize,
        words: Range<usize>,
        fill: &mut FillLent<'_>,
    ) -> Option<u64> {
        let len = head_len.saturating_add(words.len().saturating_mul(4));
        let target = self.ready(to, len)?;
        if self.ring.has(&words) {
            let head = &mut |slot: &mut [u8]| fill(slot, None);
            self.ring.put(target, head_len, Some(words), head);
        } else {
            self.ring.put(target, len, None, &mut |slot| {
                let (head, tail) = slot.split_at_mut(head_len);
                fill(head, Some(tail));
            });
        }
        self.filled(len);
        Some(self.ring.filled())
    }

    fn has_read(&mut self, ticket: u64) -> bool {
        if self.ring.done() < ticket {
            self.reap();
        }
        self.ring.done() >= ticket
    }
}

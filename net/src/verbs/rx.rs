//! The receiving half: lends datagrams out of the slots that the device has filled.
//!
//! Invariants: a slot goes back to the device within 64 datagrams, or with the end of the call that
//! lent it. What this very node has sent to the group is not lent.

use std::io;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use socket2::Socket;

use super::device::Fabric;
use super::ffi::{GRH_BYTES, Gid, WC_GRH, WC_WITH_IMM, Wc};
use super::recv_ring::{Next, ReceiveRing};
use crate::syscalls::{poll, readable};
use crate::{Receive, ReceiveStats, Source};

/// Slots spent before they are posted again, at most.
const CHAIN: usize = 64;

pub(super) struct Rx {
    ring: ReceiveRing,
    fabric: Fabric,
    device: String,
    own: Gid,
    number: u32,
    stats: ReceiveStats,
    /// Keeps the host in the group on its own network (RoCE); receives nothing.
    _membership: Option<Socket>,
}

impl Rx {
    pub(super) fn new(
        ring: ReceiveRing,
        fabric: Fabric,
        device: String,
        own: Gid,
        membership: Option<Socket>,
    ) -> Self {
        let slots = ring.queue.slots;
        Rx {
            number: ring.queue.number(),
            ring,
            fabric,
            device,
            own,
            stats: ReceiveStats {
                buffer_bytes: (slots.count * slots.bytes) as u64,
                ..ReceiveStats::default()
            },
            _membership: membership,
        }
    }

    fn restart(&mut self, status: u32) -> io::Result<()> {
        let why = self.ring.queue.status(status);
        log::warn!(
            "verbs: `{}` stopped receiving: {why}; starting again",
            self.device
        );
        self.stats.errors += 1;
        self.ring.restart()
    }
}

/// Where a datagram came from, if it carries that as ours do.
fn source(fabric: Fabric, wc: &Wc, header: &[u8; GRH_BYTES]) -> Option<Source> {
    if wc.wc_flags & WC_WITH_IMM == 0 || wc.wc_flags & WC_GRH == 0 {
        return None;
    }
    let gid = match fabric {
        // RoCE v2 over IPv4: an IPv4 header (20 bytes, UDP) behind 20 bytes without meaning.
        Fabric::Ethernet => {
            if header[20] >> 4 != 4 {
                return None;
            }
            let ip: [u8; 4] = header[32..36].try_into().ok()?;
            Ipv4Addr::from(ip).to_ipv6_mapped().octets()
        }
        Fabric::InfiniBand => header[8..24].try_into().ok()?,
    };
    Some(Source::Queue {
        gid,
        lid: wc.slid,
        qpn: u32::from_be(wc.imm_data),
    })
}

impl Receive for Rx {
    fn recv(&mut self, max: usize, each: &mut dyn FnMut(Source, &[u8])) -> io::Result<usize> {
        let mut count = 0;
        let mut spent = 0;
        while count < max {
            if spent == CHAIN {
                spent = 0;
                self.ring.post()?;
            }
            let received = match self.ring.next()? {
                Next::Nothing => break,
                Next::Failed(status) => {
                    self.restart(status)?;
                    continue;
                }
                Next::Datagram(received) => received,
            };
            spent += 1;
            let Some(from) = source(self.fabric, &received.wc, received.header) else {
                self.stats.not_ours += 1;
                continue;
            };
            // The device gives a group datagram to every member, the sender too.
            if matches!(from, Source::Queue { gid, qpn, .. } if qpn == self.number && gid == self.own.0)
            {
                self.stats.not_ours += 1;
                continue;
            }
            count += 1;
            self.stats.frames += 1;
            self.stats.bytes += received.payload.len() as u64;
            each(from, received.payload);
        }
        self.ring.post()?;
        Ok(count)
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<bool> {
        let start = Instant::now();
        loop {
            if self.ring.is_ready()? {
                return Ok(true);
            }
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Ok(false);
            }
            // Armed before the last look: a datagram that comes in between makes an event.
            self.ring.queue.arm()?;
            if self.ring.is_ready()? {
                return Ok(true);
            }
            self.stats.calls += 1;
            let (signed, _) = poll(&mut [readable(&self.ring.queue)], left)?;
            if signed {
                self.ring.queue.take_sign()?;
            }
        }
    }

    fn stats(&mut self) -> ReceiveStats {
        self.stats
    }
}

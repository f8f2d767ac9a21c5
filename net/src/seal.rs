//! The `seal` wrapper: frames carry a tag that only holders of a key can make, and no frame is
//! taken twice.
//!
//! Touches the frames of the link it wraps, nothing else; [`Key::from_file`] reads one file.
//!
//! A seal is a trailer of [`OVERHEAD_BYTES`] behind the payload, little-endian:
//!
//! | bytes | field | meaning |
//! |---|---|---|
//! | 0 to 13 | padding | zeros: a sealed frame is never shorter than 46 bytes, so Ethernet adds none |
//! | 8 | link | a random number for each opened link: who sends, as far as replays go |
//! | 8 | number | of the frame, from 1; the highest byte holds the length of the padding |
//! | 16 | tag | over everything before it: `mac.rs` says how, and why it cannot be made without the key |
//!
//! Payload and padding travel in clear: a seal says who wrote a frame, it hides nothing. The choice
//! of the MAC is a measurement: docs/measurements/2026-11-21-seal.md.
//!
//! Invariants:
//! - A frame is lent only if its tag is right, its link is not our own, and its number has not been
//!   taken. Everything else is counted by reason in [`SealStats`] and changes nothing.
//! - Frames may come out of order by up to [`WINDOW_FRAMES`] of their link; older ones are refused,
//!   because whether they were taken is not remembered.
//! - No link is ever forgotten while the wrapper lives, or while its file does
//!   ([`ReplayWindows::in_file`]). The one that was silent for longest may be closed: then no frame
//!   of it is taken any more. Once no more can be remembered, new links are refused.
//! - No two frames under one key have the same link and number: the MAC would give its key away.
//! - Only a holder of the key can make the wrapper remember anything.

mod clmul;
mod key;
mod mac;
mod replay;

use std::io;
use std::time::Duration;

use rand::TryRng;
use rand::rngs::SysRng;

pub use self::key::{Key, KeyError, read_key};
pub use self::mac::KEY_BYTES;
use self::mac::{MESSAGE_BYTES_MAX, Mac, NONCE_BYTES, PADS, TAG_BYTES};
pub use self::replay::{
    CLOSED_MAX, LINKS_MAX, REPLAY_WINDOWS_BYTES, ReplayError, ReplayWindows, TOO_MANY_LINKS,
    WINDOW_FRAMES,
};
use crate::{Link, Receive, ReceiveStats, Source, To, Transmit, TransmitStats, Way};

/// What a seal takes of the MTU, in bytes.
pub const OVERHEAD_BYTES: usize = 32;

/// Shortest payload of a frame of raw Ethernet, in bytes. A shorter one is padded on the way, and
/// then the end of the frame is no longer where the seal is.
const SHORTEST_BYTES: usize = 46;

/// The number's bits; the byte above them holds the length of the padding. At ten million frames a
/// second they last for 228 years.
const NUMBER_BITS: u32 = 56;

/// What to seal with.
#[derive(Debug)]
pub struct SealConfig {
    /// The key that all nodes share.
    pub key: Key,
    /// Which frames have been taken.
    pub windows: ReplayWindows,
}

/// What a wrapper refused, by reason. Those frames are not lent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SealStats {
    /// Frames whose tag is not that of their bytes under our key: forged, damaged, cut, or sealed
    /// with another key. Or longer than any that is sealed.
    pub bad_tag: u64,
    /// Frames with a right tag that were taken already, or are so old that they might have been, or
    /// were sent by this very link, or by one that was closed.
    pub replayed: u64,
    /// Frames too short to hold a seal.
    pub truncated: u64,
    /// Frames with a right tag of one link more than are remembered ([`LINKS_MAX`] with a window,
    /// [`CLOSED_MAX`] closed): [`TOO_MANY_LINKS`] says what to do.
    pub too_many_links: u64,
}

impl SealStats {
    /// All refused frames.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.bad_tag + self.replayed + self.truncated + self.too_many_links
    }
}

/// Wraps both halves of a link: what is sent is sealed, what is received must be. Its MTU is 64 KiB
/// at most.
///
/// # Errors
/// The operating system has no random numbers to give.
pub fn wrap(link: Link, config: SealConfig) -> io::Result<Link> {
    // A number that no other opened link has, on this host or another. It need not be secret.
    let own = SysRng.try_next_u64().map_err(io::Error::other)?;
    Ok(Link {
        tx: Box::new(Sealing {
            inner: link.tx,
            key: config.key.clone(),
            nonce: Nonce::first(own),
            bytes: 0,
            too_long: 0,
        }),
        rx: Box::new(Opening {
            inner: link.rx,
            opener: Opener {
                key: config.key,
                own,
                windows: config.windows,
                stats: SealStats::default(),
            },
            frames: 0,
            bytes: 0,
            refused_from: None,
        }),
    })
}

/// Whether two tags are equal, in a time that does not depend on where they differ.
fn equal(a: u128, b: u128) -> bool {
    std::hint::black_box(a ^ b) == 0
}

/// Bytes of padding for a payload of `len` bytes.
fn padding(len: usize) -> usize {
    (SHORTEST_BYTES - OVERHEAD_BYTES).saturating_sub(len)
}

struct Sealing {
    inner: Box<dyn Transmit>,
    key: Key,
    nonce: Nonce,
    bytes: u64,
    too_long: u64,
}

/// Link and number of the next frame: what no other frame under this key has.
struct Nonce {
    link: u64,
    number: u64,
    /// Pads of the numbers from `pads_from` on, as long as frames need no padding (its length is
    /// part of the nonce).
    pads: [u128; PADS],
    pads_from: u64,
}

impl Nonce {
    fn first(link: u64) -> Self {
        Nonce {
            link,
            number: 1,
            pads: [0; PADS],
            // Frames are counted from 1: no pads are there yet.
            pads_from: u64::MAX,
        }
    }

    /// The bytes of the nonce of a frame with so much padding.
    fn bytes(&self, padding: usize) -> [u8; NONCE_BYTES] {
        let number = self.number | (padding as u64) << NUMBER_BITS;
        (u128::from(self.link) | u128::from(number) << 64).to_le_bytes()
    }

    /// The pad of a frame without padding.
    fn pad(&mut self, mac: &Mac) -> u128 {
        let at = (self.number % PADS as u64) as usize;
        let from = self.number - at as u64;
        if self.pads_from != from {
            self.pads = mac.pads(self.link, from);
            self.pads_from = from;
        }
        self.pads[at]
    }
}

impl Drop for Nonce {
    fn drop(&mut self) {
        self.pads = [0; PADS];
        // Keeps the compiler from leaving it out.
        std::hint::black_box(&mut self.pads);
    }
}

/// Writes the seal behind a payload of `len` bytes; `slot` ends where the seal does.
fn seal(key: &Key, nonce: &mut Nonce, len: usize, slot: &mut [u8]) {
    let (message, trailer) = slot.split_at_mut(slot.len() - OVERHEAD_BYTES);
    message[len..].fill(0);
    let padding = message.len() - len;
    let bytes = nonce.bytes(padding);
    let pad = if padding == 0 {
        nonce.pad(key.mac())
    } else {
        key.mac().pad(&bytes)
    };
    let tag = key.mac().tag_under(pad, message);
    trailer[..NONCE_BYTES].copy_from_slice(&bytes);
    trailer[NONCE_BYTES..].copy_from_slice(&tag.to_le_bytes());
    // Used up, whatever becomes of the frame.
    nonce.number += 1;
}

impl Transmit for Sealing {
    fn mtu(&self) -> usize {
        let mtu = self.inner.mtu().saturating_sub(OVERHEAD_BYTES);
        mtu.min(MESSAGE_BYTES_MAX)
    }

    fn send(&mut self, to: To, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> bool {
        let mtu = self.mtu();
        if len > mtu || len + padding(len) > mtu {
            self.too_long += 1;
            return false;
        }
        let (key, nonce) = (&self.key, &mut self.nonce);
        let sealed_len = len + padding(len) + OVERHEAD_BYTES;
        let sent = self.inner.send(to, sealed_len, &mut |slot| {
            fill(&mut slot[..len]);
            seal(key, nonce, len, slot);
        });
        if sent {
            self.bytes += (len * self.inner.copies(to)) as u64;
        }
        sent
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }

    fn flush_old(&mut self) -> io::Result<()> {
        self.inner.flush_old()
    }

    fn learn(&mut self, node: u16, source: Source) {
        self.inner.learn(node, source);
    }

    fn set_way(&mut self, node: u16, way: Way) {
        self.inner.set_way(node, way);
    }

    fn forget(&mut self, node: u16) {
        self.inner.forget(node);
    }

    fn copies(&self, to: To) -> usize {
        self.inner.copies(to)
    }

    fn ready_in(&self) -> Duration {
        self.inner.ready_in()
    }

    fn knows(&self, node: u16) -> bool {
        self.inner.knows(node)
    }

    fn stats(&self) -> TransmitStats {
        let below = self.inner.stats();
        TransmitStats {
            bytes: self.bytes,
            too_long: below.too_long + self.too_long,
            ..below
        }
    }
}

struct Opening {
    inner: Box<dyn Receive>,
    opener: Opener,
    frames: u64,
    bytes: u64,
    refused_from: Option<Source>,
}

struct Opener {
    key: Key,
    own: u64,
    windows: ReplayWindows,
    stats: SealStats,
}

impl Opener {
    /// The payload of a frame that is sealed and new; counts what is not.
    fn open<'f>(&mut self, frame: &'f [u8]) -> Option<&'f [u8]> {
        let (Some((sealed, tag)), true) = (
            frame.split_last_chunk::<TAG_BYTES>(),
            frame.len() >= SHORTEST_BYTES,
        ) else {
            self.stats.truncated += 1;
            return None;
        };
        let Some((padded, nonce)) = sealed.split_last_chunk::<NONCE_BYTES>() else {
            self.stats.truncated += 1;
            return None;
        };
        let too_long = padded.len() > MESSAGE_BYTES_MAX;
        if too_long || !equal(self.key.mac().tag(nonce, padded), u128::from_le_bytes(*tag)) {
            self.stats.bad_tag += 1;
            return None;
        }
        let nonce = u128::from_le_bytes(*nonce);
        let (link, number) = (nonce as u64, (nonce >> 64) as u64);
        let pad = (number >> NUMBER_BITS) as usize;
        let number = number & ((1 << NUMBER_BITS) - 1);
        // Only a holder of the key can have written a padding longer than the frame.
        let payload = padded.len().checked_sub(pad).map(|len| &padded[..len]);
        let Some(payload) = payload else {
            self.stats.bad_tag += 1;
            return None;
        };
        if link == self.own {
            self.stats.replayed += 1;
            return None;
        }
        match self.windows.take(link, number) {
            Some(true) => Some(payload),
            Some(false) => {
                self.stats.replayed += 1;
                None
            }
            None => {
                self.stats.too_many_links += 1;
                None
            }
        }
    }
}

impl Receive for Opening {
    fn recv(&mut self, max: usize, each: &mut dyn FnMut(Source, &[u8])) -> io::Result<usize> {
        let Opening {
            inner,
            opener,
            frames,
            bytes,
            refused_from,
        } = self;
        let mut lent = 0;
        inner.recv(max, &mut |source, frame| {
            if let Some(payload) = opener.open(frame) {
                lent += 1;
                *frames += 1;
                *bytes += payload.len() as u64;
                each(source, payload);
            } else {
                *refused_from = Some(source);
            }
        })?;
        Ok(lent)
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<bool> {
        self.inner.wait(timeout)
    }

    fn stats(&mut self) -> ReceiveStats {
        ReceiveStats {
            frames: self.frames,
            bytes: self.bytes,
            seal: self.opener.stats,
            seal_refused_from: self.refused_from,
            ..self.inner.stats()
        }
    }
}

#[cfg(test)]
mod tests;

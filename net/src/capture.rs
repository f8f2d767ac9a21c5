//! The `capture` wrapper: writes what is sent and received to a pcapng file, which Wireshark opens.
//!
//! Touches the frames of the link it wraps, one file, and the wall clock.
//!
//! A wrapper sees payloads, not packets. The headers in the file are made up around them from what
//! is known, so that one dissector (`tools/wireshark/dogwild.lua`) serves every transport. They are
//! Ethernet for [`Source::Mac`], and Ethernet, IP and UDP for [`Source::Socket`]. They are Ethernet
//! with invented addresses for [`Source::Memory`] and [`Source::Queue`]. A received frame names its
//! true sender; its destination is [`CaptureConfig::local`], because a transport does not tell
//! whether it came by way of the group.
//!
//! Invariants:
//! - Frames pass untouched, whatever becomes of the file. When it is full, or cannot be written to,
//!   the rest is counted as `skipped` and one message is logged.
//! - The file never grows beyond [`CaptureConfig::bytes_max`].
//! - It is whole after the link is dropped, and whole up to a second ago while the link is idle.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pcap_file::DataLink;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};

use crate::address_table::AddressTable;
use crate::{CaptureStats, Link, Receive, ReceiveStats, Source, To, Transmit, TransmitStats, Way};

mod packet;

/// Most that one frame takes in the file in addition to its payload, in bytes: block, option,
/// headers.
const FRAME_EXTRA_MAX: u64 = 128;

/// How old the end of the file may be while nothing happens.
const FLUSH_EVERY: Duration = Duration::from_secs(1);

/// Where to write, how much, and what addresses to put on frames.
#[derive(Debug, Clone)]
pub struct CaptureConfig {
    /// The file; an old one of this name is replaced.
    pub path: PathBuf,
    /// The file's size at most, in bytes.
    pub bytes_max: u64,
    /// Our own address.
    pub local: Source,
    /// The group's address.
    pub group: Source,
}

/// Why a capture could not be started.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the capture file {}: {error}", path.display())]
pub struct CaptureError {
    /// Path of the file.
    pub path: PathBuf,
    /// What the system says.
    pub error: io::Error,
}

/// Wraps both halves of a link.
///
/// # Errors
/// The file cannot be made.
pub fn wrap(link: Link, config: &CaptureConfig) -> Result<Link, CaptureError> {
    let tape = Tape::start(&config.path, config.bytes_max).map_err(|error| CaptureError {
        path: config.path.clone(),
        error,
    })?;
    let tape = Arc::new(Mutex::new(tape));
    Ok(Link {
        tx: Box::new(TxTap {
            inner: link.tx,
            tape: Arc::clone(&tape),
            local: config.local,
            group: config.group,
            addresses: AddressTable::new(),
        }),
        rx: Box::new(RxTap {
            inner: link.rx,
            tape,
            local: config.local,
        }),
    })
}

#[derive(Clone, Copy)]
enum Direction {
    Received = 1,
    Sent = 2,
}

/// The open file and its limits.
struct Tape {
    writer: Option<PcapNgWriter<BufWriter<File>>>,
    room: u64,
    flushed: Instant,
    /// The packet in hand; kept, so that it is not allocated anew.
    packet: Vec<u8>,
    stats: CaptureStats,
}

impl Tape {
    fn start(path: &Path, bytes_max: u64) -> io::Result<Self> {
        let file = File::create(path)?;
        let mut writer =
            PcapNgWriter::new(BufWriter::with_capacity(1 << 18, file)).map_err(io_error)?;
        writer
            .write_pcapng_block(InterfaceDescriptionBlock {
                linktype: DataLink::ETHERNET,
                snaplen: 0,
                options: vec![
                    InterfaceDescriptionOption::IfName(Cow::Borrowed("dogwild")),
                    // Timestamps are in ns.
                    InterfaceDescriptionOption::IfTsResol(9),
                ],
            })
            .map_err(io_error)?;
        writer.get_mut().flush()?;
        Ok(Tape {
            writer: Some(writer),
            // The two blocks written so far take less than one frame's headers.
            room: bytes_max.saturating_sub(FRAME_EXTRA_MAX),
            flushed: Instant::now(),
            packet: Vec::new(),
            stats: CaptureStats::default(),
        })
    }

    fn record(&mut self, direction: Direction, from: Source, to: Source, payload: &[u8]) {
        if let Err(why) = self.try_record(direction, from, to, payload) {
            self.stats.skipped += 1;
            if let Some(mut writer) = self.writer.take() {
                log::warn!("capture ends after {} frames: {why}", self.stats.written);
                let _ = writer.get_mut().flush();
            }
        }
    }

    fn try_record(
        &mut self,
        direction: Direction,
        from: Source,
        to: Source,
        payload: &[u8],
    ) -> Result<(), Cow<'static, str>> {
        let writer = self.writer.as_mut().ok_or("it has ended")?;
        let left = self
            .room
            .checked_sub(payload.len() as u64 + FRAME_EXTRA_MAX);
        let Some(_) = left else {
            return Err("the file has reached its size limit".into());
        };
        packet::build(from, to, payload, &mut self.packet);
        let block = EnhancedPacketBlock {
            interface_id: 0,
            timestamp: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default(),
            original_len: self.packet.len() as u32,
            data: Cow::Borrowed(&self.packet),
            options: vec![EnhancedPacketOption::Flags(direction as u32)],
        };
        let bytes = writer
            .write_pcapng_block(block)
            .map_err(|error| error.to_string())?;
        self.room -= bytes as u64;
        self.stats.written += 1;
        Ok(())
    }

    /// Hands what is buffered to the kernel, if the last time was long ago.
    fn settle(&mut self) {
        if self.flushed.elapsed() < FLUSH_EVERY {
            return;
        }
        self.flushed = Instant::now();
        if let Some(writer) = &mut self.writer
            && let Err(error) = writer.get_mut().flush()
        {
            log::warn!("capture ends: {error}");
            self.writer = None;
        }
    }
}

fn io_error(error: pcap_file::PcapError) -> io::Error {
    match error {
        pcap_file::PcapError::IoError(error) => error,
        other => io::Error::other(other),
    }
}

/// A poisoned lock is taken all the same: a half-written block is the worst that can be behind it.
fn lock(tape: &Mutex<Tape>) -> MutexGuard<'_, Tape> {
    tape.lock().unwrap_or_else(PoisonError::into_inner)
}

struct TxTap {
    inner: Box<dyn Transmit>,
    tape: Arc<Mutex<Tape>>,
    local: Source,
    group: Source,
    addresses: AddressTable<Source>,
}

impl Transmit for TxTap {
    fn mtu(&self) -> usize {
        self.inner.mtu()
    }

    fn send(&mut self, to: To, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> bool {
        let (tape, from) = (&self.tape, self.local);
        let to_source = match to {
            To::Group | To::All => self.group,
            To::Node(node) => self.addresses.get(node).unwrap_or(self.group),
        };
        self.inner.send(to, len, &mut |slot| {
            fill(slot);
            lock(tape).record(Direction::Sent, from, to_source, slot);
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }

    fn flush_old(&mut self) -> io::Result<()> {
        self.inner.flush_old()
    }

    fn learn(&mut self, node: u16, source: Source) {
        self.addresses.learn(node, source);
        self.inner.learn(node, source);
    }

    fn set_way(&mut self, node: u16, way: Way) {
        self.inner.set_way(node, way);
    }

    fn forget(&mut self, node: u16) {
        self.addresses.forget(node);
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
        self.inner.stats()
    }
}

struct RxTap {
    inner: Box<dyn Receive>,
    tape: Arc<Mutex<Tape>>,
    local: Source,
}

impl Receive for RxTap {
    fn recv(&mut self, max: usize, each: &mut dyn FnMut(Source, &[u8])) -> io::Result<usize> {
        let (tape, local) = (&self.tape, self.local);
        self.inner.recv(max, &mut |source, frame| {
            // Not held while `each` runs: it may send.
            lock(tape).record(Direction::Received, source.sender(), local, frame);
            each(source, frame);
        })
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<bool> {
        lock(&self.tape).settle();
        self.inner.wait(timeout)
    }

    fn stats(&mut self) -> ReceiveStats {
        ReceiveStats {
            capture: lock(&self.tape).stats,
            ..self.inner.stats()
        }
    }
}

#[cfg(test)]
mod tests;

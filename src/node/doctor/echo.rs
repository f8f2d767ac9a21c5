//! A round trip over a transport: one end asks until it is answered.
//!
//! Sends one small frame each 10 ms to the group, and the answer to the asking node. Invariant:
//! ends within [`LIMIT`], whatever happens.

use std::time::{Duration, Instant};

use dogwild_net::{Link, Source, To};

use crate::node::{Transport, TransportError, TransportSpec, open_link};

/// Longest time to be answered.
const LIMIT: Duration = Duration::from_secs(3);
/// Between two questions.
const EVERY: Duration = Duration::from_millis(10);
/// Length of a frame: no Ethernet pads it.
const BYTES: usize = 64;
const MAGIC: &[u8; 8] = b"DWdoctor";
/// A lab has no other users.
const LAB_SESSION: u64 = 0xD0C7;

/// One end of a round trip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// Asks, and prints how long the answer took.
    Ask,
    /// Answers until it is killed, or for some seconds.
    Answer,
}

/// Why there was no round trip.
#[derive(Debug, thiserror::Error)]
pub enum EchoError {
    /// The transport could not be opened.
    #[error(transparent)]
    Open(#[from] TransportError),
    /// A half of the link failed.
    #[error("sending or receiving failed: {0}")]
    Link(#[from] std::io::Error),
    /// Nothing came back.
    #[error("no answer in {} s: a firewall, or an interface that passes no multicast", LIMIT.as_secs())]
    Silence,
}

/// A session that no other doctor has.
pub(super) fn session() -> u64 {
    0xD0C7_0000_0000 | u64::from(std::process::id())
}

/// Runs one end on `iface` of a lab; the asking one returns what it found.
///
/// # Errors
/// [`EchoError`].
pub fn half(half: Half, transport: Transport, iface: &str) -> Result<String, EchoError> {
    let spec = TransportSpec::of(transport, Some(iface.to_owned()));
    let mut link = open_link(&spec, LAB_SESSION)?;
    let end = Instant::now() + LIMIT;
    match half {
        Half::Ask => {
            let took = ask(&mut link, end, |_| Ok(()))?;
            Ok(said(&mut link, took))
        }
        Half::Answer => {
            // Both ends start at once: this one has to outlive the other.
            while Instant::now() < end + LIMIT {
                answer(&mut link)?;
                link.rx.wait(EVERY)?;
            }
            Ok(String::new())
        }
    }
}

/// A round trip between two links of this process.
pub(super) fn round_trip(asker: &mut Link, answerer: &mut Link) -> Result<String, EchoError> {
    let took = ask(asker, Instant::now() + LIMIT, |_| answer(answerer))?;
    Ok(said(asker, took))
}

fn said(link: &mut Link, took: Duration) -> String {
    format!(
        "round trip in {} µs, up to {} bytes a frame, send and receive buffers {} and {} KiB",
        took.as_micros(),
        link.tx.mtu(),
        link.tx.stats().buffer_bytes >> 10,
        link.rx.stats().buffer_bytes >> 10,
    )
}

/// Asks until there is an answer; `between` runs while waiting.
fn ask(
    link: &mut Link,
    end: Instant,
    mut between: impl FnMut(&mut Link) -> std::io::Result<()>,
) -> Result<Duration, EchoError> {
    while Instant::now() < end {
        let sent = Instant::now();
        send(link, To::Group, b'?')?;
        while sent.elapsed() < EVERY {
            between(link)?;
            let mut heard = false;
            link.rx.recv(64, &mut |_, bytes| heard |= is(bytes, b'!'))?;
            if heard {
                return Ok(sent.elapsed());
            }
            link.rx.wait(Duration::from_micros(200))?;
        }
    }
    Err(EchoError::Silence)
}

fn answer(link: &mut Link) -> std::io::Result<()> {
    let mut asked: Option<Source> = None;
    link.rx.recv(64, &mut |from, bytes| {
        if is(bytes, b'?') {
            asked = Some(from);
        }
    })?;
    if let Some(from) = asked {
        link.tx.learn(0, from);
        send(link, To::Node(0), b'!')?;
    }
    Ok(())
}

fn send(link: &mut Link, to: To, kind: u8) -> std::io::Result<()> {
    link.tx.send(to, BYTES, &mut |slot| {
        slot.fill(0);
        slot[..8].copy_from_slice(MAGIC);
        slot[8] = kind;
    });
    link.tx.flush()
}

fn is(bytes: &[u8], kind: u8) -> bool {
    bytes.starts_with(MAGIC) && bytes.get(8) == Some(&kind)
}

//! A transport with nothing on top: full frames sent to the group as fast as it takes them, and
//! received and counted. What `stream` is compared with.

use std::sync::atomic::{Ordering::SeqCst, compiler_fence};
use std::time::{Duration, Instant};

use anyhow::Result;
use dogwild::cli::args::transports;
use dogwild::node::{Transport, TransportSpec, open_link};
use dogwild_net::{Link, To};
use serde::{Deserialize, Serialize};

/// Frames sent before receiving is looked at.
pub(crate) const BATCH: usize = 128;
/// Time for the other end to open its link.
const WARM_UP: Duration = Duration::from_millis(400);

/// Arguments of the hidden component.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[arg(long, value_parser = transports())]
    transport: Transport,
    #[arg(long)]
    iface: Option<String>,
    #[arg(long)]
    mtu: usize,
    #[arg(long)]
    seconds: f64,
    #[arg(long)]
    node: u16,
    #[arg(long)]
    send: bool,
    /// Bytes that frames come from and go to, in turn; 0: always the same frame's
    #[arg(long, default_value_t = 0)]
    buffer_bytes: usize,
}

/// What one end counted, per second.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct End {
    sent_per_s: f64,
    received_per_s: f64,
    frame_bytes: usize,
}

/// Which way frames went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Direction {
    OneWay,
    BothWays,
    /// Both ways, out of a buffer as large as the weights and into another: what any program pays
    /// that moves these bytes, and the raw rate from one hot frame does not show.
    BuffersBothWays,
}

impl Direction {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::OneWay => "one way",
            Self::BothWays => "both ways, each",
            Self::BuffersBothWays => "both ways, buffer to buffer, each",
        }
    }
}

/// What both ends counted.
#[derive(Debug, Serialize)]
pub(crate) struct Outcome {
    pub(crate) direction: Direction,
    pub(crate) frame_bytes: usize,
    pub(crate) sent_per_s: f64,
    pub(crate) received_per_s: f64,
}

impl Outcome {
    pub(crate) fn of(direction: Direction, ends: &[End]) -> Self {
        let senders = if direction == Direction::OneWay {
            1.0
        } else {
            ends.len() as f64
        };
        Self {
            direction,
            frame_bytes: ends.first().map_or(0, |end| end.frame_bytes),
            sent_per_s: ends.iter().map(|end| end.sent_per_s).sum::<f64>() / senders,
            received_per_s: ends.iter().map(|end| end.received_per_s).sum::<f64>() / senders,
        }
    }
}

impl Args {
    pub(crate) fn run(self) -> Result<()> {
        let spec = TransportSpec {
            mtu: Some(self.mtu),
            ..TransportSpec::of(self.transport, self.iface.clone())
        };
        let mut link = open_link(&spec, 0xBE7C)?;
        let start = Instant::now();
        while start.elapsed() < WARM_UP {
            link.rx.recv(usize::MAX, &mut |_, _| {})?;
            std::thread::sleep(Duration::from_millis(1));
        }
        let end = self.exchange(&mut link)?;
        dogwild_lab::say!("{}", serde_json::to_string(&end)?);
        Ok(())
    }

    fn exchange(&self, link: &mut Link) -> Result<End> {
        // Whole cache lines, as a chunk has.
        let len = link.tx.mtu() / 64 * 64;
        let frames = self.buffer_bytes.div_ceil(len).max(1);
        let source = vec![0x5Au8; frames * len];
        let mut sink = vec![0u8; frames * len];
        let (mut sent, mut received) = (0u64, 0u64);
        let start = Instant::now();
        let end = start + Duration::from_secs_f64(self.seconds);
        while Instant::now() < end {
            let mut into = received as usize;
            let got = link.rx.recv(2 * BATCH, &mut |_, bytes| {
                // A receiver that does not read its bytes measures nothing.
                let n = bytes.len().min(len);
                copy(&mut sink[into % frames * len..][..n], &bytes[..n]);
                into += 1;
            })?;
            std::hint::black_box(&mut sink);
            received += got as u64;
            let mut went = 0;
            while self.send && went < BATCH {
                let from = &source[(sent as usize + went) % frames * len..][..len];
                if !link.tx.send(To::Group, len, &mut |slot| copy(slot, from)) {
                    break;
                }
                went += 1;
            }
            link.tx.flush()?;
            sent += went as u64;
            if got == 0 && went < BATCH {
                link.rx.wait(Duration::from_micros(100))?;
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        Ok(End {
            sent_per_s: sent as f64 / seconds,
            received_per_s: received as f64 / seconds,
            frame_bytes: len,
        })
    }
}

/// Sends up to `count` frames of this payload, fewer when slots run out, and returns how many. Only
/// the first `fresh` bytes are written; behind them a slot keeps what an earlier frame of this link
/// left.
pub(crate) fn burst(
    link: &mut Link,
    to: To,
    payload: &[u8],
    fresh: usize,
    count: u64,
) -> Result<u64> {
    let fill = &mut |slot: &mut [u8]| copy(&mut slot[..fresh], &payload[..fresh]);
    let mut sent = 0;
    while sent < count && link.tx.send(to, payload.len(), fill) {
        sent += 1;
    }
    link.tx.flush()?;
    Ok(sent)
}

/// Copies piece by piece. The C library's copy of some kilobytes is `rep movsb` or walks backwards,
/// by where the two lie, and is then many times slower at some addresses: that would be measured
/// instead of the transport.
pub(crate) fn copy(to: &mut [u8], from: &[u8]) {
    /// What the C library still copies without a loop: eight vectors of AVX-512.
    const PIECE: usize = 512;
    let (pieces, rest) = to.as_chunks_mut::<PIECE>();
    let (from_pieces, from_rest) = from.as_chunks::<PIECE>();
    for (to, from) in pieces.iter_mut().zip(from_pieces) {
        *to = *from;
        // Or the compiler would make one call out of this loop.
        compiler_fence(SeqCst);
    }
    rest.copy_from_slice(from_rest);
}

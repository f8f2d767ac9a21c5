//! A transport written by the user: frames over a pair of Unix datagram sockets, a node on each
//! thread.
//!
//! The stream needs two halves: one that sends frames ([`Transmit`]) and one that receives them
//! ([`Receive`]). A transport may lose, repeat and reorder frames; it may not block in `send`,
//! `flush` and `recv`.
//!
//! `cargo run --release --example custom_transport`

use std::error::Error;
use std::io::{self, ErrorKind};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use dogwild::node::StreamLoop;
use dogwild::stream::{Config, Merge, Streamer};
use dogwild::weights::{StreamState, WeightsView, padded_len};
use dogwild_net::{Link, Receive, ReceiveStats, Source, To, Transmit, TransmitStats};

const WEIGHTS: usize = 10_000;
const FRAME_BYTES: usize = 8_192;

struct Sender {
    socket: UnixDatagram,
    frame: Vec<u8>,
    knows: Option<u16>,
    stats: TransmitStats,
}

impl Transmit for Sender {
    fn mtu(&self) -> usize {
        FRAME_BYTES
    }

    /// The pair has one other end: the group and the other node are the same.
    fn send(&mut self, _to: To, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> bool {
        if len > FRAME_BYTES {
            self.stats.too_long += 1;
            return false;
        }
        fill(&mut self.frame[..len]);
        match self.socket.send(&self.frame[..len]) {
            Ok(_) => self.stats.frames += 1,
            // The other end is full: the frame is lost, as on any network.
            Err(_) => self.stats.dropped += 1,
        }
        self.stats.bytes += len as u64;
        true
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn learn(&mut self, node: u16, _source: Source) {
        self.knows = Some(node);
    }

    fn knows(&self, node: u16) -> bool {
        self.knows == Some(node)
    }

    fn stats(&self) -> TransmitStats {
        self.stats
    }
}

struct Receiver {
    socket: UnixDatagram,
    frame: Vec<u8>,
    stats: ReceiveStats,
}

impl Receive for Receiver {
    fn recv(&mut self, max: usize, each: &mut dyn FnMut(Source, &[u8])) -> io::Result<usize> {
        for taken in 0..max {
            match self.socket.recv(&mut self.frame) {
                Ok(len) => each(Source::Memory(0), &self.frame[..len]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(taken),
                Err(error) => return Err(error),
            }
            self.stats.frames += 1;
        }
        Ok(max)
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<bool> {
        std::thread::sleep(timeout.min(Duration::from_micros(100)));
        Ok(true)
    }

    fn stats(&mut self) -> ReceiveStats {
        self.stats
    }
}

fn link(socket: UnixDatagram) -> io::Result<Link> {
    socket.set_nonblocking(true)?;
    Ok(Link {
        tx: Box::new(Sender {
            socket: socket.try_clone()?,
            frame: vec![0; FRAME_BYTES],
            knows: None,
            stats: TransmitStats::default(),
        }),
        rx: Box::new(Receiver {
            socket,
            frame: vec![0; FRAME_BYTES],
            stats: ReceiveStats::default(),
        }),
    })
}

/// One node: adds 1 to all its weights, goes on until the other's 1 has come, and until both are
/// done.
fn node(index: u16, link: Link, folder: &Path, done: &AtomicUsize) -> Result<u64, String> {
    let said = |error: &dyn Error| error.to_string();
    let config = Config::new(index, 2, WEIGHTS, FRAME_BYTES).ok_or("the frames are too short")?;
    let config = Config {
        merge: Merge::Sum,
        ..config
    };
    let memory: Vec<_> = (0..padded_len(WEIGHTS))
        .map(|_| AtomicU32::new(0))
        .collect();
    let w = WeightsView::of(&memory);
    let path = folder.join(format!("node{index}.stream"));
    let spec = config.state_spec(memory.len());
    let (state, _) = StreamState::open_or_create(&path, &spec).map_err(|e| said(&e))?;
    let mut stream = StreamLoop::new(Streamer::new(config, w, &state), link, None);
    let (mut added, mut counted) = (false, false);
    while done.load(Relaxed) < 2 {
        if stream.step().map_err(|e| said(&e))?.is_idle() {
            stream.wait().map_err(|e| said(&e))?;
        }
        if stream.ready() && !added {
            added = true;
            (0..WEIGHTS).for_each(|i| w.store(i, w.load(i) + 1.0));
        }
        if !counted && (0..WEIGHTS).all(|i| w.load(i) == 2.0) {
            counted = true;
            done.fetch_add(1, Relaxed);
        }
    }
    Ok(stream.link_stats().0.frames)
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let (left, right) = UnixDatagram::pair()?;
    let links = [link(left)?, link(right)?];
    let done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let (folder, done) = (folder.path(), &done);
        let start = |(index, link)| scope.spawn(move || node(index, link, folder, done));
        let nodes: Vec<_> = (0..).zip(links).map(start).collect();
        for (index, node) in nodes.into_iter().enumerate() {
            let frames = node.join().map_err(|_| "a node panicked")??;
            println!("node {index}: every weight is 2, after {frames} frames");
        }
        Ok(())
    })
}

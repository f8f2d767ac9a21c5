//! What the protocol costs on top of its kernels: two nodes of a stream in one thread, joined by
//! memory.
//!
//! Every position is taken and answered, every delta added, as between two streamers; no socket, no
//! second core. In turn with it, the kernels alone on the same weights and frames. The difference
//! is what headers, checks, acks, the journal's begin and end, and the flow window take, per frame.
//!
//! `cargo bench --bench stream -- [--weights N] [--chunk N] [--passes N]`

use std::collections::VecDeque;
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Parser;
use dogwild::stream::{Config, Deltas, Merge, Outbox, SILENCE_NS, Streamer, To};
use dogwild::weights::{
    BLOCK, BufferSpec, Created, Existing, JournalOp, MAX_CHUNK, Manifest, SharedWeights,
    StreamState, StreamStateSpec, Writes, kernels,
};
use dogwild::wire::Dtype;

#[derive(Parser)]
#[command(about = "Two streamers in one thread, compared with their kernels alone")]
struct Args {
    /// Weights of the model.
    #[arg(long, default_value_t = 431_080)]
    weights: usize,
    /// Weights per chunk: 336 fit into 1500 bytes, 2208 into 9000.
    #[arg(long, default_value_t = 336)]
    chunk: usize,
    /// Passes over all weights; the fastest counts.
    #[arg(long, default_value_t = 200)]
    passes: usize,
    /// The argument that cargo gives to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

const SESSION: u64 = 0x5e55;
/// Frames under way in one direction, at most.
const FRAMES: usize = 256;
/// Positions sent at a time, as a streamer does.
const BATCH: usize = 128;

/// Frames on their way to one node.
struct Pipe {
    slots: Vec<u8>,
    stride: usize,
    next: usize,
    waiting: VecDeque<(usize, usize)>,
}

impl Pipe {
    fn new(frame_bytes: usize) -> Self {
        // As datagrams in a joined message: one right behind the other.
        Self {
            slots: vec![0; FRAMES * frame_bytes],
            stride: frame_bytes,
            next: 0,
            waiting: VecDeque::with_capacity(FRAMES),
        }
    }
}

impl Outbox for Pipe {
    fn send(&mut self, _: To, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> bool {
        if self.waiting.len() == FRAMES || len > self.stride {
            return false;
        }
        let start = self.next * self.stride;
        self.next = (self.next + 1) % FRAMES;
        fill(&mut self.slots[start..start + len]);
        self.waiting.push_back((start, len));
        true
    }
}

/// A node's buffer and its streamer's state.
struct Node {
    weights: SharedWeights,
    state: StreamState,
    config: Config,
}

impl Node {
    fn new(dir: &Path, node: u16, weights: usize, chunk: usize) -> Result<Self> {
        let path = dir.join(format!("job-n{node}"));
        let spec = BufferSpec {
            session: SESSION,
            manifest: Manifest::new(vec![("w".into(), vec![weights])])?,
            data: Default::default(),
        };
        let shared = match SharedWeights::create(&path, &spec, Existing::Refuse)? {
            Created::New(new) => new.ready(),
            Created::Resumed(old) => old,
        };
        let config = Config {
            session: SESSION,
            fingerprint: shared.fingerprint(),
            data: 0,
            first_weights: 0,
            incarnation: 0,
            node,
            nodes: 2,
            later: 0,
            min_nodes: None,
            masters: 2,
            chunk_weights: u32::try_from(chunk)?,
            chunks: u32::try_from(weights.div_ceil(chunk))?,
            deltas: Deltas::ExactlyOnce,
            merge: Merge::Sum,
            precision: Dtype::F32,
            sparse: false,
            writes: Writes::Racy,
            window_frames: BATCH as u32,
            silence_ns: SILENCE_NS,
        };
        let spec = StreamStateSpec {
            session: SESSION,
            fingerprint: config.fingerprint,
            identity: shared.identity(),
            node,
            nodes: 2,
            places: 2,
            masters: 2,
            chunk_weights: config.chunk_weights,
            chunks: config.chunks,
            padded: shared.padded(),
        };
        let state = StreamState::open_or_create(&StreamState::path_beside(&path), &spec)?.0;
        Ok(Self {
            weights: shared,
            state,
            config,
        })
    }

    fn streamer(&self) -> Streamer<'_> {
        Streamer::new(self.config.clone(), self.weights.view(), &self.state)
    }
}

/// Both nodes and what is between them.
struct Pair<'a> {
    streamers: [Streamer<'a>; 2],
    /// To node 0, to node 1.
    pipes: [Pipe; 2],
    now_ns: u64,
}

impl Pair<'_> {
    /// One turn of each node: frames taken and answered, then positions sent. Returns the frames
    /// taken.
    fn turn(&mut self) -> u64 {
        let mut frames = 0;
        self.now_ns += 50_000;
        for node in 0..2 {
            let [zero, one] = &mut self.pipes;
            let (from, to) = if node == 0 { (zero, one) } else { (one, zero) };
            let streamer = &mut self.streamers[node];
            for _ in 0..from.waiting.len() {
                if let Some((start, len)) = from.waiting.pop_front() {
                    streamer.handle_frame(self.now_ns, &from.slots[start..start + len], to);
                    frames += 1;
                }
            }
            streamer.poll_transmit(self.now_ns, BATCH, to);
        }
        frames
    }

    fn cycles(&self) -> u64 {
        self.streamers
            .iter()
            .map(|streamer| streamer.counters().cycles)
            .min()
            .unwrap_or(0)
    }

    /// Seconds per frame over one cycle of both nodes.
    fn pass(&mut self) -> f64 {
        let goal = self.cycles() + 1;
        let mut frames = 0;
        let start = Instant::now();
        while self.cycles() < goal {
            frames += self.turn();
        }
        start.elapsed().as_secs_f64() / frames as f64
    }
}

/// The kernels that a position and its delta cost, in batches as the stream does them (what a batch
/// touches is elsewhere in the caches when its turn comes again); seconds per frame.
fn kernels_alone(nodes: &[Node; 2], pipes: &mut [Pipe; 2]) -> f64 {
    let [to_master, to_slave] = pipes;
    let (master, slave) = (&nodes[0], &nodes[1]);
    let chunk = master.config.chunk_weights as usize;
    let chunks = master.config.chunks as usize;
    let journals = [master.state.journal(), slave.state.journal()];
    let payload = |c: usize, pipe: &Pipe| {
        let end = (c % FRAMES + 1) * pipe.stride;
        end - 4 * chunk..end
    };
    let start = Instant::now();
    for first in (0..chunks).step_by(BATCH) {
        let batch = first..(first + BATCH).min(chunks);
        for c in batch.clone() {
            let at = payload(c, to_slave);
            let w = master.weights.view().slice(c * chunk, chunk);
            kernels::copy_out_bytes(w, &mut to_slave.slots[at]);
        }
        for c in batch.clone() {
            let at = payload(c, to_slave);
            let (pos, delta) = (&to_slave.slots[at.clone()], &mut to_master.slots[at]);
            let (mine, last, sent) = (
                slave.weights.view().slice(c * chunk, chunk),
                slave.state.last().slice(c * chunk, chunk),
                slave.state.sent().slice(c * chunk, chunk),
            );
            assert!(!kernels::any_non_finite(pos));
            journals[1].begin(JournalOp::Confirmed, 0, 0, 0, 0);
            kernels::take_confirmed(mine, last, sent, pos, delta, 1.0, journals[1], Writes::Racy);
            journals[1].end();
        }
        for c in batch {
            let delta = &to_master.slots[payload(c, to_master)];
            let w = master.weights.view().slice(c * chunk, chunk);
            assert!(!kernels::any_non_finite(delta));
            journals[0].begin(JournalOp::Apply, 0, 0, 0, 0);
            kernels::apply_delta(w, delta, 0, journals[0], Writes::Racy);
            journals[0].end();
        }
    }
    start.elapsed().as_secs_f64() / (2 * chunks) as f64
}

fn main() -> Result<()> {
    let args = Args::parse();
    ensure!(
        args.chunk > 0 && args.chunk.is_multiple_of(BLOCK) && args.chunk <= MAX_CHUNK,
        "--chunk {}: use a multiple of {BLOCK} up to {MAX_CHUNK}",
        args.chunk
    );
    ensure!(
        args.weights >= 2 * args.chunk && args.passes > 0,
        "--weights {} --passes {}: at least two chunks and one pass",
        args.weights,
        args.passes
    );
    let base = Path::new("/dev/shm");
    let base = if base.is_dir() {
        base.to_owned()
    } else {
        std::env::temp_dir()
    };
    let dir = tempfile::tempdir_in(base)?;
    let nodes = [
        Node::new(dir.path(), 0, args.weights, args.chunk)?,
        Node::new(dir.path(), 1, args.weights, args.chunk)?,
    ];
    let frame_bytes = 4 * args.chunk + 64;
    let mut pair = Pair {
        streamers: [nodes[0].streamer(), nodes[1].streamer()],
        pipes: [Pipe::new(frame_bytes), Pipe::new(frame_bytes)],
        now_ns: 0,
    };
    while !pair.streamers.iter().all(Streamer::ready) {
        pair.turn();
    }
    let mut pipes = [Pipe::new(frame_bytes), Pipe::new(frame_bytes)];
    let (mut stream, mut alone) = (f64::MAX, f64::MAX);
    for _ in 0..args.passes {
        stream = stream.min(pair.pass());
        alone = alone.min(kernels_alone(&nodes, &mut pipes));
    }
    println!(
        "{} weights in chunks of {}: {:.1} ns per frame, of which kernels {:.1} ns, protocol {:.1} ns",
        args.weights,
        args.chunk,
        stream * 1e9,
        alone * 1e9,
        (stream - alone) * 1e9,
    );
    Ok(())
}

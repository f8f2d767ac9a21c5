//! Every kernel on every instruction set, compared with memcpy of the same bytes in the same run.
//!
//! Uses a real buffer and a real streamer's state under /dev/shm. Positions and deltas lie in a
//! ring of frames, as they do when a transport lends them. Prints for each kernel the bytes it
//! reads and writes per second. Then come its time over that of a memcpy that moves as many bytes
//! (read + written), and over a memcpy of one array of the weights.
//!
//! `cargo bench --bench kernels -- [--weights N,N] [--chunk N] [--passes N] [--json]`

use std::hint::black_box;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;
use clap::Parser;
use comfy_table::{CellAlignment, Table, presets};
use dogwild::weights::kernels::Kernels;
use dogwild::weights::{
    BLOCK, BufferSpec, Created, Existing, JournalOp, MAX_CHUNK, Manifest, SharedWeights,
    StreamState, StreamStateSpec, WeightsView, Writes,
};

#[derive(Parser)]
#[command(about = "Kernels over shared weights, compared with memcpy")]
struct Args {
    /// Weights of the model; LeNet's and AlexNet's by default.
    #[arg(long, value_delimiter = ',', default_values_t = [431_080, 61_300_000])]
    weights: Vec<usize>,
    /// Weights per chunk: what a frame carries. 352 fit into 1500 bytes, 2224 into 9000.
    #[arg(long, default_value_t = 2224)]
    chunk: usize,
    /// Passes over all weights; the fastest counts. 0: as many as take about 0.2 s.
    #[arg(long, default_value_t = 0)]
    passes: usize,
    /// Only kernels whose name contains this.
    #[arg(long)]
    kernel: Option<String>,
    /// One JSON object per line instead of a table.
    #[arg(long)]
    json: bool,
    /// The argument that cargo gives to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

/// Frames in the ring, as many as a transmit ring has.
const FRAMES: usize = 512;

/// What kernels work on.
struct Bench {
    weights: SharedWeights,
    state: StreamState,
    chunk: usize,
    chunks: usize,
    pos: Vec<u8>,
    out: Vec<u8>,
    x: Vec<f32>,
    /// Two private arrays for memcpy.
    from: Vec<u8>,
    to: Vec<u8>,
    _dir: Dir,
}

/// A folder that is removed when this is dropped.
struct Dir(PathBuf);

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// One line of the result.
#[derive(serde::Serialize)]
struct Line {
    weights: usize,
    chunk_weights: usize,
    kernel: &'static str,
    isa: String,
    ns_per_weight: f64,
    gigabytes_moved_per_s: f64,
    /// Over a memcpy that reads and writes as many bytes.
    times_memcpy_same_bytes: f64,
    /// Over a memcpy of one array of the weights.
    times_memcpy_one_array: f64,
}

/// Views of one chunk, and its frames.
struct Chunk<'a> {
    w: WeightsView<'a>,
    last: WeightsView<'a>,
    sent: WeightsView<'a>,
    pos: &'a [u8],
    out: &'a mut [u8],
    x: &'a [f32],
    state: &'a StreamState,
}

type Run = fn(Kernels, Chunk);

/// Name, 4-byte words read and written per weight, and what is done to a chunk.
const KERNELS: [(&str, u64, Run); 18] = [
    ("copy_out_bytes", 2, |k, c| k.copy_out_bytes(c.w, c.out)),
    ("copy_out_checked", 2, |k, c| {
        k.copy_out_checked(c.w, c.out);
    }),
    ("copy_in_bytes", 2, |k, c| k.copy_in_bytes(c.w, c.pos)),
    ("copy_in", 2, |k, c| k.copy_in(c.w, c.x)),
    ("racy_axpy", 3, |k, c| k.racy_axpy(c.w, -0.01, c.x)),
    ("racy_add_scalar", 2, |k, c| k.racy_add_scalar(c.w, 1.0)),
    ("atomic_add_scalar", 2, |k, c| k.atomic_add_scalar(c.w, 1.0)),
    ("any_non_finite", 1, |k, c| {
        assert!(!k.any_non_finite(c.pos))
    }),
    ("take_confirmed", 7, |k, c| {
        take_confirmed(k, c, Writes::Racy)
    }),
    ("take_unconfirmed", 7, |k, c| {
        let j = c.state.journal();
        j.begin(JournalOp::Unconfirmed, 0, 0, 0, 0);
        black_box(k.take_unconfirmed(
            c.w,
            c.last,
            c.sent,
            c.pos,
            Some(c.out),
            1.0,
            j,
            Writes::Racy,
        ));
        j.end();
    }),
    ("take_keep", 5, |k, c| {
        let j = c.state.journal();
        j.begin(JournalOp::Keep, 0, 0, 0, 0);
        black_box(k.take_keep(c.w, c.last, c.pos, j, Writes::Racy));
        j.end();
    }),
    ("take_forget", 6, |k, c| {
        black_box(k.take_forget(c.w, c.last, c.pos, c.out, 1.0, Writes::Racy));
    }),
    ("adopt", 4, |k, c| k.adopt(c.w, c.last, c.sent, c.pos)),
    ("apply_delta", 3, |k, c| apply(k, c, Writes::Racy)),
    ("scan + apply_delta", 4, |k, c| {
        if !k.any_non_finite(c.pos) {
            apply(k, c, Writes::Racy);
        }
    }),
    ("take_confirmed atomic", 7, |k, c| {
        take_confirmed(k, c, Writes::Atomic)
    }),
    ("apply_delta atomic", 3, |k, c| apply(k, c, Writes::Atomic)),
    ("apply_delta by one", 3, |k, c| {
        // Weights that are not aligned are exchanged one by one.
        let len = (c.w.len() - 1) / BLOCK * BLOCK;
        let (w, pos) = (c.w.slice(1, len), &c.pos[..4 * len]);
        apply(k, Chunk { w, pos, ..c }, Writes::Atomic);
    }),
];

fn take_confirmed(k: Kernels, c: Chunk, writes: Writes) {
    let j = c.state.journal();
    j.begin(JournalOp::Confirmed, 0, 0, 0, 0);
    black_box(k.take_confirmed(c.w, c.last, c.sent, c.pos, c.out, 1.0, j, writes));
    j.end();
}

fn apply(k: Kernels, c: Chunk, writes: Writes) {
    let j = c.state.journal();
    j.begin(JournalOp::Apply, 0, 0, 0, 0);
    k.apply_delta(c.w, c.pos, 0, j, writes);
    j.end();
}

impl Bench {
    fn new(n: usize, chunk: usize) -> Result<Self> {
        let base = if PathBuf::from("/dev/shm").is_dir() {
            "/dev/shm".into()
        } else {
            std::env::temp_dir()
        };
        let dir = Dir(base.join(format!("dogwild-bench-{}", std::process::id())));
        std::fs::create_dir_all(&dir.0)?;
        let manifest = Manifest::new(vec![("w".into(), vec![n])])?;
        let path = dir.0.join("job-n0");
        let spec = BufferSpec {
            session: 1,
            manifest,
            data: Default::default(),
        };
        let weights = match SharedWeights::create(&path, &spec, Existing::Refuse)? {
            Created::New(new) => new.ready(),
            Created::Resumed(old) => old,
        };
        let spec = StreamStateSpec {
            session: 1,
            fingerprint: weights.fingerprint(),
            identity: weights.identity(),
            node: 0,
            nodes: 2,
            places: 2,
            masters: 2,
            chunk_weights: u32::try_from(chunk)?,
            chunks: u32::try_from(n.div_ceil(chunk))?,
            padded: weights.padded(),
        };
        let state = StreamState::open_or_create(&StreamState::path_beside(&path), &spec)?.0;
        let x: Vec<f32> = (0..chunk).map(|i| i as f32).collect();
        // A frame's payload does not begin at a multiple of anything.
        let frame: Vec<u8> = x.iter().flat_map(|x| x.to_le_bytes()).collect();
        let ring = frame.repeat(FRAMES);
        Ok(Self {
            out: ring.clone(),
            pos: ring,
            from: vec![1; n * 4],
            to: vec![2; n * 4],
            chunks: n.div_ceil(chunk),
            weights,
            state,
            chunk,
            x,
            _dir: dir,
        })
    }

    fn pass(&mut self, kernels: Kernels, run: Run) {
        let (w, last, sent) = (self.weights.view(), self.state.last(), self.state.sent());
        let bytes = self.chunk * 4;
        for c in 0..self.chunks {
            let frame = c % FRAMES * bytes..(c % FRAMES + 1) * bytes;
            let (start, len) = (c * self.chunk, self.chunk);
            let chunk = Chunk {
                w: w.slice(start, len),
                last: last.slice(start, len),
                sent: sent.slice(start, len),
                pos: &self.pos[frame.clone()],
                out: &mut self.out[frame],
                x: &self.x,
                state: &self.state,
            };
            run(kernels, chunk);
        }
    }

    fn memcpy(&mut self) {
        black_box(&mut self.to).copy_from_slice(black_box(&self.from));
    }

    /// Seconds per pass of the kernel and of a memcpy of one array, the best of several,
    /// taken in turn so that both see the same machine.
    fn time(&mut self, kernels: Kernels, run: Run, passes: usize) -> (f64, f64) {
        let (mut kernel, mut memcpy) = (f64::MAX, f64::MAX);
        let begun = Instant::now();
        let mut done = 0;
        while done < passes || passes == 0 && (done < 3 || begun.elapsed().as_secs_f64() < 0.2) {
            let start = Instant::now();
            self.pass(kernels, run);
            kernel = kernel.min(start.elapsed().as_secs_f64());
            let start = Instant::now();
            self.memcpy();
            memcpy = memcpy.min(start.elapsed().as_secs_f64());
            done += 1;
        }
        (kernel, memcpy)
    }
}

fn main() -> Result<()> {
    let args = Args::parse();
    anyhow::ensure!(
        args.chunk > 0 && args.chunk.is_multiple_of(BLOCK) && args.chunk <= MAX_CHUNK,
        "--chunk {}: use a multiple of {BLOCK} up to {MAX_CHUNK}",
        args.chunk
    );
    for &n in &args.weights {
        let mut bench = Bench::new(n, args.chunk)?;
        let mut lines = Vec::new();
        let wanted = |name: &str| {
            args.kernel
                .as_ref()
                .is_none_or(|k| name.contains(k.as_str()))
        };
        for (name, words, run) in KERNELS.into_iter().filter(|k| wanted(k.0)) {
            for kernels in Kernels::available() {
                let (kernel, memcpy) = bench.time(kernels, run, args.passes);
                let moved = words as f64 * 4.0 * n as f64;
                lines.push(Line {
                    weights: n,
                    chunk_weights: args.chunk,
                    kernel: name,
                    isa: format!("{:?}", kernels.isa()).to_lowercase(),
                    ns_per_weight: kernel / n as f64 * 1e9,
                    gigabytes_moved_per_s: moved / kernel / 1e9,
                    times_memcpy_same_bytes: kernel / (memcpy * words as f64 / 2.0),
                    times_memcpy_one_array: kernel / memcpy,
                });
            }
        }
        print(&lines, args.json)?;
    }
    Ok(())
}

fn print(lines: &[Line], json: bool) -> Result<()> {
    if json {
        for line in lines {
            println!("{}", serde_json::to_string(line)?);
        }
        return Ok(());
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "kernel",
        "isa",
        "ns/weight",
        "GB/s moved",
        "x memcpy, same bytes",
        "x memcpy, one array",
    ]);
    for line in lines {
        table.add_row([
            line.kernel.to_string(),
            line.isa.clone(),
            format!("{:.3}", line.ns_per_weight),
            format!("{:.1}", line.gigabytes_moved_per_s),
            format!("{:.2}", line.times_memcpy_same_bytes),
            format!("{:.2}", line.times_memcpy_one_array),
        ]);
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    if let Some(first) = lines.first() {
        println!(
            "{} weights in chunks of {}\n{table}\n",
            first.weights, first.chunk_weights
        );
    }
    Ok(())
}

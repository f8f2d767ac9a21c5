//! The Hogwild experiment: solvers add a constant to the same weights at the same time; how
//! much of it is missing in the end?
//!
//! Solvers are processes on one shared file, as in a job (or threads, to compare). Each adds 1 to
//! every weight in each pass, so the end value is exact in f32 and whatever it lacks was lost
//! between a load and a store. Touches one folder under /dev/shm, which is removed at the end.

mod solver;

use std::path::Path;
use std::str::FromStr;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use clap::ValueEnum;
use dogwild::watch::screen::{self, Columns};
use dogwild::weights::{
    BufferSpec, Created, Existing, Manifest, Role, SharedWeights, SlotInfo, kernels,
};
use dogwild_tools::scratch::Scratch;

use solver::{Solver, meter, solve};

/// Beyond this, f32 cannot count in ones.
const COUNTS_MAX: u64 = 1 << 24;

/// Lost updates of the Hogwild experiment.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct HogwildArgs {
    /// Numbers of solvers that add at the same time.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2])]
    solvers: Vec<u32>,
    /// Sizes of the weights, for instance 64KiB or 4MiB.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1KiB,4KiB,16KiB,64KiB,256KiB,1MiB,4MiB,16MiB,64MiB,256MiB"
    )]
    sizes: Vec<Size>,
    /// How a solver adds.
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["racy", "axpy", "atomic"])]
    kernel: Vec<Kernel>,
    /// Times each solver adds to every weight. 0: as many as add to about 1 GiB.
    #[arg(long, default_value_t = 0)]
    passes: u64,
    /// Runs of each experiment, at most: it is repeated until all solvers were on a processor
    /// together 90 % of the time, and the run in which they were so most is shown, whatever it
    /// lost.
    #[arg(long, default_value_t = 5)]
    attempts: u32,
    /// Solvers are threads of one process instead of processes.
    #[arg(long)]
    threads: bool,
    /// One JSON object per line instead of a table.
    #[arg(long)]
    json: bool,
    /// Be solver number N on this buffer (how this program starts its solvers).
    #[arg(long, hide = true, num_args = 2, value_names = ["BUFFER", "N"])]
    solver_of: Option<Vec<String>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kernel {
    /// `racy_add_scalar`: vector load, add, store.
    Racy,
    /// `racy_axpy`: the same with a product, as a solver's update.
    Axpy,
    /// `atomic_add_scalar`: each word exchanged.
    Atomic,
}

impl Kernel {
    fn name(self) -> String {
        self.to_possible_value()
            .map_or(String::new(), |v| v.get_name().into())
    }
}

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size(usize);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = match text[digits.len()..].to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kib" => 1 << 10,
            "m" | "mib" => 1 << 20,
            "g" | "gib" => 1 << 30,
            other => return Err(format!("unknown unit {other:?}; use KiB, MiB or GiB")),
        };
        let bytes = digits
            .parse::<usize>()
            .ok()
            .and_then(|n| n.checked_mul(unit));
        match bytes {
            Some(bytes) if bytes >= 4 && bytes.is_multiple_of(4) => Ok(Self(bytes)),
            _ => Err("use a whole number of weights, 4 bytes each, for instance 64KiB".into()),
        }
    }
}

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self.0 {
            n if n.is_multiple_of(1 << 20) => write!(f, "{} MiB", n >> 20),
            n if n.is_multiple_of(1 << 10) => write!(f, "{} KiB", n >> 10),
            n => write!(f, "{n} B"),
        }
    }
}

/// Below this, a run says little: solvers that take turns lose nothing to each other.
const TOGETHER_MIN: f64 = 0.9;

/// The result for one size, kernel and number of solvers.
#[derive(serde::Serialize)]
struct Line {
    bytes: usize,
    kernel: String,
    solvers: u32,
    passes: u64,
    /// Runs it took; this is the one with the most of `together`.
    attempts: u32,
    /// Of the time from the first solver's start to the last one's end, the share in which all ran.
    overlap: f64,
    /// The share of its own time that the least lucky solver was on a processor. Well below 1,
    /// solvers took turns (other load), and races that were not run lost nothing.
    on_cpu: Option<f64>,
    /// Additions per second, all solvers together.
    additions_per_s: f64,
    added: f64,
    arrived: f64,
    lost_share: f64,
}

impl Line {
    /// How far the solvers really ran at the same time, 0 to 1.
    fn together(&self) -> f64 {
        self.overlap.min(self.on_cpu.unwrap_or(1.0))
    }
}

/// The same experiment until the solvers ran together. Chosen by that alone, never by what was
/// lost.
fn measure_together(args: &HogwildArgs, size: Size, kernel: Kernel, solvers: u32) -> Result<Line> {
    let mut best = measure(args, size, kernel, solvers)?;
    let mut attempts = 1;
    while best.together() < TOGETHER_MIN && attempts < args.attempts {
        let line = measure(args, size, kernel, solvers)?;
        if line.together() > best.together() {
            best = line;
        }
        attempts += 1;
    }
    best.attempts = attempts;
    Ok(best)
}

/// Runs the experiment and prints its table.
pub(crate) fn run(args: &HogwildArgs) -> Result<()> {
    if let Some(of) = &args.solver_of {
        return solve(Path::new(&of[0]), of[1].parse()?);
    }
    ensure!(
        args.solvers.iter().all(|&n| (1..=63).contains(&n)),
        "--solvers: use 1 to 63 of them"
    );
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if let Some(n) = args.solvers.iter().find(|&&n| n as usize > cores) {
        dogwild_lab::note!("warning: {n} solvers on {cores} cores take turns, which hides losses");
    }
    let mut lines = Vec::new();
    for &size in &args.sizes {
        for &kernel in &args.kernel {
            for &solvers in &args.solvers {
                let line = measure_together(args, size, kernel, solvers)?;
                if args.json {
                    dogwild_lab::say!("{}", serde_json::to_string(&line)?);
                    if !dogwild_lab::out::is_heard() {
                        return Ok(());
                    }
                }
                lines.push(line);
            }
        }
    }
    if !args.json {
        print(&lines);
    }
    Ok(())
}

/// One experiment: a fresh buffer, the solvers, the sum.
fn measure(args: &HogwildArgs, size: Size, kernel: Kernel, solvers: u32) -> Result<Line> {
    let n = size.0 / 4;
    let auto = (1u64 << 30) / size.0 as u64;
    // An atomic addition takes about ten times as long.
    let auto = if kernel == Kernel::Atomic {
        auto / 8
    } else {
        auto
    };
    let passes = if args.passes == 0 {
        auto.clamp(2, COUNTS_MAX / u64::from(solvers))
    } else {
        args.passes
    };
    ensure!(
        passes.saturating_mul(solvers.into()) <= COUNTS_MAX,
        "--passes {passes} times {solvers} solvers is more than f32 can count; use at most {}",
        COUNTS_MAX / u64::from(solvers)
    );
    let dir = Scratch::new("dogwild-rawbench")?;
    let path = dir.file("job-n0");
    let manifest = Manifest::new(vec![("w".into(), vec![n])])?;
    let spec = BufferSpec {
        session: 1,
        manifest,
        data: Default::default(),
    };
    let weights = match SharedWeights::create(&path, &spec, Existing::Fresh)? {
        Created::New(new) => new.ready(),
        Created::Resumed(_) => bail!("asked for a fresh buffer"),
    };
    let tell = [
        (meter::KERNEL, kernel as u64),
        (meter::PASSES, passes),
        (meter::BYTES, size.0 as u64),
    ];
    for index in 0..solvers {
        let slot = weights.claim_slot(Role::Solver, index)?;
        tell.iter()
            .for_each(|&(m, value)| slot.meters()[m].store(value, Relaxed));
    }
    let started: Result<Vec<_>> = (0..solvers)
        .map(|i| Solver::start(args, &path, i))
        .collect();
    let waiting = started.and_then(|mut all| wait_until_ready(&weights, &mut all).map(|()| all));
    // On an error too, so that no solver waits forever.
    weights
        .globals()
        .stop
        .store(u32::from(waiting.is_err()), Relaxed);
    // Partner: the Acquire load in `solve`.
    weights
        .globals()
        .ready
        .store(u32::from(waiting.is_ok()), Release);
    // All solvers have the file open: if this process is killed, nothing is left behind.
    drop(dir);
    waiting?.into_iter().try_for_each(Solver::wait)?;
    let mut values = vec![0.0; n];
    kernels::copy_out(weights.view().slice(0, n), &mut values);
    let arrived: f64 = values.iter().map(|&v| f64::from(v)).sum();
    Ok(line(size, kernel, passes, &weights.slots(), arrived))
}

fn wait_until_ready(weights: &SharedWeights, solvers: &mut [Solver]) -> Result<()> {
    while weights
        .slots()
        .iter()
        .any(|s| s.meters[meter::WAITING] == 0)
    {
        for solver in &mut *solvers {
            ensure!(!solver.has_ended()?, "a solver ended before the start");
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    Ok(())
}

fn line(size: Size, kernel: Kernel, passes: u64, slots: &[SlotInfo], arrived: f64) -> Line {
    let times = |m: usize| slots.iter().map(move |s| s.meters[m]);
    let (first, all_began) = (
        times(meter::BEGAN_UNIX_NS).min(),
        times(meter::BEGAN_UNIX_NS).max(),
    );
    let (one_ended, last) = (
        times(meter::ENDED_UNIX_NS).min(),
        times(meter::ENDED_UNIX_NS).max(),
    );
    let span = |from: Option<u64>, to: Option<u64>| {
        to.zip(from).map_or(0, |(t, f)| t.saturating_sub(f)) as f64
    };
    let total_ns = span(first, last).max(1.0);
    let on_cpu = slots.iter().map(|s| {
        let wall = s.meters[meter::ENDED_UNIX_NS].saturating_sub(s.meters[meter::BEGAN_UNIX_NS]);
        s.meters[meter::ON_CPU_NS] as f64 / wall.max(1) as f64
    });
    let on_cpu = Some(on_cpu.fold(1.0, f64::min)).filter(|&share| share > 0.0);
    let added = (size.0 / 4) as f64 * passes as f64 * slots.len() as f64;
    Line {
        bytes: size.0,
        kernel: kernel.name(),
        solvers: slots.len() as u32,
        passes,
        attempts: 1,
        on_cpu,
        overlap: span(all_began, one_ended) / total_ns,
        additions_per_s: added / total_ns * 1e9,
        added,
        arrived,
        lost_share: (added - arrived) / added,
    }
}

/// A mark for results of solvers that took turns.
fn doubt(line: &Line) -> &'static str {
    if line.solvers > 1 && line.together() < TOGETHER_MIN {
        " *"
    } else {
        ""
    }
}

fn print(lines: &[Line]) {
    let mut table = Columns::plain([
        "size",
        "kernel",
        "solvers",
        "passes",
        "overlap",
        "on CPU",
        "additions/s",
        "lost",
    ])
    .with_words(1..2);
    for line in lines {
        table.row([
            Size(line.bytes).to_string(),
            line.kernel.clone(),
            line.solvers.to_string(),
            line.passes.to_string(),
            format!("{:.0} %", line.overlap * 100.0),
            line.on_cpu
                .map_or("?".into(), |share| format!("{:.0} %", share * 100.0)),
            format!("{:.2} G", line.additions_per_s / 1e9),
            format!("{:.4} %{}", line.lost_share * 100.0, doubt(line)),
        ]);
    }
    dogwild_lab::say!("{table}");
    if lines.iter().any(|line| !doubt(line).is_empty()) {
        let least = TOGETHER_MIN * 100.0;
        let note = format!(
            "* solvers ran together less than {least} % of the time: no measure of what is lost; end other load"
        );
        dogwild_lab::say!("{}", screen::wrap(&note, screen::width()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        args: HogwildArgs,
    }

    fn args(line: &str) -> HogwildArgs {
        let words = std::iter::once("hogwild").chain(line.split(' '));
        <Cli as clap::Parser>::try_parse_from(words)
            .expect("valid arguments")
            .args
    }

    #[test]
    fn sizes_are_parsed() {
        let sizes = ["4", "1KiB", "256mib", "2G"].map(|s| s.parse::<Size>().map(|s| s.0));
        assert_eq!(sizes, [Ok(4), Ok(1024), Ok(256 << 20), Ok(2 << 30)]);
        for bad in ["", "0", "6", "1TiB", "KiB", "99999999999999999999"] {
            assert!(bad.parse::<Size>().is_err(), "{bad}");
        }
    }

    #[test]
    fn atomic_additions_and_a_single_solver_lose_nothing() {
        let args = args("--threads --passes 2000");
        let lost = |kernel, solvers| {
            measure(&args, Size(1024), kernel, solvers)
                .unwrap()
                .lost_share
        };
        assert_eq!(lost(Kernel::Atomic, 2), 0.0);
        assert_eq!(lost(Kernel::Racy, 1), 0.0);
        assert_eq!(lost(Kernel::Axpy, 1), 0.0);
    }

    #[test]
    fn more_than_f32_counts_is_refused() {
        let error = measure(&args("--passes 9000000"), Size(1024), Kernel::Racy, 2)
            .err()
            .unwrap();
        assert!(error.to_string().contains("use at most 8388608"), "{error}");
    }
}

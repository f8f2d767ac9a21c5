//! One solver of the Hogwild experiment: a process or a thread that adds and tells when.
//!
//! Touches the buffer it is given, and tells through the meters of its slot.

use std::os::unix::process::parent_id;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::thread::JoinHandle;
use std::time::SystemTime;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use dogwild::weights::{Expect, Role, SharedWeights, kernels};

use super::{HogwildArgs, Kernel};

/// A running solver. It ends by itself if it is told to stop, or its parent ends, before the start.
pub(super) enum Solver {
    Thread(JoinHandle<Result<()>>),
    Process(Child),
}

impl Solver {
    pub(super) fn start(args: &HogwildArgs, path: &Path, index: u32) -> Result<Self> {
        if args.threads {
            let path = path.to_path_buf();
            return Ok(Self::Thread(std::thread::spawn(move || {
                solve(&path, index)
            })));
        }
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["hogwild", "--solver-of"])
            .args([path.as_os_str(), index.to_string().as_ref()]);
        dogwild_lab::process::die_with_parent(&mut command);
        let child = command.spawn().context("cannot start a solver")?;
        Ok(Self::Process(child))
    }

    pub(super) fn has_ended(&mut self) -> Result<bool> {
        Ok(match self {
            Self::Thread(thread) => thread.is_finished(),
            Self::Process(child) => child.try_wait()?.is_some(),
        })
    }

    pub(super) fn wait(mut self) -> Result<()> {
        match &mut self {
            Self::Process(child) => {
                let status = child.wait()?;
                ensure!(status.success(), "a solver ended with {status}");
                Ok(())
            }
            Self::Thread(_) => {
                let Self::Thread(thread) = self else {
                    unreachable!("matched just now")
                };
                thread
                    .join()
                    .map_err(|_| anyhow::anyhow!("a solver panicked"))?
            }
        }
    }
}

/// What a solver is told and tells through the meters of its slot.
pub(super) mod meter {
    /// Told by the parent before the solver claims the slot.
    pub(in super::super) const KERNEL: usize = 0;
    pub(in super::super) const PASSES: usize = 1;
    pub(in super::super) const BYTES: usize = 2;
    /// Told by the solver: 1 when it waits for the start; when it began and ended.
    pub(in super::super) const WAITING: usize = 3;
    pub(in super::super) const BEGAN_UNIX_NS: usize = 4;
    pub(in super::super) const ENDED_UNIX_NS: usize = 5;
    /// How long it was on a processor in between, nanoseconds.
    pub(in super::super) const ON_CPU_NS: usize = 6;
}

fn unix_ns() -> u64 {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Nanoseconds this thread was on a processor (Linux; `None` elsewhere).
fn on_cpu_ns() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_ascii_whitespace().next()?.parse().ok()
}

/// One solver: waits for the start, adds, tells when.
pub(super) fn solve(path: &Path, index: u32) -> Result<()> {
    let weights = SharedWeights::open(path, &Expect::default())?;
    let slot = weights.claim_slot(Role::Solver, index)?;
    let meters = slot.meters();
    let told = |m: usize| meters[m].load(Relaxed);
    let w = weights
        .view()
        .slice(0, usize::try_from(told(meter::BYTES))? / 4);
    let kernel = *Kernel::value_variants()
        .get(usize::try_from(told(meter::KERNEL))?)
        .context("no such kernel")?;
    let ones = if kernel == Kernel::Axpy {
        vec![1.0; w.len()]
    } else {
        Vec::new()
    };
    let parent = parent_id();
    meters[meter::WAITING].store(1, Release);
    // Partner: the Release store of `ready` in `measure`. Spinning, so that all start at once.
    while weights.globals().ready.load(Acquire) == 0 {
        if weights.globals().stop.load(Relaxed) != 0 {
            bail!("told to stop before the start");
        }
        ensure!(
            parent_id() == parent,
            "the experiment ended before the start"
        );
        std::hint::spin_loop();
    }
    let on_cpu = on_cpu_ns();
    meters[meter::BEGAN_UNIX_NS].store(unix_ns(), Relaxed);
    for _ in 0..told(meter::PASSES) {
        match kernel {
            Kernel::Racy => kernels::racy_add_scalar(w, 1.0),
            Kernel::Axpy => kernels::racy_axpy(w, 1.0, &ones),
            Kernel::Atomic => kernels::atomic_add_scalar(w, 1.0),
        }
    }
    meters[meter::ENDED_UNIX_NS].store(unix_ns(), Relaxed);
    let on_cpu = on_cpu_ns()
        .zip(on_cpu)
        .map_or(0, |(end, begin)| end.saturating_sub(begin));
    meters[meter::ON_CPU_NS].store(on_cpu, Relaxed);
    Ok(())
}

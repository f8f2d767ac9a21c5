//! `dogwild train`: a whole job on this machine, from buffers to report.

use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use dogwild_lab::Lab;

use super::children::{Component, stop_all};
use super::progress::{self, Progress};
use super::results::{remove_old_results, save_weights, summarise, write_results};
use super::start::{start_solver, start_streamer};
use super::summary::Summary;
use super::{BufferPlan, make_buffer};
use crate::solver::SolverSpec;
use crate::solver::data::{DataSet, Source};
use crate::weights::{Existing, SharedWeights};

/// Longest time given to the last deltas and positions after the solvers have ended.
const SETTLE: Duration = Duration::from_secs(20);
/// Time between two looks at components and counters.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Start of the names of all files that this command makes under /dev/shm.
pub(super) const PREFIX: &str = "dogwild-train-";

/// What to train, and how.
pub struct TrainPlan {
    /// Number of nodes.
    pub nodes: u16,
    /// Solvers on each node.
    pub solvers: u32,
    /// The model, checked.
    pub spec: SolverSpec,
    /// The model as named on the command line.
    pub model: String,
    /// Pictures.
    pub data: Source,
    /// Iterations of the cluster; 0: until stopped or the target accuracy is reached.
    pub iterations: u64,
    /// Stop at this share of right answers.
    pub target_accuracy: Option<f32>,
    /// Iterations between tests, if other than the solver file says.
    pub test_every: Option<u64>,
    /// Seed of weights and pictures.
    pub seed: u64,
    /// Weights to start from.
    pub weights: Option<PathBuf>,
    /// Folder for the results.
    pub out: PathBuf,
    /// Hosts in namespaces instead of loopback.
    pub lab: Option<dogwild_lab::Spec>,
    /// Arguments that streamers get beside buffer and node, for each node.
    pub stream_args: Box<dyn Fn(u16) -> Vec<String>>,
    /// For the summary.
    pub transport: String,
    /// For the summary.
    pub deltas: String,
    /// For the summary.
    pub rate_bytes_per_s: Option<f64>,
}

/// Files under /dev/shm that go when the job does.
pub(super) struct Buffers {
    pub(super) job: String,
    pub(super) nodes: Vec<SharedWeights>,
}

impl Drop for Buffers {
    fn drop(&mut self) {
        remove_files(|name| name.starts_with(&self.job));
    }
}

fn remove_files(which: impl Fn(&str) -> bool) {
    let Ok(entries) = fs::read_dir("/dev/shm") else {
        return;
    };
    for entry in entries.flatten() {
        if entry.file_name().to_str().is_some_and(&which) {
            // Somebody else's file stays: that is the system's answer, not ours.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Removes what earlier jobs left whose launcher was killed.
pub(super) fn remove_orphans() {
    remove_files(|name| {
        let pid = name
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.split('-').next());
        pid.is_some_and(|pid| pid.parse::<u32>().is_ok() && !Path::new("/proc").join(pid).exists())
    });
}

/// Runs the job. `stop` ends it early, with everything that an end brings but the last deliveries.
pub fn train(plan: &TrainPlan, stop: &AtomicBool) -> Result<Summary> {
    let set = plan.data.load()?;
    fs::create_dir_all(&plan.out)
        .with_context(|| format!("cannot make the folder {}", plan.out.display()))?;
    remove_old_results(&plan.out)?;
    remove_orphans();
    let buffers = make_buffers(plan, &set)?;
    let lab = plan.lab.as_ref().map(Lab::up).transpose()?.map(Rc::new);
    let mut streamers = Vec::new();
    let mut solvers = Vec::new();
    for node in 0..plan.nodes {
        if plan.nodes > 1 {
            streamers.push(start_streamer(
                plan,
                &buffers.nodes[usize::from(node)],
                lab.as_ref(),
                node,
            )?);
        }
        for index in 0..plan.solvers {
            solvers.push(start_solver(
                plan,
                &buffers.nodes[usize::from(node)],
                lab.as_ref(),
                node,
                index,
            )?);
        }
    }
    let result = watch(plan, &buffers, &mut streamers, &mut solvers, stop);
    let interrupted = stop.load(Relaxed);
    if result.is_err() || interrupted {
        stop_all(streamers.iter_mut().chain(&mut solvers));
    }
    let train_s = result?;
    let identical = !interrupted && settle(&buffers.nodes, &mut streamers, stop)?;
    stop_all(streamers.iter_mut().chain(&mut solvers));
    let restarts = streamers
        .iter()
        .chain(&solvers)
        .map(|component| component.restarts)
        .sum();
    if let Some(first) = buffers.nodes.first() {
        save_weights(&plan.out, &plan.model, first)?;
    }
    let summary = summarise(
        plan,
        &buffers.nodes,
        set,
        stop,
        train_s,
        restarts,
        identical,
    )?;
    let title = format!(
        "{} on {}, {} nodes over {}",
        plan.model, plan.data, plan.nodes, plan.transport
    );
    write_results(&plan.out, plan.nodes, &title, &summary)?;
    Ok(summary)
}

fn make_buffers(plan: &TrainPlan, set: &DataSet) -> Result<Buffers> {
    let job = format!("{PREFIX}{}-", std::process::id());
    let mut buffers = Buffers {
        nodes: Vec::new(),
        job,
    };
    // Jobs of one machine share its network: each has a session of its own.
    let session = xxhash_rust::xxh3::xxh3_64(format!("{}{}", buffers.job, plan.seed).as_bytes());
    for node in 0..plan.nodes {
        let path = Path::new("/dev/shm").join(format!("{}n{node}", buffers.job));
        buffers.nodes.push(make_buffer(&BufferPlan {
            path: &path,
            spec: &plan.spec,
            data: &plan.data,
            input: set.train.shape,
            classes: set.train.classes,
            session,
            nodes: plan.nodes,
            seed: plan.seed,
            iterations: plan.iterations,
            weights: plan.weights.as_deref(),
            existing: Existing::Refuse,
        })?);
    }
    Ok(buffers)
}

/// Watches until all solvers have ended or `stop` is set. Returns the seconds of training.
fn watch(
    plan: &TrainPlan,
    buffers: &Buffers,
    streamers: &mut [Component],
    solvers: &mut [Component],
    stop: &AtomicBool,
) -> Result<f64> {
    let mut progress = Progress::new(plan.iterations, progress::Path::Stream);
    let mut started = Instant::now();
    while !stop.load(Relaxed) && !solvers.iter().all(Component::done) {
        if buffers
            .nodes
            .iter()
            .all(|shared| shared.globals().iterations() == 0)
        {
            started = Instant::now();
        }
        for component in streamers.iter_mut().chain(&mut *solvers) {
            component.watch()?;
        }
        // A target accuracy that one node has reached ends all.
        if buffers
            .nodes
            .iter()
            .any(|shared| shared.globals().stop.load(Relaxed) != 0)
        {
            for shared in &buffers.nodes {
                shared.globals().stop.store(1, Relaxed);
            }
        }
        progress.show(&buffers.nodes);
        std::thread::sleep(LOOK_EVERY);
    }
    progress.finish();
    Ok(started.elapsed().as_secs_f64())
}

/// Waits until the last deltas and positions have arrived: all replicas equal, bit for bit.
fn settle(nodes: &[SharedWeights], streamers: &mut [Component], stop: &AtomicBool) -> Result<bool> {
    let end = Instant::now() + SETTLE;
    while !identical(nodes) {
        if Instant::now() >= end || stop.load(Relaxed) {
            return Ok(false);
        }
        for streamer in &mut *streamers {
            streamer.watch()?;
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(true)
}

pub(super) fn identical(nodes: &[SharedWeights]) -> bool {
    let Some((first, others)) = nodes.split_first() else {
        return true;
    };
    let (w, used) = (first.view(), first.used());
    others.iter().all(|other| {
        let other = other.view();
        (0..used).all(|i| w.load(i).to_bits() == other.load(i).to_bits())
    })
}

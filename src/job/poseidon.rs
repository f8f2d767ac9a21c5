//! `dogwild train --sync poseidon`: coordinator, servers and workers on this machine.
//!
//! When one of them dies, all are started again from the last checkpoint: at staleness 0 the run
//! ends with the very weights it would have had.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::children::{Component, stop_all};
use super::poseidon_summary::{PoseidonSummary, summarise};
use super::progress::{self, Progress};
use super::results::{node_curve, remove_old_results, save_weights, write_results};
use super::start::{starter, strings};
use super::train::{Buffers, LOOK_EVERY, PREFIX, identical, remove_orphans};
use super::{BufferPlan, make_buffer};
use crate::node::poseidon::ANOTHER_FAILED;
use crate::solver::SolverSpec;
use crate::solver::data::{DataSet, Source};
use crate::weights::Existing;

/// Starts in a row without any step in between before the job gives up.
const MOST_VAIN_STARTS: u32 = 5;

/// What to train, and how.
pub struct PoseidonPlan {
    /// Workers.
    pub workers: u16,
    /// Servers.
    pub servers: u16,
    /// Threads of each worker.
    pub threads: usize,
    /// Arguments of the coordinator that say how the cluster works.
    pub cluster_args: Vec<String>,
    /// Arguments of all processes.
    pub member_args: Vec<String>,
    /// Arguments of workers besides.
    pub worker_args: Vec<String>,
    /// Bytes per second that each worker and each server sends at most.
    pub bandwidth_bytes_per_s: Option<f64>,
    /// The model, checked.
    pub spec: SolverSpec,
    /// The model as named on the command line.
    pub model: String,
    /// Pictures.
    pub data: Source,
    /// Iterations of each worker.
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
    /// Whether there are checkpoints.
    pub checkpoints: bool,
    /// Go on from the checkpoints in `out`.
    pub resume: bool,
}

/// What a resumed run must have been started with; beside the checkpoints as `run.json`.
#[derive(Debug, Serialize, Deserialize)]
struct Run {
    session: String,
}

/// The processes of a cluster.
struct Fleet {
    coordinator: Component,
    members: Vec<Component>,
}

impl Fleet {
    fn all(&mut self) -> impl Iterator<Item = &mut Component> {
        std::iter::once(&mut self.coordinator).chain(&mut self.members)
    }

    fn done(&self) -> bool {
        self.coordinator.done() && self.members.iter().all(Component::done)
    }
}

impl PoseidonPlan {
    fn checkpoints(&self) -> PathBuf {
        self.out.join("checkpoints")
    }

    /// Name of the session: of the run that is resumed, or a new one.
    fn session(&self) -> Result<String> {
        let path = self.checkpoints().join("run.json");
        if self.resume {
            let text = fs::read_to_string(&path).with_context(|| {
                format!(
                    "--resume: there is no run to resume, cannot read {}",
                    path.display()
                )
            })?;
            let run: Run = serde_json::from_str(&text)
                .with_context(|| format!("{} cannot be read", path.display()))?;
            return Ok(run.session);
        }
        let since = std::time::SystemTime::UNIX_EPOCH
            .elapsed()
            .unwrap_or_default();
        let session = format!("train-{}-{}", std::process::id(), since.as_nanos());
        if self.checkpoints {
            let run = Run {
                session: session.clone(),
            };
            fs::create_dir_all(self.checkpoints())?;
            fs::write(&path, serde_json::to_string(&run)?)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(session)
    }

    /// Arguments of all processes about the model.
    fn model_args(&self) -> Vec<String> {
        let mut args = vec![
            "--solver".into(),
            self.model.clone(),
            "--data".into(),
            self.data.to_string(),
            "--seed".into(),
            self.seed.to_string(),
            "--threads-per-worker".into(),
            self.threads.to_string(),
        ];
        if let Some(file) = &self.weights {
            args.extend(["--weights".into(), file.display().to_string()]);
        }
        args
    }
}

/// Runs the job. `stop` ends it early.
pub fn train_poseidon(plan: &PoseidonPlan, stop: &AtomicBool) -> Result<PoseidonSummary> {
    let set = plan.data.load()?;
    fs::create_dir_all(&plan.out)
        .with_context(|| format!("cannot make the folder {}", plan.out.display()))?;
    let session = plan.session()?;
    if !plan.resume {
        remove_old_results(&plan.out)?;
    }
    remove_orphans();
    let buffers = make_buffers(plan, &session, &set)?;
    let mut watched = Watched {
        plan,
        session: &session,
        buffers: &buffers,
        restarts: 0,
        vain: 0,
        started: Instant::now(),
    };
    let mut fleet = watched.start(plan.resume, stop)?;
    let result = watched.watch(&mut fleet, stop);
    if result.is_err() || stop.load(Relaxed) {
        stop_all(fleet.all());
    }
    let train_s = result?;
    let first = buffers.nodes.first().context("no worker")?;
    save_weights(&plan.out, &plan.model, first)?;
    let same = !stop.load(Relaxed) && identical(&buffers.nodes);
    let summary = summarise(
        plan,
        &buffers.nodes,
        set,
        stop,
        train_s,
        watched.restarts,
        same,
    )?;
    let title = format!(
        "{} on {}, {} workers and {} servers",
        plan.model, plan.data, plan.workers, plan.servers
    );
    write_results(&plan.out, plan.workers, &title, &summary)?;
    Ok(summary)
}

fn make_buffers(plan: &PoseidonPlan, session: &str, set: &DataSet) -> Result<Buffers> {
    let job = format!("{PREFIX}{}-", std::process::id());
    let mut buffers = Buffers {
        nodes: Vec::new(),
        job,
    };
    for worker in 0..plan.workers {
        let path = Path::new("/dev/shm").join(format!("{}n{worker}", buffers.job));
        buffers.nodes.push(make_buffer(&BufferPlan {
            path: &path,
            spec: &plan.spec,
            data: &plan.data,
            input: set.train.shape,
            classes: set.train.classes,
            session: xxhash_rust::xxh3::xxh3_64(session.as_bytes()),
            nodes: 1,
            seed: plan.seed,
            iterations: plan.iterations,
            weights: plan.weights.as_deref(),
            existing: Existing::Refuse,
        })?);
    }
    Ok(buffers)
}

/// A job while it runs.
struct Watched<'p> {
    plan: &'p PoseidonPlan,
    session: &'p str,
    buffers: &'p Buffers,
    /// Times everything was started again.
    restarts: u32,
    vain: u32,
    started: Instant,
}

impl Watched<'_> {
    /// Starts everything, the coordinator first.
    fn start(&self, resume: bool, stop: &AtomicBool) -> Result<Fleet> {
        let plan = self.plan;
        let file = plan.out.join("coordinator.address");
        let _ = fs::remove_file(&file);
        let mut args = strings(["coordinator", "--listen", "127.0.0.1:0", "--address-file"]);
        args.push(file.display().to_string());
        args.extend(["--iterations".into(), plan.iterations.to_string()]);
        args.extend(plan.cluster_args.iter().cloned());
        let mut coordinator = self.component("coordinator", args, resume)?;
        let address = loop {
            if let Ok(address) = fs::read_to_string(&file) {
                break address;
            }
            if let Some(status) = coordinator.failed()? {
                bail!(
                    "the coordinator ended with {status}; its last words:\n{}",
                    coordinator.last_words()
                );
            }
            if stop.load(Relaxed) {
                return Ok(Fleet {
                    coordinator,
                    members: Vec::new(),
                });
            }
            std::thread::sleep(LOOK_EVERY);
        };
        let _ = fs::remove_file(&file);
        let mut members = Vec::new();
        for index in 0..plan.servers {
            members.push(self.member("server", index, &address, Vec::new(), resume)?);
        }
        for index in 0..plan.workers {
            members.push(self.member(
                "worker",
                index,
                &address,
                self.worker_args(index),
                resume,
            )?);
        }
        Ok(Fleet {
            coordinator,
            members,
        })
    }

    fn worker_args(&self, index: u16) -> Vec<String> {
        let plan = self.plan;
        let shared = &self.buffers.nodes[usize::from(index)];
        let mut args = plan.worker_args.clone();
        let mut add = |name: &str, value: String| args.extend([name.to_owned(), value]);
        add("--buffer", shared.path().display().to_string());
        add(
            "--curve",
            node_curve(&plan.out, index).display().to_string(),
        );
        if let Some(every) = plan.test_every {
            add("--test-every", every.to_string());
        }
        if let Some(target) = plan.target_accuracy {
            add("--target-accuracy", target.to_string());
        }
        args
    }

    fn member(
        &self,
        role: &str,
        index: u16,
        coordinator: &str,
        more: Vec<String>,
        resume: bool,
    ) -> Result<Component> {
        let plan = self.plan;
        let mut args = vec![role.to_owned()];
        let mut add = |name: &str, value: String| args.extend([name.to_owned(), value]);
        add("--index", index.to_string());
        add("--coordinator", coordinator.to_owned());
        add("--listen", "127.0.0.1:0".into());
        let report = plan.out.join(format!("{role}{index}-traffic.json"));
        add("--report", report.display().to_string());
        if let Some(rate) = plan.bandwidth_bytes_per_s {
            add("--bandwidth", rate.to_string());
        }
        if plan.checkpoints {
            add("--checkpoints", plan.checkpoints().display().to_string());
        }
        args.extend(more);
        self.component(&format!("{role}{index}"), args, resume && plan.checkpoints)
    }

    fn component(&self, name: &str, mut args: Vec<String>, resume: bool) -> Result<Component> {
        args.extend(self.plan.member_args.iter().cloned());
        args.extend(self.plan.model_args());
        if args[0] != "worker" {
            args.extend(["--session".into(), self.session.to_owned()]);
        }
        if resume {
            args.push("--resume".into());
        }
        let log = self.plan.out.join(format!("{name}.log"));
        Component::start(name.to_owned(), log, starter(None, 0, args)?)
    }

    /// Watches until all have ended or `stop` is set. Returns the seconds of training.
    fn watch(&mut self, fleet: &mut Fleet, stop: &AtomicBool) -> Result<f64> {
        let mut progress = Progress::new(self.plan.iterations, progress::Path::Poseidon);
        let steps = || self.buffers.nodes[0].globals().iterations();
        let mut before = steps();
        while !stop.load(Relaxed) && !fleet.done() {
            if steps() == 0 {
                self.started = Instant::now();
            }
            let mut ended = Vec::new();
            for component in fleet.all() {
                if let Some(status) = component.failed()? {
                    ended.push((component.name.clone(), status, component.last_words()));
                }
            }
            let refused = |code: Option<i32>| code.is_some_and(|c| c != i32::from(ANOTHER_FAILED));
            if let Some((name, status, words)) = ended.iter().find(|(_, s, _)| refused(s.code())) {
                // A refusal (wrong argument, missing file) will not mend by itself; a kill may.
                bail!("{name} ended with {status}; its last words:\n{words}");
            }
            if let Some((name, status, words)) = ended.first() {
                self.vain = if steps() > before { 0 } else { self.vain + 1 };
                if self.vain > MOST_VAIN_STARTS {
                    bail!("{name} ended with {status}; its last words:\n{words}");
                }
                before = steps();
                self.restarts += 1;
                log::warn!(
                    "{name} ended with {status}; starting all again from the last checkpoint"
                );
                stop_all(fleet.all());
                *fleet = self.start(true, stop)?;
            }
            progress.show(&self.buffers.nodes);
            std::thread::sleep(LOOK_EVERY);
        }
        progress.finish();
        Ok(self.started.elapsed().as_secs_f64())
    }
}

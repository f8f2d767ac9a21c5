//! `dogwild train --sync poseidon`: coordinator, servers and workers on this machine.
//!
//! When one of them dies, all are started again from the last checkpoint: at staleness 0 the run
//! ends with the very weights it would have had.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::buffers::{Buffers, session_name};
use super::children::{Component, Ends, Gone, stop_all};
use super::conclude::{End, conclude};
use super::fleet::{Dead, Fleet};
use super::leftovers::before_a_job;
use super::out::OutFolder;
use super::outcome::{Ended, Facts};
use super::poseidon_summary::{PoseidonSummary, summarise};
use super::progress::{self, Progress};
use super::results::{node_curve, write_results};
use super::room;
use super::settle::identical;
use super::start::{starter, strings};
use super::train::LOOK_EVERY;
use super::whole::write_whole;
use super::{BufferPlan, Experiment, make_buffer};
use crate::node::Stop;
use crate::solver::SolverSpec;
use crate::solver::data::{DataSet, Source};
use crate::weights::Existing;

/// Restarts in a row without a step in between before the job gives up.
const MOST_RESTARTS_WITHOUT_PROGRESS: u32 = 5;

/// Settings of a job on the reliable path.
pub struct PoseidonPlan {
    /// Facts about the run for its summary.
    pub experiment: Experiment,
    /// Number of workers.
    pub workers: u16,
    /// Number of servers.
    pub servers: u16,
    /// Threads of each worker.
    pub threads: usize,
    /// Arguments of the coordinator about the cluster.
    pub cluster_args: Vec<String>,
    /// Arguments of all processes.
    pub member_args: Vec<String>,
    /// Arguments of workers only.
    pub worker_args: Vec<String>,
    /// Bytes per second that each worker and each server sends at most.
    pub bandwidth_bytes_per_s: Option<f64>,
    /// The model, checked.
    pub spec: SolverSpec,
    /// The model as named on the command line.
    pub model: String,
    /// Training and test pictures.
    pub data: Source,
    /// Iterations of each worker.
    pub iterations: u64,
    /// Stop at this share of right answers.
    pub target_accuracy: Option<f32>,
    /// Iterations between tests, if other than in the solver file.
    pub test_every: Option<u64>,
    /// Test pictures of a test on the way; 0: all; none: as many as a worker takes by itself.
    pub test_images: Option<usize>,
    /// Seed of weights and pictures.
    pub seed: u64,
    /// Weights to start from.
    pub weights: Option<PathBuf>,
    /// Folder that members write to: the working folder of the job's [`OutFolder`].
    pub out: PathBuf,
    /// Folder for the checkpoints.
    pub checkpoint_folder: PathBuf,
    /// Whether there are checkpoints.
    pub checkpoints: bool,
    /// Go on from the checkpoints.
    pub resume: bool,
}

/// What a resumed run must have in common with the first; in `run.json` next to the checkpoints.
#[derive(Debug, Serialize, Deserialize)]
struct Run {
    session: String,
}

impl PoseidonPlan {
    /// Name of the session: of the run that is resumed, or a new one.
    fn session(&self) -> Result<String> {
        let path = self.checkpoint_folder.join("run.json");
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
        let session = session_name();
        if self.checkpoints {
            let run = Run {
                session: session.clone(),
            };
            let folder = &self.checkpoint_folder;
            fs::create_dir_all(folder)
                .with_context(|| format!("cannot make the folder {}", folder.display()))?;
            write_whole(&path, |path| {
                Ok(fs::write(path, serde_json::to_string(&run)?)?)
            })?;
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

/// Runs the job, with its results in `out`. A signal ends it early.
///
/// # Errors
/// It could not be started, or its weights or its report could not be written; the message says
/// where the weights are.
pub fn train_poseidon(
    plan: &PoseidonPlan,
    out: OutFolder,
    stop: &Stop,
) -> Result<Ended<PoseidonSummary>> {
    let set = plan.data.load()?;
    before_a_job();
    let needs = room::Node {
        weights: room::weights(&plan.spec, &set)?,
        streamers: 0,
        solvers: 1,
        // A key encrypts this path's connections, which needs no file in /dev/shm.
        sealed: false,
    };
    room::check(plan.workers, needs)?;
    let session = plan.session()?;
    let buffers = make_buffers(plan, &session, &set)?;
    let mut watched = Watched {
        plan,
        session: &session,
        buffers: &buffers,
        restarts: 0,
        restarts_without_progress: 0,
        train_s: 0.0,
    };
    let mut fleet = Fleet::default();
    let result = watched.run(&mut fleet, stop);
    stop_all(fleet.all());
    let (restarts, train_s) = (watched.restarts, watched.train_s);
    let ended = result.is_ok() && stop.signal().is_none();
    let same = ended.then(|| identical(&buffers.nodes));
    let reached = buffers.nodes[0].globals().stop.load(Relaxed) != 0;
    let facts = Facts {
        reached: plan.target_accuracy.map(|_| reached),
        identical: same,
    };
    let end = End::of(result, stop, facts);
    conclude(end, buffers, out, &plan.model, |buffers, out, outcome| {
        let (nodes, same) = (&buffers.nodes, same == Some(true));
        let summary = summarise(plan, nodes, set, outcome, train_s, restarts, same)?;
        write_results(out.work(), plan.workers, &summary.title(), &summary)?;
        Ok(summary)
    })
}

fn make_buffers(plan: &PoseidonPlan, session: &str, set: &DataSet) -> Result<Buffers> {
    Buffers::make(plan.workers, |path| {
        make_buffer(&BufferPlan {
            path,
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
        })
    })
}

/// A job while it runs.
struct Watched<'p> {
    plan: &'p PoseidonPlan,
    session: &'p str,
    buffers: &'p Buffers,
    /// Times that all members were started again.
    restarts: u32,
    /// Restarts since the last step that was made.
    restarts_without_progress: u32,
    train_s: f64,
}

impl Watched<'_> {
    /// Starts everything, and watches until all have ended or a signal comes.
    fn run(&mut self, fleet: &mut Fleet, stop: &Stop) -> Result<()> {
        self.start(fleet, self.plan.resume, stop)?;
        let mut progress = Progress::new(self.plan.iterations, progress::Path::Poseidon);
        let result = self.watch(fleet, &mut progress, stop);
        progress.finish();
        result
    }

    /// Starts everything, the coordinator first.
    fn start(&self, fleet: &mut Fleet, resume: bool, stop: &Stop) -> Result<()> {
        let plan = self.plan;
        let file = plan.out.join("coordinator.address");
        let _ = fs::remove_file(&file);
        let mut args = strings(["coordinator", "--listen", "127.0.0.1:0", "--address-file"]);
        args.push(file.display().to_string());
        args.extend(["--iterations".into(), plan.iterations.to_string()]);
        args.extend(plan.cluster_args.iter().cloned());
        fleet.0 = vec![self.component("coordinator", args, resume)?];
        let address = loop {
            if let Ok(address) = fs::read_to_string(&file) {
                break address;
            }
            if let Some(Dead { status, words, .. }) = fleet.dead()?.first() {
                bail!("the coordinator ended with {status}; its last words:\n{words}");
            }
            if stop.load(Relaxed) {
                return Ok(());
            }
            std::thread::sleep(LOOK_EVERY);
        };
        let _ = fs::remove_file(&file);
        for index in 0..plan.servers {
            let server = self.member("server", index, &address, Vec::new(), resume)?;
            fleet.0.push(server);
        }
        for index in 0..plan.workers {
            let args = self.worker_args(index);
            let worker = self.member("worker", index, &address, args, resume)?;
            fleet.0.push(worker);
        }
        Ok(())
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
        if let Some(images) = plan.test_images {
            add("--test-images", images.to_string());
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
            add(
                "--checkpoints",
                plan.checkpoint_folder.display().to_string(),
            );
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
        Component::start(
            name.to_owned(),
            log,
            Ends::WhenDone,
            starter(None, 0, args)?,
        )
    }

    fn watch(&mut self, fleet: &mut Fleet, progress: &mut Progress, stop: &Stop) -> Result<()> {
        let steps = || self.buffers.iterations();
        let (mut before, mut started) = (steps(), Instant::now());
        while !stop.load(Relaxed) && !fleet.done() {
            if steps() == 0 {
                started = Instant::now();
            }
            self.train_s = started.elapsed().as_secs_f64();
            let mut dead = fleet.dead()?;
            if !dead.is_empty() {
                fleet.wait_for_the_one_to_blame(&mut dead)?;
                if stop.load(Relaxed) {
                    break;
                }
                self.restarts_without_progress = if steps() > before {
                    0
                } else {
                    self.restarts_without_progress + 1
                };
                before = steps();
                self.died(&dead[0])?;
                // One member cannot rejoin a running cluster: the others hold steps that it has not
                // made. So all stop, and all continue from the newest checkpoint that they share.
                stop_all(fleet.all());
                self.start(fleet, true, stop)?;
            }
            progress.show(&self.buffers.nodes);
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// Counts the restart of all members after the death of one; an error if it would not help.
    fn died(&mut self, dead: &Dead) -> Result<()> {
        let Dead {
            name,
            status,
            words,
        } = dead;
        if !dead.blames_another()
            && let Some(gone) = Gone::of(name, *status, words.clone())
        {
            // A refusal (wrong argument, missing file) would be repeated; a kill need not be.
            return Err(gone.into());
        }
        if self.restarts_without_progress > MOST_RESTARTS_WITHOUT_PROGRESS {
            bail!("{name} ended with {status}; its last words:\n{words}");
        }
        self.restarts += 1;
        log::warn!("{name} ended with {status}; starting all again from the last checkpoint");
        Ok(())
    }
}

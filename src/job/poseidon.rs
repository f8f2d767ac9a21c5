//! `dogwild train --sync poseidon`: coordinator, servers and workers on this machine.
//!
//! When one of them dies, all are started again from the newest checkpoint that they share, or from
//! the beginning: at staleness 0 the run ends with the very weights it would have had.

mod apart;
mod members;
mod replace;

use std::fs;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use dogwild_lab::Lab;
use serde::{Deserialize, Serialize};

use super::boards::Boards;
use super::buffers::{Buffers, node_buffer, session_name};
use super::children::{Gone, LOOK_EVERY, reason, stop_all};
use super::conclude::{End, Ended, conclude};
use super::earlier::wait_for_earlier;
use super::fleet::{Dead, Fleet};
use super::leftovers::before_a_job;
use super::metrics::serve;
use super::missing::{Nodes, Path};
use super::out::OutFolder;
use super::outcome::{Ending, Facts};
use super::plan::{PlanOf, PoseidonPlan};
use super::progress::Progress;
use super::room;
use super::settle::identical;
use super::summary::of_poseidon;
use super::whole::write_whole;
use super::{BufferPlan, make_buffer};
use crate::node::Stop;
use crate::settings::{Compute, CoordinatorSettings, ModelSettings};
use crate::solver::data::DataSet;
use crate::weights::{BufferInfo, Existing};
use replace::Replaced;

/// Restarts in a row without a step in between before the job gives up.
const MOST_RESTARTS_WITHOUT_PROGRESS: u32 = 5;

/// What a resumed run must have in common with the first; in `run.json` next to the checkpoints.
#[derive(Debug, Serialize, Deserialize)]
struct Run {
    session: String,
}

impl PlanOf<'_, PoseidonPlan> {
    /// Name of the session: of the run that is resumed, or a new one.
    fn session(&self) -> Result<String> {
        if let Some(here) = &self.own.here {
            return Ok(format!("{:016x}", here.session));
        }
        let path = self.own.checkpoint_folder.join("run.json");
        if self.own.resume {
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
        if self.checkpoints() {
            let run = Run {
                session: session.clone(),
            };
            let folder = &self.own.checkpoint_folder;
            fs::create_dir_all(folder)
                .with_context(|| format!("cannot make the folder {}", folder.display()))?;
            write_whole(&path, |path| {
                Ok(fs::write(path, serde_json::to_string(&run)?)?)
            })?;
        }
        Ok(session)
    }

    fn progress(&self) -> Progress {
        let nodes = Nodes {
            all: self.own.cluster.workers,
            here: self.own.workers_here(),
        };
        Progress::new(self.job.iterations, Path::Poseidon, nodes)
    }

    /// Whether there are checkpoints.
    fn checkpoints(&self) -> bool {
        self.own.cluster.checkpoint_every > 0
    }

    /// What all processes are told about the model.
    fn model_settings(&self) -> ModelSettings {
        ModelSettings {
            solver: self.job.model.clone(),
            data: Some(self.job.data.clone()),
            seed: self.job.seed,
            weights: self.job.weights.clone(),
            threads_per_worker: self.own.threads,
            compute: Compute::Solver,
        }
    }
}

/// Runs the job, with its results in `out`. A signal ends it early.
pub(super) fn train_poseidon(
    plan: PlanOf<'_, PoseidonPlan>,
    out: OutFolder,
    stop: &Stop,
) -> Result<Ended> {
    let set = plan.job.data.load()?;
    if plan.own.here.is_none() {
        before_a_job();
    }
    let needs = room::Node {
        weights: room::weights(&plan.job.spec, &set)?,
        streamers: 0,
        solvers: 1,
        // A key encrypts this path's connections, which needs no file in /dev/shm.
        sealed: false,
    };
    room::check(plan.own.workers_here().len() as u16, needs)?;
    let session = plan.session()?;
    if let Some(here) = &plan.own.here {
        let path = node_buffer(here.session, here.node);
        wait_for_earlier(&path, BufferInfo::users_text, &mut plan.progress(), stop)?;
    }
    let buffers = make_buffers(plan, &session, &set)?;
    let lab = plan.own.lab.as_ref().map(Lab::up).transpose()?.map(Rc::new);
    let mut watched = Watched {
        plan,
        lab,
        session: &session,
        buffers: &buffers,
        restarts: 0,
        restarts_without_progress: 0,
        address: String::new(),
        replaced: Replaced::default(),
        since: None,
        train_s: 0.0,
    };
    let mut fleet = Fleet::default();
    let result = watched.run(&mut fleet, stop);
    stop_all(fleet.all());
    let (restarts, train_s) = (watched.restarts, watched.train_s);
    let ended = result.is_ok() && stop.signal().is_none();
    let same = (ended && plan.own.here.is_none()).then(|| identical(&buffers.nodes));
    let reached = buffers.nodes[0].globals().stop.load(Relaxed) != 0;
    let facts = Facts {
        reached: plan.job.target_accuracy.map(|_| reached),
        identical: same,
    };
    let end = End::of(result, stop, facts);
    conclude(end, buffers, out, &plan.job.model, |workers, outcome| {
        let ending = Ending {
            outcome,
            train_s,
            restarts,
            replicas_identical: same == Some(true),
        };
        of_poseidon(plan, workers, set, ending)
    })
}

fn make_buffers(plan: PlanOf<'_, PoseidonPlan>, session: &str, set: &DataSet) -> Result<Buffers> {
    let number = xxhash_rust::xxh3::xxh3_64(session.as_bytes());
    let make = |path: &std::path::Path| {
        make_buffer(&BufferPlan {
            path,
            spec: &plan.job.spec,
            data: &plan.job.data,
            input: set.train.shape,
            classes: set.train.classes,
            session: number,
            nodes: 1,
            seed: plan.job.seed,
            iterations: plan.job.iterations,
            weights: plan.job.weights.as_deref(),
            // What a worker that was killed has left is in its checkpoints.
            existing: match plan.own.here {
                Some(_) => Existing::Fresh,
                None => Existing::Refuse,
            },
        })
    };
    match &plan.own.here {
        Some(here) => Buffers::of_node(here.session, here.node, make),
        None => Buffers::make(plan.own.cluster.workers, make),
    }
}

/// A job while it runs.
struct Watched<'p> {
    plan: PlanOf<'p, PoseidonPlan>,
    lab: Option<Rc<Lab>>,
    session: &'p str,
    buffers: &'p Buffers,
    /// Times that all members were started again.
    restarts: u32,
    /// Restarts since the last step that was made.
    restarts_without_progress: u32,
    /// Where the coordinator listens.
    address: String,
    replaced: Replaced,
    /// When the first step was seen.
    since: Option<Instant>,
    train_s: f64,
}

impl Watched<'_> {
    /// Starts everything, and watches until all have ended or a signal comes.
    fn run(&mut self, fleet: &mut Fleet, stop: &Stop) -> Result<()> {
        let _serving = serve(self.plan.job.metrics.as_deref(), &self.buffers.paths())?;
        let first = self.plan.own.workers_here().start;
        let mut boards = self.plan.job.boards(first, self.buffers.nodes.len())?;
        let mut progress = self.plan.progress();
        let shown = (&mut progress, &mut boards);
        let result = match &self.plan.own.here {
            Some(here) => self.run_apart(here, fleet, shown, stop),
            None => self
                .start(fleet, self.plan.own.resume, stop)
                .and_then(|()| self.watch(fleet, shown, stop)),
        };
        progress.finish();
        boards.look_last(&self.buffers.nodes);
        result
    }

    /// Starts everything, the coordinator first.
    fn start(&mut self, fleet: &mut Fleet, resume: bool, stop: &Stop) -> Result<()> {
        self.start_coordinator(fleet, resume, stop)?;
        if stop.load(Relaxed) {
            return Ok(());
        }
        self.start_members(fleet, resume)
    }

    /// Starts the coordinator, and waits until it listens.
    fn start_coordinator(&mut self, fleet: &mut Fleet, resume: bool, stop: &Stop) -> Result<()> {
        let plan = self.plan;
        let file = plan.job.out.join("coordinator.address");
        let _ = fs::remove_file(&file);
        let settings = CoordinatorSettings {
            listen: self.listen(0),
            address_file: Some(file.clone()),
            session: self.session.to_owned(),
            iterations: Some(plan.job.iterations),
            resume,
            key_file: plan.own.key_file.clone(),
            model: plan.model_settings(),
            cluster: plan.own.cluster.clone(),
        };
        let coordinator = self.component("coordinator", 0, &settings, self.session)?;
        fleet.0 = vec![coordinator];
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
        self.address = address;
        Ok(())
    }

    /// Starts the servers and workers that run here.
    fn start_members(&self, fleet: &mut Fleet, resume: bool) -> Result<()> {
        for index in self.plan.own.servers_here() {
            let server = self.server(index, &self.address, resume)?;
            fleet.0.push(server);
        }
        for index in self.plan.own.workers_here() {
            let worker = self.worker(index, &self.address, resume)?;
            fleet.0.push(worker);
        }
        Ok(())
    }

    /// Counts the time since the first step.
    fn count_time(&mut self) {
        if self.buffers.iterations() > 0 {
            let since = self.since.get_or_insert_with(Instant::now);
            self.train_s = since.elapsed().as_secs_f64();
        }
    }

    fn watch(
        &mut self,
        fleet: &mut Fleet,
        (progress, boards): (&mut Progress, &mut Boards),
        stop: &Stop,
    ) -> Result<()> {
        let steps = || self.buffers.iterations();
        let mut before = steps();
        while !stop.load(Relaxed) && !fleet.done() {
            self.count_time();
            let mut dead = fleet.dead()?;
            if !dead.is_empty() {
                fleet.wait_for_the_one_to_blame(&mut dead)?;
                if stop.load(Relaxed) {
                    break;
                }
                if self.replace(fleet, &dead)? {
                    continue;
                }
                self.restarts_without_progress = if steps() > before {
                    0
                } else {
                    self.restarts_without_progress + 1
                };
                before = steps();
                stop_all(fleet.all());
                let newest = self.newest_common();
                self.died(&dead[0], newest)?;
                // One member cannot rejoin a running cluster: the others hold steps that it has not
                // made. So all stop, and all continue from the newest checkpoint that they share.
                self.start(fleet, newest.is_some(), stop)?;
            }
            if self.replaced.is_stranded(fleet) {
                // The others came to their end before it joined them.
                stop_all(fleet.all());
                self.start(fleet, self.newest_common().is_some(), stop)?;
            }
            progress.show(&self.buffers.nodes);
            boards.look(&self.buffers.nodes);
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// Counts the restart of all members after the death of one; an error if it would not help.
    fn died(&mut self, dead: &Dead, newest: Option<u64>) -> Result<()> {
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
        let from = newest.map_or(
            "the beginning, as there is no checkpoint yet".to_owned(),
            |steps| format!("the checkpoint after {steps} steps"),
        );
        let why = reason(words);
        log::warn!("{name} ended with {status}; starting all again from {from}{why}");
        Ok(())
    }
}

//! `dogwild train`: a whole job on this machine, from buffers to report.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::Result;
use dogwild_lab::Lab;

use super::buffers::{Buffers, session_name};
use super::children::{Component, stop_all};
use super::conclude::{End, conclude};
use super::leftovers::before_a_job;
use super::out::OutFolder;
use super::outcome::{Ended, Facts, Outcome};
use super::progress::{self, Progress};
use super::results::{summarise, write_results};
use super::resume::Resume;
use super::room;
use super::settle::settle;
use super::snapshots::{SnapshotEvery, Snapshots};
use super::solvers::Solvers;
use super::start::{start_solver, start_streamer, start_tester};
use super::summary::Summary;
use super::warnings::Warnings;
use super::{BufferPlan, Experiment, make_buffer};
use crate::node::Stop;
use crate::settings::{FaultSettings, FlowSettings, TransportSettings};
use crate::solver::SolverSpec;
use crate::solver::data::{DataSet, Source};
use crate::weights::Existing;

/// Time between two looks at components and counters.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What to train, and how.
pub struct TrainPlan {
    /// What is run, where and when: for the summary.
    pub experiment: Experiment,
    /// Number of nodes.
    pub nodes: u16,
    /// Solvers on each node.
    pub solvers: Solvers,
    /// Whether the last node only tests; then solvers do not.
    pub tester: bool,
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
    /// Test pictures of a test on the way; 0: all; none: as many as the component takes by itself.
    pub test_images: Option<usize>,
    /// Steps per second of a solver, at most.
    pub pace_steps: Option<f64>,
    /// Most local steps that another node's range may be old; `None`: any.
    pub max_age: Option<u64>,
    /// Seed of weights and pictures.
    pub seed: u64,
    /// Weights to start from.
    pub weights: Option<PathBuf>,
    /// Iterations or time between snapshots, if other than the solver file and the minute.
    pub snapshot_every: Option<SnapshotEvery>,
    /// The snapshot to go on from.
    pub resume: Option<Resume>,
    /// Folder that components write to: the working folder of the job's [`OutFolder`].
    pub out: PathBuf,
    /// Hosts in namespaces instead of loopback.
    pub lab: Option<dogwild_lab::Spec>,
    /// How nodes reach each other.
    pub transport: TransportSettings,
    /// How the stream behaves.
    pub stream: FlowSettings,
    /// What happens to frames on purpose.
    pub faults: FaultSettings,
}

/// The processes of a job.
#[derive(Default)]
struct Crew {
    lab: Option<Rc<Lab>>,
    streamers: Vec<Component>,
    solvers: Vec<Component>,
    tester: Option<Component>,
}

impl Crew {
    /// Starts all of them.
    fn start(&mut self, plan: &TrainPlan, buffers: &Buffers) -> Result<()> {
        self.lab = plan.lab.as_ref().map(Lab::up).transpose()?.map(Rc::new);
        let lab = self.lab.as_ref();
        for (node, shared) in (0..).zip(&buffers.nodes) {
            if plan.nodes > 1 {
                let streamer = start_streamer(plan, shared, lab, node)?;
                self.streamers.push(streamer);
            }
            for index in 0..plan.solvers.of(node) {
                let solver = start_solver(plan, shared, lab, node, index)?;
                self.solvers.push(solver);
            }
            if plan.tester && node + 1 == plan.nodes {
                let tester = start_tester(plan, shared, lab, node)?;
                self.tester = Some(tester);
            }
        }
        Ok(())
    }

    /// Whether solvers, and who tests, have ended.
    fn has_learnt(&self) -> bool {
        self.solvers.iter().chain(&self.tester).all(Component::done)
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Component> {
        let learning = self.streamers.iter_mut().chain(&mut self.solvers);
        learning.chain(&mut self.tester)
    }
}

/// What is known of a job while it runs, and after.
#[derive(Default)]
struct Course {
    snapshots: Option<Snapshots>,
    train_s: f64,
    identical: Option<bool>,
    warnings: Warnings,
}

impl Course {
    /// The last snapshot of a job that has ended.
    fn snapshot(&mut self, outcome: Outcome) {
        let by_itself = !matches!(outcome, Outcome::Interrupted(_) | Outcome::Failed);
        // One of a job that diverged is no better than none, and would drive out a good one.
        match self.snapshots.take() {
            Some(snapshots) if outcome != Outcome::Diverged => snapshots.finish(by_itself),
            _ => {}
        }
    }
}

/// Runs the job, with its results in `out`. A signal ends it early, with everything that an end
/// brings but the last deliveries.
///
/// # Errors
/// It could not be started, or its weights or its report could not be written; the message says
/// where the weights are.
pub fn train(plan: &TrainPlan, out: OutFolder, stop: &Stop) -> Result<Ended<Summary>> {
    let set = plan.data.load()?;
    if let Some(resume) = &plan.resume {
        resume.check(plan, &set)?;
    }
    before_a_job();
    let needs = room::Node {
        weights: room::weights(&plan.spec, &set)?,
        streamers: u64::from(plan.nodes > 1),
        solvers: plan.solvers.most(plan.nodes).into(),
        sealed: plan.transport.key_file.is_some(),
    };
    room::check(plan.nodes, needs)?;
    let buffers = make_buffers(plan, &set)?;
    let mut crew = Crew::default();
    let mut course = Course::default();
    let result = run(plan, &set, &buffers, &mut crew, stop, &mut course);
    stop_all(crew.all());
    let reached = buffers
        .nodes
        .iter()
        .any(|shared| shared.globals().stop.load(Relaxed) != 0);
    let reached = plan.target_accuracy.map(|_| reached);
    let identical = course.identical;
    let end = End::of(result, stop, Facts { reached, identical });
    course.snapshot(end.outcome);
    let restarts = crew.all().map(|component| component.restarts()).sum();
    conclude(end, buffers, out, &plan.model, |buffers, out, outcome| {
        let same = identical == Some(true);
        let train_s = course.train_s;
        let mut summary = summarise(plan, &buffers.nodes, set, outcome, train_s, restarts, same)?;
        summary.warnings = course.warnings.all();
        write_results(out.work(), plan.nodes, &summary.title(), &summary)?;
        Ok(summary)
    })
}

/// Starts and watches the components until the solvers have ended and everything is delivered, or
/// until a signal.
fn run(
    plan: &TrainPlan,
    set: &DataSet,
    buffers: &Buffers,
    crew: &mut Crew,
    stop: &Stop,
    course: &mut Course,
) -> Result<()> {
    if let Some(resume) = &plan.resume {
        resume.restore(plan, &buffers.nodes)?;
    }
    let snapshots = Snapshots::new(plan, &buffers.nodes, set)?;
    let snapshots = course.snapshots.insert(snapshots);
    crew.start(plan, buffers)?;
    let seen = (snapshots, &mut course.warnings);
    watch(plan, buffers, crew, stop, seen, &mut course.train_s)?;
    if !stop.load(Relaxed) {
        let mut progress = Progress::new(plan.iterations, progress::Path::Stream);
        let settled = settle(&buffers.nodes, stop, |lacking| {
            let lacking: Vec<String> = lacking.iter().map(ToString::to_string).collect();
            progress.waiting(&format!("the last deliveries: {}", lacking.join("; ")));
            crew.streamers.iter_mut().try_for_each(Component::watch)
        });
        progress.finish();
        let settled = settled?;
        course.identical = settled.verdict();
        course.warnings.unsettled(&settled);
    }
    Ok(())
}

fn make_buffers(plan: &TrainPlan, set: &DataSet) -> Result<Buffers> {
    // Jobs of one machine share its network: each has a session of its own.
    let session = xxhash_rust::xxh3::xxh3_64(session_name().as_bytes());
    let resumed = plan.resume.as_ref().map(Resume::weights);
    Buffers::make(plan.nodes, |path| {
        make_buffer(&BufferPlan {
            path,
            spec: &plan.spec,
            data: &plan.data,
            input: set.train.shape,
            classes: set.train.classes,
            session,
            nodes: plan.nodes,
            seed: plan.seed,
            iterations: plan.iterations,
            weights: resumed.as_deref().or(plan.weights.as_deref()),
            existing: Existing::Refuse,
        })
    })
}

/// Watches until all solvers have ended or a signal comes. Keeps the seconds of training.
fn watch(
    plan: &TrainPlan,
    buffers: &Buffers,
    crew: &mut Crew,
    stop: &Stop,
    (snapshots, warnings): (&mut Snapshots, &mut Warnings),
    train_s: &mut f64,
) -> Result<()> {
    let mut progress = Progress::new(plan.iterations, progress::Path::Stream);
    let before = buffers.iterations();
    let mut started = Instant::now();
    while !stop.load(Relaxed) && !crew.has_learnt() {
        if buffers.iterations() == before {
            started = Instant::now();
        }
        *train_s = started.elapsed().as_secs_f64();
        if let Some(error) = crew.all().find_map(|component| component.watch().err()) {
            progress.finish();
            return Err(error);
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
        snapshots.look();
        warnings.look(&buffers.nodes);
        progress.show(&buffers.nodes);
        std::thread::sleep(LOOK_EVERY);
    }
    progress.finish();
    Ok(())
}

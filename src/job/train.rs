//! `dogwild train`: a whole job on this machine, from buffers to report.

use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use anyhow::Result;
use dogwild_lab::{Lab, process};

use super::boards::Boards;
use super::buffers::{Buffers, node_buffer, session_name};
use super::children::{Component, LOOK_EVERY, stop_all};
use super::conclude::{End, Ended, conclude};
use super::earlier::wait_for_earlier;
use super::leave::{self, leave};
use super::leftovers::before_a_job;
use super::meeting::Meeting;
use super::metrics::serve;
use super::missing::{Nodes, Path};
use super::out::OutFolder;
use super::outcome::{Ending, Facts, Outcome};
use super::pauses::{Order, Pauses};
use super::plan::{PlanOf, StreamPlan};
use super::progress::Progress;
use super::resume::Resume;
use super::room;
use super::settle::settle;
use super::snapshots::Snapshots;
use super::start::{start_device, start_solver, start_streamer, start_tester};
use super::summary::of_stream;
use super::warnings::Warnings;
use super::{BufferPlan, make_buffer};
use crate::node::Stop;
use crate::solver::data::DataSet;
use crate::weights::{BufferInfo, Existing};

/// The processes of a node.
#[derive(Default)]
pub(super) struct NodeCrew {
    streamer: Option<Component>,
    /// On processors, and on devices.
    solvers: Vec<Component>,
    tester: Option<Component>,
}

impl NodeCrew {
    fn all(&mut self) -> impl Iterator<Item = &mut Component> {
        let learning = self.streamer.iter_mut().chain(&mut self.solvers);
        learning.chain(&mut self.tester)
    }
}

/// The processes of a job.
#[derive(Default)]
pub(super) struct Crew {
    lab: Option<Rc<Lab>>,
    nodes: Vec<NodeCrew>,
}

impl Crew {
    /// Starts all of them.
    fn start(&mut self, plan: PlanOf<'_, StreamPlan>, buffers: &Buffers) -> Result<()> {
        self.lab = plan.own.lab.as_ref().map(Lab::up).transpose()?.map(Rc::new);
        let lab = self.lab.as_ref();
        // Each is in its place at once, so that it is stopped if the next cannot be started.
        self.nodes
            .resize_with(buffers.nodes.len(), NodeCrew::default);
        let here = plan.own.nodes_here();
        for ((node, shared), crew) in here.zip(&buffers.nodes).zip(&mut self.nodes) {
            if plan.own.streams() {
                crew.streamer = Some(start_streamer(plan, shared, lab, node)?);
            }
            for index in 0..plan.own.solvers_of(node) {
                let solver = start_solver(plan, shared, lab, node, index)?;
                crew.solvers.push(solver);
            }
            for index in 0..plan.own.devices_of(node).len() as u32 {
                let device = start_device(plan, shared, lab, node, index)?;
                crew.solvers.push(device);
            }
            if plan.own.tester && node + 1 == plan.own.nodes {
                crew.tester = Some(start_tester(plan, shared, lab, node)?);
            }
        }
        Ok(())
    }

    /// Whether solvers, and who tests, have ended.
    fn has_learnt(&self) -> bool {
        let learning = |crew: &NodeCrew| {
            let mut components = crew.solvers.iter().chain(&crew.tester);
            components.all(Component::done)
        };
        self.nodes.iter().all(learning)
    }

    /// Those that learn or test.
    pub(super) fn learners(&mut self) -> impl Iterator<Item = &mut Component> {
        let nodes = self.nodes.iter_mut();
        nodes.flat_map(|crew| crew.solvers.iter_mut().chain(&mut crew.tester))
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Component> {
        self.nodes.iter_mut().flat_map(NodeCrew::all)
    }

    pub(super) fn streamers(&mut self) -> impl Iterator<Item = &mut Component> {
        let nodes = self.nodes.iter_mut();
        nodes.filter_map(|crew| crew.streamer.as_mut())
    }

    /// Lets nodes stand still, and go on; those that run elsewhere are not asked. The first that
    /// runs here is `first`.
    fn obey(&mut self, first: u16, orders: Vec<(u16, Order)>) {
        for (node, order) in orders {
            let here = node.checked_sub(first).map(usize::from);
            let crew = here.and_then(|here| self.nodes.get_mut(here));
            for component in crew.into_iter().flat_map(NodeCrew::all) {
                component.signal(match order {
                    Order::Stop => process::pause,
                    Order::GoOn => process::resume,
                });
            }
        }
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
pub(super) fn train(plan: PlanOf<'_, StreamPlan>, out: OutFolder, stop: &Stop) -> Result<Ended> {
    let set = plan.job.data.load()?;
    if let Some(resume) = &plan.own.resume {
        resume.check(plan, &set)?;
    }
    if plan.own.here.is_none() {
        before_a_job();
    }
    let needs = room::Node {
        weights: room::weights(&plan.job.spec, &set)?,
        streamers: u64::from(plan.own.streams()),
        solvers: (0..plan.own.nodes)
            .map(|node| plan.own.all_solvers(node))
            .max()
            .unwrap_or(0)
            .into(),
        sealed: plan.own.transport.key_file.is_some(),
    };
    if let Some(here) = &plan.own.here {
        let path = node_buffer(here.session, here.node);
        let users = |info: &BufferInfo| info.users_text_of(|slot| plan.own.starts(here.node, slot));
        wait_for_earlier(&path, users, &mut plan.progress(), stop)?;
    }
    // A node that goes on has its room already.
    if !plan.goes_on() {
        room::check(plan.own.nodes_here().len() as u16, needs)?;
    }
    let buffers = make_buffers(plan, &set)?;
    let mut crew = Crew::default();
    let mut course = Course::default();
    let result = run(plan, &set, &buffers, &mut crew, stop, &mut course);
    let reached = buffers.reached();
    if plan.own.here.is_some() {
        leave(&mut crew, &buffers);
    }
    stop_all(crew.all());
    let reached = plan.job.target_accuracy.map(|_| reached);
    let identical = course.identical;
    let mut end = End::of(result, stop, Facts { reached, identical });
    end.goes_on = plan.own.here.is_some();
    course.snapshot(end.outcome);
    let restarts = crew.all().map(|component| component.restarts()).sum();
    conclude(end, buffers, out, &plan.job.model, |nodes, outcome| {
        let warnings = course.warnings.all();
        let ending = Ending {
            outcome,
            train_s: course.train_s,
            restarts,
            replicas_identical: identical == Some(true),
        };
        of_stream(plan, nodes, set, ending, warnings)
    })
}

/// Starts and watches the components until the solvers have ended and everything is delivered, or
/// until a signal.
fn run(
    plan: PlanOf<'_, StreamPlan>,
    set: &DataSet,
    buffers: &Buffers,
    crew: &mut Crew,
    stop: &Stop,
    course: &mut Course,
) -> Result<()> {
    let _serving = serve(plan.job.metrics.as_deref(), &buffers.paths())?;
    let (first, nodes) = (plan.own.nodes_here().start, buffers.nodes.len());
    let mut boards = plan.job.boards(first, nodes)?;
    if let Some(resume) = &plan.own.resume {
        resume.restore(plan, &buffers.nodes)?;
    }
    let snapshots = Snapshots::new(plan, &buffers.nodes, set)?;
    let snapshots = course.snapshots.insert(snapshots);
    crew.start(plan, buffers)?;
    let seen = (snapshots, &mut course.warnings, &mut boards);
    watch(plan, buffers, crew, stop, seen, &mut course.train_s)?;
    // One node alone has no streamer that could tell.
    let apart = plan.own.here.as_ref().filter(|_| plan.own.streams());
    if let (Some(here), false) = (apart, stop.load(Relaxed)) {
        let mut progress = plan.progress();
        let settled = leave::settle(here.node, &buffers.nodes[0], stop, |lack| {
            progress.waiting(&format!("the last deliveries: {lack}"));
            crew.streamers().try_for_each(Component::watch)
        });
        progress.finish();
        course.identical = settled?.verdict(here.node, &mut course.warnings);
        return Ok(());
    }
    if !stop.load(Relaxed) {
        let mut progress = plan.progress();
        let settled = settle(&buffers.nodes, stop, |lacking| {
            let lacking: Vec<String> = lacking.iter().map(ToString::to_string).collect();
            progress.waiting(&format!("the last deliveries: {}", lacking.join("; ")));
            crew.streamers().try_for_each(Component::watch)
        });
        progress.finish();
        let settled = settled?;
        course.identical = settled.verdict();
        course.warnings.unsettled(&settled);
    }
    Ok(())
}

fn make_buffers(plan: PlanOf<'_, StreamPlan>, set: &DataSet) -> Result<Buffers> {
    let here = plan.own.here.as_ref();
    // Jobs of one machine share its network: each has a session of its own.
    let own = || xxhash_rust::xxh3::xxh3_64(session_name().as_bytes());
    let session = here.map_or_else(own, |here| here.session);
    let resumed = plan.own.resume.as_ref().map(Resume::weights);
    let make = |path: &std::path::Path| {
        make_buffer(&BufferPlan {
            path,
            spec: &plan.job.spec,
            data: &plan.job.data,
            input: set.train.shape,
            classes: set.train.classes,
            session,
            nodes: plan.own.nodes,
            seed: plan.job.seed,
            iterations: plan.job.iterations,
            weights: resumed.as_deref().or(plan.job.weights.as_deref()),
            existing: match here {
                Some(_) => Existing::Resume,
                None => Existing::Refuse,
            },
        })
    };
    match here {
        Some(here) => Buffers::of_node(session, here.node, make),
        None => Buffers::make(plan.own.nodes, make),
    }
}

impl PlanOf<'_, StreamPlan> {
    fn progress(&self) -> Progress {
        let nodes = Nodes {
            all: self.own.nodes,
            here: self.own.nodes_here(),
        };
        Progress::new(self.job.iterations, Path::Stream, nodes)
    }

    /// Whether a node that was killed here goes on.
    fn goes_on(&self) -> bool {
        let here = self.own.here.as_ref();
        here.is_some_and(|here| node_buffer(here.session, here.node).exists())
    }
}

/// Watches until all solvers have ended or a signal comes. Keeps the seconds of training.
fn watch(
    plan: PlanOf<'_, StreamPlan>,
    buffers: &Buffers,
    crew: &mut Crew,
    stop: &Stop,
    (snapshots, warnings, boards): (&mut Snapshots, &mut Warnings, &mut Boards),
    train_s: &mut f64,
) -> Result<()> {
    let mut progress = plan.progress();
    let first = plan.own.nodes_here().start;
    let before = buffers.iterations();
    let mut started = Instant::now();
    let mut pauses = Pauses::new(&plan.own.pauses);
    while !stop.load(Relaxed) && !crew.has_learnt() {
        let trains = buffers.iterations() != before;
        if !trains {
            started = Instant::now();
        }
        *train_s = started.elapsed().as_secs_f64();
        if trains {
            crew.obey(first, pauses.due(*train_s));
        }
        if let Some(error) = crew.all().find_map(|component| component.watch().err()) {
            warnings.look_last(first, &buffers.nodes);
            progress.finish();
            return Err(error);
        }
        // A target accuracy that one node has reached ends all.
        let reached = buffers.reached();
        let meeting = plan.own.here.as_ref().map(|here| &here.meeting);
        if let Some(meeting) = meeting.filter(|_| reached) {
            meeting.end();
        }
        if reached || meeting.is_some_and(Meeting::ended) {
            for shared in &buffers.nodes {
                shared.globals().stop.store(1, Relaxed);
            }
        }
        snapshots.look();
        boards.look(&buffers.nodes);
        warnings.look(first, &buffers.nodes);
        progress.show(&buffers.nodes);
        std::thread::sleep(LOOK_EVERY);
    }
    warnings.look_last(first, &buffers.nodes);
    boards.look_last(&buffers.nodes);
    progress.finish();
    Ok(())
}

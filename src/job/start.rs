//! Starts the components of a job: this very program with a file of settings.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;

use anyhow::{Context, Result};
use dogwild_lab::Lab;

use super::children::{Component, Ends};
use super::curves::node_curve;
use super::plan::{PlanOf, StreamPlan};
use crate::node::{TEST_IMAGES, Transport};
use crate::settings::{
    FlowSettings, GpuSettings, Settings, SolverSettings, StreamSettings, TesterSettings, to_json,
};
use crate::weights::SharedWeights;

/// A component of a job, as it is to be started.
pub(super) struct Start<'a> {
    /// The folder for its log and its settings.
    pub(super) out: &'a Path,
    /// What it is, for messages: "node 0 solver 1".
    pub(super) name: String,
    /// Start of the names of its files: "node0-solver1".
    pub(super) file: String,
    pub(super) ends: Ends,
    /// The host of the lab that it runs in.
    pub(super) host: Option<(&'a Rc<Lab>, u16)>,
}

impl Start<'_> {
    /// Starts it with these settings, which it reads from a file in the folder. `ps` shows its name
    /// and `what` it works on.
    pub(super) fn with<S: Settings>(self, settings: &S, what: &str) -> Result<Component> {
        let file = self.out.join(format!("{}-settings.json", self.file));
        let text = to_json(settings)
            .with_context(|| format!("the settings of {} are not JSON", self.name))?;
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let host = self
            .host
            .map(|(lab, node)| (lab.clone(), usize::from(node)));
        let log = self.out.join(format!("{}.log", self.file));
        let label: Vec<String> = self
            .name
            .split(' ')
            .chain([what])
            .map(str::to_owned)
            .collect();
        // Before each start: the folder may have been removed since the job began.
        let starter = move || {
            write_settings(&file, &text)?;
            let mut command = match &host {
                Some((lab, node)) => lab.command(*node, &program),
                None => {
                    let mut command = Command::new(&program);
                    if S::TIDIES_UP {
                        dogwild_lab::process::end_with_parent(&mut command);
                    } else {
                        dogwild_lab::process::die_with_parent(&mut command);
                    }
                    command
                }
            };
            command.args([S::COMPONENT, "--settings"]).arg(&file);
            command.arg("--label").args(&label);
            Ok(command)
        };
        Component::start(self.name, log, self.ends, Box::new(starter))
    }
}

/// Writes a file of settings if it is not there as it should be. So a full disk does not keep a
/// component from being started again.
fn write_settings(file: &Path, text: &str) -> Result<()> {
    if fs::read(file).is_ok_and(|there| there == text.as_bytes()) {
        return Ok(());
    }
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// The streamer of `node`.
pub(super) fn start_streamer(
    plan: PlanOf<'_, StreamPlan>,
    shared: &SharedWeights,
    lab: Option<&Rc<Lab>>,
    node: u16,
) -> Result<Component> {
    let here = plan.own.here.as_ref();
    // On other transports all nodes are on one link, and its frames find them.
    let may_ask = plan.own.transport.transport == Transport::Udp;
    let join = here.filter(|_| may_ask).and_then(|here| here.join.clone());
    let settings = StreamSettings {
        join: join.into_iter().collect(),
        buffer: shared.path().to_owned(),
        node: Some(node),
        nodes: plan.own.nodes,
        // Where all of them run here, they end at once.
        hand_over: here.is_some(),
        until_eof: false,
        transport: plan.own.transport.of_node(node),
        stream: FlowSettings {
            places: Some(plan.own.places()),
            ..plan.own.stream.clone()
        },
        faults: plan.own.faults.of_node(node),
    };
    let start = Start {
        out: &plan.job.out,
        name: format!("node {node} streamer"),
        file: format!("node{node}-stream"),
        ends: Ends::Never,
        host: lab.map(|lab| (lab, node)),
    };
    start.with(&settings, &shared.path().display().to_string())
}

/// Solver `index` of `node`.
pub(super) fn start_solver(
    plan: PlanOf<'_, StreamPlan>,
    shared: &SharedWeights,
    lab: Option<&Rc<Lab>>,
    node: u16,
    index: u32,
) -> Result<Component> {
    let settings = SolverSettings {
        buffer: shared.path().to_owned(),
        solver: plan.job.model.clone(),
        data: Some(plan.job.data.clone()),
        index,
        solvers: plan.own.all_solvers(node),
        shard: Some(plan.own.shard(node, index)),
        node: Some(node),
        nodes: plan.own.nodes,
        seed: plan.job.seed,
        test_every: if plan.own.tester {
            Some(0)
        } else {
            plan.job.test_every
        },
        // All nodes would test the same positions.
        test_turn: Some(plan.own.turn_of(node)),
        test_images: plan.job.test_images.unwrap_or(TEST_IMAGES),
        target_accuracy: plan.job.target_accuracy.filter(|_| !plan.own.tester),
        pace_steps: plan.own.pace_of(node),
        max_age: plan.own.max_age,
        curve: Some(node_curve(&plan.job.out, node)),
    };
    let start = Start {
        out: &plan.job.out,
        name: format!("node {node} solver {index}"),
        file: format!("node{node}-solver{index}"),
        ends: Ends::WhenDone,
        host: lab.map(|lab| (lab, node)),
    };
    start.with(&settings, &shared.path().display().to_string())
}

/// Device `index` of `node`, with a solver on it.
pub(super) fn start_device(
    plan: PlanOf<'_, StreamPlan>,
    shared: &SharedWeights,
    lab: Option<&Rc<Lab>>,
    node: u16,
    index: u32,
) -> Result<Component> {
    let solver_index = plan.own.solvers_of(node) + index;
    let settings = GpuSettings {
        adders: None,
        buffer: shared.path().to_owned(),
        device: plan.own.devices_of(node)[index as usize],
        index,
        chunk_weights: None,
        rate: None,
        atomic: plan.own.stream.atomic,
        ipc: false,
        solver: Some(plan.job.model.clone()),
        data: Some(plan.job.data.clone()),
        solver_index,
        solvers: plan.own.all_solvers(node),
        shard: Some(plan.own.shard(node, solver_index)),
        node,
        nodes: plan.own.nodes,
        seed: plan.job.seed,
    };
    let start = Start {
        out: &plan.job.out,
        name: format!("node {node} gpu {index}"),
        file: format!("node{node}-gpu{index}"),
        ends: Ends::WhenDone,
        host: lab.map(|lab| (lab, node)),
    };
    start.with(&settings, &shared.path().display().to_string())
}

/// The tester of `node`.
pub(super) fn start_tester(
    plan: PlanOf<'_, StreamPlan>,
    shared: &SharedWeights,
    lab: Option<&Rc<Lab>>,
    node: u16,
) -> Result<Component> {
    let settings = TesterSettings {
        buffer: shared.path().to_owned(),
        solver: plan.job.model.clone(),
        data: Some(plan.job.data.clone()),
        node: Some(node),
        test_every: plan.job.test_every.map(|every| every.max(1)),
        test_images: plan.job.test_images.unwrap_or(0),
        target_accuracy: plan.job.target_accuracy,
        curve: Some(node_curve(&plan.job.out, node)),
    };
    let start = Start {
        out: &plan.job.out,
        name: format!("node {node} tester"),
        file: format!("node{node}-tester"),
        ends: Ends::WhenDone,
        host: lab.map(|lab| (lab, node)),
    };
    start.with(&settings, &shared.path().display().to_string())
}

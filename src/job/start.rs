//! Starts the components of a job: this very program with other arguments.

use std::process::Command;
use std::rc::Rc;

use anyhow::{Context, Result};
use dogwild_lab::Lab;

use super::children::{Component, Ends, Starter};
use super::results::node_curve;
use super::train::TrainPlan;
use crate::weights::SharedWeights;

/// A starter of this very program with `args`, in host `node` of the lab if there is one.
pub(super) fn starter(lab: Option<&Rc<Lab>>, node: u16, args: Vec<String>) -> Result<Starter> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let lab = lab.cloned();
    Ok(Box::new(move || {
        let mut command = match &lab {
            Some(lab) => lab.command(usize::from(node), &program),
            None => {
                let mut command = Command::new(&program);
                dogwild_lab::process::die_with_parent(&mut command);
                command
            }
        };
        command.args(&args);
        command
    }))
}

/// The streamer of `node`.
pub(super) fn start_streamer(
    plan: &TrainPlan,
    shared: &SharedWeights,
    lab: Option<&Rc<Lab>>,
    node: u16,
) -> Result<Component> {
    let mut args = strings(["stream", "--buffer"]);
    args.push(shared.path().display().to_string());
    args.extend([
        "--node".into(),
        node.to_string(),
        "--nodes".into(),
        plan.nodes.to_string(),
    ]);
    args.extend((plan.stream_args)(node));
    let name = format!("node {node} streamer");
    Component::start(
        name,
        plan.out.join(format!("node{node}-stream.log")),
        Ends::Never,
        starter(lab, node, args)?,
    )
}

/// Solver `index` of `node`.
pub(super) fn start_solver(
    plan: &TrainPlan,
    shared: &SharedWeights,
    lab: Option<&Rc<Lab>>,
    node: u16,
    index: u32,
) -> Result<Component> {
    let mut args = strings(["solver", "--buffer"]);
    args.push(shared.path().display().to_string());
    let mut add = |name: &str, value: String| args.extend([name.to_owned(), value]);
    add("--solver", plan.model.clone());
    add("--data", plan.data.to_string());
    add("--index", index.to_string());
    let number = plan.solvers.of_first(node) + index;
    let of = plan.solvers.of_first(plan.nodes);
    add("--shard", format!("{number}/{of}"));
    add("--solvers", plan.solvers.of(node).to_string());
    add("--node", node.to_string());
    add("--nodes", plan.nodes.to_string());
    add("--seed", plan.seed.to_string());
    add("--curve", node_curve(&plan.out, node).display().to_string());
    if plan.tester {
        add("--test-every", "0".into());
    } else if let Some(every) = plan.test_every {
        add("--test-every", every.to_string());
    }
    add_test_images(plan, &mut add);
    if let Some(steps) = plan.pace_steps {
        add("--pace-steps", steps.to_string());
    }
    if let Some(steps) = plan.max_age {
        add("--max-age", steps.to_string());
    }
    if let Some(target) = plan.target_accuracy.filter(|_| !plan.tester) {
        add("--target-accuracy", target.to_string());
    }
    let name = format!("node {node} solver {index}");
    Component::start(
        name,
        plan.out.join(format!("node{node}-solver{index}.log")),
        Ends::WhenDone,
        starter(lab, node, args)?,
    )
}

fn add_test_images(plan: &TrainPlan, add: &mut impl FnMut(&str, String)) {
    if let Some(images) = plan.test_images {
        add("--test-images", images.to_string());
    }
}

/// The tester of `node`.
pub(super) fn start_tester(
    plan: &TrainPlan,
    shared: &SharedWeights,
    lab: Option<&Rc<Lab>>,
    node: u16,
) -> Result<Component> {
    let mut args = strings(["tester", "--buffer"]);
    args.push(shared.path().display().to_string());
    let mut add = |name: &str, value: String| args.extend([name.to_owned(), value]);
    add("--solver", plan.model.clone());
    add("--data", plan.data.to_string());
    add("--node", node.to_string());
    add("--curve", node_curve(&plan.out, node).display().to_string());
    if let Some(every) = plan.test_every {
        add("--test-every", every.max(1).to_string());
    }
    add_test_images(plan, &mut add);
    if let Some(target) = plan.target_accuracy {
        add("--target-accuracy", target.to_string());
    }
    Component::start(
        format!("node {node} tester"),
        plan.out.join(format!("node{node}-tester.log")),
        Ends::WhenDone,
        starter(lab, node, args)?,
    )
}

pub(super) fn strings<const N: usize>(texts: [&str; N]) -> Vec<String> {
    texts.map(str::to_owned).into()
}

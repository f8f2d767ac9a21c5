//! What a finished job on the stream reports: its part of `summary.json`, and the table on the
//! terminal.
//!
//! Every field is documented in `docs/reference/summary-json.md`; units are in the names.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use anyhow::Result;
use serde::Serialize;

use super::outcome::{Ending, last_tests};
use super::plan::{PlanOf, StreamPlan};
use super::resume::Resume;
use super::solvers::Solvers;
use super::warnings::Warning;
use crate::node::{TestResult, Tester, Transforms};
use crate::solver::data::DataSet;
use crate::watch::screen::Columns;
use crate::watch::{SolverMeter, StreamMeter, drops};
use crate::weights::{Role, SharedWeights, SlotInfo};

/// The part of a summary that only the stream has.
#[derive(Clone, Debug, Serialize)]
pub struct StreamSummary {
    /// Number of nodes.
    pub nodes: u16,
    /// Solvers on each node.
    pub solvers_per_node: Solvers,
    /// How frames travelled.
    pub transport: String,
    /// Whether nodes were namespaces of a lab.
    pub lab: bool,
    /// What became of lost deltas.
    pub deltas: String,
    /// The limit of each node, bytes per second; null: none.
    pub rate_bytes_per_s: Option<f64>,
    /// Iterations of the snapshot that the job went on from; null: it began anew.
    pub resumed_from_iteration: Option<u64>,
    /// What went wrong though the job went on, by the time it was first seen.
    pub warnings: Vec<Warning>,
    /// Each node.
    pub per_node: Vec<NodeSummary>,
}

/// One node of a job.
#[derive(Clone, Debug, Serialize)]
pub struct NodeSummary {
    /// Index of the node.
    pub node: u16,
    /// Share of right answers on all test pictures, with this node's weights at the end.
    pub test_accuracy: f32,
    /// Mean loss on them.
    pub test_loss: f32,
    /// Test pictures.
    pub test_images: usize,
    /// Smoothed training loss at the end.
    pub train_loss: f32,
    /// Iterations of this node's solvers.
    pub iterations: u64,
    /// Training pictures per second, all solvers of the node.
    pub images_per_s: f64,
    /// Passes over the own range per second.
    pub cycles_per_s: f64,
    /// Share of the positions of other nodes that never arrived.
    pub positions_lost_share: f64,
    /// CPU time of the streamer as a share of the training time.
    pub streamer_cpu_share: f64,
    /// Age of foreign chunks when their next position came.
    pub age_us: Ages,
    /// MTU of the link as the streamer found it; 0: not known, or no streamer.
    pub link_mtu: u64,
    /// Bytes of its frames at most.
    pub frame_bytes: u64,
    /// Weights of a chunk.
    pub chunk_weights: u64,
    /// Counters of the streamer, by name.
    pub stream: BTreeMap<&'static str, u64>,
    /// Frames that changed nothing, by reason.
    pub dropped: BTreeMap<&'static str, u64>,
}

/// A distribution of ages, µs.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Ages {
    /// The median.
    pub p50: u64,
    /// 99th percentile.
    pub p99: u64,
    /// The longest.
    pub max: u64,
}

impl NodeSummary {
    /// Reads the counters of `node` from its buffer.
    pub fn read(node: u16, shared: &SharedWeights, train_s: f64, test: TestResult) -> Self {
        let slots = shared.slots();
        let solvers: Vec<_> = slots
            .iter()
            .filter(|slot| slot.role == Role::Solver)
            .collect();
        let none = [0; crate::weights::METERS];
        let stream = slots
            .iter()
            .find(|slot| slot.role == Role::Stream)
            .map_or(&none, |slot| &slot.meters);
        // A streamer runs longer than solvers train: before, to get ready, and after, to deliver.
        let run_ns = StreamMeter::RunNs.of(stream).max(1) as f64;
        let sum = |meter: SolverMeter| {
            solvers
                .iter()
                .map(|slot| meter.of(&slot.meters))
                .sum::<u64>()
        };
        let images = sum(SolverMeter::Images) as f64;
        let missed = StreamMeter::PositionsMissed.of(stream) as f64;
        let taken = StreamMeter::PositionsTaken.of(stream) as f64;
        // These have fields of their own, or speak of a moment.
        let apart = [
            StreamMeter::AgeP50,
            StreamMeter::AgeP99,
            StreamMeter::AgeMax,
            StreamMeter::LinkMtu,
            StreamMeter::FrameBytes,
            StreamMeter::ChunkWeights,
            StreamMeter::UnseenRanges,
        ];
        Self {
            node,
            test_accuracy: test.accuracy,
            test_loss: test.loss,
            test_images: test.images,
            train_loss: mean_loss(&solvers),
            iterations: shared.globals().local_iterations.load(Relaxed),
            images_per_s: if train_s > 0.0 { images / train_s } else { 0.0 },
            cycles_per_s: StreamMeter::Cycles.of(stream) as f64 / run_ns * 1e9,
            positions_lost_share: missed / (missed + taken).max(1.0),
            streamer_cpu_share: StreamMeter::CpuNs.of(stream) as f64 / run_ns,
            age_us: Ages {
                p50: StreamMeter::AgeP50.of(stream),
                p99: StreamMeter::AgeP99.of(stream),
                max: StreamMeter::AgeMax.of(stream),
            },
            link_mtu: StreamMeter::LinkMtu.of(stream),
            frame_bytes: StreamMeter::FrameBytes.of(stream),
            chunk_weights: StreamMeter::ChunkWeights.of(stream),
            stream: StreamMeter::ALL
                .iter()
                .filter(|meter| !apart.contains(meter))
                .map(|meter| (meter.name(), meter.of(stream)))
                .collect(),
            dropped: drops(stream)
                .map(|(reason, frames)| (reason.name(), frames))
                .chain([
                    ("kernel", StreamMeter::KernelDrops.of(stream)),
                    ("bad_tag", StreamMeter::SealBadTag.of(stream)),
                    ("replayed", StreamMeter::SealReplayed.of(stream)),
                    ("truncated", StreamMeter::SealTruncated.of(stream)),
                    ("too_many_links", StreamMeter::SealTooManyLinks.of(stream)),
                ])
                .collect(),
        }
    }
}

/// The smoothed losses of a node's solvers, averaged.
fn mean_loss(solvers: &[&SlotInfo]) -> f32 {
    let loss = |slot: &&SlotInfo| f32::from_bits(SolverMeter::LossBits.of(&slot.meters) as u32);
    solvers.iter().map(loss).sum::<f32>() / solvers.len().max(1) as f32
}

impl StreamSummary {
    /// Reads counters and warnings, and tests the weights of `nodes`.
    pub(super) fn of(
        plan: PlanOf<'_, StreamPlan>,
        nodes: &[SharedWeights],
        set: DataSet,
        ending: Ending,
        warnings: Vec<Warning>,
    ) -> Result<Self> {
        let transform = Transforms::of(&plan.job.spec, &set.train).test;
        let mut tester = Tester::new(&plan.job.spec, transform, set.test, 0)?;
        let time = last_tests(ending.outcome).map(|time| time / nodes.len().max(1) as u32);
        let mut per_node = Vec::new();
        let mut same: Option<TestResult> = None;
        for (node, shared) in plan.own.nodes_here().zip(nodes) {
            // Equal weights give equal answers: test once.
            let found = match same {
                Some(found) if ending.replicas_identical => found,
                _ => tester.test_within(shared.view(), time)?,
            };
            same = Some(found);
            per_node.push(NodeSummary::read(node, shared, ending.train_s, found));
        }
        Ok(Self {
            nodes: plan.own.nodes,
            solvers_per_node: plan.own.solvers.clone(),
            transport: plan.own.transport.transport.name().to_owned(),
            lab: plan.own.lab.is_some(),
            deltas: plan.own.stream.deltas_name().to_owned(),
            rate_bytes_per_s: plan.own.stream.rate_bytes_per_s,
            resumed_from_iteration: plan.own.resume.as_ref().map(Resume::iterations),
            warnings,
            per_node,
        })
    }

    /// How the nodes were kept in step, in a few words.
    pub(super) fn how(&self) -> String {
        format!(
            "{} nodes over {}{}, {}, deltas {}",
            self.nodes,
            self.transport,
            if self.lab { " in a lab" } else { "" },
            match &self.solvers_per_node {
                Solvers::Each(1) => "1 solver each".to_owned(),
                Solvers::Each(solvers) => format!("{solvers} solvers each"),
                each => format!("{each} solvers"),
            },
            self.deltas,
        )
    }

    /// The table for the terminal: one column per node.
    pub fn table(&self) -> Columns {
        let title = |node: &NodeSummary| format!("node {}", node.node);
        let titles = self.per_node.iter().map(title);
        let mut table = Columns::boxed(std::iter::once(String::new()).chain(titles));
        let mut row = |name: &str, value: &dyn Fn(&NodeSummary) -> String| {
            table.row(std::iter::once(name.to_owned()).chain(self.per_node.iter().map(value)));
        };
        row("test accuracy", &|n| {
            format!("{:.2} %", n.test_accuracy * 100.0)
        });
        row("test loss", &|n| format!("{:.4}", n.test_loss));
        row("iterations", &|n| n.iterations.to_string());
        row("images/s", &|n| format!("{:.0}", n.images_per_s));
        row("cycles/s", &|n| format!("{:.1}", n.cycles_per_s));
        row("frames sent", &|n| n.stream["frames_sent"].to_string());
        row("frames received", &|n| {
            n.stream["frames_received"].to_string()
        });
        row("positions lost", &|n| {
            format!("{:.2} %", n.positions_lost_share * 100.0)
        });
        row("deltas sent again", &|n| {
            n.stream["deltas_repeated"].to_string()
        });
        row("dropped", &|n| drop_text(n));
        let ms = |us: u64| format!("{:.1}", us as f64 / 1000.0);
        row("age p50, ms", &|n| ms(n.age_us.p50));
        row("age p99, ms", &|n| ms(n.age_us.p99));
        row("age max, ms", &|n| ms(n.age_us.max));
        row("streamer CPU", &|n| {
            format!("{:.0} %", n.streamer_cpu_share * 100.0)
        });
        table
    }
}

fn drop_text(node: &NodeSummary) -> String {
    let fault = node.stream["fault_dropped"];
    let mut parts: Vec<String> = node
        .dropped
        .iter()
        .filter(|(_, n)| **n > 0)
        .map(|(reason, n)| format!("{reason} {n}"))
        .collect();
    if fault > 0 {
        parts.push(format!("on purpose {fault}"));
    }
    if parts.is_empty() {
        "none".into()
    } else {
        // A line each: a column is no wider than its longest reason.
        parts.join("\n")
    }
}

//! What a finished job of the reliable path reports: `summary.json` and the table on the terminal.
//!
//! Every field is documented in `docs/reference/summary-json.md`; units are in the names.

use std::fs;

use anyhow::Result;
use serde::Serialize;

use super::outcome::{Ending, last_tests};
use super::plan::{PlanOf, PoseidonPlan};
use crate::node::{Tester, Transforms};
use crate::poseidon::TrafficReport;
use crate::solver::data::DataSet;
use crate::watch::screen::Columns;
use crate::watch::{SolverMeter, SyncMeter};
use crate::weights::{Role, SharedWeights};

/// The part of a summary that only the reliable path has.
#[derive(Clone, Debug, Serialize)]
pub struct PoseidonSummary {
    /// The path: `poseidon`.
    pub sync: String,
    /// Number of workers.
    pub workers: u16,
    /// Number of servers.
    pub servers: u16,
    /// Threads of each worker.
    pub threads_per_worker: usize,
    /// How the cluster worked, as arguments.
    pub cluster: Vec<String>,
    /// How each worker worked, as arguments.
    pub worker: Vec<String>,
    /// Bytes per second that each worker and each server sent at most.
    pub bandwidth_bytes_per_s: Option<f64>,
    /// Training pictures per second, all workers together.
    pub images_per_s: f64,
    /// Share of right answers on all test pictures at the end.
    pub test_accuracy: f32,
    /// Mean loss on them.
    pub test_loss: f32,
    /// Number of test pictures.
    pub test_images: usize,
    /// Updates of each worker that came too late, summed over servers and KV pairs.
    pub dropped_updates: Vec<u64>,
    /// One entry for each worker.
    pub per_worker: Vec<WorkerSummary>,
    /// What each server sent and received, since its last start.
    pub per_server: Vec<Option<TrafficReport>>,
}

/// Results of one worker.
#[derive(Clone, Debug, Serialize)]
pub struct WorkerSummary {
    /// Index of the worker.
    pub worker: u16,
    /// The iteration that it came to; where late updates are dropped, it may have left some out.
    pub iterations: u64,
    /// Training pictures per second.
    pub images_per_s: f64,
    /// Smoothed training loss at the end.
    pub train_loss: f32,
    /// Share of the time that it waited for the steps of others.
    pub wait_share: f64,
    /// Steps that were missing in the weights when an iteration began, on average: at most the
    /// staleness.
    pub steps_missing_mean: f64,
    /// The most that were missing at once.
    pub steps_missing_max: u64,
    /// Bytes sent, headers included, since its last start.
    pub bytes_sent: u64,
    /// Bytes received, headers included, since its last start.
    pub bytes_received: u64,
    /// The same by layer, since its last start; null if it did not end well.
    pub traffic: Option<TrafficReport>,
}

impl WorkerSummary {
    fn read(
        worker: u16,
        shared: &SharedWeights,
        train_s: f64,
        plan: PlanOf<'_, PoseidonPlan>,
    ) -> Self {
        let slots = shared.slots();
        let none = [0; crate::weights::METERS];
        let solver = slots.iter().find(|slot| slot.role == Role::Solver);
        let meters = solver.map_or(&none, |slot| &slot.meters);
        let waited = SyncMeter::WaitNs.of(meters) as f64;
        let trained = SolverMeter::TrainNs.of(meters) as f64;
        Self {
            worker,
            iterations: shared.globals().iterations(),
            images_per_s: SolverMeter::Images.of(meters) as f64 / train_s.max(f64::MIN_POSITIVE),
            train_loss: f32::from_bits(SolverMeter::LossBits.of(meters) as u32),
            wait_share: waited / (waited + trained).max(1.0),
            steps_missing_mean: SyncMeter::StepsMissing.of(meters) as f64
                / shared.globals().iterations().max(1) as f64,
            steps_missing_max: SyncMeter::StepsMissingMax.of(meters),
            bytes_sent: SyncMeter::BytesSent.of(meters),
            bytes_received: SyncMeter::BytesReceived.of(meters),
            traffic: traffic(plan, "worker", worker),
        }
    }
}

/// The report of a member, if it has written one.
fn traffic(plan: PlanOf<'_, PoseidonPlan>, role: &str, index: u16) -> Option<TrafficReport> {
    let path = plan.job.out.join(format!("{role}{index}-traffic.json"));
    serde_json::from_str(&fs::read_to_string(path).ok()?).ok()
}

impl PoseidonSummary {
    /// Reads counters and reports, and tests the weights of the first worker.
    pub(super) fn of(
        plan: PlanOf<'_, PoseidonPlan>,
        workers: &[SharedWeights],
        first: &SharedWeights,
        set: DataSet,
        ending: Ending,
    ) -> Result<Self> {
        let transform = Transforms::of(&plan.job.spec, &set.train).test;
        let mut tester = Tester::new(&plan.job.spec, transform, set.test, 0)?;
        let found = tester.test_within(first.view(), last_tests(ending.outcome))?;
        let per_worker: Vec<_> = (plan.own.workers_here())
            .zip(workers)
            .map(|(index, shared)| WorkerSummary::read(index, shared, ending.train_s, plan))
            .collect();
        let servers = (0..plan.own.cluster.servers).map(|index| traffic(plan, "server", index));
        let per_server: Vec<Option<TrafficReport>> = servers.collect();
        let mut dropped_updates = vec![0; plan.own.cluster.workers.into()];
        for report in per_server.iter().flatten() {
            let sums = dropped_updates.iter_mut().zip(&report.dropped_updates);
            sums.for_each(|(sum, dropped)| *sum += dropped);
        }
        Ok(Self {
            sync: "poseidon".into(),
            workers: plan.own.cluster.workers,
            servers: plan.own.cluster.servers,
            threads_per_worker: plan.own.threads,
            cluster: plan.own.cluster_args.clone(),
            worker: plan.own.worker_args.clone(),
            bandwidth_bytes_per_s: plan.own.bandwidth_bytes_per_s,
            images_per_s: per_worker.iter().map(|w| w.images_per_s).sum(),
            test_accuracy: found.accuracy,
            test_loss: found.loss,
            test_images: found.images,
            dropped_updates,
            per_worker,
            per_server,
        })
    }

    /// How the workers were kept in step, in a few words.
    pub(super) fn how(&self) -> String {
        format!(
            "poseidon: {} workers, {} servers, {}",
            self.workers,
            self.servers,
            self.cluster.join(" "),
        )
    }

    /// The table for the terminal: one column per worker.
    pub fn table(&self) -> Columns {
        let title = |worker: &WorkerSummary| format!("worker {}", worker.worker);
        let titles = self.per_worker.iter().map(title);
        let mut table = Columns::boxed(std::iter::once(String::new()).chain(titles));
        let mut row = |name: &str, value: &dyn Fn(&WorkerSummary) -> String| {
            table.row(std::iter::once(name.to_owned()).chain(self.per_worker.iter().map(value)));
        };
        row("iterations", &|w| w.iterations.to_string());
        row("images/s", &|w| format!("{:.0}", w.images_per_s));
        row("train loss", &|w| format!("{:.4}", w.train_loss));
        row("steps missing, mean (most)", &|w| {
            format!("{:.2} ({})", w.steps_missing_mean, w.steps_missing_max)
        });
        row("waiting", &|w| format!("{:.1} %", w.wait_share * 100.0));
        let per_step = |bytes: u64, w: &WorkerSummary| {
            format!("{:.3} MB", bytes as f64 / 1e6 / w.iterations.max(1) as f64)
        };
        row("sent per iteration", &|w| per_step(w.bytes_sent, w));
        row("received per iteration", &|w| per_step(w.bytes_received, w));
        row("dropped updates", &|w| {
            self.dropped_updates[usize::from(w.worker)].to_string()
        });
        table
    }
}

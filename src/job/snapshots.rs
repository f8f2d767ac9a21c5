//! Snapshots of a job while it trains: when one is due, and a thread that takes it.
//!
//! Starts one thread at a time; `record` says what is in a snapshot, `shot` how it is taken.
//! Invariants: neither the watch over the job nor a solver ever waits for a snapshot; what goes
//! wrong is said and training goes on.

mod shot;

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use self::shot::{Shot, remove_unfinished};

use super::curves::node_curve;
use super::plan::{PlanOf, StreamPlan};
use super::snapshot_every::SnapshotEvery;
use super::snapshot_record::{FORMAT, HOME, Reason, Record, hex};
use crate::solver::data::DataSet;
use crate::weights::{Expect, SharedWeights};

/// Longest time between two, if they take no time and no other is asked for: what a power cut
/// costs.
const TIME_BETWEEN: Duration = Duration::from_secs(60);
/// The time that one took, times this, passes before the next one by time: a large model on a
/// slow disk spends no more than a twentieth of its time on them.
const SHARE: u32 = 20;
/// Time between two equal warnings.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// What is due, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Schedule {
    /// Iterations between two, and whose wish that is.
    every: Option<(u64, Reason)>,
    /// Time between two.
    between: Option<Duration>,
}

impl Schedule {
    /// What `--snapshot-every` and the solver file's `snapshot` ask for.
    fn of(asked: Option<SnapshotEvery>, solver_file: u64) -> Self {
        let of_file = (solver_file > 0).then_some((solver_file, Reason::SolverFile));
        let (every, between) = match asked {
            Some(SnapshotEvery::Iterations(0)) => (None, None),
            Some(SnapshotEvery::Iterations(n)) => {
                (Some((n, Reason::SnapshotEvery)), Some(TIME_BETWEEN))
            }
            Some(SnapshotEvery::Time(time)) => (of_file, Some(time)),
            None => (of_file, Some(TIME_BETWEEN)),
        };
        Self { every, between }
    }

    /// What is due at `now` iterations, when the last one by iterations or the start was at `last`,
    /// and the last of any kind `since` ago.
    fn due(&self, last: u64, now: u64, since: Duration, took: Duration) -> Option<Reason> {
        let by_iterations = self.every.filter(|(n, _)| now / n > last / n);
        let by_time = |between: &Duration| since >= (*between).max(SHARE * took);
        by_iterations
            .map(|(_, reason)| reason)
            .or_else(|| self.between.filter(by_time).map(|_| Reason::Time))
    }
}

/// Takes the snapshots of a job.
pub(super) struct Snapshots {
    shot: Arc<Shot>,
    schedule: Schedule,
    after_train: bool,
    busy: Option<JoinHandle<(Result<Record>, Duration)>>,
    /// Iterations when the job began, or when one was last begun by iterations.
    last: u64,
    began_at: u64,
    last_begun: Instant,
    took: Duration,
    warned: Option<Instant>,
}

impl Snapshots {
    /// Prepares the snapshots of the job `plan` on `nodes`, those of a resumed run where the
    /// earlier ones are.
    ///
    /// # Errors
    /// A buffer cannot be opened a second time, or the folder that `snapshot_prefix` names cannot
    /// be made.
    pub(super) fn new(
        plan: PlanOf<'_, StreamPlan>,
        nodes: &[SharedWeights],
        set: &DataSet,
    ) -> Result<Self> {
        let spec = &plan.job.spec;
        let home = match &plan.own.resume {
            Some(resume) => resume.home().to_owned(),
            None => plan.job.out.join(HOME),
        };
        let prefix = spec.snapshot_prefix.as_ref().filter(|_| spec.snapshot > 0);
        // A resumed run works in another folder until it is complete; these lie where they lay.
        let base = home.parent().unwrap_or(&plan.job.out);
        let prefix = prefix.map(|prefix| base.join(prefix));
        if let Some(folder) = prefix.as_deref().and_then(Path::parent) {
            std::fs::create_dir_all(folder).with_context(|| {
                format!(
                    "snapshot_prefix: cannot make the folder {}",
                    folder.display()
                )
            })?;
        }
        remove_unfinished(&home);
        let fingerprint = nodes.first().map_or(0, SharedWeights::fingerprint);
        let open = |shared: &SharedWeights| SharedWeights::open(shared.path(), &Expect::default());
        let shot = Shot {
            home,
            prefix,
            job: Record {
                format: FORMAT,
                dogwild: env!("CARGO_PKG_VERSION").into(),
                reason: Reason::Time,
                sequence: 0,
                model: plan.job.model.clone(),
                fingerprint: hex(fingerprint),
                data: plan.job.data.to_string(),
                train_images: set.train.len(),
                seed: plan.job.seed,
                nodes: plan.own.nodes,
                solvers_per_node: plan.own.solvers.clone(),
                iterations: 0,
                iterations_asked: plan.job.iterations,
                per_node: Vec::new(),
                files: Default::default(),
                xxh3: String::new(),
            },
            first: plan.own.nodes_here().start,
            nodes: nodes.iter().map(open).collect::<Result<_, _>>()?,
            curves: plan
                .own
                .nodes_here()
                .map(|k| node_curve(&plan.job.out, k))
                .collect(),
        };
        let began_at = shot.iterations();
        Ok(Self {
            shot: Arc::new(shot),
            schedule: Schedule::of(plan.own.snapshot_every, spec.snapshot),
            after_train: spec.snapshot_after_train,
            busy: None,
            last: began_at,
            began_at,
            last_begun: Instant::now(),
            took: Duration::ZERO,
            warned: None,
        })
    }

    /// Begins a snapshot if one is due and none is being taken. Returns at once.
    pub(super) fn look(&mut self) {
        if self.busy.as_ref().is_some_and(|busy| !busy.is_finished()) {
            return;
        }
        self.reap();
        let (now, since) = (self.shot.iterations(), self.last_begun.elapsed());
        if now == self.began_at {
            // Nothing to lose yet.
            self.last_begun = Instant::now();
            return;
        }
        if let Some(reason) = self.schedule.due(self.last, now, since, self.took) {
            self.last = now;
            self.last_begun = Instant::now();
            let shot = Arc::clone(&self.shot);
            let begun = std::thread::Builder::new()
                .name("dogwild-snapshot".into())
                .spawn(move || {
                    let start = Instant::now();
                    (shot.take(reason), start.elapsed())
                });
            match begun {
                Ok(busy) => self.busy = Some(busy),
                Err(error) => self.warn(&format!("cannot start a thread: {error}")),
            }
        }
    }

    /// Waits for the snapshot that is being taken.
    fn reap(&mut self) {
        match self.busy.take().map(JoinHandle::join) {
            None => {}
            Some(Ok((Ok(record), took))) => {
                self.took = took;
                self.warned = None;
                log::debug!(
                    "snapshot of iteration {} in {} ms",
                    record.iterations,
                    took.as_millis()
                );
            }
            Some(Ok((Err(error), took))) => {
                self.took = took;
                self.warn(&format!("{error:#}"));
            }
            Some(Err(_)) => self.warn("its thread has panicked"),
        }
    }

    /// The last one, when no solver runs any more. `by_itself`: the job has come to its own end, so
    /// that the solver file may do without.
    pub(super) fn finish(mut self, by_itself: bool) {
        self.reap();
        if self.shot.iterations() == self.began_at || by_itself && !self.after_train {
            return;
        }
        if let Err(error) = self.shot.take(Reason::End) {
            log::warn!("no snapshot was taken at the end: {error:#}");
        }
    }

    fn warn(&mut self, text: &str) {
        if self.warned.is_none_or(|when| when.elapsed() >= WARN_EVERY) {
            log::warn!(
                "no snapshot was taken: {text}; training goes on, the next one is tried when it is due"
            );
            self.warned = Some(Instant::now());
        }
    }
}

impl Drop for Snapshots {
    fn drop(&mut self) {
        // The thread reads buffers that go when the job does.
        self.reap();
    }
}

#[cfg(test)]
mod tests;

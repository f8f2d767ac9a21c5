//! Puts a new job where a snapshot was taken.
//!
//! Touches the curve files of the new job, and its buffers before any component runs. Invariant:
//! nothing is restored from a snapshot of another model, other data or another seed.

use std::fs;
use std::sync::atomic::Ordering::Relaxed;

use anyhow::{Context, Result, bail};

use super::curves::node_curve;
use super::plan::{PlanOf, StreamPlan};
use super::resume::Resume;
use super::snapshot_record::{CURVE, NodeRecord, Record, SolverRecord, hex};
use crate::node::bound_net;
use crate::snapshot;
use crate::solver::Phase;
use crate::solver::data::{DataSet, Source};
use crate::watch::curve::{CurveWriter, read_rows};
use crate::weights::{SharedWeights, SolverState};

impl Resume {
    /// Refuses a job that is not the one of the snapshot, by what differs, and one that is done.
    ///
    /// # Errors
    /// Every difference.
    pub(super) fn check(&self, plan: PlanOf<'_, StreamPlan>, set: &DataSet) -> Result<()> {
        let (there, here) = (&self.record, plan);
        let mut differences = Vec::new();
        let mut differs = |what: &str, there: &str, here: &str| {
            differences.push(format!("{what} is {there} there and {here} here"));
        };
        let (_, tensors) = bound_net(
            &plan.job.spec.net,
            Phase::Train,
            1,
            set.train.shape,
            set.train.classes,
        )?;
        if there.fingerprint != hex(tensors.fingerprint()) {
            let name = |model: &str, fingerprint: &str| format!("{model} (tensors {fingerprint})");
            differs(
                "the model (--solver)",
                &name(&there.model, &there.fingerprint),
                &name(&here.job.model, &hex(tensors.fingerprint())),
            );
        }
        if !same_data(there, &here.job.data, set) {
            differs("the data (--data)", &there.data, &here.job.data.to_string());
        }
        if there.seed != here.job.seed {
            differs(
                "--seed",
                &there.seed.to_string(),
                &here.job.seed.to_string(),
            );
        }
        if !differences.is_empty() {
            bail!(
                "--resume: {} is a snapshot of another run: {}. Give what that run was given, or name another --out",
                self.folder.display(),
                differences.join("; ")
            );
        }
        if here.job.iterations > 0 && there.iterations >= here.job.iterations {
            bail!(
                "--resume: the run in {} has finished: {} of {} iterations are done. To train on, give more, \
                 as --iterations {}",
                self.home().parent().unwrap_or(self.home()).display(),
                there.iterations,
                here.job.iterations,
                2 * there.iterations
            );
        }
        Ok(())
    }

    /// Puts the buffers `nodes`, which hold the weights already, where the run was: iterations,
    /// each solver's momentum, place in the data and time, and the curve.
    pub(super) fn restore(
        &self,
        plan: PlanOf<'_, StreamPlan>,
        nodes: &[SharedWeights],
    ) -> Result<()> {
        let record = &self.record;
        let same = (record.nodes, &record.solvers_per_node) == (plan.own.nodes, &plan.own.solvers);
        if !same {
            log::warn!(
                "--resume: the run had {} nodes with {} solvers, now there are {} with {}: weights and iterations \
                 go on, momentum and places in the data begin anew",
                record.nodes,
                record.solvers_per_node,
                plan.own.nodes,
                plan.own.solvers
            );
        }
        for (node, shared) in (0u16..).zip(nodes) {
            let before = record.per_node.iter().find(|n| n.node == node);
            let local = match before {
                Some(before) if same => before.iterations,
                // All that was done counts once.
                _ if node == 0 => record.iterations,
                _ => 0,
            };
            let globals = shared.globals();
            globals.local_iterations.store(local, Relaxed);
            let remote = record.iterations.saturating_sub(local);
            globals.remote_iterations.store(remote, Relaxed);
            globals.saved_iterations.store(record.iterations, Relaxed);
            for solver in 0..plan.own.solvers.of(node) {
                let before = before.filter(|_| same);
                self.restore_solver(shared, solver, before)?;
            }
        }
        self.restore_curve(plan)
    }

    fn restore_solver(
        &self,
        shared: &SharedWeights,
        solver: u32,
        node: Option<&NodeRecord>,
    ) -> Result<()> {
        let path = SolverState::path_beside(shared.path(), solver);
        let (state, _) = SolverState::open_or_create(&path, shared.id(), shared.padded())?;
        let own = |s: &&SolverRecord| s.solver == solver;
        let before = node.and_then(|node| node.solvers.iter().find(own));
        if let Some(before) = before {
            let file = self.folder.join(&before.file);
            snapshot::load(&file, shared.manifest(), state.history())?;
            state.progress().iteration.store(before.iterations, Relaxed);
            state.progress().cursor.store(before.cursor, Relaxed);
            state.progress().loss_bits.store(before.loss_bits, Relaxed);
            state.progress().set_caution(before.caution);
        }
        let elapsed_ns = before.map_or(self.record.elapsed_ns(), |before| before.elapsed_ns);
        state.progress().elapsed_ns.store(elapsed_ns, Relaxed);
        Ok(())
    }

    /// The curve goes on after the rows up to the snapshot: later ones are of training that is
    /// lost.
    fn restore_curve(&self, plan: PlanOf<'_, StreamPlan>) -> Result<()> {
        let rows = read_rows(&self.folder.join(CURVE))?;
        let old = plan.job.out.join("curve.csv");
        if old.exists() {
            fs::remove_file(&old).with_context(|| format!("cannot replace {}", old.display()))?;
        }
        for node in 0..plan.own.nodes {
            let path = node_curve(&plan.job.out, node);
            if path.exists() {
                fs::remove_file(&path)
                    .with_context(|| format!("cannot replace {}", path.display()))?;
            }
            let mut curve = CurveWriter::append(&path)?;
            // Rows of nodes that are no more stay with the first.
            let own = |of: u16| of == node || node == 0 && of >= plan.own.nodes;
            for row in rows.iter().filter(|row| own(row.node)) {
                curve.write(row)?;
            }
        }
        Ok(())
    }
}

/// True if `here` gives the pictures that the run of `there` saw.
fn same_data(there: &Record, here: &Source, set: &DataSet) -> bool {
    match (there.data.parse(), here) {
        (
            Ok(Source::Digits { train, seed, .. }),
            Source::Digits {
                train: own_train,
                seed: own_seed,
                ..
            },
        ) => (train, seed) == (*own_train, *own_seed),
        // The folder or the feed may have moved.
        (Ok(there_from), _) => {
            there_from.kind() == here.kind() && there.train_images == set.train.len()
        }
        (Err(_), _) => false,
    }
}

//! One snapshot: reads the buffers of a job while its solvers run, and writes a folder.
//!
//! Touches the buffers and solver states of the job (reading) and the folder of its snapshots.
//! Invariants: a folder with a number for its name is a complete snapshot on the disk; a weight
//! that is not finite is not written; what was there stays when anything fails.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

use anyhow::{Context, Result};

use super::super::snapshot_record::{
    CURVE, FileRecord, MANIFEST, NodeRecord, Reason, Record, SolverRecord, WEIGHTS, aside, folders,
};
use crate::node::Positions;
use crate::snapshot;
use crate::watch::curve::{CurveRow, CurveWriter, read_rows};
use crate::weights::{SharedWeights, SolverState, StateError};

/// Snapshots that stay besides those that the solver file asks for.
const KEPT: usize = 3;
/// End of the name of a folder that is not complete, or no longer.
const NEW: &str = "new";

/// What is the same for all snapshots of a job.
pub(super) struct Shot {
    /// The folder of the snapshots.
    pub(super) home: PathBuf,
    /// Start of the names of weights that the solver file asks for.
    pub(super) prefix: Option<PathBuf>,
    /// The job, with nothing measured in it yet.
    pub(super) job: Record,
    /// The number of the first of them.
    pub(super) first: u16,
    /// The buffers of the nodes that run here.
    pub(super) nodes: Vec<SharedWeights>,
    /// Where each node's solvers write their rows of the curve.
    pub(super) curves: Vec<PathBuf>,
}

impl Shot {
    /// Iterations of the cluster.
    pub(super) fn iterations(&self) -> u64 {
        let local = |node: &SharedWeights| node.globals().local_iterations.load(Relaxed);
        self.nodes.iter().map(local).sum()
    }

    /// Takes a snapshot. Gives its record.
    pub(super) fn take(&self, reason: Reason) -> Result<Record> {
        fs::create_dir_all(&self.home)
            .with_context(|| format!("cannot make the folder {}", self.home.display()))?;
        let work = self.home.join(format!("{}.{NEW}", self.iterations()));
        // A file in the way would fail below, with its name.
        let _ = fs::remove_dir_all(&work);
        fs::create_dir(&work).with_context(|| format!("cannot make {}", work.display()))?;
        let taken = self.fill(&work, reason).and_then(|record| {
            self.publish(&work, &record)?;
            Ok(record)
        });
        if taken.is_err() {
            // The first error is the one to tell.
            let _ = fs::remove_dir_all(&work);
        }
        taken
    }

    /// Writes all files into `work`, the manifest last.
    fn fill(&self, work: &Path, reason: Reason) -> Result<Record> {
        let mut per_node = Vec::new();
        for (node, shared) in (self.first..).zip(&self.nodes) {
            per_node.push(NodeRecord {
                node,
                iterations: shared.globals().local_iterations.load(Relaxed),
                solvers: self.write_solvers(work, node, shared)?,
            });
        }
        let iterations = per_node.iter().map(|node| node.iterations).sum::<u64>();
        let first = self.nodes.first().context("a job without nodes")?;
        let metadata = [
            ("model".to_owned(), self.job.model.clone()),
            ("iterations".to_owned(), iterations.to_string()),
        ];
        let mut positions = Positions::default();
        snapshot::save(
            &work.join(WEIGHTS),
            first.manifest(),
            positions.of(first),
            metadata.into(),
        )?;
        write_curve(&self.curves, &work.join(CURVE), iterations, &per_node)?;
        let mut files = BTreeMap::new();
        for entry in fs::read_dir(work)?.flatten() {
            let path = entry.path();
            let file = FileRecord::of(&path)
                .with_context(|| format!("cannot read {} again", path.display()))?;
            files.insert(entry.file_name().to_string_lossy().into_owned(), file);
        }
        // What the solver file asked for stays, also if another one takes its place.
        let replaced = Record::read(&self.home.join(iterations.to_string())).ok();
        let reason = replaced
            .map(|old| old.reason)
            .filter(|old| old.stays())
            .unwrap_or(reason);
        let record = Record {
            reason,
            sequence: 1 + self.records().map(|(_, r)| r.sequence).max().unwrap_or(0),
            iterations,
            per_node,
            files,
            ..self.job.clone()
        };
        let path = work.join(MANIFEST);
        let write = || {
            fs::write(&path, record.text()?)?;
            File::open(&path)?.sync_all()?;
            File::open(work)?.sync_all()
        };
        write().with_context(|| format!("cannot write {}", path.display()))?;
        Ok(record)
    }

    /// Writes the momentum of the solvers of a node.
    fn write_solvers(
        &self,
        work: &Path,
        node: u16,
        shared: &SharedWeights,
    ) -> Result<Vec<SolverRecord>> {
        let mut solvers = Vec::new();
        for solver in 0..self.job.solvers_per_node.of(node) {
            let path = SolverState::path_beside(shared.path(), solver);
            let state = match look(shared, &path) {
                Ok(state) => state,
                // It has not begun yet.
                Err(StateError::Io { source, .. })
                    if source.kind() == std::io::ErrorKind::NotFound =>
                {
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let record = SolverRecord {
                solver,
                iterations: state.progress().iteration.load(Relaxed),
                cursor: state.progress().cursor.load(Relaxed),
                elapsed_ns: state.progress().elapsed_ns.load(Relaxed),
                loss_bits: state.progress().loss_bits.load(Relaxed),
                caution: state.progress().caution_words(),
                file: format!("node{node}-solver{solver}.safetensors"),
            };
            let metadata = [
                ("node", u64::from(node)),
                ("solver", u64::from(solver)),
                ("seed", self.job.seed),
                ("iterations", record.iterations),
                ("cursor", record.cursor),
                ("elapsed_ns", record.elapsed_ns),
            ];
            snapshot::save(
                &work.join(&record.file),
                shared.manifest(),
                state.history(),
                metadata.map(|(k, v)| (k.to_owned(), v.to_string())).into(),
            )?;
            solvers.push(record);
        }
        Ok(solvers)
    }

    /// Gives the complete folder its name; removes what is no longer needed.
    fn publish(&self, work: &Path, record: &Record) -> Result<()> {
        let folder = self.home.join(record.iterations.to_string());
        let aside = aside(&folder);
        let rename = || {
            if folder.exists() {
                let _ = fs::remove_dir_all(&aside);
                fs::rename(&folder, &aside)?;
            }
            fs::rename(work, &folder)
        };
        rename().with_context(|| format!("cannot rename {}", work.display()))?;
        // Some file systems cannot sync a folder; the snapshot is whole all the same.
        let _ = File::open(&self.home).and_then(|home| home.sync_all());
        let _ = fs::remove_dir_all(&aside);
        for shared in &self.nodes {
            let saved = &shared.globals().saved_iterations;
            saved.store(record.iterations, Relaxed);
        }
        if let (Reason::SolverFile, Some(prefix)) = (record.reason, &self.prefix) {
            let mut name = prefix.as_os_str().to_owned();
            name.push(format!("_iter_{}.safetensors", record.iterations));
            if let Err(error) = link_or_copy(&folder.join(WEIGHTS), Path::new(&name)) {
                log::warn!("snapshot_prefix: cannot write {}: {error}", name.display());
            }
        }
        self.remove_old();
        Ok(())
    }

    /// Complete snapshots in the folder.
    fn records(&self) -> impl Iterator<Item = (PathBuf, Record)> {
        let folders = folders(&self.home).into_iter();
        folders.filter_map(|folder| Record::read(&folder).ok().map(|record| (folder, record)))
    }

    fn remove_old(&self) {
        let mut passing: Vec<_> = self.records().filter(|(_, r)| !r.reason.stays()).collect();
        passing.sort_by_key(|(_, record)| std::cmp::Reverse(record.sequence));
        for (folder, _) in passing.into_iter().skip(KEPT) {
            // Under another name first: half a snapshot under its own would look damaged.
            let going = folder.with_extension(NEW);
            if let Err(error) =
                fs::rename(&folder, &going).and_then(|()| fs::remove_dir_all(&going))
            {
                log::warn!("cannot remove {}: {error}", folder.display());
            }
        }
    }
}

/// Writes the rows of the files `curves` that were measured before the states in `per_node` were
/// read. A row's iteration alone does not tell: a node hears late what the others have done.
fn write_curve(
    curves: &[PathBuf],
    to: &Path,
    iterations: u64,
    per_node: &[NodeRecord],
) -> Result<()> {
    let mut rows = Vec::new();
    for curve in curves.iter().filter(|curve| curve.exists()) {
        rows.extend(read_rows(curve)?);
    }
    let is_later = |row: &CurveRow| {
        let node = per_node.iter().find(|node| node.node == row.node);
        let mut solvers = node.into_iter().flat_map(|node| &node.solvers);
        let own = solvers.find(|solver| solver.solver == row.solver);
        own.is_some_and(|own| row.seconds > own.elapsed_ns as f64 / 1e9)
    };
    rows.retain(|row| row.iteration <= iterations && !is_later(row));
    rows.sort_by_key(|row| (row.iteration, row.node));
    let mut writer = CurveWriter::append(to)?;
    for row in &rows {
        writer.write(row)?;
    }
    Ok(File::open(to)?.sync_all()?)
}

/// The state of a solver of `shared`, at work or not.
fn look(shared: &SharedWeights, path: &Path) -> Result<SolverState, StateError> {
    SolverState::look(path, shared.id(), shared.padded())
}

fn link_or_copy(from: &Path, to: &Path) -> std::io::Result<()> {
    let _ = fs::remove_file(to);
    fs::hard_link(from, to).or_else(|_| fs::copy(from, to).map(drop))
}

/// Removes what a killed job has left half written in `home`.
pub(super) fn remove_unfinished(home: &Path) {
    for entry in fs::read_dir(home).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_suffix(".new"));
        if number.is_some_and(|n| n.parse::<u64>().is_ok()) {
            // It does no harm if it stays.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

//! The buffers of one job under /dev/shm, from their making to their end.
//!
//! Touches files whose names begin with the job's own. Invariant: they are removed only by
//! [`Buffers::remove`], never because something went wrong: they may hold the only copy of a model.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::SystemTime;

use anyhow::{Result, anyhow};

use super::BufferError;
use super::memory;
use super::out::OutFolder;
use super::results::save_weights;
use crate::snapshot::SaveError;
use crate::weights::{CreateError, SharedWeights};

/// Start of the names of all files that this command makes under /dev/shm.
pub(super) const PREFIX: &str = "dogwild-train-";
/// Where buffers are.
pub(super) const SHM: &str = "/dev/shm";
/// Jobs under /dev/shm whose launchers had the same process number, at most.
const MOST_NAMESAKES: u32 = 1000;

/// Files under /dev/shm of one job.
pub(super) struct Buffers {
    job: String,
    pub(super) nodes: Vec<SharedWeights>,
}

/// What became of a job's weights.
pub(super) enum Saved {
    /// They are in a file.
    Whole,
    /// No node has weights that are all finite: there is nothing worth a file.
    NotFinite(String),
}

impl Buffers {
    /// Makes a buffer for each node by `make`. Nothing stays if one cannot be made.
    pub(super) fn make(
        nodes: u16,
        make: impl Fn(&Path) -> Result<SharedWeights, BufferError>,
    ) -> Result<Self> {
        let (job, first) = first(&make)?;
        let mut buffers = Self {
            job,
            nodes: vec![first],
        };
        for node in 1..nodes {
            match make(&buffers.path(node)) {
                Ok(shared) => buffers.nodes.push(shared),
                Err(error) => {
                    buffers.remove();
                    return Err(error.into());
                }
            }
        }
        Ok(buffers)
    }

    /// Opens or makes the buffer of the only node that runs here, whose name follows from the job:
    /// a node that was killed finds it again.
    pub(super) fn of_node(
        session: u64,
        node: u16,
        make: impl Fn(&Path) -> Result<SharedWeights, BufferError>,
    ) -> Result<Self> {
        let path = node_buffer(session, node);
        let shared = make(&path)?;
        // Its files alone: other nodes of the job may be on this host.
        let job = path.file_name().unwrap_or_default();
        Ok(Self {
            job: job.to_string_lossy().into_owned(),
            nodes: vec![shared],
        })
    }

    fn path(&self, node: u16) -> PathBuf {
        path(&self.job, node)
    }

    /// Where they are.
    pub(super) fn paths(&self) -> Vec<PathBuf> {
        let nodes = self.nodes.iter();
        nodes.map(|shared| shared.path().to_owned()).collect()
    }

    /// Whether a test has reached the target.
    pub(super) fn reached(&self) -> bool {
        let mut nodes = self.nodes.iter();
        nodes.any(|shared| shared.globals().stop.load(Relaxed) != 0)
    }

    /// Iterations in the buffers, the most that a node knows of.
    pub(super) fn iterations(&self) -> u64 {
        let known = self
            .nodes
            .iter()
            .map(|shared| shared.globals().iterations());
        known.max().unwrap_or(0)
    }

    /// Writes the weights of the first node whose weights are finite to the job's folder.
    ///
    /// # Errors
    /// They cannot be written; where they still are, and how to rescue them.
    pub(super) fn save(&self, out: &OutFolder, model: &str) -> Result<Saved> {
        // If this fails, so does saving, which says why.
        let _ = out.restore();
        let mut not_finite = String::new();
        for shared in &self.nodes {
            match save_weights(out.work(), model, shared) {
                Ok(()) => {
                    self.saved();
                    return Ok(Saved::Whole);
                }
                Err(error @ SaveError::NonFinite { .. }) => not_finite = error.to_string(),
                Err(error) => return Err(anyhow!("{error}; {}", self.rescue(shared))),
            }
        }
        Ok(Saved::NotFinite(not_finite))
    }

    /// Notes that nothing in them is the only copy any more.
    fn saved(&self) {
        for shared in &self.nodes {
            let globals = shared.globals();
            let made = globals.iterations();
            globals.saved_iterations.store(made, Relaxed);
        }
    }

    /// Where the weights are, and what to do with them.
    fn rescue(&self, shared: &SharedWeights) -> String {
        format!(
            "the weights after {} iterations are still in memory. Save them with\n  \
             dogwild snapshot --buffer {} --out FILE.safetensors\n\
             and then free the memory with\n  dogwild clean",
            self.iterations(),
            shared.path().display()
        )
    }

    /// Keeps all that a node remembers with its results in `dir`, so that the same node goes on,
    /// and removes the buffer. If that cannot be, it stays.
    pub(super) fn keep(self, dir: &Path) {
        match memory::keep(&files_of(&self.job), dir) {
            Ok(kept) => {
                log::info!(
                    "what this node remembers is kept in {}: the same command goes on",
                    kept.display()
                );
                self.remove();
            }
            Err(error) => log::warn!(
                "{error:#}; so the buffers {SHM}/{}* stay, and the same command goes on with them (`dogwild clean` \
                 removes them)",
                self.job
            ),
        }
    }

    /// Removes them: they are saved, or hold nothing worth it.
    pub(super) fn remove(self) {
        drop(self.nodes);
        for path in files_of(&self.job) {
            // A file that another user's program made stays: that is the system's answer.
            let _ = fs::remove_file(path);
        }
    }
}

/// The buffer of a node that runs without the others of its job.
pub fn node_buffer(session: u64, node: u16) -> PathBuf {
    // Two digits: no name is the beginning of another.
    Path::new(SHM).join(format!("{PREFIX}node-{session:016x}-n{node:02}"))
}

/// The name of a new job, and its first buffer.
fn first(
    make: &impl Fn(&Path) -> Result<SharedWeights, BufferError>,
) -> Result<(String, SharedWeights)> {
    let process = std::process::id();
    for namesake in 1..=MOST_NAMESAKES {
        // Process numbers repeat, and in other namespaces they are the same at the same time.
        let job = match namesake {
            1 => format!("{PREFIX}{process}-"),
            more => format!("{PREFIX}{process}.{more}-"),
        };
        if !files_of(&job).is_empty() {
            continue;
        }
        match make(&path(&job, 0)) {
            Ok(shared) => return Ok((job, shared)),
            Err(BufferError::Create(CreateError::Exists { .. })) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(anyhow!(
        "{SHM} is full of files {PREFIX}{process}*: look at them with dogwild clean"
    ))
}

fn path(job: &str, node: u16) -> PathBuf {
    Path::new(SHM).join(format!("{job}n{node}"))
}

fn files_of(job: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(SHM).into_iter().flatten().flatten();
    let ours = entries.filter(|entry| {
        let name = entry.file_name();
        name.to_str().is_some_and(|name| name.starts_with(job))
    });
    ours.map(|entry| entry.path()).collect()
}

/// A name for a session that no other job has, in this or another process namespace.
pub(super) fn session_name() -> String {
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    format!("train-{}-{}", std::process::id(), since.as_nanos())
}

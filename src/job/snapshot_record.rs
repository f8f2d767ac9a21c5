//! What a snapshot says of itself: `manifest.json`, written last, and the way it is checked.
//!
//! Touches the snapshot's folder, reading. Invariant: a record that [`Record::read`] gives is as it
//! was written (it holds a checksum of itself), and [`Record::check_files`] says the same of the
//! files that it names. The fields are documented for users in `docs/guide/train.md`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::job::Solvers;
use crate::solver::Caution;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Version of the format.
pub(super) const FORMAT: u32 = 1;
/// The record's own file.
pub(super) const MANIFEST: &str = "manifest.json";
/// The weights.
pub(super) const WEIGHTS: &str = "weights.safetensors";
/// Rows of the learning curve up to the snapshot.
pub(super) const CURVE: &str = "curve.csv";
/// The folder of the snapshots in that of the results.
pub(super) const HOME: &str = "snapshots";
/// End of the name of a snapshot that another one of the same iteration is replacing.
const REPLACED: &str = ".old";

/// Why a snapshot was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Reason {
    /// The solver file's `snapshot`.
    SolverFile,
    /// What `--snapshot-every` asks for.
    SnapshotEvery,
    /// Time had passed.
    Time,
    /// The job ended.
    End,
}

impl Reason {
    /// True if it stays when newer ones come, as Caffe's do.
    pub(super) fn stays(self) -> bool {
        self == Self::SolverFile
    }
}

/// The manifest of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// The version of the format: [`FORMAT`].
    pub(super) format: u32,
    /// Version of the program.
    pub(super) dogwild: String,
    /// Why it was taken.
    pub(super) reason: Reason,
    /// One more than that of the snapshot before it: which of two is newer.
    pub(super) sequence: u64,
    /// The model as it was named.
    pub(super) model: String,
    /// Names and shapes of its tensors, as a hash.
    pub(super) fingerprint: String,
    /// Where the pictures came from.
    pub(super) data: String,
    /// Training pictures.
    pub(super) train_images: usize,
    /// Seed of weights and pictures.
    pub(super) seed: u64,
    /// Nodes of the job.
    pub(super) nodes: u16,
    /// Solvers on each node.
    pub(super) solvers_per_node: Solvers,
    /// Iterations of the cluster.
    pub(super) iterations: u64,
    /// Iterations that the job was asked for; 0: no end.
    pub(super) iterations_asked: u64,
    /// Each node.
    pub(super) per_node: Vec<NodeRecord>,
    /// Every file but this one, by name.
    pub(super) files: BTreeMap<String, FileRecord>,
    /// xxh3 of this record, with nothing in this field.
    pub(super) xxh3: String,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NodeRecord {
    /// Index of the node.
    pub(super) node: u16,
    /// Iterations of its solvers.
    pub(super) iterations: u64,
    /// Its solvers that have begun.
    pub(super) solvers: Vec<SolverRecord>,
}

/// One solver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SolverRecord {
    /// Index on its node.
    pub(super) solver: u32,
    /// Its own iterations.
    pub(super) iterations: u64,
    /// Pictures of its share handed out: its place in the data.
    pub(super) cursor: u64,
    /// Time it has trained, ns.
    pub(super) elapsed_ns: u64,
    /// Its smoothed loss, as f32 bits; 0: none.
    pub(super) loss_bits: u64,
    /// What it knows of the rise of its loss.
    #[serde(default)]
    pub(super) caution: [u64; Caution::WORDS],
    /// Its momentum.
    pub(super) file: String,
}

/// One file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileRecord {
    /// Length of the file.
    pub(super) bytes: u64,
    /// xxh3 of its bytes, hexadecimal.
    pub(super) xxh3: String,
}

/// Why a snapshot cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum RecordError {
    /// The system refuses.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It is of a later program.
    #[error("{} is of format {found}, this program reads {FORMAT}: use the program that wrote it", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u64,
    },
    /// It is not what was written.
    #[error("{} is damaged: {why}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
}

impl Record {
    /// The text of the file, with its checksum.
    pub(super) fn text(&self) -> serde_json::Result<String> {
        let mut sealed = self.clone();
        sealed.xxh3 = sealed.sum()?;
        Ok(serde_json::to_string_pretty(&sealed)? + "\n")
    }

    fn sum(&self) -> serde_json::Result<String> {
        let mut bare = self.clone();
        bare.xxh3.clear();
        Ok(hex(xxh3_64(&serde_json::to_vec(&bare)?)))
    }

    /// Reads the record of the snapshot `folder`.
    pub(super) fn read(folder: &Path) -> Result<Self, RecordError> {
        let path = folder.join(MANIFEST);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(source) => return Err(RecordError::Read { path, source }),
        };
        let damaged = |why: String| RecordError::Damaged {
            path: path.clone(),
            why,
        };
        let value: serde_json::Value =
            serde_json::from_slice(&text).map_err(|e| damaged(e.to_string()))?;
        if let Some(found) = value["format"].as_u64().filter(|&f| f > FORMAT.into()) {
            return Err(RecordError::Newer { path, found });
        }
        let record: Self = serde_json::from_value(value).map_err(|e| damaged(e.to_string()))?;
        if record.sum().ok().as_ref() != Some(&record.xxh3) {
            return Err(damaged(
                "it does not have the checksum that it names".into(),
            ));
        }
        Ok(record)
    }

    /// Reads every file that the record names and compares length and checksum.
    pub(super) fn check_files(&self, folder: &Path) -> Result<(), RecordError> {
        for (name, expected) in &self.files {
            let path = folder.join(name);
            match FileRecord::of(&path) {
                Ok(found) if found == *expected => {}
                Ok(found) if found.bytes != expected.bytes => {
                    let why = format!("{} bytes instead of {}", found.bytes, expected.bytes);
                    return Err(RecordError::Damaged { path, why });
                }
                Ok(_) => {
                    let why = "it does not have the checksum that the manifest names".into();
                    return Err(RecordError::Damaged { path, why });
                }
                Err(source) => return Err(RecordError::Read { path, source }),
            }
        }
        Ok(())
    }

    /// Longest time that one of the solvers has trained, ns.
    pub(super) fn elapsed_ns(&self) -> u64 {
        let solvers = self.per_node.iter().flat_map(|node| &node.solvers);
        solvers.map(|solver| solver.elapsed_ns).max().unwrap_or(0)
    }
}

impl FileRecord {
    /// Reads the file at `path`.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let mut file = File::open(path)?;
        let (mut sum, mut bytes) = (Xxh3::new(), 0);
        let mut part = vec![0; 1 << 18];
        loop {
            match file.read(&mut part)? {
                0 => break,
                n => {
                    sum.update(&part[..n]);
                    bytes += n as u64;
                }
            }
        }
        let xxh3 = hex(sum.digest());
        Ok(Self { bytes, xxh3 })
    }
}

pub(super) fn hex(number: u64) -> String {
    format!("{number:016x}")
}

/// The folders in `home` that have the name of a snapshot, complete or not.
pub(super) fn folders(home: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(home).into_iter().flatten().flatten();
    let is_snapshot = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| {
            let number = name.strip_suffix(REPLACED).unwrap_or(name);
            !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
        })
    };
    entries.map(|e| e.path()).filter(is_snapshot).collect()
}

/// The name under which a snapshot steps aside for another one of the same iteration.
pub(super) fn aside(folder: &Path) -> PathBuf {
    let mut name = folder.as_os_str().to_owned();
    name.push(REPLACED);
    name.into()
}

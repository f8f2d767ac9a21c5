//! Checkpoints of one member: a `.safetensors` file for each, in a folder.
//!
//! A file appears complete or not at all. The two newest are kept, and the newest that all members
//! are known to have: no member is ever more than one checkpoint ahead of another, so all members
//! have one in common, also while one of them finds its disk full. The metadata names the cluster
//! that a file belongs to. A file of another cluster is refused with what differs, and so is a file
//! in which a bit has changed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use zerocopy::IntoBytes;

use crate::poseidon::{Checkpoint, Member, MemberRole};
use crate::snapshot::checksum;

/// Checkpoints of a member that are kept.
const KEPT: usize = 2;

/// Start of the names of arrays that belong to a client's program: they need not be the same on
/// all workers.
pub(super) const OWN: &str = "own.";
/// Start of the names of arrays that a worker holds for all, under `p2p`: others have others.
pub(super) const SHARE: &str = "share.";

/// Clocks of the checkpoints in `path` that all of `members` have, by the names of their files. A
/// server without any does not count: it may hold nothing, and the coordinator knows whether it
/// does.
pub fn common_clocks(path: &Path, members: impl Iterator<Item = Member>) -> BTreeSet<u64> {
    let clocks = members.filter_map(|member| {
        let folder = CheckpointFolder::new(path, member);
        let clocks = folder.and_then(|folder| folder.clocks());
        let clocks: BTreeSet<u64> = clocks.unwrap_or_default().into_iter().collect();
        (member.role == MemberRole::Worker || !clocks.is_empty()).then_some(clocks)
    });
    let common = clocks.reduce(|all, one| &all & &one);
    common.unwrap_or_default()
}

/// Why a checkpoint could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// Reading or writing failed.
    #[error("checkpoint {}: {why}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        why: io::Error,
    },
    /// There is no room for another one.
    #[error(
        "disk full: no room in {} for a checkpoint of {bytes} bytes after {clock} steps; {}",
        folder.display(),
        newest.as_ref().map_or(
            "there is none yet".to_owned(),
            |path| format!("the newest there is {}", path.display())
        )
    )]
    DiskFull {
        /// The folder, which exists.
        folder: PathBuf,
        /// Size of the checkpoint.
        bytes: usize,
        /// Number of its steps.
        clock: u64,
        /// The newest file of this member.
        newest: Option<PathBuf>,
    },
    /// The file is not in the format of safetensors.
    #[error("checkpoint {} is damaged: {why}; remove it, and the run goes on from an older one", path.display())]
    Format {
        /// Path of the file.
        path: PathBuf,
        /// What the system says.
        why: SafeTensorError,
    },
    /// A bit of the file is not as it was written.
    #[error("checkpoint {} is damaged: its checksum does not fit its bytes; remove it, and the run goes on from an older one", path.display())]
    Checksum {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file belongs to another cluster.
    #[error(
        "checkpoint {} is of another cluster: {what} is {there} there and {here} here. Start as that run was \
         started, or name another folder for checkpoints", path.display()
    )]
    Other {
        /// Path of the file.
        path: PathBuf,
        /// Name of the note that differs.
        what: String,
        /// Its value in the file.
        there: String,
        /// Its value in this run.
        here: String,
    },
    /// The file lacks an array that must be in it.
    #[error("checkpoint {} has no {name} of {len} values: it is of another model", path.display())]
    Missing {
        /// Path of the file.
        path: PathBuf,
        /// Name of the array or note.
        name: String,
        /// Number of its values.
        len: usize,
    },
}

/// The checkpoints of one member.
#[derive(Clone, Debug)]
pub struct CheckpointFolder {
    folder: PathBuf,
    prefix: String,
    /// The newest clock that all members are known to have; 0: none.
    common: Arc<AtomicU64>,
}

/// A whole checkpoint in a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Whole {
    /// Number of steps that were made.
    pub(super) clock: u64,
    /// Hash of the weights in it, by the names of their tensors.
    pub(super) weights: u64,
}

/// The content of a checkpoint file.
#[derive(Debug)]
pub(super) struct Loaded {
    path: PathBuf,
    arrays: HashMap<String, Vec<f32>>,
    notes: HashMap<String, String>,
}

impl CheckpointFolder {
    /// The checkpoints of `member` in `folder`, which is made if it is not there.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn new(folder: &Path, member: Member) -> Result<Self, CheckpointError> {
        fs::create_dir_all(folder).map_err(|why| CheckpointError::File {
            path: folder.into(),
            why,
        })?;
        let role = match member.role {
            MemberRole::Worker => "worker",
            MemberRole::Server => "server",
        };
        Ok(Self {
            folder: folder.into(),
            prefix: format!("{role}{}-", member.index),
            common: Arc::default(),
        })
    }

    fn path(&self, clock: u64) -> PathBuf {
        let name = format!("{}{clock:010}.safetensors", self.prefix);
        self.folder.join(name)
    }

    /// Clocks of the files in the folder, rising.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn clocks(&self) -> Result<Vec<u64>, CheckpointError> {
        let error = |why| CheckpointError::File {
            path: self.folder.clone(),
            why,
        };
        let mut clocks = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(error)? {
            let name = entry.map_err(error)?.file_name();
            let clock: Option<u64> = name.to_str().and_then(|name| {
                let rest = name.strip_prefix(&self.prefix)?;
                rest.strip_suffix(".safetensors")?.parse().ok()
            });
            clocks.extend(clock);
        }
        clocks.sort_unstable();
        Ok(clocks)
    }

    /// The checkpoints that are as they were written. Damaged ones are named in the log; they stay
    /// until newer ones replace them.
    ///
    /// # Errors
    /// The folder or a file cannot be read.
    pub(super) fn whole(&self) -> Result<Vec<Whole>, CheckpointError> {
        let mut whole = Vec::new();
        for clock in self.clocks()? {
            match self.load(clock, &BTreeMap::new()) {
                Ok(loaded) => whole.push(Whole {
                    clock,
                    weights: loaded.weights(),
                }),
                Err(why @ (CheckpointError::Format { .. } | CheckpointError::Checksum { .. })) => {
                    log::warn!("{why}");
                }
                Err(why) => return Err(why),
            }
        }
        Ok(whole)
    }

    /// Notes that all members have the checkpoint of `clock`: it stays until they have a newer one.
    pub(super) fn keep(&self, clock: u64) {
        self.common.fetch_max(clock, Relaxed);
    }

    /// Removes all files of this member: a run that begins anew must not resume from them later.
    ///
    /// # Errors
    /// One cannot be removed.
    pub fn clear(&self) -> Result<(), CheckpointError> {
        self.clocks()?
            .into_iter()
            .try_for_each(|clock| self.remove(clock))
    }

    fn remove(&self, clock: u64) -> Result<(), CheckpointError> {
        let path = self.path(clock);
        fs::remove_file(&path).map_err(|why| CheckpointError::File { path, why })
    }

    /// What writing a file of this many bytes met.
    fn write_error(&self, why: io::Error, clock: u64, bytes: usize) -> CheckpointError {
        if !matches!(
            why.kind(),
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded
        ) {
            let path = self.path(clock);
            return CheckpointError::File { path, why };
        }
        let clocks = self.clocks().unwrap_or_default();
        CheckpointError::DiskFull {
            folder: self.folder.clone(),
            bytes,
            clock,
            newest: clocks.last().map(|clock| self.path(*clock)),
        }
    }

    /// Writes a checkpoint with its notes, and removes older ones that are not kept.
    pub(super) fn save(
        &self,
        checkpoint: &Checkpoint,
        notes: BTreeMap<String, String>,
    ) -> Result<(), CheckpointError> {
        let path = self.path(checkpoint.clock);
        let new = path.with_extension("new");
        let format = |why| CheckpointError::Format {
            path: path.clone(),
            why,
        };
        let mut views = Vec::with_capacity(checkpoint.arrays.len());
        for (name, values) in &checkpoint.arrays {
            let view = TensorView::new(Dtype::F32, vec![values.len()], values.as_bytes());
            views.push((name.clone(), view.map_err(format)?));
        }
        let mut notes: HashMap<_, _> = notes.into_iter().collect();
        checksum::note(&mut notes);
        let mut bytes = safetensors::serialize(views, Some(notes)).map_err(format)?;
        checksum::stamp(&mut bytes);
        // On the disk before it has its name: if the host fails meanwhile, the older one remains.
        let written = File::create(&new)
            .and_then(|mut file| {
                file.write_all(&bytes)?;
                file.sync_all()
            })
            .and_then(|()| fs::rename(&new, &path));
        if let Err(why) = written {
            // A part of a file would keep the room that the next one needs.
            let _ = fs::remove_file(&new);
            return Err(self.write_error(why, checkpoint.clock, bytes.len()));
        }
        let (clocks, common) = (self.clocks()?, self.common.load(Relaxed));
        let old = clocks.len().saturating_sub(KEPT);
        let old = clocks[..old].iter().filter(|clock| **clock != common);
        old.copied().try_for_each(|clock| self.remove(clock))
    }

    /// Reads the checkpoint of `clock`, whose notes must include `identity`.
    pub(super) fn load(
        &self,
        clock: u64,
        identity: &BTreeMap<String, String>,
    ) -> Result<Loaded, CheckpointError> {
        let path = self.path(clock);
        let bytes = fs::read(&path).map_err(|why| CheckpointError::File {
            path: path.clone(),
            why,
        })?;
        let format = |why| CheckpointError::Format {
            path: path.clone(),
            why,
        };
        let (header_len, metadata) = SafeTensors::read_metadata(&bytes).map_err(format)?;
        let mut notes = metadata.metadata().clone().unwrap_or_default();
        // The first 8 bytes are the length of the header.
        let (header, data) = bytes[8..].split_at(header_len);
        checksum::check(header, data, &mut notes)
            .map_err(|_| CheckpointError::Checksum { path: path.clone() })?;
        for (what, here) in identity {
            let there = notes.get(what).cloned().unwrap_or_default();
            if there != *here {
                return Err(CheckpointError::Other {
                    path,
                    what: what.clone(),
                    there,
                    here: here.clone(),
                });
            }
        }
        let tensors = SafeTensors::deserialize(&bytes).map_err(format)?;
        let floats = |bytes: &[u8]| -> Vec<f32> {
            let (words, _) = bytes.as_chunks::<4>();
            words.iter().map(|word| f32::from_le_bytes(*word)).collect()
        };
        let arrays = tensors
            .iter()
            .map(|(name, view)| (name.to_owned(), floats(view.data())));
        Ok(Loaded {
            arrays: arrays.collect(),
            notes,
            path,
        })
    }
}

impl Loaded {
    /// Hash of the arrays that are weights, in the order of their names.
    fn weights(&self) -> u64 {
        let weights = self.arrays.iter();
        let differ = |name: &str| [OWN, SHARE].iter().any(|start| name.starts_with(start));
        let mut weights: Vec<_> = weights
            .filter(|(name, _)| name.ends_with(".weights") && !differ(name))
            .collect();
        weights.sort_unstable_by_key(|(name, _)| *name);
        let mut hash = xxhash_rust::xxh3::Xxh3::new();
        for (name, values) in weights {
            hash.update(name.as_bytes());
            hash.update(values.as_bytes());
        }
        hash.digest()
    }

    /// The array of that name and length.
    pub(super) fn array(&self, name: &str, len: usize) -> Result<Vec<f32>, CheckpointError> {
        let array = self.arrays.get(name).filter(|array| array.len() == len);
        array.cloned().ok_or_else(|| self.missing(name, len))
    }

    /// The note of that name.
    pub(super) fn note(&self, name: &str) -> Option<&str> {
        self.notes.get(name).map(String::as_str)
    }

    /// The numbers noted under a name, `len` of them.
    pub(super) fn numbers(&self, name: &str, len: usize) -> Result<Vec<u64>, CheckpointError> {
        let text = self.notes.get(name).map_or("", String::as_str);
        let numbers: Option<Vec<u64>> = text.split_whitespace().map(|n| n.parse().ok()).collect();
        let numbers = numbers.filter(|numbers| numbers.len() == len);
        numbers.ok_or_else(|| self.missing(name, len))
    }

    fn missing(&self, name: &str, len: usize) -> CheckpointError {
        CheckpointError::Missing {
            path: self.path.clone(),
            name: name.into(),
            len,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_comes_back_and_two_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let member = Member {
            role: MemberRole::Server,
            index: 1,
        };
        let folder = CheckpointFolder::new(&dir.path().join("made"), member).unwrap();
        let identity = BTreeMap::from([("workers".to_owned(), "2".to_owned())]);
        let arrays = vec![
            ("a".to_owned(), vec![1.0, -0.0, f32::MIN]),
            ("b".to_owned(), vec![]),
        ];
        for clock in [5, 10, 15] {
            let arrays = arrays.clone();
            let mut notes = identity.clone();
            notes.insert("cursors".into(), format!("{clock} 7"));
            folder.save(&Checkpoint { clock, arrays }, notes).unwrap();
        }
        assert_eq!(folder.clocks().unwrap(), [10, 15]);
        let loaded = folder.load(10, &identity).unwrap();
        assert_eq!(loaded.array("a", 3).unwrap(), arrays[0].1);
        assert_eq!(loaded.numbers("cursors", 2).unwrap(), [10, 7]);
        let message = loaded.array("a", 4).unwrap_err().to_string();
        assert!(message.contains("has no a of 4 values"), "{message}");
        let other = BTreeMap::from([("workers".to_owned(), "4".to_owned())]);
        let message = folder.load(15, &other).unwrap_err().to_string();
        assert!(
            message.contains("workers is 2 there and 4 here"),
            "{message}"
        );
        let file = folder.path(15);
        let whole = fs::read(&file).unwrap();
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut flipped = whole.clone();
                flipped[at] ^= 1 << bit;
                fs::write(&file, flipped).unwrap();
                let message = folder.load(15, &identity).err().map(|e| e.to_string());
                let message = message.unwrap_or_else(|| panic!("bit {bit} of byte {at} is taken"));
                assert!(
                    message.contains(file.to_str().unwrap()) && message.contains("remove it"),
                    "bit {bit} of byte {at}: {message}"
                );
            }
        }
        fs::write(&file, whole).unwrap();
        assert_eq!(
            folder.load(15, &identity).unwrap().array("a", 3).unwrap(),
            arrays[0].1
        );
        let clocks = |whole: Vec<Whole>| whole.iter().map(|one| one.clock).collect::<Vec<_>>();
        assert_eq!(clocks(folder.whole().unwrap()), [10, 15]);
        fs::write(folder.path(15), [7; 100]).unwrap();
        assert_eq!(clocks(folder.whole().unwrap()), [10]);
        let message = folder.load(15, &identity).unwrap_err().to_string();
        assert!(message.contains("damaged"), "{message}");
        folder.clear().unwrap();
        assert!(folder.clocks().unwrap().is_empty());
    }

    #[test]
    fn what_all_have_in_common_stays() {
        let dir = tempfile::tempdir().unwrap();
        let member = Member {
            role: MemberRole::Worker,
            index: 0,
        };
        let folder = CheckpointFolder::new(dir.path(), member).unwrap();
        let save = |clock| {
            let arrays = vec![("a".to_owned(), vec![1.0])];
            let checkpoint = Checkpoint { clock, arrays };
            folder.save(&checkpoint, BTreeMap::new()).unwrap();
        };
        save(10);
        // Another member has no room for the next three.
        folder.keep(10);
        [15, 20, 25].into_iter().for_each(save);
        assert_eq!(folder.clocks().unwrap(), [10, 20, 25]);
        folder.keep(25);
        [30, 35].into_iter().for_each(save);
        assert_eq!(folder.clocks().unwrap(), [25, 30, 35]);
    }

    #[test]
    fn what_all_have_is_known_by_the_names() {
        let folder = tempfile::tempdir().unwrap();
        let touch = |name: &str| std::fs::write(folder.path().join(name), "").unwrap();
        let member = |role, index| Member { role, index };
        let all = || {
            let (worker, server) = (MemberRole::Worker, MemberRole::Server);
            let members = [member(worker, 0), member(worker, 1), member(server, 0)];
            Vec::from_iter(common_clocks(folder.path(), members.into_iter()))
        };
        for name in ["worker0-0000000005", "worker0-0000000010"] {
            touch(&format!("{name}.safetensors"));
        }
        assert!(all().is_empty(), "worker 1 has none");
        for name in ["worker1-0000000005", "worker1-0000000010"] {
            touch(&format!("{name}.safetensors"));
        }
        assert_eq!(all(), [5, 10], "the server holds nothing");
        touch("server0-0000000005.safetensors");
        assert_eq!(all(), [5]);
    }
}

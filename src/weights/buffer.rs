//! The buffer: creating it without races, opening it with every check, using it.
//!
//! Touches the file it is given; removes state files next to it that have lost their buffer.
//! Invariants: a buffer that has a name has a whole header. Each process that has it open holds a
//! shared lock on it. It is used only in state `ready`, or by its creator.

mod initialising;

use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::TryRng;
use rand::rngs::SysRng;
use xxhash_rust::xxh3::Xxh3;
use zerocopy::IntoBytes;

use super::data_kind::DataKind;
use super::error::{CreateError, OpenError, SlotError};
use super::header::{GLOBALS_OFFSET, Globals, Head, MANIFEST_OFFSET};
use super::inspect::{check_state, inspect};
use super::look::describe;
use super::manifest::Manifest;
use super::mapping::Mapping;
use super::peers::{self, PEER_METERS};
use super::publish::{MakeError, Unpublished, is_at, open_regular};
use super::remove::remove;
use super::slots::{self, OwnedSlot, Role, Slot, SlotInfo};
use super::state_file::BufferId;
use super::view::WeightsView;

pub use initialising::Initialising;

/// What a new buffer is for.
#[derive(Clone, Debug)]
pub struct BufferSpec {
    /// The session of the job: components and frames of other sessions are refused.
    pub session: u64,
    /// The tensors of the model.
    pub manifest: Manifest,
    /// What the model learns; the default takes any data.
    pub data: DataKind,
}

/// What to do with a file that is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// Refuse it and say what it is.
    Refuse,
    /// Go on with it, if it is a buffer of the same model. It keeps its session.
    Resume,
    /// Delete it and its state files, if it is a buffer that no process uses.
    Fresh,
}

/// What [`SharedWeights::create`] gave.
#[derive(Debug)]
pub enum Created {
    /// A new buffer, all zeros, that others cannot open until it is ready.
    New(Initialising),
    /// The buffer that was there ([`Existing::Resume`]).
    Resumed(SharedWeights),
}

/// What an opener insists on; `None` takes anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expect {
    /// The session of the job.
    pub session: Option<u64>,
    /// The fingerprint of the model's manifest.
    pub fingerprint: Option<u64>,
    /// The kind of data that the model learns.
    pub data: Option<DataKind>,
}

/// The buffer of one job on one host.
#[derive(Debug)]
pub struct SharedWeights {
    mapping: Mapping,
    path: PathBuf,
    head: Head,
    manifest: Manifest,
    claims: Mutex<()>,
}

impl SharedWeights {
    /// Creates the buffer `path`, or deals with the one that is there as `existing` says.
    ///
    /// The memory is reserved here: a full file system is an error, never a SIGBUS later.
    ///
    /// # Errors
    /// See [`CreateError`]; nothing is left behind, and what was there is left as it was,
    /// except after [`Existing::Fresh`] when there was too little space for the new one.
    pub fn create(
        path: &Path,
        spec: &BufferSpec,
        existing: Existing,
    ) -> Result<Created, CreateError> {
        let io = |source| CreateError::Io {
            path: path.into(),
            source,
        };
        // Each round ends, or finds that another process created or removed the file meanwhile.
        for _ in 0..1000 {
            let file = match open_regular(path) {
                Err(None) => match Self::make(path, spec)? {
                    Some(new) => return Initialising::new(new).map(Created::New),
                    None => continue,
                },
                Err(Some(e)) if e.kind() == ErrorKind::InvalidInput => {
                    return Err(CreateError::NotOurs {
                        path: path.into(),
                        why: e.to_string(),
                    });
                }
                Err(Some(source)) => return Err(io(source)),
                Ok(file) => file,
            };
            match existing {
                Existing::Refuse => {
                    return Err(CreateError::Exists {
                        path: path.into(),
                        what: describe(path, &file),
                    });
                }
                Existing::Resume => {
                    let expect = Expect {
                        session: None,
                        fingerprint: Some(spec.manifest.fingerprint()),
                        data: Some(spec.data),
                    };
                    match Self::open(path, &expect) {
                        Err(OpenError::NotFound { .. }) => {}
                        other => return other.map(Created::Resumed).map_err(CreateError::Resume),
                    }
                }
                Existing::Fresh => drop(remove(path, &file)?),
            }
        }
        Err(io(io::Error::other(
            "other processes keep creating and removing it",
        )))
    }

    /// Makes a new file; `None` if another process was faster.
    fn make(path: &Path, spec: &BufferSpec) -> Result<Option<Self>, CreateError> {
        let io = |source| CreateError::Io {
            path: path.into(),
            source,
        };
        let identity = SysRng.try_next_u64().map_err(|e| io(io::Error::other(e)))?;
        // 0 stands for none.
        let (head, json) = Head::new(spec, identity.max(1));
        let new = Unpublished::new(path).map_err(io)?;
        let header = 0..MANIFEST_OFFSET as u64 + head.manifest_bytes;
        let weights = head.weights_offset..head.file_bytes;
        new.reserve(head.file_bytes, &[header, weights])
            .map_err(|e| match e {
                MakeError::NoSpace { needed, free } => CreateError::NoSpace {
                    path: path.into(),
                    needed,
                    free,
                },
                MakeError::Io(source) => io(source),
            })?;
        let file = new.file();
        file.write_all_at(head.as_bytes(), 0).map_err(io)?;
        file.write_all_at(json.as_bytes(), MANIFEST_OFFSET as u64)
            .map_err(io)?;
        // Locked before it has its name: a process that finds the file finds it in use, and cannot
        // remove it while its weights are being set.
        file.lock_shared().map_err(io)?;
        match new.publish().map_err(io)? {
            Some(file) => Ok(Some(
                Self::map(path, file, head, spec.manifest.clone()).map_err(io)?,
            )),
            None => Ok(None),
        }
    }

    /// Opens the buffer `path`, after every check.
    ///
    /// # Errors
    /// See [`OpenError`]: each thing that may be wrong with a file has its own.
    pub fn open(path: &Path, expect: &Expect) -> Result<Self, OpenError> {
        let io = |source| OpenError::Io {
            path: path.into(),
            source,
        };
        let file = open_locked(path)?;
        let (head, manifest) = inspect(path, &file)?;
        check_state(path, &head)?;
        expect.check(path, &head, &manifest)?;
        Self::map(path, file, head, manifest).map_err(io)
    }

    /// Opens the buffer `path` to look at it. Unlike [`open`](Self::open) it does not say "in use":
    /// the buffer may be removed, or made anew under its name, meanwhile
    /// ([`is_at_its_path`](Self::is_at_its_path)).
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn watch(path: &Path) -> Result<Self, OpenError> {
        let shared = Self::open(path, &Expect::default())?;
        shared.mapping.unlock().map_err(|source| OpenError::Io {
            path: path.into(),
            source,
        })?;
        Ok(shared)
    }

    /// Whether its path still leads to this buffer.
    pub fn is_at_its_path(&self) -> bool {
        self.mapping.is_at(&self.path).unwrap_or(false)
    }

    /// Checks what else the caller insists on.
    ///
    /// # Errors
    /// The buffer is of another kind of data, model or session.
    pub fn check(&self, expect: &Expect) -> Result<(), OpenError> {
        expect.check(&self.path, &self.head, &self.manifest)
    }

    fn map(path: &Path, file: File, head: Head, manifest: Manifest) -> io::Result<Self> {
        let hot = head.weights_offset as usize..head.file_bytes as usize;
        let mapping = Mapping::new(file, head.file_bytes, hot)?;
        Ok(Self {
            mapping,
            path: path.into(),
            head,
            manifest,
            claims: Mutex::new(()),
        })
    }

    /// All weights with their tail of zeros, which must stay zero.
    pub fn view(&self) -> WeightsView<'_> {
        self.mapping
            .weights(self.head.weights_offset as usize, self.padded())
    }

    /// Weights that the model uses, the gaps between tensors included.
    pub fn used(&self) -> usize {
        self.head.used as usize
    }

    /// Weights with the tail of zeros: any chunk of up to [`MAX_CHUNK`](super::MAX_CHUNK)
    /// weights that begins within the used ones ends within these.
    pub fn padded(&self) -> usize {
        self.head.padded as usize
    }

    /// Names, shapes and offsets of the tensors.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The session the buffer was created for.
    pub fn session(&self) -> u64 {
        self.head.session
    }

    /// The fingerprint of its manifest.
    pub fn fingerprint(&self) -> u64 {
        self.head.fingerprint
    }

    /// Random, drawn when the buffer was made; never 0. A buffer made anew under the same name
    /// has another.
    pub fn identity(&self) -> u64 {
        self.head.identity
    }

    /// What its state files must belong to.
    pub fn id(&self) -> BufferId {
        BufferId {
            session: self.head.session,
            fingerprint: self.head.fingerprint,
            identity: self.head.identity,
        }
    }

    /// A hash of the kind of data that the model learns ([`DataKind::hash`]); 0 if unknown.
    pub fn data(&self) -> u64 {
        self.head.data
    }

    /// The kind of data that the model learns.
    pub fn data_kind(&self) -> DataKind {
        self.head.data()
    }

    /// A hash of the weights as they were when the buffer became ready.
    pub fn first_weights(&self) -> u64 {
        self.head.first_weights
    }

    /// Whether the buffer began with these very weights, gaps included.
    pub fn began_with(&self, weights: &[f32]) -> bool {
        let mut hash = Xxh3::new();
        hash.update(weights.as_bytes());
        hash.digest() == self.head.first_weights
    }

    /// When the buffer was made, ns since 1970.
    pub fn created_unix_ns(&self) -> u64 {
        self.head.created_unix_ns
    }

    /// Path of the buffer's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Counters and switches of the node.
    pub fn globals(&self) -> &Globals {
        self.mapping.at(GLOBALS_OFFSET)
    }

    /// What the streamer counts of node `node`; it is their only writer.
    ///
    /// # Panics
    /// If there is no such node number ([`PEERS`](super::PEERS)).
    pub fn peer_meters(&self, node: u16) -> &[AtomicU64; PEER_METERS] {
        peers::meters(&self.mapping, node)
    }

    /// What the streamer has counted of other nodes, of those of which it has counted anything.
    pub fn peers(&self) -> Vec<(u16, [u64; PEER_METERS])> {
        peers::all(&self.mapping)
    }

    /// Claims the slot of a component. The same role and index find their old meters again.
    ///
    /// # Errors
    /// The component runs already, or all slots were used by others.
    pub fn claim_slot(&self, role: Role, index: u32) -> Result<Slot<'_>, SlotError> {
        slots::claim(&self.mapping, &self.claims, role, index)
    }

    /// The same for a component that keeps the buffer open by its slot.
    ///
    /// # Errors
    /// The component runs already, or all slots were used by others.
    pub fn claim_owned_slot(
        self: &Arc<Self>,
        role: Role,
        index: u32,
    ) -> Result<OwnedSlot, SlotError> {
        slots::claim_owned(self, &self.claims, role, index)
    }

    pub(super) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// All slots ever used.
    pub fn slots(&self) -> Vec<SlotInfo> {
        slots::infos(&self.mapping)
    }
}

/// Opens a file with the shared lock that says "in use".
fn open_locked(path: &Path) -> Result<File, OpenError> {
    let io = |source| OpenError::Io {
        path: path.into(),
        source,
    };
    // Only `remove` ever holds the exclusive lock, for microseconds: wait for it.
    for _ in 0..1000 {
        let file = open_regular(path).map_err(|e| match e {
            None => OpenError::NotFound { path: path.into() },
            Some(e) if e.kind() == ErrorKind::InvalidInput => OpenError::NotOurs {
                path: path.into(),
                why: e.to_string(),
            },
            Some(source) => io(source),
        })?;
        match file.try_lock_shared() {
            Ok(()) if is_at(&file, path).map_err(io)? => return Ok(file),
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
            Err(TryLockError::Error(source)) => return Err(io(source)),
        }
    }
    Err(io(io::Error::new(
        ErrorKind::WouldBlock,
        "another process holds an exclusive lock on it",
    )))
}

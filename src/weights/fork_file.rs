//! What a streamer keeps of ranges that had two masters, so that a kill does not lose it: records
//! in a file next to its state.
//!
//! The file is made of slots of one size. A record is written into a free one, and the file grows
//! by a slot where none is free; empty, it has no bytes. Only the process that holds the lock of
//! the state uses it.
//!
//! Invariant: what [`ForkFile::put`] has returned for, the next streamer finds until it is removed.
//! A record that was not written whole has another checksum, and one of a former buffer another
//! identity: both are no records. Of two with one key the later counts.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use xxhash_rust::xxh3::Xxh3;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::BLOCK;
use super::publish::open_regular;
use super::state::StreamStateSpec;

/// Begins each record, and changes with its layout.
const MAGIC: [u8; 8] = *b"DOGWFRK1";

/// What a record is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum ForkKind {
    /// A position that a range was begun from.
    Base = 1,
    /// A delta that was under way when the master of its chunk changed.
    Contested = 2,
    /// Such a delta of another node that is in this node's weights, and may be elsewhere too.
    Owed = 3,
    /// A node that may have what this node streamed last.
    Heir = 4,
}

impl ForkKind {
    fn from_code(code: u32) -> Option<Self> {
        let all = [Self::Base, Self::Contested, Self::Owed, Self::Heir];
        all.into_iter().find(|kind| *kind as u32 == code)
    }
}

/// What tells records apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ForkKey {
    /// What it is about.
    pub kind: ForkKind,
    /// Of which chunk.
    pub chunk: u32,
    /// With which node.
    pub node: u16,
    /// In which epoch.
    pub epoch: u32,
}

/// A record; what its fields mean depends on its kind.
#[derive(Clone, Debug, PartialEq)]
pub struct ForkRecord {
    /// What tells it from others.
    pub key: ForkKey,
    /// Epoch and version of a position.
    pub position: (u32, u32),
    /// Sequence number of a delta.
    pub seq: u8,
    /// Incarnation of a node.
    pub life: u64,
    /// Sequence numbers that a position acknowledges, one per node; or none.
    pub acks: Vec<u8>,
    /// The weights of the chunk, or none.
    pub weights: Vec<f32>,
}

/// The first bytes of a slot.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Head {
    magic: [u8; 8],
    kind: u32,
    chunk: u32,
    epoch: u32,
    position: [u32; 2],
    node: u16,
    acks: u16,
    seq: u8,
    _reserved: [u8; 3],
    weights: u32,
    life: u64,
    identity: u64,
    serial: u64,
    /// Of everything above, the acks and the weights.
    checksum: u64,
}

impl Head {
    fn sum(&self, rest: &[u8]) -> u64 {
        let mut sum = Xxh3::new();
        let without = Self {
            checksum: 0,
            ..self.clone()
        };
        sum.update(without.as_bytes());
        sum.update(rest);
        sum.digest()
    }
}

/// The records of one streamer.
#[derive(Debug)]
pub struct ForkFile(Mutex<Slots>);

#[derive(Debug)]
struct Slots {
    path: PathBuf,
    /// Made when it is needed.
    file: Option<File>,
    identity: u64,
    acks: usize,
    weights: usize,
    /// How many the file has, and which of them are free.
    count: u64,
    free: BTreeSet<u64>,
    /// Which slot has a record.
    of: BTreeMap<ForkKey, u64>,
    serial: u64,
}

impl ForkFile {
    /// The file for a streamer's state at `state`. Records in it count if that is the one that was
    /// there before (`resumed`).
    ///
    /// # Errors
    /// It cannot be opened, or is no regular file.
    pub(super) fn open(state: &Path, spec: &StreamStateSpec, resumed: bool) -> io::Result<Self> {
        let mut slots = Slots::new(state, spec);
        match open_regular(&slots.path) {
            Ok(file) if resumed => {
                slots.count = file.metadata()?.len() / slots.bytes();
                slots.file = Some(file);
            }
            // A new memory has no forks.
            Ok(file) => {
                file.set_len(0)?;
                slots.file = Some(file);
            }
            Err(None) => {}
            Err(Some(error)) => return Err(error),
        }
        slots.index();
        Ok(Self(Mutex::new(slots)))
    }

    /// One without records, for those who only look at a state.
    pub(super) fn unopened(state: &Path, spec: &StreamStateSpec) -> Self {
        Self(Mutex::new(Slots::new(state, spec)))
    }

    /// Its path next to the state at `state`.
    pub(super) fn path_of(state: &Path) -> PathBuf {
        state.with_extension("forks")
    }

    /// All records, the oldest first.
    pub fn records(&self) -> Vec<ForkRecord> {
        let slots = self.slots();
        let read = |slot: &u64| slots.read(*slot).ok().flatten();
        let mut found: Vec<_> = slots.of.values().filter_map(read).collect();
        found.sort_by_key(|(serial, _)| *serial);
        found.into_iter().map(|(_, record)| record).collect()
    }

    /// Keeps a record, in place of one with the same key.
    ///
    /// # Errors
    /// There is no space, or the file cannot be written. What was kept before stays.
    ///
    /// # Panics
    /// If the record has other weights than a chunk, or more acks than the job has nodes.
    pub fn put(&self, record: &ForkRecord) -> io::Result<()> {
        self.slots().put(record)
    }

    /// Forgets the record with that key, if there is one.
    pub fn remove(&self, key: &ForkKey) {
        self.slots().remove(key);
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        // A thread that panicked left a file whose records are whole all the same.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slots {
    fn new(state: &Path, spec: &StreamStateSpec) -> Self {
        Self {
            path: ForkFile::path_of(state),
            file: None,
            identity: spec.identity,
            acks: usize::from(spec.places).next_multiple_of(BLOCK),
            weights: spec.chunk_weights as usize,
            count: 0,
            free: BTreeSet::new(),
            of: BTreeMap::new(),
            serial: 0,
        }
    }

    fn bytes(&self) -> u64 {
        (size_of::<Head>() + self.acks + 4 * self.weights) as u64
    }

    /// Looks which slots have records.
    fn index(&mut self) {
        let mut newest: BTreeMap<ForkKey, u64> = BTreeMap::new();
        for slot in 0..self.count {
            let found = self.read(slot).ok().flatten();
            let Some((serial, record)) = found else {
                self.free.insert(slot);
                continue;
            };
            self.serial = self.serial.max(serial);
            if newest.get(&record.key).is_some_and(|other| *other > serial) {
                self.free.insert(slot);
                continue;
            }
            newest.insert(record.key, serial);
            if let Some(before) = self.of.insert(record.key, slot) {
                self.free.insert(before);
            }
        }
    }

    /// The record in a slot and its serial number; `None`: it has none.
    fn read(&self, slot: u64) -> io::Result<Option<(u64, ForkRecord)>> {
        let Some(file) = &self.file else {
            return Ok(None);
        };
        let mut bytes = vec![0; self.bytes() as usize];
        file.read_exact_at(&mut bytes, slot * self.bytes())?;
        let Ok((head, rest)) = Head::read_from_prefix(&bytes) else {
            return Ok(None);
        };
        let (acks, weights) = (usize::from(head.acks), head.weights as usize);
        let fits = acks <= self.acks && weights <= self.weights;
        let ours = head.magic == MAGIC && head.identity == self.identity;
        let kind = ForkKind::from_code(head.kind);
        let (Some(kind), true, true) = (kind, fits, ours) else {
            return Ok(None);
        };
        let rest = &rest[..acks + 4 * weights];
        if head.checksum != head.sum(rest) {
            return Ok(None);
        }
        let (acks, weights) = rest.split_at(acks);
        let weights = weights.as_chunks::<4>().0.iter();
        let record = ForkRecord {
            key: ForkKey {
                kind,
                chunk: head.chunk,
                node: head.node,
                epoch: head.epoch,
            },
            position: head.position.into(),
            seq: head.seq,
            life: head.life,
            acks: acks.to_vec(),
            weights: weights.map(|bytes| f32::from_le_bytes(*bytes)).collect(),
        };
        Ok(Some((head.serial, record)))
    }

    fn put(&mut self, record: &ForkRecord) -> io::Result<()> {
        assert!(
            record.acks.len() <= self.acks && record.weights.len() <= self.weights,
            "a record of another job"
        );
        self.serial += 1;
        let mut head = Head {
            magic: MAGIC,
            kind: record.key.kind as u32,
            chunk: record.key.chunk,
            epoch: record.key.epoch,
            position: record.position.into(),
            node: record.key.node,
            acks: record.acks.len() as u16,
            seq: record.seq,
            _reserved: [0; 3],
            weights: record.weights.len() as u32,
            life: record.life,
            identity: self.identity,
            serial: self.serial,
            checksum: 0,
        };
        let rest = [record.acks.as_slice(), record.weights.as_bytes()].concat();
        head.checksum = head.sum(&rest);
        let slot = self.free.first().copied().unwrap_or(self.count);
        let bytes = [head.as_bytes(), rest.as_slice()].concat();
        // The last slot too has all its bytes: else its end could not be read.
        let (start, end) = (slot * self.bytes(), (slot + 1) * self.bytes());
        let file = self.file()?;
        if file.metadata()?.len() < end {
            file.set_len(end)?;
        }
        file.write_all_at(&bytes, start)?;
        self.free.remove(&slot);
        self.count = self.count.max(slot + 1);
        // Only now: a kill in between leaves both, and the later one counts.
        if let Some(before) = self.of.insert(record.key, slot) {
            self.set_free(before);
        }
        Ok(())
    }

    fn file(&mut self) -> io::Result<&File> {
        let file = match self.file.take() {
            Some(file) => file,
            None => OpenOptions::new()
                .read(true)
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&self.path)?,
        };
        Ok(self.file.insert(file))
    }

    fn remove(&mut self, key: &ForkKey) {
        let Some(slot) = self.of.remove(key) else {
            return;
        };
        self.set_free(slot);
        if self.of.is_empty()
            && self
                .file
                .as_ref()
                .is_some_and(|file| file.set_len(0).is_ok())
        {
            self.free.clear();
            self.count = 0;
        }
    }

    fn set_free(&mut self, slot: u64) {
        let at = slot * self.bytes();
        let cleared = self
            .file
            .as_ref()
            .map(|file| file.write_all_at(&[0; 8], at));
        // One that cannot be cleared would be found again: it is not used any more.
        if cleared.is_some_and(|cleared| cleared.is_ok()) {
            self.free.insert(slot);
        }
    }
}

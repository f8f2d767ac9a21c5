//! The table of components: who works on the buffer, and the meters of each.
//!
//! Lives in the header of the buffer. A slot belongs to a role and an index (solver 1) for as long
//! as the file exists. A component that starts again finds its meters where it left them. Claims
//! are serialised by a lock on a byte of the file, which the kernel drops if the holder dies.
//! Everything else is plain atomics with one writer.

use std::fmt;
use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use super::buffer::SharedWeights;
use super::error::SlotError;
use super::header::SLOTS_OFFSET;
use super::mapping::{Mapping, Shared};
use super::process::Process;

/// Component slots of a buffer.
pub const SLOTS: usize = 64;
/// Meters of a slot; `watch` says what each counts.
pub const METERS: usize = 96;

/// What a component does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Trains on the weights.
    Solver,
    /// Keeps the buffer in step with other nodes.
    Stream,
    /// Keeps a GPU segment in step with the buffer.
    Gpu,
    /// Writes snapshots.
    Snapshot,
    /// Anything else.
    Other,
}

impl Role {
    fn code(self) -> u32 {
        self as u32 + 1
    }

    /// 0 is a slot that was never used; what is unknown counts as `Other`.
    fn from_code(code: u32) -> Option<Self> {
        Some(match code {
            0 => return None,
            1 => Self::Solver,
            2 => Self::Stream,
            3 => Self::Gpu,
            4 => Self::Snapshot,
            _ => Self::Other,
        })
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Self::Solver => "solver",
            Self::Stream => "stream",
            Self::Gpu => "gpu",
            Self::Snapshot => "snapshot",
            Self::Other => "component",
        })
    }
}

/// One slot as it lies in the file.
#[repr(C, align(64))]
pub(super) struct SlotRecord {
    role: AtomicU32,
    index: AtomicU32,
    /// 0: free. Stored last (Release) by a claim; loaded first (Acquire) by readers, who
    /// then see the start time of that same process.
    pid: AtomicU32,
    _reserved: AtomicU32,
    start: AtomicU64,
    started_unix_ns: AtomicU64,
    heartbeat_unix_ns: AtomicU64,
    _pad: [AtomicU64; 3],
    meters: [AtomicU64; METERS],
}

// SAFETY: `repr(C)`, atomics only.
unsafe impl Shared for SlotRecord {}

impl SlotRecord {
    fn holder(&self) -> Process {
        // Partner: the Release store of `pid` in `claim`.
        let pid = self.pid.load(Acquire);
        Process {
            pid,
            start: self.start.load(Relaxed),
        }
    }

    /// Frees the slot, if this process holds it: a forked child has a copy of its parent's handle.
    fn release(&self) {
        if self.holder().is_current() {
            // Partner: the Acquire load in `holder`; who claims next sees our last meters.
            self.pid.store(0, Release);
        }
    }

    fn beat(&self) {
        self.heartbeat_unix_ns.store(unix_ns(), Relaxed);
    }

    fn info(&self) -> Option<SlotInfo> {
        let holder = self.holder();
        Some(SlotInfo {
            role: Role::from_code(self.role.load(Relaxed))?,
            index: self.index.load(Relaxed),
            pid: holder.pid,
            alive: holder.alive(),
            started_unix_ns: self.started_unix_ns.load(Relaxed),
            heartbeat_unix_ns: self.heartbeat_unix_ns.load(Relaxed),
            meters: std::array::from_fn(|i| self.meters[i].load(Relaxed)),
        })
    }
}

/// A slot as others see it, at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotInfo {
    /// What the component does.
    pub role: Role,
    /// Which of its kind it is.
    pub index: u32,
    /// Its process; 0 if it has left.
    pub pid: u32,
    /// True if that process still runs.
    pub alive: bool,
    /// When it claimed the slot, nanoseconds since 1970.
    pub started_unix_ns: u64,
    /// When it last said that it works, nanoseconds since 1970.
    pub heartbeat_unix_ns: u64,
    /// Its meters. Not a snapshot of one instant: each is read by itself.
    pub meters: [u64; METERS],
}

/// A claimed slot. Dropping it frees the slot and keeps its meters; in a forked child it does
/// nothing.
pub struct Slot<'a> {
    record: &'a SlotRecord,
    role: Role,
    index: u32,
}

impl fmt::Debug for Slot<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "Slot({} {})", self.role, self.index)
    }
}

impl Slot<'_> {
    /// The meters; this component is their only writer.
    pub fn meters(&self) -> &[AtomicU64; METERS] {
        &self.record.meters
    }

    /// Notes that the component works: its heartbeat.
    pub fn heartbeat(&self) {
        self.record.beat();
    }

    /// Which of its kind the component is.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// What the component does.
    pub fn role(&self) -> Role {
        self.role
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.record.release();
    }
}

/// A claimed slot that keeps its buffer open. Dropping it frees the slot and keeps its meters; in a
/// forked child it does nothing.
#[derive(Debug)]
pub struct OwnedSlot {
    shared: Arc<SharedWeights>,
    /// Its place in the table.
    at: usize,
    role: Role,
    index: u32,
}

impl OwnedSlot {
    fn record(&self) -> &SlotRecord {
        &records(self.shared.mapping())[self.at]
    }

    /// The buffer.
    pub fn buffer(&self) -> &Arc<SharedWeights> {
        &self.shared
    }

    /// The meters; this component is their only writer.
    pub fn meters(&self) -> &[AtomicU64; METERS] {
        &self.record().meters
    }

    /// Notes that the component works: its heartbeat.
    pub fn heartbeat(&self) {
        self.record().beat();
    }

    /// Which of its kind the component is.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// What the component does.
    pub fn role(&self) -> Role {
        self.role
    }
}

impl Drop for OwnedSlot {
    fn drop(&mut self) {
        self.record().release();
    }
}

/// Claims a slot as [`claim`] does, for as long as the buffer is open.
pub(super) fn claim_owned(
    shared: &Arc<SharedWeights>,
    threads: &Mutex<()>,
    role: Role,
    index: u32,
) -> Result<OwnedSlot, SlotError> {
    let slot = claim(shared.mapping(), threads, role, index)?;
    let is_it = |record: &SlotRecord| std::ptr::eq(record, slot.record);
    let at = records(shared.mapping()).iter().position(is_it);
    // The borrowed handle would free it.
    std::mem::forget(slot);
    Ok(OwnedSlot {
        shared: shared.clone(),
        at: at.expect("a claimed slot is one of the table"),
        role,
        index,
    })
}

/// Claims the slot of that role and index: its own from earlier, or one never used.
pub(super) fn claim<'a>(
    mapping: &'a Mapping,
    threads: &Mutex<()>,
    role: Role,
    index: u32,
) -> Result<Slot<'a>, SlotError> {
    // The byte keeps processes apart, the mutex the threads that share this mapping.
    let _threads = threads.lock().unwrap_or_else(|e| e.into_inner());
    let _processes = mapping.lock_byte(SLOTS_OFFSET)?;
    let records = records(mapping);
    let is_ours =
        |r: &&SlotRecord| r.role.load(Relaxed) == role.code() && r.index.load(Relaxed) == index;
    let record = match records.iter().find(is_ours) {
        Some(record) => {
            let holder = record.holder();
            if holder.alive() {
                return Err(SlotError::Held {
                    role,
                    index,
                    pid: holder.pid,
                });
            }
            record
        }
        None => {
            let unused = |r: &&SlotRecord| r.role.load(Relaxed) == 0;
            records
                .iter()
                .find(unused)
                .ok_or(SlotError::Full { role, index })?
        }
    };
    let me = Process::current();
    // Zero while the other fields change, and the new pid last: a reader that sees the new pid sees
    // the start time of the same process too.
    record.pid.store(0, Relaxed);
    record.index.store(index, Relaxed);
    record.start.store(me.start, Relaxed);
    // The same time: a later heartbeat tells that the component is at work.
    let now = unix_ns();
    record.started_unix_ns.store(now, Relaxed);
    record.heartbeat_unix_ns.store(now, Relaxed);
    record.role.store(role.code(), Relaxed);
    // Partner: the Acquire load in `holder`.
    record.pid.store(me.pid, Release);
    Ok(Slot {
        record,
        role,
        index,
    })
}

/// All slots ever used.
pub(super) fn infos(mapping: &Mapping) -> Vec<SlotInfo> {
    records(mapping)
        .iter()
        .filter_map(SlotRecord::info)
        .collect()
}

fn records(mapping: &Mapping) -> &[SlotRecord] {
    mapping.slice(SLOTS_OFFSET, SLOTS)
}

/// Nanoseconds since 1970.
pub(super) fn unix_ns() -> u64 {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

//! Why a buffer or a state file could not be created, opened or claimed.
//!
//! One enum per operation; every message says which file, what is wrong and what to do.

use std::io;
use std::path::PathBuf;

use super::data_kind::DataKind;
use super::slots::Role;

/// Why [`SharedWeights::open`](super::SharedWeights::open) refused a file.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No such file.
    #[error("{}: no such buffer; start the job that creates it first", .path.display())]
    NotFound {
        /// Path of the file.
        path: PathBuf,
    },
    /// The kernel refused.
    #[error("{}: {source}", .path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Some other file.
    #[error("{}: not a dogwild buffer ({why}); give the name of another file", .path.display())]
    NotOurs {
        /// Path of the file.
        path: PathBuf,
        /// How that was seen.
        why: String,
    },
    /// Written on a machine of the other byte order.
    #[error("{}: written on a big-endian machine; weights are little-endian here", .path.display())]
    ByteOrder {
        /// Path of the file.
        path: PathBuf,
    },
    /// Another version of the layout.
    #[error("{}: has layout version {found}, this program reads version {ours}; use the same dogwild for all components, or make the buffer anew", .path.display())]
    OtherVersion {
        /// Path of the file.
        path: PathBuf,
        /// Version of the file.
        found: u32,
        /// Version that this program reads.
        ours: u32,
    },
    /// Shorter than its header says.
    #[error("{}: truncated: {has} bytes of {needs}; make the buffer anew", .path.display())]
    Truncated {
        /// Path of the file.
        path: PathBuf,
        /// Bytes it has.
        has: u64,
        /// Bytes its header promises.
        needs: u64,
    },
    /// Its header contradicts itself.
    #[error("{}: damaged: {what}; make the buffer anew", .path.display())]
    Damaged {
        /// Path of the file.
        path: PathBuf,
        /// What contradicts what.
        what: String,
    },
    /// Its creator is still at work.
    #[error("{}: still being initialised by process {pid}; try again shortly", .path.display())]
    Initialising {
        /// Path of the file.
        path: PathBuf,
        /// PID of the creator.
        pid: u32,
    },
    /// Its creator died half way.
    #[error("{}: its creator, process {pid}, died before the weights were initialised; make the buffer anew", .path.display())]
    CreatorDied {
        /// Path of the file.
        path: PathBuf,
        /// PID of the creator.
        pid: u32,
    },
    /// Left by another session.
    #[error("{}: stale: belongs to session {found:#018x}, not to {expected:#018x}; resume it under that session, or make it anew", .path.display())]
    Stale {
        /// Path of the file.
        path: PathBuf,
        /// Session of the buffer.
        found: u64,
        /// Session of this job.
        expected: u64,
    },
    /// Made for another kind of data.
    #[error("{}: was made for {found}, not for {expected}; use the data that it was made for, or make it anew for this data", .path.display())]
    OtherData {
        /// Path of the file.
        path: PathBuf,
        /// What it was made for.
        found: DataKind,
        /// What the caller has.
        expected: DataKind,
    },
    /// Holds another model.
    #[error("{}: holds another model: {found_is} with fingerprint {found:#018x}, expected {expected:#018x}; name the buffer of this model, or make it anew", .path.display())]
    OtherModel {
        /// Path of the file.
        path: PathBuf,
        /// Fingerprint of the model in the buffer.
        found: u64,
        /// Fingerprint of this job's model.
        expected: u64,
        /// Model of the buffer in words.
        found_is: String,
    },
}

/// Why [`SharedWeights::create`](super::SharedWeights::create) made no buffer.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// The file is there already.
    #[error("{}: exists already ({what}); resume it, or make it anew", .path.display())]
    Exists {
        /// Path of the file.
        path: PathBuf,
        /// What it is.
        what: String,
    },
    /// A process still uses the buffer that was to be replaced.
    #[error("{}: still in use by {by}; end that first", .path.display())]
    InUse {
        /// Path of the file.
        path: PathBuf,
        /// Who uses it.
        by: String,
    },
    /// The file that was to be replaced is not a buffer.
    #[error("{}: not a dogwild buffer ({why}), so it is not deleted; remove it yourself or give another name", .path.display())]
    NotOurs {
        /// Path of the file.
        path: PathBuf,
        /// How that was seen.
        why: String,
    },
    /// `--resume`, but the buffer cannot be used.
    #[error("cannot resume: {0}")]
    Resume(#[source] OpenError),
    /// Not enough memory on the file system.
    #[error("{}: needs {} MiB, {} MiB free on {}; remove old buffers there, or enlarge it (mount -o remount,size=...)", .path.display(), mib(*.needed, true), mib(*.free, false), dir(.path))]
    NoSpace {
        /// Path of the file.
        path: PathBuf,
        /// Bytes needed.
        needed: u64,
        /// Bytes free.
        free: u64,
    },
    /// The kernel refused.
    #[error("cannot make the buffer {}: {source}", .path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

/// Why [`SharedWeights::claim_slot`](super::SharedWeights::claim_slot) gave no slot.
#[derive(Debug, thiserror::Error)]
pub enum SlotError {
    /// That component runs already.
    #[error("{role} {index} runs already, as process {pid}; end it first, or take another index")]
    Held {
        /// Role of the component.
        role: Role,
        /// Index of the component among those of its role.
        index: u32,
        /// PID of the process that runs it.
        pid: u32,
    },
    /// All slots were used by other components.
    #[error(
        "all {} component slots of the buffer have been used, so {role} {index} gets none",
        super::SLOTS
    )]
    Full {
        /// The role asked for.
        role: Role,
        /// The index asked for.
        index: u32,
    },
    /// The lock on the table failed.
    #[error("cannot lock the table of components: {0}")]
    Io(#[from] io::Error),
}

/// Why a state file could not be opened or created.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The kernel refused.
    #[error("{}: {source}", .path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Not enough memory on the file system.
    #[error("{}: needs {} MiB, {} MiB free on {}; remove old buffers there, or enlarge it (mount -o remount,size=...)", .path.display(), mib(*.needed, true), mib(*.free, false), dir(.path))]
    NoSpace {
        /// Path of the file.
        path: PathBuf,
        /// Bytes needed.
        needed: u64,
        /// Bytes free.
        free: u64,
    },
    /// The specification makes no sense.
    #[error("{}: {what}", .path.display())]
    BadSpec {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// Some other file.
    #[error("{}: not a dogwild state file of this kind ({why}); remove it yourself", .path.display())]
    NotOurs {
        /// Path of the file.
        path: PathBuf,
        /// How that was seen.
        why: String,
    },
    /// Another version of the layout.
    #[error("{}: has layout version {found}, this program reads version {ours}; make the buffer anew", .path.display())]
    OtherVersion {
        /// Path of the file.
        path: PathBuf,
        /// Version of the file.
        found: u32,
        /// Version that this program reads.
        ours: u32,
    },
    /// Not as long as its shape says.
    #[error("{}: truncated: {has} bytes of {needs}; make the buffer anew", .path.display())]
    Truncated {
        /// Path of the file.
        path: PathBuf,
        /// Bytes it has.
        has: u64,
        /// Bytes it should have.
        needs: u64,
    },
    /// A bit of its header is not as it was written.
    #[error("{}: damaged: its header does not have the checksum it was written with; remove this file, and the component begins without it (docs/guide/two-hosts.md, \"Files next to a buffer\")", .path.display())]
    Damaged {
        /// Path of the file.
        path: PathBuf,
    },
    /// Left by a buffer that is gone.
    #[error("{}: belongs to a former buffer: {} was made anew since. Remove {} (a node then gets its range back from the others), or make both anew", .path.display(), .buffer.display(), .path.display())]
    OtherBuffer {
        /// Path of the file.
        path: PathBuf,
        /// Path of the buffer that it lies next to.
        buffer: PathBuf,
    },
    /// Left by another session, model or shape of job.
    #[error("{}: stale: it is of {field} {found:#x}, this job of {expected:#x}; make the buffer anew", .path.display())]
    Stale {
        /// Path of the file.
        path: PathBuf,
        /// Name of the number that differs.
        field: &'static str,
        /// Its value there.
        found: u64,
        /// Its value in this job.
        expected: u64,
    },
    /// Another live process works on it.
    #[error("{}: in use by process {pid}; end it first", .path.display())]
    InUse {
        /// Path of the file.
        path: PathBuf,
        /// That process.
        pid: u32,
    },
}

/// Whole MiB; what is needed is rounded up, what is free is rounded down.
fn mib(bytes: u64, up: bool) -> u64 {
    if up {
        bytes.div_ceil(1 << 20)
    } else {
        bytes >> 20
    }
}

fn dir(path: &std::path::Path) -> std::path::Display<'_> {
    path.parent().unwrap_or(path).display()
}

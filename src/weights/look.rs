//! What a file is, and whether it is in use, without opening it as a buffer.
//!
//! Touches nothing but the lock of the file, for a moment. That lock decides whether a buffer is in
//! use. A process that has the buffer open holds it, in whatever PID namespace it runs, and the
//! kernel drops it when the process dies. The slots only tell which process it is.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;

use super::error::OpenError;
use super::header::{GLOBALS_OFFSET, Globals, Head, READY};
use super::inspect::inspect;
use super::mapping::Mapping;
use super::publish::{lock_exclusively_within, open_regular};
use super::slots::{self, SlotInfo};

/// Times that the lock is tried: others look too, each for a moment.
const TRIES: u32 = 5;

/// What [`look`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Look {
    /// No such file.
    Missing,
    /// Some other file, or one that this user may not open.
    NotOurs {
        /// How that was seen.
        why: String,
    },
    /// A file that begins like a buffer but cannot be used as one.
    Damaged {
        /// What is wrong with it and what to do.
        why: String,
        /// A process has it open.
        in_use: bool,
    },
    /// A buffer.
    Buffer(BufferInfo),
}

/// A buffer as [`look`] saw it at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferInfo {
    /// Number of the job that it belongs to.
    pub session: u64,
    /// Random number of the buffer, drawn when it was made.
    pub identity: u64,
    /// Weights of its model.
    pub weights: usize,
    /// Length of the file.
    pub bytes: u64,
    /// False if its creator has not, or never, finished it: its weights mean nothing.
    pub ready: bool,
    /// Iterations of the whole cluster, as far as they were known here.
    pub iterations: u64,
    /// Iterations at the last complete save of its weights; 0: never saved.
    pub saved_iterations: u64,
    /// A process has it open.
    pub in_use: bool,
    /// Components that claimed a slot and live, as far as this PID namespace can tell. May be
    /// empty although the buffer is in use.
    pub users: Vec<SlotInfo>,
}

impl BufferInfo {
    /// True if it holds iterations that no save has.
    pub fn unsaved(&self) -> bool {
        self.ready && self.iterations > self.saved_iterations
    }

    /// The components that use it, in words; empty if it is free.
    pub fn users_text(&self) -> String {
        match (self.in_use, self.users.is_empty()) {
            (false, _) => String::new(),
            (true, false) => self.users_text_of(|_| true),
            (true, true) => "another process".into(),
        }
    }

    /// Those of its components that are `wanted`, in words; empty if none of them runs.
    pub fn users_text_of(&self, wanted: impl Fn(&SlotInfo) -> bool) -> String {
        words(self.users.iter().filter(|user| wanted(user)))
    }
}

/// Looks at any file. Changes nothing; holds its lock for a moment if it is free.
///
/// # Errors
/// The kernel would not read it.
pub fn look(path: &Path) -> io::Result<Look> {
    let file = match open_regular(path) {
        Ok(file) => file,
        Err(None) => return Ok(Look::Missing),
        Err(Some(e)) => match e.kind() {
            ErrorKind::InvalidInput | ErrorKind::PermissionDenied => {
                return Ok(Look::NotOurs { why: e.to_string() });
            }
            _ => return Err(e),
        },
    };
    let (head, manifest) = match inspect(path, &file) {
        Ok(found) => found,
        Err(OpenError::NotOurs { why, .. }) => return Ok(Look::NotOurs { why }),
        Err(OpenError::Io { source, .. }) => return Err(source),
        Err(other) => {
            let (why, in_use) = (other.to_string(), locked(&file)?);
            return Ok(Look::Damaged { why, in_use });
        }
    };
    // Before the lock is taken: the mapping would drop it.
    let mapping = Mapping::new(file.try_clone()?, head.file_bytes, 0..0)?;
    let globals: &Globals = mapping.at(GLOBALS_OFFSET);
    let saved_iterations = globals.saved_iterations.load(Relaxed);
    let iterations = globals.iterations();
    let users = live(&mapping);
    drop(mapping);
    Ok(Look::Buffer(BufferInfo {
        session: head.session,
        identity: head.identity,
        weights: manifest.len(),
        bytes: head.file_bytes,
        ready: head.state == READY,
        iterations,
        saved_iterations,
        // Programs in other languages may hold a slot without holding the lock.
        in_use: locked(&file)? || !users.is_empty(),
        users,
    }))
}

/// True if another opening of the file holds a lock on it.
fn locked(file: &File) -> io::Result<bool> {
    let free = lock_exclusively_within(file, TRIES)?;
    if free {
        file.unlock()?;
    }
    Ok(!free)
}

fn live(mapping: &Mapping) -> Vec<SlotInfo> {
    let mut slots = slots::infos(mapping);
    slots.retain(|slot| slot.alive);
    slots
}

fn words<'a>(live: impl IntoIterator<Item = &'a SlotInfo>) -> String {
    let word = |s: &SlotInfo| format!("{} {} (process {})", s.role, s.index, s.pid);
    let words: Vec<_> = live.into_iter().map(word).collect();
    words.join(", ")
}

/// Live components of a buffer, in words.
pub(super) fn users(file: &File, head: &Head) -> Option<String> {
    let mapping = Mapping::new(file.try_clone().ok()?, head.file_bytes, 0..0).ok()?;
    let live = live(&mapping);
    (!live.is_empty()).then(|| words(&live))
}

/// What a file in the way is, in words.
pub(super) fn describe(path: &Path, file: &File) -> String {
    match inspect(path, file) {
        Ok((head, manifest)) => {
            let weights = manifest.len();
            let used = users(file, &head).map_or(String::new(), |by| format!(", in use by {by}"));
            let state = if head.state == READY {
                ""
            } else {
                ", never finished"
            };
            format!(
                "a buffer of {weights} weights, session {:#018x}{state}{used}",
                head.session
            )
        }
        Err(OpenError::NotOurs { why, .. }) => format!("not a dogwild buffer: {why}"),
        Err(OpenError::OtherVersion { found, .. }) => format!("a buffer of layout version {found}"),
        Err(_) => "a damaged buffer".into(),
    }
}

//! Removing a buffer and its state files, unless it is in use.
//!
//! Touches the file it is given and the state files next to it. Invariant: a file goes only while
//! its exclusive lock is held, which no process gets while another has it open.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::error::{CreateError, OpenError};
use super::inspect::inspect;
use super::look::users;
use super::publish::{is_at, lock_exclusively, open_regular};
use super::state_file::{files_beside, holder};

/// Removes the buffer `path` and its state files, or only these if the buffer is gone. Returns the
/// files that it removed.
///
/// # Errors
/// It is in use, or not ours, or the kernel refused; see [`CreateError`].
pub fn remove_buffer(path: &Path) -> Result<Vec<PathBuf>, CreateError> {
    match open_regular(path) {
        Ok(file) => remove(path, &file),
        Err(None) => remove_beside(path),
        Err(Some(e)) if e.kind() == ErrorKind::InvalidInput => Err(CreateError::NotOurs {
            path: path.into(),
            why: e.to_string(),
        }),
        Err(Some(source)) => Err(CreateError::Io {
            path: path.into(),
            source,
        }),
    }
}

/// Removes a buffer that no process uses, and its state files.
pub(super) fn remove(path: &Path, file: &File) -> Result<Vec<PathBuf>, CreateError> {
    let io = |source| CreateError::Io {
        path: path.into(),
        source,
    };
    // Everything that still begins like a buffer may go, however damaged the rest is.
    let inspected = inspect(path, file);
    if let Err(OpenError::NotOurs { why, .. }) = inspected {
        return Err(CreateError::NotOurs {
            path: path.into(),
            why,
        });
    }
    let head = inspected.ok().map(|(head, _)| head);
    let in_use = |by: Option<String>| CreateError::InUse {
        path: path.into(),
        by: by.unwrap_or_else(|| "another process".into()),
    };
    if !lock_exclusively(file).map_err(io)? {
        return Err(in_use(head.and_then(|head| users(file, &head))));
    }
    // Another process may have replaced the file before we had the lock: then leave theirs alone.
    if !is_at(file, path).map_err(io)? {
        return Ok(Vec::new());
    }
    // Programs in other languages may hold a slot without holding the lock. They are looked at now:
    // those that were here before may have ended. Another opening drops its own lock at its end,
    // and not ours.
    let again = open_regular(path).ok();
    if let Some(by) = again.zip(head).and_then(|(file, head)| users(&file, &head)) {
        return Err(in_use(Some(by)));
    }
    let mut removed = remove_beside(path)?;
    std::fs::remove_file(path).map_err(io)?;
    removed.push(path.into());
    Ok(removed)
}

/// Removes the state files of the buffer `path`: without it they mean nothing. All of them, or
/// none if a component still holds one: it works on a buffer that has lost its name.
pub(super) fn remove_beside(path: &Path) -> Result<Vec<PathBuf>, CreateError> {
    let found = files_beside(path).map_err(|source| CreateError::Io {
        path: path.into(),
        source,
    })?;
    // All locks first, then all removals: a component that holds one file keeps them all. The
    // locks are held to the end, so none starts to work on a file that is about to go.
    let mut locked = Vec::with_capacity(found.len());
    for path in &found {
        let io = |source| CreateError::Io {
            path: path.clone(),
            source,
        };
        match open_regular(path) {
            Ok(file) if lock_exclusively(&file).map_err(io)? => locked.push(file),
            Ok(file) => {
                return Err(CreateError::InUse {
                    path: path.clone(),
                    by: format!("process {}", holder(&file)),
                });
            }
            // Gone meanwhile, or nothing that a component could hold.
            Err(None) => {}
            Err(Some(e)) if e.kind() == ErrorKind::InvalidInput => {}
            Err(Some(source)) => return Err(io(source)),
        }
    }
    let mut removed = Vec::with_capacity(found.len());
    for path in found {
        match std::fs::remove_file(&path) {
            Ok(()) => removed.push(path),
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(source) => return Err(CreateError::Io { path, source }),
        }
    }
    Ok(removed)
}

//! Removing a buffer and what lies beside it, unless it is in use.
//!
//! Touches the file it is given and the state files beside it. Invariant: a file goes only while
//! its exclusive lock is held, which nobody gets while a process has it open.

use std::fs::File;
use std::path::Path;

use super::error::{CreateError, OpenError};
use super::inspect::inspect;
use super::look::users;
use super::publish::{is_at, lock_exclusively};
use super::state_file;

/// Removes a buffer that nobody uses, and the state files beside it.
pub(super) fn remove(path: &Path, file: &File) -> Result<(), CreateError> {
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
    // Before the lock is taken: the mapping in there would drop it.
    let users = inspected.ok().and_then(|(head, _)| users(file, &head));
    if !lock_exclusively(file).map_err(io)? {
        let by = users.unwrap_or_else(|| "another process".into());
        return Err(CreateError::InUse {
            path: path.into(),
            by,
        });
    }
    // Programs in other languages may hold a slot without holding the lock.
    if let Some(by) = users {
        return Err(CreateError::InUse {
            path: path.into(),
            by,
        });
    }
    // Somebody may have replaced the file before we had the lock: then leave theirs alone.
    if is_at(file, path).map_err(io)? {
        state_file::remove_beside(path).map_err(io)?;
        std::fs::remove_file(path).map_err(io)?;
    }
    Ok(())
}

//! What a file is, and whether it is in use, without opening it as a buffer.
//!
//! Touches nothing but locks, for a moment.

use std::fs::File;
use std::path::Path;

use super::error::OpenError;
use super::header::{Head, READY};
use super::inspect::inspect;
use super::mapping::Mapping;
use super::slots;

/// Live components of a buffer, in words.
pub(super) fn users(file: &File, head: &Head) -> Option<String> {
    let mapping = Mapping::new(file.try_clone().ok()?, head.file_bytes, 0..0).ok()?;
    let live: Vec<String> = slots::infos(&mapping)
        .iter()
        .filter(|s| s.alive)
        .map(|s| format!("{} {} (process {})", s.role, s.index, s.pid))
        .collect();
    (!live.is_empty()).then(|| live.join(", "))
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

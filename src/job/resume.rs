//! `dogwild train --resume`: finds the newest good snapshot of a run. `restore` puts a job there.
//!
//! Reads the folder of the results. Invariant: no snapshot is found whose checksums do not hold.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::snapshot_record::{HOME, MANIFEST, Record, WEIGHTS, folders};

/// A snapshot to go on from.
#[derive(Debug)]
pub struct Resume {
    /// The folder of the run's snapshots.
    home: PathBuf,
    /// That of this one.
    pub(super) folder: PathBuf,
    pub(super) record: Record,
}

impl Resume {
    /// The newest snapshot in the results `out` whose files are as they were written.
    ///
    /// # Errors
    /// There is none: says what was looked for, or what is wrong with each.
    pub fn find(out: &Path) -> Result<Self> {
        let home = out.join(HOME);
        let mut damaged = Vec::new();
        let mut found = Vec::new();
        for folder in folders(&home) {
            match Record::read(&folder) {
                Ok(record) => found.push((folder, record)),
                Err(error) => damaged.push(error.to_string()),
            }
        }
        found.sort_by_key(|(_, record)| std::cmp::Reverse(record.sequence));
        for (folder, record) in found {
            match record.check_files(&folder) {
                Err(error) => damaged.push(error.to_string()),
                Ok(()) => {
                    for damage in &damaged {
                        log::warn!("--resume: passed over: {damage}");
                    }
                    for other in unfinished(out) {
                        log::warn!(
                            "{} holds a run that was not completed; to go on with that one: --out {}",
                            other.display(),
                            other.display()
                        );
                    }
                    log::info!(
                        "going on from {}: iteration {}",
                        folder.display(),
                        record.iterations
                    );
                    return Ok(Self {
                        home,
                        folder,
                        record,
                    });
                }
            }
        }
        if damaged.is_empty() {
            let others = unfinished(out);
            let others = others
                .iter()
                .map(|other| format!(", as {}", other.display()));
            bail!(
                "--resume: there is no snapshot in {}: looked for {}. Name the folder of the run that is to go on \
                 (--out DIR{}), or start a new one without --resume",
                out.display(),
                home.join("<iteration>").join(MANIFEST).display(),
                others.collect::<String>()
            );
        }
        bail!(
            "--resume: no snapshot in {} can be used: {}",
            home.display(),
            damaged.join("; ")
        )
    }

    /// Iterations that the run was asked for; 0: no end.
    pub fn iterations_asked(&self) -> u64 {
        self.record.iterations_asked
    }

    /// Iterations that it had done.
    pub fn iterations(&self) -> u64 {
        self.record.iterations
    }

    /// The folder of the run's snapshots.
    pub(super) fn home(&self) -> &Path {
        &self.home
    }

    /// The weights to start from.
    pub(super) fn weights(&self) -> PathBuf {
        self.folder.join(WEIGHTS)
    }
}

/// The last of the numbered runs in `base` that has snapshots; `base` itself if none has.
pub fn last_run(base: &Path) -> PathBuf {
    let entries = fs::read_dir(base).into_iter().flatten().flatten();
    let runs = entries.filter_map(|entry| {
        let number = entry.file_name().to_str()?.parse::<u32>().ok()?;
        entry
            .path()
            .join(HOME)
            .is_dir()
            .then(|| (number, entry.path()))
    });
    runs.max().map_or(base.to_owned(), |(_, run)| run)
}

/// Folders in `out` of runs that were to replace its results and did not come to their end.
fn unfinished(out: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(out).into_iter().flatten().flatten();
    let folders = entries.map(|entry| entry.path());
    let is_one = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with("unfinished-")) && path.join(HOME).is_dir()
    };
    folders.filter(is_one).collect()
}

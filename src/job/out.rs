//! The folder of a job's results.
//!
//! Touches the folder named, and only files in it that jobs make. Invariants: a folder with results
//! is taken only if that was asked for; results of an earlier job stay what they are until those of
//! this one are complete; a folder is used by one job at a time (the kernel drops the lock of a job
//! that dies).

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::whole::sync_folder;

/// Where the numbered folders are if none is named.
pub const DEFAULT_OUT: &str = "out";
/// Files and folders that hold what a job has made.
const RESULTS: [&str; 6] = [
    "weights.safetensors",
    "summary.json",
    "curve.csv",
    "curve.svg",
    "checkpoints",
    "snapshots",
];
/// Beginnings and ends of the names of files that components make.
const COMPONENTS: [&str; 4] = ["node", "worker", "server", "coordinator"];
const ENDS: [&str; 4] = [".log", "-curve.csv", "-traffic.json", "-settings.json"];
/// Start of the name of a folder inside the one named, where a run is until it is complete.
const STAGED: &str = "unfinished-";

/// What to do with results that are there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Old {
    /// Refuse them.
    Refuse,
    /// Replace them when the new ones are complete (`--overwrite`).
    Replace,
    /// Go on from their checkpoints (`--resume`).
    Resume,
}

/// Why there is no folder for a job.
#[derive(Debug, thiserror::Error)]
pub enum OutError {
    /// The folder holds results.
    #[error(
        "{} holds results of an earlier run ({}): name another --out, replace them when this run is \
         complete (--overwrite), or go on from its checkpoints (--resume)", dir.display(), found.join(", ")
    )]
    HoldsResults {
        /// The folder.
        dir: PathBuf,
        /// What is in it.
        found: Vec<&'static str>,
    },
    /// Another job writes to the folder.
    #[error("{} is in use by another job: name another --out", dir.display())]
    InUse {
        /// The folder.
        dir: PathBuf,
    },
    /// The system refuses.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// With what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// A job's folder. Dropped with nothing in it, it goes.
#[derive(Debug)]
pub struct OutFolder {
    dir: PathBuf,
    work: PathBuf,
    old: Old,
    /// Folders that this job has made, the innermost first.
    made: Vec<PathBuf>,
    _lock: Option<File>,
}

impl OutFolder {
    /// A new folder `base/001`, `base/002`, ...
    ///
    /// # Errors
    /// It cannot be made.
    pub fn numbered(base: &Path) -> Result<Self, OutError> {
        let made_base = make(base)?;
        let (dir, lock) = make_numbered(base, "")?;
        Ok(Self {
            work: dir.clone(),
            made: std::iter::once(dir.clone()).chain(made_base).collect(),
            dir,
            old: Old::Refuse,
            _lock: lock,
        })
    }

    /// The folder `dir`, made if it is not there. With results in it, and `old` allowing that, the
    /// job works in a folder inside it until it is complete.
    ///
    /// # Errors
    /// It holds results, is in use, or cannot be made.
    pub fn at(dir: &Path, old: Old) -> Result<Self, OutError> {
        let made = make(dir)?;
        let lock = lock(dir)?;
        let found: Vec<_> = RESULTS
            .into_iter()
            .filter(|name| dir.join(name).exists())
            .collect();
        if old == Old::Refuse && !found.is_empty() {
            return Err(OutError::HoldsResults {
                dir: dir.into(),
                found,
            });
        }
        // A run that was killed has left checkpoints at most: it goes on where it was.
        let staged = match old {
            Old::Resume => found.iter().any(|name| dir.join(name).is_file()),
            _ => !found.is_empty(),
        };
        let mut folder = Self {
            work: dir.into(),
            dir: dir.into(),
            old,
            made: made.into_iter().collect(),
            _lock: lock,
        };
        if staged {
            (folder.work, _) = make_numbered(dir, STAGED)?;
            folder.made.insert(0, folder.work.clone());
            if old == Old::Resume && dir.join("curve.csv").exists() {
                // The curve goes on too.
                fs::copy(dir.join("curve.csv"), folder.work.join("curve.csv"))
                    .map_err(io("copy", &dir.join("curve.csv")))?;
            }
        } else if old != Old::Resume {
            remove_component_files(dir)?;
        }
        Ok(folder)
    }

    /// Where the job's files go while it runs.
    pub fn work(&self) -> &Path {
        &self.work
    }

    /// The folder that was named.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where checkpoints and snapshots go. Those of a run that is gone on with stay in one place,
    /// so that the newest is found again.
    pub fn lasting(&self) -> &Path {
        match self.old {
            Old::Resume => &self.dir,
            Old::Refuse | Old::Replace => &self.work,
        }
    }

    /// True if this run goes on from the one whose results are there, and has come as far.
    pub(super) fn goes_further(&self, iterations: u64) -> bool {
        let text = fs::read_to_string(self.dir.join("summary.json")).unwrap_or_default();
        let summary: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        let before = summary["iterations"].as_u64();
        self.old == Old::Resume && before.is_some_and(|before| before <= iterations)
    }

    /// Makes the working folder again if it was removed meanwhile.
    pub(super) fn restore(&self) -> io::Result<()> {
        fs::create_dir_all(&self.work)
    }

    /// The results are complete: they replace what was there. Gives the folder they are in.
    ///
    /// # Errors
    /// A file cannot be moved: what is not yet moved stays in the working folder.
    pub(super) fn complete(self) -> Result<PathBuf, OutError> {
        if self.work != self.dir {
            self.replace()?;
        }
        Ok(self.dir.clone())
    }

    fn replace(&self) -> Result<(), OutError> {
        let (dir, work) = (&self.dir, &self.work);
        let mut names = names(work)?;
        // The model first: whatever stops this, it is whole.
        names.sort_by_key(|name| name != "weights.safetensors");
        for name in &names {
            let (from, to) = (work.join(name), dir.join(name));
            if to.is_dir() {
                // A folder cannot take the place of another in one step: the old one steps aside.
                let aside = work.join(format!("old-{name}"));
                fs::rename(&to, &aside).map_err(io("move", &to))?;
            }
            fs::rename(&from, &to).map_err(io("move", &from))?;
        }
        sync_folder(dir);
        for name in self::names(dir)? {
            let replaced = RESULTS.contains(&name.as_str()) && self.old == Old::Replace;
            if (replaced || is_of_component(&name)) && !names.contains(&name) {
                remove(&dir.join(&name))?;
            }
        }
        remove(work)
    }
}

impl Drop for OutFolder {
    fn drop(&mut self) {
        // Goes only where it is empty: a job that never began leaves nothing.
        for folder in &self.made {
            if fs::remove_dir(folder).is_err() {
                return;
            }
        }
    }
}

/// True for a file that a component makes while it runs.
fn is_of_component(name: &str) -> bool {
    COMPONENTS.iter().any(|kind| name.starts_with(kind))
        && ENDS.iter().any(|end| name.ends_with(end))
}

/// Whether a job works in the folder `dir`.
pub fn is_in_use(dir: &Path) -> bool {
    matches!(lock(dir), Err(OutError::InUse { .. }))
}

/// Removes what components of a job that came to no result have left, so that nothing of it is
/// taken for this one's.
fn remove_component_files(dir: &Path) -> Result<(), OutError> {
    for name in names(dir)? {
        if is_of_component(&name) {
            remove(&dir.join(name))?;
        }
    }
    Ok(())
}

fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> OutError {
    let path = path.to_owned();
    move |source| OutError::Io { what, path, source }
}

fn remove(path: &Path) -> Result<(), OutError> {
    let removed = match path.is_dir() {
        true => fs::remove_dir_all(path),
        false => fs::remove_file(path),
    };
    removed.map_err(io("remove", path))
}

fn names(dir: &Path) -> Result<Vec<String>, OutError> {
    let entries = fs::read_dir(dir).map_err(io("read the folder", dir))?;
    let names = entries.flatten().map(|entry| entry.file_name());
    Ok(names
        .filter_map(|name| name.to_str().map(str::to_owned))
        .collect())
}

/// Makes `dir` with the folders above it; gives it if it is new.
fn make(dir: &Path) -> Result<Option<PathBuf>, OutError> {
    let new = !dir.exists();
    fs::create_dir_all(dir).map_err(io("make the folder", dir))?;
    Ok(new.then(|| dir.to_owned()))
}

/// Makes `base/<start>NNN`, the first number that no other job has or takes meanwhile, above all
/// that are there. Locked.
fn make_numbered(base: &Path, start: &str) -> Result<(PathBuf, Option<File>), OutError> {
    let number = |name: &String| name.strip_prefix(start)?.parse::<u32>().ok();
    let last = names(base)?.iter().filter_map(number).max().unwrap_or(0);
    let mut next = last.saturating_add(1);
    loop {
        let dir = base.join(format!("{start}{next:03}"));
        match fs::create_dir(&dir) {
            Ok(()) => return Ok((dir.clone(), lock(&dir)?)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => next += 1,
            Err(error) => return Err(io("make the folder", &dir)(error)),
        }
    }
}

/// The lock on a folder; `None` where the file system has none.
fn lock(dir: &Path) -> Result<Option<File>, OutError> {
    let file = File::open(dir).map_err(io("open the folder", dir))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Err(OutError::InUse { dir: dir.into() }),
        Err(TryLockError::Error(_)) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(dir: &Path, name: &str, text: &str) {
        fs::create_dir_all(dir.join(name).parent().expect("a folder")).expect("a folder");
        fs::write(dir.join(name), text).expect("a file");
    }

    fn text(dir: &Path, name: &str) -> Option<String> {
        fs::read_to_string(dir.join(name)).ok()
    }

    #[test]
    fn runs_are_numbered_above_all_others_and_leave_nothing_when_they_never_began() {
        let base = tempfile::tempdir().expect("a folder");
        let out = base.path().join("out");
        drop(OutFolder::numbered(&out).expect("a folder"));
        assert!(!out.exists(), "an empty folder stayed");
        let first = OutFolder::numbered(&out).expect("a folder");
        let second = OutFolder::numbered(&out).expect("another");
        assert_eq!(first.work(), out.join("001"));
        assert_eq!(second.work(), out.join("002"));
        put(second.work(), "weights.safetensors", "w");
        drop((first, second));
        assert!(!out.join("001").exists());
        let third = OutFolder::numbered(&out).expect("a third");
        assert_eq!(third.work(), out.join("003"));
    }

    #[test]
    fn numbers_go_on_although_other_things_are_there() {
        let base = tempfile::tempdir().expect("a folder");
        for name in ["weights.safetensors", "007/x", "1000/x", "notes"] {
            put(base.path(), name, "");
        }
        let next = OutFolder::numbered(base.path()).expect("a folder");
        assert_eq!(next.work(), base.path().join("1001"));
    }

    #[test]
    fn results_are_refused_with_their_names() {
        for name in RESULTS {
            let dir = tempfile::tempdir().expect("a folder");
            match name {
                "checkpoints" | "snapshots" => put(dir.path(), &format!("{name}/x"), ""),
                file => put(dir.path(), file, ""),
            }
            let said = OutFolder::at(dir.path(), Old::Refuse)
                .expect_err("holds results")
                .to_string();
            assert!(
                said.contains(name) && said.contains("--overwrite"),
                "{said}"
            );
        }
    }

    #[test]
    fn a_folder_serves_one_job_at_a_time() {
        let dir = tempfile::tempdir().expect("a folder");
        let one = OutFolder::at(dir.path(), Old::Refuse).expect("free");
        let said = OutFolder::at(dir.path(), Old::Replace).expect_err("in use");
        assert!(matches!(said, OutError::InUse { .. }), "{said}");
        drop(one);
        put(dir.path(), "other", "a file of the user");
        OutFolder::at(dir.path(), Old::Refuse).expect("free again");
    }

    #[test]
    fn old_results_go_when_the_new_ones_are_complete_and_not_before() {
        let dir = tempfile::tempdir().expect("a folder");
        let dir = dir.path();
        for name in [
            "weights.safetensors",
            "summary.json",
            "node0-stream.log",
            "node2-stream.log",
            "checkpoints/a",
            "snapshots/old",
            "notes.txt",
        ] {
            put(dir, name, "old");
        }
        let interrupted = OutFolder::at(dir, Old::Replace).expect("a folder");
        assert_eq!(interrupted.work(), dir.join("unfinished-001"));
        put(interrupted.work(), "weights.safetensors", "half");
        drop(interrupted);
        assert_eq!(text(dir, "weights.safetensors").as_deref(), Some("old"));
        let half = text(dir, "unfinished-001/weights.safetensors");
        assert_eq!(half.as_deref(), Some("half"));
        let whole = OutFolder::at(dir, Old::Replace).expect("a folder");
        for name in ["weights.safetensors", "node0-stream.log", "snapshots/new"] {
            put(whole.work(), name, "new");
        }
        assert_eq!(whole.complete().expect("replaced"), dir);
        let found = |name| text(dir, name);
        assert_eq!(found("weights.safetensors").as_deref(), Some("new"));
        assert_eq!(found("node0-stream.log").as_deref(), Some("new"));
        assert_eq!(found("snapshots/new").as_deref(), Some("new"));
        for gone in [
            "summary.json",
            "node2-stream.log",
            "checkpoints/a",
            "snapshots/old",
        ] {
            assert_eq!(found(gone), None, "{gone}");
        }
        assert_eq!(found("notes.txt").as_deref(), Some("old"), "not ours");
        assert!(!dir.join("unfinished-002").exists());
        assert!(half.is_some() && dir.join("unfinished-001").exists());
    }

    #[test]
    fn a_resumed_run_keeps_its_checkpoints_and_its_curve() {
        let dir = tempfile::tempdir().expect("a folder");
        let dir = dir.path();
        put(dir, "checkpoints/run.json", "{}");
        put(dir, "worker0-curve.csv", "rows");
        let killed = OutFolder::at(dir, Old::Resume).expect("a folder");
        assert_eq!(killed.work(), dir, "nothing there that could be lost");
        assert!(dir.join("worker0-curve.csv").exists());
        drop(killed);
        put(dir, "weights.safetensors", "old");
        put(dir, "curve.csv", "rows");
        put(dir, "summary.json", r#"{"iterations": 30}"#);
        let again = OutFolder::at(dir, Old::Resume).expect("a folder");
        assert_eq!(text(again.work(), "curve.csv").as_deref(), Some("rows"));
        put(again.work(), "weights.safetensors", "new");
        assert_eq!(again.lasting(), dir);
        assert!(!again.goes_further(29) && again.goes_further(30));
        again.complete().expect("replaced");
        assert_eq!(text(dir, "weights.safetensors").as_deref(), Some("new"));
        assert!(dir.join("checkpoints/run.json").exists());
    }
}

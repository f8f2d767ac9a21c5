//! Folders in shared memory for the buffers of a benchmark, removed whatever ends it.
//!
//! Dropped, or at SIGINT, SIGTERM and SIGHUP: the folder goes with all that is in it, and a child
//! that starts late finds no folder to write into. Children end with the process that started them
//! (`dogwild_lab::process::die_with_parent`). SIGKILL leaves the folder; its name begins with the
//! program's, and its lock (flock on the folder) is free then, by which `dogwild clean` knows it.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Folders that are there. Held for good by the thread that ends the process.
static FOLDERS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn folders() -> MutexGuard<'static, Vec<PathBuf>> {
    FOLDERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A folder under /dev/shm (or the folder for temporary files, where there is no /dev/shm).
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    /// The folder itself, locked as long as it is used.
    _lock: File,
}

impl Scratch {
    /// A new folder whose name begins with `program`; from now on signals end this process with 128
    /// and their number.
    ///
    /// # Errors
    /// What the system says about the folder or the signals.
    pub fn new(program: &str) -> Result<Self> {
        static WATCHED: OnceLock<Result<(), String>> = OnceLock::new();
        let watched = WATCHED.get_or_init(|| watch_signals().map_err(|error| error.to_string()));
        if let Err(error) = watched {
            anyhow::bail!("cannot watch for signals: {error}");
        }
        let shm = Path::new("/dev/shm");
        let base = if shm.is_dir() {
            shm.to_path_buf()
        } else {
            std::env::temp_dir()
        };
        let mut all = folders();
        let process = std::process::id();
        let mut number = 0;
        // Another process may have this number in a PID namespace of its own and share the folder.
        let path = loop {
            let path = base.join(format!("{program}-{process}-{number}"));
            match fs::create_dir(&path) {
                Ok(()) => break path,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
                Err(error) => {
                    return Err(error).with_context(|| format!("cannot make {}", path.display()));
                }
            }
        };
        all.push(path.clone());
        drop(all);
        let locked = File::open(&path).and_then(|folder| {
            folder.try_lock()?;
            Ok(folder)
        });
        match locked {
            Ok(lock) => Ok(Self { path, _lock: lock }),
            Err(error) => {
                forget(&path);
                Err(error).with_context(|| format!("cannot lock {}", path.display()))
            }
        }
    }

    /// Path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        forget(&self.path);
    }
}

fn forget(path: &Path) {
    let mut all = folders();
    remove(path);
    all.retain(|other| other != path);
}

/// Removes a folder into which a child may still be writing.
fn remove(path: &Path) {
    const TRIES: usize = 100;
    for _ in 0..TRIES {
        match fs::remove_dir_all(path) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            _ => return,
        }
    }
}

fn watch_signals() -> io::Result<()> {
    let mut wanted = vec![SIGINT, SIGTERM];
    // `nohup` has asked to ignore this one.
    if !is_ignored(SIGHUP) {
        wanted.push(SIGHUP);
    }
    let mut signals = Signals::new(wanted)?;
    let watcher = std::thread::Builder::new().name("signals".into());
    watcher.spawn(move || {
        if let Some(signal) = signals.forever().next() {
            // Kept until the end: no thread makes a folder, removes one, or gets past its removal
            // to complain about children that the same Ctrl-C has ended.
            let all = folders();
            all.iter().for_each(|path| remove(path));
            dogwild_lab::note!("interrupted: what was in shared memory is removed");
            std::process::exit(128 + signal);
        }
    })?;
    Ok(())
}

/// True if this process ignores `signal`.
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

//! `dogwild data get`: brings a published data set into a folder, whole and as it was published.
//!
//! Downloads from mirrors, goes on where a download ended, and puts a file in its place only once
//! its contents have the right checksum. Touches the folder and the network, on a thread of its
//! own, so that a signal ends the program while a mirror is silent.
//!
//! Invariants: under its own name a file is whole and right. What is not yet is `NAME.part`, and
//! one process at a time writes it.

mod files;
mod mirror;
mod progress;
mod set;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use crate::node::{Interrupted, Stop};
use files::{Contents, Part};
use mirror::{Client, Fault};
use progress::Progress;

pub use set::{Download, Held, Packed, Set};

/// Time between two looks for a signal.
const LOOK: Duration = Duration::from_millis(100);

/// Why a data set could not be brought.
#[derive(Debug, thiserror::Error)]
pub enum DataGetError {
    /// A file of the set's name that is another.
    #[error("{} is there already, and is another file: {found}; move it away, or name another \
             folder with --to", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What it is, and what it should be.
        found: String,
    },
    /// Another process downloads the same.
    #[error("{}: another process downloads it; wait for its end, or name another folder with --to",
            path.display())]
    Busy {
        /// The file that it writes.
        path: PathBuf,
    },
    /// The folder takes no files.
    #[error("cannot write {}: {source}; {}", path.display(), remedy(source))]
    Write {
        /// The folder or file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A file of the set that is there cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// No mirror has it.
    #[error(
        "no mirror gave {file}:{}\ntry again later (what came is kept), or name a mirror with \
             --mirror URL",
        listed(failures)
    )]
    NoMirror {
        /// What was asked for.
        file: String,
        /// Of each mirror, what it was asked and what went wrong.
        failures: Vec<String>,
    },
    /// A signal.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
    /// The system gives no thread.
    #[error("cannot start a thread: {0}; raise the limit of processes (ulimit -u)")]
    Thread(io::Error),
    /// A defect of this program.
    #[error("the thread that downloads has ended early: please report it")]
    Defect,
}

fn remedy(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "free some room there and give the same command again, which goes on where it ended, or \
             name another folder with --to"
        }
        _ => "name a folder that you may write to with --to",
    }
}

fn listed(failures: &[String]) -> String {
    failures.iter().map(|why| format!("\n    {why}")).collect()
}

/// Brings `set` into the folder `to`, from the first of `mirrors` that has it (folders' URLs; none:
/// the set's own). Returns how many files were downloaded: 0 if all were there.
///
/// # Errors
/// A file of that name is there and is another, no mirror has what is needed, the folder takes no
/// files, or `stop` was set. What came is kept for the next call.
pub fn get(set: Set, to: &Path, mirrors: Vec<String>, stop: &Stop) -> Result<usize, DataGetError> {
    let to = to.to_owned();
    let mirrors = match mirrors.is_empty() {
        true => set.mirrors.clone(),
        false => mirrors,
    };
    let (done, result) = mpsc::channel();
    let work = move || {
        let getter = Getter {
            set,
            to,
            mirrors,
            client: Client::default(),
            progress: Progress::default(),
        };
        // The other end is gone after a signal, as is the program soon.
        let _ = done.send(getter.get());
    };
    let thread = thread::Builder::new().name("data-get".to_owned());
    thread.spawn(work).map_err(DataGetError::Thread)?;
    loop {
        match result.recv_timeout(LOOK) {
            Ok(result) => return result,
            Err(RecvTimeoutError::Timeout) => stop.check()?,
            Err(RecvTimeoutError::Disconnected) => return Err(DataGetError::Defect),
        }
    }
}

struct Getter {
    set: Set,
    to: PathBuf,
    mirrors: Vec<String>,
    client: Client,
    progress: Progress,
}

impl Getter {
    fn get(mut self) -> Result<usize, DataGetError> {
        std::fs::create_dir_all(&self.to).map_err(write(&self.to))?;
        let mut count = 0;
        for download in std::mem::take(&mut self.set.downloads) {
            if files::is_there(&self.to, &download)? {
                dogwild_lab::progress!("{}: is there, and right", download.file);
                continue;
            }
            self.bring(&download)?;
            dogwild_lab::progress!("{}: SHA-256 is right", download.file);
            count += 1;
        }
        Ok(count)
    }

    /// Downloads from the first mirror that has it.
    fn bring(&mut self, download: &Download) -> Result<(), DataGetError> {
        let mut part = Part::open(&self.to, &download.file)?;
        let mut failures = Vec::new();
        for mirror in self.mirrors.clone() {
            let url = format!("{}/{}", mirror.trim_end_matches('/'), download.file);
            match self.bring_from(&url, download, &mut part) {
                Ok(()) => return Ok(()),
                Err(Fault::Here(error)) => return Err(error),
                Err(Fault::Mirror(why)) => {
                    self.progress.tell(&format!("{url}: {why}"));
                    failures.push(format!("{url}: {why}"));
                }
            }
        }
        self.progress.end();
        part.remove_if_empty();
        Err(DataGetError::NoMirror {
            file: download.file.clone(),
            failures,
        })
    }

    fn bring_from(&mut self, url: &str, download: &Download, part: &mut Part) -> Result<(), Fault> {
        loop {
            let is_whole = self.client.fetch(url, download, part, &mut self.progress)?;
            self.progress.end();
            let found = match part.put(&self.to, download)? {
                Contents::Right => return Ok(()),
                Contents::Wrong(found) => found,
            };
            // Nothing of it is worth keeping: no one knows where it is wrong.
            part.clear()?;
            if is_whole {
                return Err(Fault::Mirror(found));
            }
            let file = &download.file;
            self.progress.tell(&format!(
                "{file}: the part that was there does not fit to the rest ({found}): downloading \
                 the whole"
            ));
        }
    }
}

/// An error of writing to `path`.
fn write(path: &Path) -> impl FnOnce(io::Error) -> DataGetError + '_ {
    move |source| DataGetError::Write {
        path: path.to_owned(),
        source,
    }
}

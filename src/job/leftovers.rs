//! What jobs have left under /dev/shm: what it is, whether it is in use, whether it holds the only
//! copy of a model.
//!
//! Touches the files of that folder: reads them, locks them for a moment, removes them when asked
//! to. Invariants: in use is what a process has locked, in whatever process namespace it lives;
//! nothing in use is ever removed; nothing is removed that is not dogwild's.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::buffers::{PREFIX, SHM};
use crate::weights::{Look, look};

/// First bytes of a buffer.
const BUFFER: &[u8] = b"DOGWILD\0";
/// First bytes of its state files.
const STATES: [&[u8]; 4] = [b"DOGWSTRM", b"DOGWSOLV", b"DOGWGPU\0", b"DOGWOPTM"];
/// Start of the names of what measuring tools make: files and folders.
const TOOLS: [&str; 7] = [
    "dogwild-bench-",
    "dogwild-plan-",
    "dogwild-hogwild-",
    "rawbench-gpu-",
    "dogwild-rawbench-",
    "dogwild-study-",
    "dogwild-repeat-",
];
/// A folder this young may be one that a tool is about to fill.
const YOUNG: Duration = Duration::from_secs(60);

/// Who has made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Maker {
    /// `dogwild train`.
    Train,
    /// A measuring tool, whose weights are no model.
    Tool,
    /// A person, by `dogwild init`.
    Person,
}

/// What may be done with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeftoverState {
    /// A process uses it.
    InUse(String),
    /// Free, with nothing in it that is not saved.
    Free,
    /// Free, with the only copy of that many iterations.
    Unsaved(u64),
    /// Free, with content that cannot be told.
    Unreadable(String),
}

/// One buffer with its state files, one tool's folder, or state files without a buffer.
#[derive(Clone, Debug)]
pub struct Leftover {
    /// The buffer, folder or file.
    pub path: PathBuf,
    /// All files of it.
    pub files: Vec<PathBuf>,
    /// Memory that they take.
    pub bytes: u64,
    /// Time since it was used last, as far as the files tell.
    pub age: Duration,
    /// Who has made it.
    pub maker: Maker,
    /// What may be done with it.
    pub state: LeftoverState,
    /// True for a file that meant something only next to a buffer, which is gone.
    pub orphan: bool,
}

/// Everything of dogwild's under /dev/shm.
///
/// # Errors
/// The folder cannot be read.
pub fn leftovers() -> io::Result<Vec<Leftover>> {
    let mut found: BTreeMap<PathBuf, Leftover> = BTreeMap::new();
    let mut states = Vec::new();
    for entry in fs::read_dir(SHM)?.flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        // No link is followed.
        let (Ok(kind), Some(name)) = (entry.file_type(), name.to_str()) else {
            continue;
        };
        if kind.is_dir() && TOOLS.iter().any(|start| name.starts_with(start)) {
            found.insert(path.clone(), Leftover::folder(path));
        } else if kind.is_file() {
            match magic(&path) {
                Some(magic) if magic == BUFFER => {
                    let leftover = Leftover::buffer(path.clone(), maker(name));
                    found.insert(path, leftover);
                }
                Some(magic) if STATES.contains(&&magic[..]) => states.push(path),
                _ if maker(name) != Maker::Person && name.contains('.') => states.push(path),
                _ => {}
            }
        }
    }
    for path in states {
        match buffer_of(&path).and_then(|buffer| found.get_mut(&buffer)) {
            Some(buffer) => buffer.add(path),
            None => {
                found.insert(path.clone(), Leftover::orphan(path));
            }
        }
    }
    let mut found: Vec<Leftover> = found.into_values().collect();
    found.iter_mut().for_each(Leftover::look);
    Ok(found)
}

impl Leftover {
    fn new(path: PathBuf, files: Vec<PathBuf>, maker: Maker) -> Self {
        Self {
            path,
            files,
            bytes: 0,
            age: Duration::ZERO,
            maker,
            state: LeftoverState::Free,
            orphan: false,
        }
    }

    fn buffer(path: PathBuf, maker: Maker) -> Self {
        Self::new(path.clone(), vec![path], maker)
    }

    fn folder(path: PathBuf) -> Self {
        let entries = fs::read_dir(&path).into_iter().flatten().flatten();
        let files = entries.map(|entry| entry.path()).collect();
        Self::new(path, files, Maker::Tool)
    }

    fn orphan(path: PathBuf) -> Self {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let maker = maker(&name);
        Self {
            orphan: true,
            ..Self::new(path.clone(), vec![path], maker)
        }
    }

    fn add(&mut self, file: PathBuf) {
        self.files.push(file);
    }

    /// Sets size, age and state.
    fn look(&mut self) {
        let meta = |path: &PathBuf| fs::symlink_metadata(path).ok();
        let metas: Vec<_> = self.files.iter().filter_map(meta).collect();
        self.bytes = metas.iter().map(|meta| meta.blocks() * 512).sum();
        let folder = fs::symlink_metadata(&self.path).ok();
        let changed = metas
            .iter()
            .chain(&folder)
            .filter_map(|m| m.modified().ok());
        let now = SystemTime::now();
        let age = |at: SystemTime| now.duration_since(at).unwrap_or_default();
        self.age = changed.map(age).min().unwrap_or_default();
        if let Err(by) = self.lock() {
            self.state = LeftoverState::InUse(by);
        } else if self.path.is_dir() && self.age < YOUNG {
            self.state = LeftoverState::InUse("a tool that has just begun".into());
        } else if !self.orphan && self.maker != Maker::Tool {
            self.state = self.contents();
        }
    }

    /// All files, locked against every user; else who uses one of them.
    fn lock(&self) -> Result<Vec<File>, String> {
        let lock = |path: &PathBuf| {
            let file = File::open(path).map_err(|error| format!("unknown ({error})"))?;
            match file.try_lock() {
                Ok(()) => Ok(file),
                Err(TryLockError::WouldBlock) => Err(self.users()),
                Err(TryLockError::Error(error)) => Err(format!("unknown ({error})")),
            }
        };
        let files = self.files.iter().filter(|path| path.is_file());
        files.map(lock).collect()
    }

    /// Live components, as far as they can be seen from here.
    fn users(&self) -> String {
        match look(&self.path) {
            Ok(Look::Buffer(info)) if info.in_use => info.users_text(),
            _ => "a process".into(),
        }
    }

    /// What a free buffer holds.
    fn contents(&mut self) -> LeftoverState {
        let info = match look(&self.path) {
            Ok(Look::Buffer(info)) => info,
            Ok(Look::Damaged { why, .. } | Look::NotOurs { why }) => {
                return LeftoverState::Unreadable(why);
            }
            Ok(Look::Missing) => return LeftoverState::Free,
            Err(error) => return LeftoverState::Unreadable(error.to_string()),
        };
        match (info.in_use, info.unsaved()) {
            (true, _) => LeftoverState::InUse(info.users_text()),
            (_, true) => LeftoverState::Unsaved(info.iterations),
            _ => LeftoverState::Free,
        }
    }

    /// Removes it, unless a process uses it meanwhile.
    ///
    /// # Errors
    /// It is in use, or the system refuses.
    pub fn remove(&self) -> io::Result<()> {
        let in_use = |by| io::Error::new(io::ErrorKind::ResourceBusy, format!("in use by {by}"));
        // Held until the names are gone: who opens the buffer meanwhile waits, and finds nothing.
        let _locks = self.lock().map_err(in_use)?;
        if self.orphan && buffer_of(&self.path).is_some_and(|buffer| buffer.exists()) {
            return Err(in_use("a buffer that has come meanwhile".into()));
        }
        if self.path.is_dir() {
            return fs::remove_dir_all(&self.path);
        }
        // States first: a buffer without them is whole, they without it are nothing.
        for file in self.files.iter().rev() {
            fs::remove_file(file)?;
        }
        Ok(())
    }
}

fn maker(name: &str) -> Maker {
    if name.starts_with(PREFIX) {
        Maker::Train
    } else if TOOLS.iter().any(|start| name.starts_with(start)) {
        Maker::Tool
    } else {
        Maker::Person
    }
}

/// The buffer that a state file belongs to, by its name.
fn buffer_of(path: &Path) -> Option<PathBuf> {
    let name = path.to_str()?;
    let name = name.strip_suffix(".ipc").unwrap_or(name);
    let (buffer, _) = name.rsplit_once('.')?;
    Some(buffer.into())
}

fn magic(path: &Path) -> Option<[u8; 8]> {
    let mut bytes = [0; 8];
    File::open(path).ok()?.read_exact(&mut bytes).ok()?;
    Some(bytes)
}

/// Removes the buffer at `path` with its state files, unless a process uses it. For a component
/// whose launcher has died, where a checkpoint has what was learnt.
///
/// # Errors
/// It is in use, or the system refuses.
pub fn remove_buffer(path: &Path) -> io::Result<()> {
    let ours = |found: &Leftover| found.path == path && found.maker == Maker::Train;
    match leftovers()?.iter().find(|found| ours(found)) {
        Some(found) => found.remove(),
        None => Ok(()),
    }
}

/// Tidies up before a job: what holds nothing unsaved goes; what does is told of.
pub(super) fn before_a_job() {
    // Without /dev/shm the job says so itself.
    let found = leftovers().unwrap_or_default();
    let ours = found.iter().filter(|found| found.maker == Maker::Train);
    let mut removed = (0, 0);
    for leftover in ours {
        match &leftover.state {
            LeftoverState::Free => {
                if leftover.remove().is_ok() {
                    removed = (removed.0 + leftover.files.len(), removed.1 + leftover.bytes);
                }
            }
            LeftoverState::Unsaved(iterations) => log::warn!(
                "an earlier job left {} ({iterations} iterations, not saved, {} old): save it with \
                 `dogwild snapshot --buffer {} --out FILE.safetensors`, or remove it with `dogwild clean`",
                leftover.path.display(),
                age(leftover.age),
                leftover.path.display(),
            ),
            LeftoverState::Unreadable(why) => log::warn!(
                "an earlier job left what cannot be read: {why} (`dogwild clean` removes it)"
            ),
            LeftoverState::InUse(_) => {}
        }
    }
    if removed.0 > 0 {
        log::info!(
            "removed {} files ({:.1} MB) of earlier jobs from {SHM}; all was saved",
            removed.0,
            removed.1 as f64 / 1e6
        );
    }
}

/// An age in words.
pub fn age(age: Duration) -> String {
    let seconds = age.as_secs();
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        7200..=172_799 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_known_by_their_names() {
        assert_eq!(maker("dogwild-train-7-n0"), Maker::Train);
        assert_eq!(maker("dogwild-bench-7-n1.stream"), Maker::Tool);
        assert_eq!(maker("mnist"), Maker::Person);
        for (file, buffer) in [
            ("a-n0.stream", "a-n0"),
            ("a.b.gpu1.ipc", "a.b"),
            ("x.solver12", "x"),
            ("x.optimizer0", "x"),
        ] {
            assert_eq!(buffer_of(Path::new(file)), Some(buffer.into()));
        }
        assert_eq!(buffer_of(Path::new("mnist")), None);
    }

    #[test]
    fn ages_are_told_in_one_unit() {
        let told = [1, 119, 120, 7200, 200_000].map(|s| age(Duration::from_secs(s)));
        assert_eq!(told, ["1 s", "119 s", "2 min", "2 h", "2 days"]);
    }
}

//! The memory of a node that was told to end: its buffer and the files of state next to it, on disk
//! until the same node starts again.
//!
//! Touches `DIR/memory` of the node's results, and the files of one buffer. Invariants: it is whole
//! or not there. It is taken back once only: a streamer that ran twice from one state would give a
//! number to two deltas.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::buffers::SHM;
use super::whole::sync_folder;
use crate::weights::free_in;

/// The folder, in that of the results.
const MEMORY: &str = "memory";
/// End of the name of a folder or file that is not whole, or not needed any more.
const PART: &str = ".part";

/// Keeps copies of `files` in the results `dir`, in place of what was kept before.
///
/// # Errors
/// They cannot be written: then there is nothing of them.
pub(super) fn keep(files: &[PathBuf], dir: &Path) -> Result<PathBuf> {
    let (memory, part) = (dir.join(MEMORY), dir.join(MEMORY.to_owned() + PART));
    remove(&part)?;
    let kept = fs::create_dir(&part)
        .with_context(|| format!("cannot make {}", part.display()))
        .and_then(|()| files.iter().try_for_each(|file| copy(file, &part, "")))
        .and_then(|()| remove(&memory))
        .and_then(|()| {
            fs::rename(&part, &memory).with_context(|| format!("cannot make {}", memory.display()))
        });
    if kept.is_err() {
        // The first error is the one to tell.
        let _ = remove(&part);
    }
    sync_folder(dir);
    kept.map(|()| memory)
}

/// Whether the results `dir` have the memory of the node with this `buffer`.
pub fn has_memory(dir: &Path, buffer: &Path) -> bool {
    let name = buffer.file_name().unwrap_or_default();
    dir.join(MEMORY).join(name).is_file()
}

/// Puts the node's memory back under /dev/shm, if it is kept in the results `dir`. If the node has
/// a `buffer` there, that is newer.
///
/// # Errors
/// There is no room, or a file cannot be read: the memory stays where it is.
pub fn take_back(dir: &Path, buffer: &Path) -> Result<()> {
    let memory = dir.join(MEMORY);
    if has_memory(dir, buffer) && !buffer.exists() {
        let files = files_in(&memory)?;
        room_for(&files, &memory)?;
        let shm = Path::new(SHM);
        files.iter().try_for_each(|file| copy(file, shm, PART))?;
        forget(dir)?;
        let places = files
            .iter()
            .map(|file| shm.join(file.file_name().unwrap_or_default()));
        let mut places: Vec<PathBuf> = places.collect();
        // The buffer last: a process that sees it sees all.
        places.sort_by_key(|place| place == buffer);
        for place in places {
            fs::rename(with_end(&place, PART), &place)
                .with_context(|| format!("cannot make {}", place.display()))?;
        }
    }
    forget(dir)
}

/// Removes what is kept in the results `dir`.
///
/// # Errors
/// It cannot be removed.
pub fn forget(dir: &Path) -> Result<()> {
    let (memory, part) = (dir.join(MEMORY), dir.join(MEMORY.to_owned() + PART));
    remove(&part)?;
    if memory.exists() {
        // In one step: half of it is nothing to go on with.
        fs::rename(&memory, &part)
            .with_context(|| format!("cannot remove {}", memory.display()))?;
        sync_folder(dir);
        remove(&part)?;
    }
    Ok(())
}

fn room_for(files: &[PathBuf], memory: &Path) -> Result<()> {
    let lengths = files
        .iter()
        .map(|file| fs::metadata(file).map(|data| data.len()));
    let needed: u64 = lengths
        .sum::<Result<u64, _>>()
        .with_context(|| format!("cannot read {}", memory.display()))?;
    let free = free_in(Path::new(SHM)).unwrap_or(u64::MAX);
    let mb = |bytes: u64| bytes.div_ceil(1_000_000);
    ensure!(
        needed <= free,
        "{SHM} has {} MB free, but what this node remembers needs {} MB ({}). Make room (`dogwild clean` lists what \
         jobs have left)",
        mb(free),
        mb(needed),
        memory.display()
    );
    Ok(())
}

/// Copies a file into a folder, under its name and `end`, and puts it on the disk.
fn copy(file: &Path, folder: &Path, end: &str) -> Result<()> {
    let to = with_end(&folder.join(file.file_name().unwrap_or_default()), end);
    fs::copy(file, &to)
        .and_then(|_| File::open(&to)?.sync_all())
        .with_context(|| format!("cannot copy {} to {}", file.display(), to.display()))
}

fn with_end(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

fn files_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}

fn remove(folder: &Path) -> Result<()> {
    match folder.exists() {
        true => fs::remove_dir_all(folder)
            .with_context(|| format!("cannot remove {}", folder.display())),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A buffer's name under /dev/shm that no other test has.
    fn name(what: &str) -> PathBuf {
        let name = format!("dogwild-train-memory-{what}-{}", std::process::id());
        Path::new(SHM).join(name)
    }

    #[test]
    fn it_is_taken_back_once() {
        let dir = tempfile::tempdir().expect("a folder");
        let buffer = name("once");
        let state = with_end(&buffer, ".stream");
        fs::write(&buffer, "weights").expect("written");
        fs::write(&state, "state").expect("written");
        keep(&[buffer.clone(), state.clone()], dir.path()).expect("kept");
        fs::remove_file(&buffer).expect("removed");
        fs::remove_file(&state).expect("removed");
        assert!(has_memory(dir.path(), &buffer));
        take_back(dir.path(), &buffer).expect("back");
        let back = [&buffer, &state].map(|file| fs::read_to_string(file).expect("there"));
        assert_eq!(back, ["weights", "state"]);
        assert!(!has_memory(dir.path(), &buffer));
        fs::remove_file(&buffer).expect("removed");
        fs::remove_file(&state).expect("removed");
        take_back(dir.path(), &buffer).expect("nothing to do");
        assert!(!buffer.exists(), "it came back twice");
    }

    #[test]
    fn what_is_in_memory_is_newer_and_another_jobs_is_no_memory() {
        let dir = tempfile::tempdir().expect("a folder");
        let buffer = name("newer");
        fs::write(&buffer, "old").expect("written");
        keep(std::slice::from_ref(&buffer), dir.path()).expect("kept");
        assert!(!has_memory(dir.path(), &name("other")));
        fs::write(&buffer, "new").expect("written");
        take_back(dir.path(), &buffer).expect("nothing to do");
        let there = fs::read_to_string(&buffer).expect("there");
        fs::remove_file(&buffer).expect("removed");
        assert_eq!(there, "new");
        assert!(!has_memory(dir.path(), &buffer));
    }

    #[test]
    fn what_cannot_be_kept_whole_is_not_kept() {
        let dir = tempfile::tempdir().expect("a folder");
        let buffer = name("part");
        fs::write(&buffer, "weights").expect("written");
        let gone = with_end(&buffer, ".gone");
        let error = keep(&[buffer.clone(), gone], dir.path()).expect_err("a file is gone");
        fs::remove_file(&buffer).expect("removed");
        assert!(error.to_string().contains(".gone"), "{error}");
        assert_eq!(fs::read_dir(dir.path()).expect("a folder").count(), 0);
    }
}

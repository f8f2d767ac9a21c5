//! A job of `dogwild train`, by the process number of its launcher: its components, its files under
//! /dev/shm, and how far it is.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dogwild::weights::SharedWeights;

use super::process::processes;

/// Each job keeps all cores busy: one at a time.
pub(crate) fn one_job() -> MutexGuard<'static, ()> {
    static ONE_JOB: Mutex<()> = Mutex::new(());
    // A test that failed while it held the lock says nothing about the next one.
    ONE_JOB.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The buffer of a node, or of a worker.
pub(crate) fn buffer(job: u32, node: u32) -> PathBuf {
    format!("/dev/shm/dogwild-train-{job}-n{node}").into()
}

/// All files that the job has under /dev/shm.
pub(crate) fn files(job: u32) -> Vec<PathBuf> {
    let start = format!("dogwild-train-{job}-");
    let all = std::fs::read_dir("/dev/shm").expect("/dev/shm").flatten();
    all.filter(|entry| entry.file_name().to_string_lossy().starts_with(&start))
        .map(|entry| entry.path())
        .collect()
}

/// Removes the files of a job when the test ends: what it leaves on purpose, or by a failure.
pub(crate) struct Files(pub(crate) u32);

impl Drop for Files {
    fn drop(&mut self) {
        for file in files(self.0) {
            let _ = std::fs::remove_file(file);
        }
    }
}

/// Process numbers of the job's components of one kind.
pub(crate) fn components(job: u32, kind: &str) -> Vec<u32> {
    let buffer = format!("dogwild-train-{job}-");
    let ours = |words: &[String]| {
        words.get(1).is_some_and(|word| word == kind)
            && words.iter().any(|word| word.contains(&buffer))
    };
    let found = processes().into_iter().filter(|(_, words)| ours(words));
    found.map(|(pid, _)| pid).collect()
}

/// Iterations that the solvers on this buffer have made; 0 where there is no buffer yet.
pub(crate) fn iterations(buffer: &Path) -> u64 {
    let watched = SharedWeights::watch(buffer);
    watched.map_or(0, |shared| shared.globals().local_iterations.load(Relaxed))
}

//! Folders in shared memory.

use tempfile::TempDir;

/// A folder under /dev/shm, removed with the test.
pub(crate) fn shm_folder() -> TempDir {
    tempfile::tempdir_in("/dev/shm").expect("a folder under /dev/shm")
}

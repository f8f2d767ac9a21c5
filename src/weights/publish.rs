//! Making a file that others see only when it is whole, and finding one that is there.
//!
//! A file is built without a name (`O_TMPFILE`): its memory is reserved and its header written.
//! Only then is it linked under its name, which fails if that name is taken. So creation is free of
//! races, no process sees half a header, and a killed creator leaves nothing behind. Each process
//! that has the file open holds a shared whole-file lock (flock): the one that gets it exclusively
//! knows that no other uses the file. The kernel drops it on any death.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why a file could not be made.
pub(super) enum MakeError {
    NoSpace { needed: u64, free: u64 },
    Io(io::Error),
}

impl From<io::Error> for MakeError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// A file under construction. Dropped before `publish`, it vanishes.
pub(super) struct Unpublished {
    file: Option<File>,
    path: PathBuf,
    /// Its name meanwhile, where files without a name are not possible.
    temporary: Option<PathBuf>,
}

impl Unpublished {
    /// An empty file (mode 0600) that will be called `path`.
    pub(super) fn new(path: &Path) -> io::Result<Self> {
        let dir = path
            .parent()
            .filter(|d| !d.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        let name = path.file_name().ok_or(ErrorKind::InvalidFilename)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(0o600);
        #[cfg(target_os = "linux")]
        if let Ok(file) = options.clone().custom_flags(libc::O_TMPFILE).open(dir) {
            return Ok(Self {
                file: Some(file),
                path: path.into(),
                temporary: None,
            });
        }
        let temporary = dir.join(format!(
            ".{}.{}.new",
            name.to_string_lossy(),
            std::process::id()
        ));
        let file = options.create_new(true).open(&temporary)?;
        Ok(Self {
            file: Some(file),
            path: path.into(),
            temporary: Some(temporary),
        })
    }

    /// Sets the length and reserves the memory of `ranges`, so that a full file system is
    /// an error here and never a SIGBUS later. The rest stays a hole.
    pub(super) fn reserve(&self, len: u64, ranges: &[Range<u64>]) -> Result<(), MakeError> {
        let file = self.file();
        let needed: u64 = ranges.iter().map(|r| r.end - r.start).sum();
        let free = free_bytes(file)?;
        // Ask first: filling a file system to the brim before failing would hurt others.
        if needed > free {
            return Err(MakeError::NoSpace { needed, free });
        }
        file.set_len(len)?;
        for range in ranges {
            match allocate(file, range) {
                Err(e) if matches!(e.kind(), ErrorKind::StorageFull | ErrorKind::OutOfMemory) => {
                    return Err(MakeError::NoSpace {
                        needed,
                        free: free_bytes(file)?,
                    });
                }
                other => other?,
            }
        }
        Ok(())
    }

    /// The open file, to be written before `publish`.
    pub(super) fn file(&self) -> &File {
        self.file
            .as_ref()
            .expect("taken only by publish, which consumes self")
    }

    /// Gives the file its name. `None`: that name is taken (and the file is gone).
    pub(super) fn publish(mut self) -> io::Result<Option<File>> {
        // Linking, not renaming: it fails if the name is taken, so of two creators one gets the
        // name and the other learns of it. A rename would replace a buffer in use.
        let linked = match &self.temporary {
            Some(temporary) => std::fs::hard_link(temporary, &self.path),
            None => link_unnamed(self.file(), &self.path),
        };
        match linked {
            Ok(()) => Ok(self.file.take()),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(None),
            Err(e) => Err(e),
        }
    }
}

impl Drop for Unpublished {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            let _ = std::fs::remove_file(temporary);
        }
    }
}

/// linkat(2) of a file without a name needs no privilege when it goes through /proc.
fn link_unnamed(file: &File, path: &Path) -> io::Result<()> {
    use std::os::unix::ffi::OsStrExt;
    let from = std::ffi::CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    let to = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: both are zero-terminated strings that outlive the call.
    let linked = unsafe {
        libc::linkat(
            libc::AT_FDCWD,
            from.as_ptr(),
            libc::AT_FDCWD,
            to.as_ptr(),
            libc::AT_SYMLINK_FOLLOW,
        )
    };
    if linked == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// posix_fallocate(3), again after a signal.
fn allocate(file: &File, range: &Range<u64>) -> io::Result<()> {
    let offset = libc::off_t::try_from(range.start).map_err(|_| ErrorKind::FileTooLarge)?;
    let len =
        libc::off_t::try_from(range.end - range.start).map_err(|_| ErrorKind::FileTooLarge)?;
    loop {
        // SAFETY: the descriptor is open; the call touches no memory of ours.
        match unsafe { libc::posix_fallocate(file.as_raw_fd(), offset, len) } {
            0 => return Ok(()),
            libc::EINTR => {}
            code => return Err(io::Error::from_raw_os_error(code)),
        }
    }
}

/// Bytes that an ordinary user may still allocate on the file system of `folder`.
///
/// # Errors
/// The folder cannot be opened or asked.
pub fn free_in(folder: &Path) -> io::Result<u64> {
    free_bytes(&File::open(folder)?)
}

/// Bytes that an ordinary user may still allocate on the file system of `file`.
fn free_bytes(file: &File) -> io::Result<u64> {
    // SAFETY: all-zero is a valid `statvfs` to be overwritten.
    let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open and `stat` is writable.
    if unsafe { libc::fstatvfs(file.as_raw_fd(), &mut stat) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((stat.f_bavail as u64).saturating_mul(stat.f_frsize as u64))
}

/// Opens a regular file for reading and writing, following no symbolic link and waiting for no
/// FIFO. `Err(None)`: there is none. `Err(Some(why))` of kind `InvalidInput`: it is not a regular
/// file.
pub(super) fn open_regular(path: &Path) -> Result<File, Option<io::Error>> {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let not_regular = |what: &str| Some(io::Error::new(ErrorKind::InvalidInput, what));
    let file = options.open(path).map_err(|e| match e.kind() {
        ErrorKind::NotFound => None,
        ErrorKind::IsADirectory => not_regular("a directory"),
        _ if e.raw_os_error() == Some(libc::ELOOP) => not_regular("a symbolic link"),
        _ => Some(e),
    })?;
    if !file.metadata().map_err(Some)?.is_file() {
        return Err(not_regular("not a regular file"));
    }
    Ok(file)
}

/// The exclusive lock on a file; false if another process uses it. Tries for a moment: a process
/// that was just killed, or forked, holds its locks a little longer.
pub(super) fn lock_exclusively(file: &File) -> io::Result<bool> {
    lock_exclusively_within(file, 100)
}

/// The same with so many tries, a millisecond apart.
pub(super) fn lock_exclusively_within(file: &File, tries: u32) -> io::Result<bool> {
    for _ in 0..tries {
        match file.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
            Err(TryLockError::Error(e)) => return Err(e),
        }
    }
    Ok(false)
}

/// True if `path` still leads to the file that is open.
pub(super) fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let ours = file.metadata()?;
    match std::fs::symlink_metadata(path) {
        Ok(there) => Ok(there.dev() == ours.dev() && there.ino() == ours.ino()),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

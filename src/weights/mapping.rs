//! A file mapped into memory, and checked ways into it.
//!
//! The only place that turns offsets into pointers: every access is checked against the length of
//! the mapping and the alignment of the type, so callers need no `unsafe`. A mapping never grows or
//! shrinks; if another program truncates the file afterwards, access ends in SIGBUS (files are 0600
//! for that reason).

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::Path;

use memmap2::{Advice, MmapOptions, MmapRaw};

use super::process::Process;
use super::publish::is_at;
use super::view::WeightsView;

/// Types that may lie in memory which other processes change at any time.
///
/// # Safety
/// Made of atomics (and unused padding) only, `repr(C)`, valid for any bits, without drop glue.
pub(super) unsafe trait Shared {}
// SAFETY: an atomic, valid for any bits.
unsafe impl Shared for std::sync::atomic::AtomicU8 {}
// SAFETY: an atomic, valid for any bits.
unsafe impl Shared for std::sync::atomic::AtomicU32 {}
// SAFETY: an atomic, valid for any bits.
unsafe impl Shared for std::sync::atomic::AtomicU64 {}

/// A shared mapping of a whole file, and the file (which carries its locks).
#[derive(Debug)]
pub(super) struct Mapping {
    map: MmapRaw,
    file: File,
    /// Who made it: a forked child has a copy of this, and the lock is its parent's.
    owner: Process,
}

impl Mapping {
    /// Maps the first `len` bytes; `hot` is the part that deserves huge pages.
    ///
    /// All pages are mapped at once, if the kernel can (Linux 5.14), so that the first pass
    /// over the weights does not run at the speed of page faults.
    pub(super) fn new(file: File, len: u64, hot: Range<usize>) -> io::Result<Self> {
        let len = usize::try_from(len).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let map = MmapOptions::new().len(len).map_raw(&file)?;
        // Both are advice: a kernel that takes neither works too, only slower.
        let _ = map.advise_range(Advice::HugePage, hot.start, hot.len());
        let _ = map.advise_range(Advice::PopulateWrite, hot.start, hot.len());
        Ok(Self {
            map,
            file,
            owner: Process::current(),
        })
    }

    /// The `n` items of type `T` at byte `offset`. Panics outside the mapping: offsets are
    /// computed and checked by the caller, never taken from a file.
    #[inline]
    pub(super) fn slice<T: Shared>(&self, offset: usize, n: usize) -> &[T] {
        let end = n
            .checked_mul(size_of::<T>())
            .and_then(|b| b.checked_add(offset));
        assert!(
            end.is_some_and(|e| e <= self.map.len()),
            "{offset}+{n} items outside the mapping"
        );
        let ptr = self.map.as_mut_ptr().wrapping_add(offset);
        assert!(
            ptr.addr().is_multiple_of(align_of::<T>()),
            "{offset} is not aligned"
        );
        // SAFETY: in bounds and aligned, as just checked; `T: Shared` is valid for any bits
        // and tolerates writers elsewhere; the mapping lives as long as `self`.
        unsafe { std::slice::from_raw_parts(ptr.cast::<T>(), n) }
    }

    /// The item of type `T` at byte `offset`. Panics as [`Mapping::slice`].
    #[inline]
    pub(super) fn at<T: Shared>(&self, offset: usize) -> &T {
        &self.slice(offset, 1)[0]
    }

    /// The `n` weights at byte `offset`. Panics as [`Mapping::slice`].
    #[inline]
    pub(super) fn weights(&self, offset: usize, n: usize) -> WeightsView<'_> {
        WeightsView::of(self.slice(offset, n))
    }

    /// Gives up the lock that its file carries.
    pub(super) fn unlock(&self) -> io::Result<()> {
        self.file.unlock()
    }

    /// Whether `path` leads to the file that is mapped.
    pub(super) fn is_at(&self, path: &Path) -> io::Result<bool> {
        is_at(&self.file, path)
    }

    /// Locks one byte of the file against other processes, until the guard is dropped or the
    /// process dies. Independent of the lock on the whole file. Threads that share this mapping are
    /// not kept apart: they need a mutex as well.
    pub(super) fn lock_byte(&self, offset: usize) -> io::Result<ByteLock<'_>> {
        byte_lock(&self.file, offset, libc::F_WRLCK as i16)?;
        Ok(ByteLock {
            file: &self.file,
            offset,
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if !self.owner.is_current() {
            return;
        }
        // Closing the file is not enough: a child that another thread has just forked holds a
        // copy of the descriptor until it becomes another program, and the lock with it.
        let _ = self.file.unlock();
    }
}

/// A lock on one byte of a file.
pub(super) struct ByteLock<'a> {
    file: &'a File,
    offset: usize,
}

impl Drop for ByteLock<'_> {
    fn drop(&mut self) {
        let _ = byte_lock(self.file, self.offset, libc::F_UNLCK as i16);
    }
}

/// Waits for the lock. Open-file-description locks where there are any (Linux): they
/// belong to the mapping, not to the process, so two mappings in one process exclude each other.
fn byte_lock(file: &File, offset: usize, kind: i16) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    const COMMAND: i32 = libc::F_OFD_SETLKW;
    #[cfg(not(target_os = "linux"))]
    const COMMAND: i32 = libc::F_SETLKW;
    // SAFETY: all-zero is a valid `flock` (F_OFD_SETLKW demands l_pid = 0).
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as _;
    lock.l_whence = libc::SEEK_SET as _;
    lock.l_start = offset as _;
    lock.l_len = 1;
    loop {
        // SAFETY: the descriptor is open and `lock` is a valid `struct flock`.
        if unsafe { libc::fcntl(file.as_raw_fd(), COMMAND, &lock) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

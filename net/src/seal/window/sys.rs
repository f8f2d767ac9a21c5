//! What `seal` asks of the system for its file: memory of its own, and a mapping.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use memmap2::MmapMut;

/// Makes `file` `bytes` long, reserves the memory of all of it, and maps it: a full file system is
/// an error here and never a SIGBUS at some later frame.
pub(super) fn map(file: &File, bytes: u64) -> io::Result<MmapMut> {
    file.set_len(bytes)?;
    allocate(file, bytes)?;
    // SAFETY: the caller holds the file's lock, which whoever uses it takes; it is as long as the
    // mapping. Whoever cuts it against the lock ends this process with SIGBUS: no memory of ours
    // is touched. Any content is a valid `[u8]`.
    unsafe { MmapMut::map_mut(file) }
}

/// posix_fallocate(3) of the first `bytes`, again after a signal. What is there stays.
fn allocate(file: &File, bytes: u64) -> io::Result<()> {
    let len = libc::off_t::try_from(bytes).map_err(|_| io::ErrorKind::FileTooLarge)?;
    loop {
        // SAFETY: the descriptor is open; the call touches no memory of ours.
        match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, len) } {
            0 => return Ok(()),
            libc::EINTR => {}
            code => return Err(io::Error::from_raw_os_error(code)),
        }
    }
}

/// Bytes that an ordinary user may still allocate on the file system of `file`.
pub(super) fn free_bytes(file: &File) -> io::Result<u64> {
    // SAFETY: all-zero is a valid `statvfs` to be overwritten.
    let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open and `stat` is writable.
    if unsafe { libc::fstatvfs(file.as_raw_fd(), &mut stat) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((stat.f_bavail as u64).saturating_mul(stat.f_frsize as u64))
}

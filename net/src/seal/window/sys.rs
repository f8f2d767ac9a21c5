//! The one mapping of a file that `seal` needs.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;

use memmap2::MmapMut;

/// Makes `file` `bytes` long and maps it.
pub(super) fn map(file: &File, bytes: u64) -> io::Result<MmapMut> {
    file.set_len(bytes)?;
    // SAFETY: the caller holds the file's lock, which whoever uses it takes; it is as long as the
    // mapping. Somebody who cuts it against the lock ends this process with SIGBUS: no memory of ours
    // is touched. Any content is a valid `[u8]`.
    unsafe { MmapMut::map_mut(file) }
}

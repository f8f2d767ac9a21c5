//! What the state files of a buffer have in common: a checked header, one live user.
//!
//! Touches the file it is given. Invariants as for the buffer: a file that has a name has a whole
//! header and reserved memory. Its user holds an exclusive lock, which the kernel drops when the
//! user dies.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::error::StateError;
use super::header::BYTE_ORDER;
use super::mapping::Mapping;
use super::publish::{MakeError, Unpublished, is_at, lock_exclusively, open_regular};

/// Version of the layout of state files and of their journal.
const STATE_VERSION: u32 = 7;
/// Numbers that describe the shape of a job.
const SHAPE: usize = 7;

/// The first bytes of a state file; all but the holder are written once.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct StateHead {
    magic: [u8; 8],
    byte_order: u32,
    version: u32,
    session: u64,
    fingerprint: u64,
    file_bytes: u64,
    /// The process that has the lock now or had it last; only for messages.
    holder_pid: u32,
    _reserved: u32,
    shape: [u64; SHAPE],
    identity: u64,
    /// Of everything above but the holder.
    checksum: u64,
}

impl StateHead {
    fn sum(&self) -> u64 {
        let constant = Self {
            holder_pid: 0,
            checksum: 0,
            ..self.clone()
        };
        xxh3_64(constant.as_bytes())
    }
}

/// Which buffer a state file belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferId {
    /// The session of the buffer.
    pub session: u64,
    /// The fingerprint of its model.
    pub fingerprint: u64,
    /// Its identity: another once it was made anew.
    pub identity: u64,
}

/// Bytes that the header may grow to; what lives begins here.
pub(super) const STATE_HEAD_BYTES: usize = 256;
const _: () = assert!(size_of::<StateHead>() <= STATE_HEAD_BYTES);

/// What a state file must be.
pub(super) struct StateFile<'a> {
    pub(super) magic: [u8; 8],
    pub(super) buffer: BufferId,
    /// Name and value of every number that must agree; at most seven.
    pub(super) shape: &'a [(&'static str, u64)],
    pub(super) file_bytes: u64,
}

impl StateFile<'_> {
    fn head(&self) -> StateHead {
        let mut shape = [0; SHAPE];
        for (to, from) in shape.iter_mut().zip(self.shape) {
            *to = from.1;
        }
        let mut head = StateHead {
            magic: self.magic,
            byte_order: BYTE_ORDER,
            version: STATE_VERSION,
            session: self.buffer.session,
            fingerprint: self.buffer.fingerprint,
            file_bytes: self.file_bytes,
            holder_pid: std::process::id(),
            _reserved: 0,
            shape,
            identity: self.buffer.identity,
            checksum: 0,
        };
        head.checksum = head.sum();
        head
    }

    /// Opens the file if it is there (`true`), or makes one of zeros (`false`).
    pub(super) fn open_or_create(&self, path: &Path) -> Result<(Mapping, bool), StateError> {
        let io = |source| StateError::Io {
            path: path.into(),
            source,
        };
        for _ in 0..1000 {
            let file = match open_regular(path) {
                Ok(file) => file,
                Err(None) => match self.make(path)? {
                    Some(file) => return Ok((self.map(file).map_err(io)?, false)),
                    None => continue,
                },
                Err(Some(e)) if e.kind() == ErrorKind::InvalidInput => {
                    return Err(StateError::NotOurs {
                        path: path.into(),
                        why: e.to_string(),
                    });
                }
                Err(Some(source)) => return Err(io(source)),
            };
            if !lock_exclusively(&file).map_err(io)? {
                return Err(StateError::InUse {
                    path: path.into(),
                    pid: holder(&file),
                });
            }
            if !is_at(&file, path).map_err(io)? {
                continue;
            }
            self.check(path, &file)?;
            let me = std::process::id().to_le_bytes();
            file.write_all_at(&me, offset_of!(StateHead, holder_pid) as u64)
                .map_err(io)?;
            return Ok((self.map(file).map_err(io)?, true));
        }
        Err(io(io::Error::other(
            "other processes keep creating and removing it",
        )))
    }

    /// Opens a file that is there, for reading only: the process that holds its lock goes on.
    pub(super) fn look(&self, path: &Path) -> Result<Mapping, StateError> {
        let io = |source| StateError::Io {
            path: path.into(),
            source,
        };
        let file = open_regular(path).map_err(|e| io(e.unwrap_or(ErrorKind::NotFound.into())))?;
        self.check(path, &file)?;
        self.map(file).map_err(io)
    }

    /// The numbers that a state file of this buffer says of itself.
    pub(super) fn shape_of(
        path: &Path,
        magic: [u8; 8],
        buffer: BufferId,
    ) -> Result<[u64; SHAPE], StateError> {
        let io = |source| StateError::Io {
            path: path.into(),
            source,
        };
        let file = open_regular(path).map_err(|e| io(e.unwrap_or(ErrorKind::NotFound.into())))?;
        let any = StateFile {
            magic,
            buffer,
            shape: &[],
            file_bytes: 0,
        };
        any.read_head(path, &file).map(|head| head.shape)
    }

    fn map(&self, file: File) -> io::Result<Mapping> {
        Mapping::new(file, self.file_bytes, 0..self.file_bytes as usize)
    }

    fn make(&self, path: &Path) -> Result<Option<File>, StateError> {
        let io = |source| StateError::Io {
            path: path.into(),
            source,
        };
        let new = Unpublished::new(path).map_err(io)?;
        let everything = 0..self.file_bytes;
        new.reserve(self.file_bytes, std::slice::from_ref(&everything))
            .map_err(|e| match e {
                MakeError::NoSpace { needed, free } => StateError::NoSpace {
                    path: path.into(),
                    needed,
                    free,
                },
                MakeError::Io(source) => io(source),
            })?;
        new.file()
            .write_all_at(self.head().as_bytes(), 0)
            .map_err(io)?;
        new.file().lock().map_err(io)?;
        new.publish().map_err(io)
    }

    fn check(&self, path: &Path, file: &File) -> Result<(), StateError> {
        let io = |source| StateError::Io {
            path: path.into(),
            source,
        };
        let head = self.read_head(path, file)?;
        self.check_shape(path, &head)?;
        let has = file.metadata().map_err(io)?.len();
        if has != self.file_bytes || head.file_bytes != self.file_bytes {
            return Err(StateError::Truncated {
                path: path.into(),
                has,
                needs: self.file_bytes,
            });
        }
        Ok(())
    }

    /// The header of a file that is ours and whole, and belongs to the buffer.
    fn read_head(&self, path: &Path, file: &File) -> Result<StateHead, StateError> {
        let io = |source| StateError::Io {
            path: path.into(),
            source,
        };
        let not_ours = |why: &str| StateError::NotOurs {
            path: path.into(),
            why: why.into(),
        };
        let has = file.metadata().map_err(io)?.len();
        if has < size_of::<StateHead>() as u64 {
            return Err(not_ours(if has == 0 {
                "it is empty"
            } else {
                "it is too small"
            }));
        }
        let mut bytes = [0; size_of::<StateHead>()];
        file.read_exact_at(&mut bytes, 0).map_err(io)?;
        let head = StateHead::read_from_bytes(&bytes).map_err(|_| not_ours("it is too small"))?;
        let expected = self.head();
        if head.magic != expected.magic {
            return Err(not_ours("it begins with other bytes"));
        }
        if head.byte_order != BYTE_ORDER {
            return Err(not_ours(
                "it was written on a machine of another byte order",
            ));
        }
        if head.version != STATE_VERSION {
            let (found, ours) = (head.version, STATE_VERSION);
            return Err(StateError::OtherVersion {
                path: path.into(),
                found,
                ours,
            });
        }
        if head.checksum != head.sum() {
            return Err(StateError::Damaged { path: path.into() });
        }
        self.check_job(path, &head)?;
        Ok(head)
    }

    /// Refuses the file of another job, or of a former buffer of this one.
    fn check_job(&self, path: &Path, head: &StateHead) -> Result<(), StateError> {
        let expected = self.head();
        let stale = |field, found, expected| StateError::Stale {
            path: path.into(),
            field,
            found,
            expected,
        };
        for (field, found, expected) in [
            ("session", head.session, expected.session),
            ("model", head.fingerprint, expected.fingerprint),
        ] {
            if found != expected {
                return Err(stale(field, found, expected));
            }
        }
        if head.identity != expected.identity {
            return Err(StateError::OtherBuffer {
                path: path.into(),
                buffer: path.with_extension(""),
            });
        }
        Ok(())
    }

    fn check_shape(&self, path: &Path, head: &StateHead) -> Result<(), StateError> {
        let expected = self.head();
        let shapes = self.shape.iter().zip(head.shape).zip(expected.shape);
        match shapes.into_iter().find(|((_, f), e)| f != e) {
            Some(((shape, found), expected)) => Err(StateError::Stale {
                path: path.into(),
                field: shape.0,
                found,
                expected,
            }),
            None => Ok(()),
        }
    }
}

pub(super) fn holder(file: &File) -> u32 {
    let mut pid = [0; 4];
    let _ = file.read_exact_at(&mut pid, offset_of!(StateHead, holder_pid) as u64);
    u32::from_le_bytes(pid)
}

/// The name of a state file of the buffer `path`.
pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// The state files of the buffer `path` that are there, in order of their names.
pub(super) fn files_beside(path: &Path) -> io::Result<Vec<PathBuf>> {
    let dir = path
        .parent()
        .filter(|d| !d.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let Some(name) = path.file_name().and_then(|n| n.to_str()) else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let there = entry.file_name();
        let suffix = there.to_str().and_then(|f| f.strip_prefix(name));
        if suffix.is_some_and(is_state) && entry.file_type()?.is_file() {
            found.push(path.with_file_name(there));
        }
    }
    found.sort();
    Ok(found)
}

/// Whether the name of a state file ends like that. `.seal` is not one: it belongs to a key.
fn is_state(suffix: &str) -> bool {
    let number = |k: &str| !k.is_empty() && k.bytes().all(|b| b.is_ascii_digit());
    let gpu = |k: &str| {
        let k = k.strip_suffix(".new").unwrap_or(k);
        number(k.strip_suffix(".ipc").unwrap_or(k))
    };
    [".stream", ".forks"].contains(&suffix)
        || suffix.strip_prefix(".solver").is_some_and(number)
        || suffix.strip_prefix(".gpu").is_some_and(gpu)
}

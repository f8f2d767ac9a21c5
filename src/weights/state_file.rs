//! What the files beside the buffer have in common: a checked header, one live user.
//!
//! Touches the file it is given. Invariants as for the buffer: a file that has a name has
//! a whole header and reserved memory; its user holds an exclusive lock, which the kernel
//! drops when the user dies.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::error::StateError;
use super::header::BYTE_ORDER;
use super::mapping::Mapping;
use super::publish::{MakeError, Unpublished, is_at, lock_exclusively, open_regular};

/// Version of the layout of state files and of their journal.
const STATE_VERSION: u32 = 1;
/// Numbers that describe the shape of a job.
const SHAPE: usize = 6;

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
    /// Who has the lock now or had it last; only for messages.
    holder_pid: u32,
    _spare: u32,
    shape: [u64; SHAPE],
}

/// Bytes that the header may grow to; what lives begins here.
pub(super) const STATE_HEAD_BYTES: usize = 256;
const _: () = assert!(size_of::<StateHead>() <= STATE_HEAD_BYTES);

/// What a state file must be.
pub(super) struct StateFile<'a> {
    pub(super) magic: [u8; 8],
    pub(super) session: u64,
    pub(super) fingerprint: u64,
    /// Name and value of every number that must agree; at most six.
    pub(super) shape: &'a [(&'static str, u64)],
    pub(super) file_bytes: u64,
}

impl StateFile<'_> {
    fn head(&self) -> StateHead {
        let mut shape = [0; SHAPE];
        for (to, from) in shape.iter_mut().zip(self.shape) {
            *to = from.1;
        }
        StateHead {
            magic: self.magic,
            byte_order: BYTE_ORDER,
            version: STATE_VERSION,
            session: self.session,
            fingerprint: self.fingerprint,
            file_bytes: self.file_bytes,
            holder_pid: std::process::id(),
            _spare: 0,
            shape,
        }
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
        let names = self.shape.iter().map(|s| s.0);
        let shapes = names
            .zip(head.shape)
            .zip(expected.shape)
            .map(|((n, f), e)| (n, f, e));
        let ids = [
            ("session", head.session, expected.session),
            ("model", head.fingerprint, expected.fingerprint),
        ];
        for (field, found, expected) in ids.into_iter().chain(shapes) {
            if found != expected {
                return Err(StateError::Stale {
                    path: path.into(),
                    field,
                    found,
                    expected,
                });
            }
        }
        if has != self.file_bytes || head.file_bytes != self.file_bytes {
            return Err(StateError::Truncated {
                path: path.into(),
                has,
                needs: self.file_bytes,
            });
        }
        Ok(())
    }
}

fn holder(file: &File) -> u32 {
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

/// Removes the state files of the buffer `path`: without it they mean nothing.
pub(super) fn remove_beside(path: &Path) -> io::Result<()> {
    let dir = path
        .parent()
        .filter(|d| !d.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let Some(name) = path.file_name().and_then(|n| n.to_str()) else {
        return Ok(());
    };
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let found = entry.file_name();
        let suffix = found.to_str().and_then(|f| f.strip_prefix(name));
        let is_state = suffix.is_some_and(|s| {
            let number = |k: &str| !k.is_empty() && k.bytes().all(|b| b.is_ascii_digit());
            let gpu = s.strip_prefix(".gpu");
            s == ".stream"
                || s.strip_prefix(".solver").is_some_and(number)
                || gpu.is_some_and(|k| number(k.strip_suffix(".ipc").unwrap_or(k)))
        });
        if is_state && entry.file_type()?.is_file() {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

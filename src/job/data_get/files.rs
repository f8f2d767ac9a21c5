//! Files of a data set: what is there, what is on its way, and putting it in its place.
//!
//! Touches the folder of the set. Nothing that an archive says of paths, owners or links is
//! followed: only files of known names are taken out of it, into that folder.

use std::fs::{self, File, TryLockError};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use sha2::{Digest, Sha256};

use super::mirror::Fault;
use super::set::{Download, Held, Packed};
use super::{DataGetError, write};

/// Bytes that are read at once.
const BLOCK_BYTES: usize = 1 << 16;

/// What a file turned out to hold.
pub(super) enum Contents {
    Right,
    /// In words, with what was expected.
    Wrong(String),
}

/// Whether all that `download` holds is in the folder already.
///
/// # Errors
/// Something of its name is there and is another file, or cannot be read.
pub(super) fn is_there(folder: &Path, download: &Download) -> Result<bool, DataGetError> {
    let mut whole = true;
    for held in &download.holds {
        let plain = folder.join(&held.name);
        let gzipped = folder.join(format!("{}.gz", held.name));
        let path = match download.packed {
            _ if plain.exists() => plain,
            Packed::Gzip if gzipped.exists() => gzipped,
            _ => {
                whole = false;
                continue;
            }
        };
        let read = |source| DataGetError::Read {
            path: path.clone(),
            source,
        };
        let file = File::open(&path).map_err(read)?;
        let contents = match path.extension().is_some_and(|end| end == "gz") {
            true => compare(held, MultiGzDecoder::new(BufReader::new(file)), None),
            false => compare(held, file, None),
        };
        if let Contents::Wrong(found) = contents.map_err(read)? {
            return Err(DataGetError::Foreign { path, found });
        }
    }
    Ok(whole)
}

/// Reads all of `from`, copies it to `to`, and compares it with what it should be.
///
/// # Errors
/// The system cannot read or write. A damaged archive is [`Contents::Wrong`].
fn compare(held: &Held, mut from: impl Read, mut to: Option<&mut File>) -> io::Result<Contents> {
    let mut sum = Sha256::new();
    let mut block = vec![0; BLOCK_BYTES];
    let mut count = 0;
    loop {
        let len = match from.read(&mut block) {
            Ok(0) => break,
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            // A decoder's own errors have no number of the system's.
            Err(error) if error.raw_os_error().is_none() => {
                return Ok(Contents::Wrong(format!("{}: {error}", held.name)));
            }
            Err(error) => return Err(error),
        };
        count += len as u64;
        if count > held.bytes {
            // It may go on for ever: a few bytes are packed into many.
            let (name, bytes) = (&held.name, held.bytes);
            return Ok(Contents::Wrong(format!(
                "{name} has more than {bytes} bytes"
            )));
        }
        sum.update(&block[..len]);
        if let Some(to) = &mut to {
            to.write_all(&block[..len])?;
        }
    }
    let found: String = sum.finalize().iter().map(|b| format!("{b:02x}")).collect();
    if count == held.bytes && found == held.sha256 {
        return Ok(Contents::Right);
    }
    Ok(Contents::Wrong(format!(
        "{} has {count} bytes and SHA-256 {found}, expected are {} bytes and {}",
        held.name, held.bytes, held.sha256
    )))
}

/// A download that is not whole yet, or not looked at: `NAME.part`. Nothing else writes it while
/// this is there.
pub(super) struct Part {
    path: PathBuf,
    file: File,
    len: u64,
}

impl Part {
    /// Goes on with the one that is there, or begins.
    ///
    /// # Errors
    /// It cannot be written, or another process does.
    pub(super) fn open(folder: &Path, name: &str) -> Result<Self, DataGetError> {
        let path = folder.join(format!("{name}.part"));
        let mut options = File::options();
        options.create(true).truncate(false).read(true).write(true);
        let mut file = options.open(&path).map_err(write(&path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(DataGetError::Busy { path }),
            Err(TryLockError::Error(source)) => return Err(DataGetError::Write { path, source }),
        }
        let len = file.seek(SeekFrom::End(0)).map_err(write(&path))?;
        Ok(Self { path, file, len })
    }

    /// Bytes that are there.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<(), DataGetError> {
        // What was written before an error is not counted, and is written again.
        self.file
            .seek(SeekFrom::Start(self.len))
            .and_then(|_| self.file.write_all(bytes))
            .map_err(write(&self.path))?;
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Begins anew.
    pub(super) fn clear(&mut self) -> Result<(), DataGetError> {
        self.len = 0;
        self.file.set_len(0).map_err(write(&self.path))
    }

    /// Leaves no trace of a download that never began.
    pub(super) fn remove_if_empty(self) {
        if self.len == 0 {
            // It is empty, and harmless where it cannot be removed.
            let _ = fs::remove_file(&self.path);
        }
    }

    /// Puts what it holds in its place, if it is right. After that this is at its end.
    ///
    /// # Errors
    /// The folder takes no files.
    pub(super) fn put(&mut self, folder: &Path, download: &Download) -> Result<Contents, Fault> {
        self.file
            .set_len(self.len)
            .and_then(|()| self.file.rewind())
            .map_err(write(&self.path))?;
        let unpacked = MultiGzDecoder::new(BufReader::new(&self.file));
        match (download.packed, download.holds.as_slice()) {
            (Packed::Gzip, [held]) => {
                let contents = compare(held, unpacked, None).map_err(write(&self.path))?;
                if let Contents::Right = contents {
                    self.file.sync_all().map_err(write(&self.path))?;
                    let place = folder.join(&download.file);
                    fs::rename(&self.path, &place).map_err(write(&place))?;
                }
                Ok(contents)
            }
            _ => {
                let mut unpack = Unpack {
                    folder,
                    ready: Vec::new(),
                };
                let contents = unpack.all(&download.holds, unpacked)?;
                if let Contents::Right = contents {
                    unpack.put()?;
                    fs::remove_file(&self.path).map_err(write(&self.path))?;
                }
                Ok(contents)
            }
        }
    }
}

/// Files of an archive next to their places; those that did not come there are removed.
struct Unpack<'f> {
    folder: &'f Path,
    ready: Vec<(PathBuf, PathBuf)>,
}

impl Unpack<'_> {
    fn all(&mut self, holds: &[Held], archive: impl Read) -> Result<Contents, DataGetError> {
        let mut missing: Vec<&Held> = holds.iter().collect();
        let damaged = |error| Ok(Contents::Wrong(format!("the archive is damaged: {error}")));
        let mut archive = tar::Archive::new(archive);
        let entries = match archive.entries() {
            Ok(entries) => entries,
            Err(error) => return damaged(error),
        };
        for entry in entries {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => return damaged(error),
            };
            let name = entry.path_bytes().into_owned();
            let name = name.rsplit(|b| *b == b'/').next().unwrap_or_default();
            let known = |held: &&Held| held.name.as_bytes() == name;
            let is_file = entry.header().entry_type().is_file();
            let Some(at) = missing.iter().position(known).filter(|_| is_file) else {
                continue;
            };
            let held = missing.swap_remove(at);
            if let Contents::Wrong(found) = self.one(held, entry)? {
                return Ok(Contents::Wrong(found));
            }
        }
        Ok(match missing.first() {
            None => Contents::Right,
            Some(held) => Contents::Wrong(format!("{} is not in the archive", held.name)),
        })
    }

    fn one(&mut self, held: &Held, entry: impl Read) -> Result<Contents, DataGetError> {
        let place = self.folder.join(&held.name);
        let path = self.folder.join(format!("{}.part", held.name));
        let mut file = File::create(&path).map_err(write(&path))?;
        self.ready.push((path.clone(), place));
        let contents = compare(held, entry, Some(&mut file)).map_err(write(&path))?;
        file.sync_all().map_err(write(&path))?;
        Ok(contents)
    }

    fn put(&mut self) -> Result<(), DataGetError> {
        for (path, place) in self.ready.drain(..) {
            fs::rename(&path, &place).map_err(write(&place))?;
        }
        Ok(())
    }
}

impl Drop for Unpack<'_> {
    fn drop(&mut self) {
        for (path, _) in &self.ready {
            // A later run writes over it.
            let _ = fs::remove_file(path);
        }
    }
}

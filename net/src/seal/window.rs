//! Which frames of which link have been taken: a sliding window for each (RFC 6479).
//!
//! Memory of this process, or a file that its next life goes on with. Invariants: a number is taken at
//! most once; there are at most [`LINKS_MAX`] windows of 2 KiB; a window is never given to another
//! link. A process may be killed between any two stores: bits are cleared before the top that makes
//! them count, and a link is counted last.

mod sys;

use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use memmap2::MmapMut;
use zerocopy::FromBytes;

use super::Key;

/// Frames of one link that may come out of order. A receiver sees only some of the numbers of a
/// link: those of frames to other nodes are missing.
pub const WINDOW_FRAMES: u64 = 16_384 - 64;

/// Links that are remembered, those that are gone included: a node takes one each time it starts.
pub const LINKS_MAX: usize = 4096;

/// Words of 64 numbers in a window.
const BITS: usize = 256;
/// Link, top, bits.
const WINDOW: usize = 2 + BITS;
/// Magic, mark of the key, number of links; a cache line.
const HEADER: usize = 8;
const MAGIC: u64 = u64::from_le_bytes(*b"dogseal2");
const MAP_BYTES: usize = (HEADER + LINKS_MAX * WINDOW) * 8;

/// Why the memory of taken frames could not be had.
#[derive(Debug, thiserror::Error)]
pub enum ReplaysError {
    /// The file cannot be made, opened or mapped.
    #[error("cannot use {}, which remembers the sealed frames that were taken: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// Another process has it.
    #[error("{} is in use: another process receives sealed frames for this node; stop it first", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
}

/// The windows of all links heard so far.
pub struct Replays {
    map: MmapMut,
    /// Holds the lock.
    _file: Option<File>,
    /// Apart from the windows: looking for a link is one pass over this.
    links: Vec<u64>,
    /// Where the last frame's link stands.
    last: usize,
}

impl fmt::Debug for Replays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replays")
            .field("links", &self.links.len())
            .finish_non_exhaustive()
    }
}

impl Replays {
    /// Forgets with the process: whoever starts again can be given recorded frames once more.
    ///
    /// # Errors
    /// No memory.
    pub fn in_memory() -> io::Result<Self> {
        // Pages that no link has come to are never touched.
        Ok(Self::of(MmapMut::map_anon(MAP_BYTES)?, None))
    }

    /// Remembers in a file (sparse, 8 MB at most), of which a process that was killed has lost
    /// nothing. What was remembered under another key is forgotten: nobody can repeat it.
    ///
    /// # Errors
    /// See [`ReplaysError`].
    pub fn in_file(path: &Path, key: &Key) -> Result<Self, ReplaysError> {
        let failed = |error| ReplaysError::File {
            path: path.to_owned(),
            error,
        };
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(ReplaysError::InUse {
                    path: path.to_owned(),
                });
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        let mark = key.mac().mark();
        let mut map = sys::map(&file, MAP_BYTES as u64).map_err(failed)?;
        if words(&mut map)[..2] != [MAGIC, mark] {
            // Not ours, or of another key: all zeros again, the holes included.
            drop(map);
            file.set_len(0).map_err(failed)?;
            map = sys::map(&file, MAP_BYTES as u64).map_err(failed)?;
            words(&mut map)[1] = mark;
            words(&mut map)[0] = MAGIC;
        }
        Ok(Self::of(map, Some(file)))
    }

    fn of(mut map: MmapMut, file: Option<File>) -> Self {
        let words = words(&mut map);
        let count = (words[2] as usize).min(LINKS_MAX);
        let windows = words[HEADER..].chunks_exact(WINDOW);
        let links = windows.take(count).map(|window| window[0]).collect();
        Replays {
            map,
            _file: file,
            links,
            last: 0,
        }
    }

    /// Takes a frame: whether it is new; `None` if its link is one more than are remembered.
    pub(super) fn take(&mut self, link: u64, number: u64) -> Option<bool> {
        if self.links.get(self.last) != Some(&link) {
            // From the back: links that are gone are in front.
            self.last = match self.links.iter().rposition(|known| *known == link) {
                Some(at) => at,
                None if self.links.len() < LINKS_MAX => self.add(link),
                None => return None,
            };
        }
        let at = HEADER + self.last * WINDOW;
        Some(take(&mut words(&mut self.map)[at..at + WINDOW], number))
    }

    fn add(&mut self, link: u64) -> usize {
        let at = self.links.len();
        self.links.push(link);
        let words = words(&mut self.map);
        words[HEADER + at * WINDOW] = link;
        words[2] = at as u64 + 1;
        at
    }
}

fn words(map: &mut MmapMut) -> &mut [u64] {
    // A mapping is aligned to a page, and ours is a whole number of words.
    <[u64]>::mut_from_bytes(map).unwrap_or_default()
}

/// Takes a number; false if it was taken, or is too old to tell.
fn take(window: &mut [u64], number: u64) -> bool {
    let [_, top, bits @ ..] = window else {
        return false;
    };
    if number == 0 || number + WINDOW_FRAMES <= *top {
        return false;
    }
    if number > *top {
        // Words between the old top and the new one belong to numbers that have not come yet.
        let (old, new) = (*top / 64, number / 64);
        for word in (old + 1..=new).take(BITS) {
            bits[word as usize % BITS] = 0;
        }
        // More than the whole ring ahead: all of it was cleared above, whatever the order.
        *top = number;
    }
    let word = &mut bits[(number / 64) as usize % BITS];
    let bit = 1 << (number % 64);
    let fresh = *word & bit == 0;
    *word |= bit;
    fresh
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a set that remembers everything.
        #[test]
        fn a_window_agrees_with_a_set(
            steps in proptest::collection::vec((0u8..8, 0u64..40_000), 1..400)
        ) {
            let (mut window, mut seen, mut top) = ([0; WINDOW], HashSet::new(), 0u64);
            for (kind, by) in steps {
                let number = match kind {
                    0 => top + by,
                    1 => top.saturating_sub(by % 64),
                    2 => top.saturating_sub(by),
                    3 => top + 64 * 256,
                    4 => (top + WINDOW_FRAMES).saturating_sub(2 * WINDOW_FRAMES) + by % 3,
                    _ => top + by % 130,
                };
                let old = number == 0 || number + WINDOW_FRAMES <= top;
                prop_assert_eq!(take(&mut window, number), !old && !seen.contains(&number), "{} after {}", number, top);
                if !old {
                    seen.insert(number);
                    top = top.max(number);
                }
            }
        }
    }

    #[test]
    fn the_edge_of_the_window() {
        let mut window = [0; WINDOW];
        assert!(take(&mut window, 100_000));
        assert!(!take(&mut window, 100_000));
        assert!(!take(&mut window, 100_000 - WINDOW_FRAMES));
        assert!(take(&mut window, 100_000 - WINDOW_FRAMES + 1));
        assert!(!take(&mut window, 0));
    }

    #[test]
    fn links_do_not_disturb_each_other_and_are_bounded() {
        let mut windows = Replays::in_memory().expect("memory");
        for link in 0..LINKS_MAX as u64 {
            assert_eq!(windows.take(link, 7), Some(true));
        }
        assert_eq!(windows.take(u64::MAX, 7), None);
        for link in 0..LINKS_MAX as u64 {
            assert_eq!(windows.take(link, 7), Some(false));
            assert_eq!(windows.take(link, 6), Some(true));
        }
    }

    #[test]
    fn a_file_outlives_the_process_but_not_the_key() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("job-n0.seal");
        let open = |key: u8| Replays::in_file(&path, &Key::new(&[key; 32]));
        let mut first = open(1).expect("a new file");
        assert_eq!(
            (first.take(7, 100), first.take(9, 5)),
            (Some(true), Some(true))
        );
        let error = open(1).expect_err("in use").to_string();
        assert!(
            error.contains("job-n0.seal") && error.contains("stop"),
            "{error}"
        );
        drop(first);
        let mut again = open(1).expect("the same file");
        assert_eq!(
            (again.take(7, 100), again.take(9, 5)),
            (Some(false), Some(false))
        );
        assert_eq!(
            (again.take(7, 99), again.take(9, 6)),
            (Some(true), Some(true))
        );
        drop(again);
        let mut other = open(2).expect("the same file");
        assert_eq!(other.take(7, 100), Some(true));
        drop(other);
        std::fs::write(&path, vec![0x5A; 100_000]).expect("write");
        let mut mended = open(2).expect("what is no such file is replaced");
        assert_eq!(
            (mended.take(7, 100), mended.take(7, 100)),
            (Some(true), Some(false))
        );
        let error = Replays::in_file(Path::new("/nowhere/n0.seal"), &Key::new(&[1; 32]));
        assert!(error.is_err_and(|error| error.to_string().contains("/nowhere/n0.seal")));
    }
}

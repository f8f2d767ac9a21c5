//! Which frames of which link have been taken: a sliding window for each (RFC 6479).
//!
//! Memory of this process, or a file that the next process of this node continues with. Invariants:
//! a number is taken at most once; there are at most [`LINKS_MAX`] windows of 2 KiB. A window goes
//! to another link only after the link that had it was *closed*: closed links are remembered by
//! number, and nothing of them is taken again. A process may be killed between any two stores: the
//! top rises before bits below it are cleared, so new numbers may be refused then, and none is
//! taken again. A link is counted last, and closed before its window is cleared.

use std::collections::HashSet;
use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{Ordering::SeqCst, compiler_fence};
use std::time::{Duration, Instant};

use memmap2::MmapMut;
use zerocopy::FromBytes;

use super::key::Key;

/// Frames of one link that may come out of order. A receiver sees only some of the numbers of a
/// link: those of frames to other nodes are missing.
pub const WINDOW_FRAMES: u64 = 16_384 - 64;

/// Links that have a window, those that are gone included: a node takes one each time it starts.
pub const LINKS_MAX: usize = 4096;

/// Links that gave up their window and are remembered as closed.
pub const CLOSED_MAX: usize = 65_536;

/// What happens when all of these were used, and what to do.
pub const TOO_MANY_LINKS: &str = "more links were opened under this key than a node remembers, so newcomers are \
     refused: give all nodes a new key file and start their streamers again. Do not remove the .seal files \
     while the key is in use: frames recorded earlier could then be taken once more";

/// A new link gets no window of another one before this process has listened for so long: links
/// that live have sent something by then, and keep theirs.
const LISTEN_FIRST: Duration = Duration::from_secs(10);

/// Words of 64 numbers in a window.
const BITS: usize = 256;
/// Link, top, bits.
const WINDOW: usize = 2 + BITS;
/// Magic, id of the key, number of links, number of closed links; a cache line.
const HEADER: usize = 8;
/// Where the closed links begin.
const CLOSED: usize = HEADER + LINKS_MAX * WINDOW;
const MAGIC: u64 = u64::from_le_bytes(*b"dogseal2");
const MAP_BYTES: usize = (CLOSED + CLOSED_MAX) * 8;

/// What [`ReplayWindows`] take: of memory, or of the file system of their file, which is reserved
/// whole. Bytes.
pub const REPLAY_WINDOWS_BYTES: u64 = MAP_BYTES as u64;

/// Why the memory of taken frames could not be had.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The file cannot be made, opened or mapped.
    #[error("cannot use {}, which remembers the sealed frames that were taken: {error}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// Not enough memory on the file system.
    #[error("{}, which remembers the sealed frames that were taken, needs {} KiB, {} KiB are free there; remove old buffers, or enlarge the file system (mount -o remount,size=...)", path.display(), needed.div_ceil(1024), free / 1024)]
    NoSpace {
        /// Path of the file.
        path: PathBuf,
        /// Bytes needed.
        needed: u64,
        /// Bytes free.
        free: u64,
    },
    /// Another process has it.
    #[error("{} is in use: another process receives sealed frames for this node; stop it first", path.display())]
    InUse {
        /// Path of the file.
        path: PathBuf,
    },
}

/// The windows of all links that frames have come from.
pub struct ReplayWindows {
    map: MmapMut,
    /// Holds the lock.
    _file: Option<File>,
    /// Apart from the windows: looking for a link is one pass over this.
    links: Vec<u64>,
    /// Index of the last frame's link.
    last: usize,
    /// When each link last sent something, counted in changes from one link to another in this
    /// process; 0: not yet.
    heard: Vec<u64>,
    turn: u64,
    /// Links of which nothing is taken any more.
    closed: HashSet<u64>,
    /// From when on windows may be given to others.
    gives_from: Instant,
}

impl fmt::Debug for ReplayWindows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplayWindows")
            .field("links", &self.links.len())
            .field("closed", &self.closed.len())
            .finish_non_exhaustive()
    }
}

impl ReplayWindows {
    /// Forgets with the process: recorded frames can be given to the next one once more.
    ///
    /// # Errors
    /// No memory.
    pub fn in_memory() -> io::Result<Self> {
        // Pages that no link has come to are never touched.
        Ok(Self::of(MmapMut::map_anon(MAP_BYTES)?, None))
    }

    /// Remembers in a file ([`REPLAY_WINDOWS_BYTES`], reserved here), of which a process that was
    /// killed has lost nothing. What was remembered under another key is forgotten: it cannot be
    /// repeated.
    ///
    /// # Errors
    /// See [`ReplayError`].
    pub fn in_file(path: &Path, key: &Key) -> Result<Self, ReplayError> {
        let failed = |error| ReplayError::File {
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
                return Err(ReplayError::InUse {
                    path: path.to_owned(),
                });
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        let key_id = key.mac().key_id();
        let mut map = map_file(path, &file)?;
        if words(&mut map)[..2] != [MAGIC, key_id] {
            // Not ours, or of another key: all zeros again.
            drop(map);
            file.set_len(0).map_err(failed)?;
            map = map_file(path, &file)?;
            words(&mut map)[1] = key_id;
            words(&mut map)[0] = MAGIC;
        }
        let windows = Self::of(map, Some(file));
        if let Some(warning) = windows.warning() {
            log::warn!("{}: {warning}", path.display());
        }
        Ok(windows)
    }

    fn of(mut map: MmapMut, file: Option<File>) -> Self {
        let words = words(&mut map);
        let count = (words[2] as usize).min(LINKS_MAX);
        let closed = (words[3] as usize).min(CLOSED_MAX);
        let windows = words[HEADER..CLOSED].chunks_exact(WINDOW);
        let links: Vec<u64> = windows.take(count).map(|window| window[0]).collect();
        ReplayWindows {
            closed: words[CLOSED..][..closed].iter().copied().collect(),
            heard: vec![0; links.len()],
            turn: 0,
            map,
            _file: file,
            links,
            // None yet: the first frame's link is looked for, among the closed ones too.
            last: usize::MAX,
            gives_from: Instant::now() + LISTEN_FIRST,
        }
    }

    /// Links that are remembered under this key, and how many can be: with a window or closed.
    #[must_use]
    pub fn links(&self) -> (usize, usize) {
        let known = self.links.len() + self.closed.len();
        (known, LINKS_MAX + CLOSED_MAX)
    }

    /// What to log if new links are refused, or soon will be.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        let (known, most) = self.links();
        match known {
            _ if known >= most => Some(format!("{known} links: {TOO_MANY_LINKS}")),
            _ if known >= most / 10 * 9 => Some(format!(
                "{known} of {most} links that can be remembered under one key are used up: give all nodes a \
                 new key file before the last is, and start their streamers again"
            )),
            _ => None,
        }
    }

    /// Takes a frame: whether it is new; `None` if its link is one more than are remembered.
    pub(super) fn take(&mut self, link: u64, number: u64) -> Option<bool> {
        if self.links.get(self.last) != Some(&link) {
            if self.closed.contains(&link) {
                return Some(false);
            }
            // From the back: links that are gone are at the front.
            self.last = match self.links.iter().rposition(|known| *known == link) {
                Some(at) => at,
                None if self.links.len() < LINKS_MAX => self.add(link),
                None => self.replace(link)?,
            };
            self.turn += 1;
            self.heard[self.last] = self.turn;
        }
        let at = HEADER + self.last * WINDOW;
        Some(take(&mut words(&mut self.map)[at..at + WINDOW], number))
    }

    fn add(&mut self, link: u64) -> usize {
        let at = self.links.len();
        self.links.push(link);
        self.heard.push(0);
        let words = words(&mut self.map);
        words[HEADER + at * WINDOW] = link;
        words[2] = at as u64 + 1;
        at
    }

    /// Closes the link that was silent for longest, and gives its window to another. `None` if no
    /// more closed ones can be remembered, or it is too early to tell which links live.
    fn replace(&mut self, link: u64) -> Option<usize> {
        let count = words(&mut self.map)[3] as usize;
        if count >= CLOSED_MAX || Instant::now() < self.gives_from {
            return None;
        }
        // The last frame's link may have sent many frames since the last change: it is the newest.
        if let Some(heard) = self.heard.get_mut(self.last) {
            *heard = self.turn + 1;
        }
        // Of those that were silent since this process began, the one that has had its window
        // longest.
        let age = |at: usize| (at + LINKS_MAX - count % LINKS_MAX) % LINKS_MAX;
        let at = (0..LINKS_MAX).min_by_key(|&at| (self.heard[at], age(at)))?;
        let words = words(&mut self.map);
        // The order matters, as this process may be killed between any two steps. The old link is
        // closed before its window is cleared, so its frames are refused from then on. The window
        // is cleared before it has its new name. No link ever has a cleared window while its
        // earlier frames could still be taken.
        words[CLOSED + count] = self.links[at];
        compiler_fence(SeqCst);
        words[3] = count as u64 + 1;
        compiler_fence(SeqCst);
        let window = &mut words[HEADER + at * WINDOW..][..WINDOW];
        window[1..].fill(0);
        compiler_fence(SeqCst);
        window[0] = link;
        self.closed.insert(self.links[at]);
        self.links[at] = link;
        Some(at)
    }
}

/// Maps the file, all of it reserved.
fn map_file(path: &Path, file: &File) -> Result<MmapMut, ReplayError> {
    let was = file.metadata().map_or(0, |meta| meta.len());
    reserve_and_map(file, MAP_BYTES as u64).map_err(|error| {
        let _ = file.set_len(was);
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::OutOfMemory => ReplayError::NoSpace {
                path: path.to_owned(),
                needed: MAP_BYTES as u64,
                free: free_bytes(file).unwrap_or(0),
            },
            _ => ReplayError::File {
                path: path.to_owned(),
                error,
            },
        }
    })
}

/// Makes `file` `bytes` long, reserves the memory of all of it, and maps it: a full file system is
/// an error here and never a SIGBUS at some later frame.
#[allow(unsafe_code)]
fn reserve_and_map(file: &File, bytes: u64) -> io::Result<MmapMut> {
    file.set_len(bytes)?;
    allocate(file, bytes)?;
    // SAFETY: the caller holds the file's lock, which every user of it takes; it is as long as the
    // mapping. Cutting it against the lock ends this process with SIGBUS: no memory of ours
    // is touched. Any content is a valid `[u8]`.
    unsafe { MmapMut::map_mut(file) }
}

/// posix_fallocate(3) of the first `bytes`, again after a signal. What is there stays.
#[allow(unsafe_code)]
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
#[allow(unsafe_code)]
fn free_bytes(file: &File) -> io::Result<u64> {
    // SAFETY: all-zero is a valid `statvfs` to be overwritten.
    let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open and `stat` is writable.
    if unsafe { libc::fstatvfs(file.as_raw_fd(), &mut stat) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((stat.f_bavail as u64).saturating_mul(stat.f_frsize as u64))
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
        let (old, new) = (*top / 64, number / 64);
        // The first of the words that are cleared may hold numbers inside the old window: with the
        // old top and without their bits, a kill here would have them taken again.
        *top = number;
        compiler_fence(SeqCst);
        clear(bits, old, new);
        compiler_fence(SeqCst);
    }
    let word = &mut bits[(number / 64) as usize % BITS];
    let bit = 1 << (number % 64);
    let fresh = *word & bit == 0;
    *word |= bit;
    fresh
}

/// Clears the words above that of the old top up to that of the new one: of numbers that have not
/// come yet.
fn clear(bits: &mut [u64], old: u64, new: u64) {
    for word in (old + 1..=new).take(BITS) {
        bits[word as usize % BITS] = 0;
    }
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

    /// A file as a kill leaves it: after the top rose, before all words were cleared.
    #[test]
    fn nothing_is_taken_again_after_a_kill() {
        let mut window = [0; WINDOW];
        let first = 100_010;
        for number in (first - WINDOW_FRAMES + 1..=first).rev() {
            assert!(take(&mut window, number));
        }
        for ahead in [1, 63, 64, 1000, WINDOW_FRAMES, 3 * WINDOW_FRAMES] {
            let new = first + ahead;
            let words = (new / 64 - first / 64).min(BITS as u64);
            for cleared in [0, words.min(1), words / 2, words] {
                let mut window = window;
                window[1] = new;
                clear(&mut window[2..], first / 64, first / 64 + cleared);
                for number in first - WINDOW_FRAMES..=first {
                    assert!(!take(&mut window, number), "{number} of {first}, {new}");
                }
            }
        }
    }

    /// Opens a file that this process has closed. A child that another test forks holds its lock
    /// until it has become its program.
    fn open_again(path: &Path, key: u8) -> ReplayWindows {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            match ReplayWindows::in_file(path, &Key::new(&[key; 32])) {
                Err(ReplayError::InUse { .. }) if Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                opened => return opened.expect("the file"),
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
        let mut windows = ReplayWindows::in_memory().expect("memory");
        windows.gives_from = Instant::now() + Duration::from_secs(1000);
        for link in 0..LINKS_MAX as u64 {
            assert_eq!(windows.take(link, 7), Some(true));
        }
        assert_eq!(windows.take(u64::MAX, 7), None);
        for link in 0..LINKS_MAX as u64 {
            assert_eq!(windows.take(link, 7), Some(false));
            assert_eq!(windows.take(link, 6), Some(true));
        }
    }

    /// What was taken once is never taken again, whatever links came since; links that send keep
    /// their windows.
    #[test]
    fn newcomers_get_the_windows_of_links_that_are_gone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("job-n0.seal");
        let open = || {
            let mut windows = open_again(&path, 1);
            windows.gives_from = Instant::now();
            windows
        };
        let mut windows = open();
        let (full, alive) = (LINKS_MAX as u64, 5);
        for link in 1..=full {
            assert_eq!(windows.take(link, 7), Some(true), "{link}");
        }
        assert_eq!(
            (windows.take(alive, 8), windows.take(full + 1, 7)),
            (Some(true), Some(true))
        );
        // The oldest gave way, and nothing of it is taken any more, new numbers included.
        assert_eq!(
            (windows.take(1, 7), windows.take(1, 8)),
            (Some(false), Some(false))
        );
        assert_eq!(windows.links(), (LINKS_MAX + 1, LINKS_MAX + CLOSED_MAX));
        drop(windows);
        let mut windows = open();
        for link in full + 2..=2 * full + 50 {
            assert_eq!(windows.take(alive, link), Some(true), "{link}");
            assert_eq!(windows.take(link, 7), Some(true), "{link}");
        }
        for _ in 0..2 {
            for link in (1..=2 * full + 50).filter(|&link| link != alive) {
                assert_eq!(windows.take(link, 7), Some(false), "{link}");
            }
            drop(windows);
            windows = open();
        }
        assert_eq!(windows.take(alive, 3 * full), Some(true));
        assert!(windows.warning().is_none());
    }

    #[test]
    fn a_process_killed_while_it_closes_a_link_takes_nothing_twice() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("job-n0.seal");
        let open = || open_again(&path, 1);
        let mut windows = open();
        for link in 1..=LINKS_MAX as u64 {
            windows.take(link, 7);
        }
        // Closed and half cleared; the newcomer does not have the window yet.
        let words = words(&mut windows.map);
        (words[CLOSED], words[3]) = (1, 1);
        words[HEADER + 1..HEADER + WINDOW / 2].fill(0);
        drop(windows);
        let mut windows = open();
        assert_eq!(
            (windows.take(1, 7), windows.take(2, 7)),
            (Some(false), Some(false))
        );
        windows.gives_from = Instant::now();
        assert_eq!(windows.take(u64::MAX, 7), Some(true));
        assert_eq!(
            (windows.take(1, 7), windows.take(2, 7)),
            (Some(false), Some(false))
        );
    }

    #[test]
    fn running_out_of_links_is_told_before_and_then() {
        let mut windows = ReplayWindows::in_memory().expect("memory");
        windows.gives_from = Instant::now();
        for link in 1..=LINKS_MAX as u64 {
            windows.take(link, 7);
        }
        let nearly = CLOSED_MAX - 1000;
        windows.closed = (0..nearly as u64).map(|link| link + 1_000_000).collect();
        let warning = windows.warning().expect("nearly full");
        assert!(warning.contains("new key file"), "{warning}");
        words(&mut windows.map)[3] = CLOSED_MAX as u64;
        windows.closed = (0..CLOSED_MAX as u64)
            .map(|link| link + 1_000_000)
            .collect();
        assert_eq!(windows.take(u64::MAX, 7), None);
        let warning = windows.warning().expect("full");
        for part in ["refused", "new key file", "Do not remove"] {
            assert!(warning.contains(part), "{warning}");
        }
    }

    /// Runs in a file system of 4 MB, in a mount namespace.
    #[test]
    fn full_child() {
        let Some(folder) = std::env::var_os(CHILD) else {
            return;
        };
        let path = Path::new(&folder).join("job-n0.seal");
        let error = ReplayWindows::in_file(&path, &Key::new(&[1; 32])).expect_err("too small");
        let message = error.to_string();
        assert!(matches!(error, ReplayError::NoSpace { .. }), "{message}");
        let needs = format!("needs {} KiB", MAP_BYTES.div_ceil(1024));
        for part in ["job-n0.seal", &needs, "4096 KiB are free", "enlarge"] {
            assert!(message.contains(part), "{message} lacks {part}");
        }
        println!("full file system refused");
    }

    const CHILD: &str = "DOGWILD_TEST_SEAL_CHILD";

    #[test]
    fn a_full_file_system_is_an_error_and_no_sigbus() {
        use std::process::Command;
        let folder = tempfile::tempdir().expect("a folder");
        let script = format!(
            "mount -t tmpfs -o size=4m tmpfs {0} && {CHILD}=\"{0}\" exec \"$0\" \"$@\"",
            folder.path().display()
        );
        let run = |flags: &str, script: &str, rest: &[&str]| {
            let mut command = Command::new("unshare");
            command.args([flags, "sh", "-c", script]).args(rest);
            command.output()
        };
        let works = |flags: &&&str| {
            run(flags, "mount -t tmpfs tmpfs /mnt", &[]).is_ok_and(|o| o.status.success())
        };
        let Some(flags) = ["-m", "-Urm"].iter().find(works) else {
            return dogwild_lab::skip::skip("no mount namespace: a full file system (run as root)");
        };
        let exe = std::env::current_exe().expect("tests run from a file");
        let (_crate, name) = concat!(module_path!(), "::full_child")
            .split_once("::")
            .expect("a path");
        let exe = exe.to_str().expect("text");
        let output = run(flags, &script, &[exe, "--exact", name, "--nocapture"]).expect("unshare");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && said.contains("full file system refused"),
            "{:?} {said}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }

    #[test]
    fn a_file_outlives_the_process_but_not_the_key() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("job-n0.seal");
        let open = |key: u8| ReplayWindows::in_file(&path, &Key::new(&[key; 32]));
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
        let mut again = open_again(&path, 1);
        assert_eq!(
            (again.take(7, 100), again.take(9, 5)),
            (Some(false), Some(false))
        );
        assert_eq!(
            (again.take(7, 99), again.take(9, 6)),
            (Some(true), Some(true))
        );
        drop(again);
        let mut other = open_again(&path, 2);
        assert_eq!(other.take(7, 100), Some(true));
        drop(other);
        std::fs::write(&path, vec![0x5A; 100_000]).expect("write");
        let mut replaced = open_again(&path, 2);
        assert_eq!(
            (replaced.take(7, 100), replaced.take(7, 100)),
            (Some(true), Some(false))
        );
        let error = ReplayWindows::in_file(Path::new("/nowhere/n0.seal"), &Key::new(&[1; 32]));
        assert!(error.is_err_and(|error| error.to_string().contains("/nowhere/n0.seal")));
    }
}

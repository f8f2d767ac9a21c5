//! The labs that `dogwild-lab up` left running: one small file each.
//!
//! Touches $XDG_RUNTIME_DIR/dogwild-lab, or /tmp/dogwild-lab-UID where that is not set. A file
//! names processes by number and start time, so that a number used again is not mistaken for a lab.
//! A file whose holder has ended is removed by the first process that sees it.

use anyhow::{Context, Result, bail, ensure};
use dogwild_lab::sys;
use std::collections::HashSet;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A process, told from others that had or will have its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// Start time in clock ticks since boot.
    start: u64,
}

impl Process {
    /// Process `pid` as it is now.
    pub(crate) fn of(pid: u32) -> Result<Process> {
        let path = format!("/proc/{pid}/stat");
        let stat = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        // The second field, a name in parentheses, may hold anything; proc(5) numbers from 1.
        let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let mut fields = fields.split_whitespace();
        let zombie = matches!(fields.next(), Some("Z" | "X"));
        let start = fields.nth(18).and_then(|field| field.parse().ok());
        ensure!(!zombie, "process {pid} has ended");
        Ok(Process {
            pid,
            start: start.with_context(|| format!("{path} lacks field 22"))?,
        })
    }

    fn lives(self) -> bool {
        Process::of(self.pid).is_ok_and(|now| now == self)
    }
}

/// One lab.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) owner: Process,
    pub(crate) hosts: Vec<Process>,
}

impl Entry {
    fn emit(&self) -> String {
        let line = |process: &Process| format!("{} {}\n", process.pid, process.start);
        std::iter::once(&self.owner)
            .chain(&self.hosts)
            .map(line)
            .collect()
    }

    fn parse(name: &str, text: &str) -> Option<Entry> {
        let mut processes = text.lines().map(|line| {
            let (pid, start) = line.split_once(' ')?;
            Some(Process {
                pid: pid.parse().ok()?,
                start: start.parse().ok()?,
            })
        });
        let owner = processes.next()??;
        let hosts = processes.collect::<Option<Vec<_>>>()?;
        Some(Entry {
            name: name.to_owned(),
            owner,
            hosts,
        })
    }

    /// Ends the lab and all that runs in it; returns when all are gone.
    pub(crate) fn end(&self) -> Result<()> {
        let net = |pid: u32| format!("/proc/{pid}/ns/net");
        // While they are held no other namespace gets their numbers.
        let _held: Vec<_> = self
            .hosts
            .iter()
            .filter_map(|host| fs::File::open(net(host.pid)).ok())
            .collect();
        let link = |pid: u32| fs::read_link(net(pid)).ok();
        let namespaces: HashSet<_> = self
            .hosts
            .iter()
            .filter_map(|host| link(host.pid))
            .collect();
        let inside = || -> Result<Vec<Process>> {
            Ok(fs::read_dir("/proc")
                .context("cannot list processes")?
                .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
                .filter(|&pid| link(pid).is_some_and(|link| namespaces.contains(&link)))
                .filter_map(|pid| Process::of(pid).ok())
                .collect())
        };
        sys::end(self.owner.pid, false)
            .with_context(|| format!("cannot end process {}", self.owner.pid))?;
        let asked = Instant::now();
        let mut force = false;
        loop {
            // Looked at again each time: a process may just have been forked.
            let mut left = inside()?;
            left.push(self.owner);
            left.retain(|process| process.lives());
            if left.is_empty() {
                return Ok(());
            }
            for process in left {
                // An error means that it ended by itself just now.
                let _ = sys::end(process.pid, force);
            }
            std::thread::sleep(Duration::from_millis(10));
            // A shell at its prompt does not heed the first signal.
            force = asked.elapsed() > Duration::from_millis(500);
        }
    }
}

/// The folder with a file per lab.
pub(crate) struct Registry {
    folder: PathBuf,
}

impl Registry {
    /// Opens this user's folder; makes it if need be.
    pub(crate) fn open() -> Result<Registry> {
        let user = sys::effective_user();
        let folder = match std::env::var_os("XDG_RUNTIME_DIR") {
            Some(dir) if !dir.is_empty() => PathBuf::from(dir).join("dogwild-lab"),
            _ => PathBuf::from(format!("/tmp/dogwild-lab-{user}")),
        };
        let made = fs::DirBuilder::new().mode(0o700).create(&folder);
        if let Err(e) = made
            && e.kind() != ErrorKind::AlreadyExists
        {
            return Err(e).with_context(|| format!("cannot make {}", folder.display()));
        }
        let found = fs::symlink_metadata(&folder)
            .with_context(|| format!("cannot read {}", folder.display()))?;
        ensure!(
            found.is_dir() && found.uid() == user && found.mode() & 0o022 == 0,
            "{} is not a folder that only user {user} can write: remove it, or set \
             XDG_RUNTIME_DIR to a folder of yours",
            folder.display()
        );
        Ok(Registry { folder })
    }

    /// Refuses a name that cannot be one, or that a running lab has.
    pub(crate) fn check_free(&self, name: &str) -> Result<()> {
        let usual = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        ensure!(
            !name.is_empty() && !name.starts_with('.') && name.chars().all(usual),
            "a lab's name has letters, digits, `-`, `_` and `.`, and does not begin with `.`: \
             {name:?}"
        );
        if let Some(lab) = self.read(name)? {
            bail!(
                "lab {name} is up already (process {}): `dogwild-lab down {name}`, or give the \
                 new one another --name",
                lab.owner.pid
            );
        }
        Ok(())
    }

    /// Adds a lab, unless another of its name was quicker.
    pub(crate) fn add(&self, entry: &Entry) -> Result<()> {
        self.check_free(&entry.name)?;
        let path = self.folder.join(&entry.name);
        let draft = self.folder.join(format!(".{}", entry.owner.pid));
        fs::write(&draft, entry.emit())
            .with_context(|| format!("cannot write {}", draft.display()))?;
        // Readers see a whole file or none; a name is taken once.
        let linked = fs::hard_link(&draft, &path);
        let _ = fs::remove_file(&draft);
        linked.with_context(|| format!("cannot take the name {}", entry.name))
    }

    /// The running lab `name`.
    pub(crate) fn find(&self, name: &str) -> Result<Entry> {
        match self.read(name)? {
            Some(lab) => Ok(lab),
            None => {
                let names: Vec<_> = self.list()?.into_iter().map(|lab| lab.name).collect();
                match names.as_slice() {
                    [] => bail!(
                        "no lab {name} is up, nor any other: `dogwild-lab up 2 --name {name}`"
                    ),
                    names => bail!("no lab {name} is up, but: {}", names.join(", ")),
                }
            }
        }
    }

    /// All running labs, by name.
    pub(crate) fn list(&self) -> Result<Vec<Entry>> {
        let mut names = Vec::new();
        for file in fs::read_dir(&self.folder).context("cannot list labs")? {
            let name = file.context("cannot list labs")?.file_name();
            names.extend(
                name.to_str()
                    .filter(|name| !name.starts_with('.'))
                    .map(str::to_owned),
            );
        }
        names.sort();
        let labs = names.iter().map(|name| self.read(name));
        labs.filter_map(Result::transpose).collect()
    }

    /// Forgets a lab.
    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        match fs::remove_file(self.folder.join(name)) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(e).context("cannot forget the lab"),
            _ => Ok(()),
        }
    }

    /// The lab of that name if it lives; a dead one's file is removed.
    fn read(&self, name: &str) -> Result<Option<Entry>> {
        let path = self.folder.join(name);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e).with_context(|| format!("cannot read {}", path.display())),
        };
        let lab = Entry::parse(name, &text).filter(|lab| lab.owner.lives());
        if lab.is_none() {
            self.remove(name)?;
        }
        Ok(lab)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_survives_writing_and_reading() {
        let entry = Entry {
            name: "x".into(),
            owner: Process { pid: 7, start: 1 },
            hosts: vec![
                Process { pid: 8, start: 2 },
                Process {
                    pid: 9,
                    start: u64::MAX,
                },
            ],
        };
        assert_eq!(Entry::parse("x", &entry.emit()), Some(entry));
        for broken in ["", "7", "7 x", "7 1\n8", "-1 1\n"] {
            assert_eq!(Entry::parse("x", broken), None, "{broken:?}");
        }
    }

    #[test]
    fn a_number_used_again_is_another_process() {
        let own = Process::of(std::process::id()).unwrap();
        assert!(own.lives());
        assert!(
            !Process {
                start: own.start + 1,
                ..own
            }
            .lives()
        );
    }
}

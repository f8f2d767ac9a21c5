//! Component processes of a job: start, watch, restart what died, stop in time.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::outcome::codes;
use super::restarts::{MOST, Restarts, WINDOW};
use crate::node::{LINE_EVERY_ENV, is_code_of_signal};

/// Time between two looks at components and counters.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Time that components have to end by themselves.
const GRACE: Duration = Duration::from_millis(700);

/// How to start a component, as often as needed.
pub(super) type Starter = Box<dyn Fn() -> Result<Command>>;

/// When a component ends without being asked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ends {
    /// When its work is done.
    WhenDone,
    /// Never: an end is a failure, however good.
    Never,
}

/// Why a component is not started again.
#[derive(Debug, thiserror::Error)]
pub(super) enum Gone {
    /// It has found that training diverged.
    #[error("{name} says:\n{words}")]
    Diverged {
        /// Which component.
        name: String,
        /// The end of its log.
        words: String,
    },
    /// It refuses, and would again.
    #[error("{name} ended with {status}; its last words:\n{words}")]
    Refused {
        /// Which component.
        name: String,
        /// How it ended.
        status: ExitStatus,
        /// The end of its log.
        words: String,
    },
    /// It dies again and again.
    #[error(
        "{name} ended with {status}, after {MOST} restarts in {} s; its last words:\n{words}",
        WINDOW.as_secs()
    )]
    TooOften {
        /// Which component.
        name: String,
        /// How it ended.
        status: ExitStatus,
        /// The end of its log.
        words: String,
    },
}

impl Gone {
    /// What to make of a component that ended with `status`; `None` if it was killed, or asked to
    /// end, and may be started again.
    pub(super) fn of(name: &str, status: ExitStatus, words: String) -> Option<Self> {
        let name = name.to_owned();
        match status.code() {
            None | Some(0) => None,
            Some(code) if is_code_of_signal(code) => None,
            Some(code) if code == i32::from(codes::DIVERGED) => {
                Some(Self::Diverged { name, words })
            }
            Some(_) => Some(Self::Refused {
                name,
                status,
                words,
            }),
        }
    }
}

/// One component process.
pub(super) struct Component {
    /// What it is, for messages: "node 0 streamer".
    pub(super) name: String,
    starter: Starter,
    log: PathBuf,
    child: Option<Child>,
    restart_at: Option<Instant>,
    restarts: Restarts,
    ends: Ends,
    done: bool,
}

impl Component {
    /// Starts a component whose messages go to the file `log`.
    pub(super) fn start(name: String, log: PathBuf, ends: Ends, starter: Starter) -> Result<Self> {
        let mut component = Self {
            name,
            starter,
            log,
            child: None,
            restart_at: None,
            restarts: Restarts::default(),
            ends,
            done: false,
        };
        component.spawn()?;
        Ok(component)
    }

    fn spawn(&mut self) -> Result<()> {
        let log = self
            .open_log()
            .with_context(|| format!("cannot write {}", self.log.display()))?;
        let child = (self.starter)()?
            .stdin(Stdio::null())
            // A line of rates once a minute: these logs go to files.
            .env(LINE_EVERY_ENV, "60")
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", self.name))?;
        self.child = Some(child);
        self.restart_at = None;
        Ok(())
    }

    fn open_log(&self) -> io::Result<File> {
        // The folder may have been removed since the job began.
        std::fs::create_dir_all(self.log.parent().unwrap_or(Path::new(".")))?;
        OpenOptions::new().create(true).append(true).open(&self.log)
    }

    /// True once it has ended well.
    pub(super) fn done(&self) -> bool {
        self.done
    }

    /// Sends its process a signal, if it runs.
    pub(super) fn signal(&self, send: fn(u32)) {
        if let Some(child) = &self.child {
            send(child.id());
        }
    }

    /// True while its process runs.
    pub(super) fn runs(&self) -> bool {
        self.child.is_some()
    }

    /// Whether its process runs now: one that has ended is noted.
    pub(super) fn still_runs(&mut self) -> bool {
        // What cannot be asked for is gone.
        let running = |child: &mut Child| matches!(child.try_wait(), Ok(None));
        self.child.as_mut().is_some_and(running)
    }

    /// Times it had to be started again.
    pub(super) fn restarts(&self) -> u32 {
        self.restarts.total()
    }

    /// Looks after it: notes a good end, restarts after a bad one. An error ([`Gone`]) if that is
    /// no use.
    pub(super) fn watch(&mut self) -> Result<()> {
        if let Some(child) = &mut self.child
            && let Some(status) = child.try_wait()?
        {
            self.child = None;
            self.done = status.success() && self.ends == Ends::WhenDone;
            if !self.done {
                self.died(status)?;
            }
        }
        if self.restart_at.is_some_and(|at| at <= Instant::now()) {
            self.spawn()?;
        }
        Ok(())
    }

    /// Notes an end and says how it was, if it was not a good one; restarts nothing.
    pub(super) fn failed(&mut self) -> Result<Option<ExitStatus>> {
        let Some(child) = &mut self.child else {
            return Ok(None);
        };
        let status = child.try_wait()?;
        if status.is_some() {
            self.child = None;
        }
        self.done |= status.is_some_and(|status| status.success());
        Ok(status.filter(|status| !status.success()))
    }

    fn died(&mut self, status: ExitStatus) -> Result<(), Gone> {
        // A refusal (wrong argument, missing file) stays what it is; a kill may not happen again.
        if let Some(gone) = Gone::of(&self.name, status, self.last_words()) {
            return Err(gone);
        }
        let now = Instant::now();
        let Some(pause) = self.restarts.another(now) else {
            return Err(Gone::TooOften {
                name: self.name.clone(),
                status,
                words: self.last_words(),
            });
        };
        self.restart_at = Some(now + pause);
        log::warn!(
            "{} ended with {status}; starting it again in {} ms{}",
            self.name,
            pause.as_millis(),
            reason(&self.last_words())
        );
        Ok(())
    }

    /// The end of its log.
    pub(super) fn last_words(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let tail = &lines[lines.len().saturating_sub(12)..];
        tail.iter().map(|line| format!("    {line}\n")).collect()
    }
}

/// What the end of a log says of why its program ended, behind what is said of that.
pub(super) fn reason(words: &str) -> String {
    let last = words.lines().next_back().unwrap_or_default().trim();
    let said = last.strip_prefix("dogwild: ");
    said.map_or(String::new(), |said| format!("; it said: {said}"))
}

/// Asks all to end, waits a moment, ends the rest by force. Takes well under a second.
pub(super) fn stop_all<'c>(components: impl Iterator<Item = &'c mut Component>) {
    let mut running: Vec<(&str, Child)> = components
        .filter_map(|component| {
            component.restart_at = None;
            component
                .child
                .take()
                .map(|child| (component.name.as_str(), child))
        })
        .collect();
    for (_, child) in &running {
        dogwild_lab::process::terminate(child.id());
        // One that stands still would not hear it.
        dogwild_lab::process::resume(child.id());
    }
    let end = Instant::now() + GRACE;
    while Instant::now() < end && !running.is_empty() {
        running.retain_mut(|(_, child)| matches!(child.try_wait(), Ok(None)));
        std::thread::sleep(Duration::from_millis(5));
    }
    for (name, child) in &mut running {
        log::warn!(
            "{name} did not end within {} ms and is killed",
            GRACE.as_millis()
        );
        let _ = child.kill();
        let _ = child.wait();
    }
}

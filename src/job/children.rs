//! Component processes of a job: start, watch, restart what died, stop in time.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Restarts of one component before the job gives up.
const MOST_RESTARTS: u32 = 5;
/// Pause before the first restart; it doubles with each.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// Time that components have to end by themselves.
const GRACE: Duration = Duration::from_millis(700);

/// How to start a component, as often as needed.
pub(super) type Starter = Box<dyn Fn() -> Command>;

/// One component process.
pub(super) struct Component {
    /// What it is, for messages: "node 0 streamer".
    pub(super) name: String,
    starter: Starter,
    log: PathBuf,
    child: Option<Child>,
    restart_at: Option<Instant>,
    /// Times it had to be started again.
    pub(super) restarts: u32,
    done: bool,
}

impl Component {
    /// Starts a component whose messages go to the file `log`.
    pub(super) fn start(name: String, log: PathBuf, starter: Starter) -> Result<Self> {
        let mut component = Self {
            name,
            starter,
            log,
            child: None,
            restart_at: None,
            restarts: 0,
            done: false,
        };
        component.spawn()?;
        Ok(component)
    }

    fn spawn(&mut self) -> Result<()> {
        let log = self
            .open_log()
            .with_context(|| format!("cannot write {}", self.log.display()))?;
        let child = (self.starter)()
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", self.name))?;
        self.child = Some(child);
        self.restart_at = None;
        Ok(())
    }

    fn open_log(&self) -> io::Result<File> {
        OpenOptions::new().create(true).append(true).open(&self.log)
    }

    /// True once it has ended well.
    pub(super) fn done(&self) -> bool {
        self.done
    }

    /// Looks after it: notes a good end, restarts after a bad one. An error if it keeps dying.
    pub(super) fn watch(&mut self) -> Result<()> {
        if let Some(child) = &mut self.child
            && let Some(status) = child.try_wait()?
        {
            self.child = None;
            self.done = status.success();
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

    fn died(&mut self, status: ExitStatus) -> Result<()> {
        // A refusal (wrong argument, missing file) will not mend by itself; a kill may.
        if status.code().is_some() || self.restarts == MOST_RESTARTS {
            bail!(
                "{} ended with {status}; its last words:\n{}",
                self.name,
                self.last_words()
            );
        }
        let pause = FIRST_PAUSE * 2u32.pow(self.restarts);
        self.restarts += 1;
        self.restart_at = Some(Instant::now() + pause);
        log::warn!(
            "{} ended with {status}; starting it again in {} ms",
            self.name,
            pause.as_millis()
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

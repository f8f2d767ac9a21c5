//! Processes that end with their test, signals, and what /proc knows of others.

use std::process::{Child, ChildStdout, Command, ExitStatus, Output};

/// A process that is killed when the test ends, however it ends.
pub(crate) struct Process(Option<Child>);

impl Process {
    /// Starts `command`, which is told to die with this thread too.
    #[track_caller]
    pub(crate) fn start(command: &mut Command) -> Self {
        dogwild_lab::process::die_with_parent(command);
        let child = command.spawn();
        Self(Some(child.unwrap_or_else(|e| panic!("{command:?}: {e}"))))
    }

    fn child(&mut self) -> &mut Child {
        self.0.as_mut().expect("only `output` takes it")
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.as_ref().expect("only `output` takes it").id()
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(name, &self.id().to_string());
    }

    /// How it ended, if it did.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child().try_wait().expect("a child")
    }

    /// The reading end of the pipe that it writes into.
    pub(crate) fn take_stdout(&mut self) -> ChildStdout {
        self.child().stdout.take().expect("a pipe")
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.child().wait().expect("it ends")
    }

    /// Kills it and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        let _ = self.child().kill();
        self.wait();
    }

    /// Waits for its end and returns what it wrote into its pipes.
    pub(crate) fn output(mut self) -> Output {
        let child = self.0.take().expect("only `output` takes it");
        child.wait_with_output().expect("it ends")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Sends a signal to a process (`123`) or a group (`-123`).
#[track_caller]
pub(crate) fn signal(name: &str, to: &str) {
    let sent = Command::new("kill").args(["-s", name, "--", to]).status();
    assert!(sent.is_ok_and(|sent| sent.success()), "{name} to {to}");
}

/// True until the process has ended; a zombie has.
pub(crate) fn alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// All processes that can be seen, with their words.
pub(crate) fn processes() -> Vec<(u32, Vec<String>)> {
    let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
    let words = entries.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let line = std::fs::read(entry.path().join("cmdline")).ok()?;
        let words = line.split(|byte| *byte == 0);
        let words = words.map(|word| String::from_utf8_lossy(word).into_owned());
        Some((pid, words.collect()))
    });
    words.collect()
}

/// The process that started `pid`; `None` if `pid` is gone or a zombie.
pub(crate) fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    let state = fields.next()?;
    (state != "Z").then(|| fields.next()?.parse().ok())?
}

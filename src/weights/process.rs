//! Who a process is, and whether it still lives.
//!
//! Reads `/proc` and asks the kernel with signal 0; never signals a process. A pid alone is reused
//! by the kernel, so a process is named by its pid and its start time.

/// One process on this host: pid and start time (clock ticks since boot; 0 if unknown).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: u32,
    pub(super) start: u64,
}

impl Process {
    /// The calling process.
    pub(super) fn current() -> Self {
        let pid = std::process::id();
        Self {
            pid,
            start: stat(pid).map_or(0, |s| s.1),
        }
    }

    /// True in the process itself, false in a child that it forked.
    pub(super) fn is_current(self) -> bool {
        // The number alone tells nearly all, and costs no look at /proc.
        self.pid == std::process::id() && self == Self::current()
    }

    /// True if it still runs. A zombie counts as dead: it will never touch memory again.
    pub(super) fn alive(self) -> bool {
        let Some(pid) = i32::try_from(self.pid).ok().filter(|&p| p > 0) else {
            return false;
        };
        match stat(self.pid) {
            Some((state, start)) => {
                !matches!(state, b'Z' | b'X') && (self.start == 0 || start == self.start)
            }
            // No /proc, or one that hides other users' processes: the kernel still answers.
            None => exists(pid),
        }
    }
}

fn exists(pid: i32) -> bool {
    // SAFETY: signal 0 sends nothing, it only checks; `pid` is positive, so it names one process.
    let sent = unsafe { libc::kill(pid, 0) } == 0;
    sent || std::io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
}

/// State letter and start time from `/proc/PID/stat` (proc(5), fields 3 and 22). The
/// command name in field 2 may hold spaces and parentheses: count from the last one.
fn stat(pid: u32) -> Option<(u8, u64)> {
    let text = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let after_name = &text[text.iter().rposition(|&b| b == b')')? + 1..];
    let mut fields = std::str::from_utf8(after_name)
        .ok()?
        .split_ascii_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    let start = fields.nth(18)?.parse().ok()?;
    Some((state, start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn tells_the_living_from_the_dead() {
        assert!(Process::current().alive());
        assert!(!Process { pid: 0, start: 0 }.alive());
        assert!(
            !Process {
                pid: u32::MAX,
                start: 0
            }
            .alive()
        );
        let reused = Process {
            start: Process::current().start + 1,
            ..Process::current()
        };
        assert!(!reused.alive(), "same pid, other start time");
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process {
            pid: child.id(),
            start: stat(child.id()).unwrap().1,
        };
        assert!(process.alive());
        child.kill().unwrap();
        // A zombie until it is waited for; poll, because the signal takes its time.
        while process.alive() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(!process.alive());
    }
}

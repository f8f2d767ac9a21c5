//! Processes that must not outlive the one that started them, for programs that start components.

use std::process::Command;

use crate::sys;

/// Lets `command` be killed when the thread that starts it ends, however that happens.
/// (`Lab::command` does so by itself.)
pub fn die_with_parent(command: &mut Command) {
    sys::die_with_parent(command);
}

/// Lets `command` be asked to end (SIGTERM) when the thread that starts it ends, however that
/// happens: it has something to tidy up.
pub fn end_with_parent(command: &mut Command) {
    sys::end_with_parent(command);
}

/// What a program does first that may have capabilities as a file (`setcap`): it dies with its
/// parent as any other, and can make user namespaces.
pub fn after_exec() {
    sys::after_exec();
}

/// Lets `command` run on this core only (counted from 0), with all that it starts. If there is no
/// such core, starting it fails.
pub fn keep_on_core(command: &mut Command, core: usize) {
    sys::keep_on_core(command, core);
}

/// Asks process `pid` to end (SIGTERM). One that is gone already is not an error.
pub fn terminate(pid: u32) {
    // The only failures are "gone" and "not yours"; nothing is left to be done in either case.
    let _ = sys::end(pid, false);
}

/// Lets process `pid` stand still (SIGSTOP) until [`resume`]. One that is gone is not an error.
pub fn pause(pid: u32) {
    let _ = sys::send(pid, libc::SIGSTOP);
}

/// Lets process `pid` go on (SIGCONT). One that is gone is not an error.
pub fn resume(pid: u32) {
    let _ = sys::send(pid, libc::SIGCONT);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_stays_on_its_core_or_does_not_start() {
        let allowed = |core| {
            let mut command = Command::new("cat");
            keep_on_core(&mut command, core);
            command.arg("/proc/self/status").output()
        };
        // Core 0 need not be ours: take the first that is.
        let mine = std::fs::read_to_string("/proc/self/status").expect("status");
        let list = |text: &str| -> String {
            let line = text
                .lines()
                .find(|line| line.starts_with("Cpus_allowed_list:"));
            let list = line.and_then(|line| line.split_once(':'));
            list.map_or(String::new(), |(_, list)| list.trim().to_owned())
        };
        let first = list(&mine);
        let first = first.split([',', '-']).next().expect("one");
        let core = first.parse().expect("a number");
        let output = allowed(core).expect("it starts");
        assert_eq!(list(&String::from_utf8_lossy(&output.stdout)), first);
        for none in [99_999, usize::MAX] {
            let error = allowed(none).expect_err("no such core");
            assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
        }
    }
}

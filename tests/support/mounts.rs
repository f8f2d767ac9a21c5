//! Programs that see mounts of their own: small disks, a small /dev/shm.

use std::process::{Command, Stdio};

/// Runs `command` in a mount namespace of its own, after the shell text `first`; the process keeps
/// its number. `None` if the kernel forbids that.
pub(crate) fn in_mounts(first: &str, command: &Command) -> Option<Command> {
    let mut flags = vec!["--mount"];
    if !Command::new("unshare")
        .args(&flags)
        .arg("true")
        .status()
        .ok()?
        .success()
    {
        flags.push("--map-root-user");
        if !Command::new("unshare")
            .args(&flags)
            .arg("true")
            .status()
            .ok()?
            .success()
        {
            dogwild_lab::skip::skip("no mount namespace (run as root, or allow user namespaces)");
            return None;
        }
    }
    let mut inside = Command::new("unshare");
    dogwild_lab::process::die_with_parent(&mut inside);
    inside.args(flags).args(["sh", "-c"]);
    inside.arg(format!("{first} && exec \"$0\" \"$@\""));
    inside.arg(command.get_program()).args(command.get_args());
    if let Some(at) = command.get_current_dir() {
        inside.current_dir(at);
    }
    inside.stdin(Stdio::null());
    Some(inside)
}

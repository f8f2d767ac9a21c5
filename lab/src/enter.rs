//! Tests of ordinary users: a test that wants `Lab::in_host` runs itself again as root of a user
//! namespace of its own.
//!
//! Touches processes only. libtest is asked for exactly one test by its name. An inner run that
//! found no such test is a failure, so that a wrong name cannot pass unnoticed.

use crate::sys::{self, User};
use crate::{LabError, skip};
use std::process::{Command, Stdio};

/// Set in the environment of the inner run.
const MARK: &str = "DOGWILD_LAB_INSIDE";

/// At the top of a test: goes on as root or as root of a user namespace; as an ordinary user runs
/// this very test inside one and returns its result. Skips loudly where the kernel forbids that.
///
/// ```
/// fn two_hosts_talk() {
///     dogwild_lab::enter_or_return!();
///     // Lab::up, Lab::in_host ...
/// }
/// ```
#[macro_export]
macro_rules! enter_or_return {
    () => {{
        fn here() {}
        let path = ::std::any::type_name_of_val(&here);
        match $crate::inside(path.trim_end_matches("::here")) {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => panic!("{error}"),
        }
    }};
}

/// True if this process may make and enter hosts, so that the test goes on. Otherwise runs the
/// test `path` (crate name first, as `module_path!()` gives it) again inside a user namespace:
/// false if it succeeded there, or was skipped because the kernel forbids user namespaces.
///
/// # Errors
/// The inner run failed, or found no such test.
pub fn inside(path: &str) -> Result<bool, LabError> {
    if privileged() {
        return Ok(true);
    }
    if std::env::var_os(MARK).is_some() {
        let refused = std::io::Error::from_raw_os_error(libc::EPERM);
        return Err(LabError::NotInside(refused));
    }
    let test = path.split_once("::").map_or(path, |(_crate, rest)| rest);
    let program = std::env::current_exe().map_err(LabError::io("find this test's program"))?;
    let mut command = Command::new(program);
    command
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(MARK, "1");
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    sys::unshare_before_exec(&mut command, User::New, false);
    sys::die_with_parent(&mut command);
    let child = match command.spawn().map_err(LabError::from_unshare) {
        Ok(child) => child,
        Err(LabError::Forbidden(e)) => {
            skip::skip(&format!("{test}: {}", LabError::Forbidden(e)));
            return Ok(false);
        }
        Err(other) => return Err(other),
    };
    let output = child
        .wait_with_output()
        .map_err(LabError::io("wait for the inner test"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    print!("{said}");
    if output.status.success() && said.contains("running 1 test") {
        return Ok(false);
    }
    let status = if output.status.success() {
        "no test of that name was found: it must be the path of the test function".to_owned()
    } else {
        output.status.to_string()
    };
    Err(LabError::Inner {
        test: test.to_owned(),
        status,
    })
}

/// True if this process may make network namespaces and move its threads into them
/// (CAP_SYS_ADMIN and CAP_NET_ADMIN in its user namespace).
pub fn privileged() -> bool {
    const NET_ADMIN: u64 = 1 << 12;
    const SYS_ADMIN: u64 = 1 << 21;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .is_some_and(|caps| caps & NET_ADMIN != 0 && caps & SYS_ADMIN != 0)
}

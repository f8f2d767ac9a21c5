//! The system's own programs (`ip`, `tc`, `nft`) run inside a namespace.
//!
//! Invariant: whatever they print on failure is part of the error, with the line that failed.

use crate::LabError;
use crate::sys::{self, Namespaces};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// A program of the system and where it was found.
pub(crate) struct Tool {
    name: &'static str,
    path: PathBuf,
}

impl Tool {
    /// Looks `name` up in PATH and where Debian keeps what ordinary users do not have in PATH.
    pub(crate) fn find(name: &'static str, package: &'static str) -> Result<Tool, LabError> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path)
            .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from))
            .map(|dir| dir.join(name))
            .find(|file| file.is_file())
            .map(|path| Tool { name, path })
            .ok_or(LabError::Missing {
                program: name,
                package,
            })
    }

    /// Runs it in `namespaces` (called `place` in errors) with the words of `arguments`.
    pub(crate) fn run(
        &self,
        place: &str,
        namespaces: &Namespaces,
        arguments: &str,
    ) -> Result<String, LabError> {
        let words: Vec<&str> = arguments.split_whitespace().collect();
        let output = self.output(namespaces, &words, "")?;
        self.judge(place, arguments, output)
    }

    /// Runs it with fixed `arguments` and `script` on its standard input.
    pub(crate) fn feed(
        &self,
        place: &str,
        namespaces: &Namespaces,
        arguments: &[&str],
        script: &str,
    ) -> Result<String, LabError> {
        let output = self.output(namespaces, arguments, script)?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        // `ip -batch` ends its message with "Command failed -:LINE".
        let line = said
            .rsplit("failed -:")
            .next()
            .and_then(|number| number.trim().parse::<usize>().ok())
            .and_then(|number| script.lines().nth(number.saturating_sub(1)));
        self.judge(place, line.unwrap_or(script.trim()), output)
    }

    fn output(
        &self,
        namespaces: &Namespaces,
        arguments: &[&str],
        script: &str,
    ) -> Result<Output, LabError> {
        let error = || LabError::io(format!("run {}", self.path.display()));
        let mut command = Command::new(&self.path);
        command
            .args(arguments)
            .env("LC_ALL", "C")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        sys::enter_before_exec(&mut command, namespaces.clone());
        let mut child = command.spawn().map_err(error())?;
        if let Some(mut stdin) = child.stdin.take() {
            // A program that stopped reading says why on its standard error.
            let _ = stdin.write_all(script.as_bytes());
        }
        child.wait_with_output().map_err(error())
    }

    fn judge(&self, place: &str, line: &str, output: Output) -> Result<String, LabError> {
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(LabError::Command {
            place: place.to_owned(),
            command: format!("{} {line}", self.name),
            output: if said.is_empty() {
                output.status.to_string()
            } else {
                said
            },
        })
    }
}

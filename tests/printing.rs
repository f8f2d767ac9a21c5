//! What becomes of a program whose output fails: no panic, no lost work, a word and a code.
//!
//! On the code before `dogwild_lab::out`, each of these ended with 101 and a panic of `println!`.

#![cfg(feature = "program")]

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn dogwild() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dogwild"));
    command.stdin(Stdio::null());
    command
}

/// A pipe that no process reads.
fn closed() -> Stdio {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    writer.into()
}

/// A file on a disk that is always full.
fn full() -> File {
    let full = OpenOptions::new().write(true).open("/dev/full");
    full.expect("/dev/full")
}

/// The exit code and the words on standard error.
fn ends(command: &mut Command) -> (Option<i32>, String) {
    let output = command.output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!said.contains("panicked"), "{command:?}: {said}");
    (output.status.code(), said)
}

fn lines_about_output(said: &str) -> usize {
    let full = "cannot write to standard output: No space left on device";
    said.matches(full).count()
}

struct Buffer(PathBuf);

impl Buffer {
    fn new(name: &str) -> Self {
        let name = format!("dogwild-test-d-{}-{name}", std::process::id());
        Self(Path::new("/dev/shm").join(name))
    }

    fn init(&self) -> Command {
        let mut command = dogwild();
        command.args(["init", "--fresh", "--nodes", "1", "--buffer"]);
        command.arg(&self.0);
        command
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let buffer = Buffer::new("closed");
    let (code, said) = ends(buffer.init().stdout(closed()));
    assert_eq!(code, Some(0), "{said}");
    assert!(buffer.0.exists());
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("weights.safetensors");
    let mut snapshot = dogwild();
    snapshot.arg("snapshot").arg("--buffer").arg(&buffer.0);
    snapshot.arg("--out").arg(&out);
    let (code, said) = ends(snapshot.stdout(closed()));
    assert_eq!(code, Some(0), "{said}");
    assert!(out.exists());
}

#[test]
fn a_full_output_is_told_once_and_fails_after_the_work_is_done() {
    let buffer = Buffer::new("full");
    let (code, said) = ends(buffer.init().stdout(full()));
    assert_eq!((code, lines_about_output(&said)), (Some(1), 1), "{said}");
    assert!(buffer.0.exists());
    let (code, said) = ends(dogwild().args(["doctor", "--json"]).stdout(full()));
    assert_eq!((code, lines_about_output(&said)), (Some(1), 1), "{said}");
}

/// Both streams gone: the job trains, saves, and ends with its own code.
#[test]
fn a_job_without_any_reader_saves_its_weights() {
    let folder = tempfile::tempdir().expect("a folder");
    let train = |out: &Path| {
        let mut command = dogwild();
        command.args(["train", "--nodes", "1", "--iterations", "20"]);
        command.args(["--data", "digits:1,train=256,test=64", "--out"]);
        command.arg(out);
        command
    };
    let out = folder.path().join("closed");
    let status = train(&out).stdout(closed()).stderr(closed()).status();
    assert_eq!(status.expect("it starts").code(), Some(0));
    assert!(out.join("weights.safetensors").exists());
    assert!(out.join("summary.json").exists());

    let out = folder.path().join("full");
    let status = train(&out).stdout(full()).stderr(full()).status();
    assert_eq!(status.expect("it starts").code(), Some(1));
    assert!(out.join("weights.safetensors").exists());
}

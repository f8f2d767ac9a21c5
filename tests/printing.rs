//! What becomes of a program whose output fails: no panic, no lost work, a word and a code.
//!
//! On the code before `dogwild_lab::out`, each of these ended with 101 and a panic of `println!`.

#![cfg(feature = "program")]

mod support;

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use support::program::dogwild;
use support::shm::shm_folder;
use tempfile::TempDir;

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

struct Buffer(TempDir);

impl Buffer {
    fn new() -> Self {
        Self(shm_folder())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("buffer")
    }

    fn init(&self) -> Command {
        let mut command = dogwild();
        command.args(["init", "--fresh", "--nodes", "1", "--buffer"]);
        command.arg(self.path());
        command
    }
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let buffer = Buffer::new();
    let (code, said) = ends(buffer.init().stdout(closed()));
    assert_eq!(code, Some(0), "{said}");
    assert!(buffer.path().exists());
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("weights.safetensors");
    let mut snapshot = dogwild();
    snapshot.arg("snapshot").arg("--buffer").arg(buffer.path());
    snapshot.arg("--out").arg(&out);
    let (code, said) = ends(snapshot.stdout(closed()));
    assert_eq!(code, Some(0), "{said}");
    assert!(out.exists());
}

#[test]
fn a_full_output_is_told_once_and_fails_after_the_work_is_done() {
    let buffer = Buffer::new();
    let (code, said) = ends(buffer.init().stdout(full()));
    assert_eq!((code, lines_about_output(&said)), (Some(1), 1), "{said}");
    assert!(buffer.path().exists());
    let (code, said) = ends(dogwild().args(["doctor", "--json"]).stdout(full()));
    assert_eq!((code, lines_about_output(&said)), (Some(1), 1), "{said}");
}

#[test]
fn the_version_is_one_line_with_commit_and_features() {
    let output = dogwild().arg("--version").output().expect("it starts");
    let said = String::from_utf8(output.stdout).expect("text");
    let start = format!("dogwild {} (", env!("CARGO_PKG_VERSION"));
    assert!(said.starts_with(&start), "{said}");
    assert!(said.contains("commit"), "{said}");
    for (feature, built) in [
        ("program", true),
        ("cuda", cfg!(feature = "cuda")),
        ("data-get", cfg!(feature = "data-get")),
        ("pages", cfg!(feature = "pages")),
        ("top", cfg!(feature = "top")),
    ] {
        let named = said.trim_end().trim_end_matches(')').split([' ', ';']);
        let named = named.skip_while(|word| *word != "features");
        assert_eq!(named.skip(1).any(|word| word == feature), built, "{said}");
    }
    assert_eq!(said.lines().count(), 1, "{said}");
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

/// With `-q` nothing is said but results, warnings and errors, wherever the flag stands.
#[test]
fn a_quiet_program_says_results_and_errors_only() {
    let buffer = Buffer::new();
    let (code, _) = ends(buffer.init().stdout(Stdio::null()));
    assert_eq!(code, Some(0));
    let streams = |before: &[&str], behind: &[&str]| {
        let mut command = dogwild();
        command.args(before).arg("stream").arg("--buffer");
        command
            .arg(buffer.path())
            .args(["--node", "0", "--nodes", "1"]);
        command
            .args(["--until-eof"])
            .args(behind)
            .stdin(Stdio::null());
        ends(command.env_remove("RUST_LOG"))
    };
    let (code, said) = streams(&[], &[]);
    assert!(code == Some(0) && said.contains("INFO"), "{said}");
    for (before, behind) in [(&["-q"][..], &[][..]), (&[], &["--quiet"])] {
        assert_eq!(streams(before, behind), (Some(0), String::new()));
    }
    let (code, said) = streams(&["-q"], &["--key-file", "/not/there"]);
    assert!(code != Some(0) && said.contains("/not/there"), "{said}");
}

/// Lines of progress too, on which a job says what it waits for and how far it is.
#[test]
fn a_quiet_job_says_nothing_of_its_progress() {
    let train = |quiet: &[&str]| {
        let mut command = dogwild();
        command
            .args(quiet)
            .args(["train", "--nodes", "1", "--pace-steps", "20"]);
        command.args([
            "--data",
            "digits:1,train=640,test=100",
            "--iterations",
            "60",
        ]);
        command.env_remove("RUST_LOG");
        let output = command.output().expect("the program starts");
        assert!(output.status.success(), "{output:?}");
        [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned())
    };
    let [_, said] = train(&[]);
    assert!(said.contains("/60"), "{said}");
    let [results, said] = train(&["--quiet"]);
    assert!(
        results.contains("iterations") && said.is_empty(),
        "{results}{said}"
    );
}

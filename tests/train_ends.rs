//! How a job of `dogwild train` ends: whatever ends it, its weights and the results of earlier jobs
//! are there, and the exit code says what happened. Separate processes, real signals, real full
//! disks.

#![cfg(feature = "program")]

mod support;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::MutexGuard;

use support::job::{Files, buffer, components, files, iterations, one_job};
use support::mounts::in_mounts;
use support::output::said;
use support::process::{Process, signal};
use support::program::dogwild;
use support::results::summary;
use support::wait::wait_for_or;
use tempfile::TempDir;

const DATA: [&str; 2] = ["--data", "digits:1,train=400,test=100"];

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

/// `dogwild train` in the folder `at`.
fn train(at: &Path, args: &[&str]) -> Command {
    let mut command = dogwild();
    command.arg("train").args(DATA).args(args).current_dir(at);
    command
}

fn end(command: &mut Command) -> Output {
    command.output().expect("it starts")
}

/// As [`end`], with what the job may leave under /dev/shm.
fn end_and_keep(command: &mut Command) -> (Files, Output) {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let train = Process::start(command);
    (Files(train.id()), train.output())
}

/// The code of a job that has ended, and the last line of what it said.
#[track_caller]
fn assert_code(output: &Output, code: i32, words: &[&str]) {
    let said = said(output);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert!(!said.contains("panicked"), "{said}");
    for word in words {
        assert!(said.contains(word), "`{word}` is missing in:\n{said}");
    }
}

fn weights(folder: &Path) -> Vec<u8> {
    std::fs::read(folder.join("weights.safetensors")).expect("weights")
}

/// A job that goes on until it is told to end.
struct Running {
    train: Option<Process>,
    pid: u32,
    folder: TempDir,
    _files: Files,
    _one: MutexGuard<'static, ()>,
}

impl Running {
    /// Starts it, with results in `out` below a new folder, and waits until all solvers have
    /// iterated.
    fn start(args: &[&str]) -> Self {
        Self::start_as(|folder| train(folder, &[&["--out", "out"], args].concat()))
    }

    fn start_as(command: impl FnOnce(&Path) -> Command) -> Self {
        let _one = one_job();
        let folder = folder();
        let mut command = command(folder.path());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let train = Process::start(&mut command);
        let running = Self {
            pid: train.id(),
            _files: Files(train.id()),
            train: Some(train),
            folder,
            _one,
        };
        running.wait_for("two nodes that iterate", |running| {
            (0..2).all(|node| running.iterations(node) > 1)
        });
        running
    }

    fn buffer(&self, node: u32) -> PathBuf {
        buffer(self.pid, node)
    }

    fn iterations(&self, node: u32) -> u64 {
        iterations(&self.buffer(node))
    }

    fn wait_for(&self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let found = || {
            let made = [0, 1].map(|node| self.iterations(node));
            format!("iterations: {made:?}, files: {:?}", files(self.pid))
        };
        wait_for_or(what, || holds(self), found);
    }

    /// Process numbers of the job's components of one kind.
    fn pids(&self, kind: &str) -> Vec<u32> {
        components(self.pid, kind)
    }

    /// Kills a component by `signal` and waits until another has taken its place.
    fn kill(&self, kind: &str, name: &str) {
        let victim = self.pids(kind)[0];
        signal(name, &victim.to_string());
        self.wait_for("a new process", |running| {
            let now = running.pids(kind);
            now.len() == 2 && !now.contains(&victim)
        });
    }

    fn end(&mut self) -> Output {
        self.train.take().expect("not yet ended").output()
    }

    fn out(&self) -> PathBuf {
        self.folder.path().join("out")
    }
}

/// The README's command twice: each run has a folder of its own, and the last line names it.
#[test]
#[ignore = "long: whole trainings"]
fn runs_without_out_are_numbered() {
    let _one = one_job();
    let folder = folder();
    for number in ["001", "002"] {
        let ended = end(&mut train(folder.path(), &["--iterations", "2"]));
        let out = format!("out/{number}");
        assert_code(&ended, 0, &["all iterations were made"]);
        let stdout = String::from_utf8_lossy(&ended.stdout).into_owned();
        let last = stdout.lines().last().unwrap_or_default();
        assert!(last.starts_with(&out), "{stdout}");
        for file in [
            "weights.safetensors",
            "summary.json",
            "curve.csv",
            "curve.svg",
        ] {
            assert!(folder.path().join(&out).join(file).exists(), "{file}");
        }
    }
}

#[test]
fn a_folder_with_results_is_refused_before_anything_starts() {
    for sync in ["stream", "poseidon"] {
        let folder = folder();
        std::fs::create_dir(folder.path().join("checkpoints")).expect("a folder");
        std::fs::write(folder.path().join("weights.safetensors"), "a model").expect("a file");
        let ended = end(&mut train(folder.path(), &["--sync", sync, "--out", "."]));
        assert_code(
            &ended,
            1,
            &["weights.safetensors", "checkpoints", "--overwrite"],
        );
        assert_eq!(weights(folder.path()), b"a model");
        assert!(!folder.path().join("node0-stream.log").exists());
    }
}

/// Seen: `train` into a folder with results, interrupted after 0.3 s, replaced a trained model by
/// random weights, with exit code 0.
#[test]
fn an_interrupted_run_leaves_the_old_results() {
    for sync in ["stream", "poseidon"] {
        let args = [
            "--sync",
            sync,
            "--out",
            "out",
            "--overwrite",
            "--iterations",
        ];
        let mut running = Running::start_as(|folder| {
            let out = folder.join("out");
            std::fs::create_dir(&out).expect("a folder");
            std::fs::write(out.join("weights.safetensors"), "a model").expect("a file");
            std::fs::write(out.join("node7-stream.log"), "a log").expect("a file");
            train(folder, &[&args[..], &["100000"]].concat())
        });
        let (old, staged) = (running.out(), running.out().join("unfinished-001"));
        signal("INT", &running.pid.to_string());
        let ended = running.end();
        assert_code(&ended, 130, &["interrupted by INT", "out/unfinished-001"]);
        assert_eq!(weights(&old), b"a model", "{sync}");
        assert!(old.join("node7-stream.log").exists());
        assert_eq!(summary(&staged)["ended_by"], "interrupted");
        assert!(weights(&staged).len() > 1_000_000);
        assert!(files(running.pid).is_empty());
        // The next one comes to its end.
        let at = running.folder.path();
        let ended = end(&mut train(at, &[&args[..], &["2"]].concat()));
        assert_code(&ended, 0, &["all iterations were made"]);
        assert!(weights(&old).len() > 1_000_000);
        assert_eq!(summary(&old)["ended_by"], "iterations");
        assert!(!old.join("node7-stream.log").exists());
        assert!(!old.join("unfinished-002").exists());
    }
}

/// Seen: a full or missing --out at the end, and the weights were gone.
#[test]
fn a_full_out_keeps_the_buffers_and_says_how_to_rescue_them() {
    let _one = one_job();
    let folder = folder();
    std::fs::create_dir(folder.path().join("out")).expect("a folder");
    let train = train(folder.path(), &["--iterations", "6", "--out", "out"]);
    let Some(mut command) = in_mounts("mount -t tmpfs -o size=256k none out", &train) else {
        return;
    };
    let (kept, ended) = end_and_keep(&mut command);
    let buffer = buffer(kept.0, 0).display().to_string();
    let rescue = format!("dogwild snapshot --buffer {buffer} --out FILE.safetensors");
    let words = [
        "weights.safetensors: cannot be written",
        &rescue,
        "dogwild clean",
    ];
    assert_code(&ended, 1, &words);
    // The command that it names brings the model back.
    let rescued = dogwild()
        .args(["snapshot", "--buffer", &buffer, "--out"])
        .arg(folder.path().join("weights.safetensors"))
        .output();
    assert_code(&rescued.expect("it starts"), 0, &["iterations"]);
    assert!(weights(folder.path()).len() > 1_000_000);
}

/// Seen: a row of the curve that found no room ended the solver, and with it the job.
#[test]
fn training_goes_on_when_the_curve_finds_no_room() {
    let _one = one_job();
    let folder = folder();
    std::fs::create_dir(folder.path().join("out")).expect("a folder");
    let args = [
        "--nodes",
        "1",
        "--iterations",
        "120",
        "--test-every",
        "1",
        "--snapshot-every",
        "0",
        "--out",
        "out",
    ];
    let train = train(folder.path(), &args);
    let Some(mut command) = in_mounts("mount -t tmpfs -o size=12k none out", &train) else {
        return;
    };
    let (kept, ended) = end_and_keep(&mut command);
    assert_code(&ended, 1, &["dogwild snapshot"]);
    let rescued = dogwild()
        .args(["snapshot", "--buffer"])
        .arg(buffer(kept.0, 0))
        .arg("--out")
        .arg(folder.path().join("weights.safetensors"))
        .output();
    assert_code(&rescued.expect("it starts"), 0, &["after 120 iterations"]);
}

/// Training goes on where event files find no room, and it is said once.
#[test]
fn training_goes_on_when_event_files_find_no_room() {
    let _one = one_job();
    let folder = folder();
    std::fs::create_dir(folder.path().join("events")).expect("a folder");
    let args = ["--nodes", "1", "--pace-steps", "40", "--iterations", "160"];
    let more = ["--test-every", "1", "--tensorboard", "events"];
    let train = train(folder.path(), &[&args[..], &more].concat());
    let Some(mut command) = in_mounts("mount -t tmpfs -o size=8k none events", &train) else {
        return;
    };
    let ended = end(&mut command);
    assert_code(
        &ended,
        0,
        &["all iterations were made", "--tensorboard: cannot write"],
    );
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(
        said.matches("--tensorboard: cannot write").count(),
        1,
        "{said}"
    );
}

#[test]
fn an_out_that_was_removed_meanwhile_is_made_again() {
    let mut running = Running::start(&["--iterations", "0"]);
    std::fs::remove_dir_all(running.out()).expect("removed");
    signal("TERM", &running.pid.to_string());
    assert_code(&running.end(), 143, &["interrupted by TERM", "out"]);
    assert!(weights(&running.out()).len() > 1_000_000);
    assert!(files(running.pid).is_empty());
}

/// Seen: closing the terminal deleted the weights. It sends HUP to all processes, more than once.
#[test]
fn a_closed_terminal_ends_a_job_with_its_weights() {
    let mut running = Running::start_as(|folder| {
        let train = train(folder, &["--out", "out", "--iterations", "0"]);
        // The parent of this test may have had HUP ignored (nohup), which is inherited.
        let mut command = Command::new("env");
        dogwild_lab::process::die_with_parent(&mut command);
        command.arg("--default-signal=HUP");
        command.arg(train.get_program()).args(train.get_args());
        command.current_dir(folder).stdin(Stdio::null());
        command.process_group(0);
        command
    });
    let all = format!("-{}", running.pid);
    signal("HUP", &all);
    signal("HUP", &all);
    assert_code(&running.end(), 129, &["the terminal was closed"]);
    assert!(weights(&running.out()).len() > 1_000_000);
    assert_eq!(summary(&running.out())["ended_by"], "interrupted");
    assert!(files(running.pid).is_empty());
}

#[test]
fn nohup_is_respected() {
    let mut running = Running::start_as(|folder| {
        let train = train(folder, &["--out", "out", "--iterations", "0"]);
        let mut shell = Command::new("sh");
        dogwild_lab::process::die_with_parent(&mut shell);
        shell.args(["-c", "trap '' HUP; exec \"$0\" \"$@\""]);
        shell.arg(train.get_program()).args(train.get_args());
        shell.current_dir(folder).stdin(Stdio::null());
        shell
    });
    signal("HUP", &running.pid.to_string());
    let before = running.iterations(0);
    running.wait_for("more iterations", |running| {
        running.iterations(0) > before + 3
    });
    signal("INT", &running.pid.to_string());
    assert_code(&running.end(), 130, &[]);
}

/// Seen: any component that ended with an exit code took the weights with it. Here a solver finds
/// its state overwritten when it is started again.
#[test]
fn a_component_that_refuses_ends_the_job_and_the_weights_are_saved() {
    let mut running = Running::start(&["--iterations", "0"]);
    let mut state = running.buffer(1).into_os_string();
    state.push(".solver0");
    std::fs::write(&state, "not a state").expect("written");
    let victim = running.pids("solver").into_iter().find(|pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains("-n1\0")
    });
    // The mapping of a file that was cut off kills it, if the test does not.
    if let Some(victim) = victim {
        let _ = Command::new("kill")
            .args(["-9", &victim.to_string()])
            .output();
    }
    assert_code(&running.end(), 1, &["node 1 solver 0 ended with", "out"]);
    assert!(weights(&running.out()).len() > 1_000_000);
    assert_eq!(summary(&running.out())["ended_by"], "failed");
    assert!(files(running.pid).is_empty());
}

/// With snapshots on the way: the weights of the end are saved, although no snapshot of the end can
/// be, and the last one before it is whole.
#[test]
fn a_failed_job_with_snapshots_saves_its_weights_and_can_be_resumed() {
    let mut running = Running::start(&["--iterations", "0", "--snapshot-every", "4"]);
    let home = running.out().join("snapshots");
    let newest = || {
        let names = std::fs::read_dir(&home).into_iter().flatten().flatten();
        let numbers = names.filter_map(|entry| entry.file_name().to_str()?.parse::<u64>().ok());
        numbers.max()
    };
    running.wait_for("a snapshot", |_| newest().is_some());
    // Solvers and snapshots have the old one mapped: it is replaced, not cut off.
    let mut state = running.buffer(1).into_os_string();
    state.push(".solver0");
    let mut beside = state.clone();
    beside.push(".new");
    std::fs::write(&beside, "not a state").expect("a file");
    std::fs::rename(&beside, &state).expect("replaced");
    for pid in running.pids("solver") {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if String::from_utf8_lossy(&line).contains("-n1\0") {
            signal("KILL", &pid.to_string());
        }
    }
    let ended = running.end();
    assert_code(
        &ended,
        1,
        &[
            "node 1 solver 0 ended with",
            "no snapshot was taken at the end",
        ],
    );
    let out = running.out();
    let before = newest().expect("the last good one");
    assert_eq!(summary(&out)["ended_by"], "failed");
    let made = summary(&out)["iterations"].as_u64().expect("a number");
    assert!(made >= before, "{made} iterations, a snapshot of {before}");
    assert!(weights(&out).len() > 1_000_000);
    assert!(files(running.pid).is_empty());
    let at = running.folder.path();
    let iterations = (before + 6).to_string();
    let args = ["--out", "out", "--resume", "--iterations", &iterations];
    let resumed = end(&mut train(at, &args));
    assert_code(&resumed, 0, &["all iterations were made"]);
    assert_eq!(summary(&out)["resumed_from_iteration"], before);
}

/// Seen: the sixth kill of one component in the whole life of a job deleted the weights. Five in a
/// minute are survived, a streamer that was asked to end among them; the sixth ends the job, and
/// its weights are saved. (`job::restarts` has the kills that are further apart.)
#[test]
fn a_component_that_dies_again_and_again_ends_the_job_and_the_weights_are_saved() {
    let mut running = Running::start(&["--nodes", "2", "--iterations", "0"]);
    running.kill("stream", "TERM");
    running.kill("solver", "TERM");
    let before = running.iterations(0) + running.iterations(1);
    running.wait_for("more iterations", |running| {
        running.iterations(0) + running.iterations(1) > before + 3
    });
    let mut train = running.train.take().expect("not yet ended");
    running.wait_for("the end of the job", |running| {
        if let Some(&victim) = running.pids("stream").first() {
            // It may be gone meanwhile.
            let _ = Command::new("kill")
                .args(["-9", &victim.to_string()])
                .output();
        }
        train.ended().is_some()
    });
    running.train = Some(train);
    assert_code(
        &running.end(),
        1,
        &["streamer ended with", "restarts in 60 s"],
    );
    assert!(weights(&running.out()).len() > 1_000_000);
    let summary = summary(&running.out());
    assert_eq!(summary["ended_by"], "failed");
    assert!(summary["restarts"].as_u64() >= Some(5), "{summary}");
    assert!(files(running.pid).is_empty());
}

/// A solver file with this learning rate.
fn solver(folder: &Path, base_lr: &str) -> String {
    let net = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/models/lenet_train_test.prototxt"
    );
    let text = format!(
        "net: \"{net}\"\nbase_lr: {base_lr}\nmomentum: 0\nlr_policy: \"fixed\"\nmax_iter: 200\n\
         test_iter: 1\ntest_interval: 100\n"
    );
    std::fs::write(folder.join("solver.prototxt"), text).expect("a solver file");
    "solver.prototxt".into()
}

#[test]
fn training_that_diverges_has_its_own_code() {
    for sync in ["stream", "poseidon"] {
        let _one = one_job();
        let folder = folder();
        let solver = solver(folder.path(), "1e30");
        let args = ["--sync", sync, "--out", "out", "--solver", &solver];
        let (kept, ended) = end_and_keep(&mut train(folder.path(), &args));
        assert_code(&ended, 3, &["training has diverged", "Lower base_lr"]);
        let out = folder.path().join("out");
        assert_eq!(summary(&out)["ended_by"], "diverged", "{sync}");
        assert!(files(kept.0).is_empty(), "useless buffers stayed");
    }
}

#[test]
fn an_accuracy_that_was_not_reached_has_its_own_code() {
    for sync in ["stream", "poseidon"] {
        let _one = one_job();
        let folder = folder();
        let args = ["--sync", sync, "--out", "out", "--iterations", "3"];
        let more = ["--target-accuracy", "0.999"];
        let ended = end(&mut train(folder.path(), &[&args[..], &more].concat()));
        assert_code(&ended, 4, &["no test has reached --target-accuracy"]);
        let out = folder.path().join("out");
        assert_eq!(summary(&out)["ended_by"], "target_not_reached", "{sync}");
        assert!(weights(&out).len() > 1_000_000);
    }
}

/// A streamer that is stopped (SIGSTOP) when the solvers end delivers nothing.
#[test]
#[ignore = "long: whole trainings"]
fn replicas_that_differ_have_their_own_code() {
    let mut running = Running::start(&["--iterations", "40"]);
    for pid in running.pids("stream") {
        signal("STOP", &pid.to_string());
    }
    let ended = running.end();
    assert_code(
        &ended,
        5,
        &[
            "replicas differ",
            "waiting for the last deliveries: node",
            "lacks",
        ],
    );
    let summary = summary(&running.out());
    assert!(
        !summary["warnings"].as_array().expect("warnings").is_empty(),
        "{summary}"
    );
    assert_eq!(summary["replicas_identical"], false);
    assert_eq!(summary["ended_by"], "replicas_differ");
    assert!(weights(&running.out()).len() > 1_000_000);
}

#[test]
fn the_codes_are_in_the_help() {
    let help = end(&mut train(Path::new("."), &["--help"]));
    assert_code(
        &help,
        0,
        &["Exit codes", "129", "--target-accuracy was not reached"],
    );
}

//! `dogwild train` as a user runs it: separate processes, real sockets, real signals.

#![cfg(feature = "program")]

mod support;

use std::process::Stdio;
use std::sync::MutexGuard;

use serde_json::Value;
use support::job::{Files, components, files, one_job};
use support::output::{assert_says, refused, said};
use support::process::{Process, alive, signal};
use support::program::dogwild;
use support::results::{logs, number, summary};
use support::wait::{wait_for_or, wait_while};
use tempfile::TempDir;

/// Trains and returns the summary.
fn train(args: &[&str]) -> Value {
    let _one = one_job();
    let out = tempfile::tempdir().expect("a folder");
    let output = dogwild()
        .arg("train")
        .args(args)
        .arg("--out")
        .arg(out.path())
        .output()
        .expect("it starts");
    assert!(
        output.status.success(),
        "{args:?}\n{}\n{}",
        said(&output),
        logs(out.path()),
    );
    for file in ["weights.safetensors", "curve.csv", "curve.svg"] {
        assert!(
            out.path()
                .join(file)
                .metadata()
                .is_ok_and(|meta| meta.len() > 0),
            "{file} is missing or empty"
        );
    }
    summary(out.path())
}

fn node(summary: &Value, k: usize) -> &Value {
    &summary["per_node"][k]
}

/// Both nodes learnt, from the stream too, and hold the same weights.
fn assert_trained(summary: &Value, least_accuracy: f64) {
    let text = serde_json::to_string_pretty(summary).expect("JSON");
    assert_eq!(summary["replicas_identical"], true, "{text}");
    for k in 0..summary["per_node"].as_array().expect("nodes").len() {
        let node = node(summary, k);
        assert!(number(&node["test_accuracy"]) >= least_accuracy, "{text}");
        assert!(number(&node["iterations"]) > 0.0, "{text}");
        for counter in [
            "positions_sent",
            "positions_taken",
            "deltas_sent",
            "deltas_applied",
        ] {
            assert!(number(&node["stream"][counter]) > 0.0, "{counter}: {text}");
        }
    }
}

#[test]
fn two_nodes_learn_the_built_in_digits_over_udp() {
    two_nodes_learn("250", 0.6);
}

#[test]
#[ignore = "long: a whole training"]
fn two_nodes_learn_the_built_in_digits_well() {
    two_nodes_learn("600", 0.85);
}

fn two_nodes_learn(iterations: &str, least_accuracy: f64) {
    let summary = train(&[
        "--iterations",
        iterations,
        "--data",
        "digits:1,train=4000,test=1000",
    ]);
    assert_trained(&summary, least_accuracy);
    assert_eq!(summary["ended_by"], "iterations");
    let asked: f64 = iterations.parse().expect("a number");
    assert!(number(&summary["iterations"]) >= asked);
}

/// A key file of this mode.
fn key_file(folder: &TempDir, mode: u32) -> String {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.path().join("key");
    std::fs::write(&path, [0x42; 32]).expect("write");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("chmod");
    path.display().to_string()
}

#[test]
#[ignore = "long: whole trainings"]
fn sealed_nodes_learn_although_frames_are_corrupted_and_lost_in_bursts() {
    let folder = tempfile::tempdir().expect("a folder");
    let summary = train(&[
        "--iterations",
        "600",
        "--data",
        "digits:1,train=4000,test=1000",
        "--key-file",
        &key_file(&folder, 0o600),
        "--corrupt",
        "2%",
        "--loss-burst",
        "0.01,0.3",
        "--no-segmentation",
    ]);
    assert_trained(&summary, 0.85);
    for k in 0..2 {
        let node = node(&summary, k);
        let corrupted = number(&node["stream"]["fault_corrupted"]);
        assert!(corrupted > 0.0, "{node}");
        // Every damaged frame was refused by its tag, and none of them further up.
        assert_eq!(number(&node["dropped"]["bad_tag"]), corrupted, "{node}");
        assert_eq!(number(&node["dropped"]["malformed"]), 0.0, "{node}");
    }
}

#[test]
fn a_key_that_others_can_read_is_refused_before_anything_starts() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = dogwild();
    command.args(["train", "--key-file", &key_file(&folder, 0o644), "--out"]);
    let said = refused(command.arg(folder.path().join("out")));
    assert_says(&said, &["chmod 600"]);
    assert!(!folder.path().join("out").exists());
}

#[test]
#[ignore = "long: whole trainings"]
fn loss_duplication_and_reordering_do_no_visible_harm() {
    let summary = train(&[
        "--iterations",
        "600",
        "--data",
        "digits:1,train=4000,test=1000",
        "--loss",
        "10%",
        "--duplicate",
        "1%",
        "--reorder",
        "1%",
    ]);
    assert_trained(&summary, 0.85);
    for k in 0..2 {
        let stream = &node(&summary, k)["stream"];
        assert!(number(&stream["fault_dropped"]) > 0.0, "{stream}");
        assert!(number(&stream["deltas_repeated"]) > 0.0, "{stream}");
    }
}

#[test]
#[ignore = "long: whole trainings"]
fn several_solvers_on_a_buffer_and_three_nodes() {
    // Six solvers at once add to each other's momentum: none here, and a small rate.
    let folder = tempfile::tempdir().expect("a folder");
    let solver = folder.path().join("solver.prototxt");
    let net = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/models/lenet_train_test.prototxt"
    );
    let text = format!(
        "net: \"{net}\"\nbase_lr: 0.02\nmomentum: 0\nlr_policy: \"fixed\"\nmax_iter: 600\n\
         test_iter: 5\ntest_interval: 300\n"
    );
    std::fs::write(&solver, text).expect("a solver file");
    let summary = train(&[
        "--nodes",
        "3",
        "--solvers",
        "2",
        "--solver",
        solver.to_str().expect("UTF-8"),
        "--data",
        "digits:1,train=2000,test=500",
    ]);
    assert_trained(&summary, 0.3);
}

#[test]
fn one_node_trains_alone() {
    let summary = train(&[
        "--nodes",
        "1",
        "--iterations",
        "150",
        "--data",
        "digits:1,train=2000,test=500",
    ]);
    assert!(number(&node(&summary, 0)["test_accuracy"]) > 0.5);
}

#[test]
fn raw_ethernet_between_namespaces() {
    raw_ethernet("200", "digits:1,train=2000,test=500", 0.5);
}

#[test]
#[ignore = "long: a whole training"]
fn two_nodes_learn_well_over_raw_ethernet() {
    raw_ethernet("400", "digits:1,train=4000,test=1000", 0.7);
}

fn raw_ethernet(iterations: &str, data: &str, least_accuracy: f64) {
    if let Some(why) = no_lab() {
        dogwild_lab::skip::skip(&why);
        return;
    }
    let summary = train(&["--lab", "--iterations", iterations, "--data", data]);
    assert_trained(&summary, least_accuracy);
    assert_eq!(summary["transport"], "packet_mmap");
    assert_eq!(summary["lab"], true);
}

/// 2.5 MB/s carry a range of 862 kB less than three times a second, as deltas go the same way.
#[test]
fn a_lab_has_the_rate_that_is_asked_for() {
    if let Some(why) = no_lab() {
        dogwild_lab::skip::skip(&why);
        return;
    }
    let link = ["--lab", "--transport", "udp", "--lab-rate", "20Mbit"];
    let job = [
        "--iterations",
        "60",
        "--pace-steps",
        "10",
        "--precision",
        "f32",
    ];
    let data = ["--data", "digits:1,train=1000,test=200"];
    let summary = train(&[&link[..], &job, &data].concat());
    assert_eq!(number(&summary["settings"]["lab_rate"]), 2.5e6);
    for node in summary["per_node"].as_array().expect("nodes") {
        let cycles = number(&node["cycles_per_s"]);
        assert!((0.2..3.0).contains(&cycles), "{node}");
    }
}

fn no_lab() -> Option<String> {
    dogwild_lab::Lab::up(&dogwild_lab::Spec::of(2))
        .err()
        .map(|error| error.to_string())
}

#[test]
fn a_target_accuracy_ends_the_job() {
    let summary = train(&[
        "--target-accuracy",
        "0.5",
        "--iterations",
        "20000",
        "--data",
        "digits:1,train=4000,test=1000",
    ]);
    assert_eq!(summary["ended_by"], "target_accuracy");
    assert!(number(&summary["iterations"]) < 20_000.0);
}

/// A training job that goes on until it is told to end.
struct Running {
    train: Process,
    job: u32,
    out: TempDir,
    _files: Files,
    _one: MutexGuard<'static, ()>,
}

impl Running {
    fn start(args: &[&str]) -> Self {
        let running = Self::launch(args);
        running.wait_for("training", |running| {
            running.pids("solver").len() == 2 && running.trains()
        });
        running
    }

    /// Starts it and does not wait for anything.
    fn launch(args: &[&str]) -> Self {
        let _one = one_job();
        let out = tempfile::tempdir().expect("a folder");
        let mut command = dogwild();
        command.args(["train", "--iterations", "0", "--test-every", "20", "--out"]);
        command.arg(out.path()).args(args);
        command.args(["--data", "digits:1,train=2000,test=500"]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let train = Process::start(&mut command);
        Self {
            job: train.id(),
            _files: Files(train.id()),
            train,
            out,
            _one,
        }
    }

    fn wait_for(&self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        wait_for_or(what, || holds(self), || logs(self.out.path()));
    }

    /// True once both nodes' solvers have tested twice: before the first iteration and later.
    fn trains(&self) -> bool {
        (0..2).all(|node| self.tests(node) > 1)
    }

    /// Tests that the solver of a node has written down.
    fn tests(&self, node: u32) -> usize {
        let path = self.out.path().join(format!("node{node}-curve.csv"));
        std::fs::read_to_string(path)
            .unwrap_or_default()
            .lines()
            .count()
            .saturating_sub(1)
    }

    /// Process numbers of the job's components of one kind.
    fn pids(&self, kind: &str) -> Vec<u32> {
        components(self.job, kind)
    }

    /// Interrupts it; nothing but its results may be left.
    fn interrupt(mut self) -> Value {
        let pids = [self.pids("solver"), self.pids("stream")].concat();
        self.train.signal("INT");
        let status = self.train.wait();
        assert_eq!(status.code(), Some(130), "{}", logs(self.out.path()));
        wait_while("the end of all components", || {
            let left: Vec<_> = pids.iter().filter(|&&pid| alive(pid)).collect();
            (!left.is_empty()).then(|| format!("{left:?} run without their job"))
        });
        let files = files(self.job);
        assert!(files.is_empty(), "left behind: {files:?}");
        assert!(self.out.path().join("weights.safetensors").exists());
        summary(self.out.path())
    }
}

#[test]
fn an_interrupt_ends_all_components_and_leaves_the_weights() {
    let summary = Running::start(&[]).interrupt();
    assert_eq!(summary["ended_by"], "interrupted");
}

/// A node that stands still does not hold up the other, and neither the end of the job.
#[test]
fn an_interrupt_ends_a_job_of_which_a_node_stands_still() {
    let running = Running::launch(&["--pause", "1:0.5:600"]);
    let still = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.contains(") T ")
    };
    running.wait_for("a node that stands still", |running| {
        let pids = [running.pids("solver"), running.pids("stream")].concat();
        pids.iter().filter(|pid| still(pid)).count() == 2
    });
    let before = running.tests(0);
    running.wait_for("more tests of the other", |running| {
        running.tests(0) > before + 1
    });
    let summary = running.interrupt();
    assert_eq!(summary["ended_by"], "interrupted");
    assert_eq!(number(&summary["settings"]["pause"][0]["for_s"]), 600.0);
}

#[test]
fn killed_components_are_started_again_and_go_on() {
    let running = Running::start(&[]);
    for kind in ["solver", "stream"] {
        let before = running.pids(kind);
        signal("KILL", &before[0].to_string());
        running.wait_for("a new process", |running| {
            let now = running.pids(kind);
            now.len() == 2 && !now.contains(&before[0])
        });
    }
    let before = [running.tests(0), running.tests(1)];
    running.wait_for("more tests", |running| {
        running.tests(0) > before[0] && running.tests(1) > before[1]
    });
    let out = running.out.path().to_path_buf();
    let log = std::fs::read_to_string(out.join("node0-stream.log")).unwrap_or_default()
        + &std::fs::read_to_string(out.join("node1-stream.log")).unwrap_or_default();
    assert!(
        log.contains("going on where the last streamer stopped"),
        "{log}"
    );
    let summary = running.interrupt();
    assert_eq!(summary["restarts"], 2);
}

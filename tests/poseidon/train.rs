//! Whole runs: what they learn, how they end, what they report.

use std::path::Path;
use std::process::Output;
use std::time::{Duration, Instant};

use dogwild::poseidon::{Policy, Scheme, Stragglers};
use serde_json::Value;

use crate::cluster::{Cluster, force, servers, setup};
use crate::support::program::dogwild;
use crate::support::results::summary;

fn run(args: &[&str], out: &Path) -> Output {
    let mut command = dogwild();
    let command = command.arg("train").args(args).arg("--out").arg(out);
    command.output().expect("it starts")
}

fn train(args: &[&str]) -> Value {
    let out = tempfile::tempdir().expect("a folder");
    let output = run(args, out.path());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}\n{said}");
    for file in ["weights.safetensors", "curve.csv", "curve.svg"] {
        let found = out.path().join(file).metadata();
        assert!(
            found.is_ok_and(|meta| meta.len() > 0),
            "{file} is missing or empty"
        );
    }
    summary(out.path())
}

const DATA: &str = "digits:1,train=4000,test=1000";

#[test]
fn two_workers_learn_the_built_in_digits() {
    let args = [
        "--sync",
        "poseidon",
        "--iterations",
        "150",
        "--test-every",
        "50",
    ];
    let summary = train(&[&args[..], &["--servers", "2", "--data", DATA]].concat());
    let text = serde_json::to_string_pretty(&summary).expect("JSON");
    assert!(summary["test_accuracy"].as_f64() > Some(0.8), "{text}");
    assert_eq!(summary["replicas_identical"], true, "{text}");
    assert_eq!(summary["ended_by"], "iterations", "{text}");
    assert_eq!(summary["iterations"], 150, "{text}");
    assert_eq!(summary["restarts"], 0, "{text}");
    for worker in summary["per_worker"].as_array().expect("workers") {
        assert_eq!(worker["iterations"], 150, "{text}");
        assert!(worker["bytes_sent"].as_u64() > Some(0), "{text}");
        assert!(worker["traffic"]["layers"].is_array(), "{text}");
    }
}

#[test]
fn a_target_accuracy_ends_all_workers_at_the_same_step() {
    for staleness in ["0", "2"] {
        let args = [
            "--sync",
            "poseidon",
            "--iterations",
            "2000",
            "--test-every",
            "20",
        ];
        let more = [
            "--target-accuracy",
            "0.5",
            "--data",
            DATA,
            "--staleness",
            staleness,
        ];
        let summary = train(&[&args[..], &more].concat());
        let text = serde_json::to_string_pretty(&summary).expect("JSON");
        assert_eq!(summary["ended_by"], "target_accuracy", "{text}");
        assert_eq!(summary["replicas_identical"], true, "{text}");
        let steps = summary["iterations"].as_u64();
        assert!(steps < Some(2000), "{text}");
        for worker in summary["per_worker"].as_array().expect("workers") {
            assert_eq!(worker["iterations"].as_u64(), steps, "{text}");
        }
    }
}

#[test]
fn arguments_of_the_other_path_are_refused() {
    let out = tempfile::tempdir().expect("a folder");
    let refused = |args: &[&str]| {
        let output = run(args, out.path());
        assert!(!output.status.success(), "{args:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    for (args, part) in [
        (
            &["--workers", "2"][..],
            "--workers means nothing with --sync stream",
        ),
        (
            &["--sync", "poseidon", "--deltas=exactly-once"],
            "--deltas means nothing with --sync poseidon",
        ),
        (
            &["--sync", "poseidon", "--tester"],
            "--tester means nothing with --sync poseidon",
        ),
        (&["--sync", "poseidon", "--bandwidth", "0"], "--bandwidth 0"),
        (&["--sync", "poseidon", "--scheme", "best"], "hybcomm, sacp"),
        (
            &["--sync", "poseidon", "--servers", "20"],
            "20 servers, but only",
        ),
        (
            &["--sync", "poseidon", "--servers", "0", "--scheme", "ps"],
            "layer conv1 takes scheme ps, which needs a server",
        ),
        (
            &[
                "--sync",
                "poseidon",
                "--servers",
                "0",
                "--stragglers",
                "drop",
            ],
            "--servers, --stragglers: late workers dropped without servers",
        ),
        (
            &["--sync", "poseidon", "--key-file", "/dev/null"],
            "key file /dev/null",
        ),
    ] {
        let said = refused(args);
        assert!(said.contains(part), "{args:?}: {said}");
    }
}

/// Staleness and dropped stragglers through the whole driver; what they promise is tested without
/// I/O.
#[test]
fn stale_and_dropping_runs_come_to_their_ends() {
    let (wait, drop) = (Stragglers::Wait, Stragglers::Drop(0.6));
    for (policy, staleness, stragglers) in [
        (force(Scheme::Ps), 3, wait),
        (force(Scheme::Ps), 0, drop),
        (force(Scheme::OneBit), 0, drop),
        (Policy::HybComm, 0, drop),
        (Policy::Sacp, 0, drop),
    ] {
        let mut setup = setup(policy, 3, 2, 20);
        setup.cluster.staleness = staleness;
        setup.cluster.stragglers = stragglers;
        let found = Cluster::new(setup).run();
        assert!(found.iter().all(|weights| *weights == found[0]));
    }
}

/// Workers and servers each keep theirs, and nothing but time changes: the weights are those of a
/// run without budgets.
#[test]
fn a_budget_is_kept() {
    let unbounded = Cluster::new(setup(force(Scheme::Ps), 2, 1, 3)).run();
    // Bytes of a gradient, or of the weights.
    let bytes = 4.0 * 431_080.0;
    let (rate, pair_bytes) = (20e6, 200_000);
    // Three gradients of a worker; first weights and three steps, each to two workers.
    for (who, sent) in [("worker", 3.0 * bytes), ("server", 8.0 * bytes)] {
        let mut setup = setup(force(Scheme::Ps), 2, 1, 3);
        setup.cluster.pair_bytes = pair_bytes;
        let mut cluster = Cluster::new(setup);
        match who {
            "worker" => cluster.worker_bytes_per_s = Some(rate),
            _ => cluster.server_bytes_per_s = Some(rate),
        }
        let start = Instant::now();
        let found = cluster.run();
        // Less the last message, which is not waited for, and a burst of 5 ms.
        let least = Duration::from_secs_f64((sent - 2.0 * pair_bytes as f64) / rate - 0.005);
        let took = start.elapsed();
        assert!(took >= least, "{who}: {took:?}, not {least:?}");
        assert!(found.iter().all(|w| *w == unbounded[0]), "{who}");
    }
}

/// What a budget holds back keeps its order, so that steps never go back, however stale reads may
/// be.
#[test]
fn budgets_go_with_staleness_and_every_scheme() {
    for scheme in Scheme::ALL {
        let policy = force(scheme);
        let mut setup = setup(policy, 3, servers(policy, 2), 12);
        (setup.cluster.staleness, setup.cluster.pair_bytes) = (2, 200_000);
        let mut cluster = Cluster::new(setup);
        (cluster.worker_bytes_per_s, cluster.server_bytes_per_s) = (Some(100e6), Some(100e6));
        let found = cluster.run();
        assert!(found.iter().all(|w| *w == found[0]), "{scheme}");
    }
}

//! Learning by several nodes with default settings: as one would, at any pace, never further behind
//! than was asked.

#![cfg(feature = "program")]

mod support;

use std::path::Path;
use std::process::Output;
use std::time::Instant;

use serde_json::Value;
use support::output::succeeds;
use support::process::Process;
use support::program::dogwild;
use support::results::{number, summary};
use support::shm::shm_folder;
use support::wait::wait_for;

fn run(args: &[&str], out: &Path) -> Output {
    let mut command = dogwild();
    command.args(["train", "--data", "digits:1,train=4000,test=1000"]);
    command
        .args(args)
        .arg("--out")
        .arg(out)
        .env("RUST_LOG", "warn");
    command.output().expect("it starts")
}

fn train(args: &[&str]) -> Value {
    let folder = tempfile::tempdir().expect("a folder");
    train_into(&folder.path().join("out"), args)
}

fn train_into(out: &Path, args: &[&str]) -> Value {
    let output = run(args, out);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}\n{said}");
    summary(out)
}

fn refusal(args: &[&str]) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let output = run(args, &folder.path().join("out"));
    assert!(!output.status.success(), "{args:?} is taken");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// With a sum of all deltas this ended in NaN, or had learnt next to nothing: `--nodes 4` and
/// nothing else.
#[test]
#[ignore = "long: a whole training"]
fn four_nodes_learn_with_default_settings() {
    let summary = train(&["--nodes", "4", "--iterations", "700"]);
    assert_eq!(summary["replicas_identical"], true);
    assert_eq!(summary["settings"]["stream"]["merge"], "mean");
    let mut portions = 0.0;
    for node in summary["per_node"].as_array().expect("nodes") {
        assert!(number(&node["test_accuracy"]) > 0.9, "{node}");
        portions += number(&node["stream"]["portion_millionths"]) / 1e6;
    }
    // What leaves the portions is a mean: together they are about one.
    assert!((0.7..2.0).contains(&portions), "{portions}");
}

/// Weights that travel as bytes, a tenth of the frames lost: as good, and at the end equal to the
/// bit.
#[test]
#[ignore = "long: a whole training"]
fn nodes_learn_in_int8() {
    let args = ["--nodes", "3", "--iterations", "600", "--precision", "int8"];
    let summary = train(&[args.as_slice(), &["--loss", "10%"]].concat());
    assert_eq!(summary["replicas_identical"], true);
    assert_eq!(summary["settings"]["stream"]["precision"], "int8");
    for node in summary["per_node"].as_array().expect("nodes") {
        assert!(number(&node["test_accuracy"]) > 0.9, "{node}");
    }
    let said = refusal(&["--precision", "int4"]);
    assert!(said.contains("bf16"), "{said}");
}

/// Whatever the payload is, `--rate` bounds what leaves.
#[test]
#[ignore = "long: a whole training"]
fn narrow_payloads_keep_to_the_rate() {
    for precision in ["bf16", "int8"] {
        let began = Instant::now();
        let args = ["--nodes", "2", "--iterations", "60", "--pace-steps", "20"];
        let rate = ["--rate", "1MB", "--precision", precision];
        let summary = train(&[args.as_slice(), &rate].concat());
        // All of the job: streamers live no longer.
        let most = 1e6 * began.elapsed().as_secs_f64() * 1.05 + 100_000.0;
        for node in summary["per_node"].as_array().expect("nodes") {
            let sent = number(&node["stream"]["bytes_sent"]);
            assert!(
                sent > 300_000.0 && sent < most,
                "{precision}: {sent} of {most}"
            );
        }
    }
}

/// Where the link limits, a narrow payload is worth its bytes: weights that go for each byte
/// that left node 0, headers, acks and hellos included. Cycles per second would measure this
/// machine's load too.
#[test]
#[ignore = "long: whole trainings"]
fn narrow_payloads_carry_more_weights_per_byte() {
    let carried = |precision| {
        let args = ["--nodes", "2", "--iterations", "160", "--pace-steps", "20"];
        let rate = ["--rate", "2MB", "--precision", precision];
        let summary = train(&[args.as_slice(), &rate].concat());
        let node = &summary["per_node"][0];
        let chunks = ["positions_sent", "deltas_sent"].map(|of| number(&node["stream"][of]));
        let sent = number(&node["stream"]["bytes_sent"]);
        number(&node["chunk_weights"]) * (chunks[0] + chunks[1]) / sent
    };
    let f32 = carried("f32");
    let (bf16, int8) = (carried("bf16") / f32, carried("int8") / f32);
    assert!(bf16 > 1.9 && int8 > 3.6, "{bf16} and {int8} times f32");
}

/// `--sparse` sends what moved most first, and at the end all has gone.
#[test]
#[ignore = "long: a whole training"]
fn nodes_learn_from_what_moved_most() {
    let args = ["--nodes", "3", "--iterations", "600", "--sparse"];
    let summary = train(&[&args[..], &["--rate", "4MB", "--loss", "10%"]].concat());
    assert_eq!(summary["replicas_identical"], true);
    assert_eq!(summary["settings"]["stream"]["sparse"], true);
    for node in summary["per_node"].as_array().expect("nodes") {
        assert!(number(&node["test_accuracy"]) > 0.9, "{node}");
    }
}

/// The link decides: 1 MB/s is thin for LeNet on any machine, without a limit nothing is known of
/// it.
#[test]
#[ignore = "long: whole trainings"]
fn the_precision_is_chosen_by_the_link() {
    let chosen = |more: &[&str]| {
        let args = ["--nodes", "2", "--iterations", "8"];
        let summary = train(&[args.as_slice(), more].concat());
        summary["settings"]["stream"]["precision"].clone()
    };
    assert_eq!(chosen(&["--rate", "1MB"]), "int8");
    assert_eq!(chosen(&["--pace", "1MB", "--precision", "auto"]), "int8");
    assert_eq!(chosen(&["--rate", "1MB", "--precision", "bf16"]), "bf16");
    assert_eq!(chosen(&[]), "f32");
}

/// Thirty times the rate that LeNet is made for: whether it learns or diverges, the summary says
/// what was seen.
#[test]
fn a_loss_that_rises_is_in_the_summary() {
    let folder = tempfile::tempdir().expect("a folder");
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("models");
    let text = std::fs::read_to_string(models.join("lenet_solver.prototxt")).expect("a model");
    let net = models.join("lenet_train_test.prototxt");
    let lines = text.lines().map(|line| match line.split_once(':') {
        Some(("base_lr", _)) => "base_lr: 0.3".to_owned(),
        Some(("net", _)) => format!("net: \"{}\"", net.display()),
        _ => line.to_owned(),
    });
    let file = folder.path().join("hot.prototxt");
    std::fs::write(&file, lines.collect::<Vec<_>>().join("\n")).expect("written");
    let out = folder.path().join("out");
    let file = file.display().to_string();
    run(
        &["--nodes", "1", "--iterations", "200", "--solver", &file],
        &out,
    );
    let summary = summary(&out);
    let warnings = summary["warnings"].as_array().expect("a list");
    let rose = warnings.iter().find(|w| w["what"] == "loss_rose");
    assert_eq!(rose.expect("it is said")["node"], 0, "{summary}");
}

#[test]
fn a_paced_solver_makes_no_more_steps_than_it_was_told() {
    let began = Instant::now();
    let summary = train(&["--nodes", "2", "--iterations", "60", "--pace-steps", "20"]);
    assert_eq!(summary["settings"]["pace_steps"], 20.0);
    // Two solvers, 30 steps each: 29 pauses of 50 ms.
    assert!(began.elapsed().as_secs_f64() > 1.4);
    assert!(number(&summary["train_s"]) > 1.4, "{summary}");
    let said = refusal(&["--pace-steps", "0"]);
    assert!(
        said.contains("`0` is not a number of steps per second"),
        "{said}"
    );
}

/// A slow node that also stands still for a while: it is missed, comes back, and both agree.
#[test]
fn a_node_that_stood_still_comes_back() {
    let paces = ["--nodes", "2", "--pace-steps", "20,10"];
    let pause = ["--iterations", "120", "--pause", "1:0.5:3"];
    let summary = train(&[&paces[..], &pause].concat());
    let warnings = summary["warnings"].as_array().expect("a list");
    let silent = warnings.iter().any(|w| w["what"] == "silent_node");
    assert!(silent, "{summary}");
    assert_eq!(summary["replicas_identical"], true, "{summary}");
    let seconds = number(&summary["train_s"]);
    assert!(seconds > 3.5, "{summary}");
    let steps = |node: usize| number(&summary["per_node"][node]["iterations"]);
    // A busy machine makes both slower than they may be, and none of them faster.
    for (node, most) in [(0, 20.0 * seconds), (1, 10.0 * (seconds - 3.0))] {
        assert!(
            (4.0..most + 3.0).contains(&steps(node)),
            "{node}: {summary}"
        );
    }
    for (args, says) in [
        (["--pause", "2:1:1"], "--pause 2:...: there are 2 nodes"),
        (["--pause", "1:1"], "`1:1` is not NODE:FROM:SECONDS"),
        (["--pace-steps", "5,5,5"], "is of 3 nodes, --nodes 2"),
    ] {
        let said = refusal(&[&["--nodes", "2"], &args[..]].concat());
        assert!(said.contains(says), "{said}");
    }
}

/// A link on which a pass over the weights takes 3 s, 60 steps of a paced solver; under a load of
/// 12 some ten.
#[test]
#[ignore = "long: a whole training"]
fn no_solver_computes_from_older_weights_than_it_may() {
    // A pass takes 6 s: longer than a step does on a machine with a load of 12.
    let slow = ["--nodes", "2", "--rate", "300KB", "--pace-steps", "20"];
    let oldest = |summary: &Value, node: usize| {
        let stream = &summary["per_node"][node]["stream"];
        number(&stream["age_steps_max"])
    };
    let free = train(&[&slow[..], &["--iterations", "200"]].concat());
    let age = oldest(&free, 0);
    assert!(
        age > 3.0,
        "{age}: the link is fast, this test shows nothing"
    );
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out");
    let bound = ["--iterations", "10", "--max-age", "1"];
    let bound = train_into(&out, &[&slow[..], &bound].concat());
    // One that starts late on a busy machine may have no step left to wait for.
    let said = |node: usize| {
        let log = out.join(format!("node{node}-solver0.log"));
        std::fs::read_to_string(log).expect("a log")
    };
    let waited = |node: usize| {
        let said = said(node);
        said.contains(&format!("waiting for node {}", 1 - node))
            && said.contains("and 1 is the most that is allowed (max_age)")
    };
    assert!(waited(0) || waited(1), "{}\n{}", said(0), said(1));
    // On a machine so busy that a node is not heard for two seconds, it is not waited for.
    let warnings = bound["warnings"].as_array().expect("a list");
    let silent = warnings.iter().any(|w| w["what"] == "silent_node");
    for node in 0..if silent { 0 } else { 2 } {
        // One step more is under way when the age is looked at, one when the position comes.
        assert!(oldest(&bound, node) <= 3.0, "{bound}");
    }
    let said = refusal(&["--max-age", "0"]);
    assert!(said.contains("--max-age"), "{said}");
}

/// Two solvers for each core: streamers take little of what the solvers want, and what they send
/// still arrives.
#[test]
#[ignore = "long: a whole training"]
fn streamers_leave_the_cores_to_solvers() {
    let cores = std::thread::available_parallelism().expect("a number of cores");
    let solvers = cores.to_string();
    let args = ["--nodes", "2", "--solvers", &solvers];
    let summary = train(&[&args[..], &["--iterations", "800"]].concat());
    assert_eq!(summary["replicas_identical"], true);
    let seconds = number(&summary["train_s"]);
    for node in summary["per_node"].as_array().expect("nodes") {
        let stream = &node["stream"];
        let share = number(&stream["cpu_ns"]) / 1e9 / seconds;
        // 4 % while solvers wait; the beginning and the end of a short job are there too.
        assert!(share < 0.25, "{share} of a core: {stream}");
        assert!(number(&stream["positions_taken"]) > 0.0, "{stream}");
    }
}

/// All nodes would test the same positions: each makes every second test.
#[test]
fn nodes_take_turns_in_tests() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out");
    train_into(
        &out,
        &["--nodes", "2", "--iterations", "200", "--test-every", "20"],
    );
    let curve = std::fs::read_to_string(out.join("curve.csv")).expect("a curve");
    for node in ["0,", "1,"] {
        let rows = curve.lines().filter(|row| row.starts_with(node)).count();
        // Five turns and the test at the end; one that was leapt over is left out.
        assert!((2..=6).contains(&rows), "{rows} of node {node}\n{curve}");
    }
}

/// Seconds of the curve are those of the job: a solver that begins late goes on from where the
/// others are, to a hello's interval (0.5 s) exact.
#[test]
fn who_begins_late_counts_from_the_beginning() {
    let folder = shm_folder();
    let session = format!("late-{}", std::process::id());
    let component = |kind: &str, node: &str, args: &[&str]| {
        let mut command = dogwild();
        command.arg(kind).args(args).env("RUST_LOG", "warn");
        command.arg("--buffer").arg(folder.path().join(node));
        command
    };
    let _streamers = ["0", "1"].map(|node| {
        succeeds(&mut component("init", node, &["--session", &session]));
        Process::start(&mut component("stream", node, &["--node", node]))
    });
    let solver = |node| {
        let curve = folder.path().join(format!("curve{node}"));
        let args = [
            "--data",
            "digits:1,train=1000,test=100",
            "--test-every",
            "1",
        ];
        let mut command = component("solver", node, &args);
        command.args(["--node", node, "--curve"]).arg(&curve);
        (Process::start(&mut command), curve)
    };
    // Of each row: the seconds.
    let seconds = |curve: &Path| -> Vec<f64> {
        let rows = std::fs::read_to_string(curve).unwrap_or_default();
        let second = |row: &str| row.split(',').nth(3)?.parse().ok();
        rows.lines().skip(1).filter_map(second).collect()
    };
    let (_zero, zero) = solver("0");
    wait_for("three seconds of training", || {
        seconds(&zero).last() > Some(&3.0)
    });
    let (mut late, one) = solver("1");
    wait_for("a test of node 1", || !seconds(&one).is_empty());
    assert!(seconds(&one)[0] > 2.0, "{:?}", seconds(&one));
    late.kill();
    let before = seconds(&zero).last().copied();
    wait_for("another second of training", || {
        seconds(&zero).last().copied() > before.map(|before| before + 1.0)
    });
    let tested = seconds(&one).len();
    let (_late, _) = solver("1");
    wait_for("another test of node 1", || seconds(&one).len() > tested);
    assert!(seconds(&one)[tested..].first() > before.as_ref());
}

/// A node that masters all weights and has no solver, two that learn and master nothing, one that
/// only tests.
#[test]
fn nodes_may_master_learn_or_test_only() {
    roles_hold("200", 0.5);
}

#[test]
#[ignore = "long: a whole training"]
fn nodes_learn_well_from_those_that_learn() {
    roles_hold("500", 0.9);
}

fn roles_hold(iterations: &str, least_accuracy: f64) {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out");
    let roles = ["--nodes", "3", "--masters", "1", "--solvers", "0,1,1"];
    let rest = ["--tester", "--iterations", iterations, "--test-every", "50"];
    let summary = train_into(&out, &[&roles[..], &rest, &["--loss", "5%"]].concat());
    assert_eq!(summary["replicas_identical"], true);
    // On a busy machine a node may not be heard for a while.
    let warnings = summary["warnings"].as_array().expect("a list");
    let silent = |warning: &Value| warning["what"] == "silent_node";
    assert!(warnings.iter().all(silent), "{summary}");
    let nodes = summary["per_node"].as_array().expect("nodes");
    let of = |name: &str| -> Vec<f64> {
        let values = nodes.iter().map(|node| match &node[name] {
            Value::Null => number(&node["stream"][name]),
            value => number(value),
        });
        values.collect()
    };
    let iterations = of("iterations");
    assert_eq!(iterations.len(), 4);
    assert!(iterations[1] > 0.0 && iterations[2] > 0.0, "{iterations:?}");
    assert_eq!((iterations[0], iterations[3]), (0.0, 0.0));
    let sent = of("positions_sent");
    assert!(sent[0] > 0.0, "{sent:?}");
    assert_eq!(sent[1..], [0.0; 3]);
    // A tenth is chance: all of them hold what two have learnt.
    let accuracy = of("test_accuracy");
    assert!(
        accuracy.iter().all(|share| *share > least_accuracy),
        "{summary}"
    );
    // Every row of the curve is of the node that tests.
    let curve = std::fs::read_to_string(out.join("curve.csv")).expect("a curve");
    let rows: Vec<&str> = curve.lines().skip(1).collect();
    assert!(rows.len() >= 2, "{curve}");
    assert!(rows.iter().all(|row| row.starts_with("3,")), "{curve}");
}

/// A job with a node that only tests goes on, and tests from where it was.
#[test]
fn a_job_with_a_tester_goes_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out");
    let first = ["--tester", "--iterations", "60", "--test-every", "20"];
    train_into(&out, &first);
    let on = ["--resume", "--tester", "--iterations", "160"];
    let summary = train_into(&out, &[&on[..], &["--test-every", "20"]].concat());
    assert!(number(&summary["iterations"]) >= 160.0, "{summary}");
    assert!(
        number(&summary["resumed_from_iteration"]) >= 60.0,
        "{summary}"
    );
    let curve = std::fs::read_to_string(out.join("curve.csv")).expect("a curve");
    let rows: Vec<&str> = curve.lines().skip(1).collect();
    assert!(rows.iter().all(|row| row.starts_with("2,")), "{curve}");
    let iterations = |row: &str| row.split(',').nth(2)?.parse::<u64>().ok();
    let last = rows.last().and_then(|row| iterations(row));
    assert!(last >= Some(100), "{curve}");
}

#[test]
fn roles_that_cannot_be_are_refused() {
    for (args, says) in [
        (["--solvers", "0"], "no node learns"),
        (["--solvers", "1,1,1"], "of 3 nodes"),
        (["--solvers", "40"], "0 to 32"),
        (["--masters", "3"], "give 1 to 2"),
        (["--places", "1"], "--places 1 for 2"),
        (["--min-nodes", "3"], "--min-nodes 3 of 2"),
        (["--quorum", "3"], "--quorum 3 of 2 nodes: give 1 to 2"),
        (["--quorum", "60%"], "--quorum 0.6 of 2 nodes"),
        (["--masters", "0"], "--masters"),
    ] {
        let said = refusal(&args);
        assert!(said.contains(says), "{args:?}: {said}");
    }
    let said = refusal(&["--nodes", "64", "--tester"]);
    assert!(said.contains("give 63 nodes at most"), "{said}");
}

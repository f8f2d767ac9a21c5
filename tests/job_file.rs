//! Job files: what `dogwild job` says of them, and that `dogwild launch` runs them.

#![cfg(feature = "program")]

mod support;

use std::path::{Path, PathBuf};
use std::process::Output;

use support::output::said;
use support::program::dogwild;

fn run(args: &[&str], file: &Path, flags: &[&str]) -> Output {
    let mut command = dogwild();
    command.args(args).arg(file).args(flags);
    command.output().expect("it runs")
}

/// The examples of the tree.
fn examples() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("jobs");
    let entries = std::fs::read_dir(&folder).expect("jobs/").flatten();
    let files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    assert!(files.len() >= 4, "{files:?}");
    files
}

#[test]
fn each_example_is_a_good_job() {
    for file in examples() {
        let text = std::fs::read_to_string(&file).expect("a file");
        if text.contains("DOGWILD_DATA") && std::env::var_os("DOGWILD_DATA").is_none() {
            dogwild_lab::skip::skip("DOGWILD_DATA names no folder with real data");
            continue;
        }
        let checked = run(&["job", "check"], &file, &[]);
        assert!(checked.status.success(), "{}", said(&checked));
        let shown = run(&["job", "show"], &file, &[]);
        assert!(shown.status.success(), "{}", said(&shown));
    }
}

/// What a job is made from is written, and the same job is made from that.
#[test]
fn a_saved_job_is_the_job() {
    let folder = tempfile::tempdir().expect("a folder");
    let (job, out) = (folder.path().join("job.toml"), folder.path().join("out"));
    let flags = [
        "--data",
        "digits:5,train=300,test=100",
        "--iterations",
        "40",
        "--loss",
        "5%",
    ];
    let mut train = dogwild();
    train.args(["train", "--save-job"]).arg(&job).args(flags);
    let trained = train.arg("--out").arg(&out).output().expect("it runs");
    assert!(trained.status.success(), "{}", said(&trained));
    let again = folder.path().join("again");
    let again_flags = ["--out", again.to_str().expect("UTF-8")];
    let launched = run(&["launch"], &job, &again_flags);
    assert!(launched.status.success(), "{}", said(&launched));
    let settings = |out: &Path| {
        let text = std::fs::read_to_string(out.join("summary.json")).expect("a summary");
        let summary: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let mut settings = summary["settings"].clone();
        assert!(settings.is_object(), "{text}");
        settings["out"] = serde_json::Value::Null;
        settings
    };
    assert_eq!(settings(&out), settings(&again));
}

/// Jobs that cannot be, and what is said of them.
const WRONG: [(&str, &[&str]); 40] = [
    ("nodes = 0", &[":1: nodes = '0'", "1..=64"]),
    ("nodes = 65", &[":1: nodes = '65'"]),
    ("nodes = \"two\"", &[":1: nodes = 'two'", "whole number"]),
    ("nods = 2", &[":1: unknown field `nods`", "`nodes`"]),
    ("nodes = 2\nnodes = 3", &[":2: duplicate key"]),
    ("nodes: 2", &[":1: "]),
    (
        "nodes = 2\nsolvers = [1, 1, 1]",
        &[":2: --solvers 1,1,1 is of 3 nodes"],
    ),
    ("solvers = 33", &[":1: solvers = '33'", "0 to 32"]),
    ("solvers = 0", &[":1: --solvers 0: no node learns"]),
    ("solver = \"lenett\"", &[":", "did you mean `lenet`"]),
    ("solver = \"/no/net.prototxt\"", &["/no/net.prototxt"]),
    ("solver = \"cifar10_quick\"", &["say where they are"]),
    (
        "data = \"minst:DIR\"",
        &[":1: data = 'minst:DIR'", "did you mean `mnist`"],
    ),
    ("data = \"mnist:/nowhere\"", &["/nowhere"]),
    (
        "data = \"mnist:${DOGWILD_NO}\"",
        &[":1: data: the environment has no DOGWILD_NO"],
    ),
    (
        "data = \"mnist:${DOGWILD_NO\"",
        &[":1: data: `${` without `}`"],
    ),
    ("target_accuracy = 98", &[":1: target_accuracy = '98'"]),
    (
        "pause = [\"5:1:1\"]",
        &[":1: --pause 5:...: there are 2 nodes"],
    ),
    ("pace_steps = -1", &[":1: pace_steps = '-1'"]),
    ("max_age = 0", &[":1: max_age = '0'"]),
    (
        "snapshot_every = \"never\"",
        &[":1: snapshot_every = 'never'"],
    ),
    ("lab = \"yes\"", &[":1: lab is true or false"]),
    ("lab_rate = \"1MB\"", &["--lab"]),
    (
        "lab_rate = \"fast\"\nlab = true",
        &[":1: lab_rate = 'fast'"],
    ),
    (
        "sync = \"streams\"",
        &[":1: sync = 'streams'", "stream, poseidon"],
    ),
    (
        "sync = \"poseidon\"\nnodes = 2",
        &[":2: --nodes means nothing"],
    ),
    ("[poseidon]\nworkers = 2", &[":2: --workers means nothing"]),
    (
        "[transport]\ntransport = \"tcp\"",
        &[":2: transport = 'tcp'", "packet_mmap"],
    ),
    (
        "[transport]\ntransport = \"packet_mmap\"",
        &["needs a cable"],
    ),
    ("[transport]\nmtu = 50", &[":2: mtu = '50'"]),
    ("[transport]\nkey_file = \"/no/key\"", &["/no/key"]),
    (
        "[stream]\nprecision = \"f16\"",
        &[":2: precision = 'f16'", "bf16"],
    ),
    ("[stream]\nplaces = 1", &[":2: --places 1 for 2 nodes"]),
    ("[stream]\nmasters = 5", &[":2: --masters 5 of 2 nodes"]),
    ("[stream]\nquorum = 3", &[":2: --quorum 3 of 2 nodes"]),
    ("[stream]\nrate = 10", &[":2: rate = '10'", "too few"]),
    (
        "[stream]\nloss = 0.1",
        &[":2: field `loss` belongs into [faults]"],
    ),
    ("[faults]\nloss = 10", &[":2: loss = '10'", "write 10%"]),
    ("[faults.bursts]\np = 1", &[":1: "]),
    ("[link]\nrate = 1", &[":1: unknown table [link]"]),
];

/// Each is refused before anything is made, with exit code 2, by its line and in these words.
#[test]
fn wrong_jobs_are_told_with_what_to_do() {
    let mut complaints = Vec::new();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("job.toml");
    for (text, words) in WRONG {
        std::fs::write(&file, text).expect("written");
        for action in [&["job", "check"][..], &["launch"]] {
            let refused = run(action, &file, &[]);
            let said = said(&refused);
            if refused.status.code() != Some(2) {
                complaints.push(format!("{text}: {:?}: {said}", refused.status));
            }
            let place = format!("{}", file.display());
            for word in words.iter().copied().chain([place.as_str()]) {
                if !said.contains(word) {
                    complaints.push(format!("`{word}` is missing for {text}: {said}"));
                }
            }
        }
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    let missing = run(&["launch"], &folder.path().join("none.toml"), &[]);
    let said = said(&missing);
    assert!(
        said.contains("none.toml") && said.contains("--save-job"),
        "{said}"
    );
}

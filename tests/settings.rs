//! `--settings` of the component programs, and the files that `dogwild train` leaves of them.

#![cfg(feature = "program")]

mod support;

use std::io::{Seek, Write};
use std::path::Path;
use std::process::Output;

use dogwild::weights::{Expect, SharedWeights};
use serde_json::{Value, json};
use support::output::said;
use support::program::dogwild;

const DATA: &str = "digits:2,train=400,test=100";
const KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

fn read(file: &Path) -> Value {
    let text = std::fs::read(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    serde_json::from_slice(&text).expect("JSON")
}

/// Runs a component with settings on its standard input.
fn component(name: &str, settings: &Value) -> Output {
    let mut file = tempfile::tempfile().expect("a file");
    write!(file, "{settings}").expect("written");
    file.rewind().expect("a file");
    let mut command = dogwild();
    command.args([name, "--settings", "-"]).stdin(file);
    command.output().expect("it runs")
}

/// The path of the key is in them, the key is not; and a component takes them by hand.
#[test]
fn a_job_leaves_the_settings_of_its_components_and_they_start_one() {
    use std::os::unix::fs::OpenOptionsExt;
    let folder = tempfile::tempdir().expect("a folder");
    let (out, key) = (folder.path().join("out"), folder.path().join("key"));
    let mut file = std::fs::OpenOptions::new();
    let file = file.write(true).create_new(true).mode(0o600).open(&key);
    file.expect("a file")
        .write_all(KEY.as_bytes())
        .expect("written");
    let trained = dogwild()
        .args([
            "train",
            "--data",
            DATA,
            "--iterations",
            "20",
            "--loss",
            "1%",
        ])
        .arg("--key-file")
        .arg(&key)
        .arg("--out")
        .arg(&out)
        .output()
        .expect("it runs");
    assert!(trained.status.success(), "{}", said(&trained));

    let names = [
        "node0-stream",
        "node1-stream",
        "node0-solver0",
        "node1-solver0",
    ];
    let [_, stream, solver, other] = names.map(|name| {
        let file = out.join(format!("{name}-settings.json"));
        let text = std::fs::read_to_string(&file).expect("the settings");
        assert!(!text.contains(KEY), "the key is in {}", file.display());
        read(&file)
    });
    assert_eq!(stream["transport"]["key_file"], json!(key));
    assert_eq!(stream["faults"]["loss"], json!(0.01));
    assert_eq!(stream["faults"]["fault_seed"], json!(2));
    assert_eq!(other["shard"], json!({"index": 1, "of": 2}));
    assert_eq!(other["data"], json!(DATA));

    // The buffer of the job is gone: a new one, for one node.
    let buffer = format!("/dev/shm/dogwild-test-settings-{}", std::process::id());
    let made = dogwild()
        .args([
            "init",
            "--nodes",
            "1",
            "--iterations",
            "5",
            "--data",
            DATA,
            "--buffer",
            &buffer,
        ])
        .output()
        .expect("it runs");
    assert!(made.status.success(), "{}", said(&made));
    let mut solver = solver;
    solver["buffer"] = json!(buffer);
    let solved = component("solver", &solver);
    let iterations = SharedWeights::open(Path::new(&buffer), &Expect::default())
        .map(|shared| shared.globals().iterations());
    for end in ["", ".solver0"] {
        let _ = std::fs::remove_file(format!("{buffer}{end}"));
    }
    assert!(solved.status.success(), "{}", said(&solved));
    assert_eq!(iterations.expect("the buffer"), 5);
}

#[test]
fn settings_that_cannot_be_are_refused_with_what_was_meant() {
    for (name, settings, words) in [
        (
            "solver",
            json!({"buffer": "b", "itertions": 1, "sede": 1}),
            &["standard input", "unknown field `itertions`", "`seed`"][..],
        ),
        (
            "solver",
            json!({"buffer": "b", "sede": 1}),
            &["standard input", "did you mean `seed`"],
        ),
        (
            "stream",
            json!({"buffer": "b", "node": 16}),
            &["standard input: node 16 of 16 places"],
        ),
        (
            "tester",
            json!({"buffer": "b", "test_every": 0}),
            &["standard input: test_every 0"],
        ),
    ] {
        let refused = component(name, &settings);
        let said = said(&refused);
        assert_eq!(refused.status.code(), Some(1), "{said}");
        for word in words {
            assert!(said.contains(word), "`{word}` is missing in: {said}");
        }
    }
    let refused = dogwild()
        .args(["stream", "--settings", "f.json", "--node", "1"])
        .output()
        .expect("it runs");
    let said = said(&refused);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(
        said.contains("--settings") && said.contains("--node"),
        "{said}"
    );
}

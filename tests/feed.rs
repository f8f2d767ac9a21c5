//! Training on a host without files: the pictures come from `dogwild feed`.

#![cfg(feature = "program")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use safetensors::SafeTensors;

const PICTURES: &str = "digits:1,train=600,test=200";

fn dogwild(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dogwild"));
    dogwild_lab::process::die_with_parent(&mut command);
    command.args(args).stdin(Stdio::null());
    command
}

/// A feed on loopback and the source that names it.
fn feed() -> (Child, String) {
    let args = ["feed", "--data", PICTURES, "--listen", "127.0.0.1:0"];
    let mut command = dogwild(&args);
    let mut child = command.stderr(Stdio::piped()).spawn().expect("it starts");
    let said = BufReader::new(child.stderr.take().expect("a pipe"));
    let source = said.lines().find_map(|line| {
        let line = line.expect("text");
        let source = line.split("--data ").nth(1)?;
        Some(source.replace("HOST", "127.0.0.1"))
    });
    (child, source.expect("it says how it is named"))
}

fn train(data: &str, out: &Path) -> std::process::Output {
    let mut command = dogwild(&[
        "train",
        "--nodes",
        "1",
        "--iterations",
        "30",
        "--data",
        data,
    ]);
    command.arg("--out").arg(out).output().expect("it starts")
}

#[test]
fn fed_pictures_train_to_the_very_weights_that_files_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut child, source) = feed();
    let weights = |data: &str, name: &str| {
        let out = folder.path().join(name);
        let output = train(data, &out);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{data}: {said}");
        let file = std::fs::read(out.join("weights.safetensors")).expect("weights");
        let tensors = SafeTensors::deserialize(&file).expect("safetensors");
        let bytes = tensors
            .iter()
            .map(|(name, tensor)| (name.to_owned(), tensor.data().to_vec()));
        bytes.collect::<BTreeMap<_, _>>()
    };
    let fed = weights(&source, "fed");
    assert!(fed.len() > 4 && fed == weights(PICTURES, "files"));
    // Another kind than is fed, before anything is made.
    let other = source.replace("digits", "mnist");
    let output = train(&other, &folder.path().join("other"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains(&format!("--data {source}")), "{said}");
    child.kill().expect("it runs");
    child.wait().expect("it ends");
}

#[test]
fn a_feed_that_cannot_listen_or_read_says_so() {
    for (args, names) in [
        (
            ["--data", "mnist:/no/such", "--listen", "127.0.0.1:0"],
            "/no/such",
        ),
        (
            [
                "--data",
                "digits:1,train=10,test=10",
                "--listen",
                "192.0.2.1:1",
            ],
            "192.0.2.1:1",
        ),
        (
            ["--data", "digits:1,train=10,test=10", "--listen", "here"],
            "here",
        ),
    ] {
        let output = dogwild(&["feed"]).args(args).output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && said.contains(names),
            "{args:?}: {said}"
        );
    }
}

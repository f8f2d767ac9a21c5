//! Training on a host without files: the pictures come from `dogwild feed`.

#![cfg(feature = "program")]

mod support;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use safetensors::SafeTensors;
use support::output::{assert_says, refused};
use support::process::Process;
use support::program::dogwild;

const PICTURES: &str = "digits:1,train=600,test=200";

/// A feed on loopback and the source that names it.
fn feed() -> (Process, String) {
    let args = ["feed", "--data", PICTURES, "--listen", "127.0.0.1:0"];
    // Standard error is the pipe that is read here: it is open as long as the feed runs.
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let mut command = dogwild();
    let child = Process::start(command.args(args).stderr(Stdio::from(writer)));
    drop(command);
    let said = BufReader::new(reader);
    let source = said.lines().find_map(|line| {
        let line = line.expect("text");
        let source = line.split("--data ").nth(1)?;
        Some(source.replace("HOST", "127.0.0.1"))
    });
    (child, source.expect("it says how it is named"))
}

fn train(data: &str, out: &Path) -> std::process::Output {
    let mut command = dogwild();
    command.args([
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
    let (mut feed, source) = feed();
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
    assert!(said.contains(&format!("ask for {source}")), "{said}");
    assert!(
        feed.ended().is_none(),
        "it feeds for as long as it is asked"
    );
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
        assert_says(&refused(dogwild().arg("feed").args(args)), &[names]);
    }
}

//! Wrong model files, wrong pictures and wrong shares: each mistake is told for what it is.

#![cfg(feature = "program")]

mod support;

use std::path::{Path, PathBuf};

use support::output::{assert_says, succeeds};
use support::program::dogwild;
use tempfile::TempDir;

/// Runs `dogwild` with `words`, which must refuse, and returns what it said.
fn refused(words: &[&str]) -> String {
    let said = support::output::refused(dogwild().args(words));
    assert!(said.matches("os error").count() <= 1, "told twice: {said}");
    said
}

/// A folder with files of a model in it.
struct Model(TempDir);

const NET: &str = r#"name: "small"
layer { name: "data" type: "Data" top: "data" top: "label" data_param { batch_size: 8 } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"#;

const SOLVER: &str = "net: \"net.prototxt\"\nbase_lr: 0.1\nlr_policy: \"fixed\"\nmax_iter: 10\n";

impl Model {
    fn new(solver: &str, net: &str) -> Self {
        let model = Self(tempfile::tempdir().expect("a folder"));
        std::fs::write(model.file("solver.prototxt"), solver).expect("a file");
        std::fs::write(model.file("net.prototxt"), net).expect("a file");
        model
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// What `init` says about the file `name`.
    fn refused(&self, name: &str, more: &[&str]) -> String {
        let (file, buffer) = (self.file(name), self.file("buffer"));
        let text = |path: &Path| path.display().to_string();
        let (file, buffer) = (text(&file), text(&buffer));
        let words = ["init", "--buffer", &buffer, "--solver", &file];
        refused(&[&words, more].concat())
    }
}

#[test]
fn solver_and_net_files_are_told_apart() {
    let model = Model::new(SOLVER, NET);
    let said = model.refused("net.prototxt", &[]);
    assert_says(
        &said,
        &["net.prototxt is a net file, not a solver file", "base_lr"],
    );
    let of_solver = SOLVER.replace("net.prototxt", "solver.prototxt");
    let said = Model::new(&of_solver, NET).refused("solver.prototxt", &[]);
    assert_says(&said, &["is a solver file, not a net file"]);
}

#[test]
fn braces_that_do_not_match_are_named_where_they_are() {
    let open = NET.replacen("batch_size: 8 } }", "batch_size: 8 }", 1);
    let said = Model::new(SOLVER, &open).refused("solver.prototxt", &[]);
    assert_says(&said, &["net.prototxt:2:", "never closed"]);
    let close = format!("{NET}}}\n");
    let said = Model::new(SOLVER, &close).refused("solver.prototxt", &[]);
    assert_says(&said, &["net.prototxt:6:", "closes nothing"]);
}

#[test]
fn unknown_names_get_the_nearest_known_one() {
    let solver = |from: &str, to: &str| {
        Model::new(&SOLVER.replace(from, to), NET).refused("solver.prototxt", &[])
    };
    assert_says(
        &solver("base_lr", "base_rl"),
        &["solver.prototxt:2:", "`base_lr`"],
    );
    assert_says(&solver("fixed", "fixd"), &["fixd", "`fixed`", "sigmoid"]);
    let net = |from: &str, to: &str| {
        Model::new(SOLVER, &NET.replace(from, to)).refused("solver.prototxt", &[])
    };
    assert_says(
        &net("InnerProduct", "InerProduct"),
        &["InerProduct", "`InnerProduct`"],
    );
    assert_says(
        &net("num_output", "num_outputs"),
        &["num_outputs", "`num_output`"],
    );
    let said = refused(&["train", "--solver", "lenett"]);
    assert_says(&said, &["lenett", "`lenet`", "cifar10_quick"]);
    let said = refused(&["train", "--data", "minst:/data"]);
    assert_says(&said, &["minst:/data", "`mnist`"]);
    let said = refused(&["train", "--transport", "upd"]);
    assert_says(&said, &["udp"]);
}

#[test]
fn numbers_of_a_solver_that_make_no_sense_are_refused_with_their_line() {
    for (from, to, line, says) in [
        ("base_lr: 0.1", "base_lr: -0.1", ":2:", "-0.1 is not a rate"),
        ("base_lr: 0.1", "base_lr: nan", ":2:", "not a rate"),
        (
            "max_iter: 10",
            "max_iter: 10\nmomentum: 1.5",
            ":5:",
            "1.5 is outside 0",
        ),
        (
            "max_iter: 10",
            "max_iter: 10\nmomentum: -0.5",
            ":5:",
            "-0.5 is outside 0",
        ),
        (
            "max_iter: 10",
            "max_iter: 10\nweight_decay: -1",
            ":5:",
            "-1 is outside 0",
        ),
        ("max_iter: 10", "max_iter: -10", ":4:", "negative"),
        (
            "\"fixed\"",
            "\"step\"\ngamma: -0.5\nstepsize: 5",
            ":4:",
            "-0.5 makes no rate",
        ),
        (
            "\"fixed\"",
            "\"step\"\ngamma: 0.5\nstepsize: 0",
            ":5:",
            "divides by it",
        ),
        (
            "\"fixed\"",
            "\"inv\"\ngamma: 0.5\npower: nan",
            ":5:",
            "makes no rate",
        ),
    ] {
        let said = Model::new(&SOLVER.replace(from, to), NET).refused("solver.prototxt", &[]);
        assert_says(&said, &["solver.prototxt", line, says]);
    }
}

#[test]
fn pictures_are_never_taken_in_silence() {
    for command in ["train", "init", "solver", "worker"] {
        let mut words = vec![command, "--solver", "cifar10_quick"];
        if command != "train" {
            words.extend(["--buffer", "/dev/shm/dogwild-test-d-none"]);
        }
        if command == "worker" {
            words.extend(["--index", "0", "--coordinator", "127.0.0.1:9"]);
        }
        assert_says(&refused(&words), &["cifar10_quick", "--data cifar10:DIR"]);
    }
    let sourced = NET.replace("batch_size: 8", "batch_size: 8 source: \"mnist_lmdb\"");
    let model = Model::new(SOLVER, &sourced);
    let said = model.refused("solver.prototxt", &[]);
    assert_says(&said, &["net.prototxt:2", "mnist_lmdb", "--data mnist:DIR"]);
}

#[test]
fn what_is_read_instead_is_said() {
    let sourced = NET.replace("batch_size: 8", "batch_size: 8 source: \"mnist_lmdb\"");
    for (net, more, says) in [
        (
            sourced.as_str(),
            &["--data", "digits"][..],
            "`source: \"mnist_lmdb\"` is not read",
        ),
        (NET, &[], "pictures: digits"),
    ] {
        let model = Model::new(SOLVER, net);
        let mut command = dogwild();
        command
            .arg("init")
            .arg("--solver")
            .arg(model.file("solver.prototxt"));
        command.arg("--buffer").arg(model.file("buffer")).args(more);
        assert_says(&succeeds(&mut command), &[says]);
    }
}

/// On the code before, the buffer was replaced first, and a name that was mistyped cost its
/// weights.
#[test]
fn weights_that_cannot_be_read_cost_no_buffer() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("buffer");
    let buffer = path.to_str().expect("a name");
    let init = [
        "init",
        "--buffer",
        buffer,
        "--fresh",
        "--weights",
        "/no/such",
    ];
    assert_says(&refused(&init), &["/no/such"]);
    assert!(!path.exists(), "half a buffer is left");
    succeeds(dogwild().args(&init[..3]));
    let before = std::fs::read(&path).expect("a buffer");
    refused(&init);
    assert!(
        before == std::fs::read(&path).expect("the buffer"),
        "it was replaced"
    );
    let said = refused(&["init", "--buffer", "/no/such/folder/b"]);
    assert_says(&said, &["cannot make the buffer /no/such/folder/b"]);
}

#[test]
fn shares_and_rates_are_read_alike_and_refused_with_a_reason() {
    for option in [
        "--loss",
        "--duplicate",
        "--reorder",
        "--corrupt",
        "--target-accuracy",
    ] {
        let said = |value: &str| refused(&["train", option, value]);
        assert_says(&said("99"), &[option, "99% or 0.99"]);
        assert_says(&said("-10%"), &[option, "`-10%` is not between 0 and 1"]);
        assert_says(&said("-0.1"), &[option, "`-0.1` is not between 0 and 1"]);
        assert_says(&said("ten"), &[option, "write 0.1 or 10%"]);
    }
    let said = |words: &[&str]| refused(&[&["train"], words].concat());
    assert_says(&said(&["--loss-burst", "1%,150%"]), &["`150%`", "P,R"]);
    assert_says(&said(&["--loss-burst", "-1%,50%"]), &["`-1%`"]);
    assert_says(
        &said(&["--delay", "-5"]),
        &["--delay", "between 0 and 10000 ms"],
    );
    assert_says(&said(&["--rate", "0"]), &["--rate", "1kB or more"]);
    assert_says(&said(&["--rate", "-5MB"]), &["--rate", "-5MB"]);
    assert_says(&said(&["--nodes", "-1"]), &["--nodes", "-1", "1..=64"]);
    assert_says(&said(&["--iterations", "-1"]), &["--iterations", "-1"]);
    assert_says(
        &said(&["--rate", "1MB", "--rate", "2MB"]),
        &["--rate", "multiple times"],
    );
}

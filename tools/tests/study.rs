//! `dogwild-study` as a person runs it.

mod support;

use std::path::Path;
use std::process::Output;

use support::{STUDY, tool};

fn twin(args: &[&str]) -> Output {
    let mut command = tool(STUDY);
    command.args(["twin", "--data", "digits:1,train=400,test=200"]);
    command.args(args);
    command.output().expect("it starts")
}

#[test]
fn a_twin_says_the_same_of_the_same_seed() {
    let run = |seed: &str| {
        let args = [
            "--nodes",
            "3",
            "--iterations",
            "24",
            "--test-every",
            "12",
            "--loss",
            "10%",
        ];
        let output = twin(&[&args[..], &["--seed", seed]].concat());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let [once, again, other] = ["5", "5", "6"].map(run);
    assert_eq!(once, again);
    assert_ne!(once, other);
    assert_eq!(once.lines().count(), 2, "{once}");
    assert!(
        once.lines()
            .all(|line| line.contains("accuracy") && line.contains("stride"))
    );
}

/// A bad network and a node that stands still follow from the seed as all else does.
#[test]
fn bursts_and_pauses_are_in_virtual_time_too() {
    let args = ["--nodes", "3", "--iterations", "24", "--test-every", "24"];
    let bad = [
        "--loss-burst",
        "0.02,0.2",
        "--duplicate",
        "1%",
        "--reorder",
        "2%",
    ];
    let run = |more: &[&str]| {
        let output = twin(&[&args[..], more].concat());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let paused = [&bad[..], &["--pause", "1:0.03:5"]].concat();
    let (good, once, again) = (run(&[]), run(&bad), run(&bad));
    assert_eq!(once, again);
    assert_ne!(good, once);
    assert_ne!(once, run(&paused));
}

#[test]
fn several_seeds_give_median_and_range() {
    let args = ["--nodes", "2", "--iterations", "24", "--test-every", "12"];
    let one = |seed: &str| -> f64 {
        let output = twin(&[&args[..], &["--seed", seed]].concat());
        let text = String::from_utf8(output.stdout).expect("text");
        let accuracy = text
            .lines()
            .last()
            .and_then(|line| line.split("accuracy ").nth(1));
        let number = accuracy
            .and_then(|rest| rest.split(' ').next())
            .expect("an accuracy");
        number.parse().expect("a number")
    };
    let mut found = ["3", "4", "5"].map(one);
    found.sort_by(f64::total_cmp);
    let seeds = ["--seed", "3", "--seeds", "3", "--target-accuracy", "1%"];
    let output = twin(&[&args[..], &seeds].concat());
    let said = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success(), "{said}");
    // The target is reached by the first test, which ends the training.
    assert!(
        said.contains("to the target") && !said.contains("24"),
        "{said}"
    );
    let output = twin(&[&args[..], &seeds[..4]].concat());
    let said = String::from_utf8(output.stdout).expect("text");
    let row = format!("{:.2} to {:.2}", found[0], found[2]);
    assert!(
        said.contains(&row) && said.contains(&format!("{:.2} %", found[1])),
        "{row}: {said}"
    );
    assert!(
        said.lines().all(|line| line.chars().count() <= 80),
        "{said}"
    );
    let output = twin(&[&args[..], &["--target-accuracy", "100%"]].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("no test reached 100 %"),
        "{said}"
    );
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    for (args, names) in [
        (["--nodes", "0"], "--nodes"),
        (["--nodes", "300"], "--nodes"),
        (["--test-every", "0"], "--test-every"),
        (["--loss", "2"], "--loss"),
        (["--rate", "0"], "--rate"),
        (["--step-ms", "0"], "is not a number above 0"),
        (["--test-images", "10"], "--test-images"),
        (["--seeds", "0"], "--seeds"),
        (["--target-accuracy", "98.5"], "--target-accuracy"),
        (["--solver", "lenett"], "lenet"),
        (["--loss-burst", "0.1"], "--loss-burst"),
        (["--reorder", "2"], "--reorder"),
        (["--pause", "1:2"], "is not NODE:FROM:SECONDS"),
        (["--pause", "1:2:-3"], "is not NODE:FROM:SECONDS"),
        (["--pause", "4:1:1"], "there are 4 nodes, from 0 on"),
    ] {
        let output = twin(&args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && said.contains(names),
            "{args:?}: {said}"
        );
        assert!(!said.contains("panicked"), "{said}");
    }
}

fn repeat(args: &[&str]) -> Output {
    let mut command = tool(STUDY);
    command.arg("repeat").args(args);
    command.output().expect("it starts")
}

#[test]
fn runs_of_several_seeds_make_a_table() {
    if !Path::new(STUDY).with_file_name("dogwild").is_file() {
        return dogwild_lab::skip::skip("dogwild is not built: cargo test --workspace builds it");
    }
    let train = [
        "--data",
        "digits:1,train=400,test=200",
        "--iterations",
        "40",
    ];
    let seeds = ["--seeds", "2", "--seed", "7", "--"];
    let target = ["--test-every", "10", "--target-accuracy"];
    let output = repeat(&[&seeds[..], &train, &target, &["1%"]].concat());
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let notes = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}\n{notes}");
    for row in ["accuracy at the end", "iterations/s", "s to the target"] {
        let line = said.lines().find(|line| line.contains(row));
        let line = line.unwrap_or_else(|| panic!("no row `{row}`:\n{said}\n{notes}"));
        assert!(line.trim_end().ends_with("2 │"), "{line}");
    }
    assert!(
        notes.contains("seed 7: ") && notes.contains("seed 8: "),
        "{notes}"
    );
    // What no run reaches is said, and is a failure.
    let output = repeat(&[&seeds[..], &train, &target, &["100%"]].concat());
    let notes = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{notes}");
    assert!(notes.contains("seed 8 did not reach the target"), "{notes}");
}

#[test]
fn what_repeat_sets_itself_is_refused() {
    let refused = |args: &[&str], part: &str| {
        let output = repeat(args);
        let notes = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && notes.contains(part), "{notes}");
    };
    refused(&["--", "--seed=3"], "--seed is set for each run");
    refused(&["--", "--out", "x"], "--out is set for each run");
    refused(&[], "ARGUMENTS");
}

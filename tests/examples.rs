//! The examples, run as a reader runs them. Cargo builds them for `cargo test`.

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use support::output::{assert_says, refused, said, succeeds};
use support::process::Process;
use support::program::DOGWILD;

/// The program of an example, which must be newer than its text.
fn example(name: &str) -> Command {
    let program = Path::new(DOGWILD).with_file_name("examples").join(name);
    let text = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("examples/{name}.rs"));
    let changed = |path: &Path| path.metadata().and_then(|found| found.modified()).ok();
    assert!(
        changed(&program) > changed(&text),
        "{} is older than its text, or not there: `cargo build --examples` makes it",
        program.display()
    );
    let mut command = Command::new(program);
    command.stdin(Stdio::null());
    command
}

#[test]
fn examples_in_one_process_end_with_equal_weights() {
    for (name, value) in [("two_nodes_in_memory", "200"), ("custom_transport", "2")] {
        let said = succeeds(&mut example(name));
        for node in 0..2 {
            assert_says(&said, &[&format!("node {node}: every weight is {value}")]);
        }
    }
}

#[test]
fn clients_of_the_reliable_path_learn_and_stay_equal() {
    let said = succeeds(&mut example("poseidon_client"));
    assert_says(&said, &["the weights of both workers are equal"]);
    let share = said
        .lines()
        .find_map(|line| Some(line.split_once("; right answers: ")?.1));
    let share: f32 = share
        .and_then(|text| text.strip_suffix(" %")?.parse().ok())
        .expect("a share");
    assert!(share > 65.0, "{said}");
}

#[test]
fn a_pair_over_udp_ends_with_equal_weights() {
    let session = std::process::id().to_string();
    let pair = ["0", "1"].map(|node| {
        let mut command = example("udp_pair");
        command.args([node, &session]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Process::start(&mut command)
    });
    for (node, process) in pair.into_iter().enumerate() {
        let output = process.output();
        let said = said(&output);
        assert!(output.status.success(), "node {node}: {said}");
        assert_says(&said, &[&format!("node {node}: every weight is 200")]);
    }
}

#[test]
fn wrong_words_for_the_pair_are_told() {
    for (words, says) in [
        (&[][..], "give 0 in one terminal"),
        (&["2"], "`2`"),
        (&["0", "here"], "`here`"),
    ] {
        let said = refused(example("udp_pair").args(words));
        assert_says(&said, &[says]);
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

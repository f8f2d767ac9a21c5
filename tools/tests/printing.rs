//! The tools with a reader that goes away, and with a full disk behind standard output.
//!
//! On the code before `dogwild_lab::out`, each of these ended with 101 and a panic of `println!`.

mod support;

use std::fs::OpenOptions;
use std::process::Stdio;

use support::{PLAN, RAWBENCH, STUDY, tool};

fn closed() -> Stdio {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    writer.into()
}

fn full() -> Stdio {
    let full = OpenOptions::new().write(true).open("/dev/full");
    full.expect("/dev/full").into()
}

/// Short uses that print.
const USES: [(&str, &[&str]); 7] = [
    (
        PLAN,
        &[
            "vgg19",
            "--nodes",
            "4",
            "--batch",
            "32",
            "--bandwidth",
            "10gbit",
        ],
    ),
    (
        PLAN,
        &[
            "vgg19",
            "--nodes",
            "4",
            "--batch",
            "32",
            "--bandwidth",
            "10gbit",
            "--json",
        ],
    ),
    (
        RAWBENCH,
        &[
            "gpu",
            "--weights",
            "4096",
            "--chunk",
            "1024",
            "--seconds",
            "0.05",
        ],
    ),
    (
        RAWBENCH,
        &[
            "accumulate",
            "--layers",
            "googlenet",
            "--devices",
            "1",
            "--iterations",
            "1",
            "--scale",
            "1000",
        ],
    ),
    (STUDY, &["check", "../experiments/merge-rules.toml"]),
    (STUDY, &["twin", "--help"]),
    (RAWBENCH, &["hogwild", "--help"]),
];

#[test]
fn a_closed_pipe_and_a_full_disk_do_not_panic() {
    for (program, words) in USES {
        for (kind, stdout, wanted) in [("closed", closed(), 0), ("full", full(), 1)] {
            let mut command = tool(program);
            command.args(words).stdout(stdout);
            let output = command.output().expect("it starts");
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!said.contains("panicked"), "{words:?}, {kind}: {said}");
            // clap prints its help itself, and takes no failure of that for one.
            let wanted = if words.contains(&"--help") { 0 } else { wanted };
            assert_eq!(
                output.status.code(),
                Some(wanted),
                "{words:?}, {kind}: {said}"
            );
            let told = said.matches("cannot write to standard output").count();
            assert_eq!(told, wanted as usize, "{words:?}, {kind}: {said}");
        }
    }
}

//! Who may name options of a program in a text: the program. A user of the library may have no
//! command line. So the library says what is wrong in words, and `src/cli/hint.rs` and
//! `src/node/streamer/kinds.rs` add the options.

use crate::no_complaints;
use crate::source::{Source, files};

/// Whose texts are held: the library, and the crates that it is made of.
const LIBRARY: [&str; 3] = ["src/", "net/src/", "kernels/src/"];

/// What of it is the program: the command line and the job that it starts, what `doctor` reports,
/// and what a streamer that is a process of its own writes into its log.
const PROGRAM: [&str; 7] = [
    "src/cli/",
    "src/job/",
    "src/node/doctor.rs",
    "src/node/doctor/",
    "src/node/streamer.rs",
    "src/node/streamer/",
    "src/node/transport.rs",
];

/// Files of these whose errors are the library's all the same.
const ERRORS: [&str; 2] = ["src/node/streamer/error.rs", "src/node/transport.rs"];

/// Options of other programs: of Docker and ss.
const OF_OTHERS: [&str; 2] = ["--gpus", "--xdp"];

/// Whether a line of source, a comment left out, has an option of ours in it: `--name`.
fn names_an_option(line: &str) -> bool {
    let line = line.trim_start().to_owned();
    let line = OF_OTHERS.iter().fold(line, |line, of| line.replace(of, ""));
    let names = |(at, _): (usize, &str)| {
        let before = line[..at].chars().next_back();
        let after = line[at + 2..].chars().next();
        after.is_some_and(|c| c.is_ascii_lowercase()) && before.is_none_or(|c| !c.is_alphanumeric())
    };
    !line.starts_with("//") && line.match_indices("--").any(names)
}

/// Lines of the product of `file` that name an option. `errors_only`: in what `#[error(...)]` says.
fn naming(file: &Source, errors_only: bool) -> Vec<usize> {
    let lines: Vec<&str> = file.text.lines().collect();
    let mut error = false;
    let mut found = Vec::new();
    for (number, code) in file.product_lines() {
        error |= code.trim_start().starts_with("#[error(");
        if names_an_option(lines[number - 1]) && (error || !errors_only) {
            found.push(number);
        }
        error &= !code.contains(")]");
    }
    found
}

#[test]
fn libraries_name_no_options() {
    let begins = |file: &Source, parts: &[&str]| parts.iter().any(|one| file.path.starts_with(one));
    let mut complaints = Vec::new();
    for file in files("rs").iter().filter(|file| begins(file, &LIBRARY)) {
        let errors_only = begins(file, &ERRORS);
        if begins(file, &PROGRAM) && !errors_only {
            continue;
        }
        for line in naming(file, errors_only) {
            complaints.push(format!(
                "{}:{line}: a message names an option: say it in words, and let src/cli/hint.rs \
                 add the option",
                file.path
            ));
        }
    }
    no_complaints(complaints);
}

#[test]
fn options_are_found_in_texts() {
    assert!(names_an_option(r#"#[error("again with --fresh")]"#));
    assert!(!names_an_option("    /// `--fresh` over it") && !names_an_option("i--j"));
    assert!(!names_an_option("run(\"--gpus all\")"));
    let source = |text: &str| Source {
        path: "src/a.rs".into(),
        text: text.into(),
        code: text.into(),
    };
    let file = source("a(\"--b\");\n#[error(\n    \"no --join: a\"\n)]\nf(\"--c\");\n");
    assert_eq!(naming(&file, false), [1, 3, 5]);
    assert_eq!(naming(&file, true), [3]);
}

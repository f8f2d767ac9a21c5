//! Rules for integration tests: what more than one needs is in tests/support, once.

use crate::no_complaints;
use crate::source::files;

/// What only tests/support may write, and what to use instead.
const ONLY_IN_SUPPORT: [(&str, &str); 5] = [
    ("fn dogwild(", "use `support::program::dogwild`"),
    (
        "CARGO_BIN_EXE_",
        "start the program by `support::program::dogwild` or `support::tool`",
    ),
    ("tempdir_in(", "use `support::shm::shm_folder`"),
    (
        ".spawn()",
        "start it by `support::process::Process`, which a failed test takes along",
    ),
    (
        "fn wait_for(what",
        "use `support::wait`, which waits as long as the state gets nearer",
    ),
];

/// What `text` has that belongs into tests/support, with its lines.
fn found(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut drops = false;
    for (i, line) in text.lines().enumerate() {
        for (words, instead) in ONLY_IN_SUPPORT {
            if line.contains(words) {
                found.push((i + 1, format!("`{words}`: {instead}")));
            }
        }
        drops = (drops || line.starts_with("impl Drop for")) && line != "}";
        if drops && line.contains("kill") {
            let instead = "a second type that kills on drop: use `support::process::Process`";
            found.push((i + 1, instead.to_owned()));
        }
    }
    found
}

#[test]
fn what_tests_share_is_in_support() {
    let mut complaints = Vec::new();
    for file in files("rs") {
        let of_tests = ["tests/", "tools/tests/"];
        let shared = ["tests/tidy/", "tests/support/", "tools/tests/support/"];
        let begins = |folders: &[&str]| folders.iter().any(|one| file.path.starts_with(one));
        if !begins(&of_tests) || begins(&shared) {
            continue;
        }
        for (line, what) in found(&file.text) {
            complaints.push(format!("{}:{line}: {what}", file.path));
        }
    }
    no_complaints(complaints);
}

#[test]
fn second_helpers_are_found() {
    let text = "fn dogwild() {}\nlet p = env!(\"CARGO_BIN_EXE_dogwild\");\nc.spawn().unwrap();\n\
                impl Drop for Streamer {\n    fn drop(&mut self) {\n        self.0.kill();\n    }\n\
                }\nfn kill() {}\nscope.spawn(|| 1);\n";
    let lines: Vec<usize> = found(text).iter().map(|(line, _)| *line).collect();
    assert_eq!(lines, [1, 2, 3, 6]);
}

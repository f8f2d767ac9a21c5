//! Man pages and shell completions that each program writes of itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::output::{assert_says, refused, succeeds};
use crate::support::{PLAN, RAWBENCH, STUDY, tool};
use dogwild_lab::skip::skip;

/// The program of another crate of the workspace, which cargo has put next to the tools.
pub(crate) fn neighbour(name: &str) -> String {
    let path = Path::new(STUDY).with_file_name(name);
    assert!(path.exists(), "cargo test --workspace builds {name}");
    path.to_str().expect("a path of text").to_owned()
}

fn programs() -> [(&'static str, String); 5] {
    [
        ("dogwild", neighbour("dogwild")),
        ("dogwild-lab", neighbour("dogwild-lab")),
        ("dogwild-plan", PLAN.to_owned()),
        ("dogwild-rawbench", RAWBENCH.to_owned()),
        ("dogwild-study", STUDY.to_owned()),
    ]
}

/// Names of the subcommands that the help of a program lists.
fn subcommands(help: &str) -> Vec<String> {
    let listed = help.lines().skip_while(|line| *line != "Commands:");
    let listed = listed
        .skip(1)
        .take_while(|line| line.is_empty() || line.starts_with(' '));
    // Their descriptions go on further to the right.
    let names = listed.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect()
}

/// All pages and completions, in a folder.
fn written() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (_, program) in programs() {
        succeeds(tool(&program).arg("--pages").arg(folder.path()));
    }
    folder
}

#[test]
fn every_subcommand_has_its_page() {
    let folder = written();
    let pages = folder.path().join("man/man1");
    let mut expected = Vec::new();
    for (name, program) in programs() {
        let help = succeeds(tool(&program).arg("--help"));
        assert!(help.contains("--pages <FOLDER>"), "{help}");
        let found = subcommands(&help);
        assert_eq!(found.is_empty(), name == "dogwild-plan", "{help}");
        expected.push(format!("{name}.1"));
        expected.extend(found.iter().map(|one| format!("{name}-{one}.1")));
    }
    for page in &expected {
        let text = fs::read_to_string(pages.join(page)).expect(page);
        let name = page.trim_end_matches(".1");
        // The first header names it; section NAME is what `apropos` reads.
        assert!(text.contains(&format!(".TH {name} 1")), "{page}: {text}");
        let described = text.split(".SH NAME").nth(1).expect("a section NAME");
        let described = described.lines().nth(1).expect("a line");
        let escaped = name.replace('-', "\\-");
        assert!(
            described.starts_with(&format!("{escaped} \\- ")),
            "{page}: {described}"
        );
    }
    assert!(expected.contains(&"dogwild-train.1".to_owned()));
    // Parts of other programs are no commands of a user.
    assert!(!pages.join("dogwild-rawbench-component.1").exists());
}

/// The formatter that readers use finds nothing to warn of.
#[test]
fn man_formats_the_pages() {
    let folder = written();
    let there = Command::new("man").arg("--version").output();
    if !there.is_ok_and(|output| output.status.success()) {
        return skip("Debian: man-db");
    }
    for page in ["dogwild.1", "dogwild-train.1", "dogwild-rawbench-stream.1"] {
        let mut man = Command::new("man");
        man.args(["--warnings", "--encoding=UTF-8", "--local-file"])
            .arg(folder.path().join("man/man1").join(page))
            .env("MANWIDTH", "80")
            .env("LC_ALL", "C.UTF-8");
        let output = man.output().expect("man starts");
        let warned = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && warned.is_empty(), "{warned}");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_says(&text, &["NAME", "SYNOPSIS", "OPTIONS", "User Commands"]);
    }
}

/// What bash offers for the last of `words`.
fn completed(script: &Path, name: &str, words: &[&str]) -> String {
    const ASK: &str = r#"
        source "$1"; name=$2; shift 2
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
        function=$(complete -p "$name" | sed 's/.*-F \([^ ]*\).*/\1/')
        "$function" "$name" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-c", ASK, "ask"]);
    succeeds(bash.arg(script).arg(name).args(words).stdin(Stdio::null()))
}

#[test]
fn bash_completes_subcommands_options_and_values() {
    let folder = written();
    let scripts = folder.path().join("bash-completion/completions");
    for (name, _) in programs() {
        let mut bash = Command::new("bash");
        succeeds(bash.arg("-n").arg(scripts.join(name)));
    }
    let offers = |name: &str, words: &[&str]| completed(&scripts.join(name), name, words);
    let said = offers("dogwild", &["dogwild", "tr"]);
    assert_eq!(said.trim(), "train");
    let said = offers("dogwild", &["dogwild", "train", "--iter"]);
    assert_eq!(said.trim(), "--iterations");
    let said = offers("dogwild", &["dogwild", "train", "--transport", "packet"]);
    assert_eq!(said.trim(), "packet_mmap");
    let said = offers("dogwild-plan", &["dogwild-plan", "--band"]);
    assert_eq!(said.trim(), "--bandwidth");
}

/// The other shells read what is written for them, where they are installed.
#[test]
fn zsh_and_fish_read_their_completions() {
    let folder = written();
    let share = folder.path();
    for (shell, check, path) in [
        ("zsh", "-n", "zsh/site-functions/_dogwild"),
        (
            "fish",
            "--no-execute",
            "fish/vendor_completions.d/dogwild.fish",
        ),
    ] {
        let script: PathBuf = share.join(path);
        let text = fs::read_to_string(&script).expect(path);
        assert_says(&text, &["train", "iterations", "packet_mmap"]);
        let mut read = Command::new(shell);
        match read.arg("--version").output() {
            Ok(output) if output.status.success() => {
                succeeds(Command::new(shell).arg(check).arg(script));
            }
            _ => skip(&format!("Debian: {shell}")),
        }
    }
}

#[test]
fn a_folder_that_cannot_be_and_words_too_many_are_refused() {
    let program = neighbour("dogwild");
    let said = refused(tool(&program).args(["--pages", "/proc/nowhere"]));
    assert_says(&said, &["dogwild: ", "/proc/nowhere", "may write to"]);
    for wrong in [&["--pages"][..], &["--pages", "/tmp", "train"]] {
        let output = tool(&program).args(wrong).output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert_says(&said, &["--pages takes one folder"]);
    }
}

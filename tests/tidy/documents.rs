//! Rules for documents: dependencies are justified, links and paths lead somewhere, the README's
//! commands are those that work.

use crate::no_complaints;
use crate::source::{Source, file, files, root};

/// The README's test command; `cargo xtask check` runs the same.
const TEST_COMMAND: &str = "cargo test --workspace";

#[test]
fn every_dependency_is_justified() {
    let manifest = file("Cargo.toml").expect("Cargo.toml").text;
    let table = manifest
        .split("[workspace.dependencies]")
        .nth(1)
        .expect("workspace.dependencies");
    let names = table
        .lines()
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| Some(line.split_once('=')?.0.trim()))
        .filter(|name| !name.is_empty() && !name.starts_with('#') && !name.starts_with("dogwild"));
    let reasons = file("docs/dependencies.md")
        .map(|file| file.text)
        .unwrap_or_default();
    let complaints = names.filter(|name| !reasons.contains(&format!("`{name}`"))).map(|name| {
        format!(
            "docs/dependencies.md: no line for `{name}`: say in one line what it is for and why \
             this one"
        )
    });
    no_complaints(complaints.collect());
}

#[test]
fn the_documents_are_there() {
    const DOCUMENTS: [&str; 10] = [
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "docs/README.md",
        "docs/architecture.md",
        "docs/dependencies.md",
        "docs/glossary.md",
        "docs/measurements/README.md",
        "docs/reference/stream-protocol.md",
        ".ci/run",
    ];
    let missing = DOCUMENTS.iter().filter(|path| file(path).is_none());
    no_complaints(
        missing
            .map(|path| format!("{path}: is missing: write it"))
            .collect(),
    );
}

/// True for the changelog, which names files and words of former days.
pub(crate) fn is_history(path: &str) -> bool {
    path == "CHANGELOG.md"
}

/// True for lab notes, which stay as they were written: their names begin with a date.
pub(crate) fn is_dated(path: &str) -> bool {
    path.strip_prefix("docs/measurements/")
        .is_some_and(|name| name.starts_with('2'))
}

/// Targets of the links in `text` (inline code left out), with the numbers of their lines.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (i, line) in text.lines().enumerate() {
        for (at, _) in line.match_indices("](") {
            if line[..at].matches('`').count() % 2 == 0 {
                let target = line[at + 2..].split(')').next().unwrap_or_default();
                found.push((i + 1, target));
            }
        }
    }
    found
}

/// Anchors of the headings of a document, as GitHub makes them.
fn anchors(text: &str) -> Vec<String> {
    let mut fenced = false;
    let headings = text.lines().filter(|line| {
        fenced ^= line.trim_start().starts_with("```");
        !fenced && line.starts_with('#')
    });
    let keep = |c: &char| c.is_alphanumeric() || [' ', '-', '_'].contains(c);
    headings
        .map(|line| line.trim_start_matches('#').trim().to_lowercase())
        .map(|title| title.chars().filter(keep).collect::<String>())
        .map(|title| title.replace(' ', "-"))
        .collect()
}

#[test]
fn links_lead_somewhere() {
    let mut complaints = Vec::new();
    for document in files("md") {
        let path = root().join(&document.path);
        let folder = path.parent().expect("a folder");
        for (line, link) in links(&document.text) {
            let (target, anchor) = link.split_once('#').unwrap_or((link, ""));
            if target.contains("://") {
                continue;
            }
            let at = format!("{}:{line}", document.path);
            let full = match target {
                "" => path.clone(),
                _ => folder.join(target),
            };
            if !full.exists() {
                complaints.push(format!("{at}: no such file: {target}"));
            } else if !anchor.is_empty() {
                let text = std::fs::read_to_string(&full).unwrap_or_default();
                if !anchors(&text).iter().any(|known| known == anchor) {
                    complaints.push(format!("{at}: no heading of {target} makes #{anchor}"));
                }
            }
        }
    }
    no_complaints(complaints);
}

/// Folders whose files documents name by their path from the root.
const FOLDERS: [&str; 14] = [
    "src/",
    "kernels/",
    "net/",
    "lab/",
    "tools/",
    "tests/",
    "docs/",
    "models/",
    "benches/",
    "fuzz/",
    "examples/",
    "jobs/",
    "deploy/",
    ".ci/",
];

/// Paths in `text` that begin with one of `folders`, with the numbers of their lines. Those with a
/// placeholder are left out.
fn paths<'a>(text: &'a str, folders: &[&str]) -> Vec<(usize, &'a str)> {
    let part = |c: char| c.is_alphanumeric() || "_-./*<>{}:".contains(c);
    let mut found = Vec::new();
    for (i, line) in text.lines().enumerate() {
        for word in line.split(|c| !part(c)) {
            let word = word.trim_end_matches(['.', ':']);
            let word = word.split("::").next().unwrap_or_default();
            let named = folders.iter().any(|folder| word.starts_with(folder));
            if named && !word.contains(['*', '<', '>', '{', '}', ':']) {
                found.push((i + 1, word));
            }
        }
    }
    found
}

#[test]
fn paths_in_documents_exist() {
    let mut complaints = Vec::new();
    for document in files("md") {
        if is_history(&document.path) || is_dated(&document.path) {
            continue;
        }
        for (line, path) in paths(&document.text, &FOLDERS) {
            // Links are relative to their document: `links_lead_somewhere` looks at them.
            let inside = root().join(&document.path).with_file_name(path);
            if !root().join(path).exists() && !inside.exists() {
                complaints.push(format!("{}:{line}: no such file: {path}", document.path));
            }
        }
    }
    no_complaints(complaints);
}

#[test]
fn documents_that_source_names_exist() {
    let mut complaints = Vec::new();
    for extension in ["rs", "py", "lua", "toml"] {
        for source in files(extension) {
            for (line, path) in paths(&source.text, &["docs/"]) {
                if !root().join(path).exists() {
                    complaints.push(format!("{}:{line}: no such document: {path}", source.path));
                }
            }
        }
    }
    no_complaints(complaints);
}

#[test]
fn links_anchors_and_paths_are_found() {
    let text = "a [b](c.md#d) `](no)` [e](#f)\n```\n# no\n```\n## What it's, `x` 2\n";
    assert_eq!(links(text), [(1, "c.md#d"), (1, "#f")]);
    assert_eq!(anchors(text), ["what-its-x-2"]);
    let text = "see `lab/a.rs`, (net/b/).\nlab/<k>.rs http://x/lab/c lab/d::e";
    let found = [(1, "lab/a.rs"), (1, "net/b/"), (2, "lab/d")];
    assert_eq!(paths(text, &["lab/", "net/"]), found);
    let note = |name: &str| format!("docs/measurements/{name}");
    assert!(is_dated(&note("2026-11-21-x.md")) && !is_dated(&note("README.md")));
}

#[test]
fn the_readmes_commands_exist() {
    let Some(readme) = file("README.md") else {
        return;
    }; // the_documents_are_there says so
    let mut complaints = Vec::new();
    let commands = commands(&readme);
    if !commands
        .iter()
        .any(|(_, command)| command.starts_with(TEST_COMMAND))
    {
        complaints.push(format!(
            "README.md: does not show the test command `{TEST_COMMAND}`"
        ));
    }
    let xtask = file("tools/src/xtask/main.rs").expect("xtask").text;
    if !xtask.contains(&format!("\"{TEST_COMMAND}\"")) {
        complaints.push(format!(
            "tools/src/xtask/main.rs: does not run `{TEST_COMMAND}`"
        ));
    }
    let binaries = binaries();
    for (line, command) in commands {
        if let Some(word) = missing_program(&command, &binaries) {
            complaints.push(format!(
                "README.md:{line}: `{command}`: there is no `{word}` (programs: {}; subcommands \
                 are files of src/cli)",
                binaries.join(", ")
            ));
        }
    }
    no_complaints(complaints);
}

/// Commands in the fenced blocks of a document, with their lines.
fn commands(document: &Source) -> Vec<(usize, String)> {
    let mut fenced = false;
    let mut found = Vec::new();
    for (i, line) in document.text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if fenced {
            let command = line.trim().trim_start_matches("$ ");
            let command = command.split(" #").next().unwrap_or_default().trim();
            found.push((i + 1, command.to_owned()));
        }
    }
    found
}

/// Names of the programs that the workspace builds.
fn binaries() -> Vec<String> {
    let manifests = ["Cargo.toml", "lab/Cargo.toml", "tools/Cargo.toml"];
    let texts = manifests.iter().filter_map(|path| Some(file(path)?.text));
    let name = |part: &str| {
        let line = part.lines().find(|line| line.starts_with("name"))?;
        Some(line.split('"').nth(1)?.to_owned())
    };
    texts
        .flat_map(|text| {
            text.split("[[bin]]")
                .skip(1)
                .filter_map(name)
                .collect::<Vec<_>>()
        })
        .collect()
}

/// What `command` calls of ours that does not exist: a program, or a subcommand of `dogwild`.
fn missing_program(command: &str, binaries: &[String]) -> Option<String> {
    let words: Vec<&str> = command.split_whitespace().collect();
    let (program, rest) = match words.as_slice() {
        ["cargo", "run", options @ ..] => {
            let mut halves = options.splitn(2, |word| *word == "--");
            let options = halves.next().unwrap_or_default();
            let flag = options
                .iter()
                .position(|word| ["--bin", "-p", "--package"].contains(word));
            let program = flag
                .and_then(|at| options.get(at + 1))
                .unwrap_or(&"dogwild");
            (
                if *program == "dogwild-tools" {
                    "dogwild-rawbench"
                } else {
                    program
                },
                halves.next(),
            )
        }
        [program, rest @ ..] => {
            let name = program.rsplit('/').next().unwrap_or(program);
            if !name.starts_with("dogwild") {
                return None;
            }
            (name, Some(rest))
        }
        [] => return None,
    };
    if !binaries.iter().any(|binary| binary == program) {
        return Some(program.to_owned());
    }
    let subcommand = rest
        .and_then(|rest| rest.first())
        .filter(|word| !word.starts_with(['-', '<', '[']))?;
    let exists = ["", "/mod"]
        .iter()
        .any(|end| file(&format!("src/cli/{subcommand}{end}.rs")).is_some());
    (program == "dogwild" && !exists).then(|| format!("dogwild {subcommand}"))
}

#[test]
fn commands_are_understood() {
    let binaries = ["dogwild", "dogwild-lab"].map(str::to_owned);
    let missing = |command: &str| missing_program(command, &binaries);
    assert_eq!(
        missing("cargo run --release -- frobnicate"),
        Some("dogwild frobnicate".into())
    );
    assert_eq!(missing("cargo run -p dogwild-lab -- up 2"), None);
    assert_eq!(missing("cargo run --bin nothing"), Some("nothing".into()));
    assert_eq!(
        missing("./target/release/dogwild-labs up"),
        Some("dogwild-labs".into())
    );
    assert_eq!(missing("ls"), None);
    assert_eq!(missing("dogwild --help"), None);
}

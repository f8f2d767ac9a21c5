//! Rules for documents: dependencies are justified, links lead somewhere, the README's commands
//! are those that work.

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
    const DOCUMENTS: [&str; 7] = [
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "docs/architecture.md",
        "docs/reference/stream-protocol.md",
        "docs/dependencies.md",
        ".ci/run",
    ];
    let missing = DOCUMENTS.iter().filter(|path| file(path).is_none());
    no_complaints(
        missing
            .map(|path| format!("{path}: is missing: write it"))
            .collect(),
    );
}

#[test]
fn links_lead_somewhere() {
    let mut complaints = Vec::new();
    for document in files("md") {
        let folder = root()
            .join(&document.path)
            .parent()
            .expect("a folder")
            .to_owned();
        for (i, line) in document.text.lines().enumerate() {
            for link in line
                .split("](")
                .skip(1)
                .filter_map(|rest| rest.split(')').next())
            {
                let target = link.split('#').next().unwrap_or_default();
                if !target.is_empty() && !target.contains("://") && !folder.join(target).exists() {
                    complaints.push(format!(
                        "{}:{}: no such file: {target}",
                        document.path,
                        i + 1
                    ));
                }
            }
        }
    }
    no_complaints(complaints);
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

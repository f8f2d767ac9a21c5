//! Commands that check the workspace's crates one by one: without features, and with each alone;
//! and how many crates the library is built from without features.
//!
//! Starts `cargo tree` for the latter, offline and with the lock file as it is. What features there
//! are cargo says, so a new one is checked without a line here.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::metadata::Metadata;

/// Crates that `dogwild` without features may be built from, itself among them: one more is too
/// many. Who embeds the stream builds them all.
const CRATES_END: usize = 60;

/// Counts the crates that the library without features is built from.
///
/// # Errors
/// There are [`CRATES_END`] or more; cargo cannot tell.
pub(crate) fn check_crates(manifest: &Path) -> Result<usize> {
    count_crates(&tree(manifest, "", "normal,build")?, CRATES_END)
}

/// What `cargo tree` says of `dogwild` with `features` only, a list with commas.
fn tree(manifest: &Path, features: &str, edges: &str) -> Result<String> {
    let output = Command::new("cargo")
        .args(["tree", "--offline", "--locked", "--package", "dogwild"])
        .args(["--no-default-features", "--features", features])
        .args(["--edges", edges])
        .args(["--prefix", "none", "--manifest-path"])
        .arg(manifest)
        .output()
        .context("cannot run cargo")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("`cargo tree --offline --locked` failed:\n{said}");
    }
    String::from_utf8(output.stdout).context("what `cargo tree` says")
}

/// The crates of a tree, each counted once. `end` of them are too many.
fn count_crates(tree: &str, end: usize) -> Result<usize> {
    // `name v1.2.3`, then what it is and whether its part of the tree was shown before.
    let crates: BTreeSet<(&str, &str)> = tree
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            Some((words.next()?, words.next()?))
        })
        .collect();
    ensure!(!crates.is_empty(), "`cargo tree` names no crate");
    let names: Vec<_> = crates.iter().map(|(name, _)| *name).collect();
    ensure!(
        crates.len() < end,
        "`dogwild` without features is built from {} crates, {} at most: make a new dependency \
         optional and give it to a feature (Cargo.toml); there are {}",
        crates.len(),
        end - 1,
        names.join(", ")
    );
    Ok(crates.len())
}

/// Of each package: itself without its default features, its tests too, then with each feature
/// alone. Alone, as nothing else of the workspace is built with it and lends it features of their
/// dependencies.
pub(crate) fn commands(workspace: &Metadata) -> Vec<String> {
    let mut packages: Vec<_> = workspace.packages.iter().collect();
    packages.sort_by(|a, b| a.name.cmp(&b.name));
    let of = |name: &str, more: &str| {
        format!("cargo clippy --package {name} --no-default-features{more} -- -D warnings")
    };
    packages
        .into_iter()
        .flat_map(|package| {
            let features = package.features.keys().filter(|name| *name != "default");
            let alone = features.map(|name| of(&package.name, &format!(" --features {name}")));
            std::iter::once(of(&package.name, " --all-targets")).chain(alone)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn checked(commands: &[String], package: &str, features: &str) -> bool {
        let words = format!("--package {package} --no-default-features {features}");
        commands.iter().any(|command| command.contains(&words))
    }

    #[test]
    fn each_feature_is_checked_alone() {
        let workspace = r#"{"packages": [
            {"name": "b", "version": "0.1.0", "features": {"default": ["x"], "x": [], "y": ["x"]}},
            {"name": "a", "version": "0.1.0"}
        ]}"#;
        let workspace: Metadata = serde_json::from_str(workspace).expect("metadata");
        let found: Vec<_> = commands(&workspace)
            .iter()
            .filter_map(|command| command.split("--package ").nth(1)?.split(" -- ").next())
            .map(str::to_owned)
            .collect();
        let expected = [
            "a --no-default-features --all-targets",
            "b --no-default-features --all-targets",
            "b --no-default-features --features x",
            "b --no-default-features --features y",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn this_workspaces_features_are_found() {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
        let workspace = Metadata::of_workspace(&manifest).expect("cargo metadata");
        let commands = commands(&workspace);
        assert!(checked(&commands, "dogwild-lab", "--all-targets"));
        for feature in [
            "cuda", "verbs", "poseidon", "caffe", "plots", "capture", "top", "data-get", "metrics",
            "pages",
        ] {
            let words = format!("--features {feature} --");
            assert!(checked(&commands, "dogwild", &words), "{feature}");
        }
        assert!(!checked(&commands, "dogwild", "--features default"));
    }

    #[test]
    fn the_library_alone_has_few_crates() {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
        let count = check_crates(&manifest).expect("few crates");
        assert!(
            count > 2,
            "the library and its own network crate are two: {count}"
        );
    }

    /// The table of docs/dependencies.md: features in backticks, then the crates.
    #[test]
    fn documented_numbers_of_crates_are_true() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let path = root.join("docs/dependencies.md");
        let text = std::fs::read_to_string(path).expect("the document");
        let rows = text
            .lines()
            .skip_while(|line| !line.starts_with("| features of `dogwild` | crates |"))
            .skip(2)
            .take_while(|line| line.starts_with('|'));
        let mut found = 0;
        for row in rows {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            let features: Vec<&str> = cells[1].split('`').skip(1).step_by(2).collect();
            let tree = tree(&root.join("Cargo.toml"), &features.join(","), "normal");
            let crates = count_crates(&tree.expect("a tree"), usize::MAX).expect("crates");
            assert_eq!(cells[2], crates.to_string(), "{row}");
            found += 1;
        }
        assert_eq!(found, 13, "rows of the table");
    }

    #[test]
    fn crates_are_counted_once_and_too_many_are_refused() {
        let tree = "a v1.0.0 (/here)\nb v0.1.0\nc v2.0.0 (proc-macro)\nb v0.1.0 (*)\nb v0.2.0\n";
        assert_eq!(count_crates(tree, 5).expect("four"), 4);
        let error = count_crates(tree, 4).expect_err("too many").to_string();
        assert!(error.contains("4 crates, 3 at most"), "{error}");
        assert!(count_crates("", 4).is_err());
    }
}

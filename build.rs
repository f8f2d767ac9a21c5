//! Tells a program which commit it is built from: `DOGWILD_COMMIT`, given or asked of git; empty
//! outside git. The crates with programs share this file.
//!
//! Runs again when something that is compiled into the crate changes, and not otherwise: a commit
//! alone would build the whole library anew. What was built before its commit names the one before,
//! with `+`.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What git prints, without its end of line; none if it fails or is not there.
fn git(root: &Path, args: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .args(args)
        .current_dir(root)
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim_end().to_owned())
}

/// The commit, with `+` if what is compiled differs from it.
fn commit(root: &Path, compiled: &[&str]) -> Option<String> {
    // A copy inside another repository is not of that repository's commit.
    let top = git(root, &["rev-parse", "--show-toplevel"])?;
    if Path::new(&top).canonicalize().ok()? != root.canonicalize().ok()? {
        return None;
    }
    let commit = git(root, &["rev-parse", "--short=12", "HEAD"])?;
    let mut status = vec!["status", "--porcelain", "--"];
    status.extend(compiled);
    let changed = git(root, &status).is_some_and(|changes| !changes.is_empty());
    Some(commit + if changed { "+" } else { "" })
}

/// What the library and its program are made of.
const COMPILED: [&str; 8] = [
    "src",
    "kernels/src",
    "net/src",
    "lab/src",
    "models",
    "proto",
    "Cargo.toml",
    "Cargo.lock",
];

/// Where the repository begins, and what of it the crate that is built is made of.
fn made_of() -> (PathBuf, Vec<&'static str>) {
    let crate_folder = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let above = crate_folder.join("..");
    let more = |paths: &[&'static str]| paths.iter().chain(&COMPILED).copied().collect();
    match std::env::var("CARGO_PKG_NAME").as_deref() {
        // Below all others, so a change of them is none of it.
        Ok("dogwild-lab") => (above, vec!["lab/src", "Cargo.toml", "Cargo.lock"]),
        Ok("dogwild-tools") => (above, more(&["tools/src"])),
        _ => (crate_folder, more(&[])),
    }
}

fn main() {
    let (root, compiled) = made_of();
    println!("cargo:rerun-if-env-changed=DOGWILD_COMMIT");
    for path in std::iter::once(&"build.rs").chain(&compiled) {
        let path = root.join(path);
        if path.exists() {
            println!("cargo:rerun-if-changed={}", path.display());
        }
    }
    let given = std::env::var("DOGWILD_COMMIT").ok();
    let commit = given
        .filter(|commit| !commit.is_empty())
        .or_else(|| commit(&root, &compiled));
    println!(
        "cargo:rustc-env=DOGWILD_COMMIT={}",
        commit.unwrap_or_default()
    );
}

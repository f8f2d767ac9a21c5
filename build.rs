//! Tells the program which commit it is built from: `DOGWILD_COMMIT`, given or asked of git; empty
//! outside git.
//!
//! Runs again when something that is compiled into the program changes, and not otherwise: a commit
//! alone would build the whole library anew. What was built before its commit names the one before,
//! with `+`.

use std::path::Path;
use std::process::Command;

/// What git prints, without its end of line; none if it fails or is not there.
fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim_end().to_owned())
}

/// The commit, with `+` if what is compiled differs from it.
fn commit() -> Option<String> {
    // A copy inside another repository is not of that repository's commit.
    let top = git(&["rev-parse", "--show-toplevel"])?;
    let here = std::env::current_dir().ok()?.canonicalize().ok()?;
    if Path::new(&top).canonicalize().ok()? != here {
        return None;
    }
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let mut status = vec!["status", "--porcelain", "--"];
    status.extend(COMPILED);
    let changed = git(&status).is_some_and(|changes| !changes.is_empty());
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

fn main() {
    println!("cargo:rerun-if-env-changed=DOGWILD_COMMIT");
    println!("cargo:rerun-if-changed=build.rs");
    for path in COMPILED.iter().filter(|path| Path::new(path).exists()) {
        println!("cargo:rerun-if-changed={path}");
    }
    let given = std::env::var("DOGWILD_COMMIT").ok();
    let commit = given.filter(|commit| !commit.is_empty()).or_else(commit);
    println!(
        "cargo:rustc-env=DOGWILD_COMMIT={}",
        commit.unwrap_or_default()
    );
}

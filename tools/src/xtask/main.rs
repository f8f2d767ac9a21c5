//! `cargo xtask`: one command that checks the whole tree.
//!
//! Starts cargo, and writes the layer tables of `models/`; stops at the first command that fails and
//! says how to repeat it.

mod tables;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The developer's tool of this tree")]
struct Cli {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Check everything: format, clippy, documentation, tests (tidy is one of them).
    Check {
        /// Leave out the tests.
        #[arg(long)]
        fast: bool,
    },
    /// Write the layer tables of published nets into models/.
    Tables,
}

/// One command of the check: what is set in its environment, its words.
type Step = (Option<(&'static str, &'static str)>, &'static str);

/// The README's test command.
const TEST: Step = (None, "cargo test --workspace");

const STEPS: [Step; 3] = [
    (None, "cargo fmt --all --check"),
    (
        None,
        "cargo clippy --workspace --all-targets -- -D warnings",
    ),
    (
        Some(("RUSTDOCFLAGS", "-D warnings")),
        "cargo doc --workspace --no-deps",
    ),
];

fn main() -> ExitCode {
    let result = match Cli::parse().action {
        Action::Check { fast } => check(fast),
        Action::Tables => tables::write(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../models")),
    };
    dogwild::cli::finish("xtask", result)
}

fn check(fast: bool) -> Result<()> {
    let start = Instant::now();
    for step in STEPS.into_iter().chain((!fast).then_some(TEST)) {
        run(step)?;
    }
    dogwild_lab::say!("all is well ({:.0} s)", start.elapsed().as_secs_f64());
    Ok(())
}

fn run((variable, words): Step) -> Result<()> {
    let shown = match variable {
        Some((name, value)) => format!("{name}={value:?} {words}"),
        None => words.to_owned(),
    };
    dogwild_lab::say!("--- {shown}");
    let start = Instant::now();
    let mut words = words.split_whitespace();
    let program = words.next().context("an empty command")?;
    let status = Command::new(program)
        .args(words)
        .envs(variable)
        .status()
        .with_context(|| format!("cannot run {program}"))?;
    if !status.success() {
        bail!("`{shown}` failed ({status}): mend it, then `cargo xtask check` again");
    }
    dogwild_lab::say!("--- {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}

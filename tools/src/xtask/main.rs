//! `cargo xtask`: one command that checks the whole tree.
//!
//! Starts cargo, and writes the layer tables of `models/`; stops at the first command that fails and
//! says how to repeat it.

mod tables;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
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
        #[arg(long, conflicts_with_all = ["load", "times"])]
        fast: bool,
        /// Run the tests on a busy machine: so many threads compute all the while.
        #[arg(long, value_name = "THREADS", default_value_t = 0)]
        load: usize,
        /// Run the tests so often.
        #[arg(long, value_name = "N", default_value_t = 1)]
        times: usize,
    },
    /// Write the layer tables of published nets into models/.
    Tables,
}

/// One command of the check: what is set in its environment, its words.
type Step = (Option<(&'static str, &'static str)>, &'static str);

/// The README's test command.
const TEST: Step = (None, "cargo test --workspace");
/// What it builds, so that the load meets tests and not the compiler.
const BUILD_TESTS: Step = (None, "cargo test --workspace --no-run");
/// The same tests where several may fail: a busy machine is asked once for all of them.
const TEST_ALL: Step = (None, "cargo test --workspace --no-fail-fast");

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
        Action::Check { fast, load, times } => check(fast, load, times),
        Action::Tables => tables::write(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../models")),
    };
    dogwild::cli::finish("xtask", result)
}

fn check(fast: bool, load: usize, times: usize) -> Result<()> {
    let start = Instant::now();
    STEPS.into_iter().try_for_each(run)?;
    if !fast {
        test(load, times)?;
    }
    dogwild_lab::say!("all is well ({:.0} s)", start.elapsed().as_secs_f64());
    Ok(())
}

/// Runs the tests `times` times, while `load` threads compute.
fn test(load: usize, times: usize) -> Result<()> {
    if load == 0 {
        return (0..times).try_for_each(|_| run(TEST));
    }
    run(BUILD_TESTS)?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..load {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let results: Vec<_> = (0..times).map(|_| run(TEST_ALL)).collect();
        stop.store(true, Relaxed);
        results.into_iter().collect()
    })
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

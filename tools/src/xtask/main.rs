//! `cargo xtask`: one command that checks the whole tree, and some that take a night.
//!
//! Starts cargo in the root of the repository, and writes the layer tables of `models/`. Stops at
//! the first command that fails and says how to repeat it.

mod deb;
mod deny;
mod explore;
mod features;
mod licence;
mod metadata;
mod mutants;
mod ptx;
mod storm;
mod suite;
mod tables;
mod wheel;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use metadata::Metadata;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;
use suite::Tests;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The developer's tool of this tree")]
struct Cli {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Check everything: format, dependencies, clippy, each feature alone, fuzz targets,
    /// documentation, tests (tidy is one of them).
    Check {
        /// Leave out the tests.
        #[arg(long, conflicts_with_all = ["load", "times", "all"])]
        fast: bool,
        /// Run the long tests too: storms, series of kills, whole trainings, the machine with
        /// Soft-RoCE. CI does.
        #[arg(long)]
        all: bool,
        /// Run the tests on a busy machine: so many threads compute at the same time.
        #[arg(long, value_name = "THREADS", default_value_t = 0)]
        load: usize,
        /// Run the tests so many times.
        #[arg(long, value_name = "N", default_value_t = 1)]
        times: usize,
    },
    /// Compile the CUDA kernels to the PTX that is shipped. Needs NVRTC 11.8.
    Ptx,
    /// Check only that licences, versions and sources of all dependencies are as deny.toml asks.
    Deny,
    /// Run the storms of the simulator with these seeds.
    Storm {
        /// The first seed, and the one behind the last.
        #[arg(long, value_name = "FROM..TO")]
        seeds: storm::Seeds,
        /// Write what happens, frame by frame, to files in this folder (gzip, a line each). Of one
        /// seed some 1 GB, and it takes some 20 minutes.
        #[arg(long, value_name = "FOLDER")]
        trace: Option<PathBuf>,
    },
    /// Go through all states of a few nodes, with more faults than the tests of the tree.
    Explore {
        /// So many more of each fault than those have.
        #[arg(long, value_name = "N", default_value_t = 1)]
        more: u8,
        /// Time for each test.
        #[arg(long, value_name = "SECONDS", default_value_t = 1800)]
        seconds: u64,
        /// Only tests whose names begin with this.
        #[arg(long, value_name = "NAME")]
        only: Option<String>,
    },
    /// Change single places of the stream's protocol, or of what keeps work on devices in order,
    /// one at a time, and see that tests fail. Each takes up to some minutes.
    Mutants {
        /// What is changed.
        #[arg(value_name = "SET", default_value = "stream")]
        of: mutants::Of,
        /// Only those whose names contain this.
        #[arg(long, value_name = "WORDS")]
        only: Option<String>,
    },
    /// Write the layer tables of published nets into models/.
    Tables,
    /// Build the Debian package, with all programs. Takes dpkg-deb and dpkg-shlibdeps.
    Deb {
        /// The folder for the package: it must hold none.
        #[arg(long, value_name = "FOLDER", default_value = "target/debian")]
        out: PathBuf,
        /// The folder of the programs that go in, instead of those that are built for it (profile
        /// dist).
        #[arg(long, value_name = "FOLDER")]
        programs: Option<PathBuf>,
        /// How dpkg-deb compresses it.
        #[arg(long, value_name = "NAME", default_value = "xz")]
        compress: String,
    },
    /// Build the Python package as a wheel, with the program in it. Takes maturin.
    Wheel {
        /// The folder for the wheel: it must hold none.
        #[arg(long, value_name = "FOLDER", default_value = "target/wheels")]
        out: PathBuf,
        /// How it is built.
        #[arg(long, value_name = "NAME", default_value = "slim")]
        profile: String,
        /// The program that goes in, instead of one that is built for it.
        #[arg(long, value_name = "FILE")]
        program: Option<PathBuf>,
    },
}

/// One command of the check: what is set in its environment, its words.
type Step<'a> = (&'a [(&'a str, &'a str)], &'a str);

/// The README's test command.
const TEST: &str = "cargo test --workspace";

const FORMAT: [Step; 2] = [
    (&[], "cargo fmt --all --check"),
    (&[], "cargo fmt --manifest-path fuzz/Cargo.toml --check"),
];

/// Where it is installed; [`deny::check`] does without.
const CARGO_DENY: Step = (
    &[],
    "cargo deny --offline --locked check licenses bans sources",
);

const BUILD: [Step; 2] = [
    (&[], "cargo clippy --workspace --all-targets -- -D warnings"),
    (
        &[("RUSTDOCFLAGS", "-D warnings")],
        "cargo doc --workspace --no-deps",
    ),
];

fn main() -> ExitCode {
    let result = match Cli::parse().action {
        Action::Check {
            fast,
            all,
            load,
            times,
        } => check(fast, &Tests { all, load, times }),
        Action::Ptx => ptx::write(&root()),
        Action::Deny => check_dependencies(),
        Action::Storm { seeds, trace } => storm::run(seeds, trace.as_deref()),
        Action::Explore {
            more,
            seconds,
            only,
        } => explore::run(explore::Bounds {
            more,
            seconds,
            only: only.as_deref(),
        }),
        Action::Mutants { of, only } => mutants::run(of, only.as_deref()),
        Action::Tables => tables::write(&root().join("models")),
        Action::Deb {
            out,
            programs,
            compress,
        } => deb::build(&out, programs, &compress),
        Action::Wheel {
            out,
            profile,
            program,
        } => wheel::build(&out, &profile, program),
    };
    dogwild::cli::finish("xtask", result)
}

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn check(fast: bool, tests: &Tests) -> Result<()> {
    let start = Instant::now();
    FORMAT.into_iter().try_for_each(run)?;
    check_dependencies()?;
    BUILD.into_iter().try_for_each(run)?;
    let manifest = root().join("Cargo.toml");
    let crates = features::check_crates(&manifest)?;
    dogwild_lab::say!("--- the library without features is built from {crates} crates");
    let workspace = Metadata::of_workspace(&manifest)?;
    let features = features::commands(&workspace);
    check_fuzz_targets(&workspace.target_directory)?;
    if fast {
        features.iter().try_for_each(|words| run((&[], words)))?;
    } else {
        tests.run(&features, &workspace.target_directory)?;
    }
    dogwild_lab::say!("all is well ({:.0} s)", start.elapsed().as_secs_f64());
    Ok(())
}

/// Licences, bans and sources of all dependencies; by cargo-deny too, where it is installed.
fn check_dependencies() -> Result<()> {
    dogwild_lab::say!("--- dependencies against deny.toml");
    deny::check(&root())?;
    let mut cargo_deny = Command::new("cargo");
    cargo_deny.args(["deny", "--version"]);
    let found = cargo_deny
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if found.is_ok_and(|status| status.success()) {
        run(CARGO_DENY)
    } else {
        dogwild_lab::say!("--- cargo-deny is not installed: no second look at deny.toml");
        Ok(())
    }
}

/// Fuzz targets are a workspace of their own. They are checked in this one's target folder, where
/// most of their dependencies are already.
fn check_fuzz_targets(target: &Path) -> Result<()> {
    let target = target
        .to_str()
        .context("a target folder whose name is text")?;
    let variables = [
        ("CARGO_TARGET_DIR", target),
        // Keeps libfuzzer-sys from compiling libFuzzer, which takes a C++ compiler; a check links
        // nothing.
        ("CUSTOM_LIBFUZZER_PATH", "/not/linked/libfuzzer.a"),
    ];
    let words = "cargo check --locked --manifest-path fuzz/Cargo.toml";
    run((&variables, words))
}

/// What a command prints.
fn output(command: &mut Command) -> Result<String> {
    let ended = command
        .output()
        .with_context(|| format!("cannot run {:?}", command.get_program()))?;
    if !ended.status.success() {
        let why = String::from_utf8_lossy(&ended.stderr);
        bail!("{command:?} failed ({}): {why}", ended.status);
    }
    Ok(String::from_utf8_lossy(&ended.stdout).into_owned())
}

/// The last program of tests that a command of cargo makes. It takes minutes, so cargo's progress
/// is shown.
fn test_program(build: &mut Command) -> Result<PathBuf> {
    build.args(["--message-format", "json-render-diagnostics"]);
    let said = output(build.stderr(Stdio::inherit()))?;
    let mut made = said.lines().filter_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        Some(PathBuf::from(message["executable"].as_str()?))
    });
    made.next_back().context("cargo names no program of tests")
}

fn run((variables, words): Step) -> Result<()> {
    let shown = variables
        .iter()
        .map(|(name, value)| format!("{name}={value:?} "));
    let shown = shown.collect::<String>() + words;
    dogwild_lab::say!("--- {shown}");
    let start = Instant::now();
    let mut words = words.split_whitespace();
    let program = words.next().context("an empty command")?;
    let status = Command::new(program)
        .args(words)
        .current_dir(root())
        .envs(variables.iter().copied())
        .status()
        .with_context(|| format!("cannot run {program}"))?;
    if !status.success() {
        bail!("`{shown}` failed ({status}): correct it, then `cargo xtask check` again");
    }
    dogwild_lab::say!("--- {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}

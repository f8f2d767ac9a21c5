//! `cargo xtask wheel`: the Python package as one wheel, with the program in it.
//!
//! Builds the program first, puts it where maturin takes scripts from (`python/dogwild.data`), and
//! lets maturin build the library and the wheel. Removes that folder, and writes to the one of the
//! wheel and to cargo's besides.
//! Invariant: a wheel for users that is larger than [`BYTES_MAX`] is an error.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::metadata::Metadata;
use super::{output, root};

/// Most bytes of a wheel that is built with [`RELEASED`].
const BYTES_MAX: u64 = 5_000_000;
/// How what users get is built.
const RELEASED: &str = "slim";
/// What a profile cannot say: functions that are alike are there once, and only short ones are
/// copied to where they are called.
const SMALLER: &[(&str, &str)] = &[(
    "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS",
    "-Clink-arg=-Wl,--icf=all -Cllvm-args=-inline-threshold=50",
)];

/// What builds wheels: maturin, which `pip install` brings.
const MATURIN: &str = "maturin==1.16.0";

/// Builds it into `out`, with `profile`. `program` goes in; `None`: it is built too.
pub(super) fn build(out: &Path, profile: &str, program: Option<PathBuf>) -> Result<()> {
    let maturin = maturin()?;
    // Before anything is built.
    fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
    let before = wheels(out)?;
    ensure!(
        before.is_empty(),
        "{} is there already: remove it, or name an empty folder",
        before[0].display()
    );
    let target = Metadata::of_workspace(&root().join("Cargo.toml"))?.target_directory;
    let flags = if profile == RELEASED { SMALLER } else { &[] };
    let program = program.map_or_else(|| build_program(&target, profile, flags), Ok)?;
    let data = Data::put(&program)?;
    let said = output(
        Command::new(maturin)
            .args(["build", "--locked", "--strip", "--profile", profile])
            .args(["--compression-level", "9"])
            .envs(flags.iter().copied())
            .arg("--manifest-path")
            .arg(root().join("python/Cargo.toml"))
            .arg("--out")
            .arg(out)
            // The library of the tests stays.
            .env("CARGO_TARGET_DIR", target.join("wheel")),
    )?;
    drop(data);
    let wheel = wheels(out)?.pop();
    let wheel = wheel.with_context(|| format!("maturin built no wheel: {said}"))?;
    let bytes = fs::metadata(&wheel)?.len();
    dogwild_lab::say!("{}: {:.2} MB", wheel.display(), bytes as f64 / 1e6);
    ensure!(
        bytes <= BYTES_MAX || profile != RELEASED,
        "{} has {bytes} bytes, {BYTES_MAX} at most",
        wheel.display()
    );
    Ok(())
}

fn build_program(target: &Path, profile: &str, flags: &[(&str, &str)]) -> Result<PathBuf> {
    // What only a terminal needs is no part of a package that others build on.
    let words = format!(
        "cargo build --locked --profile {profile} --no-default-features --features program,cuda --bin dogwild"
    );
    super::run((flags, &words))?;
    let folder = if profile == "dev" { "debug" } else { profile };
    Ok(target.join(folder).join("dogwild"))
}

/// How maturin is called: `$MATURIN`, else it is on `PATH`.
fn maturin() -> Result<String> {
    let maturin = std::env::var("MATURIN").unwrap_or_else(|_| "maturin".into());
    match Command::new(&maturin).arg("--version").output() {
        Ok(told) if told.status.success() => Ok(maturin),
        _ => bail!(
            "`{maturin} --version` fails: `pip install {MATURIN}`, or name the program in MATURIN"
        ),
    }
}

fn wheels(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()));
    let paths = entries?.flatten().map(|entry| entry.path());
    Ok(paths
        .filter(|path| path.extension().is_some_and(|end| end == "whl"))
        .collect())
}

/// The folder from which the wheel takes programs, while it is there.
struct Data(PathBuf);

impl Data {
    /// The program without what only debuggers read.
    fn put(program: &Path) -> Result<Self> {
        let data = Self(root().join("python/dogwild.data"));
        let scripts = data.0.join("scripts");
        fs::create_dir_all(&scripts)
            .with_context(|| format!("cannot make {}", scripts.display()))?;
        let target = scripts.join("dogwild");
        let mut strip = Command::new("strip");
        output(strip.arg("-o").arg(&target).arg(program))?;
        Ok(data)
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            dogwild_lab::say!("cannot remove {}: {error}", self.0.display());
        }
    }
}

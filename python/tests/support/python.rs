//! The interpreter with the package that cargo has built.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use dogwild_lab::skip::skip;

/// The folder into which cargo builds libraries of tests: that of this program.
fn built() -> PathBuf {
    let own = std::env::current_exe().expect("a test runs from a file");
    own.parent().expect("it is in a folder").to_owned()
}

/// The interpreter, if it is there with what the tests need.
fn interpreter() -> Option<String> {
    let python = std::env::var("DOGWILD_PYTHON").unwrap_or("/usr/bin/python3".into());
    let tried = Command::new(&python)
        .args(["-c", "import numpy, torch"])
        .stdin(Stdio::null())
        .output();
    let why = match tried {
        Ok(output) if output.status.success() => return Some(python),
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    skip(&format!(
        "{python} cannot import torch and numpy (Debian: python3-torch python3-numpy): {why}"
    ));
    None
}

/// A copy of the package with the library that cargo built.
fn package(folder: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("dogwild");
    let target = folder.join("dogwild");
    std::fs::create_dir(&target).expect("a folder");
    for entry in std::fs::read_dir(source).expect("the package").flatten() {
        if entry.path().is_file() {
            std::fs::copy(entry.path(), target.join(entry.file_name())).expect("a copy");
        }
    }
    let library = built().join("libdogwild_py.so");
    let native = target.join("_native.abi3.so");
    std::fs::copy(&library, native).unwrap_or_else(|e| panic!("{}: {e}", library.display()));
}

/// The interpreter with a package in a folder that is removed with it; none if something lacks.
pub(crate) struct Python {
    pub(crate) name: String,
    program: PathBuf,
    pub(crate) folder: tempfile::TempDir,
}

impl Python {
    pub(crate) fn new() -> Option<Self> {
        let program = built().with_file_name("dogwild");
        if !program.is_file() {
            let program = program.display();
            skip(&format!(
                "{program} is not there: cargo build --bin dogwild"
            ));
            return None;
        }
        let name = interpreter()?;
        let folder = tempfile::tempdir().expect("a folder");
        package(folder.path());
        Some(Self {
            name,
            program,
            folder,
        })
    }

    /// Makes `command`, which starts the interpreter, find all.
    pub(crate) fn prepare<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        dogwild_lab::process::die_with_parent(command);
        command
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests"))
            .env("PYTHONPATH", self.folder.path())
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("DOGWILD_BIN", &self.program)
            .stdin(Stdio::null())
    }
}

/// Whether MNIST is there, on which examples train.
pub(crate) fn mnist() -> bool {
    let there = std::env::var_os("DOGWILD_DATA").is_some();
    if !there {
        skip("DOGWILD_DATA names no folder with real data: the examples train on MNIST");
    }
    there
}

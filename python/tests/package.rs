//! Runs the tests of the Python package: Debian's interpreter (or `$DOGWILD_PYTHON`) on the library
//! and the program that cargo has built.

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

/// Runs a file of tests.
fn run(tests: &str) {
    let program = built().with_file_name("dogwild");
    if !program.is_file() {
        return skip(&format!(
            "{} is not there: cargo build --bin dogwild",
            program.display()
        ));
    }
    let Some(python) = interpreter() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    package(folder.path());
    let mut command = Command::new(python);
    dogwild_lab::process::die_with_parent(&mut command);
    let command = command
        .args(["-W", "ignore", "-m", "unittest", "-v", tests])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests"))
        .env("PYTHONPATH", folder.path())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("DOGWILD_BIN", program)
        .stdin(Stdio::null());
    let output = command.output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("\nRan ") && !said.contains("Ran 0 tests"),
        "{said}"
    );
}

#[test]
fn a_model_and_its_buffer() {
    run("test_alone");
}

#[test]
fn two_nodes() {
    run("test_nodes");
}

#[test]
fn the_reliable_path() {
    run("test_reliable");
}

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

/// The interpreter with a package in a folder that is removed with it; none if something lacks.
struct Python {
    name: String,
    program: PathBuf,
    folder: tempfile::TempDir,
}

impl Python {
    fn new() -> Option<Self> {
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
    fn prepare<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        dogwild_lab::process::die_with_parent(command);
        command
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests"))
            .env("PYTHONPATH", self.folder.path())
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("DOGWILD_BIN", &self.program)
            .stdin(Stdio::null())
    }
}

/// Runs a file of tests.
fn run(tests: &str) {
    let Some(python) = Python::new() else { return };
    let mut command = Command::new(&python.name);
    let command = python.prepare(&mut command);
    command.args(["-W", "ignore", "-m", "unittest", "-v", tests]);
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
fn processes_that_begin_together() {
    run("test_begin");
}

#[test]
fn the_state_of_an_optimiser() {
    run("test_state");
}

#[test]
fn two_nodes() {
    run("test_nodes");
}

#[test]
fn the_examples() {
    if std::env::var_os("DOGWILD_DATA").is_none() {
        return skip("DOGWILD_DATA names no folder with real data: the examples train on MNIST");
    }
    run("test_examples.MnistShare");
}

#[test]
fn the_example_of_a_transformer() {
    run("test_examples.Transformer");
}

#[test]
fn the_example_of_a_resnet() {
    if std::env::var_os("DOGWILD_CIFAR10").is_none() {
        return skip("DOGWILD_CIFAR10 does not name the folder of data_batch_1.bin");
    }
    run("test_examples.Resnet");
}

#[test]
fn four_nodes_that_walk_ahead() {
    run("test_ahead");
}

#[test]
fn callbacks_of_training_libraries() {
    run("test_libraries");
}

#[test]
fn the_reliable_path() {
    run("test_reliable");
}

/// Each worker on a host of its own: the address at which others reach a server is that of its
/// host, whether the user names that of worker 0 or torch.distributed knows it.
#[test]
fn the_reliable_path_between_hosts() {
    if !dogwild_lab::enter::privileged() {
        return skip("hosts need root, or namespaces of ordinary users");
    }
    let Some(python) = Python::new() else { return };
    let lab = dogwild_lab::Lab::up(&dogwild_lab::Spec::of(3)).expect("a lab");
    for how in ["hybcomm", "distributed"] {
        let workers: Vec<_> = (0..3)
            .map(|rank| {
                let at = format!("{}:7700", lab.host(0).ipv4());
                let job = format!(
                    r#"{{"rank": {rank}, "workers": 3, "address": "{at}", "how": "{how}", "steps": 5}}"#
                );
                let mut command = lab.command(rank, &python.name);
                let command = python.prepare(&mut command);
                let command = command.args(["-W", "ignore", "reliable_worker.py", &job]);
                let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
                if rank != 0 {
                    // By the host's name Gloo finds the network of the machine. Of worker 0 the
                    // address has to be found without it.
                    command.env("GLOO_SOCKET_IFNAME", lab.host(rank).iface());
                }
                command.spawn().expect("it starts")
            })
            .collect();
        let mut hashes: Vec<String> = Vec::new();
        for worker in workers {
            let output = worker.wait_with_output().expect("it ends");
            let said = String::from_utf8_lossy(&output.stdout);
            let log = String::from_utf8_lossy(&output.stderr);
            let hash = said.lines().find(|line| line.contains("\"hash\""));
            hashes.push(hash.unwrap_or_else(|| panic!("{how}: {said}{log}")).into());
        }
        hashes.dedup();
        assert_eq!(hashes.len(), 1, "{how}: {hashes:?}");
    }
}

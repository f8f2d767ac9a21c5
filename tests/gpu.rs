//! `dogwild gpu`: a device's solver and a processor's on one buffer, the component killed in the
//! middle; and what it says when it cannot start.

#![cfg(feature = "program")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering::Relaxed;

use dogwild::watch::{GpuMeter, SolverMeter};
use dogwild::weights::{Expect, Role, SharedWeights, SlotInfo};

fn dogwild(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dogwild"));
    command.args(arguments).stdin(Stdio::null());
    dogwild_lab::process::die_with_parent(&mut command);
    command
}

/// A folder in shared memory that goes with the test.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir_in("/dev/shm").unwrap())
    }

    fn buffer(&self) -> PathBuf {
        self.0.path().join("w")
    }
}

fn init(buffer: &Path) {
    let made = dogwild(&[
        "init",
        "--nodes",
        "1",
        "--solver",
        "lenet_no_momentum",
        "--buffer",
    ])
    .args([buffer.as_os_str(), "--iterations".as_ref(), "0".as_ref()])
    .output()
    .unwrap();
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
}

fn slot(shared: &SharedWeights, role: Role, index: u32) -> Option<SlotInfo> {
    let slots = shared.slots();
    slots
        .into_iter()
        .find(|slot| slot.role == role && slot.index == index)
}

/// Iterations of solver `index` so far.
fn iterations(shared: &SharedWeights, index: u32) -> u64 {
    slot(shared, Role::Solver, index).map_or(0, |slot| SolverMeter::Iterations.of(&slot.meters))
}

/// Waits until `done`, as long as all of `children` run.
fn wait(what: &str, children: &mut [&mut Child], done: impl Fn() -> bool) {
    while !done() {
        for child in &mut *children {
            assert!(
                child.try_wait().unwrap().is_none(),
                "ended while waiting for {what}"
            );
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn a_device_and_the_processor_train_one_model_and_a_kill_does_not_stop_them() {
    let folder = Folder::new();
    let buffer = folder.buffer();
    init(&buffer);
    let shared = SharedWeights::open(&buffer, &Expect::default()).unwrap();
    let model = [
        "--solver",
        "lenet_no_momentum",
        "--data",
        "digits",
        "--solvers",
        "2",
    ];
    let path = buffer.to_str().unwrap();
    let on_device = || {
        let mut command = dogwild(&["gpu", "--device", "host", "--solver-index", "1"]);
        command
            .args(model)
            .args(["--buffer", path, "--rate", "200MB"]);
        command.spawn().unwrap()
    };
    let mut gpu = on_device();
    // Alone on the device first: what it learns there reaches the buffer.
    wait("the device's solver", &mut [&mut gpu], || {
        iterations(&shared, 1) >= 10
    });
    let mut solver = dogwild(&["solver", "--index", "0", "--nodes", "1", "--buffer", path])
        .args(model)
        .args([
            "--target-accuracy",
            "0.95",
            "--test-every",
            "50",
            "--test-images",
            "500",
        ])
        .spawn()
        .unwrap();
    wait("both", &mut [&mut gpu, &mut solver], || {
        iterations(&shared, 0) >= 5
    });
    gpu.kill().unwrap();
    gpu.wait().unwrap();
    let before = iterations(&shared, 1);
    let mut gpu = on_device();
    wait("the device's solver", &mut [&mut gpu], || {
        iterations(&shared, 1) > before || shared.globals().stop.load(Relaxed) != 0
    });
    assert!(solver.wait().unwrap().success());
    assert!(
        gpu.wait().unwrap().success(),
        "the target stops the component too"
    );
    let tested = slot(&shared, Role::Solver, 0).unwrap();
    let accuracy = f32::from_bits(SolverMeter::AccuracyBits.of(&tested.meters) as u32);
    // The last test comes after the one that reached the target, and may find a little less.
    assert!(accuracy >= 0.9, "{accuracy}");
    let counts = slot(&shared, Role::Gpu, 0).unwrap();
    assert!(GpuMeter::DeltasApplied.of(&counts.meters) > 0);
    assert!(
        iterations(&shared, 1) > before,
        "the second one trained too"
    );
}

fn refused(arguments: &[&str]) -> String {
    let output = dogwild(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && !said.contains("panicked"),
        "{said}"
    );
    said
}

#[test]
fn what_it_cannot_start_with_it_says() {
    let folder = Folder::new();
    let buffer = folder.buffer();
    let path = buffer.to_str().unwrap();
    let on_host = ["gpu", "--device", "host", "--buffer", path];
    assert!(refused(&on_host).contains("no such buffer"));
    init(&buffer);
    let with = |more: &[&'static str]| refused(&[&on_host[..], more].concat());
    assert!(with(&["--ipc"]).contains("only CUDA devices have"));
    assert!(with(&["--solver", "cifar10_quick", "--data", "digits"]).contains("another model"));
    assert!(with(&["--solver", "lenet", "--solver-index", "1"]).contains("they count from 0"));
    assert!(with(&["--chunk", "5"]).contains("16.."));
    // Whatever this machine has: no panic, and the way out in the message.
    let said = refused(&["gpu", "--device", "999", "--buffer", path]);
    assert!(
        said.contains("--device host") || said.contains("no CUDA device 999"),
        "{said}"
    );
}

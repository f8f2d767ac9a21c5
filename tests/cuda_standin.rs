//! Programs and tests of devices on a GPU that is none: a driver of host memory
//! (`tools/cuda-standin`), which holds each call against what CUDA asks of a caller.

#![cfg(all(feature = "program", feature = "cuda"))]

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use dogwild::watch::GpuMeter;
use dogwild::weights::{Expect, Role, SharedWeights};
use dogwild_lab::skip::skip;
use support::output::{said, succeeds};
use support::process::Process;
use support::program::dogwild;
use support::shm::shm_folder;
use support::wait::wait_while;

/// The folder of the stand-in, built once; none without a C++ compiler.
fn standin() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let found = Command::new("g++").arg("--version").output();
        if !found.is_ok_and(|found| found.status.success()) {
            skip("g++ is not there (Debian: g++), which builds the stand-in for CUDA's driver");
            return None;
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda-standin");
        let mut build = Command::new(root.join("tools/cuda-standin/build.sh"));
        succeeds(build.arg(&folder));
        Some(folder)
    });
    built.as_deref()
}

/// `command` with the stand-in for a driver; its settings by name.
fn on_standin<'a>(
    command: &'a mut Command,
    folder: &Path,
    settings: &[(&str, &str)],
) -> &'a mut Command {
    command.env("LD_LIBRARY_PATH", folder);
    command.envs(settings.iter().copied());
    command.stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped())
}

/// No contract of the driver was broken, and nothing is left.
#[track_caller]
fn used_well(said: &str) {
    let end = "STANDIN: violations 0; left: 0 allocations, 0 registered";
    assert!(said.contains(end), "{said}");
}

#[test]
fn doctor_runs_a_kernel_on_each_gpu_in_the_order_of_nvidia_smi() {
    let Some(folder) = standin() else { return };
    let mut doctor = dogwild();
    doctor.args(["doctor", "--json"]);
    let told = succeeds(on_standin(&mut doctor, folder, &[("STANDIN_GPUS", "2")]));
    for part in [
        "cuda device 0 (Stand-in 1): runs kernels",
        "cuda device 1 (Stand-in 0): runs kernels",
        "driver for CUDA 11.8",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
}

/// What a driver may answer, numbers that none has today included.
#[test]
fn why_a_driver_does_not_work_is_told() {
    let Some(folder) = standin() else { return };
    let buffers = shm_folder();
    let buffer = buffers.path().join("w");
    init(&buffer);
    for (setting, parts) in [
        (("STANDIN_FAIL", "cuInit:-1:100"), &["finds no GPU"][..]),
        (("STANDIN_FAIL", "cuInit:-1:34"), &["stub"]),
        (
            ("STANDIN_FAIL", "cuInit:-1:803"),
            &["MISMATCH (803)", "another version"],
        ),
        (("STANDIN_FAIL", "cuInit:-1:123456"), &["CUDA error 123456"]),
        (
            ("STANDIN_FAIL", "cuDeviceGetCount:-1:54321"),
            &["CUDA error 54321", "list its GPUs"],
        ),
        (
            ("STANDIN_FAIL", "cuDevicePrimaryCtxRetain:-1:2"),
            &["its context", "OUT_OF_MEMORY"],
        ),
        (
            ("STANDIN_FAIL", "cuStreamCreate:-1:777"),
            &["making a stream", "777"],
        ),
        (
            ("STANDIN_PTX", "77"),
            &["for CUDA 11.8) does not take the kernels of sync.cu"],
        ),
        (("STANDIN_MEMORY", "100000"), &["too little memory"]),
        (("STANDIN_GPUS", "0"), &["no CUDA device 0"]),
    ] {
        let mut gpu = dogwild();
        gpu.args(["gpu", "--device", "0", "--buffer"]).arg(&buffer);
        let output = on_standin(&mut gpu, folder, &[setting]).output();
        let output = output.expect("it starts");
        let told = said(&output);
        assert_eq!(output.status.code(), Some(1), "{setting:?}: {told}");
        for part in parts {
            assert!(told.contains(part), "{setting:?}: {part} is not in {told}");
        }
        assert!(!told.contains("VIOLATION"), "{setting:?}: {told}");
    }
}

fn init(buffer: &Path) {
    let mut init = dogwild();
    init.args(["init", "--nodes", "1", "--solver", "lenet_no_momentum"]);
    init.args(["--iterations", "0", "--buffer"]).arg(buffer);
    succeeds(&mut init);
}

/// A component keeps the device's copy in step while a solver on the processor trains: killed and
/// started again, with a second one on the same GPU, and where memory cannot be pinned.
#[test]
fn components_keep_copies_in_step() {
    let Some(folder) = standin() else { return };
    let buffers = shm_folder();
    let buffer = buffers.path().join("w");
    init(&buffer);
    let shared = SharedWeights::open(&buffer, &Expect::default()).expect("a buffer");
    let start = |args: &[&str], more: &[(&str, &str)]| {
        let mut gpu = dogwild();
        gpu.args(["gpu", "--device", "0"]).args(args);
        gpu.args(["--rate", "200MB", "--buffer"]).arg(&buffer);
        let settings = [&[("STANDIN_DELAY_US", "200")], more].concat();
        Process::start(on_standin(&mut gpu, folder, &settings))
    };
    let cycles = |index: u32, more: u64, process: &mut Process| {
        let now = || {
            let slots = shared.slots().into_iter();
            let mut own = slots.filter(|slot| slot.role == Role::Gpu && slot.index == index);
            own.next()
                .map_or(0, |slot| GpuMeter::Cycles.of(&slot.meters))
        };
        let wanted = now() + more;
        wait_while(&format!("{more} cycles of component {index}"), || {
            assert_eq!(process.ended(), None, "component {index}");
            let now = now();
            (now < wanted).then(|| format!("{now} cycles of {wanted}"))
        });
    };
    let mut solver = dogwild();
    solver.args(["solver", "--index", "0", "--nodes", "1", "--data", "digits"]);
    solver
        .args(["--solver", "lenet_no_momentum", "--buffer"])
        .arg(&buffer);
    let solver = Process::start(solver.stdout(Stdio::null()).stderr(Stdio::null()));
    let handle = dogwild::node::ipc_beside(&buffer, 0);
    let mut one = start(&["--index", "0", "--ipc"], &[]);
    let unpinned = [("STANDIN_FAIL", "cuMemHostRegister_v2:-1:801")];
    let mut other = start(&["--index", "1"], &unpinned);
    cycles(0, 3, &mut one);
    cycles(1, 3, &mut other);
    let told = std::fs::read_to_string(&handle).expect("the handle of its memory");
    assert!(told.contains("\"device_uuid\": \"f0f0"), "{told}");
    one.kill();
    let mut one = start(&["--index", "0"], &[]);
    cycles(0, 3, &mut one);
    assert!(!handle.exists(), "the handle of memory that is gone");
    for component in [&one, &other] {
        component.signal("TERM");
    }
    let told = said(&one.output());
    used_well(&told);
    let told = said(&other.output());
    used_well(&told);
    assert!(told.contains("copies of") && told.contains("801"), "{told}");
    drop(solver);
}

/// What a device promises, LeNet on it, and sums of several: the library's own tests, with work
/// that is late at random.
#[test]
fn tests_of_devices_pass_on_it() {
    let Some(folder) = standin() else { return };
    for seed in ["1", "2"] {
        let mut tests = Command::new(env!("CARGO"));
        dogwild_lab::process::die_with_parent(&mut tests);
        tests.current_dir(env!("CARGO_MANIFEST_DIR"));
        tests.args(["test", "--workspace", "--lib", "--", "--nocapture"]);
        tests.args(["device::tests::a_gpu", "every_gpu", "lenet_on_a_gpu"]);
        let settings = [("STANDIN_SEED", seed), ("STANDIN_DELAY_US", "300")];
        let output = on_standin(&mut tests, folder, &settings).output();
        let output = output.expect("cargo starts");
        let told = said(&output);
        assert!(output.status.success(), "{told}");
        assert!(
            told.contains("3 passed") && !told.contains("ELSEWHERE"),
            "{told}"
        );
        used_well(&told);
    }
}

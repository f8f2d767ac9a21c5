//! Programs and tests of devices on a GPU that is none: a driver of host memory
//! (`tools/cuda-standin`), which holds each call against what CUDA asks of a caller.

#![cfg(all(feature = "program", feature = "cuda"))]

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use dogwild::watch::{GpuMeter, SolverMeter};
use dogwild::weights::{Expect, Role, SharedWeights};
use dogwild_lab::skip::skip;
use support::output::{said, succeeds};
use support::process::Process;
use support::program::{DOGWILD, dogwild};
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
        "driver for CUDA 11.8, products by libcublas.so.12 in f32",
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

/// What a device promises, a buffer in step with it, a hundred kills, LeNet on it, and sums of
/// several: the library's own tests, with work that is late at random.
#[test]
fn tests_of_devices_pass_on_it() {
    let Some(folder) = standin() else { return };
    for seed in ["1", "2"] {
        let mut tests = Command::new(env!("CARGO"));
        dogwild_lab::process::die_with_parent(&mut tests);
        tests.current_dir(env!("CARGO_MANIFEST_DIR"));
        tests.args(["test", "--workspace", "--lib", "--", "--nocapture"]);
        tests.args(["a_gpu_", "every_gpu_"]);
        let settings = [("STANDIN_SEED", seed), ("STANDIN_DELAY_US", "300")];
        let output = on_standin(&mut tests, folder, &settings).output();
        let output = output.expect("cargo starts");
        let told = said(&output);
        assert!(output.status.success(), "{told}");
        assert!(
            told.contains("8 passed") && !told.contains("ELSEWHERE"),
            "{told}"
        );
        used_well(&told);
    }
}

/// cuBLAS that starts, does not start, fails, or is wrong: products are right, or it is told.
#[test]
fn products_are_right_with_any_cublas() {
    let Some(folder) = standin() else { return };
    let (_folder, solver) = small_model();
    let train = |settings: &[(&str, &str)]| {
        let out = tempfile::tempdir().expect("a folder");
        let mut train = reliable("1");
        train.args(["--gpu", "0", "--data", DATA, "--iterations", "40", "--out"]);
        train.arg(out.path()).arg("--solver").arg(&solver);
        let output = on_standin(&mut train, folder, settings).output();
        let output = output.expect("it starts");
        let log = std::fs::read_to_string(out.path().join("worker0.log"));
        let log = log.unwrap_or_default();
        assert!(!log.contains("VIOLATION"), "{log}");
        let trained = std::fs::read_to_string(out.path().join("summary.json"))
            .ok()
            .map(|text| {
                let summary: serde_json::Value = serde_json::from_str(&text).expect("JSON");
                let accuracy = summary["test_accuracy"].as_f64().expect("an accuracy");
                assert!(accuracy > 0.3, "{settings:?}: {accuracy}");
                weights_in(out.path())
            });
        (output.status.success(), trained, said(&output) + &log)
    };
    for (setting, part) in [
        (("RUST_LOG", "info"), "libcublas.so.12 multiplies in f32"),
        (("DOGWILD_PRODUCTS", "own"), ""),
        (
            ("STANDIN_BLAS_WRONG", "1"),
            "gives other products than the own kernel",
        ),
        (
            ("STANDIN_FAIL", "cublasCreate_v2:1:1"),
            "cuBLAS does not start (1)",
        ),
        (
            ("STANDIN_FAIL", "cublasGemmEx:1:13"),
            "gives other products than the own kernel",
        ),
    ] {
        let (well, trained, told) = train(&[setting]);
        assert!(well && told.contains(part), "{setting:?}: {told}");
        assert!(trained.is_some(), "{setting:?}");
    }
    // Mixed precision: other steps, and it learns.
    let [exact, tf32, bf16] = ["f32", "tf32", "bf16"].map(|products| {
        let (well, trained, told) = train(&[("DOGWILD_PRODUCTS", products), ("RUST_LOG", "info")]);
        let part = format!("libcublas.so.12 multiplies in {products}");
        assert!(well && told.contains(&part), "{told}");
        trained.expect("weights")
    });
    assert!(exact != tf32 && tf32 != bf16 && bf16 != exact);
    let (well, _, told) = train(&[("DOGWILD_PRODUCTS", "f16")]);
    assert!(
        !well && told.contains("give one of f32, tf32, bf16, own"),
        "{told}"
    );
    let (well, _, told) = train(&[("STANDIN_FAIL", "cublasGemmEx:-30:13")]);
    assert!(!well && told.contains("libcublas.so.12: 13"), "{told}");
}

/// A net of one layer, as kernels are slow here.
const NET: &str = "name: 'small'
layer { name: 'd' type: 'Data' top: 'data' top: 'label' data_param { batch_size: 16 } transform_param { scale: 0.00390625 } }
layer { name: 'i' type: 'InnerProduct' bottom: 'data' top: 'i' inner_product_param { num_output: 10 weight_filler { type: 'xavier' } } }
layer { name: 'l' type: 'SoftmaxWithLoss' bottom: 'i' bottom: 'label' top: 'l' }
";
const SOLVER: &str =
    "net: 'small.prototxt' base_lr: 0.05 lr_policy: 'fixed' momentum: 0.5 max_iter: 1000";

/// A folder with a solver file, and its path.
fn small_model() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let solver = folder.path().join("solver.prototxt");
    std::fs::write(folder.path().join("small.prototxt"), NET).expect("written");
    std::fs::write(&solver, SOLVER).expect("written");
    (folder, solver)
}

/// `dogwild train` on the reliable path, with one server.
fn reliable(workers: &str) -> Command {
    let mut train = dogwild();
    train.args(["train", "--sync", "poseidon"]);
    train.args(["--workers", workers, "--servers", "1"]);
    train
}

/// The trained weights in a folder of results.
fn weights_in(out: &Path) -> Vec<u8> {
    let saved = std::fs::read(out.join("weights.safetensors")).expect("weights");
    let saved = safetensors::SafeTensors::deserialize(&saved).expect("weights");
    saved.tensor("i.weight").expect("a tensor").data().to_vec()
}

const DATA: &str = "digits:3,train=2000,test=200";

/// The guide's commands for a job whose nodes have two GPUs each and no solver on processors.
#[test]
fn a_job_trains_on_the_gpus_of_its_nodes() {
    let Some(standin) = standin() else { return };
    let (folder, solver) = small_model();
    let out = folder.path().join("out");
    let mut train = dogwild();
    train.args(["train", "--solvers", "0", "--gpu", "0,1", "--data", DATA]);
    train.args(["--iterations", "200", "--out"]).arg(&out);
    train.arg("--solver").arg(&solver);
    succeeds(on_standin(&mut train, standin, &[("STANDIN_GPUS", "2")]));
    let text = std::fs::read_to_string(out.join("summary.json")).expect("a summary");
    let summary: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(summary["replicas_identical"], true, "{summary}");
    for (node, gpu) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let log = out.join(format!("node{node}-gpu{gpu}.log"));
        used_well(&std::fs::read_to_string(log).expect("a log"));
    }
    let accuracy = summary["per_node"][0]["test_accuracy"].as_f64();
    assert!(accuracy > Some(0.4), "{accuracy:?} right: {summary}");
}

/// The guide's commands for nodes that are started one by one, on either path: each takes the GPUs
/// of its host.
#[test]
fn nodes_of_a_job_train_on_the_gpus_of_their_hosts() {
    let Some(standin) = standin() else { return };
    for words in [
        &["--solvers", "0", "--gpu", "0,1"][..],
        &["--sync", "poseidon", "--gpu", "0"],
    ] {
        let (folder, solver) = small_model();
        let (file, out) = (folder.path().join("job.toml"), folder.path().join("out"));
        let (model, results) = (solver.display(), out.display());
        let text = format!(
            "data = \"{DATA}\"\nsolver = \"{model}\"\niterations = 80\nout = \"{results}\"\n"
        );
        std::fs::write(&file, text).expect("written");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("an address").to_string();
        drop(listener);
        let nodes = ["1", "0"].map(|rank| {
            let mut node = dogwild();
            node.arg("node")
                .arg(&file)
                .args(["--rank", rank, "--size", "2"]);
            node.args(["--join", &at]).args(words);
            Process::start(on_standin(&mut node, standin, &[("STANDIN_GPUS", "2")]))
        });
        for node in nodes {
            let output = node.output();
            assert!(output.status.success(), "{words:?}: {}", said(&output));
        }
        let weights = ["n0", "n1"].map(|node| weights_in(&out.join(node)));
        assert!(weights[0] == weights[1], "{words:?}");
        let logs = ["n0", "n1"].map(|node| {
            let files = std::fs::read_dir(out.join(node))
                .expect("results")
                .flatten();
            let logs = files.filter(|file| file.path().extension().is_some_and(|end| end == "log"));
            let logs = logs.map(|log| std::fs::read_to_string(log.path()).expect("a log"));
            logs.filter(|log| log.contains("STANDIN: violations 0"))
                .count()
        });
        let gpus = if words.contains(&"poseidon") { 1 } else { 2 };
        assert!(logs.iter().all(|&used| used >= gpus), "{words:?}: {logs:?}");
    }
}

/// Workers of the reliable path on two GPUs each: layers come down, are added and leave while the
/// pass goes on.
#[test]
fn workers_of_the_reliable_path_train_on_gpus() {
    let Some(standin) = standin() else { return };
    let (folder, solver) = small_model();
    let weights = |scheme: &str, workers: &str, gpus: &str| {
        let out = folder.path().join(format!("{scheme}-{workers}"));
        let mut train = reliable(workers);
        train.args(["--scheme", scheme, "--gpu", gpus, "--data", DATA]);
        train.args(["--iterations", "60", "--out"]).arg(&out);
        train.arg("--solver").arg(&solver);
        let settings = [("STANDIN_GPUS", "2"), ("STANDIN_DELAY_US", "100")];
        succeeds(on_standin(&mut train, standin, &settings));
        let text = std::fs::read_to_string(out.join("summary.json")).expect("a summary");
        let summary: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(summary["replicas_identical"], true, "{summary}");
        assert!(summary["test_accuracy"].as_f64() > Some(0.3), "{summary}");
        let log = std::fs::read_to_string(out.join("worker0.log"));
        used_well(&log.expect("a log"));
        weights_in(&out)
    };
    weights("sfb", "2", "0,1");
    let (one, two) = (weights("ps", "1", "0,1"), weights("ps", "2", "1"));
    assert!(one == two, "two GPUs of a worker are not two workers");
}

/// The guide's commands for a node with a solver on a GPU and one on the processor; the former is
/// killed on the way.
#[test]
fn a_gpu_and_the_processor_train_one_model() {
    let Some(standin) = standin() else { return };
    let (_folder, solver) = small_model();
    let buffers = shm_folder();
    let buffer = buffers.path().join("w");
    let with = |words: &[&str]| {
        let mut command = dogwild();
        command.args(words).arg("--buffer").arg(&buffer);
        command.arg("--solver").arg(&solver).args(["--data", DATA]);
        command
    };
    succeeds(&mut with(&["init", "--nodes", "1", "--iterations", "0"]));
    let shared = SharedWeights::open(&buffer, &Expect::default()).expect("a buffer");
    let on_gpu = || {
        let own = ["--solver-index", "1", "--solvers", "2", "--adders", "2"];
        let mut gpu = with(&["gpu", "--device", "0"]);
        Process::start(on_standin(gpu.args(own), standin, &[]))
    };
    let made = |index: u32| {
        let slots = shared.slots().into_iter();
        let mut own = slots.filter(|slot| slot.role == Role::Solver && slot.index == index);
        own.next()
            .map_or(0, |slot| SolverMeter::Iterations.of(&slot.meters))
    };
    let wait_for = |index: u32, iterations: u64, process: &mut Process| {
        wait_while(&format!("solver {index}"), || {
            assert_eq!(process.ended(), None, "solver {index}");
            let now = made(index);
            (now < iterations).then(|| format!("{now} iterations of {iterations}"))
        });
    };
    let mut gpu = on_gpu();
    wait_for(1, 20, &mut gpu);
    gpu.kill();
    let before = made(1);
    let mut gpu = on_gpu();
    wait_for(1, before + 20, &mut gpu);
    let target = ["--target-accuracy", "0.5", "--test-every", "100"];
    let mut on_processor = with(&["solver", "--nodes", "1", "--index", "0", "--solvers", "2"]);
    let quiet = on_processor.args(target).stdout(Stdio::null());
    let mut on_processor = Process::start(quiet.stderr(Stdio::null()));
    assert!(on_processor.wait().success());
    // The target stops the component too.
    used_well(&said(&gpu.output()));
}

/// The measurement of the guide, and that of sums.
#[test]
fn benchmarks_run_on_it() {
    let Some(standin) = standin() else { return };
    let rawbench = Path::new(DOGWILD).with_file_name("dogwild-rawbench");
    if !rawbench.exists() {
        return skip("dogwild-rawbench is not there: cargo test --workspace builds it");
    }
    let (folder, _) = small_model();
    let layers = folder.path().join("small.csv");
    let table = "layer,kind,m,n,bias,flops\nc1,conv,20,25,yes,500000\nf2,fc,50,80,yes,80000\n";
    std::fs::write(&layers, table).expect("written");
    let layers = layers.display().to_string();
    let gpu = "gpu --device 0 --weights 5000,100000 --adders 1,3 --seconds 0.2 --json";
    let sums = "accumulate --device-kind cuda --devices 1,3 --iterations 5 --throughput 2000 \
                --batch 8 --json --layers";
    let sums = format!("{sums} {layers}");
    for (words, device) in [(gpu, "Stand-in 0"), (&sums, "\"device_kind\": \"cuda\"")] {
        let mut command = Command::new(&rawbench);
        command.args(words.split_whitespace());
        let settings = [("STANDIN_DELAY_US", "100")];
        let output = on_standin(&mut command, standin, &settings).output();
        let output = output.expect("it starts");
        let told = said(&output);
        assert!(output.status.success(), "{words}: {told}");
        assert!(told.contains(device), "{words}: {told}");
        used_well(&told);
    }
}

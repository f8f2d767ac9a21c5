//! `dogwild gpu`: a device's solver and a processor's on one buffer, the component killed in the
//! middle; and what it says when it cannot start.

#![cfg(feature = "program")]

mod support;

use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering::Relaxed;

use dogwild::watch::{GpuMeter, SolverMeter};
use dogwild::weights::{Expect, Role, SharedWeights, SlotInfo, SolverState};
use support::output::succeeds;
use support::process::Process;
use support::program::dogwild;
use support::shm::shm_folder;
use support::wait::{wait_for, wait_while};

/// `dogwild` with these words.
fn with(words: &[&str]) -> Command {
    let mut command = dogwild();
    command.args(words);
    command
}

fn init(buffer: &Path) {
    let args = ["init", "--nodes", "1", "--solver", "lenet_no_momentum"];
    let mut command = with(&args);
    command.args(["--iterations", "0", "--buffer"]).arg(buffer);
    succeeds(&mut command);
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

/// Waits until solver `index` has made `wanted` iterations, as long as all of `all` run.
fn wait(shared: &SharedWeights, index: u32, wanted: u64, all: &mut [&mut Process]) {
    wait_while(&format!("{wanted} iterations of solver {index}"), || {
        for process in &mut *all {
            let ended = process.ended();
            assert!(
                ended.is_none(),
                "{ended:?} while waiting for solver {index}"
            );
        }
        let made = iterations(shared, index);
        (made < wanted).then(|| format!("solver {index} has made {made}"))
    });
}

#[test]
fn a_device_and_the_processor_train_one_model_and_a_kill_does_not_stop_them() {
    let folder = shm_folder();
    let buffer = folder.path().join("w");
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
        let mut command = with(&["gpu", "--device", "host", "--solver-index", "1"]);
        command
            .args(model)
            .args(["--buffer", path, "--rate", "200MB"]);
        Process::start(&mut command)
    };
    let mut gpu = on_device();
    // Alone on the device first: what it learns there reaches the buffer.
    wait(&shared, 1, 10, &mut [&mut gpu]);
    let state = SolverState::path_beside(&buffer, 1);
    let state = SolverState::look(&state, shared.id(), shared.padded()).unwrap();
    wait_for("the device's momentum", || {
        (0..shared.used()).any(|i| state.history().load(i) != 0.0)
    });
    let mut solver = with(&["solver", "--index", "0", "--nodes", "1", "--buffer", path]);
    solver.args(model).args([
        "--target-accuracy",
        "0.8",
        "--test-every",
        "50",
        "--test-images",
        "500",
    ]);
    let mut solver = Process::start(&mut solver);
    wait(&shared, 0, 5, &mut [&mut gpu, &mut solver]);
    gpu.kill();
    let before = iterations(&shared, 1);
    let mut gpu = on_device();
    wait_for("the device's solver, or the end", || {
        iterations(&shared, 1) > before || shared.globals().stop.load(Relaxed) != 0
    });
    assert!(solver.wait().success());
    assert!(gpu.wait().success(), "the target stops the component too");
    let tested = slot(&shared, Role::Solver, 0).unwrap();
    let accuracy = f32::from_bits(SolverMeter::AccuracyBits.of(&tested.meters) as u32);
    // The last test comes after the one that reached the target, and may find a little less.
    assert!(accuracy >= 0.7, "{accuracy}");
    let counts = slot(&shared, Role::Gpu, 0).unwrap();
    assert!(GpuMeter::DeltasApplied.of(&counts.meters) > 0);
    assert!(
        iterations(&shared, 1) > before,
        "the second one trained too"
    );
}

/// A component that was killed goes on with the momentum of each weight that it had. Its rate is
/// next to nothing, so what moves the weights is that momentum: h, 0.9 h, 0.81 h, ...
#[test]
fn a_killed_component_takes_its_momentum_back_whole() {
    let folder = shm_folder();
    let solver = folder.path().join("solver.prototxt");
    let net = "layer { name: 'd' type: 'Data' top: 'data' top: 'label' data_param { batch_size: 4 }
          transform_param { scale: 0.00390625 } }
        layer { name: 'i' type: 'InnerProduct' bottom: 'data' top: 'i'
          inner_product_param { num_output: 10 weight_filler { type: 'xavier' } } }
        layer { name: 'l' type: 'SoftmaxWithLoss' bottom: 'i' bottom: 'label' top: 'l' }";
    let settings = "net: 'net.prototxt' base_lr: 1e-20 lr_policy: 'fixed' momentum: 0.9";
    std::fs::write(folder.path().join("net.prototxt"), net).unwrap();
    std::fs::write(&solver, settings).unwrap();
    let buffer = folder.path().join("w");
    let with = |words: &[&str]| {
        let mut command = with(words);
        command.arg("--buffer").arg(&buffer);
        command.arg("--solver").arg(&solver);
        command.args(["--data", "digits:1,train=200,test=100"]);
        command
    };
    succeeds(&mut with(&["init", "--nodes", "1", "--iterations", "0"]));
    let shared = SharedWeights::open(&buffer, &Expect::default()).unwrap();
    let weights = || -> Vec<f32> { (0..shared.used()).map(|i| shared.view().load(i)).collect() };
    let first = weights();
    let mut gpu = Process::start(&mut with(&["gpu", "--device", "host"]));
    wait(&shared, 0, 20, &mut [&mut gpu]);
    gpu.kill();
    let momentum = |i: usize| (i % 17) as f32 * 1e-4;
    let state = SolverState::path_beside(&buffer, 0);
    let (state, there) = SolverState::open_or_create(&state, shared.id(), shared.padded()).unwrap();
    assert!(there);
    (0..shared.used()).for_each(|i| state.history().store(i, momentum(i)));
    drop(state);
    let before = iterations(&shared, 0);
    let mut gpu = Process::start(&mut with(&["gpu", "--device", "host"]));
    wait(&shared, 0, before + 150, &mut [&mut gpu]);
    gpu.signal("TERM");
    assert!(gpu.wait().success());
    for (i, (now, first)) in weights().into_iter().zip(first).enumerate() {
        let moved = first - now;
        let off = (moved - 9.0 * momentum(i)).abs();
        assert!(
            off < 1e-5,
            "weight {i} moved by {moved}, momentum {}",
            momentum(i)
        );
    }
}

fn refused(words: &[&str]) -> String {
    support::output::refused(&mut with(words))
}

#[test]
fn what_it_cannot_start_with_it_says() {
    let folder = shm_folder();
    let buffer = folder.path().join("w");
    let path = buffer.to_str().unwrap();
    let on_host = ["gpu", "--device", "host", "--buffer", path];
    assert!(refused(&on_host).contains("no such buffer"));
    init(&buffer);
    let more = |more: &[&'static str]| refused(&[&on_host[..], more].concat());
    assert!(more(&["--ipc"]).contains("only CUDA devices have"));
    assert!(more(&["--solver", "cifar10_quick", "--data", "digits"]).contains("another model"));
    assert!(more(&["--solver", "lenet", "--solver-index", "1"]).contains("they count from 0"));
    assert!(more(&["--chunk", "5"]).contains("16.."));
    // Whatever this machine has: no panic, and the way out in the message.
    let said = refused(&["gpu", "--device", "999", "--buffer", path]);
    assert!(
        said.contains("--device host") || said.contains("no CUDA device 999"),
        "{said}"
    );
}

/// A job whose nodes have a device each and no solver on the processor.
#[test]
fn a_job_trains_on_the_devices_of_its_nodes() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out");
    let mut train = with(&["train", "--solvers", "0", "--gpu", "host", "--solver"]);
    train.args([
        "lenet_no_momentum",
        "--data",
        "digits:3,train=2000,test=200",
    ]);
    train.args(["--iterations", "120", "--out"]).arg(&out);
    succeeds(train.stdin(std::process::Stdio::null()));
    let text = std::fs::read_to_string(out.join("summary.json")).expect("a summary");
    let summary: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(summary["replicas_identical"], true, "{summary}");
    assert_eq!(summary["settings"]["gpu"], "host", "{summary}");
    for node in 0..2 {
        let made = summary["per_node"][node]["iterations"].as_u64();
        assert!(made > Some(0), "node {node} made {made:?} iterations");
        assert!(out.join(format!("node{node}-gpu0.log")).exists());
    }
    let accuracy = summary["per_node"][0]["test_accuracy"].as_f64();
    assert!(accuracy > Some(0.5), "{accuracy:?} right: {summary}");
    let twice = refused(&["train", "--gpu", "0,0"]);
    assert!(twice.contains("0 is there twice"), "{twice}");
    let none = refused(&["train", "--solvers", "0"]);
    assert!(none.contains("a device (--gpu)"), "{none}");
}

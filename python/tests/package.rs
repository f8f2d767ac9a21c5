//! Runs the tests of the Python package: Debian's interpreter (or `$DOGWILD_PYTHON`) on the library
//! and the program that cargo has built.

mod support;

use std::path::Path;
use std::process::{Command, Stdio};

use dogwild_lab::skip::skip;
use support::python::{Python, mnist};

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

/// Runs a class of tests of examples that train on MNIST.
fn run_on_mnist(class: &str) {
    if mnist() {
        run(&format!("test_examples.{class}"));
    }
}

#[test]
fn the_examples() {
    run_on_mnist("MnistShare");
}

#[test]
fn an_example_whose_processes_are_killed() {
    run_on_mnist("MnistKilled");
}

#[test]
fn examples_under_torchrun() {
    run_on_mnist("MnistTorchrun");
}

#[test]
fn the_example_of_the_reliable_path() {
    run_on_mnist("MnistPoseidon");
}

#[test]
fn the_example_of_a_live_buffer() {
    run_on_mnist("LiveBuffer");
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
fn a_model_on_a_device() {
    run("test_device");
}

/// The same on a GPU that is none (tools/cuda-standin), the second of two.
#[test]
fn a_buffer_in_step_with_a_gpu() {
    run_on_standin(&["standin_gpu.py", "1"]);
}

/// Weights of a component of its own, opened by another process.
#[test]
fn weights_of_a_gpu_opened_by_another_process() {
    run_on_standin(&["standin_ipc.py"]);
}

fn run_on_standin(words: &[&str]) {
    let found = Command::new("g++").arg("--version").output();
    if !found.is_ok_and(|found| found.status.success()) {
        return skip("g++ is not there (Debian: g++), which builds the stand-in for CUDA's driver");
    }
    let Some(python) = Python::new() else { return };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let standin = python.folder.path().join("standin");
    let built = Command::new(root.join("tools/cuda-standin/build.sh"))
        .arg(&standin)
        .status();
    assert!(built.is_ok_and(|status| status.success()));
    let mut command = Command::new(&python.name);
    let command = python.prepare(&mut command);
    command.env("LD_LIBRARY_PATH", &standin);
    command.envs([("STANDIN_GPUS", "2"), ("STANDIN_DELAY_US", "200")]);
    let output = command.args(["-W", "ignore"]).args(words).output();
    let output = output.expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let end = "STANDIN: violations 0; left: 0 allocations, 0 registered";
    assert!(said.contains("in step") && said.contains(end), "{said}");
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

/// Four hosts that multicast does not bring together: each node is told the first of them.
#[test]
fn the_example_on_four_hosts_without_multicast() {
    if !dogwild_lab::enter::privileged() {
        return skip("hosts need root, or namespaces of ordinary users");
    }
    if !mnist() {
        return;
    }
    let Some(python) = Python::new() else { return };
    let lab = dogwild_lab::Lab::up(&dogwild_lab::Spec::of(4)).expect("a lab");
    let nft = |host: usize, args: &[&str]| {
        let output = lab.command(host, "nft").args(args).output();
        let output = output.expect("nft starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "nft on host {host}: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let rules = "table ip apart { chain in { type filter hook input priority 0; \
                 iifname eth0 ip daddr 224.0.0.0/4 counter drop; }; }";
    (0..4).for_each(|host| drop(nft(host, &[rules])));
    // Hosts share /dev/shm.
    let buffers = tempfile::Builder::new()
        .prefix("dogwild-py-")
        .tempdir_in("/dev/shm")
        .expect("a folder");
    let first = lab.host(0).ipv4().to_string();
    let start = |node: usize| {
        let mut command = lab.command(node, &python.name);
        let command = python.prepare(&mut command);
        command.args(["-W", "ignore", "../examples/mnist_share.py"]);
        command.args(["--name", "four-hosts", "--node", &node.to_string()]);
        command.args(["--nodes", "4", "--iface", lab.host(node).iface()]);
        command.args(["--join", &first, "--buffer"]);
        command.arg(buffers.path().join(node.to_string()));
        command.args(["--iterations", "60", "--batch", "16", "--test", "500"]);
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("it starts")
    };
    // The first comes last.
    let nodes = [2, 3, 1, 0].map(start);
    let mut digests: Vec<String> = Vec::new();
    for node in nodes {
        let output = node.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&output.stdout);
        let log = String::from_utf8_lossy(&output.stderr);
        // All steps of all four are in it.
        for part in ["\"equal\": true", "\"iterations\": 240"] {
            assert!(said.contains(part), "{said}{log}");
        }
        let digest = said.split("\"digest\": ").nth(1);
        let digest = digest.and_then(|rest| rest.split(',').next());
        digests.push(digest.unwrap_or_else(|| panic!("{said}{log}")).into());
    }
    digests.dedup();
    assert_eq!(digests.len(), 1, "{digests:?}");
    // What was sent to the group came to no host.
    for host in 0..4 {
        let table = nft(host, &["list", "table", "ip", "apart"]);
        assert!(!table.contains("packets 0 "), "host {host}: {table}");
    }
}

//! `kill -9` of any process, at iterations drawn from a seed (printed; `DOGWILD_SEED=N` repeats
//! it): the run ends bit for bit with the weights of an undisturbed run. Real processes, as a user
//! starts them.

use std::path::Path;
use std::process::Stdio;

use dogwild::weights::{Expect, SharedWeights};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::support::job::{Files, buffer, files};
use crate::support::output::said;
use crate::support::process::{Process, parent, processes, signal};
use crate::support::program::dogwild;
use crate::support::results::{summary, tensors};
use crate::support::wait::wait_while;

const ITERATIONS: u64 = 120;

/// Servers of a run with these arguments: under `p2p` workers hold all.
fn servers(args: &[&str]) -> u16 {
    if args.contains(&"p2p") { 0 } else { 2 }
}

/// `dogwild train --sync poseidon` on small batches, with results in `out`.
fn train(folder: &Path, out: &str, more: &[&str]) -> Process {
    let net = include_str!("../../models/lenet_train_test.prototxt");
    let net = net.replace("batch_size: 64", "batch_size: 8");
    let solver = include_str!("../../models/lenet_solver.prototxt");
    let solver = solver.replace("lenet_train_test.prototxt", "net.prototxt");
    std::fs::write(folder.join("net.prototxt"), net).expect("a net");
    std::fs::write(folder.join("solver.prototxt"), solver).expect("a solver");
    let mut command = dogwild();
    command
        .args([
            "train",
            "--sync",
            "poseidon",
            "--workers",
            "2",
            "--servers",
            &servers(more).to_string(),
        ])
        .args([
            "--pair-bytes",
            "200000",
            "--checkpoint-every",
            "10",
            "--test-every",
            "50",
        ])
        .args(["--data", "digits:1,train=400,test=100"])
        .arg("--solver")
        .arg(folder.join("solver.prototxt"))
        .arg("--out")
        .arg(folder.join(out))
        .args(more)
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    if !more.contains(&"--iterations") {
        command.args(["--iterations", &ITERATIONS.to_string()]);
    }
    Process::start(&mut command)
}

fn end(train: Process) -> String {
    let output = train.output();
    let said = said(&output);
    assert!(output.status.success(), "{said}");
    said
}

/// Steps that worker 0 of this job has made.
fn steps(job: u32) -> u64 {
    SharedWeights::open(&buffer(job, 0), &Expect::default())
        .map_or(0, |shared| shared.globals().iterations())
}

/// The child of `job` whose arguments contain `which`.
fn child(job: u32, which: &str) -> Option<u32> {
    let ours = |(pid, words): &(u32, Vec<String>)| {
        parent(*pid) == Some(job) && words.join(" ").contains(which)
    };
    processes()
        .iter()
        .find(|one| ours(one))
        .map(|(pid, _)| *pid)
}

/// Waits until worker 0 has made `wanted` steps.
fn wait_for_steps(train: &mut Process, wanted: u64) {
    let job = train.id();
    wait_while(&format!("step {wanted}"), || {
        assert!(train.ended().is_none(), "it ended before step {wanted}");
        let made = steps(job);
        (made < wanted).then(|| format!("worker 0 has made {made} steps"))
    });
}

/// Kills the child of `train` whose arguments contain `which`, once worker 0 has made `steps`
/// steps.
fn kill(train: &mut Process, which: &str, steps: u64) {
    wait_for_steps(train, steps);
    let job = train.id();
    wait_while(&format!("a process {which}"), || match child(job, which) {
        Some(pid) => {
            signal("KILL", &pid.to_string());
            None
        }
        None => Some(format!("job {job} has none")),
    });
}

/// The tensors of a job's weights.
fn weights(folder: &Path, out: &str) -> Vec<u8> {
    tensors(&folder.join(out).join("weights.safetensors"))
}

/// The seed of this run: `DOGWILD_SEED`, or another one each time. It is printed.
fn seed() -> u64 {
    let given = std::env::var("DOGWILD_SEED").map(|text| text.parse().expect("a number"));
    let seed = given.unwrap_or_else(|_| {
        let since = std::time::SystemTime::UNIX_EPOCH.elapsed();
        since.map_or(0, |since| since.as_nanos() as u64)
    });
    println!("DOGWILD_SEED={seed}");
    seed
}

/// Kills a worker, a server (where there is none a worker) and the coordinator, in any order, at
/// any iteration.
fn killed_runs_end_the_same(scheme: &str, more: &[&str]) {
    let folder = tempfile::tempdir().expect("a folder");
    let args: Vec<&str> = ["--scheme", scheme].iter().chain(more).copied().collect();
    end(train(folder.path(), "unbroken", &args));
    let mut broken = train(folder.path(), "broken", &args);
    let seed = seed();
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let holder = match servers(&args) {
        0 => ("worker", 2),
        servers => ("server", servers),
    };
    let which = [("worker", 2), holder].map(|(role, members)| {
        let index = rng.random_range(0..members);
        format!("--label {role}{index} ")
    });
    let mut victims = [which[0].as_str(), which[1].as_str(), "coordinator"];
    victims.rotate_left(rng.random_range(0..3));
    if rng.random_range(0..2) == 1 {
        victims.swap(0, 1);
    }
    let mut said = format!("DOGWILD_SEED={seed}");
    for (third, victim) in (0..).zip(victims) {
        let steps = third * 40 + rng.random_range(1..30u64);
        said += &format!(", {victim} at {steps}");
        kill(&mut broken, victim, steps);
    }
    let log = end(broken);
    // A run that begins anew ends the same too.
    assert!(
        log.contains("again from the checkpoint after"),
        "{said}: {log}"
    );
    let summary = summary(&folder.path().join("broken"));
    assert_eq!(summary["restarts"], 3, "{said}: {summary}");
    assert_eq!(summary["replicas_identical"], true, "{said}");
    let same = weights(folder.path(), "broken") == weights(folder.path(), "unbroken");
    assert!(same, "{scheme}: {said}: other weights");
}

#[test]
#[ignore = "long: a series of kills"]
fn parameter_servers_survive_kills() {
    killed_runs_end_the_same("ps", &[]);
}

#[test]
#[ignore = "long: a series of kills"]
fn sufficient_factors_survive_kills() {
    killed_runs_end_the_same("sfb", &[]);
}

#[test]
fn hybcomm_survives_kills() {
    killed_runs_end_the_same("hybcomm", &[]);
}

#[test]
#[ignore = "long: a series of kills"]
fn adam_with_two_threads_survives_kills() {
    killed_runs_end_the_same("adam", &["--threads-per-worker", "2"]);
}

#[test]
fn peer_to_peer_survives_kills() {
    killed_runs_end_the_same("p2p", &[]);
}

#[test]
#[ignore = "long: a series of kills"]
fn one_bit_survives_kills() {
    killed_runs_end_the_same("onebit-all", &[]);
}

#[test]
fn devices_of_workers_survive_kills() {
    killed_runs_end_the_same("ps", &["--gpu", "host"]);
}

/// Where late updates are dropped, only the worker that was killed is started again.
#[test]
fn a_killed_worker_is_replaced_while_the_others_go_on() {
    let folder = tempfile::tempdir().expect("a folder");
    // Worker 0 is slow, so that there is time to take the place.
    let args = ["--stragglers", "drop", "--quorum", "50%", "--scheme", "ps"];
    let args = [&args[..], &["--slow", "0:8"]].concat();
    let mut broken = train(folder.path(), "broken", &args);
    wait_for_steps(&mut broken, 10);
    let others = ["worker0 ", "server0 ", "server1 "].map(|which| format!("--label {which}"));
    let pids = || others.each_ref().map(|which| child(broken.id(), which));
    let before = pids();
    let killed = child(broken.id(), "--label worker1 ").expect("a worker");
    signal("KILL", &killed.to_string());
    wait_while("another worker 1", || {
        let now = child(broken.id(), "--label worker1 ");
        (now.is_none() || now == Some(killed)).then(|| format!("{now:?}"))
    });
    assert_eq!(pids(), before);
    end(broken);
    let summary = summary(&folder.path().join("broken"));
    assert_eq!(summary["restarts"], 1, "{summary}");
    assert_eq!(summary["replicas_identical"], true, "{summary}");
    assert_eq!(
        summary["per_worker"][1]["iterations"], ITERATIONS,
        "{summary}"
    );
}

/// Names of the checkpoints that are whole.
fn checkpoints(out: &Path) -> Vec<String> {
    let there = std::fs::read_dir(out.join("checkpoints"))
        .into_iter()
        .flatten();
    let names = there.filter_map(|one| one.ok()?.file_name().into_string().ok());
    names
        .filter(|name| name.ends_with(".safetensors"))
        .collect()
}

/// The launcher itself is killed, and started again with --resume.
#[test]
fn a_killed_launcher_is_resumed() {
    let folder = tempfile::tempdir().expect("a folder");
    // So many that the run does not end while a slow disk writes the first checkpoints.
    let many = ["--iterations", "600"];
    end(train(folder.path(), "unbroken", &many));
    let mut broken = train(folder.path(), "broken", &many);
    wait_for_steps(&mut broken, 45);
    wait_while("checkpoints of all members", || {
        let there = checkpoints(&folder.path().join("broken"));
        let without = |member: &&str| !there.iter().any(|name| name.starts_with(*member));
        let members = ["worker0-", "worker1-", "server0-", "server1-"];
        let lacking: Vec<_> = members.into_iter().filter(without).collect();
        (!lacking.is_empty()).then(|| format!("none of {lacking:?}"))
    });
    assert!(broken.ended().is_none(), "it ended before it was killed");
    let rest = Files(broken.id());
    broken.kill();
    // The checkpoints have what was learnt, so that its workers leave nothing in memory.
    wait_while("an empty /dev/shm", || {
        let found = files(broken.id());
        (!found.is_empty()).then(|| format!("{found:?}"))
    });
    drop(rest);
    let again = [&many[..], &["--resume"]].concat();
    let said = end(train(folder.path(), "broken", &again));
    let same = weights(folder.path(), "broken") == weights(folder.path(), "unbroken");
    assert!(same, "other weights: {said}");
}

/// Weights of a checkpoint file that are not finite.
fn not_finite(file: &Path) -> usize {
    let bytes = std::fs::read(file).expect("a checkpoint");
    let header = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
    let (words, _) = bytes[8 + header as usize..].as_chunks::<4>();
    let finite = |word: &&[u8; 4]| f32::from_le_bytes(**word).is_finite();
    words.len() - words.iter().filter(finite).count()
}

/// Seen: the weights of a step that went wrong were the newest checkpoint of all members, so
/// --resume went on from infinity, and the second such checkpoint drove out the last good one.
#[test]
fn weights_that_are_not_finite_are_no_checkpoint() {
    let folder = tempfile::tempdir().expect("a folder");
    let net = include_str!("../../models/lenet_train_test.prototxt");
    let net = net.replace("batch_size: 64", "batch_size: 8");
    let net = net.replace("lr_mult: 1", "lr_mult: 0.0001");
    let net = net.replace("lr_mult: 2", "lr_mult: 0.0002");
    // A usual rate for four steps, and then an infinite one.
    let solver = "net: \"net.prototxt\"\nbase_lr: 10\nmomentum: 0\nlr_policy: \"step\"\nstepsize: 4\n\
                  gamma: 1e38\nmax_iter: 20\ntest_iter: 1\ntest_interval: 100\n";
    std::fs::write(folder.path().join("net.prototxt"), net).expect("a net");
    std::fs::write(folder.path().join("solver.prototxt"), solver).expect("a solver");
    let train = |more: &[&str]| {
        let mut command = dogwild();
        command.current_dir(folder.path());
        command.args(["train", "--sync", "poseidon", "--checkpoint-every", "1"]);
        command.args(["--data", "digits:1,train=400,test=100", "--out", "out"]);
        command.args(["--solver", "solver.prototxt"]).args(more);
        let output = command.output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(3), "{said}");
        for word in ["training has diverged", "after 5 steps", "Lower base_lr"] {
            assert!(said.contains(word), "`{word}` is missing in:\n{said}");
        }
    };
    // The second run goes on from what the first one has left.
    for more in [&[][..], &["--resume"]] {
        train(more);
        for worker in 0..2 {
            let file = |clock| format!("out/checkpoints/worker{worker}-{clock:010}.safetensors");
            let at = |clock| folder.path().join(file(clock));
            assert_eq!(not_finite(&at(4)), 0, "worker {worker}");
            assert!(!at(5).exists(), "worker {worker}");
        }
        let server = folder
            .path()
            .join("out/checkpoints/server0-0000000004.safetensors");
        assert_eq!(not_finite(&server), 0, "the server's went");
    }
    let log = std::fs::read_dir(folder.path().join("out")).expect("a folder");
    let logs = log.flatten().map(|entry| entry.path());
    let unfinished = logs.filter(|path| path.is_dir() && !path.ends_with("checkpoints"));
    let text: Vec<String> = unfinished
        .map(|path| std::fs::read_to_string(path.join("coordinator.log")).expect("a log"))
        .collect();
    assert!(
        text.iter()
            .any(|text| text.contains("beginning after 4 steps")),
        "{text:?}"
    );
}

#[test]
fn nothing_to_resume_is_said() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = train(folder.path(), "nothing", &["--resume"]).output();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("there is no run to resume"),
        "{said}"
    );
}

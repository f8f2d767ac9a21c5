//! What a run goes on from: the end of the run before, an older checkpoint where the newest is
//! damaged or its replicas differ, and never from nothing. A full disk costs checkpoints only.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use dogwild::poseidon::Scheme;

use crate::cluster::{Cluster, Ended, force, setup};
use crate::support::job::Files;
use crate::support::process::Process;
use crate::support::program::DOGWILD;
use crate::support::wait::{wait_for_or, wait_while};

/// A cluster that has ended after 10 steps, with checkpoints after 4, 8 and 10.
fn ended(scheme: Scheme, seed: u64) -> Cluster {
    let mut setup = setup(force(scheme), 2, 1, 10);
    setup.cluster.checkpoint_every = 4;
    setup.seed = seed;
    let cluster = Cluster::new(setup);
    cluster.run();
    cluster
}

fn checkpoint(cluster: &Cluster, member: &str, clock: u64) -> PathBuf {
    let name = format!("checkpoints/{member}-{clock:010}.safetensors");
    cluster.folder.path().join(name)
}

/// Goes on to step 14.
fn go_on(cluster: &mut Cluster) -> Vec<(String, Ended)> {
    cluster.setup.cluster.clocks = 14;
    cluster.run_with(true, |_| {})
}

fn assert_goes_on_as_unbroken(mut cluster: Cluster) {
    let mut unbroken = Cluster::new(cluster.setup.clone());
    unbroken.setup.cluster.clocks = 14;
    let unbroken = unbroken.run();
    for (name, ended) in go_on(&mut cluster) {
        ended.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    for worker in 0..2 {
        assert!(cluster.weights(worker) == unbroken[0], "worker {worker}");
    }
}

#[test]
fn the_last_step_is_one_to_go_on_from() {
    let cluster = ended(Scheme::Ps, 3);
    for member in ["worker0", "worker1", "server0"] {
        for clock in [8, 10] {
            let file = checkpoint(&cluster, member, clock);
            assert!(file.exists(), "{}", file.display());
        }
    }
    assert_goes_on_as_unbroken(cluster);
}

#[test]
fn a_damaged_checkpoint_is_passed_over() {
    let cluster = ended(Scheme::Sfb, 3);
    let newest = checkpoint(&cluster, "worker1", 10);
    let mut bytes = std::fs::read(&newest).expect("a checkpoint");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&newest, bytes).expect("a damaged one");
    assert_goes_on_as_unbroken(cluster);
}

/// The weights of another seed: the file is whole, and of this cluster by all its notes.
#[test]
fn replicas_that_differ_are_passed_over() {
    let (cluster, other) = (ended(Scheme::Sfb, 3), ended(Scheme::Sfb, 4));
    let from = checkpoint(&other, "worker1", 10);
    std::fs::copy(from, checkpoint(&cluster, "worker1", 10)).expect("a copy");
    assert_goes_on_as_unbroken(cluster);
}

#[test]
fn nothing_in_common_is_refused() {
    let mut cluster = ended(Scheme::Ps, 3);
    for clock in [4, 8, 10] {
        let _ = std::fs::remove_file(checkpoint(&cluster, "server0", clock));
    }
    let before = std::fs::read(checkpoint(&cluster, "worker0", 10)).expect("a checkpoint");
    let ended = go_on(&mut cluster);
    // The first error ends all others well.
    let mut errors = ended.iter().filter_map(|(_, ended)| ended.as_ref().err());
    let error = errors.next().expect("a refusal").to_string();
    for part in ["server 0: none", "8, 10]", "begin anew"] {
        assert!(error.contains(part), "{error}");
    }
    let after = std::fs::read(checkpoint(&cluster, "worker0", 10)).expect("it stays");
    assert!(before == after);
}

/// `dogwild train` with its results on a disk of 40 MB, in a mount namespace, with a file in it
/// that leaves room for logs but not for a checkpoint.
fn on_a_full_disk(out: &Path) -> Option<Process> {
    let tried = Command::new("unshare").args(["-rm", "true"]).output();
    if !tried.is_ok_and(|output| output.status.success()) {
        dogwild_lab::skip::skip("no mount namespaces here");
        return None;
    }
    std::fs::create_dir(out).expect("a folder");
    let script = "mount -t tmpfs -o size=40m small \"$0\" && head -c 39M /dev/zero > \
                  \"$0/filler\" && exec \"$@\"";
    let mut inside = Command::new("unshare");
    inside.args(["-rm", "sh", "-c", script]).arg(out);
    inside.arg(DOGWILD).args(["train", "--sync", "poseidon"]);
    inside.args(["--scheme", "ps", "--checkpoint-every", "5"]);
    inside.args(["--test-every", "100000"]);
    inside.args(["--data", "digits:1,train=400,test=100", "--iterations"]);
    inside.args(["100000", "--out"]).arg(out);
    inside.stdin(Stdio::null()).stdout(Stdio::null());
    Some(Process::start(inside.stderr(Stdio::null())))
}

#[test]
fn a_full_disk_costs_checkpoints_and_nothing_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out");
    let Some(mut train) = on_a_full_disk(&out) else {
        return;
    };
    let files = Files(train.id());
    let inside = PathBuf::from(format!("/proc/{}/root", train.id()));
    let at = inside.join(out.strip_prefix("/").expect("absolute"));
    let log = |name: &str| std::fs::read_to_string(at.join(name)).unwrap_or_default();
    for name in ["worker0.log", "server0.log"] {
        let full = || log(name).matches("disk full: no room in ").count() >= 2;
        wait_for_or("two full disks", full, || log(name));
        assert!(log(name).contains("there is none yet"), "{}", log(name));
    }
    let checkpoints = at.join("checkpoints");
    let found = || -> Vec<String> {
        let entries = std::fs::read_dir(&checkpoints).expect("checkpoints");
        let names = entries.flatten().map(|e| e.file_name().into_string());
        let mut names: Vec<String> = names.map(|name| name.expect("text")).collect();
        names.retain(|name| name.ends_with("safetensors"));
        names
    };
    assert_eq!(found(), Vec::<String>::new());
    std::fs::remove_file(at.join("filler")).expect("the filler");
    wait_while("a checkpoint of all", || {
        let ended = train.ended();
        assert!(ended.is_none(), "{ended:?}");
        let found = found();
        let lacks = |member: &&str| !found.iter().any(|name| name.starts_with(*member));
        let lacking = ["worker0", "worker1", "server0"].into_iter().find(lacks);
        lacking.map(|member| format!("{member} has none of {}", found.len()))
    });
    train.signal("INT");
    assert_eq!(train.wait().code(), Some(130));
    drop(files);
}

//! What may befall a node besides its death: a full disk, a full shared memory, a first node that
//! stands still.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use super::support::job::iterations;
use super::support::mounts::in_mounts;
use super::support::output::said;
use super::support::process::Process;
use super::support::program::dogwild;
use super::support::results::tensors;
use super::support::wait::wait_for;
use super::{Job, buffer_by, ends_well};

/// Results that find no room: the others end well, and the weights can be rescued.
#[test]
fn a_full_disk_for_results_loses_no_weights() {
    let job = Job::new(60, "");
    fs::create_dir_all(job.out(1)).expect("a folder");
    let mount = format!(
        "mount -t tmpfs -o size=300k none '{}'",
        job.out(1).display()
    );
    let Some(mut full) = in_mounts(&mount, &job.node(1, 2)) else {
        return;
    };
    full.stdout(Stdio::piped()).stderr(Stdio::piped());
    let zero = job.start(0, 2);
    let one = Process::start(&mut full).output();
    let told = said(&one);
    assert_eq!(one.status.code(), Some(1), "{told}");
    let line = told
        .lines()
        .find_map(|line| line.split_once("dogwild snapshot --buffer "));
    let (_, line) = line.unwrap_or_else(|| panic!("it does not say how to rescue them: {told}"));
    let buffer = line.split_whitespace().next().expect("a path");
    ends_well(zero);
    let rescued = job.folder.path().join("rescued.safetensors");
    let mut snapshot = dogwild();
    snapshot.args(["snapshot", "--buffer", buffer, "--out"]);
    ends_well(Process::start(
        snapshot
            .arg(&rescued)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped()),
    ));
    let other = tensors(&job.out(0).join("weights.safetensors"));
    assert!(
        tensors(&rescued) == other,
        "the weights are those of node 0"
    );
}

/// No room for the buffer: refused by name, before the others begin, and they wait for it.
#[test]
fn a_full_shared_memory_is_told_and_the_others_wait() {
    let job = Job::new(60, "");
    let mount = "mount -t tmpfs -o size=1m none /dev/shm";
    let Some(mut full) = in_mounts(mount, &job.node(1, 2)) else {
        return;
    };
    full.stdout(Stdio::piped()).stderr(Stdio::piped());
    let zero = job.start(0, 2);
    let refused = Process::start(&mut full).output();
    let told = said(&refused);
    assert!(!refused.status.success(), "{told}");
    assert!(
        told.contains("/dev/shm has") && told.contains("Make room"),
        "{told}"
    );
    // Where there is room it takes part.
    ends_well(job.start(1, 2));
    ends_well(zero);
    job.check(2);
}

/// The node at which all meet stands still for five seconds, and another one is killed and comes
/// back meanwhile.
#[test]
fn a_first_node_that_stands_still_holds_up_no_other() {
    let job = Job::new(900, "");
    let mut nodes = [0, 1, 2].map(|rank| job.start(rank, 3));
    wait_for("all to train", || {
        (0..3).all(|rank| job.iterations(rank) > 20)
    });
    nodes[0].signal("STOP");
    nodes[1].kill();
    let before = job.iterations(2);
    nodes[1] = job.start(1, 3);
    std::thread::sleep(std::time::Duration::from_secs(5));
    assert!(job.iterations(2) > before, "node 2 stands still too");
    nodes[0].signal("CONT");
    nodes.into_iter().for_each(|node| drop(ends_well(node)));
    job.check(3);
}

/// No room on the disk for what a node remembers: that stays in memory, and the node goes on with
/// it.
#[test]
fn a_full_disk_leaves_a_node_that_is_told_to_end_in_memory() {
    let job = Job::new(100_000, "");
    fs::create_dir_all(job.out(0)).expect("a folder");
    // Weights of 1.7 MB, a snapshot with momentum; then four times the weights for the buffer.
    let mount = format!("mount -t tmpfs -o size=8m none '{}'", job.out(0).display());
    let Some(mut full) = in_mounts(&mount, &job.node(0, 1)) else {
        return;
    };
    full.stdout(Stdio::piped()).stderr(Stdio::piped());
    let node = Process::start(&mut full);
    let note = format!("/proc/{}/root{}/node.json", node.id(), job.out(0).display());
    let buffer = || buffer_by(Path::new(&note), 0);
    wait_for("it to train", || iterations(&buffer()) > 20);
    let buffer = buffer();
    node.signal("TERM");
    let told = said(&node.output());
    for part in [
        "cannot copy",
        "No space left",
        "stay, and the same command goes on",
    ] {
        assert!(told.contains(part), "{part} is not in {told}");
    }
    let done = iterations(&buffer);
    let node = job.start(0, 1);
    wait_for("it to go on", || iterations(&buffer) > done + 20);
    node.signal("TERM");
    assert!(said(&node.output()).contains("going on with"));
    assert!(job.own_iterations(0) > done + 20);
}

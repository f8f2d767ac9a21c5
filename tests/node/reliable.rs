//! Nodes of a job on the reliable path: a worker each, servers on the first of them.

use std::process::Stdio;

use dogwild::weights::SharedWeights;

use super::support::output::{said, succeeds};
use super::support::process::{Process, signal};
use super::support::program::dogwild;
use super::support::results::tensors;
use super::support::wait::{wait_for, wait_for_or};
use super::{Job, ends_well};

/// A job of so many steps on two servers.
fn job(iterations: u64) -> Job {
    let cluster = "sync = \"poseidon\"\n[poseidon]\nservers = 2\ncheckpoint_every = 10\n";
    Job::new(iterations, cluster)
}

impl Job {
    /// All nodes have ended well, with the same bits, which are those of `dogwild launch`.
    fn check_cluster(&self, size: u16) {
        let whole = self.folder.path().join("whole");
        let mut launch = dogwild();
        launch
            .arg("launch")
            .arg(self.file())
            .arg("--out")
            .arg(&whole);
        launch.args(["--workers", &size.to_string()]);
        succeeds(launch.stdin(Stdio::null()));
        let expected = tensors(&whole.join("weights.safetensors"));
        for rank in 0..size {
            let summary = self.summary(rank);
            assert_eq!(summary["ended_by"], "iterations", "node {rank}: {summary}");
            assert_eq!(summary["per_worker"][0]["worker"], rank, "{summary}");
            let weights = tensors(&self.out(rank).join("weights.safetensors"));
            assert!(weights == expected, "node {rank} has other weights");
            assert!(!self.buffer(rank).exists(), "node {rank} left its buffer");
        }
    }

    fn steps(&self, rank: u16) -> u64 {
        self.iterations(rank)
    }
}

/// As many steps, on as many nodes, give the bits of one machine; the second node is early.
#[test]
fn a_cluster_of_nodes_learns_what_one_machine_learns() {
    let job = job(60);
    let one = job.start(1, 3);
    std::thread::sleep(std::time::Duration::from_secs(2));
    let others = [2, 0].map(|rank| job.start(rank, 3));
    let said = ends_well(one);
    assert!(said.contains("waiting for node 0 at 127.0.0.1"), "{said}");
    others.into_iter().for_each(|node| drop(ends_well(node)));
    job.check_cluster(3);
    let servers = |rank: u16| job.summary(rank)["per_server"].clone();
    assert!(
        servers(0)[0].is_object() && servers(0)[1].is_null(),
        "{}",
        servers(0)
    );
    assert!(
        servers(1)[1].is_object() && servers(2)[0].is_null(),
        "{}",
        servers(1)
    );
}

/// A node is killed, and then the one with the coordinator: all go on from the checkpoint that all
/// have, and end with the bits of a run that nothing happened to.
#[test]
fn a_killed_node_goes_on_from_the_checkpoint_that_all_have() {
    let job = job(240);
    let mut nodes = [0, 1].map(|rank| job.start(rank, 2));
    let mut before = 0;
    for killed in [1, 0] {
        wait_for("some checkpoints", || job.steps(killed) > before + 40);
        before = job.steps(killed);
        nodes[usize::from(killed)].kill();
        nodes[usize::from(killed)] = job.start(killed, 2);
    }
    let [zero, one] = nodes.map(ends_well);
    assert!(
        zero.contains("going on from the checkpoint after"),
        "{zero}"
    );
    assert!(one.contains("all members start again"), "{one}");
    job.check_cluster(2);
}

/// A node that is told to end is waited for, by name.
#[test]
fn a_node_that_is_told_to_end_is_waited_for() {
    let job = job(160);
    let log = job.folder.path().join("log");
    let mut command = job.node(0, 2);
    command.stderr(std::fs::File::create(&log).expect("a log"));
    let zero = Process::start(&mut command);
    let one = job.start(1, 2);
    wait_for("some checkpoints", || job.steps(1) > 40);
    one.signal("TERM");
    let output = one.output();
    assert_eq!(output.status.code(), Some(143), "{}", said(&output));
    let text = || std::fs::read_to_string(&log).unwrap_or_default();
    let waits = || text().contains("waiting for node 1 to be ready");
    wait_for_or("it to say for whom it waits", waits, text);
    ends_well(job.start(1, 2));
    let mut zero = zero;
    assert!(zero.wait().success(), "{}", text());
    job.check_cluster(2);
}

/// A node is started again before what its earlier start has left has ended: it waits, says for
/// whom, and goes on. It can be told to end meanwhile.
/// `dogwild top` may look at its buffer all the time.
#[test]
fn what_an_earlier_start_has_left_is_waited_for() {
    let job = job(160);
    let zero = job.start(0, 2);
    let mut one = job.start(1, 2);
    wait_for("some checkpoints", || job.steps(1) > 40);
    let mut top = dogwild();
    let buffer = job.buffer(1);
    top.arg("top")
        .arg(&buffer)
        .args(["--json", "--interval", "0.1"]);
    let mut top = Process::start(top.stdin(Stdio::null()).stdout(Stdio::null()));
    let left = SharedWeights::watch(&buffer).expect("a buffer").slots()[0].pid;
    signal("STOP", &left.to_string());
    one.kill();
    let log = job.folder.path().join("log");
    let again = || {
        let mut command = job.node(1, 2);
        command.stderr(std::fs::File::create(&log).expect("a log"));
        Process::start(&mut command)
    };
    let text = || std::fs::read_to_string(&log).unwrap_or_default();
    let told = format!("waiting for solver 0 (process {left}) of an earlier start of this node");
    let mut told_to_end = again();
    wait_for_or(
        "it to say for whom it waits",
        || text().contains(&told),
        text,
    );
    told_to_end.signal("TERM");
    assert_eq!(told_to_end.wait().code(), Some(143), "{}", text());
    let mut waits = again();
    wait_for_or(
        "it to say for whom it waits",
        || text().contains(&told),
        text,
    );
    signal("CONT", &left.to_string());
    let zero = ends_well(zero);
    assert!(waits.wait().success(), "{}", text());
    assert!(
        zero.contains("going on from the checkpoint after"),
        "{zero}"
    );
    assert!(top.ended().is_none(), "who looks goes on looking");
    job.check_cluster(2);
}

/// Where late updates are dropped, the others go on without a node that has no server, and it joins
/// them again.
#[test]
fn where_late_updates_are_dropped_a_killed_node_joins_again() {
    let cluster = "sync = \"poseidon\"\n[poseidon]\nstragglers = \"drop\"\nquorum = 0.6\n";
    let job = Job::new(300, cluster);
    let mut nodes = [0, 1, 2].map(|rank| job.start(rank, 3));
    wait_for("some steps", || job.steps(2) > 20);
    nodes[2].kill();
    let before = job.steps(1);
    wait_for("the others to go on", || job.steps(1) > before + 20);
    nodes[2] = job.start(2, 3);
    let [zero, one, _] = nodes.map(ends_well);
    let told = "nothing runs on node 2; the others go on, and it begins again";
    assert!(zero.contains(told), "{zero}");
    assert!(!one.contains("all members start again"), "{one}");
    for rank in 0..3 {
        assert_eq!(job.summary(rank)["per_worker"][0]["iterations"], 300);
    }
}

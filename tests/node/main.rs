//! `dogwild node`: one node of a job file for each process, started by flags, mpirun, srun and the
//! variables of torchrun.

#![cfg(feature = "program")]

mod join;
mod path;
mod reliable;
mod slurm;
#[path = "../support/mod.rs"]
mod support;
mod trouble;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use dogwild_lab::skip::{is_there, skip};
use dogwild_lab::{Lab, Spec};
use support::output::{said, succeeds};
use support::process::Process;
use support::program::dogwild;
use support::results::tensors;
use support::wait::wait_for;

/// A job file of a test, with its results.
struct Job {
    folder: tempfile::TempDir,
    /// Where its nodes meet: no two jobs of this machine meet at one.
    port: u16,
}

impl Job {
    fn new(iterations: u64, more: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let job = Self { folder, port };
        let out = job.folder.path().join("out");
        let head = "data = \"digits:3,train=2000,test=200\"";
        let out = out.display();
        let text = format!("{head}\niterations = {iterations}\nout = \"{out}\"\n{more}");
        fs::write(job.file(), text).expect("written");
        job
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("job.toml")
    }

    /// Node `rank` of `size`, by flags.
    fn node(&self, rank: u16, size: u16) -> Command {
        self.command(&["--rank", &rank.to_string(), "--size", &size.to_string()])
    }

    /// A node that is told so much of who it is.
    fn command(&self, who: &[&str]) -> Command {
        let mut command = dogwild();
        command.arg("node").arg(self.file()).args(who);
        command.args(["--join", &format!("127.0.0.1:{}", self.port)]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command.stderr(Stdio::piped());
        command
    }

    fn start(&self, rank: u16, size: u16) -> Process {
        Process::start(&mut self.node(rank, size))
    }

    fn out(&self, rank: u16) -> PathBuf {
        self.folder.path().join(format!("out/n{rank}"))
    }

    fn summary(&self, rank: u16) -> serde_json::Value {
        let text = fs::read_to_string(self.out(rank).join("summary.json")).expect("a summary");
        serde_json::from_str(&text).expect("JSON")
    }

    /// All nodes have ended well, with the same bits, and left nothing in memory.
    fn check(&self, size: u16) {
        let weights = |rank| tensors(&self.out(rank).join("weights.safetensors"));
        for rank in 0..size {
            let summary = self.summary(rank);
            assert_eq!(
                summary["replicas_identical"], true,
                "node {rank}: {summary}"
            );
            assert_eq!(summary["ended_by"], "iterations", "node {rank}");
            assert_eq!(summary["per_node"][0]["node"], rank);
            assert!(weights(rank) == weights(0), "node {rank} has other weights");
        }
    }

    /// Iterations that node `rank` has made, by its summary.
    fn own_iterations(&self, rank: u16) -> u64 {
        self.summary(rank)["iterations"].as_u64().expect("a number")
    }

    /// Iterations that node `rank` has made, by its buffer; 0 while it has none.
    fn iterations(&self, rank: u16) -> u64 {
        support::job::iterations(&self.buffer(rank))
    }

    /// The buffer of a node, by the session that its folder names.
    fn buffer(&self, rank: u16) -> PathBuf {
        buffer_by(&self.out(rank).join("node.json"), rank)
    }
}

/// The buffer of a node, by the session that its note names.
fn buffer_by(note: &Path, rank: u16) -> PathBuf {
    let note = fs::read_to_string(note).unwrap_or_default();
    let note: serde_json::Value = serde_json::from_str(&note).unwrap_or_default();
    let session = note["session"].as_str().unwrap_or("none");
    format!("/dev/shm/dogwild-train-node-{session}-n{rank:02}").into()
}

impl Drop for Job {
    fn drop(&mut self) {
        let session = self.buffer(0);
        let name = session.file_name().unwrap_or_default().to_string_lossy();
        let start = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let files = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
        for file in files {
            if file.file_name().to_string_lossy().starts_with(start) {
                let _ = fs::remove_file(file.path());
            }
        }
    }
}

fn ends_well(node: Process) -> String {
    let output = node.output();
    let said = said(&output);
    assert!(output.status.success(), "{said}");
    said
}

/// Rank 1 is first, and says for whom it waits; the results are equal to the bit.
#[test]
fn two_nodes_meet_and_end_equal() {
    let job = Job::new(60, "");
    let one = job.start(1, 2);
    std::thread::sleep(std::time::Duration::from_secs(3));
    let zero = job.start(0, 2);
    let said = ends_well(one);
    assert!(said.contains("waiting for node 0 at 127.0.0.1"), "{said}");
    ends_well(zero);
    job.check(2);
    assert!(!job.buffer(0).exists() && !job.buffer(1).exists());
}

/// The whole node, supervisor and all, is killed twice in a row, and goes on with its buffer.
#[test]
fn a_node_that_is_killed_goes_on() {
    let job = Job::new(600, "");
    let mut nodes = [0, 1].map(|rank| job.start(rank, 2));
    for killed in [1, 0] {
        let before = job.iterations(killed);
        wait_for("it to train", || job.iterations(killed) > before + 20);
        nodes[usize::from(killed)].kill();
        let done = job.iterations(killed);
        assert!(done > 20, "its buffer stays");
        nodes[usize::from(killed)] = job.start(killed, 2);
    }
    let [zero, one] = nodes;
    for said in [ends_well(zero), ends_well(one)] {
        assert!(said.contains("going on with /dev/shm/"), "{said}");
    }
    job.check(2);
    let [zero, one] = [0, 1].map(|rank| job.own_iterations(rank));
    assert!(zero + one >= 600, "{zero} and {one}");
}

/// A node that is told to end gives what it has to others; started again, it takes part again.
#[test]
fn a_node_that_is_told_to_end_leaves_and_comes_again() {
    let job = Job::new(900, "");
    let mut nodes = [0, 1, 2].map(|rank| job.start(rank, 3));
    wait_for("it to train", || job.iterations(1) > 30);
    nodes[1].signal("TERM");
    let one = std::mem::replace(&mut nodes[1], job.start(2, 3));
    let output = one.output();
    assert_eq!(output.status.code(), Some(143), "{}", said(&output));
    let log = fs::read_to_string(job.out(1).join("node1-stream.log")).expect("a log");
    assert!(
        log.contains("all that was added here is with other nodes"),
        "{log}"
    );
    // A second node 2 was put in its place: it is refused, and says why.
    let second = std::mem::replace(&mut nodes[1], job.start(1, 3)).output();
    let told = said(&second);
    assert!(
        !second.status.success() && told.contains("in use by another job"),
        "{told}"
    );
    nodes.into_iter().for_each(|node| drop(ends_well(node)));
    job.check(3);
}

/// No other is there to give anything to: each keeps what it remembers, and the job goes on from
/// there, in whatever order they start.
#[test]
fn all_nodes_may_be_told_to_end_at_once_and_go_on() {
    let job = Job::new(900, "");
    let nodes = [0, 1].map(|rank| job.start(rank, 2));
    wait_for("both to train", || {
        job.iterations(0) > 20 && job.iterations(1) > 20
    });
    nodes.iter().for_each(|node| node.signal("TERM"));
    for (rank, node) in (0..).zip(nodes) {
        let output = node.output();
        assert_eq!(output.status.code(), Some(143), "{}", said(&output));
        assert!(job.out(rank).join("weights.safetensors").exists());
        assert!(!job.buffer(rank).exists(), "saved, and gone from memory");
    }
    let done: Vec<u64> = (0..2).map(|rank| job.own_iterations(rank)).collect();
    let nodes = [1, 0].map(|rank| job.start(rank, 2));
    for node in nodes {
        let said = ends_well(node);
        assert!(said.contains("going on with /dev/shm/"), "{said}");
    }
    job.check(2);
    let all: Vec<u64> = (0..2).map(|rank| job.own_iterations(rank)).collect();
    assert!(
        all[0] > done[0] && all[1] > done[1],
        "{done:?}, then {all:?}"
    );
    assert!(
        all.iter().sum::<u64>() < 900 + done.iter().sum::<u64>(),
        "it began anew: {all:?}"
    );
    for rank in 0..2 {
        assert!(!job.out(rank).join("memory").exists(), "used, and gone");
    }
}

/// A person who wants to begin anew says so.
#[test]
fn what_a_node_remembers_may_be_given_up() {
    let job = Job::new(100_000, "");
    let start = |args: &[&str]| Process::start(job.node(0, 1).args(args));
    for args in [&[][..], &["--overwrite"]] {
        let node = start(args);
        wait_for("it to train", || job.iterations(0) > 20);
        node.signal("TERM");
        let said = said(&node.output());
        assert!(!said.contains("going on with"), "{said}");
    }
}

/// Another job file, a rank twice, a size that the file does not have: each is refused by name.
#[test]
fn another_world_is_refused() {
    let job = Job::new(50, "");
    let zero = job.start(0, 3);
    // The other one with its rank would be in its place if it came first.
    let log = job.folder.path().join("log1");
    let file = fs::File::create(&log).expect("a file");
    let one = Process::start(job.node(1, 3).stderr(file));
    wait_for("node 1 to be here", || {
        let said = fs::read_to_string(&log).expect("a log");
        said.contains("waiting for node 2")
    });
    let refusal = |command: &mut Command| {
        let refused = command.output().expect("it runs");
        assert!(!refused.status.success());
        said(&refused)
    };
    let other = refusal(job.node(2, 3).args(["--seed", "9"]));
    assert!(
        other.contains("seed is 9 on node 2 and 1 on node 0"),
        "{other}"
    );
    let again = job.folder.path().join("again");
    let twice = refusal(job.node(1, 3).arg("--out").arg(&again));
    assert!(twice.contains("node 1 is here already"), "{twice}");
    let size = refusal(job.node(1, 4).arg("--out").arg(&again));
    assert!(size.contains("node 1 has 4 nodes, node 0 has 3"), "{size}");
    let two = job.start(2, 3);
    for node in [one, two] {
        ends_well(node);
    }
    let said = ends_well(zero);
    for part in [
        "seed is 9 on node 2",
        "node 1 is here already",
        "node 1 has 4 nodes",
    ] {
        assert!(said.contains(part), "node 0 says it too: {said}");
    }
    job.check(3);
}

#[test]
fn what_no_node_can_run_is_refused_at_once() {
    for (text, args, part) in [
        (
            "nodes = 3",
            &[][..],
            "--nodes 3, but the command line has started 2",
        ),
        (
            "sync = \"poseidon\"\n[poseidon]\nservers = 3",
            &[],
            "--servers 3 on 2 nodes",
        ),
        (
            "sync = \"poseidon\"\n[poseidon]\nworkers = 3",
            &[],
            "--workers 3, but the command line has started 2",
        ),
        ("lab = true", &[], "use `dogwild launch`"),
        ("", &["--resume", "--out", "x"], "--resume"),
        ("seeed = 1", &[], "did you mean `seed`"),
    ] {
        let job = Job::new(50, text);
        let refused = job.node(0, 2).args(args).output().expect("it runs");
        let said = said(&refused);
        assert_eq!(refused.status.code(), Some(2), "{said}");
        assert!(said.contains(part), "{part} is not in {said}");
    }
    let job = Job::new(50, "");
    let mut nobody = dogwild();
    let refused = nobody
        .arg("node")
        .arg(job.file())
        .output()
        .expect("it runs");
    let told = said(&refused);
    assert_eq!(refused.status.code(), Some(2), "{told}");
    assert!(told.contains("srun, mpirun, torchrun"), "{told}");
}

/// One node has no others to meet, and none to wait for at its end.
#[test]
fn a_node_alone_is_a_job() {
    let job = Job::new(30, "");
    ends_well(job.start(0, 1));
    job.check(1);
}

/// A test on one node reaches the target: all nodes end.
#[test]
fn a_target_that_one_node_reaches_ends_all() {
    let job = Job::new(0, "target_accuracy = 0.5\ntest_every = 20\n");
    let nodes = [0, 1].map(|rank| job.start(rank, 2));
    nodes.into_iter().for_each(|node| drop(ends_well(node)));
    let weights = |rank| tensors(&job.out(rank).join("weights.safetensors"));
    assert!(weights(0) == weights(1));
}

fn program() -> PathBuf {
    Path::new(dogwild().get_program()).to_owned()
}

#[test]
fn mpirun_starts_the_same_file() {
    if !is_there("mpirun", "openmpi-bin") {
        return;
    }
    let job = Job::new(60, "");
    let mut mpirun = Command::new("mpirun");
    mpirun.args(["--allow-run-as-root", "--oversubscribe", "-n", "2"]);
    mpirun.arg(program()).arg("node").arg(job.file());
    succeeds(mpirun.stdin(Stdio::null()));
    job.check(2);
}

/// As torchrun sets them, on four hosts that multicast does not bring together.
#[test]
fn four_hosts_without_multicast_by_the_variables_of_torchrun() {
    if !dogwild_lab::enter::privileged() {
        return skip("hosts need root, or namespaces of ordinary users");
    }
    let job = Job::new(200, "");
    let lab = Lab::up(&Spec::of(4)).expect("a lab");
    let first = lab.hosts()[0].ipv4().to_string();
    let rules = "table ip apart { chain in { type filter hook input priority 0; \
                 iifname eth0 ip daddr 224.0.0.0/4 counter drop; }; }";
    (0..4).for_each(|host| drop(succeeds(lab.command(host, "nft").arg(rules))));
    let start = |rank: usize| {
        let mut node = lab.command(rank, program());
        node.arg("node").arg(job.file());
        node.env("RANK", rank.to_string()).env("WORLD_SIZE", "4");
        node.env("MASTER_ADDR", &first).env("MASTER_PORT", "29500");
        node.stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Process::start(&mut node)
    };
    let mut nodes = [2, 3, 1, 0].map(start);
    // Rank 0, at which all have met, is killed, and finds the network again by itself.
    wait_for("it to train", || job.iterations(0) > 10);
    nodes[3].kill();
    nodes[3] = start(0);
    for said in nodes.map(ends_well) {
        assert!(said.contains("says RANK"), "{said}");
    }
    job.check(4);
    // What was sent to the group came to no host.
    for host in 0..4 {
        let table = succeeds(
            lab.command(host, "nft")
                .args(["list", "table", "ip", "apart"]),
        );
        assert!(!table.contains("packets 0 "), "host {host}: {table}");
    }
}

/// Frames of raw Ethernet do not leave their link: nodes meet over TCP, and find each other there.
#[test]
fn over_raw_ethernet_nodes_find_each_other() {
    if !dogwild_lab::enter::privileged() {
        return skip("hosts need root, or namespaces of ordinary users");
    }
    for transport in ["packet_mmap", "af_xdp"] {
        let more = format!("[transport]\ntransport = \"{transport}\"\niface = \"eth0\"\n");
        let job = Job::new(300, &more);
        let lab = Lab::up(&Spec::of(3)).expect("a lab");
        let first = format!("{}:29500", lab.hosts()[0].ipv4());
        let start = |host: usize, who: &[&str]| {
            let mut node = lab.command(host, program());
            node.arg("node").arg(job.file()).args(["--join", &first]);
            node.args(who);
            node.stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            Process::start(&mut node)
        };
        let begins = |rank: usize| start(rank, &["--size", "2", "--rank", &rank.to_string()]);
        let mut nodes = Vec::from([0, 1].map(begins));
        wait_for("it to train", || job.iterations(1) > 10);
        nodes[1].kill();
        fs::remove_file(job.buffer(1)).expect("its buffer");
        nodes[1] = begins(1);
        wait_for("it to go on", || job.iterations(1) > 20);
        nodes.push(start(2, &[]));
        for said in nodes.into_iter().map(ends_well) {
            assert!(!said.contains("refuses"), "{transport}: {said}");
        }
        job.check(3);
    }
}

/// Two hosts, each behind a token bucket. No flag speaks of the link or of the precision.
#[test]
fn on_a_thin_link_weights_travel_in_int8() {
    if !dogwild_lab::enter::privileged() {
        return skip("hosts need root, or namespaces of ordinary users");
    }
    let job = Job::new(300, "");
    let lab = Lab::up(&Spec {
        rate: Some("16mbit".into()),
        ..Spec::of(2)
    })
    .expect("a lab");
    let first = format!("{}:29500", lab.hosts()[0].ipv4());
    let start = |rank: usize| {
        let mut node = lab.command(rank, program());
        node.arg("node").arg(job.file()).args(["--join", &first]);
        node.args(["--size", "2", "--rank", &rank.to_string()]);
        node.stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Process::start(&mut node)
    };
    let mut nodes = [0, 1].map(start);
    wait_for("it to train", || job.iterations(1) > 10);
    // A node that comes back with its buffer, and one that has lost it, measure nothing anew.
    for rank in [0, 1] {
        nodes[rank].kill();
        if rank == 1 {
            fs::remove_file(job.buffer(1)).expect("its buffer");
        }
        nodes[rank] = start(rank);
        let before = job.iterations(0);
        wait_for("it to go on", || job.iterations(0) > before + 5);
    }
    for said in nodes.map(ends_well) {
        assert!(!said.contains("refuses"), "{said}");
    }
    job.check(2);
    for rank in [0, 1] {
        assert_eq!(job.summary(rank)["settings"]["stream"]["precision"], "int8");
    }
}

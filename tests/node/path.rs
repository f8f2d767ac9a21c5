//! Hosts between which less passes than their interfaces take: short frames do, long ones do not.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Stdio;

use dogwild_lab::skip::skip;
use dogwild_lab::{Lab, Spec};

use super::support::output::succeeds;
use super::support::process::Process;
use super::support::results::tensors;

use super::support::wait::wait_for;
use super::{Job, ends_well, program};

/// Two hosts with long frames, and a switch between them that drops those.
struct Path {
    lab: Lab,
    job: Job,
}

impl Path {
    fn new(more: &str) -> Self {
        let mtu = 9000;
        let lab = Lab::up(&Spec { mtu, ..Spec::of(2) }).expect("a lab");
        let rules = "table inet path { chain in { type filter hook input priority 0; \
                     iifname eth0 meta length > 1500 counter drop; }; }";
        (0..2).for_each(|host| drop(succeeds(lab.command(host, "nft").arg(rules))));
        let job = Job::new(60, more);
        Self { lab, job }
    }

    fn said_by(&self, rank: usize) -> PathBuf {
        self.job.folder.path().join(format!("said{rank}"))
    }

    fn start(&self, rank: usize) -> Process {
        let first = format!("{}:29500", self.lab.hosts()[0].ipv4());
        let mut node = self.lab.command(rank, program());
        node.arg("node").arg(self.job.file());
        node.args(["--join", &first]);
        node.args(["--size", "2", "--rank", &rank.to_string()]);
        let said = File::create(self.said_by(rank)).expect("a file");
        node.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said);
        Process::start(&mut node)
    }

    /// Long frames pass from now on.
    fn repair(&self) {
        let rules = "delete table inet path";
        (0..2).for_each(|host| drop(succeeds(self.lab.command(host, "nft").arg(rules))));
    }

    fn says(&self, rank: usize, what: &str) -> bool {
        let said = fs::read_to_string(self.said_by(rank)).expect("what it said");
        said.contains(what)
    }
}

/// Each node names the other, and what to look at; once the path is as it should be, they go on.
#[test]
fn who_gets_no_long_frames_says_so() {
    if !dogwild_lab::enter::privileged() {
        return skip("hosts need root, or namespaces of ordinary users");
    }
    let path = Path::new("");
    let nodes = [0, 1].map(|rank| path.start(rank));
    for (rank, other) in [(0, 1), (1, 0)] {
        let says =
            format!("no long frame of node {other}, says node {rank}: look whether the path");
        wait_for(&says, || path.says(rank, &says));
    }
    assert!(path.says(1, "node 0 answers, but nothing of 64 KiB came back"));
    path.repair();
    for node in nodes {
        ends_well(node);
    }
    path.job.check(2);
}

/// The same on the reliable path, whose connections stand still: what is small passes there too.
#[test]
fn a_connection_that_carries_nothing_long_says_so() {
    if !dogwild_lab::enter::privileged() {
        return skip("hosts need root, or namespaces of ordinary users");
    }
    let path = Path::new("sync = \"poseidon\"\n");
    let nodes = [0, 1].map(|rank| path.start(rank));
    let says = "bytes did not arrive: its host is down, or the path to it carries a smaller MTU";
    wait_for(says, || path.says(0, says));
    path.repair();
    for node in nodes {
        ends_well(node);
    }
    let weights = [0, 1].map(|rank| tensors(&path.job.out(rank).join("weights.safetensors")));
    assert!(weights[0] == weights[1], "they hold different weights");
}

/// With the MTU of the path they train over it.
#[test]
fn with_the_mtu_of_the_path_nothing_is_lost() {
    if !dogwild_lab::enter::privileged() {
        return skip("hosts need root, or namespaces of ordinary users");
    }
    // The rules see what the kernel is handed, before it is cut into frames: so that is one frame.
    let path = Path::new("[transport]\nmtu = 1500\nno_segmentation = true\n");
    for node in [0, 1].map(|rank| path.start(rank)) {
        ends_well(node);
    }
    path.job.check(2);
    for rank in 0..2 {
        assert!(!path.says(rank, "no long frame"), "node {rank}");
    }
}

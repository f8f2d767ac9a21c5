//! Nodes that join a job which runs, and were given no rank.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;

use super::support::output::said;
use super::support::process::Process;
use super::support::wait::{wait_for, wait_for_or};
use super::{Job, ends_well};

/// So many steps a second at most: what is to happen to nodes happens while they train.
const PACED: &str = "pace_steps = 30\n";

impl Job {
    fn join(&self) -> Process {
        Process::start(&mut self.command(&[]))
    }

    /// What a node says that is refused.
    fn refusal(&self, flags: &[&str]) -> String {
        let mut command = self.command(&[]);
        let output = Process::start(command.args(flags)).output();
        assert!(!output.status.success(), "{}", said(&output));
        said(&output)
    }

    /// Waits until `rank` has made some steps more.
    fn trains_on(&self, rank: u16) {
        let before = self.iterations(rank);
        wait_for(&format!("node {rank} to train"), || {
            self.iterations(rank) > before + 5
        });
    }
}

fn end_well<const N: usize>(nodes: [Process; N]) {
    nodes.into_iter().for_each(|node| drop(ends_well(node)));
}

/// A host comes before there is a job, two come at once to one that runs. One is killed twice in a
/// row, one once, one is told to end; all go on under the numbers that they had, two of them at the
/// same moment. The node that gives numbers is killed too. All end equal.
#[test]
fn hosts_come_and_go_without_ranks() {
    let job = Job::new(2400, PACED);
    let log = job.folder.path().join("log");
    let mut early = job.command(&[]);
    let early = early.stderr(File::create(&log).expect("a log"));
    let mut early = Process::start(early);
    let text = || fs::read_to_string(&log).unwrap_or_default();
    let waits = || text().contains("waiting for node 0 at 127.0.0.1");
    wait_for_or("it to say for whom it waits", waits, text);
    let mut zero = job.start(0, 2);
    let one = job.start(1, 2);
    job.trains_on(2);
    // Two at once: which is which is known by what their folders say.
    let mut two = [job.join(), job.join()];
    (3..5).for_each(|rank| job.trains_on(rank));
    for _ in 0..2 {
        early.kill();
        early = job.join();
        job.trains_on(2);
    }
    zero.kill();
    two[0].signal("TERM");
    let ended = two[0].wait();
    assert_eq!(ended.code(), Some(143));
    two[1].kill();
    zero = job.start(0, 2);
    job.trains_on(0);
    two = [job.join(), job.join()];
    (1..5).for_each(|rank| job.trains_on(rank));
    let nodes = [zero, one, early].into_iter().chain(two);
    let told: Vec<String> = nodes.map(ends_well).collect();
    for said in &told[2..] {
        assert!(said.contains("a job that began with 2"), "{said}");
    }
    job.check(5);
    assert!(!job.out(5).exists(), "a host got a second number");
}

/// Whatever cannot join is told why at once: another job, no place left, no place at all, no key.
#[test]
fn who_cannot_join_is_told_why() {
    let job = Job::new(600, "pace_steps = 30\n[stream]\nplaces = 3\n");
    let zero = job.start(0, 2);
    let one = job.start(1, 2);
    job.trains_on(1);
    let told = job.refusal(&["--seed", "2"]);
    let why = "seed is 2 on the node that asks to join and 1 on node 0";
    assert!(told.contains(why), "{told}");
    let told = job.refusal(&["--sync", "poseidon"]);
    assert!(
        told.contains("no node joins a job on the reliable path"),
        "{told}"
    );
    let two = job.join();
    job.trains_on(2);
    let told = job.refusal(&[]);
    assert!(told.contains("all 3 places of the job are taken"), "{told}");
    end_well([zero, one, two]);
    job.check(3);
}

/// A job of one node has places if it was begun with some, and none otherwise.
#[test]
fn one_node_may_be_joined_where_it_has_places() {
    let alone = Job::new(300, PACED);
    let zero = alone.start(0, 1);
    alone.trains_on(0);
    let told = alone.refusal(&[]);
    assert!(told.contains("begin it with --places N"), "{told}");
    ends_well(zero);
    let job = Job::new(400, "pace_steps = 30\n[stream]\nplaces = 2\n");
    let zero = job.start(0, 1);
    job.trains_on(0);
    let one = job.join();
    job.trains_on(1);
    end_well([zero, one]);
    job.check(2);
}

/// Only who has the key of a job that has one may ask.
#[test]
fn a_key_is_needed_where_the_job_has_one() {
    let job = Job::new(900, PACED);
    let key = job.folder.path().join("key");
    fs::write(&key, [7; 32]).expect("written");
    fs::set_permissions(&key, Permissions::from_mode(0o600)).expect("an owner");
    let key = key.display().to_string();
    let with_key = |who: &[&str]| {
        let mut command = job.command(who);
        Process::start(command.args(["--key-file", &key]))
    };
    let zero = with_key(&["--rank", "0", "--size", "2"]);
    let one = with_key(&["--rank", "1", "--size", "2"]);
    job.trains_on(1);
    let log = job.folder.path().join("log");
    let mut stranger = job.command(&[]);
    let stranger = stranger.stderr(File::create(&log).expect("a log"));
    let stranger = Process::start(stranger);
    let text = || fs::read_to_string(&log).unwrap_or_default();
    let waits = || text().contains("has the job another key, or one at all?");
    wait_for_or("it to say what is wrong", waits, text);
    drop(stranger);
    let two = with_key(&[]);
    job.trains_on(2);
    end_well([zero, one, two]);
    job.check(3);
}

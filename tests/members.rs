//! Hosts by hand that join a job that runs, and leave it: what any of them added is with all others
//! once, and no range stands still for long.

#![cfg(feature = "program")]

mod support;

use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use support::hosts::Hosts;
use support::output::{assert_says, refused, said};
use support::process::Process;
use support::program::dogwild;
use support::wait::{wait_for, wait_while};

/// Deltas are added as they are.
const SUM: [&str; 3] = ["--merge", "sum", "--atomic"];

struct Job {
    hosts: Hosts,
    streams: Vec<(u16, Process)>,
    begun: Vec<f32>,
    /// How often 1.0 was added to every weight.
    added: u32,
}

impl Job {
    /// A job of two nodes.
    fn begin(name: &str) -> Self {
        let hosts = Hosts::new(name, 2);
        let streams = [0, 1].map(|node| {
            hosts.init(node, 1, 100);
            (node, hosts.stream_told(node, &SUM))
        });
        hosts.wait_until_ready([0, 1]);
        let begun = hosts.weights(0);
        Self {
            hosts,
            streams: streams.into(),
            begun,
            added: 0,
        }
    }

    fn join(&mut self, node: u16) {
        let stream = self.hosts.stream_told(node, &SUM);
        self.streams.push((node, stream));
        self.hosts.wait_until_ready([node]);
    }

    /// Ends the streamer of `node` as a launcher does, and waits for it. Returns what it said.
    fn leave(&mut self, node: u16) -> String {
        let at = self.streams.iter().position(|(one, _)| *one == node);
        let (_, stream) = self.streams.remove(at.expect("it is there"));
        stream.signal("TERM");
        let ended = stream.output();
        assert!(ended.status.success(), "node {node}");
        said(&ended)
    }

    fn members(&self) -> Vec<u16> {
        self.streams.iter().map(|(node, _)| *node).collect()
    }

    /// All members add, again and again.
    fn add(&mut self) {
        for _ in 0..3 {
            for node in self.members() {
                self.hosts.add_one(node);
                self.added += 1;
            }
            sleep(Duration::from_millis(100));
        }
    }

    /// Waits until all members have in all weights what was added.
    fn wait_for_sum(&self) {
        let sum = self.added as f32;
        wait_while("all that was added to be everywhere", || {
            let members = self.members().into_iter();
            let wrong = members.filter_map(|node| {
                let weights = self.hosts.weights(node);
                let off = |(have, begun): (&f32, &f32)| have - begun - sum;
                let off = weights.iter().zip(&self.begun).map(off);
                let off: Vec<f32> = off.filter(|off| off.abs() > 0.01).collect();
                let first = off.first()?;
                let count = off.len();
                Some(format!(
                    "node {node}: {count} weights are off, by {first}; "
                ))
            });
            let wrong: String = wrong.collect();
            (!wrong.is_empty()).then_some(wrong)
        });
    }

    /// Waits until each member masters its share of the weights, but for a range.
    fn wait_for_shares(&self) {
        let members = self.members();
        let share = self.begun.len() / members.len();
        let range = self.begun.len() / 16 + 4096;
        wait_for("even shares", || {
            let of: Vec<usize> = members
                .iter()
                .map(|node| self.hosts.mastered(*node))
                .collect();
            let all = of.iter().sum::<usize>() >= self.begun.len();
            all && of.iter().all(|of| of.abs_diff(share) <= range)
        });
    }
}

/// A job of two becomes one of four while all add, and one of two others. Nothing is lost, and
/// those who are left wait for no one.
#[test]
fn a_job_goes_over_to_other_hosts() {
    let mut job = Job::begin("over");
    job.add();
    for node in [2, 3] {
        // With other initial weights, which must run over nothing.
        job.hosts.init(node, 7, 100);
        job.join(node);
        job.add();
    }
    job.wait_for_shares();
    job.add();
    job.wait_for_sum();
    for node in [0, 1] {
        // What it adds last goes with it.
        job.add();
        let said = job.leave(node);
        assert_says(&said, &["all that was added here is with other nodes"]);
        assert!(
            !said.contains("nothing heard of") && !said.contains("no position"),
            "{said}"
        );
        assert_eq!(job.hosts.mastered(node), 0, "{}", job.hosts.status(node));
        job.add();
        job.wait_for_sum();
    }
    job.wait_for_shares();
    let status = job.hosts.status(2);
    assert!(
        !status.contains("on node 0") && !status.contains("on node 1"),
        "{status}"
    );
    // Longer than after which a node is named as silent.
    sleep(Duration::from_millis(2500));
    let status = job.hosts.status(2);
    assert!(!status.contains("nothing is heard"), "{status}");
    // One comes back, on the buffer that it left.
    job.join(0);
    job.add();
    job.wait_for_sum();
    job.wait_for_shares();
}

/// A streamer that cannot give its ranges to others ends all the same, and says what it keeps. What
/// it has not delivered goes out when it is started again.
#[test]
fn who_leaves_alone_keeps_what_it_has() {
    let mut job = Job::begin("alone");
    job.add();
    job.wait_for_sum();
    job.streams.remove(1).1.kill();
    sleep(Duration::from_millis(1500));
    job.hosts.add_one(0);
    job.added += 1;
    let said = job.leave(0);
    assert_says(&said, &["no other node is there", "stays in its buffer"]);
    assert!(job.hosts.mastered(0) > 0);
    for node in [1, 0] {
        let stream = job.hosts.stream_told(node, &SUM);
        job.streams.push((node, stream));
    }
    job.add();
    job.wait_for_sum();
}

/// A node whose link is so slow that it takes longer than ten seconds to give its ranges away is
/// waited for, and says for whom it waits. A second signal ends it at once; what is left then goes
/// when it is started again.
#[test]
#[ignore = "long: a slow link"]
fn who_leaves_slowly_is_waited_for() {
    let mut job = Job::begin("slow");
    job.add();
    job.wait_for_sum();
    job.streams.remove(0).1.kill();
    let slow = |job: &Job, log: &str| {
        let options = [&SUM[..], &["--rate", "100KB"]].concat();
        let command = job.hosts.stream_command(0, &options);
        Process::start(&mut job.hosts.logged(command, log))
    };
    let mut first = slow(&job, "first");
    let heard = |log: &str| job.hosts.log(log).contains("all nodes are heard");
    wait_for("node 0 to hear node 1", || heard("first"));
    wait_for("node 0 to have its ranges", || {
        job.hosts.mastered(0) > 100_000
    });
    first.signal("TERM");
    wait_for("a word of what is left", || {
        let said = job.hosts.log("first");
        said.contains("leaving for") && said.contains("node 1 has yet to take or confirm")
    });
    first.signal("TERM");
    assert_eq!(first.wait().code(), Some(143), "{}", job.hosts.log("first"));
    let mut second = slow(&job, "second");
    wait_for("node 0 to hear node 1 again", || heard("second"));
    wait_for("node 0 to have its ranges again", || {
        job.hosts.mastered(0) > 100_000
    });
    job.hosts.add_one(0);
    job.added += 1;
    let began = Instant::now();
    second.signal("TERM");
    let status = second.wait();
    let (took, said) = (began.elapsed(), job.hosts.log("second"));
    assert!(status.success(), "{status}\n{said}");
    assert_says(&said, &["all that was added here is with other nodes"]);
    assert!(took > Duration::from_secs(10), "not slow at all: {took:?}");
    job.wait_for_sum();
}

/// Three of four nodes begin, because they may; the fourth comes when all is learnt already.
#[test]
fn a_job_begins_without_a_node_that_may_be_missing() {
    let hosts = Hosts::new("fewer", 4);
    let start = |node: u16| {
        hosts.init(node, 1, 100);
        hosts.stream_with(node, &["--min-nodes", "3", "--merge", "sum", "--atomic"])
    };
    let _streams = [0, 1, 3].map(start);
    hosts.wait_until_ready([0, 1, 3]);
    hosts.add_one(1);
    let equal = |a: u16, b: u16| hosts.weights(a) == hosts.weights(b);
    wait_for("what was added", || equal(0, 1) && equal(1, 3));
    let _late = start(2);
    wait_for("the fourth", || equal(2, 0) && hosts.is_ready(2));
}

#[test]
fn numbers_that_do_not_fit_are_refused_and_named() {
    let hosts = Hosts::new("numbers", 2);
    hosts.init(0, 1, 100);
    hosts.init(1, 1, 100);
    for (args, words) in [
        (&["--node", "16"][..], &["16 of 16 places", "node"][..]),
        (&["--node", "0", "--places", "1"], &["--places", "1 for 2"]),
        (
            &["--node", "0", "--min-nodes", "3"],
            &["--min-nodes", "3 of 2"],
        ),
        (
            &["--node", "0", "--quorum", "17"],
            &["--quorum", "17 of 16 places"],
        ),
    ] {
        let mut stream = dogwild();
        stream.args(["stream", "--nodes", "2"]).args(args);
        let said = refused(stream.arg("--buffer").arg(hosts.buffer(0)));
        assert_says(&said, words);
    }
    let _other = hosts.stream_with(0, &["--places", "20"]);
    let mut stream = dogwild();
    stream.args(["stream", "--nodes", "2", "--node", "1", "--buffer"]);
    stream
        .arg(hosts.buffer(1))
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let stream = Process::start(&mut stream);
    sleep(Duration::from_millis(1500));
    stream.signal("TERM");
    let said = said(&stream.output());
    assert_says(&said, &["20 node numbers there, 16 here", "--places"]);
}

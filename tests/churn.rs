//! Churn: eight hosts of a lab, and every second one of them is killed, stands still, is cut off,
//! leaves, or comes back, while all add. `DOGWILD_CHURN_S` sets how long, `DOGWILD_CHURN_SEED` what
//! happens.

#![cfg(feature = "program")]

mod support;

use std::fmt::Write as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use dogwild_lab::{Lab, Spec};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use support::hosts::Hosts;
use support::job::one_job;
use support::output::succeeds;
use support::process::Process;
use support::wait::wait_while;

/// Nodes that the job begins with, and all of them.
const FIRST: u16 = 4;
const NODES: u16 = 8;
/// What one node sends at most: eight of them share two cores.
const RATE: &str = "4MB";

/// What befalls a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    Killed,
    Paused,
    Cut,
    Left,
}

/// A node in trouble, and when that ends.
struct Troubled {
    node: u16,
    trouble: Trouble,
    until: Instant,
}

struct Churn {
    lab: Lab,
    hosts: Hosts,
    options: Vec<String>,
    streams: Vec<Option<Process>>,
    troubled: Vec<Troubled>,
    begun: Vec<f32>,
    /// What was added to every weight, in all.
    added: f32,
    rng: StdRng,
    start: Instant,
    told: String,
}

impl Churn {
    /// A job of the first nodes, to which all others come.
    fn begin(name: &str, seed: u64, unicast: bool, sealed: bool) -> Self {
        let lab = Lab::up(&Spec::of(NODES.into())).expect("a lab");
        let hosts = Hosts::new(name, FIRST);
        let mut options = ["--merge", "sum", "--atomic", "--rate", RATE]
            .map(String::from)
            .to_vec();
        if unicast {
            for host in 0..NODES {
                let rules = "table ip apart { chain in { type filter hook input priority 0; \
                             iifname eth0 ip daddr 224.0.0.0/4 drop; }; }";
                succeeds(lab.command(host.into(), "nft").arg(rules));
            }
            // Two of them: one may be away when another comes.
            options.extend(["--join", "10.77.0.1", "--join", "10.77.0.2"].map(String::from));
        } else {
            options.extend(["--iface", "eth0"].map(String::from));
        }
        if sealed {
            options.extend(["--key-file".to_owned(), hosts.key_file()]);
        }
        for node in 0..NODES {
            hosts.init(node, u64::from(node / FIRST), 100);
        }
        let begun = hosts.weights(0);
        let mut churn = Self {
            lab,
            hosts,
            options,
            streams: (0..NODES).map(|_| None).collect(),
            troubled: Vec::new(),
            begun,
            added: 0.0,
            rng: StdRng::seed_from_u64(seed),
            start: Instant::now(),
            told: String::new(),
        };
        (0..NODES).for_each(|node| churn.start(node));
        churn.hosts.wait_until_ready(0..NODES);
        churn
    }

    fn start(&mut self, node: u16) {
        let options: Vec<&str> = self.options.iter().map(String::as_str).collect();
        let plain = self.hosts.stream_command(node, &options);
        let mut command = self.lab.command(node.into(), plain.get_program());
        command.args(plain.get_args());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let log = self.hosts.folder.path().join(format!("log{node}"));
        let log = std::fs::File::options().create(true).append(true).open(log);
        command.stderr(log.expect("a log"));
        self.streams[usize::from(node)] = Some(Process::start(&mut command));
    }

    fn stream(&mut self, node: u16) -> &mut Process {
        let stream = self.streams[usize::from(node)].as_mut();
        stream.expect("it was started")
    }

    fn note(&mut self, what: &str) {
        let at = self.start.elapsed().as_secs_f64();
        writeln!(self.told, "{at:6.1} s: {what}").expect("memory");
    }

    fn ip(&self, node: u16, words: &str) {
        succeeds(self.lab.command(node.into(), "ip").args(words.split(' ')));
    }

    fn begin_trouble(&mut self) {
        let calm = |node: &u16| self.troubled.iter().all(|one| one.node != *node);
        let calm: Vec<u16> = (0..NODES).filter(calm).collect();
        let node = calm[self.rng.random_range(0..calm.len())];
        let trouble = match self.rng.random_range(0..4) {
            0 => Trouble::Killed,
            1 => Trouble::Paused,
            2 => Trouble::Cut,
            _ => Trouble::Left,
        };
        let lasts = Duration::from_millis(self.rng.random_range(200..4000));
        self.note(&format!("node {node} {trouble:?} for {lasts:?}"));
        match trouble {
            Trouble::Killed => self.stream(node).kill(),
            Trouble::Paused => self.stream(node).signal("STOP"),
            Trouble::Cut => self.ip(node, "link set eth0 down"),
            Trouble::Left => self.stream(node).signal("TERM"),
        }
        let until = Instant::now() + lasts;
        self.troubled.push(Troubled {
            node,
            trouble,
            until,
        });
    }

    /// Ends the troubles that have lasted long enough.
    fn end_troubles(&mut self, now: Instant) {
        let ended: Vec<_> = self
            .troubled
            .extract_if(.., |one| one.until <= now)
            .collect();
        for Troubled { node, trouble, .. } in ended {
            self.note(&format!("node {node} no longer {trouble:?}"));
            match trouble {
                Trouble::Killed => self.start(node),
                Trouble::Paused => self.stream(node).signal("CONT"),
                Trouble::Cut => {
                    self.ip(node, "link set eth0 up");
                    self.ip(node, "route add 224.0.0.0/4 dev eth0");
                }
                Trouble::Left => {
                    // Ten seconds at most, by what it promises.
                    let status = self.stream(node).wait();
                    assert!(
                        status.success(),
                        "node {node} left with {status}\n{}",
                        self.told
                    );
                    self.start(node);
                }
            }
        }
    }

    /// Every half to two seconds another one is in trouble, `most` at a time. If it is one, all
    /// that was added must be everywhere before the next.
    fn run(&mut self, lasts: Duration, most: usize) {
        let end = Instant::now() + lasts;
        while Instant::now() < end {
            let pause = Duration::from_millis(self.rng.random_range(500..2000));
            let next = Instant::now() + pause;
            while Instant::now() < next {
                self.end_troubles(Instant::now());
                let node = self.rng.random_range(0..NODES);
                let by = f32::from(1u8 << node);
                self.hosts.add(node, by);
                self.added += by;
                std::thread::sleep(Duration::from_millis(100));
            }
            if most == 1 && self.troubled.is_empty() {
                self.wait_for_sum();
            }
            if self.troubled.len() < most {
                self.begin_trouble();
            }
        }
        self.end_troubles(end + Duration::from_secs(3600));
        self.hosts.wait_until_ready(0..NODES);
    }

    fn wait_for_sum(&self) {
        let what = format!("all that was added\n{}", self.told);
        wait_while(&what, || self.off());
    }

    /// Waits until all hold the same.
    fn wait_until_equal(&self) {
        let what = format!("equal weights\n{}", self.told);
        wait_while(&what, || {
            let first = self.hosts.weights(0);
            let differs = |node: &u16| self.hosts.weights(*node) != first;
            let differ: Vec<u16> = (1..NODES).filter(differs).collect();
            (!differ.is_empty()).then(|| format!("nodes {differ:?} differ from node 0"))
        });
    }

    /// By how much each node is off from what was added, where it is.
    fn off(&self) -> Option<String> {
        let sum = self.added;
        let mut wrong = String::new();
        for node in 0..NODES {
            let weights = self.hosts.weights(node);
            let off = |(have, begun): (&f32, &f32)| have - begun - sum;
            let off = weights.iter().zip(&self.begun).map(off);
            let off: Vec<(usize, f32)> =
                (0..).zip(off).filter(|(_, off)| off.abs() > 0.5).collect();
            if let [(at, first), ..] = off[..] {
                let (count, last) = (off.len(), off[off.len() - 1].0);
                write!(
                    wrong,
                    "node {node}: {count} weights from {at} to {last} are off, by {first}; "
                )
                .expect("memory");
            }
        }
        (!wrong.is_empty()).then_some(wrong)
    }

    /// What all nodes say that they have lost.
    fn abandoned(&self) -> u64 {
        let of = |node| self.hosts.meter(node, "abandoned_chunks");
        (0..NODES).map(of).sum()
    }
}

fn seconds() -> Duration {
    let told = std::env::var("DOGWILD_CHURN_S").ok();
    Duration::from_secs(told.map_or(25, |told| told.parse().expect("seconds")))
}

fn seed() -> u64 {
    let told = std::env::var("DOGWILD_CHURN_SEED").ok();
    told.map_or(1, |told| told.parse().expect("a seed"))
}

/// One after the other: nothing is lost, and nothing counts twice.
fn one_after_the_other(name: &str, unicast: bool, sealed: bool) {
    let _one = one_job();
    let mut churn = Churn::begin(name, seed(), unicast, sealed);
    churn.run(seconds(), 1);
    churn.wait_for_sum();
    assert_eq!(churn.abandoned(), 0, "{}", churn.told);
}

/// Three at a time: all come back, and hold the same. What was under way between two that died is
/// lost, or counts twice; how much is said.
fn three_at_a_time(name: &str, unicast: bool, sealed: bool) {
    let _one = one_job();
    let mut churn = Churn::begin(name, seed(), unicast, sealed);
    churn.run(seconds(), 3);
    churn.wait_until_equal();
    match churn.off() {
        None => eprintln!("{name}: all that was added is there once"),
        Some(off) => eprintln!("{name}: of {} that were added: {off}", churn.added),
    }
}

#[test]
#[ignore = "long: churn"]
fn one_after_the_other_by_multicast() {
    dogwild_lab::enter_or_return!();
    one_after_the_other("churn", false, true);
}

#[test]
#[ignore = "long: churn"]
fn one_after_the_other_by_copies() {
    dogwild_lab::enter_or_return!();
    one_after_the_other("churn-apart", true, false);
}

#[test]
#[ignore = "long: churn"]
fn three_at_a_time_by_multicast() {
    dogwild_lab::enter_or_return!();
    three_at_a_time("churn-three", false, false);
}

#[test]
#[ignore = "long: churn"]
fn three_at_a_time_by_copies() {
    dogwild_lab::enter_or_return!();
    three_at_a_time("churn-three-apart", true, true);
}

//! Eight hosts of a lab, their streamers and solvers, and what befalls them.
//!
//! Invariant: a trouble of a node lasts until each other node that was well when it began, and
//! still is, has made a step, if solvers run: none of them stands still because others are away.

use std::fmt::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use dogwild_lab::{Lab, Spec};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::support::hosts::Hosts;
use super::support::job::iterations;
use super::support::output::succeeds;
use super::support::process::Process;

/// Nodes that the job begins with, and all of them.
pub(crate) const FIRST: u16 = 4;
pub(crate) const NODES: u16 = 8;
/// What one node sends at most: eight of them share two cores.
const RATE: &str = "4MB";
/// A trouble that cannot end for so long is a hang, however busy the machine is.
const HANG: Duration = Duration::from_secs(600);

/// What befalls a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    Killed,
    Paused,
    Cut,
    Left,
    /// It is killed, and comes back with other weights in a new buffer.
    Lost,
    /// It has yet to come.
    Away,
}

/// A node in trouble, and when that ends.
struct Troubled {
    node: u16,
    trouble: Trouble,
    began: Instant,
    until: Instant,
    /// The nodes that were well then, with their iterations.
    well: Vec<(u16, u64)>,
}

/// How a job is started.
pub(crate) struct Start {
    pub(crate) seed: u64,
    pub(crate) unicast: bool,
    pub(crate) sealed: bool,
    /// What streamers are told in addition.
    pub(crate) stream: &'static [&'static str],
    /// What solvers are told; `None`: there are none.
    pub(crate) solve: Option<Vec<String>>,
    /// Iterations after which solvers end.
    pub(crate) iterations: u64,
}

pub(crate) struct Cluster {
    pub(crate) lab: Lab,
    pub(crate) hosts: Hosts,
    start: Start,
    options: Vec<String>,
    streams: Vec<Option<Process>>,
    solvers: Vec<Option<Process>>,
    troubled: Vec<Troubled>,
    /// Nodes that have come back, with their iterations then, until they have made a step.
    back: Vec<(u16, u64)>,
    pub(crate) rng: StdRng,
    pub(crate) began: Instant,
    /// When a node got into trouble, or made its first step afterwards: seconds.
    pub(crate) events: Vec<(f64, u16, bool)>,
    pub(crate) told: String,
}

impl Cluster {
    /// Hosts with buffers; nothing runs on them.
    pub(crate) fn new(hosts: Hosts, start: Start) -> Self {
        let lab = Lab::up(&Spec::of(NODES.into())).expect("a lab");
        let mut options: Vec<String> = start.stream.iter().map(ToString::to_string).collect();
        options.extend(["--rate", RATE].map(String::from));
        if start.unicast {
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
        if start.sealed {
            options.extend(["--key-file".to_owned(), hosts.key_file()]);
        }
        let cluster = Self {
            lab,
            hosts,
            options,
            streams: (0..NODES).map(|_| None).collect(),
            solvers: (0..NODES).map(|_| None).collect(),
            troubled: Vec::new(),
            back: Vec::new(),
            rng: StdRng::seed_from_u64(start.seed),
            began: Instant::now(),
            events: Vec::new(),
            told: String::new(),
            start,
        };
        (0..NODES).for_each(|node| cluster.init(node, u64::from(node / FIRST)));
        cluster
    }

    fn init(&self, node: u16, seed: u64) {
        let seed = if self.start.solve.is_some() {
            self.start.seed + seed
        } else {
            seed
        };
        self.hosts.init(node, seed, self.start.iterations);
    }

    /// Starts the streamer of a node, and its solver.
    pub(crate) fn start(&mut self, node: u16) {
        let options: Vec<&str> = self.options.iter().map(String::as_str).collect();
        let plain = self.hosts.stream_command(node, &options);
        self.streams[usize::from(node)] = Some(self.start_on(node, &plain, "log"));
        if let Some(options) = &self.start.solve {
            let options: Vec<&str> = options.iter().map(String::as_str).collect();
            let plain = self.hosts.solver_command(node, &options);
            self.solvers[usize::from(node)] = Some(self.start_on(node, &plain, "solver-log"));
        }
    }

    fn start_on(&self, node: u16, plain: &Command, log: &str) -> Process {
        let mut command = self.lab.command(node.into(), plain.get_program());
        command.args(plain.get_args());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        Process::start(&mut self.hosts.logged(command, &format!("{log}{node}")))
    }

    /// Nodes that have yet to come, each after some seconds.
    pub(crate) fn come_later(&mut self, nodes: impl Iterator<Item = u16>) {
        for node in nodes {
            let after = Duration::from_millis(self.rng.random_range(2_000..12_000));
            self.note_trouble(node, Trouble::Away, after);
        }
    }

    pub(crate) fn stream(&mut self, node: u16) -> &mut Process {
        let stream = self.streams[usize::from(node)].as_mut();
        stream.expect("it was started")
    }

    pub(crate) fn solver(&mut self, node: u16) -> Option<&mut Process> {
        self.solvers[usize::from(node)].as_mut()
    }

    fn signal(&mut self, node: u16, name: &str) {
        self.stream(node).signal(name);
        if let Some(solver) = self.solver(node) {
            solver.signal(name);
        }
    }

    fn note(&mut self, what: &str) {
        let at = self.began.elapsed().as_secs_f64();
        writeln!(self.told, "{at:6.1} s: {what}").expect("memory");
    }

    fn ip(&self, node: u16, words: &str) {
        succeeds(self.lab.command(node.into(), "ip").args(words.split(' ')));
    }

    fn steps(&self, node: u16) -> u64 {
        iterations(&self.hosts.buffer(node))
    }

    fn note_trouble(&mut self, node: u16, trouble: Trouble, lasts: Duration) {
        self.note(&format!("node {node} {trouble:?} for {lasts:?}"));
        let began = Instant::now();
        self.back.retain(|(one, _)| *one != node);
        let well = |other: &u16| {
            let troubled = self.troubled.iter().any(|one| one.node == *other);
            let back = self.back.iter().any(|(one, _)| one == other);
            *other != node && !troubled && !back
        };
        let well = (0..NODES).filter(well);
        let well = well.map(|other| (other, self.steps(other)));
        let well = match self.start.solve {
            Some(_) if trouble != Trouble::Away => well.collect(),
            _ => Vec::new(),
        };
        self.events
            .push((self.began.elapsed().as_secs_f64(), node, true));
        self.troubled.push(Troubled {
            node,
            trouble,
            began,
            until: began + lasts,
            well,
        });
    }

    pub(crate) fn begin_trouble(&mut self, kinds: &[Trouble]) {
        let calm = |node: &u16| self.troubled.iter().all(|one| one.node != *node);
        let calm: Vec<u16> = (0..NODES).filter(calm).collect();
        let node = calm[self.rng.random_range(0..calm.len())];
        let trouble = kinds[self.rng.random_range(0..kinds.len())];
        let lasts = Duration::from_millis(self.rng.random_range(200..4000));
        self.note_trouble(node, trouble, lasts);
        match trouble {
            Trouble::Killed | Trouble::Lost => {
                self.stream(node).kill();
                if let Some(solver) = self.solver(node) {
                    solver.kill();
                }
            }
            Trouble::Paused => self.signal(node, "STOP"),
            Trouble::Cut => self.ip(node, "link set eth0 down"),
            Trouble::Left => {
                // Solvers first: what they add is waited for.
                if let Some(solver) = self.solver(node) {
                    solver.signal("TERM");
                    solver.wait();
                }
                self.stream(node).signal("TERM");
            }
            Trouble::Away => {}
        }
    }

    /// Whether what befell a node may end, and else why not.
    fn lacks(&mut self, at: usize) -> Option<String> {
        let (node, trouble) = (self.troubled[at].node, self.troubled[at].trouble);
        if trouble == Trouble::Left && self.stream(node).ended().is_none() {
            return Some(format!("node {node} has not left"));
        }
        let still = |(other, before): &(u16, u64)| {
            let troubled = self.troubled.iter().any(|one| one.node == *other);
            let back = self.back.iter().any(|(one, _)| one == other);
            !troubled && !back && self.steps(*other) <= *before
        };
        let still: Vec<_> = self.troubled[at]
            .well
            .iter()
            .filter(|one| still(one))
            .collect();
        (!still.is_empty()).then(|| format!("{still:?} stand still since node {node} {trouble:?}"))
    }

    /// Ends the troubles that have lasted long enough.
    pub(crate) fn end_troubles(&mut self, now: Instant) {
        let mut at = 0;
        while at < self.troubled.len() {
            if self.troubled[at].until > now {
                at += 1;
            } else if let Some(lacks) = self.lacks(at) {
                let waited = self.troubled[at].began.elapsed();
                assert!(waited < HANG, "for {waited:?}: {lacks}\n{}", self.told);
                at += 1;
            } else {
                let one = self.troubled.remove(at);
                self.end_trouble(one.node, one.trouble);
            }
        }
        let at = self.began.elapsed().as_secs_f64();
        for (node, before) in std::mem::take(&mut self.back) {
            if self.steps(node) > before {
                self.events.push((at, node, false));
            } else {
                self.back.push((node, before));
            }
        }
    }

    fn end_trouble(&mut self, node: u16, trouble: Trouble) {
        self.note(&format!("node {node} no longer {trouble:?}"));
        match trouble {
            Trouble::Killed | Trouble::Away => self.start(node),
            Trouble::Lost => {
                self.init(node, 1000 + u64::from(node));
                self.start(node);
            }
            Trouble::Paused => self.signal(node, "CONT"),
            Trouble::Cut => {
                self.ip(node, "link set eth0 up");
                self.ip(node, "route add 224.0.0.0/4 dev eth0");
            }
            Trouble::Left => {
                let status = self.stream(node).wait();
                assert!(
                    status.success(),
                    "node {node} left with {status}\n{}",
                    self.told
                );
                self.start(node);
            }
        }
        if self.start.solve.is_some() {
            self.back.push((node, self.steps(node)));
        }
    }

    /// How many nodes are in trouble.
    pub(crate) fn in_trouble(&self) -> usize {
        let away = |one: &&Troubled| one.trouble == Trouble::Away;
        self.troubled.len() - self.troubled.iter().filter(away).count()
    }

    /// Ends all troubles, those that have not lasted long enough too. Solvers of all nodes are at
    /// work again.
    pub(crate) fn end_all(&mut self) {
        let since = Instant::now();
        while !self.troubled.is_empty() || !self.back.is_empty() {
            self.end_troubles(Instant::now() + HANG);
            assert!(
                since.elapsed() < HANG,
                "no step of {:?}\n{}",
                self.back,
                self.told
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        self.hosts.wait_until_ready(0..NODES);
    }

    /// How often nodes said that work of theirs is lost, in all their lives.
    pub(crate) fn losses(&self) -> usize {
        let said = |node| self.hosts.log(&format!("log{node}"));
        let of = |node| said(node).matches("is lost in some chunks").count();
        (0..NODES).map(of).sum()
    }

    /// What all nodes' work counts for in the mean: about 1.
    pub(crate) fn portions(&self) -> f64 {
        let of = |node| self.hosts.meter(node, "portion_millionths") as f64 / 1e6;
        (0..NODES).map(of).sum()
    }
}

pub(crate) fn seconds(otherwise: u64) -> Duration {
    let told = std::env::var("DOGWILD_CHURN_S").ok();
    Duration::from_secs(told.map_or(otherwise, |told| told.parse().expect("seconds")))
}

pub(crate) fn seed() -> u64 {
    let told = std::env::var("DOGWILD_CHURN_SEED").ok();
    told.map_or(1, |told| told.parse().expect("a seed"))
}

//! The test adds numbers to the buffers while nodes come and go: what was added is everywhere,
//! once.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use rand::RngExt;

use super::cluster::{Cluster, FIRST, NODES, Start, Trouble, seconds, seed};
use super::support::hosts::Hosts;
use super::support::job::one_job;
use super::support::wait::wait_while;

/// What befalls nodes here: their memory stays.
const KINDS: [Trouble; 4] = [
    Trouble::Killed,
    Trouble::Paused,
    Trouble::Cut,
    Trouble::Left,
];

struct Churn {
    cluster: Cluster,
    begun: Vec<f32>,
    /// What was added to every weight, in all.
    added: f32,
}

impl Churn {
    /// A job of the first nodes, to which all others come.
    fn begin(name: &str, seed: u64, unicast: bool, sealed: bool) -> Self {
        let start = Start {
            seed,
            unicast,
            sealed,
            stream: &["--merge", "sum", "--atomic"],
            solve: None,
            iterations: 100,
        };
        let mut cluster = Cluster::new(Hosts::new(name, FIRST), start);
        let begun = cluster.hosts.weights(0);
        (0..NODES).for_each(|node| cluster.start(node));
        cluster.hosts.wait_until_ready(0..NODES);
        Self {
            cluster,
            begun,
            added: 0.0,
        }
    }

    /// Every half to two seconds another one is in trouble, `most` at a time. If it is one, all
    /// that was added must be everywhere before the next.
    fn run(&mut self, lasts: Duration, most: usize) {
        let end = Instant::now() + lasts;
        while Instant::now() < end {
            let pause = Duration::from_millis(self.cluster.rng.random_range(500..2000));
            let next = Instant::now() + pause;
            while Instant::now() < next {
                self.cluster.end_troubles(Instant::now());
                let node = self.cluster.rng.random_range(0..NODES);
                let by = f32::from(1u8 << node);
                self.cluster.hosts.add(node, by);
                self.added += by;
                std::thread::sleep(Duration::from_millis(100));
            }
            if most == 1 && self.cluster.in_trouble() == 0 {
                self.wait_for_sum();
            }
            if self.cluster.in_trouble() < most {
                self.cluster.begin_trouble(&KINDS);
            }
        }
        self.cluster.end_all();
    }

    fn wait_for_sum(&self) {
        let what = format!("all that was added\n{}", self.cluster.told);
        wait_while(&what, || self.off());
    }

    /// Waits until all hold the same.
    fn wait_until_equal(&self) {
        let what = format!("equal weights\n{}", self.cluster.told);
        wait_while(&what, || {
            let first = self.cluster.hosts.weights(0);
            let differs = |node: &u16| self.cluster.hosts.weights(*node) != first;
            let differ: Vec<u16> = (1..NODES).filter(differs).collect();
            (!differ.is_empty()).then(|| format!("nodes {differ:?} differ from node 0"))
        });
    }

    /// By how much each node is off from what was added, where it is.
    fn off(&self) -> Option<String> {
        let sum = self.added;
        let mut wrong = String::new();
        for node in 0..NODES {
            let weights = self.cluster.hosts.weights(node);
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
}

/// One after the other: nothing is lost, and nothing counts twice.
fn one_after_the_other(name: &str, unicast: bool, sealed: bool) {
    let _one = one_job();
    let mut churn = Churn::begin(name, seed(), unicast, sealed);
    churn.run(seconds(25), 1);
    churn.wait_for_sum();
    assert_eq!(churn.cluster.losses(), 0, "{}", churn.cluster.told);
}

/// Three at a time: all come back, and hold the same. What was under way between two that died is
/// lost, or counts twice; how much is said.
fn three_at_a_time(name: &str, unicast: bool, sealed: bool) {
    let _one = one_job();
    let mut churn = Churn::begin(name, seed(), unicast, sealed);
    churn.run(seconds(25), 3);
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

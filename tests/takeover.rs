//! Hosts by hand whose masters stand still, die, and come back: others stream their ranges, and all
//! that was added anywhere is there once.

#![cfg(feature = "program")]

mod support;

use std::thread::sleep;
use std::time::Duration;

use support::hosts::Hosts;
use support::process::Process;
use support::wait::{wait_for, wait_while};

const NODES: u16 = 4;

struct Job {
    hosts: Hosts,
    streams: Vec<Process>,
    begun: Vec<f32>,
    /// How often 1.0 was added to every weight.
    added: u32,
}

impl Job {
    fn begin(name: &str) -> Self {
        let hosts = Hosts::new(name, NODES);
        let streams = (0..NODES).map(|node| {
            hosts.init(node, 1, 100);
            hosts.stream_sum(node)
        });
        let streams = streams.collect();
        hosts.wait_until_ready(0..NODES);
        let begun = hosts.weights(0);
        Self {
            hosts,
            streams,
            begun,
            added: 0,
        }
    }

    fn add(&mut self, nodes: &[u16]) {
        for _ in 0..3 {
            for node in nodes {
                self.hosts.add_one(*node);
                self.added += 1;
            }
            sleep(Duration::from_millis(100));
        }
    }

    /// Waits until all `nodes` have in all weights what was added.
    fn wait_for_sum(&self, nodes: &[u16]) {
        let sum = self.added as f32;
        wait_while("all that was added to be everywhere", || {
            let wrong = nodes.iter().filter_map(|node| {
                let weights = self.hosts.weights(*node);
                let off = |(have, begun): (&f32, &f32)| have - begun - sum;
                let off = weights.iter().zip(&self.begun).map(off);
                let off: Vec<f32> = off.filter(|off| off.abs() > 0.01).collect();
                let first = off.first()?;
                Some(format!(
                    "node {node}: {} weights are off, by {first}; ",
                    off.len()
                ))
            });
            let wrong: String = wrong.collect();
            (!wrong.is_empty()).then_some(wrong)
        });
    }

    /// Waits until these nodes master all weights.
    fn wait_for_masters(&self, nodes: &[u16]) {
        let all = self.begun.len();
        wait_for(&format!("nodes {nodes:?} to master all weights"), || {
            let mastered = nodes.iter().map(|node| self.hosts.mastered(*node));
            // The last chunk may be longer than the weights.
            mastered.sum::<usize>() >= all
        });
    }
}

/// A master's streamer stands still while all add, its own solvers too. Others stream its range; it
/// comes back, brings what was added there, and gets its range back.
#[test]
fn what_was_added_while_a_master_stood_still_is_there_once() {
    let mut job = Job::begin("still");
    let all = [0, 1, 2, 3];
    job.add(&all);
    job.wait_for_sum(&all);
    let own = job.hosts.mastered(1);
    job.streams[1].signal("STOP");
    job.add(&all);
    job.wait_for_masters(&[0, 2, 3]);
    let status = job.hosts.status(0);
    assert!(!status.contains("on node 1"), "{status}");
    job.add(&all);
    job.streams[1].signal("CONT");
    job.add(&all);
    job.wait_for_sum(&all);
    wait_for("node 1 to have its range back", || {
        job.hosts.mastered(1) == own && job.hosts.status(0).contains("on node 1")
    });
    job.add(&all);
    job.wait_for_sum(&all);
}

/// Two masters die one after the other, the second after it has taken the first one's range. The
/// two that are left train on, and nothing that they did is lost. Then the dead come back, one
/// without its memory.
#[test]
fn those_who_are_left_train_on_when_masters_die_in_a_row() {
    let mut job = Job::begin("row");
    let all = [0, 1, 2, 3];
    job.add(&all);
    job.wait_for_sum(&all);
    job.streams[1].kill();
    job.add(&[0, 2, 3]);
    job.wait_for_masters(&[0, 2, 3]);
    job.wait_for_sum(&[0, 2, 3]);
    let more = |node: &u16| job.hosts.mastered(*node);
    let heir = [0, 2, 3].into_iter().max_by_key(more).unwrap_or(0);
    job.streams[usize::from(heir)].kill();
    let left: Vec<u16> = [0, 2, 3].into_iter().filter(|node| *node != heir).collect();
    job.add(&left);
    job.wait_for_masters(&left);
    job.wait_for_sum(&left);
    job.streams[1] = job.hosts.stream_sum(1);
    job.hosts.init(heir, 1, 100);
    job.streams[usize::from(heir)] = job.hosts.stream_sum(heir);
    job.add(&left);
    job.wait_for_sum(&all);
    job.add(&all);
    job.wait_for_sum(&all);
}

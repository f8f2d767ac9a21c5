//! Rates and shares between two samples.

use std::collections::BTreeMap;

use serde::Serialize;

use super::sample::{BufferSample, ComponentSample, DROP, Sample};
use crate::weights::Role;

/// What is shown of one interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Frame {
    /// Its end, ms since 1970.
    pub unix_ms: u64,
    /// Its length, s.
    pub seconds: f64,
    /// Iterations of the cluster, the most that a buffer knows of.
    pub iterations: u64,
    /// Iterations after which solvers end; 0: none.
    pub target_iterations: u64,
    /// Iterations per second, of all buffers here.
    pub iterations_per_s: f64,
    /// Training loss, mean of all solvers here; null: none yet.
    pub loss: Option<f32>,
    /// The newest test accuracy, the highest here; null: none yet.
    pub accuracy: Option<f32>,
    /// Each buffer.
    pub nodes: Vec<Node>,
}

/// One buffer in an interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Node {
    /// The end of its name: `n0`.
    pub name: String,
    /// Which job.
    pub session: String,
    /// Whether anything runs on it.
    pub alive: bool,
    /// Iterations per second of its solvers.
    pub iterations_per_s: f64,
    /// Training loss, mean of its solvers; null: none yet.
    pub loss: Option<f32>,
    /// Accuracy of its last test; null: none yet.
    pub accuracy: Option<f32>,
    /// Passes over its range per second.
    pub cycles_per_s: f64,
    /// Bytes of frames per second, sent.
    pub sent_bytes_per_s: f64,
    /// Bytes of frames per second, received.
    pub received_bytes_per_s: f64,
    /// Share of other nodes' positions that never came, in this interval.
    pub lost_share: f64,
    /// Age of foreign chunks when their next position came, ms: median and 99th percentile.
    pub age_ms: [f64; 2],
    /// CPU time of its components as a share of a core: those of the streamer, of solvers.
    pub cpu_share: [f64; 2],
    /// Nodes that are silent.
    pub silent: Vec<u16>,
    /// Frames that changed nothing per second, by reason; those of none are left out.
    pub dropped_per_s: BTreeMap<String, f64>,
    /// What came from each other node of the job, and went to it.
    pub peers: Vec<Peer>,
    /// Its components, as `stream 0 (pid 7)`, and what became of them.
    pub components: Vec<String>,
}

/// Another node as a buffer sees it, in an interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Peer {
    /// Which node.
    pub node: u16,
    /// Its positions per second, taken here.
    pub positions_per_s: f64,
    /// Share of its positions that never came, in this interval.
    pub lost_share: f64,
    /// Deltas per second, sent to it.
    pub deltas_sent_per_s: f64,
    /// Deltas per second that it sent, applied here.
    pub deltas_applied_per_s: f64,
    /// Age of the oldest chunk that it masters, ms.
    pub age_ms: u64,
    /// Time since its last frame, ms.
    pub silent_ms: u64,
    /// How far this node's weights are from its positions when they come, root mean square; null:
    /// not known yet.
    pub drift: Option<f32>,
}

impl Peer {
    fn between(node: u16, before: Option<&Meters>, now: &Meters, seconds: f64) -> Self {
        let value = |name: &str| now.get(name).copied().unwrap_or(0);
        let grown = |name: &str| {
            let old = before.map_or(value(name), |old| old.get(name).copied().unwrap_or(0));
            value(name).saturating_sub(old) as f64
        };
        let per_s = |name: &str| {
            if seconds > 0.0 {
                grown(name) / seconds
            } else {
                0.0
            }
        };
        let (missed, taken) = (grown("positions_missed"), grown("positions_taken"));
        let bits = value("drift_bits") as u32;
        Self {
            node,
            positions_per_s: per_s("positions_taken"),
            lost_share: missed / (missed + taken).max(1.0),
            deltas_sent_per_s: per_s("deltas_sent"),
            deltas_applied_per_s: per_s("deltas_applied"),
            age_ms: value("oldest_ms"),
            silent_ms: value("silent_ms"),
            drift: (bits != 0).then(|| f32::from_bits(bits)),
        }
    }
}

/// Counters by name.
pub(super) type Meters = BTreeMap<String, u64>;

/// By what nodes are sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// By their names.
    #[default]
    Name,
    /// By iterations per second, the slowest first.
    Slowest,
    /// By their loss of positions, the most first.
    Lost,
    /// By the age of what they hold, the oldest first.
    Oldest,
}

impl Order {
    /// The next one, round and round.
    pub fn next(self) -> Self {
        match self {
            Self::Name => Self::Slowest,
            Self::Slowest => Self::Lost,
            Self::Lost => Self::Oldest,
            Self::Oldest => Self::Name,
        }
    }

    /// Its name on the screen.
    pub fn name(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Slowest => "slowest",
            Self::Lost => "most lost",
            Self::Oldest => "oldest",
        }
    }
}

impl Frame {
    /// What happened from `before` to `now`.
    pub fn between(before: &Sample, now: &Sample) -> Self {
        let seconds = now.unix_ms.saturating_sub(before.unix_ms) as f64 / 1e3;
        let of = |buffer: &BufferSample| {
            let mut all = before.buffers.iter();
            let same = all.find(|old| old.path == buffer.path && old.session == buffer.session);
            Node::between(same, buffer, seconds)
        };
        let nodes: Vec<Node> = now.buffers.iter().map(of).collect();
        let most = |of: fn(&BufferSample) -> u64| now.buffers.iter().map(of).max().unwrap_or(0);
        let losses: Vec<f32> = nodes.iter().filter_map(|node| node.loss).collect();
        let accuracies = nodes.iter().filter_map(|node| node.accuracy);
        Self {
            unix_ms: now.unix_ms,
            seconds,
            iterations: most(|buffer| buffer.iterations),
            target_iterations: most(|buffer| buffer.target_iterations),
            iterations_per_s: nodes.iter().map(|node| node.iterations_per_s).sum(),
            loss: mean(&losses),
            accuracy: accuracies.reduce(f32::max),
            nodes,
        }
    }

    /// Sorts its nodes.
    pub fn sort(&mut self, order: Order) {
        let by = |value: fn(&Node) -> f64| move |a: &Node, b: &Node| value(b).total_cmp(&value(a));
        match order {
            Order::Name => self.nodes.sort_by(|a, b| a.name.cmp(&b.name)),
            Order::Slowest => self.nodes.sort_by(by(|node| -node.iterations_per_s)),
            Order::Lost => self.nodes.sort_by(by(|node| node.lost_share)),
            Order::Oldest => self.nodes.sort_by(by(|node| node.age_ms[1])),
        }
    }
}

fn mean(values: &[f32]) -> Option<f32> {
    let sum: f32 = values.iter().sum();
    (!values.is_empty()).then(|| sum / values.len() as f32)
}

/// A number that is kept as the bits of an f32; 0: there is none yet.
fn float(component: &ComponentSample, name: &str) -> Option<f32> {
    let bits = component.meter(name) as u32;
    (bits != 0).then(|| f32::from_bits(bits))
}

impl Node {
    fn between(before: Option<&BufferSample>, now: &BufferSample, seconds: f64) -> Self {
        let grown = |role: Role, name: &str| -> f64 {
            let of = |buffer: &BufferSample| -> u64 {
                buffer.of_role(role).map(|one| one.meter(name)).sum()
            };
            // A component that began anew counts from 0.
            before.map_or(0, |before| of(now).saturating_sub(of(before))) as f64
        };
        let per_s = |count: f64| if seconds > 0.0 { count / seconds } else { 0.0 };
        let stream = |name: &str| grown(Role::Stream, name);
        let streamer = now.of_role(Role::Stream).next();
        let gauge = |name: &str| streamer.map_or(0, |one| one.meter(name));
        let solvers: Vec<_> = now.of_role(Role::Solver).collect();
        let losses = solvers.iter().filter_map(|one| float(one, "loss_bits"));
        let tests = now
            .components
            .iter()
            .filter(|one| one.role != Role::Stream.to_string());
        let local = before.map_or(0, |before| {
            now.local_iterations.saturating_sub(before.local_iterations)
        });
        let (missed, taken) = (stream("positions_missed"), stream("positions_taken"));
        let silent = gauge("silent_nodes");
        Self {
            name: name_of(now),
            session: format!("{:016x}", now.session),
            alive: now.components.iter().any(|one| one.alive),
            iterations_per_s: per_s(local as f64),
            loss: mean(&losses.collect::<Vec<_>>()),
            accuracy: tests
                .filter_map(|one| float(one, "accuracy_bits"))
                .reduce(f32::max),
            cycles_per_s: per_s(stream("cycles")),
            sent_bytes_per_s: per_s(stream("bytes_sent")),
            received_bytes_per_s: per_s(stream("bytes_received")),
            lost_share: missed / (missed + taken).max(1.0),
            age_ms: ["age_p50_us", "age_p99_us"].map(|name| gauge(name) as f64 / 1e3),
            cpu_share: [Role::Stream, Role::Solver].map(|role| per_s(grown(role, "cpu_ns")) / 1e9),
            silent: (0..64).filter(|node| silent >> node & 1 == 1).collect(),
            dropped_per_s: streamer
                .into_iter()
                .flat_map(|one| one.meters.keys())
                .filter(|name| name.starts_with(DROP) || *name == "kernel_drops")
                .map(|name| {
                    (
                        name.trim_start_matches(DROP).to_owned(),
                        per_s(stream(name)),
                    )
                })
                .filter(|(_, per_s)| *per_s > 0.0)
                .collect(),
            peers: peers_between(before, now, seconds),
            components: now.components.iter().map(told).collect(),
        }
    }
}

/// The other nodes of the job, as its streamer sees them.
fn peers_between(before: Option<&BufferSample>, now: &BufferSample, seconds: f64) -> Vec<Peer> {
    let members = now.peers.iter();
    let members = members.filter(|(_, meters)| meters.get("member") == Some(&1));
    let peers = members.map(|(node, meters)| {
        let old = before.map(|before| before.peers.get(node));
        // Of a node that is new in this interval all is new.
        let none = Meters::new();
        let old = old.map(|old| old.unwrap_or(&none));
        Peer::between(*node, old, meters, seconds)
    });
    peers.collect()
}

fn told(one: &ComponentSample) -> String {
    let ComponentSample {
        role, index, pid, ..
    } = one;
    match (one.alive, pid) {
        (true, _) => format!("{role} {index} (pid {pid})"),
        (false, 0) => format!("{role} {index} (left)"),
        (false, _) => format!("{role} {index} (died, pid {pid})"),
    }
}

/// What a buffer is called, short.
fn name_of(buffer: &BufferSample) -> String {
    let name = buffer
        .path
        .file_name()
        .unwrap_or_default()
        .to_string_lossy();
    let short = ["dogwild-train-node-", "dogwild-train-"]
        .iter()
        .find_map(|start| name.strip_prefix(start));
    short.unwrap_or(&name).to_owned()
}

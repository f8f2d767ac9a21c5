//! Which metrics there are: names, units and labels as Prometheus has them, from the counters.
//!
//! Invariant: the table of `docs/reference/metrics.md` says the same; a test holds them equal.

use crate::watch::{Described, GpuMeter, Kind, PeerMeter, SolverMeter, StreamMeter, SyncMeter};

/// One metric.
#[derive(Clone, Debug, PartialEq)]
pub struct Metric {
    /// Name, without unit and `_total`.
    pub name: String,
    /// Unit, the end of its name.
    pub unit: Option<&'static str>,
    /// What it counts.
    pub help: String,
    /// Whether it only grows.
    pub is_counter: bool,
    /// Labels of its series, in order.
    pub labels: &'static [&'static str],
    /// Where its value is; `None`: not among counters of a component.
    from: Option<From>,
}

/// How a word becomes a value.
#[derive(Clone, Copy, Debug, PartialEq)]
struct From {
    word: usize,
    kind: Kind,
    /// Parts of the unit in 1 of it.
    per_unit: f64,
}

/// A value of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value {
    /// A whole number.
    Whole(u64),
    /// Any number.
    Real(f64),
}

/// Ends of counters' names: the unit to show, and how many of theirs are one of it.
const UNITS: [(&str, &str, f64); 6] = [
    ("_ns", "seconds", 1e9),
    ("_us", "seconds", 1e6),
    ("_ms", "seconds", 1e3),
    ("_permille", "ratio", 1e3),
    ("_millionths", "ratio", 1e6),
    ("_bytes", "bytes", 1.0),
];
/// What of a description tells the unit of the counter, or how it is kept.
const OF_THE_COUNTER: [&str; 7] = [
    ", ns",
    ", µs",
    ", ms",
    ", thousandths",
    ", millionths",
    ", f32 bits",
    ", as a bit mask of the first 64",
];

impl Metric {
    /// Of a counter of a component of kind `prefix`; `None`: it tells a person nothing.
    fn of_counter(
        prefix: &str,
        labels: &'static [&'static str],
        counter: Described,
    ) -> Option<Self> {
        if counter.kind == Kind::Inner {
            return None;
        }
        let (name, unit, per_unit) = unit_of(counter.name);
        let mut help = counter.help.to_owned();
        for words in OF_THE_COUNTER {
            help = help.replace(words, "");
        }
        Some(Self {
            name: format!("dogwild_{prefix}_{name}"),
            unit,
            help: help.trim_end_matches('.').to_owned(),
            is_counter: counter.kind == Kind::Counter,
            labels,
            from: Some(From {
                word: counter.word,
                kind: counter.kind,
                per_unit,
            }),
        })
    }

    /// Of something else.
    fn plain(
        name: &str,
        unit: Option<&'static str>,
        help: &str,
        is_counter: bool,
        labels: &'static [&'static str],
    ) -> Self {
        Self {
            name: format!("dogwild_{name}"),
            unit,
            help: help.to_owned(),
            is_counter,
            labels,
            from: None,
        }
    }

    /// The whole name.
    pub fn full_name(&self) -> String {
        let unit = self.unit.map_or(String::new(), |unit| format!("_{unit}"));
        let total = if self.is_counter { "_total" } else { "" };
        format!("{}{unit}{total}", self.name)
    }

    /// Its value among the counters `words`; `None`: there is none yet.
    pub(super) fn value(&self, words: &[u64]) -> Option<Value> {
        let from = self.from?;
        let word = words[from.word];
        Some(match from.kind {
            Kind::Mask => Value::Whole(word.count_ones().into()),
            Kind::Float if word == 0 => return None,
            Kind::Float => Value::Real(f32::from_bits(word as u32).into()),
            _ if from.per_unit > 1.0 => Value::Real(word as f64 / from.per_unit),
            _ => Value::Whole(word),
        })
    }
}

/// The name of a counter without its unit, the unit, and how many of the counter's are one of it.
fn unit_of(name: &str) -> (String, Option<&'static str>, f64) {
    for (end, unit, per_unit) in UNITS {
        if let Some(rest) = name.strip_suffix(end) {
            return (rest.to_owned(), Some(unit), per_unit);
        }
    }
    if name == "accuracy_bits" {
        return ("accuracy".to_owned(), Some("ratio"), 1.0);
    }
    if name.contains("bytes_") {
        return (name.replace("bytes_", ""), Some("bytes"), 1.0);
    }
    let bits = name.strip_suffix("_bits");
    (bits.unwrap_or(name).to_owned(), None, 1.0)
}

/// All metrics, by where they come from.
#[derive(Debug)]
pub struct Metrics {
    /// Of the program: version.
    pub(super) build: Metric,
    /// Of a buffer: weights, iterations of the cluster, those of this node, those to end at.
    pub(super) buffer: [Metric; 4],
    /// Of each component: whether it runs.
    pub(super) up: Metric,
    /// Of a streamer.
    pub(super) stream: Vec<Metric>,
    /// Of a streamer, by reason.
    pub(super) dropped: Metric,
    /// Of a streamer, for each other node.
    pub(super) peer: Vec<Metric>,
    /// Of a solver.
    pub(super) solver: Vec<Metric>,
    /// Of a worker of the reliable path.
    pub(super) sync: Vec<Metric>,
    /// Of a GPU component.
    pub(super) gpu: Vec<Metric>,
    /// Of a server, by layer: bytes sent, bytes received, messages sent, messages received.
    pub(super) layer: [Metric; 4],
    /// Of a server, by worker.
    pub(super) late: Metric,
    /// Of a server: bytes that waited for a worker, checkpoints without room.
    pub(super) server: [Metric; 2],
}

fn of_all(
    prefix: &str,
    labels: &'static [&'static str],
    counters: impl Iterator<Item = Described>,
) -> Vec<Metric> {
    counters
        .filter_map(|counter| Metric::of_counter(prefix, labels, counter))
        .collect()
}

const OF_A_BUFFER: &[&str] = &["buffer", "node"];
const OF_A_SERVER: &[&str] = &["server"];
const OF_A_SOLVER: &[&str] = &["buffer", "node", "solver"];

/// Of a buffer.
fn of_buffers() -> [Metric; 4] {
    [
        ("weights", "Weights of the model", false),
        (
            "iterations",
            "Iterations of all nodes, as far as known here",
            true,
        ),
        (
            "local_iterations",
            "Iterations of the solvers of this buffer",
            true,
        ),
        (
            "target_iterations",
            "Iterations of all nodes at which solvers end; 0: none",
            false,
        ),
    ]
    .map(|(name, help, is_counter)| Metric::plain(name, None, help, is_counter, OF_A_BUFFER))
}

/// Of a server, by layer.
fn of_layers() -> [Metric; 4] {
    [
        ("sent", "bytes", "Bytes of payloads sent"),
        ("received", "bytes", "Bytes of payloads received"),
        ("sent", "messages", "Messages sent"),
        ("received", "messages", "Messages received"),
    ]
    .map(|(way, unit, help)| {
        let name = format!("server_{way}");
        Metric::plain(&name, Some(unit), help, true, &["server", "layer"])
    })
}

/// Of a server.
fn of_servers() -> [Metric; 2] {
    [
        Metric::plain(
            "server_queued_max",
            Some("bytes"),
            "Bytes that waited for one slow worker at once, at most",
            false,
            OF_A_SERVER,
        ),
        Metric::plain(
            "server_checkpoints_lacking",
            None,
            "Checkpoints for which the disk had no room",
            true,
            OF_A_SERVER,
        ),
    ]
}

impl Metrics {
    /// All that there are.
    pub fn all() -> Self {
        let of_streams = StreamMeter::ALL.iter().map(|one| one.described());
        let of_peers = PeerMeter::ALL.iter().map(|one| one.described());
        let of_solvers = SolverMeter::ALL.iter().map(|one| one.described());
        let of_workers = SyncMeter::ALL.iter().map(|one| one.described());
        let of_devices = GpuMeter::ALL.iter().map(|one| one.described());
        Self {
            build: Metric::plain("build_info", None, "Version", false, &["version"]),
            buffer: of_buffers(),
            up: Metric::plain(
                "component_up",
                None,
                "1: the component runs; 0: it has left or died",
                false,
                &["buffer", "node", "role", "index"],
            ),
            stream: of_all("stream", OF_A_BUFFER, of_streams),
            dropped: Metric::plain(
                "stream_dropped_frames",
                None,
                "Frames that changed nothing, by reason",
                true,
                &["buffer", "node", "reason"],
            ),
            peer: of_all("peer", &["buffer", "node", "peer"], of_peers),
            solver: of_all("solver", OF_A_SOLVER, of_solvers),
            sync: of_all("solver", OF_A_SOLVER, of_workers),
            gpu: of_all("gpu", &["buffer", "node", "gpu"], of_devices),
            layer: of_layers(),
            late: Metric::plain(
                "server_dropped_updates",
                None,
                "Updates of the worker that came too late and were dropped",
                true,
                &["server", "worker"],
            ),
            server: of_servers(),
        }
    }

    /// Each of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Metric> {
        std::iter::once(&self.build)
            .chain(&self.buffer)
            .chain([&self.up])
            .chain(&self.stream)
            .chain([&self.dropped])
            .chain(&self.peer)
            .chain(&self.solver)
            .chain(&self.sync)
            .chain(&self.gpu)
            .chain(&self.layer)
            .chain([&self.late])
            .chain(&self.server)
    }
}

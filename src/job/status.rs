//! `dogwild status`: what the components of a buffer do, or did: from the buffer alone.
//!
//! Reads slots and counters, changes nothing; works while the job runs and after it died.
//! Invariant: no line is longer than 80 columns, but for paths.

use std::fmt::Write as _;
use std::sync::atomic::Ordering::Relaxed;

use serde::Serialize;

use crate::node::{SolverWatch, since_unix};
use crate::stream::ranges_seen;
use crate::watch::{GpuMeter, PeerMeter, SolverMeter, StreamMeter, SyncMeter, drops};
use crate::weights::{PEER_METERS, Role, SharedWeights, SlotInfo, StreamState};

/// Heartbeats come at least so often from what works, s; a solver may be in a test.
const BEAT_S: f64 = 2.0;

/// A value of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Value {
    /// A count.
    Count(u64),
    /// A loss, rate or share.
    Float(f32),
}

/// One component, running or not.
#[derive(Clone, Debug, Serialize)]
pub struct ComponentStatus {
    /// "stream 0", "solver 1".
    pub component: String,
    /// Its process; 0: it has left.
    pub pid: u32,
    /// runs, stopped, died, or left.
    pub state: &'static str,
    /// Time since it started, s.
    pub started_s_ago: f64,
    /// Time since its last heartbeat, s.
    pub heartbeat_s_ago: f64,
    /// All its counters, by name.
    pub meters: Vec<(String, Value)>,
}

/// A range of the weights, as this buffer's streamer knows it.
#[derive(Clone, Debug, Serialize)]
pub struct RangeStatus {
    /// Its number.
    pub range: u16,
    /// The node that streams it; null: none is known.
    pub node: Option<u16>,
    /// How often it was begun.
    pub epoch: u32,
    /// Whether this buffer's streamer streams it.
    pub here: bool,
}

/// Another node, as this buffer's streamer knows it.
#[derive(Clone, Debug, Serialize)]
pub struct PeerStatus {
    /// Its number.
    pub node: u16,
    /// All that was counted of it, by name.
    pub meters: Vec<(String, Value)>,
}

/// A buffer and its components.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// The file.
    pub buffer: String,
    /// Name of the job, as a number.
    pub session: String,
    /// Weights in the buffer.
    pub weights: usize,
    /// The kind of data that they learn: name, shape and classes, as `digits 1x28x28/10`.
    pub data: String,
    /// Iterations of the cluster, as far as known here.
    pub iterations: u64,
    /// Iterations of this buffer's solvers.
    pub local_iterations: u64,
    /// Iterations after which solvers end; 0: none.
    pub target_iterations: u64,
    /// Whether every range has been seen, so that solvers may run.
    pub ready: bool,
    /// What is missing, in words.
    pub missing: Vec<String>,
    /// Who streams which range, where the buffer has had a streamer.
    pub ranges: Vec<RangeStatus>,
    /// Everything that ever worked on the buffer.
    pub components: Vec<ComponentStatus>,
    /// What its streamer has counted of other nodes.
    pub peers: Vec<PeerStatus>,
}

impl Status {
    /// Reads it.
    pub fn read(shared: &SharedWeights) -> Self {
        let globals = shared.globals();
        let slots = shared.slots();
        let components: Vec<_> = slots.iter().map(component).collect();
        let ready = globals.ready.load(Relaxed) != 0;
        Self {
            buffer: shared.path().display().to_string(),
            session: format!("{:016x}", shared.session()),
            weights: shared.used(),
            data: shared.data_kind().to_string(),
            iterations: globals.iterations(),
            local_iterations: globals.local_iterations.load(Relaxed),
            target_iterations: globals.target_iterations.load(Relaxed),
            ready,
            missing: missing(&slots, &components, ready, globals.lacks_quorum()),
            ranges: ranges(shared),
            components,
            peers: shared.peers().into_iter().map(peer).collect(),
        }
    }

    /// For people: 80 columns.
    pub fn text(&self) -> String {
        let mut text = format!(
            "buffer      {}\nsession     {}, {} weights\ndata        {}\niterations  {} of the cluster, {} here, {}\n",
            self.buffer,
            self.session,
            self.weights,
            self.data,
            self.iterations,
            self.local_iterations,
            match self.target_iterations {
                0 => "no end".to_owned(),
                target => format!("of {target}"),
            }
        );
        let _ = writeln!(
            text,
            "ready       {}",
            if self.ready { "yes" } else { "no" }
        );
        for (i, missing) in self.missing.iter().enumerate() {
            let title = if i == 0 { "missing" } else { "" };
            for (j, line) in fold(missing, 66).into_iter().enumerate() {
                let _ = writeln!(text, "{:<12}{line}", if j == 0 { title } else { "" });
            }
        }
        let runs = self.ranges.chunk_by(|a, b| a.node == b.node);
        let ranges: Vec<String> = runs.map(RangeStatus::text).collect();
        for (i, line) in fold(&ranges.join(", "), 66).into_iter().enumerate() {
            let title = if i == 0 { "ranges" } else { "" };
            if !line.is_empty() {
                let _ = writeln!(text, "{title:<12}{line}");
            }
        }
        text.push_str("\ncomponent       pid  state          started     heartbeat\n");
        for one in &self.components {
            let _ = writeln!(
                text,
                "{:<10} {:>8}  {:<8} {:>13} {:>13}",
                one.component,
                one.pid,
                one.state,
                ago(one.started_s_ago),
                ago(one.heartbeat_s_ago)
            );
        }
        for one in &self.components {
            let _ = write!(text, "\n{}\n{}", one.component, counters(&one.meters));
        }
        for peer in &self.peers {
            let _ = write!(text, "\nnode {}\n{}", peer.node, counters(&peer.meters));
        }
        text
    }
}

/// Counters in two columns.
fn counters(meters: &[(String, Value)]) -> String {
    let mut text = String::new();
    for pair in meters.chunks(2) {
        let mut line = String::from(" ");
        for (name, value) in pair {
            let value = match value {
                Value::Count(count) => count.to_string(),
                Value::Float(float) => format!("{float:.6}"),
            };
            let _ = write!(line, " {name:<22} {value:>14} ");
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

impl RangeStatus {
    /// Neighbours on one node.
    fn text(run: &[Self]) -> String {
        let (Some(first), Some(last)) = (run.first(), run.last()) else {
            return String::new();
        };
        let which = match run.len() {
            1 => first.range.to_string(),
            _ => format!("{} to {}", first.range, last.range),
        };
        let epoch = run.iter().map(|one| one.epoch).max().unwrap_or(0);
        match first.node {
            None => format!("{which} not begun"),
            Some(node) => format!("{which} on node {node} (epoch {epoch})"),
        }
    }
}

/// Who streams which range; nothing where no streamer has worked on the buffer.
fn ranges(shared: &SharedWeights) -> Vec<RangeStatus> {
    let path = StreamState::path_beside(shared.path());
    let Ok(state) = StreamState::look(&path, shared.id(), shared.padded()) else {
        return Vec::new();
    };
    let status = |seen: crate::stream::RangeSeen| RangeStatus {
        range: seen.range,
        node: seen.master.map(|(node, _)| node),
        epoch: seen.master.map_or(0, |(_, epoch)| epoch),
        here: seen.here,
    };
    ranges_seen(&state).into_iter().map(status).collect()
}

/// `text` in lines of at most `width` characters, broken between words.
fn fold(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.last().map_or(0, |line| line.chars().count());
        if last > 0 && last + 1 + word.chars().count() > width {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}

fn ago(seconds: f64) -> String {
    match seconds {
        s if s < 100.0 => format!("{s:.1} s ago"),
        s if s < 6000.0 => format!("{:.0} min ago", s / 60.0),
        s => format!("{:.0} h ago", s / 3600.0),
    }
}

fn component(slot: &SlotInfo) -> ComponentStatus {
    let state = match (slot.pid, slot.alive) {
        (0, _) => "left",
        (_, false) => "died",
        (pid, true) if SolverWatch::is_stopped(pid) => "stopped",
        (_, true) => "runs",
    };
    ComponentStatus {
        component: format!("{} {}", slot.role, slot.index),
        pid: slot.pid,
        state,
        started_s_ago: since_unix(slot.started_unix_ns).as_secs_f64(),
        heartbeat_s_ago: since_unix(slot.heartbeat_unix_ns).as_secs_f64(),
        meters: meters(slot),
    }
}

/// Counters that hold the bits of a float say so in their names.
fn value(name: &str, word: u64) -> (String, Value) {
    match name.strip_suffix("_bits") {
        Some(name) => (name.to_owned(), Value::Float(f32::from_bits(word as u32))),
        None => (name.to_owned(), Value::Count(word)),
    }
}

fn meters(slot: &SlotInfo) -> Vec<(String, Value)> {
    let words = &slot.meters;
    let named: Vec<(&str, u64)> = match slot.role {
        Role::Stream => StreamMeter::ALL
            .iter()
            .map(|meter| (meter.name(), meter.of(words)))
            .collect(),
        Role::Solver => {
            let sync = SyncMeter::ALL.iter().map(|one| (one.name(), one.of(words)));
            SolverMeter::ALL
                .iter()
                .map(|meter| (meter.name(), meter.of(words)))
                // Only workers of the reliable path have them.
                .chain(sync.filter(|(_, count)| *count > 0))
                .collect()
        }
        Role::Gpu => GpuMeter::ALL
            .iter()
            .map(|meter| (meter.name(), meter.of(words)))
            .collect(),
        Role::Snapshot | Role::Other => Vec::new(),
    };
    let mut all: Vec<_> = named
        .into_iter()
        .map(|(name, word)| value(name, word))
        .collect();
    if slot.role == Role::Stream {
        all.extend(
            drops(words)
                .map(|(why, frames)| (format!("drop_{}", why.name()), Value::Count(frames))),
        );
    }
    all
}

fn peer((node, words): (u16, [u64; PEER_METERS])) -> PeerStatus {
    let meters = PeerMeter::ALL.iter();
    let meters = meters.map(|meter| value(meter.name(), meter.of(&words)));
    PeerStatus {
        node,
        meters: meters.collect(),
    }
}

fn nodes_of(mask: u64) -> String {
    let nodes = (0..64).filter(|node| mask & 1 << node != 0);
    let nodes: Vec<_> = nodes.map(|node: u32| node.to_string()).collect();
    nodes.join(", ")
}

fn missing(
    slots: &[SlotInfo],
    components: &[ComponentStatus],
    ready: bool,
    lacks_quorum: Option<(u64, u64)>,
) -> Vec<String> {
    let mut missing = Vec::new();
    let runs = |role: Role| slots.iter().any(|slot| slot.role == role && slot.alive);
    let ran = |role: Role| slots.iter().any(|slot| slot.role == role);
    if !runs(Role::Stream) && (ran(Role::Stream) || !ready) {
        missing.push("no streamer runs on this buffer (dogwild stream)".to_owned());
    }
    if !runs(Role::Solver) && !runs(Role::Gpu) {
        missing.push("no solver runs on this buffer (dogwild solver)".to_owned());
    }
    if let Some((heard, quorum)) = lacks_quorum {
        missing.push(format!(
            "solvers wait: {heard} of the {quorum} nodes of --quorum are heard, this one included"
        ));
    }
    for one in components {
        let waits = lacks_quorum.is_some() && one.component.starts_with("solver");
        match one.state {
            "died" => missing.push(format!("{} died (process {})", one.component, one.pid)),
            "stopped" => missing.push(format!(
                "{} is stopped (kill -CONT {} lets it go on)",
                one.component, one.pid
            )),
            "runs" if one.heartbeat_s_ago > BEAT_S && !waits => missing.push(format!(
                "{} has given no sign of life for {:.0} s",
                one.component, one.heartbeat_s_ago
            )),
            _ => {}
        }
    }
    let streams = slots
        .iter()
        .filter(|slot| slot.role == Role::Stream && slot.alive);
    for slot in streams {
        let mut add = |meter: StreamMeter, what: &str| match meter.of(&slot.meters) {
            0 => {}
            mask => missing.push(format!("{what} {}", nodes_of(mask))),
        };
        add(StreamMeter::SilentNodes, "nothing is heard of node(s)");
        add(
            StreamMeter::LongFramesLost,
            "short frames come, but none as long as the MTU allows (does the path carry it?), of node(s)",
        );
        add(
            StreamMeter::OldRanges,
            "positions do not come of the range of node(s)",
        );
        add(StreamMeter::StillNodes, "solvers stand still on node(s)");
        let differing = StreamMeter::DifferingChunks.of(&slot.meters);
        if differing > 0 {
            missing.push(format!(
                "{} held {differing} chunk(s) that differed from what their masters had sent; they were set right \
                 (its log names them)",
                slot.role
            ));
        }
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_fold_between_words() {
        assert_eq!(fold("one two three", 7), ["one two", "three"]);
        assert_eq!(fold("longword a", 3), ["longword", "a"]);
    }

    #[test]
    fn floats_are_shown_as_floats() {
        let bits = u64::from(0.25_f32.to_bits());
        assert_eq!(
            value("loss_bits", bits),
            ("loss".to_owned(), Value::Float(0.25))
        );
        assert_eq!(value("cycles", 3), ("cycles".to_owned(), Value::Count(3)));
    }

    #[test]
    fn every_counter_of_a_streamer_fits_into_80_columns() {
        let slot = SlotInfo {
            role: Role::Stream,
            index: 254,
            pid: u32::MAX,
            alive: false,
            started_unix_ns: 0,
            heartbeat_unix_ns: 0,
            meters: [99_999_999_999_999; crate::weights::METERS],
        };
        let components = vec![component(&slot)];
        let status = Status {
            buffer: "/dev/shm/x".into(),
            session: format!("{:016x}", u64::MAX),
            weights: 61_000_000,
            data: "digits 1x28x28/10".into(),
            iterations: u64::from(u32::MAX),
            local_iterations: u64::from(u32::MAX),
            target_iterations: u64::from(u32::MAX),
            ready: false,
            missing: missing(
                std::slice::from_ref(&slot),
                &components,
                false,
                Some((1, 255)),
            ),
            ranges: (0..255)
                .map(|range| RangeStatus {
                    range,
                    node: Some(254),
                    epoch: 0xff_ffff,
                    here: false,
                })
                .collect(),
            components,
            peers: vec![peer((254, [99_999_999_999_999; PEER_METERS]))],
        };
        let text = status.text();
        for meter in PeerMeter::ALL {
            let name = meter.name().trim_end_matches("_bits");
            assert!(text.contains(name), "{name} in\n{text}");
        }
        for meter in StreamMeter::ALL {
            assert!(text.contains(meter.name()), "{} in\n{text}", meter.name());
        }
        for reason in crate::wire::DropReason::ALL {
            assert!(text.contains(reason.name()), "{} in\n{text}", reason.name());
        }
        let longest = text.lines().map(|line| line.chars().count()).max();
        assert!(longest <= Some(80), "{text}");
        assert!(text.contains("stream 254 died"), "{text}");
    }
}

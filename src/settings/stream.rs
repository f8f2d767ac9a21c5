//! Settings of a streamer.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::Settings;
use super::choices::{DeltasName, DtypeName, MergeName};
use super::error::SettingsError;
use super::limits::{two, yes};
use super::link::{FaultSettings, TransportSettings, rate};
use crate::node::{StreamJob, Transport, TransportSpec};
use crate::stream::{Deltas, MAX_NODES, Merge};
use crate::weights::Writes;
use crate::wire::Dtype;

/// What `dogwild stream` is started with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamSettings {
    /// The node's buffer.
    pub buffer: PathBuf,
    /// This node, from 0. From `nodes` on: it joins the job later. None: the number that its buffer
    /// had before, else a free one of a job that runs.
    #[serde(default)]
    pub node: Option<u16>,
    /// Nodes that the job begins with, 1 to 255; the same everywhere.
    #[serde(default = "two")]
    pub nodes: u16,
    /// Whether it gives its ranges to other nodes when it is told to end.
    #[serde(default = "yes")]
    pub hand_over: bool,
    /// Whether it ends, as by SIGTERM, when its standard input ends.
    #[serde(default)]
    pub until_eof: bool,
    /// How to reach the others.
    #[serde(default)]
    pub transport: TransportSettings,
    /// Hosts of other nodes, with or without a port, where multicast does not reach them (udp).
    #[serde(default)]
    pub join: Vec<String>,
    /// How the stream behaves.
    #[serde(default)]
    pub stream: FlowSettings,
    /// What happens to received frames on purpose.
    #[serde(default)]
    pub faults: FaultSettings,
}

/// How a stream behaves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FlowSettings {
    /// What becomes of deltas whose frame is lost: `exactly-once` or `fire-and-forget`.
    #[serde(with = "DeltasName")]
    pub deltas: Deltas,
    /// How the work of several nodes becomes one: `mean` or `sum`.
    #[serde(with = "MergeName")]
    pub merge: Merge,
    /// Node numbers that there are, for the nodes of the beginning and for those that join; none:
    /// the next multiple of 16. The same everywhere.
    pub places: Option<u16>,
    /// Nodes that begin a new job; with fewer it waits. None: all `nodes`.
    pub min_nodes: Option<u16>,
    /// Nodes that must be heard, this one included, for solvers to go on; none: any number.
    pub quorum: Option<u16>,
    /// Nodes that master a part of the weights, the first so many; none: all. The same everywhere.
    pub masters: Option<u16>,
    /// How weights travel: `f32`, `bf16` or `int8`. The same everywhere.
    #[serde(with = "DtypeName")]
    pub precision: Dtype,
    /// Chunks that moved most go first.
    pub sparse: bool,
    /// Bytes per second that a node sends at most; none: what solvers and link leave.
    pub rate_bytes_per_s: Option<f64>,
    /// Bytes of positions on the way without an answer, at most; none: no limit.
    pub window_bytes: Option<f64>,
    /// Local writers add atomically.
    pub atomic: bool,
}

impl Default for FlowSettings {
    fn default() -> Self {
        Self {
            deltas: Deltas::ExactlyOnce,
            merge: Merge::Mean,
            places: None,
            min_nodes: None,
            quorum: None,
            masters: None,
            precision: Dtype::F32,
            sparse: false,
            rate_bytes_per_s: None,
            window_bytes: Some(2e6),
            atomic: false,
        }
    }
}

impl FlowSettings {
    /// Node numbers that there are in a job of `nodes`. Frames have room for 16 in any case.
    pub fn places_of(&self, nodes: u16) -> u16 {
        let next = nodes.saturating_add(15) / 16 * 16;
        self.places.unwrap_or(next.min(MAX_NODES).max(nodes))
    }

    /// What becomes of lost deltas, as it is written.
    pub fn deltas_name(&self) -> &'static str {
        match self.deltas {
            Deltas::ExactlyOnce => "exactly-once",
            Deltas::FireAndForget => "fire-and-forget",
        }
    }
}

impl Settings for StreamSettings {
    const COMPONENT: &str = "stream";

    fn validate(&self) -> Result<(), SettingsError> {
        let nodes = self.nodes;
        if !(1..=MAX_NODES).contains(&nodes) {
            let what = format!("{nodes}: give 1 to {MAX_NODES}");
            return Err(SettingsError::new("nodes", what));
        }
        let places = self.stream.places_of(nodes);
        if !(nodes..=MAX_NODES).contains(&places) {
            let what =
                format!("{places} for {nodes} nodes: give {nodes} to {MAX_NODES}, on all nodes");
            return Err(SettingsError::new("stream.places", what));
        }
        if let Some(node) = self.node.filter(|node| *node >= places) {
            let what = format!(
                "{node} of {places} places: nodes count from 0, and the first {nodes} begin the job"
            );
            return Err(SettingsError::new("node", what));
        }
        if let Some(least) = self.stream.min_nodes.filter(|n| !(1..=nodes).contains(n)) {
            let what = format!("{least} of {nodes} nodes: give 1 to {nodes}");
            return Err(SettingsError::new("stream.min_nodes", what));
        }
        if let Some(quorum) = self.stream.quorum.filter(|n| !(1..=places).contains(n)) {
            let what = format!("{quorum} of {places} places: give 1 to {places} nodes");
            return Err(SettingsError::new("stream.quorum", what));
        }
        self.transport.validate()?;
        let transport = self.transport.transport;
        if !self.join.is_empty() && transport != Transport::Udp {
            let what = format!(
                "goes with udp alone: frames of {} do not leave their own link",
                transport.name()
            );
            return Err(SettingsError::new("join", what));
        }
        if let Some(masters) = self.stream.masters.filter(|n| !(1..=nodes).contains(n)) {
            let what = format!("{masters} of {nodes} nodes: give 1 to {nodes}, on all nodes");
            return Err(SettingsError::new("stream.masters", what));
        }
        rate("stream.rate_bytes_per_s", self.stream.rate_bytes_per_s)?;
        rate("stream.window_bytes", self.stream.window_bytes)?;
        self.faults.validate()
    }
}

impl StreamSettings {
    /// What the streamer runs.
    pub fn job(self) -> StreamJob {
        StreamJob {
            node: self.node,
            nodes: self.nodes,
            places: self.stream.places_of(self.nodes),
            min_nodes: self.stream.min_nodes,
            quorum: self.stream.quorum,
            hand_over: self.hand_over,
            masters: self.stream.masters,
            transport: TransportSpec {
                join: self.join,
                ..self.transport.spec(&self.faults)
            },
            deltas: self.stream.deltas,
            merge: self.stream.merge,
            precision: self.stream.precision,
            sparse: self.stream.sparse,
            writes: if self.stream.atomic {
                Writes::Atomic
            } else {
                Writes::Racy
            },
            rate_bytes_per_s: self.stream.rate_bytes_per_s,
            window_bytes: self.stream.window_bytes,
            buffer: self.buffer,
        }
    }
}

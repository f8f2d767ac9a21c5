//! An experiment file: what is run, what is varied, what is compared.
//!
//! [`Experiment`] is the file as it was read; [`cells`](cells::cells) makes [`Cell`](cells::Cell)s
//! of it, each with one [`Setting`]. Invariants: a field that nothing reads is refused; a setting
//! that was made can be run. `docs/reference/experiment-file.md` lists the fields.

pub(crate) mod cells;
mod engine;
mod link;
mod read;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};
use dogwild::job::Pause;
use dogwild::settings::FlowSettings;
use serde::{Deserialize, Serialize};
use toml::Table;

pub(crate) use engine::Engine;
pub(crate) use link::{Link, LinkOf, Rate};
pub(crate) use read::read;

use crate::engine::{program, train};
use crate::report::input::{Paper, Quantity};

/// An experiment.
#[derive(Clone, Debug)]
pub(crate) struct Experiment {
    /// A line that says what it is.
    pub(crate) title: String,
    /// What it asks, for the head of the report.
    pub(crate) question: Option<String>,
    /// The figure of a paper that it belongs to.
    pub(crate) paper: Option<Paper>,
    /// What is drawn over the first thing that is varied, in addition to accuracy and time.
    pub(crate) figures: Vec<Quantity>,
    pub(crate) seeds: Vec<u64>,
    /// What is the same in all cells, but where they say otherwise.
    pub(crate) base: Setting,
    /// The same as it is written: only what the file has.
    table: Table,
    /// Settings that take several values. Entries are crossed, the fields of one go together.
    vary: Vec<Table>,
    /// Ways that are compared, each with a `name` and the settings that it differs in.
    compare: Vec<Table>,
    /// The file.
    pub(crate) source: String,
}

impl Experiment {
    /// The same on another engine, but for the ways that name their own; its file says so too.
    pub(crate) fn on(mut self, engine: Engine) -> Self {
        self.base.engine = engine;
        let name = toml::Value::String(engine.name().to_owned());
        self.table.insert("engine".to_owned(), name);
        let is_head = |line: &&str| !line.starts_with('[');
        let head = self.source.lines().take_while(is_head).count();
        let mut lines: Vec<&str> = self.source.lines().collect();
        let own = |line: &str| line.split('=').next().map(str::trim) == Some("engine");
        let line = format!("engine = \"{}\"", engine.name());
        match lines[..head].iter().position(|line| own(line)) {
            Some(at) => lines[at] = &line,
            None => lines.insert(0, &line),
        }
        self.source = lines.join("\n") + "\n";
        self
    }
}

/// Everything that one cell is run with.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Setting {
    pub(crate) engine: Engine,
    /// The program and its arguments, of the engine `program`.
    pub(crate) command: Vec<String>,
    /// Names of the command in addition to those that are always known, and their values.
    pub(crate) names: BTreeMap<String, String>,
    /// Figures, and the JSON pointer to each in what the program prints.
    pub(crate) figures_from: BTreeMap<String, String>,
    /// What a run takes, seconds, where it cannot be estimated.
    pub(crate) takes_s: Option<f64>,
    pub(crate) model: Model,
    pub(crate) stop: Stop,
    pub(crate) nodes: Nodes,
    /// Every way between two nodes.
    pub(crate) link: Link,
    /// Ways that differ from it.
    pub(crate) link_of: Vec<LinkOf>,
    pub(crate) stream: FlowSettings,
    /// Over the reliable path instead of the stream.
    pub(crate) poseidon: Option<Poseidon>,
}

/// The reliable path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Poseidon {
    /// As `--scheme` of `dogwild train`.
    pub(crate) scheme: String,
    pub(crate) servers: u16,
    /// Steps of others that a worker may miss.
    pub(crate) staleness: u16,
    /// TCP's congestion control, in a lab.
    pub(crate) congestion: String,
    /// Bytes of a KV pair, at most; none: as `dogwild train` has it.
    pub(crate) pair_bytes: Option<u64>,
}

/// What learns what.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Model {
    /// A built-in model or a solver file.
    pub(crate) solver: String,
    /// `digits`, `mnist`, `cifar10` (in the folder DOGWILD_DATA), or as `--data` of `train`.
    pub(crate) data: String,
    /// Test pictures of a test, whole hundreds.
    pub(crate) test_images: u32,
}

/// When it is tested, and when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Stop {
    /// Iterations of the whole cluster.
    pub(crate) iterations: u64,
    /// Iterations between tests.
    pub(crate) test_every: u64,
    /// Share of right answers whose time is told.
    pub(crate) target: Option<f64>,
    /// Ends with the first test at the target.
    pub(crate) at_target: bool,
}

/// The nodes and their solvers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Nodes {
    pub(crate) count: u16,
    /// Solvers on each.
    pub(crate) solvers: u16,
    /// Time of a step, ms.
    pub(crate) step_ms: f64,
    /// Share by which a step may take more or less.
    pub(crate) jitter: f64,
    /// File with the times of steps, ms, one a line, instead of `step_ms` and `jitter`.
    pub(crate) step_recording: Option<String>,
    /// Nodes that are slower.
    pub(crate) slow: Vec<Slow>,
    /// Nodes that stand still for a while.
    pub(crate) pauses: Vec<Pause>,
    /// Solvers shorten their steps when the loss rises.
    pub(crate) cautious: bool,
}

/// A slow node.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Slow {
    pub(crate) node: u16,
    /// How many times as long its steps take.
    pub(crate) times: f64,
}

impl Default for Poseidon {
    fn default() -> Self {
        Self {
            scheme: "hybcomm".to_owned(),
            servers: 1,
            staleness: 0,
            congestion: "cubic".to_owned(),
            pair_bytes: None,
        }
    }
}

impl Default for Model {
    fn default() -> Self {
        Self {
            solver: "lenet".to_owned(),
            data: "digits".to_owned(),
            test_images: 10_000,
        }
    }
}

impl Default for Stop {
    fn default() -> Self {
        Self {
            iterations: 900,
            test_every: 150,
            target: None,
            at_target: false,
        }
    }
}

impl Default for Nodes {
    fn default() -> Self {
        Self {
            count: 4,
            solvers: 1,
            step_ms: 10.0,
            jitter: 0.2,
            step_recording: None,
            slow: Vec::new(),
            pauses: Vec::new(),
            cautious: true,
        }
    }
}

impl Setting {
    /// Whether it can be run; what only files can tell is found when they are read.
    ///
    /// # Errors
    /// The field that cannot be, and what to do.
    pub(crate) fn validate(&self) -> Result<()> {
        let (nodes, stop) = (&self.nodes, &self.stop);
        within("nodes.count", nodes.count, 1, 255)?;
        within("nodes.solvers", nodes.solvers, 1, 64)?;
        within("nodes.step_ms", nodes.step_ms, 0.001, 1e6)?;
        within("nodes.jitter", nodes.jitter, 0.0, 1.0)?;
        within("model.test_images", self.model.test_images, 100, 10_000_000)?;
        within("stop.iterations", stop.iterations, 1, 1_000_000_000)?;
        within("stop.test_every", stop.test_every, 1, 1_000_000_000)?;
        within("stop.target", stop.target.unwrap_or(0.5), 0.0, 1.0)?;
        ensure!(
            stop.target.is_some() || !stop.at_target,
            "stop.at_target: there is no stop.target to stop at"
        );
        for slow in &nodes.slow {
            self.has_node("nodes.slow.node", slow.node)?;
            within("nodes.slow.times", slow.times, 0.001, 1e6)?;
        }
        for pause in &nodes.pauses {
            self.has_node("nodes.pauses.node", pause.node)?;
            within("nodes.pauses.from_s", pause.from_s, 0.0, 1e6)?;
            within("nodes.pauses.for_s", pause.for_s, 0.0, 1e6)?;
        }
        within("takes_s", self.takes_s.unwrap_or(1.0), 0.0, 1e7)?;
        self.validate_links()?;
        self.validate_stream()?;
        self.validate_engine()
    }

    fn validate_engine(&self) -> Result<()> {
        let of_programs = [
            ("command", !self.command.is_empty()),
            ("names", !self.names.is_empty()),
            ("figures_from", !self.figures_from.is_empty()),
        ];
        let given = of_programs.iter().find(|one| one.1);
        match (self.engine, given) {
            (Engine::Program, _) => program::validate(self),
            (_, Some((field, _))) => {
                bail!("{field}: only the engine program has it; write engine = \"program\" too")
            }
            (Engine::Sim, None) => {
                ensure!(
                    self.poseidon.is_none(),
                    "poseidon: virtual time has no TCP; write engine = \"lab\" too"
                );
                Ok(())
            }
            (Engine::Loopback | Engine::Lab, None) => train::validate(self),
        }
    }

    fn validate_links(&self) -> Result<()> {
        self.link.validate("link")?;
        for one in &self.link_of {
            self.has_node("link_of.from", one.from)?;
            self.has_node("link_of.to", one.to)?;
            ensure!(
                one.from != one.to,
                "link_of: from node {} to itself there is no link",
                one.from
            );
            one.over(&self.link).validate("link_of")?;
        }
        Ok(())
    }

    fn validate_stream(&self) -> Result<()> {
        let stream = &self.stream;
        if let Some(masters) = stream.masters {
            within("stream.masters", masters, 1, self.nodes.count)?;
        }
        for (field, value) in [
            ("stream.rate_bytes_per_s", stream.rate_bytes_per_s),
            ("stream.window_bytes", stream.window_bytes),
        ] {
            within(field, value.unwrap_or(1e6), 1e3, 1e12)?;
        }
        ensure!(
            !stream.atomic,
            "stream.atomic: in virtual time no writer races; leave it out"
        );
        let later = [
            ("stream.places", stream.places),
            ("stream.min_nodes", stream.min_nodes),
            ("stream.quorum", stream.quorum),
        ];
        for (field, value) in later {
            ensure!(
                value.is_none(),
                "{field}: all nodes of an experiment begin together; leave it out"
            );
        }
        Ok(())
    }

    fn has_node(&self, field: &str, node: u16) -> Result<()> {
        let count = self.nodes.count;
        ensure!(
            node < count,
            "{field} = {node}: there are {count} nodes, 0 to {}",
            count - 1
        );
        Ok(())
    }

    /// The same for cells that cannot differ: one node has no links and no stream.
    fn canonical(&self) -> Self {
        let mut same = self.clone();
        if self.nodes.count == 1 && self.engine != Engine::Program {
            (same.link, same.link_of) = (Link::default(), Vec::new());
            same.stream = FlowSettings::default();
        }
        same
    }
}

/// Refuses what lies outside.
fn within<N: PartialOrd + std::fmt::Display>(
    field: &str,
    value: N,
    least: N,
    most: N,
) -> Result<()> {
    if value >= least && value <= most {
        return Ok(());
    }
    bail!("{field} = {value}: give {least} to {most}");
}

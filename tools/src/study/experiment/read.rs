//! Reading an experiment file, with errors that say where and what was probably meant.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use dogwild::settings::FlowSettings;
use dogwild::solver::near;
use serde::{Deserialize, de::DeserializeOwned};
use toml::{Table, Value};

use super::{Engine, Experiment, Link, LinkOf, Model, Nodes, Poseidon, Setting, Stop};
use crate::report::input::{Paper, Quantity};

/// The file, field by field: so a wrong one is told with its line.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    title: String,
    question: Option<String>,
    paper: Option<Paper>,
    #[serde(default)]
    figures: Vec<Quantity>,
    #[serde(default)]
    engine: Engine,
    #[serde(default)]
    seeds: Seeds,
    #[serde(default)]
    vary: Vec<Table>,
    #[serde(default)]
    compare: Vec<Table>,
    #[serde(default)]
    command: Vec<String>,
    #[serde(default)]
    names: BTreeMap<String, String>,
    #[serde(default)]
    figures_from: BTreeMap<String, String>,
    takes_s: Option<f64>,
    #[serde(default)]
    model: Model,
    #[serde(default)]
    stop: Stop,
    #[serde(default)]
    nodes: Nodes,
    #[serde(default)]
    link: Link,
    #[serde(default)]
    link_of: Vec<LinkOf>,
    #[serde(default)]
    stream: FlowSettings,
    poseidon: Option<Poseidon>,
}

/// Fields of a file that are not settings of a cell.
const HEAD: [&str; 7] = [
    "title", "question", "paper", "figures", "seeds", "vary", "compare",
];

/// Seeds: `seeds = 5` or `seeds = [1, 2, 8]`.
#[derive(Deserialize)]
#[serde(untagged, expecting = "seeds: give a number of them, or a list")]
enum Seeds {
    /// So many, from 1 on.
    Count(u32),
    /// The numbers themselves.
    List(Vec<u64>),
}

impl Default for Seeds {
    fn default() -> Self {
        Self::Count(5)
    }
}

impl Seeds {
    fn list(self) -> Result<Vec<u64>> {
        let seeds: Vec<u64> = match self {
            Self::Count(count) => (1..=u64::from(count)).collect(),
            Self::List(list) => list,
        };
        ensure!(
            (1..=1000).contains(&seeds.len()),
            "seeds: {} of them; give 1 to 1000",
            seeds.len()
        );
        let mut sorted = seeds.clone();
        sorted.sort_unstable();
        match sorted.windows(2).find(|two| two[0] == two[1]) {
            Some(two) => bail!("seeds: {} stands there twice", two[0]),
            None => Ok(seeds),
        }
    }
}

/// Reads an experiment file.
///
/// # Errors
/// The file cannot be read, or is none; which field, on which line.
pub(crate) fn read(path: &Path) -> Result<Experiment> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the experiment {}", path.display()))?;
    parse(&text).with_context(|| format!("the experiment {}", path.display()))
}

/// Reads the text of an experiment file.
pub(super) fn parse(text: &str) -> Result<Experiment> {
    let file: File = toml::from_str(text).map_err(told)?;
    let mut table: Table = text.parse().map_err(told)?;
    table.retain(|key, _| !HEAD.contains(&key));
    Ok(Experiment {
        title: file.title,
        question: file.question,
        paper: file.paper,
        figures: file.figures,
        seeds: file.seeds.list()?,
        base: Setting {
            engine: file.engine,
            command: file.command,
            names: file.names,
            figures_from: file.figures_from,
            takes_s: file.takes_s,
            model: file.model,
            stop: file.stop,
            nodes: file.nodes,
            link: file.link,
            link_of: file.link_of,
            stream: file.stream,
            poseidon: file.poseidon,
        },
        table,
        vary: file.vary,
        compare: file.compare,
        source: text.to_owned(),
    })
}

/// A setting from a table that was put together.
pub(super) fn setting<T: DeserializeOwned>(table: Table) -> Result<T> {
    Value::Table(table).try_into().map_err(told)
}

/// What is wrong, with the name that was probably meant.
fn told(error: toml::de::Error) -> anyhow::Error {
    let said = error.to_string();
    let said = said.trim_end();
    // "unknown field `lss`, expected one of `loss`, `rate`"
    let list = said.rfind("unknown ").map_or("", |at| &said[at..]);
    let mut names = list.split('`').skip(1).step_by(2);
    let hint = names
        .next()
        .map_or_else(String::new, |wrong| near::hint(wrong, names));
    anyhow::anyhow!("{said}{hint}")
}

/// Puts `patch` over `table`: tables go into each other, everything else is replaced.
pub(super) fn overlay(table: &mut Table, patch: &Table) {
    for (key, value) in patch {
        match (table.get_mut(key), value) {
            (Some(Value::Table(below)), Value::Table(above)) => overlay(below, above),
            _ => {
                table.insert(key.clone(), value.clone());
            }
        }
    }
}

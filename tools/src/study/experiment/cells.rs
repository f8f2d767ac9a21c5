//! The cells of an experiment: each way at each combination of what is varied.

use anyhow::{Context, Result, bail, ensure};
use dogwild::cli::args;
use dogwild::solver::near;
use toml::{Table, Value};

use super::read::{overlay, setting};
use super::{Experiment, Setting};
use crate::engine::program;
use crate::report::input::AxisValue;

/// More cells are a mistake in a grid.
const CELLS_MAX: usize = 10_000;

/// One combination.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    /// Its name, and its folder.
    pub(crate) id: String,
    /// Which of the ways.
    pub(crate) way: usize,
    /// Its value on each axis; empty: the way is the same at all of them.
    pub(crate) at: Vec<AxisValue>,
    pub(crate) setting: Setting,
}

/// All of them, and what their places mean.
#[derive(Clone, Debug)]
pub(crate) struct Cells {
    /// What is varied.
    pub(crate) axes: Vec<String>,
    /// What is compared; one without a name if nothing is.
    pub(crate) ways: Vec<String>,
    pub(crate) cells: Vec<Cell>,
}

/// An entry of `vary`.
struct Axis {
    name: String,
    /// Each with what it sets.
    values: Vec<(AxisValue, Table)>,
}

/// The cells of an experiment, in the order of the file.
///
/// # Errors
/// An entry of `vary` or `compare` that cannot be; which one, and why.
pub(crate) fn cells(experiment: &Experiment) -> Result<Cells> {
    experiment.base.validate()?;
    let axes: Vec<Axis> = experiment.vary.iter().map(axis).collect::<Result<_>>()?;
    let ways = ways(experiment)?;
    for axis in &axes {
        for (value, patch) in &axis.values {
            // Alone, so that the error names it.
            try_patch(experiment, &[patch])
                .with_context(|| format!("[[vary]] {} = {}", axis.name, value.label))?;
        }
    }
    for (name, patch) in &ways {
        try_patch(experiment, &[patch]).with_context(|| format!("[[compare]] {name}"))?;
    }
    let combinations = combinations(&axes);
    ensure!(
        combinations.len() * ways.len() <= CELLS_MAX,
        "{} cells: give {CELLS_MAX} at most",
        combinations.len() * ways.len()
    );
    let mut all = Vec::new();
    for (way, (name, patch)) in ways.iter().enumerate() {
        let mut cells = Vec::new();
        for combination in &combinations {
            cells.push(cell(experiment, &axes, combination, (way, name, patch))?);
        }
        distinct(&cells)?;
        let first = cells[0].setting.canonical();
        if cells.iter().all(|cell| cell.setting.canonical() == first) && cells.len() > 1 {
            cells.truncate(1);
            cells[0].id = id(name, &[]);
            cells[0].at = Vec::new();
        }
        all.append(&mut cells);
    }
    let axes = axes.into_iter().map(|axis| axis.name).collect();
    let ways = ways.into_iter().map(|(name, _)| name).collect();
    distinct(&all)?;
    Ok(Cells {
        axes,
        ways,
        cells: all,
    })
}

impl Cells {
    /// Only the cells whose name is `only`, or has it in it.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn only(mut self, only: &str) -> Result<Self> {
        let known: Vec<String> = self.cells.iter().map(|cell| cell.id.clone()).collect();
        let whole = known.iter().any(|id| id == only);
        self.cells.retain(|cell| {
            if whole {
                cell.id == only
            } else {
                cell.id.contains(only)
            }
        });
        if self.cells.is_empty() {
            let known = || known.iter().map(String::as_str);
            let hint = near::hint(only, known());
            let known: Vec<&str> = known().take(8).collect();
            bail!(
                "--only {only}: no cell is named so{hint}; there are {}",
                known.join(", ")
            );
        }
        Ok(self)
    }
}

/// The values of each axis: the last one changes first.
fn combinations(axes: &[Axis]) -> Vec<Vec<usize>> {
    axes.iter().fold(vec![Vec::new()], |all, axis| {
        let with = |one: &Vec<usize>| -> Vec<Vec<usize>> {
            (0..axis.values.len())
                .map(|value| [one.as_slice(), &[value]].concat())
                .collect()
        };
        all.iter().flat_map(with).collect()
    })
}

fn cell(
    experiment: &Experiment,
    axes: &[Axis],
    combination: &[usize],
    (way, name, patch): (usize, &str, &Table),
) -> Result<Cell> {
    let values = axes.iter().zip(combination);
    let values: Vec<_> = values.map(|(axis, value)| &axis.values[*value]).collect();
    let at: Vec<AxisValue> = values.iter().map(|(value, _)| value.clone()).collect();
    let named: Vec<_> = axes
        .iter()
        .map(|axis| axis.name.as_str())
        .zip(&at)
        .collect();
    let id = id(name, &named);
    let mut patches: Vec<&Table> = values.iter().map(|(_, patch)| patch).collect();
    patches.push(patch);
    let setting = try_patch(experiment, &patches)
        .and_then(|setting| program::validate_names(&setting).map(|()| setting))
        .with_context(|| format!("the cell {id}"))?;
    Ok(Cell {
        id,
        way,
        at,
        setting,
    })
}

fn try_patch(experiment: &Experiment, patches: &[&Table]) -> Result<Setting> {
    let mut table = experiment.table.clone();
    for patch in patches {
        overlay(&mut table, patch);
    }
    let setting: Setting = setting(table)?;
    setting.validate()?;
    Ok(setting)
}

/// Names and patches.
fn ways(experiment: &Experiment) -> Result<Vec<(String, Table)>> {
    if experiment.compare.is_empty() {
        return Ok(vec![(String::new(), Table::new())]);
    }
    let mut ways: Vec<(String, Table)> = Vec::new();
    for entry in &experiment.compare {
        let mut patch = entry.clone();
        let Some(Value::String(name)) = patch.remove("name") else {
            bail!("[[compare]]: an entry has no name; write name = \"...\"");
        };
        ensure!(
            ways.iter().all(|(other, _)| *other != name),
            "[[compare]]: two entries are named {name}"
        );
        ways.push((name, patch));
    }
    Ok(ways)
}

/// An entry of `vary`: `link.loss = [0, 0.1]`, with others of as many values, and `name` and
/// `labels` for the report. A label or number that is not given is that of the field that `name`
/// names, or else of the first in the order of the alphabet.
fn axis(entry: &Table) -> Result<Axis> {
    let mut entry = entry.clone();
    let (labels, given) = (entry.remove("labels"), entry.remove("name"));
    let mut fields = Vec::new();
    lists(&mut Vec::new(), &entry, &mut fields)?;
    let named =
        |field: &&(String, Vec<Value>)| given.as_ref().and_then(Value::as_str) == Some(&field.0);
    let Some((name, first)) = fields.iter().find(named).or(fields.first()) else {
        bail!("[[vary]]: an entry is empty; write for example link.loss = [0, 0.1]");
    };
    let name = match &given {
        Some(Value::String(given)) => given,
        Some(other) => bail!("[[vary]] name = {other}: give a text"),
        None => name,
    };
    for (field, values) in &fields {
        ensure!(!values.is_empty(), "[[vary]] {field}: the list is empty");
        ensure!(
            values.len() == first.len(),
            "[[vary]] {name} has {} values and {field} {}: in one entry they go together",
            first.len(),
            values.len()
        );
    }
    let labels = match labels {
        Some(labels) => texts(labels).context("[[vary]] labels")?,
        None => first.iter().map(label).collect(),
    };
    ensure!(
        labels.len() == first.len(),
        "[[vary]] {name} has {} values and {} labels",
        first.len(),
        labels.len()
    );
    let value = |(i, label): (usize, String)| {
        let mut patch = Table::new();
        for (field, values) in &fields {
            insert(&mut patch, field, values[i].clone());
        }
        let number = number(&first[i]);
        (AxisValue { label, number }, patch)
    };
    Ok(Axis {
        name: name.clone(),
        values: labels.into_iter().enumerate().map(value).collect(),
    })
}

/// The fields of `table` that are lists, with their whole names.
fn lists(
    path: &mut Vec<String>,
    table: &Table,
    found: &mut Vec<(String, Vec<Value>)>,
) -> Result<()> {
    for (key, value) in table {
        path.push(key.clone());
        match value {
            Value::Table(inner) => lists(path, inner, found)?,
            Value::Array(values) => found.push((path.join("."), values.clone())),
            other => bail!(
                "[[vary]] {} = {other}: give a list of values, as [{other}]",
                path.join(".")
            ),
        }
        path.pop();
    }
    Ok(())
}

fn insert(table: &mut Table, field: &str, value: Value) {
    match field.split_once('.') {
        None => {
            table.insert(field.to_owned(), value);
        }
        Some((first, rest)) => {
            let inner = table
                .entry(first)
                .or_insert_with(|| Value::Table(Table::new()));
            if let Value::Table(inner) = inner {
                insert(inner, rest, value);
            }
        }
    }
}

fn texts(value: Value) -> Result<Vec<String>> {
    let Value::Array(values) = value else {
        bail!("{value} is not a list of texts");
    };
    let text = |value| match value {
        Value::String(text) => Ok(text),
        other => bail!("{other} is not a text"),
    };
    values.into_iter().map(text).collect()
}

/// A value as a person writes it.
fn label(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(number) => Some(*number as f64),
        Value::Float(number) => Some(*number),
        Value::String(text) => args::bytes(text).ok(),
        _ => None,
    }
}

/// A name that can be a folder's.
fn id(way: &str, at: &[(&str, &AxisValue)]) -> String {
    let at = at
        .iter()
        .map(|(axis, value)| format!("{axis}={}", value.label));
    let way = Some(way.to_owned()).filter(|way| !way.is_empty());
    let parts: Vec<String> = way.into_iter().chain(at).collect();
    if parts.is_empty() {
        return "all".to_owned();
    }
    let text = parts.join(",").replace(" %", "pct").replace('%', "pct");
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || "._=,+-".contains(c) {
            c
        } else {
            '-'
        }
    };
    let id: String = text.chars().map(plain).collect();
    id.trim_start_matches('.').to_owned()
}

/// Two cells of one name would write into one folder.
fn distinct(cells: &[Cell]) -> Result<()> {
    let mut ids: Vec<&str> = cells.iter().map(|cell| cell.id.as_str()).collect();
    ids.sort_unstable();
    match ids.windows(2).find(|two| two[0] == two[1]) {
        Some(two) => bail!(
            "two cells are named {}: a value stands twice in [[vary]], or its labels are alike",
            two[0]
        ),
        None => Ok(()),
    }
}

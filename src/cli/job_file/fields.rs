//! Which fields a job file may have: those of the command `train`, but for what says how to run a
//! job rather than which.

use clap::{Arg, ArgAction, Command};

use crate::solver::near;

/// Arguments that are no part of a job.
const NOT_OF_A_JOB: [&str; 4] = ["help", "resume", "overwrite", "save_job"];

/// Tables of a job file in order, each with how its heading in `--help` begins; the first has none.
const TABLES: [(&str, &str); 5] = [
    ("", ""),
    ("transport", "Transport"),
    ("stream", "Stream"),
    ("faults", "Faults"),
    ("poseidon", "Reliable path"),
];
/// Arguments of the reliable path that stand under no heading.
const OF_POSEIDON: [&str; 4] = ["overlap", "threads_per_worker", "bandwidth", "slow"];
/// Read by both paths, each with a meaning of its own.
const QUORUM: &str = "quorum";

/// A field.
#[derive(Clone, Debug)]
pub(super) struct Field {
    /// The table that it stands in; empty: none.
    pub(super) table: &'static str,
    /// The name of its argument.
    pub(super) id: String,
    /// It is true or false, and no value of its own.
    pub(super) switch: bool,
    /// It may have several values.
    pub(super) repeats: bool,
    /// What `--help` says.
    pub(super) help: String,
}

/// All fields, in the order of their tables.
pub(super) struct Fields(pub(super) Vec<Field>);

impl Fields {
    /// Those that the arguments of `command` make.
    pub(super) fn of(command: &Command) -> Self {
        let args = command.get_arguments();
        let args = args.filter(|arg| !NOT_OF_A_JOB.contains(&arg.get_id().as_str()));
        let mut all: Vec<Field> = args.map(field).collect();
        let order = |field: &Field| TABLES.iter().position(|(table, _)| *table == field.table);
        all.sort_by_key(order);
        Self(all)
    }

    /// The field `id` of a table.
    ///
    /// # Errors
    /// There is none, with the one that was probably meant.
    pub(super) fn find(&self, table: &str, id: &str) -> Result<&Field, String> {
        let same = |field: &&Field| field.id == id;
        let found = self.0.iter().find(same);
        match found {
            Some(field) if field.table == table => Ok(field),
            Some(field) if id == QUORUM && table == "stream" => Ok(field),
            Some(field) if field.table.is_empty() => Err(format!(
                "field `{id}` stands above all tables, and not in [{table}]"
            )),
            Some(field) => Err(format!("field `{id}` belongs into [{}]", field.table)),
            None if NOT_OF_A_JOB.contains(&id) => Err(format!(
                "`{id}` says how to run a job, and not which: give it as a flag"
            )),
            None => {
                let ids = self.0.iter().map(|field| field.id.as_str());
                let tables = TABLES.iter().skip(1).map(|(table, _)| *table);
                let known = ids.chain(tables.filter(|_| table.is_empty()));
                let place = match table {
                    "" => String::new(),
                    table => format!(" in [{table}]"),
                };
                Err(format!(
                    "unknown field `{id}`{place}{}",
                    near::hint(id, known)
                ))
            }
        }
    }

    /// Whether there is a table of that name.
    ///
    /// # Errors
    /// There is none, with the one that was probably meant.
    pub(super) fn find_table(&self, name: &str) -> Result<(), String> {
        let known = || TABLES.iter().skip(1).map(|(table, _)| *table);
        if known().any(|table| table == name) {
            return Ok(());
        }
        if self.0.iter().any(|field| field.id == name) {
            return Err(format!("field `{name}` is a value, and not a table"));
        }
        Err(format!(
            "unknown table [{name}]{}",
            near::hint(name, known())
        ))
    }
}

fn field(arg: &Arg) -> Field {
    let id = arg.get_id().to_string();
    let heading = arg.get_help_heading().unwrap_or("");
    let mut tables = TABLES.iter().skip(1);
    let found = tables.find(|(_, begins)| heading.starts_with(begins));
    let table = match found {
        Some((table, _)) => table,
        None if OF_POSEIDON.contains(&id.as_str()) => "poseidon",
        None => "",
    };
    let help = arg.get_help().map(ToString::to_string);
    Field {
        table,
        id,
        switch: matches!(arg.get_action(), ArgAction::SetTrue),
        repeats: matches!(arg.get_action(), ArgAction::Append),
        help: help.unwrap_or_default(),
    }
}

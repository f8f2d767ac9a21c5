//! Job files: the arguments of `dogwild train` as TOML, and what the user adds by flags.
//!
//! Reads files, the environment of this process for `${NAME}`, and nothing else. Invariants: a
//! field is a flag with `_` for `-`, in the table that `--help` has as a heading; what a file says,
//! flags say over; everything that is wrong is told at once, with its line.
//! `docs/reference/job-file.md` lists the fields.

mod fields;
mod problem;
mod read;
mod write;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context, Result};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Command, FromArgMatches};

use self::fields::Fields;
pub(super) use self::problem::{Problem, Problems};
use self::read::Given;
pub(super) use self::write::{save, show};
use super::explicit::Explicit;
use super::parse::with_negative_numbers;
use super::train::Args;
use super::train_poseidon::Sync;

/// A file of fields, as far as they could be read.
pub(super) struct JobFile {
    /// Its name as the user gave it.
    name: String,
    given: Vec<Given>,
    problems: Vec<Problem>,
}

/// Where the value of a field comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Default,
    /// Its line.
    File(usize),
    /// Its line, and the variables that are in its value.
    Environment(usize, Vec<String>),
    Flag,
}

/// A job as it was asked for: by a file, flags, or both.
pub(super) struct Job {
    /// The arguments, as if all had been flags.
    pub(super) args: Explicit<Args>,
    matches: ArgMatches,
    name: String,
    given: Vec<Given>,
    by_flag: Vec<String>,
}

/// The command whose flags are fields.
fn command() -> Command {
    let command = Command::new("dogwild train").no_binary_name(true);
    with_negative_numbers(<Explicit<Args> as clap::Args>::augment_args(command))
}

impl JobFile {
    /// Reads the file at `path`; what is wrong in it is kept for [`Self::job`] to tell.
    ///
    /// # Errors
    /// There is no such file, or it is not text.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).with_context(|| {
            format!("cannot read the job file {name} (`dogwild train --save-job FILE` writes one)")
        })?;
        let environment = |name: &str| std::env::var(name).ok();
        Ok(Self::parse(name, &text, &environment))
    }

    fn parse(name: String, text: &str, environment: &dyn Fn(&str) -> Option<String>) -> Self {
        let command = command();
        let fields = Fields::of(&command);
        let (given, mut problems) = read::fields(text, &fields, environment);
        for one in &given {
            problems.extend(one.refusal(&command));
        }
        problems.sort_by_key(|problem| problem.line);
        Self {
            name,
            given,
            problems,
        }
    }

    /// The job of this file with the user's `flags` over it.
    ///
    /// # Errors
    /// All that is wrong in the file; then what is wrong with the flags, or with both together.
    pub(super) fn job(&self, flags: &[OsString]) -> Result<Job, Problems> {
        let by_flag = named(flags);
        let mut words: Vec<OsString> = Vec::new();
        for one in &self.given {
            if !by_flag.contains(&one.id) {
                words.extend(one.words().map(OsString::from));
            }
        }
        words.extend(flags.iter().cloned());
        let used = self.given.iter().filter(|one| !by_flag.contains(&one.id));
        let mut problems = self.problems.clone();
        problems.extend(used.filter_map(Given::lack));
        if !problems.is_empty() {
            problems.sort_by_key(|problem| problem.line);
            return Err(self.problems(problems));
        }
        let matches = match command().try_get_matches_from(words) {
            Ok(matches) => matches,
            Err(error) if error.kind() == ErrorKind::DisplayHelp => error.exit(),
            Err(error) => return Err(self.problems(vec![self.place(&problem::said(&error))])),
        };
        let args = Explicit::from_arg_matches(&matches);
        let args = args.map_err(|error| self.problems(vec![self.place(&problem::said(&error))]))?;
        Ok(Job {
            args,
            matches,
            name: self.name.clone(),
            given: self.given.clone(),
            by_flag,
        })
    }

    fn problems(&self, all: Vec<Problem>) -> Problems {
        Problems {
            file: self.name.clone(),
            all,
        }
    }

    /// What an error that names flags says of this file.
    fn place(&self, text: &str) -> Problem {
        Problem::place(text, &self.given)
    }
}

/// The fields that `flags` set, as far as they can be told before all is known.
fn named(flags: &[OsString]) -> Vec<String> {
    let parsed = command().ignore_errors(true).try_get_matches_from(flags);
    let Ok(matches) = parsed else {
        // A wish for help; whatever else is wrong is told with the whole.
        return Vec::new();
    };
    let given = |id: &&str| matches.value_source(id) == Some(ValueSource::CommandLine);
    let ids = matches.ids().map(clap::Id::as_str);
    ids.filter(given).map(str::to_owned).collect()
}

impl Job {
    /// Where the value of the argument `id` comes from.
    pub(super) fn origin(&self, id: &str) -> Origin {
        if self.by_flag.iter().any(|flag| flag == id) {
            return Origin::Flag;
        }
        match self.given.iter().find(|one| one.id == id) {
            Some(one) if one.variables.is_empty() => Origin::File(one.line),
            Some(one) => Origin::Environment(one.line, one.variables.clone()),
            None => Origin::Default,
        }
    }

    /// Takes the number of nodes from what started this process.
    ///
    /// # Errors
    /// The file or a flag says another one.
    pub(super) fn set_size(&mut self, size: u16, by: &str) -> Result<(), Problems> {
        let args = &mut self.args.args;
        let (name, nodes, said) = match args.sync {
            Sync::Stream => {
                let nodes = size.saturating_sub(u16::from(args.tester)).max(1);
                ("nodes", nodes, &mut args.nodes)
            }
            Sync::Poseidon => ("workers", size, &mut args.poseidon.cluster.workers),
        };
        let before = std::mem::replace(said, nodes);
        if before == nodes || self.origin(name) == Origin::Default {
            return Ok(());
        }
        Err(self.refused(&format!(
            "--{name} {before}, but {by} has started {size}: leave it out, or start as many"
        )))
    }

    /// Refuses the job for a reason that names flags.
    pub(super) fn refused(&self, why: &str) -> Problems {
        Problems {
            file: self.name.clone(),
            all: vec![Problem::place(why, &self.given)],
        }
    }

    /// All values but those of `apart`, by field: what nodes of one job have in common.
    pub(super) fn values(&self, apart: &[&str]) -> BTreeMap<String, String> {
        let fields = Fields::of(&command());
        let fields = fields
            .0
            .into_iter()
            .filter(|field| !apart.contains(&field.id.as_str()));
        let value = |id: &str| {
            let raw = self.matches.get_raw(id).into_iter().flatten();
            let values: Vec<_> = raw.map(|raw| raw.to_string_lossy().into_owned()).collect();
            values.join(" ")
        };
        fields
            .map(|field| (field.id.clone(), value(&field.id)))
            .collect()
    }

    /// What is wrong with the job, as one error that names the lines of its file.
    ///
    /// # Errors
    /// There is something.
    pub(super) fn check(&self) -> Result<(), Problems> {
        let wrong = self.args.problems();
        if wrong.is_empty() {
            return Ok(());
        }
        let told = wrong.iter().map(|error| {
            let told = dogwild_lab::out::told(&**error).to_string();
            Problem::place(&told, &self.given)
        });
        Err(Problems {
            file: self.name.clone(),
            all: told.collect(),
        })
    }
}

#[cfg(test)]
mod tests;

//! Arguments, with which of them the user gave: a default is not an answer.

use clap::parser::ValueSource;
use clap::{ArgMatches, Command, Error, FromArgMatches, Id};

/// Arguments, and how they were found.
#[derive(Debug)]
pub(super) struct Explicit<A> {
    pub(super) args: A,
    matches: ArgMatches,
}

impl<A> Explicit<A> {
    /// Whether the user gave the argument (by its id, as `no_segmentation`).
    pub(super) fn has(&self, id: &str) -> bool {
        self.matches.value_source(id) == Some(ValueSource::CommandLine)
    }

    /// How all arguments were found.
    pub(super) fn matches(&self) -> &ArgMatches {
        &self.matches
    }

    /// The flags of a group of arguments (or of a struct of them, by its name) that the user gave.
    pub(super) fn flags_of(&self, group: &str) -> impl Iterator<Item = String> {
        let ids = self.matches.get_many::<Id>(group).into_iter().flatten();
        ids.map(|id| format!("--{}", id.as_str().replace('_', "-")))
    }
}

impl<A: clap::Args> clap::Args for Explicit<A> {
    fn augment_args(command: Command) -> Command {
        A::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        A::augment_args_for_update(command)
    }
}

impl<A: FromArgMatches> FromArgMatches for Explicit<A> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        Ok(Self {
            args: A::from_arg_matches(matches)?,
            matches: matches.clone(),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

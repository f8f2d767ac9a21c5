//! What a component is started with: flags of its own, or its settings whole from a file.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use clap::{Arg, ArgMatches, Command, Error, FromArgMatches, Id, value_parser};

use crate::settings::{Settings, SettingsError, from_json};

/// Flags that make settings.
pub trait Flags: clap::Args {
    /// What they make.
    type Settings: Settings;

    /// The settings as they were given.
    ///
    /// # Errors
    /// A value that this component cannot take.
    fn settings(self) -> Result<Self::Settings>;
}

/// The arguments of a component: its flags, or `--settings FILE` alone.
#[derive(Debug)]
pub enum Given<A> {
    /// The flags of the component.
    Flags(A),
    /// A file of settings; `-`: standard input.
    File(PathBuf),
}

impl<A: Flags> Given<A> {
    /// The settings, validated.
    ///
    /// # Errors
    /// The first that cannot be, as the user gave it: by flag, or by file and field.
    pub(super) fn settings(self) -> Result<A::Settings> {
        match self {
            Self::Flags(flags) => {
                let settings = flags.settings()?;
                settings.validate().map_err(|error| by_flag(&error))?;
                Ok(settings)
            }
            Self::File(file) => from_json(&read(&file)?).with_context(|| shown(&file)),
        }
    }
}

/// Stands for standard input.
const STDIN: &str = "-";

/// The name of a file of settings in messages.
pub(super) fn shown(file: &Path) -> String {
    if file == Path::new(STDIN) {
        return "settings on standard input".to_owned();
    }
    file.display().to_string()
}

/// The text of a file of settings.
fn read(file: &Path) -> Result<String> {
    if file == Path::new(STDIN) {
        let mut text = String::new();
        std::io::stdin()
            .read_to_string(&mut text)
            .context("cannot read settings from standard input")?;
        return Ok(text);
    }
    std::fs::read_to_string(file)
        .with_context(|| format!("cannot read the settings {}", file.display()))
}

/// `error`, about the flag that sets the field.
pub(super) fn by_flag(error: &SettingsError) -> anyhow::Error {
    let field = error.field.rsplit('.').next().unwrap_or(error.field);
    // Flags take units, fields have them in their names.
    let name = match field {
        "rate_bytes_per_s" => "rate",
        "chunk_weights" => "chunk",
        "window_bytes" => "window",
        "pace_bytes_per_s" => "pace",
        "delay_ms" => "delay",
        "bandwidth_bytes_per_s" => "bandwidth",
        other => other,
    };
    anyhow!("--{} {}", name.replace('_', "-"), error.what)
}

impl<A: clap::Args> clap::Args for Given<A> {
    fn augment_args(command: Command) -> Command {
        let before: Vec<Id> = ids(&command);
        let command = A::augment_args(command);
        let own = ids(&command).into_iter().filter(|id| !before.contains(id));
        let settings = Arg::new("settings")
            .long("settings")
            .value_name("FILE")
            .help("Take all settings from this JSON file (-: standard input) instead of flags")
            .help_heading(None::<&str>)
            .value_parser(value_parser!(PathBuf))
            .conflicts_with_all(own);
        let label = Arg::new("label")
            .long("label")
            .value_name("WORDS")
            .help("What the process is, for ps; nothing reads it")
            .help_heading(None::<&str>)
            .num_args(1..)
            .hide(true);
        command.arg(settings).arg(label)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn ids(command: &Command) -> Vec<Id> {
    command
        .get_arguments()
        .map(|arg| arg.get_id().clone())
        .collect()
}

impl<A: FromArgMatches> FromArgMatches for Given<A> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        match matches.get_one::<PathBuf>("settings") {
            Some(file) => Ok(Self::File(file.clone())),
            None => A::from_arg_matches(matches).map(Self::Flags),
        }
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;

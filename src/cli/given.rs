//! What a component is started with: flags of its own, or its settings whole from a file.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use clap::{Arg, ArgMatches, Command, Error, FromArgMatches, Id, value_parser};

use crate::job::metrics::{Serving, Told, serve};
use crate::settings::{Settings, SettingsError, from_json};

/// Flags that make settings.
pub trait Flags: clap::Args {
    /// What they make.
    type Settings: Settings;
    /// Whether there are counters of the component to serve.
    const METRICS: bool = true;

    /// The settings as they were given.
    ///
    /// # Errors
    /// A value that this component cannot take.
    fn settings(self) -> Result<Self::Settings>;
}

/// The arguments of a component: its flags, or `--settings FILE` alone; and where its counters are
/// served.
#[derive(Debug)]
pub struct Given<A> {
    pub(super) from: From<A>,
    metrics: Option<String>,
}

/// Where settings come from.
#[derive(Debug)]
pub enum From<A> {
    /// The flags of the component.
    Flags(A),
    /// A file of settings; `-`: standard input.
    File(PathBuf),
}

impl<A: Flags> Given<A> {
    /// Where its counters are to be served.
    pub(super) fn metrics(&self) -> Metrics {
        Metrics(self.metrics.clone())
    }

    /// The settings, validated.
    ///
    /// # Errors
    /// The first that cannot be, as the user gave it: by flag, or by file and field.
    pub(super) fn settings(self) -> Result<A::Settings> {
        match self.from {
            From::Flags(flags) => {
                let settings = flags.settings()?;
                settings.validate().map_err(|error| by_flag(&error))?;
                Ok(settings)
            }
            From::File(file) => from_json(&read(&file)?).with_context(|| shown(&file)),
        }
    }
}

/// Where counters of a component are served; `None`: nowhere.
pub(super) struct Metrics(Option<String>);

impl Metrics {
    /// Serves those of `buffer` until what it returns is dropped.
    ///
    /// # Errors
    /// The address cannot be had, or the buffer cannot be opened.
    pub(super) fn serve(&self, buffer: &Path) -> Result<Option<Serving>> {
        serve(self.0.as_deref(), &[buffer.to_owned()])
    }

    /// Serves what server `index` of the reliable path tells.
    ///
    /// # Errors
    /// The address cannot be had.
    pub(super) fn serve_server(&self, index: u16, told: &Told) -> Result<Option<Serving>> {
        let address = self.0.as_deref();
        address
            .map(|address| Serving::of_server(address, index, told.clone()))
            .transpose()
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

impl<A: Flags> clap::Args for Given<A> {
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
        let metrics = Arg::new("metrics")
            .long("metrics")
            .value_name("HOST:PORT")
            .help("Serve its counters to Prometheus there, as 127.0.0.1:9400; port 0: any that is free")
            .help_heading(None::<&str>);
        let command = command.arg(settings).arg(label);
        if A::METRICS {
            command.arg(metrics)
        } else {
            command
        }
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

impl<A: Flags> FromArgMatches for Given<A> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let from = match matches.get_one::<PathBuf>("settings") {
            Some(file) => From::File(file.clone()),
            None => A::from_arg_matches(matches).map(From::Flags)?,
        };
        let metrics = A::METRICS.then(|| matches.get_one::<String>("metrics"));
        Ok(Self {
            from,
            metrics: metrics.flatten().cloned(),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;

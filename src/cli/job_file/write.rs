//! Writes job files: those of a command line, and one that shows every value and its origin.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::ArgMatches;
use clap::parser::ValueSource;

use super::fields::{Field, Fields};
use super::{Job, Origin, command};
use crate::cli::explicit::Explicit;
use crate::cli::train::Args;

/// Column at which origins stand.
const ORIGIN_COLUMN: usize = 34;

/// Writes what the user gave of `args` as a job file.
///
/// # Errors
/// There is a file of that name, or it cannot be written.
pub(in crate::cli) fn save(path: &Path, args: &Explicit<Args>) -> Result<()> {
    let fields = Fields::of(&command());
    let given = fields
        .0
        .iter()
        .filter(|field| args.has(&field.id))
        .map(|field| (field, line(field, args.matches())));
    let mut text =
        String::from("# Run it: dogwild launch FILE. See it all: dogwild job show FILE.\n");
    text += &tables(given);
    let mut file = std::fs::File::options();
    match file.write(true).create_new(true).open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            bail!(
                "--save-job: {} is there already: name another file",
                path.display()
            )
        }
        opened => opened
            .and_then(|mut file| std::io::Write::write_all(&mut file, text.as_bytes()))
            .with_context(|| format!("--save-job: cannot write {}", path.display())),
    }
}

/// Every field of a job with its value and where that is from: a job file too.
pub(in crate::cli) fn show(job: &Job) -> String {
    let mut command = command();
    command.build();
    let (fields, sync) = (Fields::of(&command), job.args.args.sync);
    // A default of the other path would be refused if it were given.
    let shown = fields.0.iter().filter(|field| {
        job.origin(&field.id) != Origin::Default || !sync.is_foreign(&command, &field.id)
    });
    let shown = shown.map(|field| {
        let origin = job.origin(&field.id);
        let line = line(field, &job.matches);
        let origin = match (line.starts_with('#'), &origin) {
            // What it stands for is in the help's last words.
            (true, Origin::Default) => match default_of(&field.help) {
                Some(words) => format!("default: {words}"),
                None => "default".to_owned(),
            },
            (_, origin) => origin.words(),
        };
        (field, format!("{line:ORIGIN_COLUMN$}  # {origin}"))
    });
    tables(shown)
}

impl Origin {
    fn words(&self) -> String {
        match self {
            Self::Default => "default".to_owned(),
            Self::File(line) => format!("file, line {line}"),
            Self::Environment(line, names) => {
                format!("environment: {} (line {line})", names.join(", "))
            }
            Self::Flag => "flag".to_owned(),
        }
    }
}

/// Lines, each under the heading of its table.
fn tables<'f>(lines: impl Iterator<Item = (&'f Field, String)>) -> String {
    let (mut text, mut table) = (String::new(), "");
    for (field, line) in lines {
        if field.table != table {
            table = field.table;
            let _ = write!(text, "\n[{table}]\n");
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// A field with its value; a comment where it has none.
fn line(field: &Field, matches: &ArgMatches) -> String {
    let id = &field.id;
    if field.switch {
        return format!("{id} = {}", matches.get_flag(id));
    }
    let raw = matches.get_raw(id).into_iter().flatten();
    let values: Vec<String> = raw.map(|raw| quoted(&raw.to_string_lossy())).collect();
    let given = matches
        .value_source(id)
        .is_some_and(|source| source != ValueSource::DefaultValue);
    match values.as_slice() {
        [] => format!("# {id} ="),
        [one] if !(field.repeats && given) => format!("{id} = {one}"),
        several => format!("{id} = [{}]", several.join(", ")),
    }
}

/// A value as TOML: a number as it is, text in quotes.
fn quoted(value: &str) -> String {
    let number = value.parse::<i64>().is_ok()
        || value.parse::<f64>().is_ok_and(f64::is_finite) && value.contains('.');
    // `5.` and `.5` are numbers here, and none in TOML.
    let edges = value.starts_with(|c: char| c.is_ascii_digit())
        && value.ends_with(|c: char| c.is_ascii_digit());
    // Nor is `007`.
    let zeros = value.len() > 1 && value.starts_with('0') && !value.starts_with("0.");
    if number && edges && !zeros {
        return value.to_owned();
    }
    // JSON's strings are strings of TOML.
    serde_json::Value::from(value).to_string()
}

/// What `--help` says of a default that is no fixed value.
fn default_of(help: &str) -> Option<&str> {
    let (_, rest) = help.rsplit_once("[default")?;
    let rest = rest.strip_suffix(']')?;
    Some(rest.trim_start_matches([':', ' ']))
}

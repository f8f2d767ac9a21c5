//! Which pictures a job takes: those it was given, or digits where these are right. Never others in
//! silence.

use anyhow::{Result, bail};

use crate::solver::SolverSpec;
use crate::solver::data::Source;

/// The pictures of a job with `--solver model` and perhaps `--data`.
///
/// # Errors
/// None were given, and the model is not made for digits or its net file names others.
pub(super) fn pictures(asked: Option<Source>, model: &str, spec: &SolverSpec) -> Result<Source> {
    let (pictures, note) = choose(asked, model, spec)?;
    if let Some(note) = note {
        log::info!("{note}");
    }
    Ok(pictures)
}

/// The same, with what the user is to be told of the choice.
///
/// # Errors
/// As [`pictures`].
pub(super) fn choose(
    asked: Option<Source>,
    model: &str,
    spec: &SolverSpec,
) -> Result<(Source, Option<String>)> {
    let is_builtin = SolverSpec::builtin_names().any(|name| name == model);
    // What Caffe's own examples name in the built-in files is no wish of this user's.
    let named = spec.net.named_source().filter(|_| !is_builtin);
    match (asked, named) {
        (Some(asked), Some((source, place))) => {
            let note = format!(
                "{place}: `source: \"{source}\"` is not read; pictures come from --data {asked}"
            );
            Ok((asked, Some(note)))
        }
        (Some(asked), None) => Ok((asked, None)),
        (None, Some((source, place))) => bail!(
            "{place}: pictures from `source: \"{source}\"` are not read here: say what to train on, \
             --data digits, --data mnist:DIR or --data cifar10:DIR"
        ),
        (None, None) if model == "cifar10_quick" => bail!(
            "{model} is made for the pictures of CIFAR-10: say where they are, --data cifar10:DIR"
        ),
        (None, None) => {
            let digits = Source::default();
            let note = format!(
                "pictures: {digits}, generated (--data mnist:DIR or cifar10:DIR for others)"
            );
            Ok((digits, Some(note)))
        }
    }
}

//! The end of a job, whatever ended it: weights first, then the report, then the old results go.

use std::path::PathBuf;

use anyhow::{Context, Error, Result, anyhow};

use super::buffers::{Buffers, Saved};
use super::children::Gone;
use super::out::OutFolder;
use super::outcome::{Facts, Outcome};
use super::results::write_results;
use super::summary::Summary;
use crate::node::Stop;
use crate::weights::SharedWeights;

/// How a job has ended, as far as its components tell.
pub(super) struct End {
    pub(super) outcome: Outcome,
    pub(super) detail: Option<String>,
    /// What ended may go on: a node of a job whose others run elsewhere.
    pub(super) goes_on: bool,
}

impl End {
    /// What `result` (of watching the components), a signal and the facts make together.
    pub(super) fn of(result: Result<()>, stop: &Stop, facts: Facts) -> Self {
        let (outcome, detail) = match (result, stop.signal()) {
            // Components that fail meanwhile got the same signal.
            (_, Some(signal)) => (Outcome::Interrupted(signal), None),
            (Ok(()), None) => (Outcome::of(facts), None),
            (Err(error), None) => match error.downcast_ref() {
                Some(Gone::Diverged { .. }) => (Outcome::Diverged, Some(error.to_string())),
                _ => (Outcome::Failed, Some(format!("{error:#}"))),
            },
        };
        Self {
            outcome,
            detail,
            goes_on: false,
        }
    }

    fn has_failed(&self) -> Option<Error> {
        (self.outcome == Outcome::Failed).then(|| {
            let why = self.detail.as_deref().unwrap_or("the job failed");
            anyhow!("{}", why.trim_end())
        })
    }
}

/// A job that has ended and left its results.
#[derive(Debug)]
pub struct Ended {
    /// What it reports.
    pub summary: Summary,
    /// How it ended.
    pub outcome: Outcome,
    /// Where its files are.
    pub folder: PathBuf,
    /// More about an end that is not the one asked for.
    pub detail: Option<String>,
}

impl Ended {
    /// An error if the job did not do what was asked.
    ///
    /// # Errors
    /// What it did instead, with its exit code.
    pub fn check(&self) -> Result<(), NotAsAsked> {
        if self.outcome.as_asked() {
            return Ok(());
        }
        let detail = self.detail.as_ref();
        Err(NotAsAsked {
            outcome: self.outcome,
            text: format!(
                "{}{}; what there is lies in {}",
                self.outcome.words(),
                detail.map_or(String::new(), |detail| format!(": {}", detail.trim_end())),
                self.folder.display()
            ),
        })
    }
}

/// A job that left its results, but did not do what was asked.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct NotAsAsked {
    /// How it ended.
    pub outcome: Outcome,
    text: String,
}

/// Saves the weights, writes what `summarise` makes of them, and frees the buffers. Components have
/// ended.
///
/// # Errors
/// The weights cannot be saved (then the buffers stay), or the report cannot be written.
pub(super) fn conclude(
    mut end: End,
    buffers: Buffers,
    out: OutFolder,
    model: &str,
    summarise: impl FnOnce(&[SharedWeights], Outcome) -> Result<Summary>,
) -> Result<Ended> {
    if let (Some(why), 0) = (end.has_failed(), buffers.iterations()) {
        // Nothing was learnt: the first weights can be made again.
        buffers.remove();
        return Err(why);
    }
    match buffers.save(&out, model) {
        Ok(Saved::Whole) => {}
        Ok(Saved::NotFinite(what)) => {
            // They are worth nothing, and no format keeps them: the buffers go all the same.
            let before = end.detail.take().map_or(String::new(), |d| d + "\n");
            end.detail = Some(format!("{before}{what}"));
            end.outcome = Outcome::Diverged;
        }
        Err(error) => {
            return Err(match end.has_failed() {
                Some(why) => anyhow!("{why}\n{error}"),
                None => error,
            });
        }
    }
    // An interrupted run that goes on from the old results and is further on replaces them.
    let further =
        matches!(end.outcome, Outcome::Interrupted(_)) && out.goes_further(buffers.iterations());
    let reported = summarise(&buffers.nodes, end.outcome).and_then(|summary| {
        write_results(out.work(), &summary)?;
        Ok(summary)
    });
    match end.outcome {
        Outcome::Interrupted(_) | Outcome::Failed if end.goes_on => buffers.keep(out.dir()),
        _ => buffers.remove(),
    }
    let work = out.work().to_owned();
    let unreported = || {
        let why = end
            .has_failed()
            .map_or(String::new(), |why| format!("{why}\n"));
        format!(
            "{why}the weights are saved in {}, but the report is not",
            work.display()
        )
    };
    let summary = reported.with_context(unreported)?;
    let folder = if end.outcome.as_asked() || further {
        out.complete()
            .with_context(|| format!("the results are complete, but still in {}", work.display()))?
    } else {
        work
    };
    Ok(Ended {
        summary,
        outcome: end.outcome,
        folder,
        detail: end.detail,
    })
}

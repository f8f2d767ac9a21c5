//! The highest rate without loss of one frame size: what `sweep` and `latency` share.

use anyhow::Result;
use dogwild::cli::args::share;

use super::link::plan::{CATCH_UP_S, Plan};
use super::link::report::Point;
use super::link::run::Run;
use super::link::search::Search;
use super::link::sending::{Trial, Ways};
use super::link::streams::{Streams, Team};
use super::option;

/// Time that a sender makes up for in every other trial of a rate. What the queue in front of a
/// link has sent in the meantime is room for it; a short queue may have less.
const LONG_CATCH_UP_S: f64 = 0.02;

/// How the rate is looked for.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Search")]
pub(crate) struct SearchArgs {
    /// Trials of the search for the highest rate without loss, at most, for each size
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=1000))]
    steps: u32,
    /// The search ends when it knows the rate to this share of it
    #[arg(long, value_name = "SHARE", default_value = "0.2%", value_parser = precision)]
    precision: f64,
    /// Lost share that still counts as none
    #[arg(long, allow_hyphen_values = true, value_name = "SHARE", default_value = "0", value_parser = share)]
    tolerance: f64,
}

/// Who sends what in a search.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) frame_bytes: usize,
    pub(crate) seconds: f64,
    pub(crate) unicast: bool,
}

/// How many streams there are, and how many hosts receive.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct TeamArgs {
    /// Parallel streams, each with a session, a link and a thread of its own at both ends (by hand:
    /// `recv -P N`). Rates are those of all of them together
    #[arg(short = 'P', long, value_name = "N", default_value_t = 1, value_parser = super::link::parallel())]
    parallel: u32,
    /// Hosts that receive, each with its own count (by hand: `recv` on each). What is lost at one
    /// of them is lost
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=200), conflicts_with_all = ["parallel", "unicast"])]
    receivers: u32,
}

fn precision(text: &str) -> Result<f64, String> {
    match share(text) {
        Ok(share) if (0.0005..=0.5).contains(&share) => Ok(share),
        _ => Err(format!(
            "`{text}` is no precision: write a share from 0.05% to 50%, as 0.2%"
        )),
    }
}

impl TeamArgs {
    pub(crate) fn team(&self) -> Team {
        Team {
            streams: self.parallel,
            receivers: self.receivers as usize,
        }
    }

    pub(crate) fn to_args(&self) -> Vec<String> {
        let mut args = Vec::new();
        // Each refuses the other, as one that is given.
        if self.parallel > 1 {
            args.extend(option("--parallel", Some(self.parallel)));
        }
        if self.receivers > 1 {
            args.extend(option("--receivers", Some(self.receivers)));
        }
        args
    }
}

impl SearchArgs {
    pub(crate) fn to_args(&self) -> Vec<String> {
        let mut args = option("--steps", Some(self.steps));
        args.extend(option("--precision", Some(self.precision)));
        args.extend(option("--tolerance", Some(self.tolerance)));
        args
    }

    /// Trials of one search at most, with the first one.
    pub(crate) fn trials_max(&self) -> u64 {
        u64::from(self.steps) + 1
    }

    /// Flat out, then the highest rate without loss, and both again for each repeat.
    pub(crate) fn find(
        &self,
        streams: &mut Streams,
        terms: Terms,
        repeats: u32,
        progress: (u64, u64),
    ) -> Result<Point> {
        let mut finding = Finding {
            args: self,
            streams,
            terms,
            progress,
            trials: Vec::new(),
        };
        let (flat_out, first) = finding.once()?;
        let mut found: Vec<Option<Run>> = vec![first];
        for _ in 1..repeats {
            finding.progress.0 += self.trials_max();
            found.push(finding.once()?.1);
        }
        let rate = |run: &Option<Run>| run.as_ref().map_or(0.0, |run| run.received_frames_per_s);
        let repeats = found.iter().map(rate).collect();
        found.sort_by(|a, b| rate(a).total_cmp(&rate(b)));
        Ok(Point {
            flat_out,
            loss_free: found.swap_remove((found.len() - 1) / 2),
            trials: finding.trials,
            repeats,
        })
    }
}

/// A search on its way.
struct Finding<'a> {
    args: &'a SearchArgs,
    streams: &'a mut Streams,
    terms: Terms,
    /// Trials that are done, and all of them.
    progress: (u64, u64),
    trials: Vec<(f64, f64)>,
}

impl Finding<'_> {
    fn once(&mut self) -> Result<(Run, Option<Run>)> {
        let flat_out = self.trial(None, CATCH_UP_S, 0)?;
        let free = self.is_free(&flat_out);
        let held_back = flat_out.no_slot > 0;
        if free && !held_back {
            return Ok((flat_out.clone(), Some(flat_out)));
        }
        let sent = flat_out.sent_frames_per_s;
        // A sender that the link holds back hands it bunches of frames: how many of them fall into
        // the time of a trial is chance.
        let ceiling = if free { sent * 1.1 } else { sent };
        // A link that is too slow still delivers at its rate.
        let guess = flat_out.received_frames_per_s;
        let mut search = Search::new(ceiling, guess, self.args.precision);
        let mut best: Option<Run> = None;
        for step in 1..=self.args.steps {
            let Some(rate) = search.next() else {
                break;
            };
            let catch_up_s = match search.tried() % 2 {
                0 => LONG_CATCH_UP_S,
                _ => CATCH_UP_S,
            };
            let run = self.trial(Some(rate), catch_up_s, step)?;
            if !self.is_free(&run) {
                search.lost(run.lost_share);
                continue;
            }
            search.passed(run.sent_frames_per_s, run.no_slot > 0);
            let better = |best: &Run| run.sent_frames_per_s > best.sent_frames_per_s;
            if best.as_ref().is_none_or(better) {
                best = Some(run);
            }
        }
        let best = best.or_else(|| free.then(|| flat_out.clone()));
        Ok((flat_out, best))
    }

    fn is_free(&self, run: &Run) -> bool {
        run.lost_share <= self.args.tolerance && run.received > 0
    }

    fn trial(&mut self, rate: Option<f64>, catch_up_s: f64, step: u32) -> Result<Run> {
        let bytes = self.terms.frame_bytes;
        let doing = rate.map_or("flat out".into(), |rate| format!("{rate:.0} frames/s"));
        let (done, all) = self.progress;
        let doing = format!("{bytes} bytes, {doing}");
        self.streams.progress(done + u64::from(step), all, doing);
        let run = self.streams.send(&Trial {
            plan: Plan {
                frame_bytes: bytes,
                rate,
                catch_up_s,
                // Or queues and token buckets would lend a rate that the link does not have.
                flood: true,
                omit_s: 0.0,
                seconds: self.terms.seconds,
                interval_s: None,
                unicast: self.terms.unicast,
            },
            ways: Ways::There,
            pings: None,
        })?;
        let offered = rate.unwrap_or(run.sent_frames_per_s);
        self.trials.push((offered, run.lost_share));
        Ok(run)
    }
}

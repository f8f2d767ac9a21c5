//! `dogwild-rawbench latency`: round trips while the link is loaded.
//!
//! Arguments in, an outcome out; `link` does the work.

use std::path::PathBuf;

use anyhow::{Result, bail};

use super::highest::{SearchArgs, TeamArgs, Terms};
use super::link::plan::{CATCH_UP_S, Plan};
use super::link::report::{Latency, Load, Outcome};
use super::link::sending::{Trial, Ways};
use super::link::streams::Streams;
use super::link::{DriverArgs, Measurement};
use super::measure::{PING_BYTES, rate};
use super::option;

/// Arguments of `dogwild-rawbench latency`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    driver: DriverArgs,
    #[command(flatten)]
    search: SearchArgs,
    #[command(flatten)]
    team: TeamArgs,
    /// Payload of the frames that load the link, bytes [default: a full frame]
    #[arg(long, value_name = "BYTES")]
    frame: Option<usize>,
    /// Loads, per cent of the highest rate without loss, with commas
    #[arg(long, value_name = "PER CENT", value_delimiter = ',', default_values = ["0", "10", "50", "90"], value_parser = per_cent)]
    loads: Vec<f64>,
    /// What 100 % is, frames/s [default: the highest rate without loss, which is searched first]
    #[arg(long, value_name = "N", value_parser = rate)]
    highest: Option<f64>,
    /// Pings per second, in addition to the load
    #[arg(long, value_name = "N", default_value = "1000", value_parser = rate)]
    pings: f64,
    /// Also write the distribution at each load in the form of HdrHistogram, as load-50.hgrm
    #[arg(long, value_name = "FOLDER")]
    hgrm: Option<PathBuf>,
    /// To the other host alone instead of the group
    #[arg(long)]
    unicast: bool,
}

fn per_cent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').parse::<f64>() {
        Ok(load) if (0.0..=1000.0).contains(&load) => Ok(load),
        _ => Err(format!("`{text}` is no load: write per cent, as 90")),
    }
}

impl Args {
    pub(crate) fn run(self) -> Result<()> {
        let loads: Vec<String> = self.loads.iter().map(f64::to_string).collect();
        let mut args = [self.search.to_args(), self.team.to_args()].concat();
        args.extend(option("--frame", self.frame));
        args.extend(option("--loads", Some(loads.join(","))));
        args.extend(option("--highest", self.highest));
        args.extend(option("--pings", Some(self.pings)));
        args.extend(self.unicast.then(|| "--unicast".to_owned()));
        self.driver.clone().measure(&Measurement {
            name: "latency",
            args,
            team: self.team.team(),
            intervals: false,
            omits: false,
            run: &|streams| self.measure(streams),
            frame_bytes: self.frame,
            hgrm: self.hgrm.as_deref(),
            rounds: None,
        })
    }

    fn measure(&self, streams: &mut Streams) -> Result<Outcome> {
        let terms = Terms {
            frame_bytes: self.frame.unwrap_or(streams.payload_max()),
            seconds: self.driver.seconds,
            unicast: self.unicast,
        };
        streams.check_frame(terms.frame_bytes)?;
        let searched = self.highest.map_or(self.search.trials_max(), |_| 0);
        let all = searched + self.loads.len() as u64;
        let found = match self.highest {
            Some(_) => None,
            None => Some(self.search.find(streams, terms, 1, (0, all))?),
        };
        let of_search = found.as_ref().and_then(|point| point.loss_free.as_ref());
        let free = of_search.map(|run| run.sent_frames_per_s);
        let Some(highest) = self.highest.or(free) else {
            bail!(
                "no rate without loss was found: allow some (--tolerance 1%), or say what 100 % is \
                 (--highest N)"
            );
        };
        let mut loads = Vec::new();
        for (i, &per_cent) in self.loads.iter().enumerate() {
            let doing = format!("round trips at {per_cent} %");
            streams.progress(searched + i as u64, all, doing);
            let run = streams.send(&Trial {
                plan: Plan {
                    frame_bytes: terms.frame_bytes,
                    rate: Some(highest * per_cent / 100.0),
                    catch_up_s: CATCH_UP_S,
                    flood: false,
                    omit_s: 0.0,
                    seconds: terms.seconds,
                    interval_s: None,
                    unicast: terms.unicast,
                },
                ways: Ways::There,
                pings: Some((PING_BYTES, self.pings)),
            })?;
            loads.push(Load { per_cent, run });
        }
        streams.progress(all, all, String::new());
        Ok(Outcome::Latency(Box::new(Latency {
            highest_frames_per_s: highest,
            search: found,
            loads,
        })))
    }
}

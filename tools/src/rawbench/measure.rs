//! `dogwild-rawbench send | ping | sweep`: what is measured over a link.
//!
//! Arguments in, an outcome out; `link` does the work.

use std::path::PathBuf;

use anyhow::Result;
use dogwild::cli::args::seconds;

use super::highest::{SearchArgs, TeamArgs, Terms};
use super::link::packet::HEADER_BYTES;
use super::link::plan::{CATCH_UP_S, Plan};
use super::link::report::Outcome;
use super::link::sending::{Trial, Ways};
use super::link::streams::{Streams, Team};
use super::link::{DriverArgs, Measurement};
use super::{option, rounds};

/// Payloads of a sweep, below the full one.
const SWEEP_BYTES: [usize; 4] = [64, 256, 512, 1024];
/// Payload of a ping.
pub(crate) const PING_BYTES: usize = 64;

/// Arguments of `dogwild-rawbench send`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SendArgs {
    #[command(flatten)]
    driver: DriverArgs,
    /// Payload of each frame, bytes [default: a full frame]
    #[arg(long, value_name = "BYTES")]
    frame: Option<usize>,
    /// Frames per second [default: as fast as it goes]
    #[arg(long, value_name = "N", value_parser = rate)]
    rate: Option<f64>,
    #[command(flatten)]
    team: TeamArgs,
    /// Print what went each so many seconds, in lines like those of iperf3 (--json: a line of JSON
    /// each, and the report as the last)
    #[arg(short = 'i', long, value_name = "S", value_parser = seconds)]
    interval: Option<f64>,
    /// Send so many seconds more before what counts
    #[arg(short = 'O', long, value_name = "S", value_parser = seconds)]
    omit: Option<f64>,
    /// Both ways at the same time: `recv` sends as much
    #[arg(long, conflicts_with_all = ["alone", "receivers", "rounds", "compare"])]
    bidir: bool,
    /// The other way: `recv` sends, this end counts
    #[arg(short = 'R', long, conflicts_with_all = ["bidir", "alone", "receivers", "rounds", "compare"])]
    reverse: bool,
    /// To the other host alone instead of the group
    #[arg(long)]
    unicast: bool,
    /// Only send: no `recv` at the other end, arrivals are not counted, and only the head of each
    /// frame is written (as trafgen and testpmd do)
    #[arg(long, conflicts_with_all = ["unicast", "receivers"])]
    alone: bool,
    /// Measure so many times, ours and each of --compare in turns, on the same lab. Prints the
    /// ratio of ours to theirs per round, median, lowest and highest, and the rate from core to
    /// core, with which rates on virtual machines change
    #[arg(long, value_name = "N", value_parser = rounds::count())]
    rounds: Option<u32>,
}

/// Arguments of `dogwild-rawbench ping`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PingArgs {
    #[command(flatten)]
    driver: DriverArgs,
    /// Payload of each frame, bytes
    #[arg(long, value_name = "BYTES", default_value_t = PING_BYTES)]
    frame: usize,
    /// Also write the distribution in the form of HdrHistogram, as ping.hgrm
    #[arg(long, value_name = "FOLDER")]
    hgrm: Option<PathBuf>,
}

/// Arguments of `dogwild-rawbench sweep`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SweepArgs {
    #[command(flatten)]
    driver: DriverArgs,
    /// Payloads, bytes, with commas [default: 64, 256, 512, 1024 and a full frame]
    #[arg(long, value_name = "BYTES", value_delimiter = ',')]
    frames: Vec<usize>,
    /// Search so many times, and show how far the results lie apart
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = rounds::count())]
    repeats: u32,
    #[command(flatten)]
    search: SearchArgs,
    #[command(flatten)]
    team: TeamArgs,
    /// To the other host alone instead of the group
    #[arg(long)]
    unicast: bool,
}

pub(crate) fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if (0.1..=1e9).contains(&rate) => Ok(rate),
        _ => Err(format!("`{text}` is no rate: write frames per second")),
    }
}

impl SendArgs {
    pub(crate) fn run(self) -> Result<()> {
        let mut args = option("--frame", self.frame);
        args.extend(option("--rate", self.rate));
        args.extend(option("--interval", self.interval));
        args.extend(option("--omit", self.omit));
        args.extend(self.team.to_args());
        let flags = [
            ("--unicast", self.unicast),
            ("--alone", self.alone),
            ("--bidir", self.bidir),
            ("--reverse", self.reverse),
        ];
        let given = flags.into_iter().filter(|&(_, given)| given);
        args.extend(given.map(|(name, _)| name.to_owned()));
        let run = |streams: &mut Streams| {
            let lines = self.interval.is_some();
            if !lines {
                streams.progress(0, 1, "sending".into());
            }
            let run = streams.send(&self.trial(streams.payload_max()))?;
            if !lines {
                streams.progress(1, 1, String::new());
            }
            Ok(Outcome::Send(Box::new(run)))
        };
        let team = self.team.team();
        self.driver.clone().measure(&Measurement {
            name: "send",
            args,
            team: Team {
                receivers: if self.alone { 0 } else { team.receivers },
                ..team
            },
            intervals: self.interval.is_some(),
            omits: self.omit.is_some(),
            run: &run,
            frame_bytes: self.frame,
            hgrm: None,
            rounds: self.rounds,
        })
    }

    fn trial(&self, payload_max: usize) -> Trial {
        Trial {
            plan: Plan {
                frame_bytes: self.frame.unwrap_or(payload_max),
                rate: self.rate,
                catch_up_s: CATCH_UP_S,
                flood: false,
                omit_s: self.omit.unwrap_or(0.0),
                seconds: self.driver.seconds,
                interval_s: self.interval,
                unicast: self.unicast,
            },
            ways: match (self.bidir, self.reverse) {
                (true, _) => Ways::Both,
                (_, true) => Ways::Back,
                _ => Ways::There,
            },
            pings: None,
        }
    }
}

impl PingArgs {
    pub(crate) fn run(self) -> Result<()> {
        let (frame, seconds) = (self.frame, self.driver.seconds);
        let hgrm = self.hgrm;
        let run = |streams: &mut Streams| Ok(Outcome::Ping(streams.ping(frame, seconds)?));
        self.driver.measure(&Measurement {
            name: "ping",
            args: option("--frame", Some(frame)),
            team: Team::default(),
            intervals: false,
            omits: false,
            run: &run,
            frame_bytes: None,
            hgrm: hgrm.as_deref(),
            rounds: None,
        })
    }
}

impl SweepArgs {
    pub(crate) fn run(self) -> Result<()> {
        let sizes: Vec<String> = self.frames.iter().map(usize::to_string).collect();
        let mut args = [self.search.to_args(), self.team.to_args()].concat();
        args.extend(option("--repeats", Some(self.repeats)));
        args.extend(option(
            "--frames",
            (!sizes.is_empty()).then(|| sizes.join(",")),
        ));
        args.extend(self.unicast.then(|| "--unicast".to_owned()));
        self.driver.clone().measure(&Measurement {
            name: "sweep",
            args,
            team: self.team.team(),
            intervals: false,
            omits: false,
            run: &|streams| self.sweep(streams),
            frame_bytes: self.frames.last().copied(),
            hgrm: None,
            rounds: None,
        })
    }

    fn sweep(&self, streams: &mut Streams) -> Result<Outcome> {
        let full = streams.payload_max();
        let mut sizes = self.frames.clone();
        if sizes.is_empty() {
            sizes.extend(SWEEP_BYTES.iter().filter(|&&size| size < full));
            sizes.push(full.max(HEADER_BYTES));
        }
        // All are looked at before the first takes its time.
        sizes
            .iter()
            .try_for_each(|&size| streams.check_frame(size))?;
        let of_a_size = self.search.trials_max() * u64::from(self.repeats);
        let all = sizes.len() as u64 * of_a_size;
        let mut points = Vec::new();
        for (i, &frame_bytes) in sizes.iter().enumerate() {
            let terms = Terms {
                frame_bytes,
                seconds: self.driver.seconds,
                unicast: self.unicast,
            };
            let progress = (i as u64 * of_a_size, all);
            points.push(self.search.find(streams, terms, self.repeats, progress)?);
        }
        streams.progress(all, all, String::new());
        Ok(Outcome::Sweep(points))
    }
}

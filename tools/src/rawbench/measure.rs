//! `dogwild-rawbench send | ping | sweep`: what is measured over a link.
//!
//! Arguments in, an outcome out; `link` does the work.

use anyhow::Result;

use super::link::driver::{Driver, Run, Trial};
use super::link::packet::HEADER_BYTES;
use super::link::report::{Outcome, Point};
use super::link::{DriverArgs, Measurement};
use super::rounds;

/// Payloads of a sweep, below the full one.
const SWEEP_BYTES: [usize; 4] = [64, 256, 512, 1024];
/// Payload of a ping.
const PING_BYTES: usize = 64;

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
    /// To the other host alone instead of the group
    #[arg(long)]
    unicast: bool,
    /// Only send: no `recv` at the other end, arrivals are not counted, and only the head of each
    /// frame is written (as trafgen and testpmd do)
    #[arg(long, conflicts_with = "unicast")]
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
}

/// Arguments of `dogwild-rawbench sweep`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SweepArgs {
    #[command(flatten)]
    driver: DriverArgs,
    /// Payloads, bytes, with commas [default: 64, 256, 512, 1024 and a full frame]
    #[arg(long, value_name = "BYTES", value_delimiter = ',')]
    frames: Vec<usize>,
    /// Trials of the search for the highest rate without loss, for each size
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=40))]
    steps: u32,
    /// Lost share that still counts as none
    #[arg(long, allow_hyphen_values = true, value_name = "SHARE", default_value = "0", value_parser = dogwild::cli::args::share)]
    tolerance: f64,
    /// To the other host alone instead of the group
    #[arg(long)]
    unicast: bool,
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if (0.1..=1e9).contains(&rate) => Ok(rate),
        _ => Err(format!("`{text}` is no rate: write frames per second")),
    }
}

impl SendArgs {
    pub(crate) fn run(self) -> Result<()> {
        let mut args = option("--frame", self.frame);
        args.extend(option("--rate", self.rate));
        args.extend(self.unicast.then(|| "--unicast".to_owned()));
        args.extend(self.alone.then(|| "--alone".to_owned()));
        let run = |driver: &mut Driver| {
            driver.progress(0, 1, "sending".into());
            let run = driver.send(&Trial {
                frame_bytes: self.frame.unwrap_or(driver.payload_max()),
                seconds: self.driver.seconds,
                rate: self.rate,
                unicast: self.unicast,
            })?;
            driver.progress(1, 1, String::new());
            Ok(Outcome::Send(run))
        };
        self.driver.clone().measure(&Measurement {
            name: "send",
            args,
            alone: self.alone,
            run: &run,
            frame_bytes: self.frame,
            rounds: self.rounds,
        })
    }
}

impl PingArgs {
    pub(crate) fn run(self) -> Result<()> {
        let (frame, seconds) = (self.frame, self.driver.seconds);
        let run = |driver: &mut Driver| Ok(Outcome::Ping(driver.ping(frame, seconds)?));
        self.driver.measure(&Measurement {
            name: "ping",
            alone: false,
            args: option("--frame", Some(frame)),
            run: &run,
            frame_bytes: None,
            rounds: None,
        })
    }
}

impl SweepArgs {
    pub(crate) fn run(self) -> Result<()> {
        let sizes: Vec<String> = self.frames.iter().map(usize::to_string).collect();
        let mut args = option("--steps", Some(self.steps));
        args.extend(option("--tolerance", Some(self.tolerance)));
        args.extend(option(
            "--frames",
            (!sizes.is_empty()).then(|| sizes.join(",")),
        ));
        args.extend(self.unicast.then(|| "--unicast".to_owned()));
        self.driver.clone().measure(&Measurement {
            name: "sweep",
            args,
            alone: false,
            run: &|driver| self.sweep(driver),
            frame_bytes: self.frames.last().copied(),
            rounds: None,
        })
    }

    fn sweep(&self, driver: &mut Driver) -> Result<Outcome> {
        let full = driver.payload_max();
        let mut sizes = self.frames.clone();
        if sizes.is_empty() {
            sizes.extend(SWEEP_BYTES.iter().filter(|&&size| size < full));
            sizes.push(full.max(HEADER_BYTES));
        }
        // All are looked at before the first takes its time.
        sizes
            .iter()
            .try_for_each(|&size| driver.check_frame(size))?;
        let all = sizes.len() as u64 * u64::from(self.steps + 1);
        let mut points = Vec::new();
        for (i, &size) in sizes.iter().enumerate() {
            let before = i as u64 * u64::from(self.steps + 1);
            points.push(self.point(driver, size, before, all)?);
        }
        driver.progress(all, all, String::new());
        Ok(Outcome::Sweep(points))
    }

    /// One size: flat out, then the highest rate without loss by halving.
    fn point(&self, driver: &mut Driver, size: usize, done: u64, all: u64) -> Result<Point> {
        let mut trials = Vec::new();
        let mut trial = |driver: &mut Driver, rate: Option<f64>, step: u32| -> Result<Run> {
            let doing = rate.map_or("flat out".into(), |rate| format!("{rate:.0} frames/s"));
            let doing = format!("{size} bytes, {doing}");
            driver.progress(done + u64::from(step), all, doing);
            let run = driver.send(&Trial {
                frame_bytes: size,
                seconds: self.driver.seconds,
                rate,
                unicast: self.unicast,
            })?;
            trials.push((rate.unwrap_or(run.sent_frames_per_s), run.lost_share));
            Ok(run)
        };
        let flat_out = trial(driver, None, 0)?;
        let free = |run: &Run| run.lost_share <= self.tolerance && run.received > 0;
        let mut loss_free = free(&flat_out).then(|| flat_out.clone());
        if loss_free.is_none() {
            let (mut low, mut high) = (0.0, flat_out.sent_frames_per_s);
            for step in 1..=self.steps {
                let rate = f64::midpoint(low, high);
                let run = trial(driver, Some(rate), step)?;
                if free(&run) {
                    low = rate;
                    loss_free = Some(run);
                } else {
                    high = rate;
                }
            }
        }
        Ok(Point {
            flat_out,
            loss_free,
            trials,
        })
    }
}

fn option(name: &str, value: Option<impl ToString>) -> Vec<String> {
    value.map_or_else(Vec::new, |value| vec![name.to_owned(), value.to_string()])
}

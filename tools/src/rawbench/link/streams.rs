//! The parallel streams of the end that drives: each has a link and a session of its own, and sends
//! on a thread of its own.

use std::sync::mpsc;
use std::thread;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};

use super::LinkArgs;
use super::driver::{Driver, Ends};
use super::interval::{Event, Interval, Sums};
use super::pings::Pings;
use super::run::Run;
use super::sending::Trial;

/// How many streams and receivers there are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Team {
    pub(crate) streams: u32,
    /// 0: `--alone`.
    pub(crate) receivers: usize,
}

impl Default for Team {
    /// One of each.
    fn default() -> Self {
        Self {
            streams: 1,
            receivers: 1,
        }
    }
}

/// The end that drives, with all its streams.
pub(crate) struct Streams {
    drivers: Vec<Driver>,
    json: bool,
    bar: ProgressBar,
    headed: bool,
}

impl Streams {
    /// Opens all links, and finds their other ends.
    pub(crate) fn open(args: &mut LinkArgs, team: Team) -> Result<Self> {
        let bar = if dogwild_lab::out::shows_bars() {
            ProgressBar::new(0)
        } else {
            ProgressBar::hidden()
        };
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {wide_msg}") {
            bar.set_style(style);
        }
        let open = |stream| {
            let receivers = team.receivers;
            Driver::open(args, Ends { stream, receivers })
        };
        let drivers: Result<Vec<Driver>> = (0..team.streams).map(open).collect();
        Ok(Self {
            drivers: drivers?,
            json: args.json,
            bar,
            headed: false,
        })
    }

    /// Payload of a full frame.
    pub(crate) fn payload_max(&self) -> usize {
        self.drivers.first().map_or(0, Driver::payload_max)
    }

    /// Refuses frames that do not fit.
    pub(crate) fn check_frame(&self, frame_bytes: usize) -> Result<()> {
        let mut drivers = self.drivers.iter();
        drivers.try_for_each(|driver| driver.check_frame(frame_bytes))
    }

    /// Prints how far the measurement is: part `done` of `all`.
    pub(crate) fn progress(&self, done: u64, all: u64, doing: String) {
        progress(&self.bar, done, all, doing);
    }

    /// Sends on all streams. `trial` has the rate of all together; the first one pings.
    pub(crate) fn send(&mut self, trial: &Trial) -> Result<Run> {
        let streams = self.drivers.len();
        let mut trial = *trial;
        trial.plan.rate = trial.plan.rate.map(|rate| rate / streams as f64);
        let mut sums = Sums::new(streams);
        let mut of_all = Vec::new();
        let runs = thread::scope(|scope| {
            let (tell, told) = mpsc::channel::<Interval>();
            let mut running = Vec::new();
            for (i, driver) in self.drivers.iter_mut().enumerate() {
                let pings = trial.pings.filter(|_| i == 0);
                let (trial, tell) = (Trial { pings, ..trial }, tell.clone());
                running.push(scope.spawn(move || {
                    driver.send(&trial, &mut |interval| {
                        // Where no one takes it any more, this run is over.
                        let _ = tell.send(interval.clone());
                    })
                }));
            }
            drop(tell);
            let mut printer = Printer {
                json: self.json,
                headed: &mut self.headed,
            };
            for interval in told {
                let sum = sums.add(&interval);
                for one in std::iter::once(interval).chain(sum) {
                    if trial.plan.interval_s.is_some() {
                        printer.print(&one)?;
                        of_all.push(one);
                    }
                }
            }
            let joined = running.into_iter().map(|thread| {
                let run = thread.join();
                run.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            joined.collect::<Result<Vec<Run>>>()
        })?;
        let mut run = Run::sum(runs).context("there is no stream")?;
        run.intervals = of_all;
        Ok(run)
    }

    /// One ping after the other.
    pub(crate) fn ping(&mut self, frame_bytes: usize, seconds: f64) -> Result<Pings> {
        let bar = self.bar.clone();
        let driver = self.drivers.first_mut().context("there is no stream")?;
        driver.ping(frame_bytes, seconds, &move |done, all, doing| {
            progress(&bar, done, all, doing);
        })
    }
}

/// Prints intervals as they come.
pub(crate) struct Printer<'a> {
    pub(crate) json: bool,
    /// Whether the heading has been printed.
    pub(crate) headed: &'a mut bool,
}

impl Printer<'_> {
    pub(crate) fn print(&mut self, interval: &Interval) -> Result<()> {
        if self.json {
            return Event::Interval(interval.clone()).say();
        }
        if !std::mem::replace(self.headed, true) {
            dogwild_lab::say!("{}", Interval::HEADING);
        }
        dogwild_lab::say!("{}", interval.line());
        Ok(())
    }
}

fn progress(bar: &ProgressBar, done: u64, all: u64, doing: String) {
    bar.set_length(all);
    bar.set_position(done);
    bar.set_message(doing);
    if done == all {
        bar.finish_and_clear();
    }
}

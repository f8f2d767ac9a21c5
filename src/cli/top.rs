//! `dogwild top`: what the nodes of this host do, live.

use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};

use super::args;
use crate::job::top::{Frame, Sample, Screen, open, text};
use crate::node::{Stop, stop_on_signals};

/// Columns and lines of what is printed.
const PRINTED: (u16, u16) = (80, 24);
/// Lines of what is printed apart from those of nodes.
const AROUND: usize = 12;

/// Arguments of `dogwild top`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Buffers to look at, also of a job that has ended [default: all in use on this host]
    #[arg(value_name = "BUFFER")]
    buffers: Vec<PathBuf>,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = args::seconds)]
    interval: f64,
    /// Print one interval and end; so without a terminal
    #[arg(long)]
    once: bool,
    /// Print each interval as a line of JSON (docs/reference/top.md)
    #[arg(long)]
    json: bool,
    /// Write each look to this file, for --replay
    #[arg(long, value_name = "FILE", conflicts_with = "replay")]
    record: Option<PathBuf>,
    /// Show what --record has written instead of buffers
    #[arg(long, value_name = "FILE", conflicts_with = "buffers")]
    replay: Option<PathBuf>,
}

/// Where samples come from.
enum Source {
    Buffers(Vec<crate::weights::SharedWeights>, Option<File>),
    Recording(Box<dyn Iterator<Item = Result<Sample>>>),
}

impl Source {
    /// The next sample; none: a recording has ended.
    fn next(&mut self) -> Result<Option<Sample>> {
        match self {
            Self::Buffers(buffers, record) => {
                let sample = Sample::of(buffers);
                if let Some(file) = record {
                    writeln!(file, "{}", serde_json::to_string(&sample)?)
                        .context("--record: cannot write")?;
                }
                Ok(Some(sample))
            }
            Self::Recording(samples) => samples.next().transpose(),
        }
    }

    fn is_live(&self) -> bool {
        matches!(self, Self::Buffers(..))
    }
}

/// The samples that a file has, each with its line where it cannot be read.
fn recording(path: &Path) -> Result<impl Iterator<Item = Result<Sample>> + use<>> {
    let file = File::open(path).with_context(|| format!("--replay {}", path.display()))?;
    let path = path.to_owned();
    let lines = BufReader::new(file).lines().zip(1..);
    Ok(lines.map(move |(line, number)| {
        let place = || format!("{}:{number} is no look that --record wrote", path.display());
        serde_json::from_str(&line.with_context(place)?).with_context(place)
    }))
}

impl Args {
    pub(super) fn run(self) -> Result<()> {
        let stop = stop_on_signals()?;
        let mut source = match &self.replay {
            Some(path) => Source::Recording(Box::new(recording(path)?)),
            None => {
                let buffers = open(&self.buffers)?;
                let record = self.record.as_ref();
                let record = record.map(|path| {
                    File::create(path).with_context(|| format!("--record {}", path.display()))
                });
                Source::Buffers(buffers, record.transpose()?)
            }
        };
        let Some(first) = source.next()? else {
            bail!("the recording is empty");
        };
        if self.once || self.json || !std::io::stdout().is_terminal() {
            return self.print(source, first, &stop);
        }
        let mut terminal = ratatui::init();
        let shown = self.show(source, first, &stop, &mut terminal);
        ratatui::restore();
        shown
    }

    fn interval(&self) -> Duration {
        Duration::from_secs_f64(self.interval)
    }

    /// Waits for the next look at what is live. False: a signal came.
    fn rest(&self, source: &Source, stop: &Stop) -> bool {
        let end = Instant::now() + self.interval();
        while source.is_live() && Instant::now() < end && !stop.load(Relaxed) {
            std::thread::sleep(Duration::from_millis(20));
        }
        !stop.load(Relaxed)
    }

    /// Prints intervals; of a recording that is to be shown once, the last.
    fn print(&self, mut source: Source, mut before: Sample, stop: &Stop) -> Result<()> {
        let mut screen = Screen::default();
        while self.rest(&source, stop) {
            let Some(now) = source.next()? else { break };
            let frame = Frame::between(&before, &now);
            if self.json {
                dogwild_lab::say!("{}", serde_json::to_string(&frame)?);
            }
            screen.push(frame);
            before = now;
            if source.is_live() && (self.once || !self.json) {
                break;
            }
        }
        if !self.json {
            let height = PRINTED.1.max((before.buffers.len() + AROUND) as u16);
            dogwild_lab::say!("{}", text(&screen, PRINTED.0, height));
        }
        Ok(())
    }

    /// Shows intervals until the user has seen enough.
    fn show(
        &self,
        mut source: Source,
        mut before: Sample,
        stop: &Stop,
        terminal: &mut ratatui::DefaultTerminal,
    ) -> Result<()> {
        let (mut screen, mut paused) = (Screen::default(), false);
        let mut due = Instant::now() + self.interval();
        while !stop.load(Relaxed) {
            terminal.draw(|frame| screen.draw(frame))?;
            if event::poll(Duration::from_millis(50))?
                && let Event::Key(key) = event::read()?
                && key.kind == KeyEventKind::Press
            {
                match key.code {
                    KeyCode::Char('q') | KeyCode::Esc => break,
                    // The terminal sends no signal while it is read key by key.
                    KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => break,
                    KeyCode::Char('s') => screen.sort(),
                    KeyCode::Char('p') => paused = !paused,
                    KeyCode::Up => screen.select(-1),
                    KeyCode::Down => screen.select(1),
                    _ => {}
                }
            }
            if !paused && Instant::now() >= due {
                due = Instant::now() + self.interval();
                // A recording stays at its last interval.
                if let Some(now) = source.next()? {
                    screen.push(Frame::between(&before, &now));
                    before = now;
                }
            }
        }
        Ok(())
    }
}

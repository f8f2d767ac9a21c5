//! What TensorBoard shows of a job while it runs: an event file for each node.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::curves::node_curve;
use crate::watch::board::EventFile;
use crate::watch::curve::read_rows;
use crate::watch::{SolverMeter, StreamMeter};
use crate::weights::{Role, SharedWeights};

/// Time between two looks.
const EVERY: Duration = Duration::from_secs(1);

/// The event files of the nodes that run here.
pub(super) struct Boards {
    nodes: Vec<Board>,
    looked: Option<Instant>,
}

/// That of one node.
struct Board {
    events: EventFile,
    /// Where its tests are.
    curve: PathBuf,
    /// Rows of it that were told.
    rows: usize,
    /// The iteration that was told last.
    iteration: u64,
    failed: bool,
}

impl Boards {
    /// Of `nodes` nodes from `first` on, whose curves are in `out`: a folder for each in `dir`;
    /// none: nothing is written.
    ///
    /// # Errors
    /// A file cannot be made.
    pub(super) fn open(dir: Option<&Path>, out: &Path, first: u16, nodes: usize) -> Result<Self> {
        let board = |(dir, node): (&Path, u16)| {
            let dir = dir.join(format!("node{node}"));
            let events = EventFile::create(&dir)
                .with_context(|| format!("--tensorboard: cannot write in {}", dir.display()))?;
            anyhow::Ok(Board {
                events,
                curve: node_curve(out, node),
                rows: 0,
                iteration: 0,
                failed: false,
            })
        };
        let nodes = first..first + nodes as u16;
        let boards = dir
            .into_iter()
            .flat_map(|dir| nodes.clone().map(move |node| (dir, node)));
        Ok(Self {
            nodes: boards.map(board).collect::<Result<_>>()?,
            looked: None,
        })
    }

    /// Writes what is new in these buffers, once a second.
    pub(super) fn look(&mut self, buffers: &[SharedWeights]) {
        if self.looked.is_some_and(|at| at.elapsed() < EVERY) {
            return;
        }
        self.look_last(buffers);
    }

    /// The same now.
    pub(super) fn look_last(&mut self, buffers: &[SharedWeights]) {
        self.looked = Some(Instant::now());
        for (board, shared) in self.nodes.iter_mut().zip(buffers) {
            board.look(shared);
        }
    }
}

impl Board {
    fn look(&mut self, shared: &SharedWeights) {
        let Err(error) = self.write(shared) else {
            self.failed = false;
            return;
        };
        // Training goes on without; it is said once for each time.
        if !std::mem::replace(&mut self.failed, true) {
            let file = self.events.path().display();
            log::warn!("--tensorboard: cannot write {file}: {error}; trying again");
        }
    }

    fn write(&mut self, shared: &SharedWeights) -> std::io::Result<()> {
        let iteration = shared.globals().iterations();
        if iteration != self.iteration {
            let scalars = scalars(shared);
            if !scalars.is_empty() {
                self.events.scalars(iteration, &scalars)?;
            }
            self.iteration = iteration;
        }
        // One that is not there yet has no rows; one that is spoilt has an error of its own.
        for row in read_rows(&self.curve)
            .unwrap_or_default()
            .iter()
            .skip(self.rows)
        {
            let tests = [
                ("test/loss", row.test_loss),
                ("test/accuracy", row.test_accuracy),
            ];
            let tests = tests.into_iter();
            let tests: Vec<_> = tests
                .filter_map(|(tag, value)| Some((tag.to_owned(), value? as f32)))
                .collect();
            if !tests.is_empty() {
                self.events.scalars(row.iteration, &tests)?;
            }
            self.rows += 1;
        }
        Ok(())
    }
}

/// What its components say now.
fn scalars(shared: &SharedWeights) -> Vec<(String, f32)> {
    let mut all = Vec::new();
    for slot in shared.slots() {
        let words = &slot.meters;
        if slot.role == Role::Solver {
            for (what, meter) in [
                ("loss", SolverMeter::LossBits),
                ("rate", SolverMeter::RateBits),
            ] {
                let bits = meter.of(words) as u32;
                if bits != 0 {
                    let tag = format!("train/{what}/solver{}", slot.index);
                    all.push((tag, f32::from_bits(bits)));
                }
            }
        }
        if slot.role == Role::Stream {
            let age_ms = StreamMeter::AgeP50.of(words) as f32 / 1e3;
            all.push(("stream/age_p50_ms".to_owned(), age_ms));
            let steps = StreamMeter::AgeStepsP50.of(words) as f32;
            all.push(("stream/age_p50_steps".to_owned(), steps));
        }
    }
    all
}

//! `dogwild init`: makes the shared weight buffer of one node, with the model's initial weights.

use std::path::PathBuf;

use anyhow::Result;

use super::args;
use super::pictures::pictures;
use crate::job::{BufferPlan, make_buffer};
use crate::weights::Existing;

/// Arguments of `dogwild init`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The buffer to make, normally under /dev/shm
    #[arg(long, value_name = "FILE")]
    buffer: PathBuf,
    /// Model: built-in (lenet, lenet_no_momentum, cifar10_quick) or a Caffe solver file
    #[arg(long, value_name = "NAME|FILE", default_value = "lenet")]
    solver: String,
    /// Pictures the model is for: digits, mnist:DIR, cifar10:DIR [default for LeNet: digits]
    #[arg(long, value_name = "SOURCE")]
    data: Option<crate::solver::data::Source>,
    /// Name of the job; the same on all nodes
    #[arg(long, value_name = "NAME", default_value = "dogwild")]
    session: String,
    /// Number of nodes; with 1, solvers do not wait for a streamer
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=255))]
    nodes: u16,
    /// Seed of the initial weights; the same on all nodes
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Iterations of the whole cluster after which solvers end; 0: never [default: the solver
    /// file's max_iter]
    #[arg(long, value_name = "N")]
    iterations: Option<u64>,
    /// Start from these weights instead of random ones
    #[arg(long, value_name = "FILE.safetensors")]
    weights: Option<PathBuf>,
    /// Use a buffer of this job that is there already
    #[arg(long, conflicts_with = "fresh")]
    resume: bool,
    /// Replace a buffer that is there already
    #[arg(long)]
    fresh: bool,
}

impl Args {
    pub(super) fn run(self) -> Result<()> {
        let spec = args::model(&self.solver)?;
        let existing = match (self.resume, self.fresh) {
            (true, _) => Existing::Resume,
            (_, true) => Existing::Fresh,
            _ => Existing::Refuse,
        };
        let data = pictures(self.data, &self.solver, &spec)?;
        let (shape, classes) = data.shape();
        let shared = make_buffer(&BufferPlan {
            path: &self.buffer,
            iterations: self.iterations.unwrap_or(spec.max_iter),
            spec: &spec,
            data: &data,
            input: shape,
            classes,
            session: args::session(&self.session),
            nodes: self.nodes,
            seed: self.seed,
            weights: self.weights.as_deref(),
            existing,
        })?;
        dogwild_lab::say!(
            "{}: {} weights, session {:016x}",
            self.buffer.display(),
            shared.used(),
            shared.session()
        );
        Ok(())
    }
}

//! How weights travel where no flag says it: what a job's nodes and links make of it.

use anyhow::Result;

use super::stream_args::{PrecisionArg, StreamArgs};
use super::train::Args;
use super::train_poseidon::Sync;
use crate::job::{Load, Precision, Wish};
use crate::solver::SolverSpec;
use crate::wire::Dtype;

impl StreamArgs {
    /// Whether the precision is left to us.
    pub(super) fn is_auto(&self) -> bool {
        matches!(self.precision, None | Some(PrecisionArg::Auto))
    }
}

impl Args {
    /// Chooses for a job on this machine, by the age that weights would have on links as thin as
    /// was said. Where nothing was said nothing is measured.
    pub(super) fn choose_precision(&mut self, spec: &SolverSpec) -> Result<()> {
        let chosen = match self.known_rate() {
            None => Dtype::F32,
            Some(_) => {
                let load = self.load(spec, None)?;
                let chosen = load.precision();
                log::info!(
                    "weights travel in {}: they get {:.1} steps old ({:.1} in f32)",
                    chosen.name(),
                    load.age_steps(chosen),
                    load.age_steps(Dtype::F32),
                );
                chosen
            }
        };
        self.stream.precision = Some(chosen.into());
        Ok(())
    }

    /// What `node` of a cluster says of the precision: that of the buffer with which it goes on, or
    /// what decides. None: the job file has it, or none is needed.
    pub(super) fn open_precision(
        &mut self,
        node: u16,
        settled: Option<Wish>,
    ) -> Result<Option<Precision>> {
        if self.sync == Sync::Poseidon || !self.stream.is_auto() {
            return Ok(None);
        }
        if let Some(settled) = settled {
            return Ok(Some(Precision::Settled(settled.precision)));
        }
        // Others measure their links to node 0, and it has none but theirs.
        if node == 0 && self.known_rate().is_none() {
            return Ok(Some(Precision::Open(Load::unlimited())));
        }
        let (_, spec) = self.choose_model()?;
        Ok(Some(Precision::Open(self.load(&spec, Some(node))?)))
    }

    /// What decides on `node`, or of a job on this machine alone.
    pub(super) fn load(&self, spec: &SolverSpec, node: Option<u16>) -> Result<Load> {
        let data = self.data.clone().unwrap_or_default();
        let (solvers, pace) = match node {
            Some(node) => (
                [self.solvers.of(node); 2],
                self.pace_steps.as_ref().and_then(|paces| paces.of(node)),
            ),
            None => (
                [
                    self.solvers.of_first(self.nodes),
                    self.solvers.most(self.nodes),
                ],
                self.pace_steps.as_ref().map(|paces| paces.most()),
            ),
        };
        Load::measure(spec, &data, solvers, pace, self.known_rate())
    }

    /// Bytes per second that flags let a node send.
    fn known_rate(&self) -> Option<f64> {
        let rates = [
            self.stream.rate.0,
            self.transport.pace.and_then(|pace| pace.0),
            self.lab.rate_bytes_per_s(),
        ];
        rates.into_iter().flatten().reduce(f64::min)
    }
}

//! `dogwild coordinator`: admits the members of a cluster and decides how it works.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Result;

use super::args;
use super::cluster_args::{ClusterArgs, KeyArgs, ModelArgs};
use super::poseidon_flags::with_flags;
use crate::node::stop_on_signals;
use crate::poseidon::{CoordinatorJob, run_coordinator};

/// Arguments of `dogwild coordinator`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where to listen; port 0: any
    #[arg(long, value_name = "IP:PORT", default_value = "0.0.0.0:7700")]
    listen: SocketAddr,
    /// Write the address it listens on to this file
    #[arg(long, value_name = "FILE")]
    address_file: Option<PathBuf>,
    /// Name of the job; the same as of the workers' buffers
    #[arg(long, value_name = "NAME", default_value = "dogwild")]
    session: String,
    /// Iterations of each worker [default: the solver file's max_iter]
    #[arg(long, value_name = "N")]
    iterations: Option<u64>,
    /// Go on from the newest checkpoint that all members have
    #[arg(long)]
    resume: bool,
    #[command(flatten)]
    key: KeyArgs,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
}

impl Args {
    /// Runs it to its end.
    ///
    /// # Errors
    /// Why it ended early.
    pub fn run(mut self) -> Result<()> {
        let stop = stop_on_signals()?;
        let model = self.model.job()?;
        let clocks = self.iterations.unwrap_or(model.spec.max_iter);
        let job = CoordinatorJob {
            listen: self.listen,
            address_file: self.address_file,
            session: args::session(&self.session),
            cluster: self.cluster.spec(clocks),
            model,
            data: self.model.data,
            resume: self.resume,
            key: self.key.key()?,
        };
        run_coordinator(&job, &stop).map_err(with_flags)
    }
}

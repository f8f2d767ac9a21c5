//! `dogwild coordinator`: admits the members of a cluster and decides how it works.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Result;

use super::cluster_args::{ClusterArgs, KeyArgs, ModelArgs, key, model_job};
use super::given::{Flags, Given};
use super::poseidon_flags::Origin;
use crate::node::stop_on_signals;
use crate::poseidon::run_coordinator;
use crate::settings::CoordinatorSettings;

/// Arguments of `dogwild coordinator`.
pub type Args = Given<CoordinatorFlags>;

/// Flags of `dogwild coordinator`.
#[derive(Debug, clap::Args)]
pub struct CoordinatorFlags {
    /// Where to listen; port 0: any
    #[arg(long, value_name = "IP:PORT", default_value = "0.0.0.0:7700")]
    listen: SocketAddr,
    /// Write the address it listens on to this file
    #[arg(long, value_name = "FILE")]
    address_file: Option<PathBuf>,
    /// Name of the job; the same as of the workers' buffers
    #[arg(long, value_name = "NAME", default_value = "dogwild")]
    session: String,
    /// Iterations of each worker [default: as the solver file or the model file says]
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

impl Flags for CoordinatorFlags {
    type Settings = CoordinatorSettings;
    const METRICS: bool = false;

    fn settings(self) -> Result<CoordinatorSettings> {
        Ok(CoordinatorSettings {
            listen: self.listen,
            address_file: self.address_file,
            session: self.session,
            iterations: self.iterations,
            resume: self.resume,
            key_file: self.key.key_file,
            model: self.model.settings(),
            cluster: self.cluster.settings(),
        })
    }
}

impl Given<CoordinatorFlags> {
    /// Runs it to its end.
    ///
    /// # Errors
    /// Wrong arguments, or why it ended early.
    pub fn run(self) -> Result<()> {
        let origin = Origin::of(&self);
        let settings = self.settings()?;
        let stop = stop_on_signals()?;
        let (model, data) = model_job(&settings.model)?;
        let key = key(settings.key_file.as_deref())?;
        run_coordinator(&settings.job(key, model, data), &stop).map_err(|error| origin.name(error))
    }
}

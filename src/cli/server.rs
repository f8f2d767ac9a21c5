//! `dogwild server`: one server's share of the weights.

use anyhow::Result;

use super::cluster_args::{MemberArgs, ModelArgs, key, model_job};
use super::given::{Flags, Given};
use super::poseidon_flags::Origin;
use crate::node::stop_on_signals;
use crate::poseidon::run_server;
use crate::settings::ServerSettings;

/// Arguments of `dogwild server`.
pub type Args = Given<ServerFlags>;

/// Flags of `dogwild server`.
#[derive(Debug, clap::Args)]
pub struct ServerFlags {
    /// Name of the job; the same everywhere
    #[arg(long, value_name = "NAME", default_value = "dogwild")]
    session: String,
    #[command(flatten)]
    member: MemberArgs,
    #[command(flatten)]
    model: ModelArgs,
}

impl Flags for ServerFlags {
    type Settings = ServerSettings;

    fn settings(self) -> Result<ServerSettings> {
        Ok(ServerSettings {
            session: self.session,
            member: self.member.settings(),
            model: self.model.settings(),
        })
    }
}

impl Given<ServerFlags> {
    /// Runs it to its end.
    ///
    /// # Errors
    /// Wrong arguments, or why it ended early.
    pub fn run(self) -> Result<()> {
        let (origin, metrics) = (Origin::of(&self), self.metrics());
        let settings = self.settings()?;
        let stop = stop_on_signals()?;
        let (model, _) = model_job(&settings.model)?;
        let key = key(settings.member.key_file.as_deref())?;
        let index = settings.member.index;
        let mut job = settings.job(key, model);
        let _serving = metrics.serve_server(index, job.told.get_or_insert_default())?;
        run_server(&job, &stop).map_err(|error| origin.name(error))
    }
}

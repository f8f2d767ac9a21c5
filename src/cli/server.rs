//! `dogwild server`: one server's share of the weights.

use anyhow::Result;

use super::args;
use super::cluster_args::{MemberArgs, ModelArgs};
use super::poseidon_flags::with_flags;
use crate::node::stop_on_signals;
use crate::poseidon::{ServerJob, run_server};

/// Arguments of `dogwild server`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of the job; the same everywhere
    #[arg(long, value_name = "NAME", default_value = "dogwild")]
    session: String,
    #[command(flatten)]
    member: MemberArgs,
    #[command(flatten)]
    model: ModelArgs,
}

impl Args {
    /// Runs it to its end.
    ///
    /// # Errors
    /// Why it ended early.
    pub fn run(mut self) -> Result<()> {
        let stop = stop_on_signals()?;
        let job = ServerJob {
            member: self.member.job()?,
            session: args::session(&self.session),
            model: self.model.job()?,
        };
        run_server(&job, &stop).map_err(with_flags)
    }
}

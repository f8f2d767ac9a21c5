//! `dogwild status`: what the components of a buffer do.

use std::path::PathBuf;

use anyhow::Result;

use crate::job::Status;
use crate::weights::SharedWeights;

/// Arguments of `dogwild status`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The buffer
    #[arg(long, value_name = "FILE")]
    buffer: PathBuf,
    /// Machine-readable output
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(super) fn run(self) -> Result<()> {
        let shared = SharedWeights::watch(&self.buffer)?;
        let status = Status::read(&shared);
        if self.json {
            dogwild_lab::say!("{}", serde_json::to_string_pretty(&status)?);
        } else {
            dogwild_lab::say!("{}", status.text().trim_end());
        }
        Ok(())
    }
}

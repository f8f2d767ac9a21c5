//! `dogwild snapshot`: writes the weights of a buffer, as they are now, to a .safetensors file.

use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;

use anyhow::Result;

use crate::node::Positions;
use crate::snapshot;
use crate::weights::{Expect, SharedWeights};

/// Arguments of `dogwild snapshot`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The buffer
    #[arg(long, value_name = "FILE")]
    buffer: PathBuf,
    /// The file to write
    #[arg(long, value_name = "FILE.safetensors")]
    out: PathBuf,
}

impl Args {
    pub(super) fn run(self) -> Result<()> {
        let shared = SharedWeights::open(&self.buffer, &Expect::default())?;
        let iterations = shared.globals().iterations();
        let metadata = [("iterations".to_owned(), iterations.to_string())].into();
        let mut positions = Positions::default();
        let weights = positions.of(&shared);
        snapshot::save(&self.out, shared.manifest(), weights, metadata)?;
        // `dogwild clean` need not ask about them any more.
        let globals = shared.globals();
        globals.saved_iterations.store(iterations, Relaxed);
        dogwild_lab::say!(
            "{}: {} weights after {iterations} iterations",
            self.out.display(),
            shared.used()
        );
        Ok(())
    }
}

//! What a program without metrics says of them.

use std::path::PathBuf;

use anyhow::{Result, bail};

use super::Told;

/// Metrics that are served: there are none.
pub enum Serving {}

/// As where there are some: who has it drops it in time.
impl Drop for Serving {
    fn drop(&mut self) {
        match *self {}
    }
}

impl Serving {
    /// Refuses to serve counters.
    pub fn start(address: &str, _: &[PathBuf]) -> Result<Self> {
        bail!(
            "--metrics {address}: this dogwild was built without; build it with `--features metrics`"
        )
    }

    /// Refuses to serve counters.
    pub fn of_server(address: &str, _: u16, _: Told) -> Result<Self> {
        Self::start(address, &[])
    }
}

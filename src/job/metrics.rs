//! Counters of buffers for Prometheus, over HTTP (docs/reference/metrics.md).
//!
//! Names follow from the counters of `watch`. Reads counters, changes nothing.

cfg_if::cfg_if! {
    if #[cfg(feature = "metrics")] {
        mod answer;
        mod collect;
        mod names;
        mod serve;

        pub use names::{Metric, Metrics};
        pub use serve::Serving;

        #[cfg(test)]
        mod tests;
    } else {
        mod none;

        pub use none::Serving;
    }
}

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use anyhow::Result;

use crate::poseidon::TrafficReport;

/// What a server has told last.
pub type Told = Arc<Mutex<Option<TrafficReport>>>;

/// Serves metrics of `buffers` until this is dropped, if an `address` is given.
///
/// # Errors
/// The address cannot be had, a buffer cannot be opened, or the program was built without.
pub fn serve(address: Option<&str>, buffers: &[PathBuf]) -> Result<Option<Serving>> {
    address
        .map(|address| Serving::start(address, buffers))
        .transpose()
}

//! `dogwild stream`: the streamer of one node.

use std::path::PathBuf;

use anyhow::Result;

use super::args::{FaultArgs, TransportArgs};
use super::stream_args::StreamArgs;
use crate::node::{StreamJob, run_streamer, stop_on_signals};

/// Arguments of `dogwild stream`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The node's buffer (dogwild init makes it)
    #[arg(long, value_name = "FILE")]
    buffer: PathBuf,
    /// This node, from 0
    #[arg(long, value_name = "K")]
    node: u16,
    /// Number of nodes; the same everywhere
    #[arg(long, value_name = "N", default_value_t = 2)]
    nodes: u16,
    #[command(flatten)]
    transport: TransportArgs,
    #[command(flatten)]
    stream: StreamArgs,
    #[command(flatten)]
    fault: FaultArgs,
}

impl Args {
    /// Streams until told to stop.
    pub fn run(self) -> Result<()> {
        let stop = stop_on_signals()?;
        let job = StreamJob {
            node: self.node,
            nodes: self.nodes,
            masters: self.stream.masters,
            transport: self.transport.spec(&self.fault),
            deltas: self.stream.deltas(),
            merge: self.stream.merge(),
            precision: self.stream.precision.dtype()?,
            sparse: self.stream.sparse,
            writes: self.stream.writes(),
            rate_bytes_per_s: self.stream.rate.0,
            window_bytes: self.stream.window.0,
            buffer: self.buffer,
        };
        Ok(run_streamer(&job, &stop)?)
    }
}

//! `dogwild stream`: the streamer of one node.

use std::path::PathBuf;

use anyhow::Result;

use super::args::{FaultArgs, TransportArgs};
use super::given::{Flags, Given};
use super::stream_args::StreamArgs;
use crate::node::{run_streamer, stop_at_eof, stop_on_signals};
use crate::settings::{FlowSettings, StreamSettings};

/// Arguments of `dogwild stream`.
pub type Args = Given<StreamFlags>;

/// Flags of `dogwild stream`.
#[derive(Debug, clap::Args)]
pub struct StreamFlags {
    /// The node's buffer (dogwild init makes it)
    #[arg(long, value_name = "FILE")]
    buffer: PathBuf,
    /// This node, from 0; from --nodes on: it joins the job later [default: the number that this
    /// buffer had before, else a free one of a job that runs]
    #[arg(long, value_name = "K")]
    node: Option<u16>,
    /// Nodes that the job begins with; the same everywhere
    #[arg(long, value_name = "N", default_value_t = 2)]
    nodes: u16,
    /// Host of another node, where multicast does not reach the others; several may be given, and
    /// this host itself may be one [default port: the job's]
    #[arg(long, value_name = "HOST[:PORT]")]
    join: Vec<String>,
    /// Solvers of this node wait while fewer nodes are heard, this one included [default: they go
    /// on alone]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    quorum: Option<u16>,
    /// End, as by SIGTERM, when standard input ends: so it ends with the program that started it
    #[arg(long)]
    until_eof: bool,
    #[command(flatten)]
    transport: TransportArgs,
    #[command(flatten)]
    stream: StreamArgs,
    #[command(flatten)]
    fault: FaultArgs,
}

impl Flags for StreamFlags {
    type Settings = StreamSettings;

    fn settings(self) -> Result<StreamSettings> {
        Ok(StreamSettings {
            buffer: self.buffer,
            node: self.node,
            nodes: self.nodes,
            hand_over: true,
            until_eof: self.until_eof,
            transport: self.transport.settings(),
            join: self.join,
            stream: FlowSettings {
                quorum: self.quorum,
                ..self.stream.settings()?
            },
            faults: self.fault.settings(),
        })
    }
}

impl Given<StreamFlags> {
    /// Streams until told to stop.
    ///
    /// # Errors
    /// Wrong arguments, or why it ended early.
    pub fn run(self) -> Result<()> {
        let stop = stop_on_signals()?;
        let metrics = self.metrics();
        let settings = self.settings()?;
        if settings.until_eof {
            stop_at_eof(&stop)?;
        }
        let _serving = metrics.serve(&settings.buffer)?;
        Ok(run_streamer(&settings.job(), &stop)?)
    }
}

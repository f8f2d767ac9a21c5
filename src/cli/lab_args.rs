//! The lab that `dogwild train --lab` makes, for both paths.

use dogwild_lab::Spec;
use serde::Serialize;

use super::args;
use super::train_poseidon::POSEIDON_GROUP;

/// Arguments of a lab.
#[derive(Clone, Debug, clap::Args, Serialize)]
pub(super) struct LabArgs {
    /// Nodes are network namespaces joined by veth cables; the stream goes over raw Ethernet unless
    /// --transport says otherwise
    #[arg(long)]
    pub(super) lab: bool,
    /// What each host of the lab can send and receive, per second: 100Mbit, 12.5MB. The kernel's
    /// token bucket keeps it, with a queue, as a real link does (--pace: the node itself, without)
    #[arg(long, value_name = "RATE", requires = "lab", allow_hyphen_values = true, value_parser = args::rate)]
    lab_rate: Option<args::Rate>,
    /// Bytes that wait at that rate before frames are lost [default: 256 KiB]
    #[arg(long, value_name = "BYTES", requires = "lab_rate", allow_hyphen_values = true, value_parser = args::bytes)]
    lab_queue: Option<f64>,
    /// Share of frames that the kernel of each host loses, whatever they are (--loss: what its
    /// streamer loses)
    #[arg(long, value_name = "SHARE", requires = "lab", allow_hyphen_values = true, value_parser = args::share)]
    lab_loss: Option<f64>,
    /// TCP's congestion control in the lab, as cubic or bbr [default: the kernel's]
    #[arg(long, group = POSEIDON_GROUP, value_name = "NAME", requires = "lab")]
    lab_congestion: Option<String>,
}

impl LabArgs {
    /// What each host of the lab can send, if that is limited.
    pub(super) fn rate_bytes_per_s(&self) -> Option<f64> {
        self.lab_rate.and_then(|rate| rate.0)
    }

    /// A lab of so many hosts, if one is asked for.
    pub(super) fn spec(&self, hosts: usize, mtu: u32) -> Option<Spec> {
        self.lab.then(|| Spec {
            mtu,
            rate: self.lab_rate.and_then(args::Rate::tc),
            queue_bytes: self.lab_queue.map(|bytes| bytes as u32),
            loss: self.lab_loss,
            congestion: self.lab_congestion.clone(),
            ..Spec::of(hosts)
        })
    }
}

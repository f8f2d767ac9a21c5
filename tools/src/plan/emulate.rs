//! `--emulate`: the cluster of the plan in network namespaces, compared with its prediction.
//!
//! Workers replay a recording, so that no GPU is needed, while the real messages take the real path
//! through links with a real rate limit. A scale makes weights, factors and bandwidth smaller
//! together. Bytes are those of the interfaces' counters and of the members' reports; iterations
//! are counted in the workers' buffers.

mod gloo;
mod members;

use anyhow::{Context, Result, bail, ensure};
use dogwild::poseidon::{Policy, Scheme};
use dogwild::watch::screen::{self, Columns};
use dogwild_lab::{Lab, Spec};
use serde::Serialize;

use super::Task;
use super::cluster::{payload_bytes, syncs};
use super::report::{Way, paper};
use gloo::Peer;
use members::Members;
pub(crate) use members::Part;

/// A way to emulate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum WayArg {
    /// Servers, and nothing is sent before the backward pass has ended
    PsNoOverlap,
    /// Servers for all layers
    Ps,
    /// Factors to all others, where a layer has them
    Sfb,
    /// The choice of Poseidon 2017
    Hybcomm,
    /// The choice of Poseidon 2015
    Sacp,
    /// Factors to one server, its matrix back (Project Adam)
    Adam,
    /// A bit for each weight (CNTK)
    Onebit,
    /// Workers hold the layers themselves
    P2p,
    /// The exact scheme with the fewest floats at a node, for each layer
    Cheapest,
}

/// What is emulated if no way is named.
const ALL: [WayArg; 6] = [
    WayArg::PsNoOverlap,
    WayArg::Ps,
    WayArg::Hybcomm,
    WayArg::Sacp,
    WayArg::Adam,
    WayArg::Onebit,
];

impl WayArg {
    /// Policy, and whether layers are sent as soon as they are done.
    fn run(self) -> (Policy, bool) {
        let policy = match self {
            Self::PsNoOverlap | Self::Ps => Policy::Force(Scheme::Ps),
            Self::Sfb => Policy::Force(Scheme::Sfb),
            Self::Hybcomm => Policy::HybComm,
            Self::Sacp => Policy::Sacp,
            Self::Adam => Policy::Force(Scheme::Adam),
            Self::Onebit => Policy::Force(Scheme::OneBit),
            Self::P2p => Policy::Force(Scheme::P2p),
            Self::Cheapest => Policy::Cheapest,
        };
        (policy, self != Self::PsNoOverlap)
    }
}

/// Payload of a full segment over the bytes that the rate limit counts for it: 1500 of IP, of which
/// 52 are headers, and 14 of Ethernet.
const GOODPUT: f64 = 1448.0 / 1514.0;

/// Queue at each rate limit, bytes: more than ever waits with the windows of [`calm`].
const QUEUE_BYTES: u32 = 64 << 20;
/// Time that a node's connections together may delay frames, seconds.
const QUEUE_S: f64 = 0.2;

/// How it is emulated.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub(crate) struct Settings {
    /// Also run the cluster in network namespaces, with workers that replay the layers' times
    #[arg(long)]
    pub(crate) emulate: bool,
    /// Weights, factors and bandwidth are this many times smaller in the emulation
    #[arg(long, value_name = "S", default_value_t = 64.0, value_parser = scale, requires = "emulate")]
    scale: f64,
    /// Iterations that are measured
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..), requires = "emulate")]
    iterations: u64,
    /// What is emulated [default: all but sfb]
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "WAY",
        requires = "emulate"
    )]
    ways: Vec<WayArg>,
    /// Another program that does the same over the same links: PyTorch's all-reduce over Gloo, with
    /// the buckets of DistributedDataParallel (Debian: python3-torch)
    #[arg(long, value_enum, requires = "emulate")]
    compare: Option<PeerArg>,
}

/// Another program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum PeerArg {
    /// All-reduce by Gloo, a process for each worker
    Gloo,
}

/// Predicted and measured, side by side.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Emulation {
    pub(crate) scale: f64,
    pub(crate) iterations: u64,
    /// Of each node, each way, headers included.
    pub(crate) link_bits_per_s: f64,
    /// Share of the link that carries payload; predictions count with it.
    pub(crate) goodput: f64,
    pub(crate) runs: Vec<Run>,
    /// Other programs, if asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) peers: Vec<Peer>,
}

/// One way to synchronise.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Run {
    pub(crate) policy: String,
    pub(crate) overlap: bool,
    pub(crate) predicted: Figures,
    pub(crate) measured: Figures,
    /// The speed-up that a paper reports for this net and so many nodes.
    pub(crate) paper: Option<f64>,
    /// Bytes through the interface of each node in one iteration, measured.
    pub(crate) bytes_per_node: Vec<f64>,
    /// Segments that TCP sent again; what it takes for lost costs bandwidth that is not predicted.
    pub(crate) retransmitted: u64,
}

/// What is compared.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Figures {
    pub(crate) iteration_s: f64,
    pub(crate) speedup: f64,
    /// Through the interface of the busiest node in one iteration; measured ones with headers of
    /// TCP/IP and Ethernet and with acknowledgements.
    pub(crate) bytes_per_node_max: f64,
    pub(crate) bytes_per_node_mean: f64,
    /// Busiest node over mean.
    pub(crate) imbalance: f64,
    /// Payloads of all messages of one iteration about layers, also those that stay on a node.
    pub(crate) payload_bytes: f64,
}

/// Runs the cluster of `task`, scaled, once for each way.
pub(crate) fn run(task: &Task, settings: &Settings) -> Result<Emulation> {
    let small = task.scaled(settings.scale);
    let link_bits_per_s = small.bytes_per_s * 8.0;
    ensure!(
        link_bits_per_s >= 1e5,
        "a link of {link_bits_per_s:.0} bit/s is too slow to emulate: use a smaller --scale"
    );
    if let (Some(PeerArg::Gloo), Some(missing)) = (settings.compare, dogwild_tools::gloo::missing())
    {
        bail!("--compare gloo: {missing}");
    }
    let lab = Lab::up(&Spec {
        rate: Some(format!("{link_bits_per_s:.0}bit")),
        queue_bytes: Some(QUEUE_BYTES),
        ..Spec::of(small.place.nodes())
    })
    .context("the emulation needs network namespaces")?;
    calm(&lab, &small)?;
    let mut predicted = small.clone();
    predicted.bytes_per_s *= GOODPUT;
    let mut runs = Vec::new();
    let ways = match settings.ways.as_slice() {
        [] => &ALL[..],
        some => some,
    };
    for (policy, overlap) in ways.iter().map(|way| way.run()) {
        let name = if overlap { "wfbp" } else { "no overlap" };
        dogwild_lab::note!("emulating {policy}, {name}");
        let members = Members::start(
            &lab,
            &small,
            policy,
            overlap,
            WARM_UP + settings.iterations + 1,
        )?;
        let before = members::retransmitted(&lab)?;
        let (measured, bytes_per_node) = measure(members, &small, settings.iterations)
            .with_context(|| format!("emulating {policy}, {name}"))?;
        runs.push(Run {
            policy: policy.to_string(),
            overlap,
            predicted: predict(&predicted, policy, overlap),
            measured,
            paper: dogwild_tools::nets::reported(
                &task.net,
                small.place.cluster.workers(),
                policy,
                overlap,
            ),
            bytes_per_node,
            retransmitted: members::retransmitted(&lab)? - before,
        });
    }
    let mut peers = Vec::new();
    if settings.compare.is_some() {
        dogwild_lab::note!("emulating PyTorch with Gloo");
        peers.push(gloo::run(
            &lab,
            &small,
            settings.scale,
            settings.iterations,
        )?);
    }
    Ok(Emulation {
        peers,
        scale: settings.scale,
        iterations: settings.iterations,
        link_bits_per_s,
        goodput: GOODPUT,
        runs,
    })
}

/// Keeps TCP from taking a long queue for a loss. A scaled link is slow, but TCP's time-outs are
/// not scaled with it: behind queues of a second it would send again what was never lost. Windows
/// are bounded too, so that all connections together fill a node's link and little more.
fn calm(lab: &Lab, task: &Task) -> Result<()> {
    let connections = 2.0 * task.place.workers() as f64;
    let window = (task.bytes_per_s * QUEUE_S / connections).clamp(16_384.0, 2e6);
    let script = format!(
        "cd /proc/sys/net/ipv4 && echo 4096 {window:.0} {window:.0} > tcp_rmem && echo 0 > tcp_early_retrans \
         && ip route change 10.77.0.0/24 dev eth0 rto_min 10s"
    );
    for host in lab.hosts() {
        let mut command = lab.command(host.index(), "sh");
        let status = command.args(["-c", &script]).status()?;
        ensure!(status.success(), "cannot set TCP up in {}", host.name());
    }
    Ok(())
}

fn predict(task: &Task, policy: Policy, overlap: bool) -> Figures {
    let place = &task.place;
    let way = Way::new(task, place, policy);
    let speed = if overlap { way.wfbp } else { way.no_overlap };
    let choose = |layer: &super::Layer| (layer.shape, policy.choose(layer.shape, place.cluster));
    let chosen: Vec<_> = task.layers.iter().map(choose).collect();
    Figures {
        iteration_s: speed.iteration_s,
        speedup: speed.speedup,
        bytes_per_node_max: way.bytes_per_node_max,
        bytes_per_node_mean: way.bytes_per_node_mean,
        imbalance: way.imbalance,
        payload_bytes: payload_bytes(&syncs(&chosen, place), place),
    }
}

/// Iterations before those that are measured: who has done the second one has the first one's
/// weights, and so those that servers greet with, which travelled before them.
const WARM_UP: u64 = 2;

/// Lets the members work, and measures what they do between the warm-up and the last iteration: the
/// figures, and bytes by node.
fn measure(mut members: Members<'_>, task: &Task, iterations: u64) -> Result<(Figures, Vec<f64>)> {
    let (from, bytes_from) = members.wait_for(WARM_UP)?;
    let (to, bytes_to) = members.wait_for(WARM_UP + iterations)?;
    let payload_bytes = members.end()? as f64 / (WARM_UP + iterations + 1) as f64;
    let iteration_s = (to - from).as_secs_f64() / iterations as f64;
    let bytes = bytes_to.iter().zip(&bytes_from);
    let bytes: Vec<f64> = bytes
        .map(|(to, from)| (to - from) as f64 / iterations as f64)
        .collect();
    let max = bytes.iter().copied().fold(0.0, f64::max);
    let mean = bytes.iter().sum::<f64>() / bytes.len() as f64;
    let figures = Figures {
        iteration_s,
        speedup: task.place.cluster.workers() as f64 * task.alone_s / iteration_s,
        bytes_per_node_max: max,
        bytes_per_node_mean: mean,
        imbalance: max / mean,
        payload_bytes,
    };
    Ok((figures, bytes))
}

impl Run {
    fn overlap_name(&self) -> &'static str {
        if self.overlap { "wfbp" } else { "no overlap" }
    }
}

impl Emulation {
    /// For people.
    pub(crate) fn table(&self) -> String {
        let head = [
            "emulated",
            "ms\npredicted",
            "ms\nmeasured",
            "ms\nratio",
            "speed-up\npredicted",
            "speed-up\nmeasured",
            "speed-up\npaper",
            "MB/node max\npredicted",
            "MB/node max\nmeasured",
            "max/mean\npredicted",
            "max/mean\nmeasured",
            "sent again",
        ];
        let mut table = Columns::plain(head);
        for run in &self.runs {
            let (predicted, measured) = (&run.predicted, &run.measured);
            table.row([
                format!("{}, {}", run.policy, run.overlap_name()),
                format!("{:.0}", 1e3 * predicted.iteration_s),
                format!("{:.0}", 1e3 * measured.iteration_s),
                format!("{:.2}", measured.iteration_s / predicted.iteration_s),
                format!("{:.2}", predicted.speedup),
                format!("{:.2}", measured.speedup),
                paper(run.paper),
                format!("{:.2}", predicted.bytes_per_node_max / 1e6),
                format!("{:.2}", measured.bytes_per_node_max / 1e6),
                format!("{:.2}", predicted.imbalance),
                format!("{:.2}", measured.imbalance),
                run.retransmitted.to_string(),
            ]);
        }
        for peer in &self.peers {
            let max = peer.bytes_per_node.iter().copied().fold(0.0, f64::max);
            let mut row = vec!["-".to_owned(); head.len()];
            row[0] = format!("{}, wfbp", peer.name);
            row[2] = format!("{:.0}", 1e3 * peer.iteration_s);
            row[5] = format!("{:.2}", peer.speedup);
            row[8] = format!("{:.2}", max / 1e6);
            table.row(row);
        }
        let runs = self.runs.iter().map(|run| {
            let name = format!("{}, {}", run.policy, run.overlap_name());
            (name, &run.bytes_per_node)
        });
        let peers = self.peers.iter();
        let peers = peers.map(|peer| (format!("{}, wfbp", peer.name), &peer.bytes_per_node));
        let mut each = String::new();
        for (name, bytes) in runs.chain(peers) {
            let bytes = bytes.iter().map(|bytes| format!("{:.2}", bytes / 1e6));
            let bytes: Vec<String> = bytes.collect();
            each += &format!("\n{name}: {}", bytes.join(" "));
        }
        let head = format!(
            "emulated over TCP in network namespaces, {} times smaller (M, N and K by its root each), links of {:.3} Mbit/s \
             each way; workers sleep for the layers' times; {} iterations each. Predictions are of the smaller cluster and \
             count with {:.1} % of the link, the rest being headers; measured bytes have headers and acknowledgements.",
            self.scale,
            self.link_bits_per_s / 1e6,
            self.iterations,
            100.0 * self.goodput,
        );
        let each = format!("MB through each node's interface in one iteration, measured:{each}");
        let [head, each] = [head, each].map(|text| screen::wrap(&text, screen::width()));
        format!("{head}\n\n{table}\n\n{each}")
    }
}

fn scale(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(scale) if (1.0..=1e9).contains(&scale) => Ok(scale),
        _ => Err(format!(
            "`{text}` is no scale: give 1 (as large as planned) or more"
        )),
    }
}

//! What a plan says: the layers, and each way to synchronise them; as a table, JSON, a picture.
//!
//! Invariant: the JSON holds every figure of the table, in floats, bytes and seconds.

mod floats;

use dogwild::poseidon::cost::{cluster_floats, node_floats, worker_floats};
use dogwild::poseidon::{ClusterSize, LayerShape, Partition, Policy, Scheme};
use dogwild::watch::curve::{Axis, Curve, Panel, Series};
use dogwild::watch::screen::{self, Columns};
use serde::Serialize;

use super::Task;
use super::cluster::{Place, bytes_per_node, syncs};
use super::emulate::Emulation;
use super::schedule::{Next, Scene, iteration_s};
use floats::Floats;

/// The ways to synchronise that are compared.
pub(crate) const POLICIES: [Policy; 7] = [
    Policy::Force(Scheme::Ps),
    Policy::HybComm,
    Policy::Sacp,
    Policy::Force(Scheme::Adam),
    Policy::Force(Scheme::OneBit),
    Policy::Force(Scheme::P2p),
    Policy::Cheapest,
];

/// The whole report: settings, layers, and each way to synchronise them.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) net: String,
    pub(crate) parameters: u64,
    pub(crate) nodes: usize,
    pub(crate) workers: u64,
    pub(crate) servers: u64,
    pub(crate) servers_apart: bool,
    pub(crate) batch: u64,
    pub(crate) bandwidth_bytes_per_s: f64,
    /// Of a node's processor, in and out together, if it was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host_bytes_per_s: Option<f64>,
    pub(crate) pair_bytes: u64,
    pub(crate) partition: Partition,
    pub(crate) next: Next,
    pub(crate) images_per_s: f64,
    pub(crate) throughput_source: String,
    /// How layer times were made.
    pub(crate) times: &'static str,
    /// Seconds of an iteration of one node alone.
    pub(crate) alone_s: f64,
    pub(crate) layers: Vec<LayerReport>,
    pub(crate) ways: Vec<Way>,
    /// The same on a real, smaller network, if asked for.
    pub(crate) emulation: Option<Emulation>,
}

/// One layer.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LayerReport {
    pub(crate) name: String,
    pub(crate) kind: &'static str,
    pub(crate) m: u64,
    pub(crate) n: u64,
    pub(crate) parameters: u64,
    pub(crate) flops: u64,
    pub(crate) forward_s: f64,
    pub(crate) backward_s: f64,
    /// In and out of the node that has most to do: worker and server, or a worker if servers are
    /// apart.
    pub(crate) node_floats: Floats,
    /// On all links together, as the 2015 paper counts.
    pub(crate) cluster_floats: Floats,
    pub(crate) hybcomm: Scheme,
    pub(crate) sacp: Scheme,
    pub(crate) cheapest: Scheme,
}

/// One way to synchronise all layers.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Way {
    pub(crate) policy: String,
    /// Bytes that the busiest node sends and receives in one iteration, and the mean.
    pub(crate) bytes_per_node_max: f64,
    pub(crate) bytes_per_node_mean: f64,
    /// Their ratio; 1: all nodes have as much to do.
    pub(crate) imbalance: f64,
    pub(crate) no_overlap: Speed,
    pub(crate) wfbp: Speed,
}

/// How fast it is.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Speed {
    pub(crate) iteration_s: f64,
    /// Over one node alone.
    pub(crate) speedup: f64,
    /// What a paper reports for this net and so many nodes.
    pub(crate) paper: Option<f64>,
}

impl Way {
    /// Plays `policy` with and without overlap.
    pub(crate) fn new(task: &Task, place: &Place, policy: Policy) -> Self {
        let chosen: Vec<(LayerShape, Scheme)> = task
            .layers
            .iter()
            .map(|layer| (layer.shape, policy.choose(layer.shape, place.cluster)))
            .collect();
        let syncs = syncs(&chosen, place);
        let bytes = bytes_per_node(&syncs, place);
        let max = bytes.iter().copied().fold(0.0, f64::max);
        let mean = bytes.iter().sum::<f64>() / bytes.len() as f64;
        let speed = |overlap| {
            let iteration_s = iteration_s(&Scene {
                place,
                syncs: &syncs,
                times: &task.times,
                bytes_per_s: task.bytes_per_s,
                host_bytes_per_s: task.host_bytes_per_s,
                overlap,
                next: task.next,
            });
            let speedup = place.cluster.workers() as f64 * task.alone_s / iteration_s;
            let nodes = place.cluster.workers();
            Speed {
                iteration_s,
                speedup,
                paper: dogwild_tools::nets::reported(&task.net, nodes, policy, overlap),
            }
        };
        Self {
            policy: policy.to_string(),
            bytes_per_node_max: max,
            bytes_per_node_mean: mean,
            imbalance: if max > 0.0 { max / mean } else { 1.0 },
            no_overlap: speed(false),
            wfbp: speed(true),
        }
    }
}

impl LayerReport {
    fn new(layer: &super::Layer, [forward_s, backward_s]: [f64; 2], place: &Place) -> Self {
        let (shape, cluster) = (layer.shape, place.cluster);
        let node = if place.apart {
            worker_floats
        } else {
            node_floats
        };
        let floats = |count| Floats::new(count, shape, cluster);
        Self {
            name: layer.name.clone(),
            kind: layer.kind.name(),
            m: shape.outputs,
            n: shape.inputs,
            parameters: shape.parameters(),
            flops: layer.flops,
            forward_s,
            backward_s,
            node_floats: floats(node),
            cluster_floats: floats(cluster_floats),
            hybcomm: Policy::HybComm.choose(shape, cluster),
            sacp: Policy::Sacp.choose(shape, cluster),
            cheapest: Policy::Cheapest.choose(shape, cluster),
        }
    }
}

impl Report {
    pub(crate) fn new(task: &Task) -> Self {
        let (place, cluster) = (&task.place, task.place.cluster);
        let layers = task.layers.iter().zip(&task.times);
        Self {
            net: task.net.clone(),
            parameters: task
                .layers
                .iter()
                .map(|layer| layer.shape.parameters())
                .sum(),
            nodes: place.nodes(),
            workers: cluster.workers(),
            servers: cluster.servers(),
            servers_apart: place.apart,
            batch: cluster.batch(),
            bandwidth_bytes_per_s: task.bytes_per_s,
            host_bytes_per_s: task.host_bytes_per_s,
            pair_bytes: place.pair_bytes,
            partition: place.partition,
            next: task.next,
            images_per_s: task.images_per_s,
            throughput_source: task.throughput_source.clone(),
            times: "layer times are derived, not measured: one node's iteration divided by the layers' FLOPs, \
                    one third forward, two thirds backward",
            alone_s: task.alone_s,
            layers: layers
                .map(|(layer, times)| LayerReport::new(layer, *times, place))
                .collect(),
            emulation: None,
            ways: POLICIES.map(|policy| Way::new(task, place, policy)).into(),
        }
    }

    /// For people.
    pub(crate) fn table(&self) -> String {
        let (layers, ways) = (self.layer_table(), self.way_table());
        let head = screen::wrap(&self.head(), screen::width());
        let mut text = format!("{head}\n\n{layers}\n\n{ways}");
        if let Some(emulation) = &self.emulation {
            text += &format!("\n\n{}", emulation.table());
        }
        text
    }

    fn head(&self) -> String {
        let place = if self.servers_apart {
            "on nodes of their own"
        } else {
            "on the workers' nodes"
        };
        let role = if self.servers_apart {
            "a worker"
        } else {
            "a node that is worker and server (adam: the one that holds the layer)"
        };
        let host = self.host_bytes_per_s.map_or(String::new(), |rate| {
            format!("; a host handles {:.2} GB/s in and out", rate / 1e9)
        });
        format!(
            "{}: {:.1} M parameters; {} workers, {} servers {place}, {} images each, {:.2} Gbit/s each way{host}\n\
             one node alone: {:.1} images/s ({}), {:.1} ms per iteration\n{}\n\
             millions of floats are those in and out of {role} per iteration",
            self.net,
            self.parameters as f64 / 1e6,
            self.workers,
            self.servers,
            self.batch,
            self.bandwidth_bytes_per_s * 8.0 / 1e9,
            self.images_per_s,
            self.throughput_source,
            1e3 * self.alone_s,
            self.times,
        )
    }

    fn layer_table(&self) -> Columns {
        let head = [
            "layer",
            "kind",
            "M",
            "N",
            "forward ms",
            "ps M",
            "sfb M",
            "adam M",
            "onebit M",
            "p2p M",
            "hybcomm",
            "sacp",
            "cheapest",
        ];
        let mut table = Columns::plain(head).with_words(0..2);
        for layer in &self.layers {
            let millions = |floats: Option<f64>| {
                floats.map_or("-".to_owned(), |floats| format!("{:.3}", floats / 1e6))
            };
            let floats = &layer.node_floats;
            table.row([
                layer.name.clone(),
                layer.kind.to_owned(),
                layer.m.to_string(),
                layer.n.to_string(),
                format!("{:.2}", 1e3 * layer.forward_s),
                millions(Some(floats.ps)),
                millions(floats.sfb),
                millions(floats.adam),
                millions(Some(floats.onebit)),
                millions(Some(floats.p2p)),
                layer.hybcomm.to_string(),
                layer.sacp.to_string(),
                layer.cheapest.to_string(),
            ]);
        }
        table
    }

    fn way_table(&self) -> Columns {
        let head = [
            "policy",
            "MB/node\nmax",
            "MB/node\nmean",
            "MB/node\nmax/mean",
            "no overlap\nms",
            "no overlap\nspeed-up",
            "no overlap\npaper",
            "wfbp\nms",
            "wfbp\nspeed-up",
            "wfbp\npaper",
        ];
        let mut table = Columns::plain(head);
        for way in &self.ways {
            table.row([
                way.policy.clone(),
                format!("{:.1}", way.bytes_per_node_max / 1e6),
                format!("{:.1}", way.bytes_per_node_mean / 1e6),
                format!("{:.2}", way.imbalance),
                format!("{:.1}", 1e3 * way.no_overlap.iteration_s),
                format!("{:.2}", way.no_overlap.speedup),
                paper(way.no_overlap.paper),
                format!("{:.1}", 1e3 * way.wfbp.iteration_s),
                format!("{:.2}", way.wfbp.speedup),
                paper(way.wfbp.paper),
            ]);
        }
        table
    }
}

/// A speed-up that a paper reports, or a dash.
pub(crate) fn paper(reported: Option<f64>) -> String {
    reported.map_or("-".to_owned(), |speedup| format!("{speedup:.1}"))
}

/// Speed-up over nodes, up to those of the task; servers in proportion.
pub(crate) fn curve(task: &Task) -> Curve {
    let whole = task.place.cluster;
    let most = whole.workers() as u32;
    let doubling = std::iter::successors(Some(1u32), |nodes| nodes.checked_mul(2));
    let sizes: Vec<u32> = doubling
        .take_while(|&nodes| nodes < most)
        .chain([most])
        .collect();
    let smaller = |nodes: u32| {
        let servers = (whole.servers() * u64::from(nodes)).div_ceil(whole.workers());
        let cluster = ClusterSize::new(nodes, servers as u32, whole.batch() as u32);
        Place {
            cluster: cluster.unwrap_or(whole),
            ..task.place
        }
    };
    let mut series: Vec<Series> = vec![Series {
        name: "linear".into(),
        points: sizes
            .iter()
            .map(|&nodes| (nodes.into(), nodes.into()))
            .collect(),
    }];
    for policy in POLICIES {
        let ways: Vec<(f64, Way)> = sizes
            .iter()
            .map(|&nodes| (nodes.into(), Way::new(task, &smaller(nodes), policy)))
            .collect();
        let line = |name: String, speed: fn(&Way) -> Speed| Series {
            name,
            points: ways
                .iter()
                .map(|(nodes, way)| (*nodes, speed(way).speedup))
                .collect(),
        };
        if policy == Policy::Force(Scheme::Ps) {
            series.push(line("ps, no overlap".into(), |way| way.no_overlap));
        }
        series.push(line(format!("{policy}, wfbp"), |way| way.wfbp));
    }
    let rate = task.bytes_per_s * 8.0 / 1e9;
    let place = &task.place;
    // Half the nodes stand below half the picture on even axes: doublings are as far apart as they
    // are.
    let axis = Axis::LogAt(sizes.iter().map(|&nodes| nodes.into()).collect());
    Curve {
        title: format!(
            "{}: speed-up over nodes, predicted. {} images per node; {rate} Gbit/s each way; {} servers for {} \
             workers, {}; pairs of {} bytes at most. One node alone: {:.1} images/s ({})",
            task.net,
            whole.batch(),
            whole.servers(),
            whole.workers(),
            if place.apart {
                "on nodes of their own"
            } else {
                "on the same nodes"
            },
            place.pair_bytes,
            task.images_per_s,
            task.throughput_source,
        ),
        panels: vec![Panel {
            series,
            x_label: "nodes".into(),
            x_axis: axis.clone(),
            y_label: "speed-up over one node".into(),
            y_axis: axis,
        }],
    }
}

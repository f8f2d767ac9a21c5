//! What each scheme sends for a layer, in floats, and which scheme a layer takes.
//!
//! Numbers only: no I/O, no time. All counts are per iteration and in both directions: what is
//! sent and what is received. M x N are the layer's weights, P the workers, P2 the servers, K the
//! images per worker and iteration. The roles are those of the 2017 paper's table 1:
//!
//! | role | function | `ps` | `sfb` | `adam` | `onebit` | `p2p` |
//! |---|---|---|---|---|---|---|
//! | a worker on a node of its own | [`worker_floats`] | 2MN | 2K(P-1)(M+N) | K(M+N) + MN | 2B | 4MN(P-1)/P |
//! | a server on a node of its own | [`server_floats`] | 2PMN/P2 | 0 | P(K(M+N) + MN) | 2PB/P2 | 0 |
//! | a node that is worker and server | [`node_floats`] | 2MN(P+P2-2)/P2 | 2K(P-1)(M+N) | (P-1)(K(M+N) + MN) | 2B(P+P2-2)/P2 | 4MN(P-1)/P |
//! | all links, each float once (2015) | [`cluster_floats`] | 2PMN | (P-1)²K(M+N) | P(K(M+N) + MN) | 2PB | 2(P-1)MN |
//!
//! `p2p` is in neither paper: each worker adds up 1/P of the layer and gives the weights to all
//! others, which is a reduce-scatter and an all-gather. B is M(N/32 + 2), N/32 rounded up: signs,
//! and two values for each output.
//!
//! The rows of `adam` count the one server that holds the layer: its matrix lies there as a whole,
//! which is what makes Adam's load uneven. Every other node is a plain worker of that layer.
//!
//! The 2015 paper's (P-1)² for `sfb` leaves out one peer; P workers that send to P-1 peers each
//! send P(P-1)K(M+N), which is [`broadcast_floats`]. The rule uses the paper's count.
//!
//! A bias is M more floats wherever the whole matrix travels, and none where factors do: its
//! gradient is the sum of the factors u. The papers' numbers have no bias.

mod names;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use names::NameError;

/// How a layer's gradient travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scheme {
    /// Full matrices to and from the servers' shards.
    Ps,
    /// Sufficient factors u, v of each image to every peer, rebuilt there.
    Sfb,
    /// Factors to the one server that holds the layer, its full matrix back (Project Adam).
    Adam,
    /// One bit for each weight to and from the servers' shards, the rest kept as a residual (CNTK).
    OneBit,
    /// Full matrices to and from the other workers, each of which holds a shard.
    P2p,
}

impl Scheme {
    /// All schemes.
    pub const ALL: [Self; 5] = [Self::Ps, Self::Sfb, Self::Adam, Self::OneBit, Self::P2p];

    /// True if it sends factors, which only fully connected layers have.
    pub fn sends_factors(self) -> bool {
        matches!(self, Self::Sfb | Self::Adam)
    }

    /// True if its messages go from worker to worker, and to no server.
    pub fn is_between_workers(self) -> bool {
        matches!(self, Self::Sfb | Self::P2p)
    }
}

/// The rule that chooses a layer's scheme.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Policy {
    /// HybComm of 2017: `sfb` if 2K(P-1)(M+N) <= 2MN(P+P2-2)/P2, else `ps`.
    HybComm,
    /// SACP of 2015: `sfb` if (P-1)²K(M+N) <= PK(M+N) + PMN, else `adam`.
    Sacp,
    /// The exact scheme with the fewest floats in and out of a node that is worker and server
    /// ([`node_floats`]): `sfb`, `p2p` or `ps`. Of equal ones the first of these.
    Cheapest,
    /// A bit for each weight of fully connected layers, as in the 2017 paper, and `ps` elsewhere: a
    /// convolution has few weights, and learns much worse with it.
    OneBit,
    /// This scheme wherever it can be: `sfb` and `adam` leave convolutions to `ps`.
    Force(Scheme),
}

impl Policy {
    /// True if it lets layers travel in bits, whose weights are with the workers alone.
    pub fn sends_bits(self) -> bool {
        matches!(self, Self::OneBit | Self::Force(Scheme::OneBit))
    }

    /// The same choice where a server must count the updates of every layer, as one must to leave a
    /// late worker out for all. A layer that a rule would give to `sfb` then takes the rule's other
    /// scheme. A forced scheme stays.
    pub fn choose_on_servers(self, layer: LayerShape, cluster: ClusterSize) -> Scheme {
        match (self, self.choose(layer, cluster)) {
            (Self::HybComm, Scheme::Sfb) => Scheme::Ps,
            (Self::Sacp, Scheme::Sfb) => Scheme::Adam,
            (Self::Cheapest, _) => Scheme::Ps,
            (_, scheme) => scheme,
        }
    }

    /// The scheme of a layer. A layer that is not fully connected has no factors: it takes `ps`
    /// whatever the policy, unless `onebit` or `p2p` is forced, or `p2p` is the cheapest. Where
    /// there is no server, `p2p` takes the place of `ps` in each rule.
    pub fn choose(self, layer: LayerShape, cluster: ClusterSize) -> Scheme {
        if cluster.servers == 0 {
            return self.choose_among_workers(layer, cluster);
        }
        // Exact: both sides as whole numbers, multiplied by what the rule divides by.
        let [m, n] = [layer.outputs, layer.inputs].map(u128::from);
        let [p, p2, k] = [cluster.workers, cluster.servers, cluster.batch].map(u128::from);
        let factors = k * (m + n);
        // 2MN(P+P2-2)/P2 >= 4MN(P-1)/P, times P and P2 and without 2MN.
        let dense = match p * (p + p2 - 2) >= 2 * (p - 1) * p2 {
            true => Scheme::P2p,
            false => Scheme::Ps,
        };
        if !layer.fully_connected {
            return match self {
                Self::Force(scheme @ (Scheme::OneBit | Scheme::P2p)) => scheme,
                Self::Cheapest => dense,
                _ => Scheme::Ps,
            };
        }
        match self {
            Self::Force(scheme) => scheme,
            Self::OneBit => Scheme::OneBit,
            Self::Cheapest => {
                let by_p2p = (p - 1) * factors * p <= 2 * m * n * (p - 1);
                let by_ps = (p - 1) * factors * p2 <= m * n * (p + p2 - 2);
                match by_p2p && by_ps {
                    true => Scheme::Sfb,
                    false => dense,
                }
            }
            Self::HybComm if (p - 1) * factors * p2 <= m * n * (p + p2 - 2) => Scheme::Sfb,
            Self::HybComm => Scheme::Ps,
            Self::Sacp if (p - 1) * (p - 1) * factors <= p * (factors + m * n) => Scheme::Sfb,
            Self::Sacp => Scheme::Adam,
        }
    }

    fn choose_among_workers(self, layer: LayerShape, cluster: ClusterSize) -> Scheme {
        let alike = ClusterSize {
            servers: cluster.workers,
            ..cluster
        };
        // As many servers as workers move as much as the workers alone would.
        match (self, self.choose(layer, alike)) {
            (Self::Force(Scheme::Ps), scheme) => scheme,
            (_, Scheme::Ps) => Scheme::P2p,
            (_, scheme) => scheme,
        }
    }
}

/// A layer's weights: M x N and perhaps a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LayerShape {
    /// M: outputs, or output channels of a convolution.
    pub outputs: u64,
    /// N: inputs, or input channels of its group times the kernel's area.
    pub inputs: u64,
    /// Whether M more weights are a bias.
    pub bias: bool,
    /// Whether an image's gradient is the product of two vectors (not so for convolutions).
    pub fully_connected: bool,
}

impl LayerShape {
    /// A fully connected layer without a bias.
    pub fn dense(outputs: u64, inputs: u64) -> Self {
        Self {
            outputs,
            inputs,
            bias: false,
            fully_connected: true,
        }
    }

    /// Floats of the whole layer, with its bias.
    pub fn parameters(self) -> u64 {
        self.outputs * self.inputs + if self.bias { self.outputs } else { 0 }
    }

    /// Floats of the factors u and v of one image.
    pub fn factors(self) -> u64 {
        self.outputs + self.inputs
    }
}

/// Why a cluster of this size cannot train.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ClusterError {
    /// There are no workers.
    #[error("0 workers compute nothing: give 1 or more")]
    NoWorkers,
    /// A batch has no images.
    #[error("a batch of 0 images has no gradient: give 1 or more")]
    NoBatch,
}

/// The size of a cluster and of its batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ClusterSize {
    workers: u64,
    servers: u64,
    batch: u64,
}

impl ClusterSize {
    /// P workers, P2 servers (shards; 0: workers are on their own), K images per worker and
    /// iteration.
    ///
    /// # Errors
    /// There are no workers or no images.
    pub fn new(workers: u32, servers: u32, batch: u32) -> Result<Self, ClusterError> {
        match (workers, servers, batch) {
            (0, _, _) => Err(ClusterError::NoWorkers),
            (_, _, 0) => Err(ClusterError::NoBatch),
            _ => Ok(Self {
                workers: workers.into(),
                servers: servers.into(),
                batch: batch.into(),
            }),
        }
    }

    /// The same machines with K images each; at least one.
    pub fn with_batch(self, batch: u32) -> Self {
        Self {
            batch: batch.max(1).into(),
            ..self
        }
    }

    /// P, the number of workers.
    pub fn workers(self) -> u64 {
        self.workers
    }

    /// P2, the number of servers.
    pub fn servers(self) -> u64 {
        self.servers
    }

    /// K, the images per worker and iteration.
    pub fn batch(self) -> u64 {
        self.batch
    }

    fn parts(self) -> [f64; 3] {
        [self.workers, self.servers, self.batch].map(|count| count as f64)
    }
}

/// Floats of the factors of one worker's batch, K(M+N), and of the whole layer, MN and its bias.
fn volumes(layer: LayerShape, cluster: ClusterSize) -> (f64, f64) {
    let factors = (cluster.batch * layer.factors()) as f64;
    (factors, layer.parameters() as f64)
}

/// Weights whose signs fill the place of one float.
const SIGNS_PER_FLOAT: u64 = 32;

/// Floats of the whole layer at one bit for each weight of its matrix: of each output two values
/// and the signs, and its bias.
fn bits(layer: LayerShape) -> f64 {
    let row = 2 + layer.inputs.div_ceil(SIGNS_PER_FLOAT);
    let bias = layer.parameters() - layer.outputs * layer.inputs;
    (layer.outputs * row + bias) as f64
}

/// Floats in and out of a node that is a worker only, of a layer under `scheme`.
pub fn worker_floats(scheme: Scheme, layer: LayerShape, cluster: ClusterSize) -> f64 {
    let (factors, matrix) = volumes(layer, cluster);
    let [p, _, _] = cluster.parts();
    match scheme {
        Scheme::Ps => 2.0 * matrix,
        Scheme::Sfb => 2.0 * (p - 1.0) * factors,
        Scheme::Adam => factors + matrix,
        Scheme::OneBit => 2.0 * bits(layer),
        Scheme::P2p => 4.0 * matrix * (p - 1.0) / p,
    }
}

/// Floats in and out of a node that is a server only, if there is one; for `adam` the one that
/// holds the layer.
pub fn server_floats(scheme: Scheme, layer: LayerShape, cluster: ClusterSize) -> f64 {
    let (factors, matrix) = volumes(layer, cluster);
    let [p, p2, _] = cluster.parts();
    match scheme {
        Scheme::Ps => 2.0 * p * matrix / p2,
        Scheme::Sfb => 0.0,
        Scheme::Adam => p * (factors + matrix),
        Scheme::OneBit => 2.0 * p * bits(layer) / p2,
        Scheme::P2p => 0.0,
    }
}

/// Floats in and out of a node that is both a worker and a server; for `adam` the one that holds
/// the layer. Messages of a worker to the server on its own node do not travel.
pub fn node_floats(scheme: Scheme, layer: LayerShape, cluster: ClusterSize) -> f64 {
    let (factors, matrix) = volumes(layer, cluster);
    let [p, p2, _] = cluster.parts();
    match scheme {
        Scheme::Ps => 2.0 * matrix * (p + p2 - 2.0) / p2,
        Scheme::Sfb => 2.0 * (p - 1.0) * factors,
        Scheme::Adam => (p - 1.0) * (factors + matrix),
        Scheme::OneBit => 2.0 * bits(layer) * (p + p2 - 2.0) / p2,
        Scheme::P2p => 4.0 * matrix * (p - 1.0) / p,
    }
}

/// Floats on all links together, as the 2015 paper counts them: servers on nodes of their own,
/// each float once, and for `sfb` (P-1)² messages (see [`broadcast_floats`]).
pub fn cluster_floats(scheme: Scheme, layer: LayerShape, cluster: ClusterSize) -> f64 {
    let (factors, matrix) = volumes(layer, cluster);
    let [p, _, _] = cluster.parts();
    match scheme {
        Scheme::Ps => 2.0 * p * matrix,
        Scheme::Sfb => (p - 1.0) * (p - 1.0) * factors,
        Scheme::Adam => p * (factors + matrix),
        Scheme::OneBit => 2.0 * p * bits(layer),
        Scheme::P2p => 2.0 * (p - 1.0) * matrix,
    }
}

/// Floats that `sfb` puts on all links: each of P workers sends its factors to P-1 peers.
pub fn broadcast_floats(layer: LayerShape, cluster: ClusterSize) -> f64 {
    let [p, _, _] = cluster.parts();
    p * (p - 1.0) * volumes(layer, cluster).0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(workers: u32, servers: u32, batch: u32) -> ClusterSize {
        ClusterSize::new(workers, servers, batch).unwrap()
    }

    #[test]
    fn numbers_of_the_2015_paper() {
        // Section 4.3: M = N = 4096, K = 256, P = 4: 18.9 M, 134.2 M and 75.5 M floats.
        let (fc, four) = (LayerShape::dense(4096, 4096), cluster(4, 4, 256));
        assert_eq!(cluster_floats(Scheme::Sfb, fc, four), 18_874_368.0);
        assert_eq!(cluster_floats(Scheme::Ps, fc, four), 134_217_728.0);
        assert_eq!(cluster_floats(Scheme::Adam, fc, four), 75_497_472.0);
        assert_eq!(Policy::Sacp.choose(fc, four), Scheme::Sfb);
    }

    #[test]
    fn numbers_of_the_2017_paper() {
        // Section 3.2: M = N = 4096, K = 32, P = P2 = 8: 3.7 M, 33.6 M and 58.7 M floats.
        let (fc, eight) = (LayerShape::dense(4096, 4096), cluster(8, 8, 32));
        assert_eq!(worker_floats(Scheme::Sfb, fc, eight), 3_670_016.0);
        assert_eq!(node_floats(Scheme::Sfb, fc, eight), 3_670_016.0);
        assert_eq!(worker_floats(Scheme::Ps, fc, eight), 33_554_432.0);
        assert_eq!(node_floats(Scheme::Ps, fc, eight), 58_720_256.0);
        assert_eq!(Policy::HybComm.choose(fc, eight), Scheme::Sfb);
    }

    #[test]
    fn the_thin_layer_of_googlenet_goes_to_the_servers() {
        let (thin, sixteen) = (LayerShape::dense(1000, 1024), cluster(16, 16, 128));
        assert_eq!(Policy::HybComm.choose(thin, sixteen), Scheme::Ps);
        assert!(node_floats(Scheme::Sfb, thin, sixteen) > node_floats(Scheme::Ps, thin, sixteen));
    }

    #[test]
    fn the_rules_turn_where_they_say() {
        // 2K(P-1)(M+N) = 2MN(P+P2-2)/P2 at P = P2 = 2, M = N = 2K: equal takes `sfb`.
        let hybcomm =
            |side| Policy::HybComm.choose(LayerShape::dense(side, side), cluster(2, 2, 8));
        assert_eq!([hybcomm(15), hybcomm(16)], [Scheme::Ps, Scheme::Sfb]);
        // (P-1)²K(M+N) = PK(M+N) + PMN at P = 4, K = 2, M = N: 36M = 16M + 4M², M = 5.
        let sacp = |side| Policy::Sacp.choose(LayerShape::dense(side, side), cluster(4, 1, 2));
        assert_eq!([sacp(4), sacp(5)], [Scheme::Adam, Scheme::Sfb]);
    }

    #[test]
    fn the_cheapest_sends_least() {
        let exact = [Scheme::Sfb, Scheme::P2p, Scheme::Ps];
        for (p, p2, k) in [
            (1, 1, 4),
            (2, 1, 8),
            (4, 1, 8),
            (4, 8, 100),
            (8, 8, 32),
            (2, 5, 64),
        ] {
            let c = cluster(p, p2, k);
            for side in [4, 16, 64, 1024] {
                for fully_connected in [false, true] {
                    let layer = LayerShape {
                        fully_connected,
                        ..LayerShape::dense(side, 3 * side)
                    };
                    let may = exact
                        .into_iter()
                        .filter(|s| fully_connected || *s != Scheme::Sfb);
                    let least = may
                        .map(|s| node_floats(s, layer, c))
                        .fold(f64::MAX, f64::min);
                    let chosen = Policy::Cheapest.choose(layer, c);
                    assert_eq!(
                        node_floats(chosen, layer, c),
                        least,
                        "{chosen} of {layer:?}, {c:?}"
                    );
                    assert_eq!(Policy::Cheapest.choose_on_servers(layer, c), Scheme::Ps);
                }
            }
        }
        // With more servers than workers they share the load better.
        let conv = LayerShape {
            fully_connected: false,
            ..LayerShape::dense(64, 64)
        };
        assert_eq!(Policy::Cheapest.choose(conv, cluster(4, 8, 1)), Scheme::Ps);
        assert_eq!(Policy::Cheapest.choose(conv, cluster(4, 4, 1)), Scheme::P2p);
    }

    #[test]
    fn convolutions_have_no_factors() {
        let conv = LayerShape {
            outputs: 4096,
            inputs: 4096,
            bias: true,
            fully_connected: false,
        };
        for policy in ["hybcomm", "sacp", "sfb", "adam", "ps"] {
            let policy: Policy = policy.parse().unwrap();
            assert_eq!(
                policy.choose(conv, cluster(8, 8, 1)),
                Scheme::Ps,
                "{policy}"
            );
        }
        let few: Policy = "onebit".parse().unwrap();
        assert_eq!(few.choose(conv, cluster(8, 8, 1)), Scheme::Ps);
        let full = LayerShape::dense(64, 64);
        assert_eq!(few.choose(full, cluster(8, 8, 1)), Scheme::OneBit);
        assert_eq!(
            few.choose_on_servers(full, cluster(8, 8, 1)),
            Scheme::OneBit
        );
        for name in [
            "hybcomm",
            "sacp",
            "cheapest",
            "ps",
            "sfb",
            "adam",
            "onebit",
            "onebit-all",
            "p2p",
        ] {
            let policy: Policy = name.parse().unwrap();
            assert_eq!(policy.to_string(), name);
            assert_eq!(policy.sends_bits(), name.starts_with("onebit"));
        }
        let onebit: Policy = "onebit-all".parse().unwrap();
        assert_eq!(onebit.choose(conv, cluster(8, 8, 1)), Scheme::OneBit);
        let p2p = Policy::Force(Scheme::P2p);
        assert_eq!(p2p.choose(conv, cluster(8, 8, 1)), Scheme::P2p);
    }

    #[test]
    fn nodes_add_up() {
        // What all nodes send and receive is twice what travels; nothing travels on a node alone.
        let fc = LayerShape {
            bias: true,
            ..LayerShape::dense(300, 70)
        };
        let (p, p2) = (5.0, 5.0);
        let c = cluster(5, 5, 3);
        let ps = p * node_floats(Scheme::Ps, fc, c);
        let local = p * 2.0 * fc.parameters() as f64 / p2;
        assert_eq!(ps, 2.0 * (cluster_floats(Scheme::Ps, fc, c) - local));
        assert_eq!(
            p * node_floats(Scheme::Sfb, fc, c),
            2.0 * broadcast_floats(fc, c)
        );
        let apart = p * worker_floats(Scheme::Adam, fc, c) + server_floats(Scheme::Adam, fc, c);
        assert_eq!(apart, 2.0 * cluster_floats(Scheme::Adam, fc, c));
        let apart = p * worker_floats(Scheme::Ps, fc, c) + p2 * server_floats(Scheme::Ps, fc, c);
        assert_eq!(apart, 2.0 * cluster_floats(Scheme::Ps, fc, c));
        let p2p = p * node_floats(Scheme::P2p, fc, c);
        assert_eq!(p2p, 2.0 * cluster_floats(Scheme::P2p, fc, c));
        assert_eq!(p2p, p * worker_floats(Scheme::P2p, fc, c));
        for scheme in Scheme::ALL {
            assert_eq!(node_floats(scheme, fc, cluster(1, 1, 3)), 0.0, "{scheme}");
        }
    }

    /// Without servers `p2p` takes the place of `ps`: the rule of 2017 is then that of as many
    /// servers as workers, which move as much. A forced scheme stays, for the plan to refuse.
    #[test]
    fn without_servers_workers_hold_what_servers_would() {
        let fc = LayerShape::dense(1000, 4096);
        let conv = LayerShape {
            fully_connected: false,
            ..LayerShape::dense(64, 147)
        };
        for workers in [1, 2, 3, 8, 64] {
            for batch in [1, 32, 500, 5000] {
                let alone = cluster(workers, 0, batch);
                for policy in [Policy::HybComm, Policy::Cheapest] {
                    assert_eq!(policy.choose(conv, alone), Scheme::P2p);
                    let alike = policy.choose(fc, cluster(workers, workers, batch));
                    let expected = match alike {
                        Scheme::Sfb => Scheme::Sfb,
                        _ => Scheme::P2p,
                    };
                    assert_eq!(policy.choose(fc, alone), expected, "{workers}, {batch}");
                }
                let by_peers = node_floats(Scheme::P2p, fc, alone);
                let cheap = Policy::HybComm.choose(fc, alone);
                assert!(node_floats(cheap, fc, alone) <= by_peers);
            }
        }
        for scheme in [Scheme::Ps, Scheme::Adam, Scheme::OneBit] {
            assert_eq!(Policy::Force(scheme).choose(fc, cluster(2, 0, 1)), scheme);
        }
        assert_eq!(
            Policy::Force(Scheme::Ps).choose(conv, cluster(2, 0, 1)),
            Scheme::Ps
        );
        assert_eq!(
            Policy::Force(Scheme::Sfb).choose(conv, cluster(2, 0, 1)),
            Scheme::P2p
        );
    }

    #[test]
    fn empty_clusters_and_unknown_names_are_refused() {
        assert_eq!(ClusterSize::new(0, 1, 1), Err(ClusterError::NoWorkers));
        assert_eq!(ClusterSize::new(1, 1, 0), Err(ClusterError::NoBatch));
        let error = "hybrid".parse::<Policy>().unwrap_err().to_string();
        assert!(
            error.contains("`hybrid`") && error.contains("hybcomm"),
            "{error}"
        );
        assert!("PS".parse::<Scheme>().is_err());
    }
}

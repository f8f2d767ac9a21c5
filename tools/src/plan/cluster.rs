//! Who sends what to whom to synchronise one layer.
//!
//! Numbers only. Invariant: the bytes of the messages made here, added up for a node, are the
//! floats of `dogwild::poseidon::cost` times four (a test holds them together), but that pairs are
//! whole: a layer smaller than a pair lies on one server.

use dogwild::poseidon::cost::{Cluster, LayerShape, Scheme};

/// Machines and their links.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) cluster: Cluster,
    /// Servers have nodes of their own, behind those of the workers.
    pub(crate) apart: bool,
    /// Bytes of a KV pair, at most.
    pub(crate) pair_bytes: u64,
}

impl Place {
    pub(crate) fn workers(&self) -> usize {
        self.cluster.workers() as usize
    }

    fn servers(&self) -> usize {
        self.cluster.servers() as usize
    }

    pub(crate) fn nodes(&self) -> usize {
        if self.apart {
            self.workers() + self.servers()
        } else {
            self.workers()
        }
    }

    /// The node of a server.
    fn home(&self, server: usize) -> usize {
        if self.apart {
            self.workers() + server
        } else {
            server % self.workers()
        }
    }
}

/// How one layer is brought into step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Sync {
    /// Each of these by itself.
    Gathers(Vec<Gather>),
    /// Every worker sends so many bytes to every other.
    Broadcast(f64),
}

/// Workers send to a server, which answers all of them when it has heard from all.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Gather {
    /// The server's node.
    pub(crate) home: usize,
    /// Bytes from each worker.
    pub(crate) up: f64,
    /// Bytes of each message to each worker.
    pub(crate) down: Vec<f64>,
}

/// KV pairs of a layer: its weights, then its bias, each in parts as equal as can be; in weights.
fn pairs(layer: LayerShape, pair_bytes: u64) -> Vec<u64> {
    let weights = layer.outputs * layer.inputs;
    let most = (pair_bytes / 4).max(1);
    let mut pairs = Vec::new();
    for len in [weights, layer.parameters() - weights] {
        let parts = len.div_ceil(most);
        pairs.extend((0..parts).map(|i| (i + 1) * len / parts - i * len / parts));
    }
    pairs
}

/// KV pairs of all layers together.
pub(crate) fn pair_count(layers: impl Iterator<Item = LayerShape>, pair_bytes: u64) -> usize {
    layers.map(|layer| pairs(layer, pair_bytes).len()).sum()
}

/// How each layer is brought into step. Each pair goes to the server that holds least so far; a
/// layer under `adam` goes there as a whole.
pub(crate) fn syncs(layers: &[(LayerShape, Scheme)], place: &Place) -> Vec<Sync> {
    let mut load = vec![0; place.servers()];
    let mut hold = |len: u64| {
        let server = (0..load.len()).min_by_key(|&i| load[i]).unwrap_or(0);
        load[server] += len;
        place.home(server)
    };
    let sync = |&(layer, scheme): &(LayerShape, Scheme)| {
        let factors = (4 * place.cluster.batch() * layer.factors()) as f64;
        let pairs = pairs(layer, place.pair_bytes);
        match scheme {
            Scheme::Sfb => Sync::Broadcast(factors),
            Scheme::Adam => Sync::Gathers(vec![Gather {
                home: hold(layer.parameters()),
                up: factors,
                down: pairs.iter().map(|&len| 4.0 * len as f64).collect(),
            }]),
            Scheme::Ps | Scheme::OneBit => {
                let bytes = |len: u64| match scheme {
                    Scheme::OneBit => len as f64 / 8.0,
                    _ => 4.0 * len as f64,
                };
                let gather = |len| Gather {
                    home: hold(len),
                    up: bytes(len),
                    down: vec![bytes(len)],
                };
                Sync::Gathers(pairs.into_iter().map(gather).collect())
            }
        }
    };
    layers.iter().map(sync).collect()
}

/// Bytes that each node sends and receives in one iteration.
pub(crate) fn bytes_per_node(syncs: &[Sync], place: &Place) -> Vec<f64> {
    let workers = place.workers();
    let mut bytes = vec![0.0; place.nodes()];
    let mut travel = |from: usize, to: usize, size: f64| {
        if from != to {
            bytes[from] += size;
            bytes[to] += size;
        }
    };
    for sync in syncs {
        for worker in 0..workers {
            match sync {
                Sync::Broadcast(size) => {
                    (0..workers).for_each(|peer| travel(worker, peer, *size));
                }
                Sync::Gathers(gathers) => {
                    for gather in gathers {
                        travel(worker, gather.home, gather.up);
                        travel(gather.home, worker, gather.down.iter().sum());
                    }
                }
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use dogwild::poseidon::cost::{node_floats, server_floats, worker_floats};

    /// M x N and pairs such that every server holds as many pairs.
    fn place(apart: bool) -> (Place, LayerShape) {
        let place = Place {
            cluster: Cluster::new(4, 4, 8).unwrap(),
            apart,
            pair_bytes: 4 * 64 * 96,
        };
        (place, LayerShape::dense(64 * 8, 96))
    }

    #[test]
    fn messages_are_what_the_cost_model_counts() {
        for scheme in [Scheme::Ps, Scheme::Sfb, Scheme::OneBit, Scheme::Adam] {
            let (together, layer) = place(false);
            let bytes = bytes_per_node(&syncs(&[(layer, scheme)], &together), &together);
            let node = 4.0 * node_floats(scheme, layer, together.cluster);
            assert_eq!(bytes[0], node, "{scheme}");
            let (apart, layer) = place(true);
            let bytes = bytes_per_node(&syncs(&[(layer, scheme)], &apart), &apart);
            let worker = 4.0 * worker_floats(scheme, layer, apart.cluster);
            let server = 4.0 * server_floats(scheme, layer, apart.cluster);
            assert_eq!([bytes[0], bytes[4]], [worker, server], "{scheme}");
        }
    }

    #[test]
    fn adams_load_lies_on_one_node() {
        let (place, layer) = place(false);
        let bytes = bytes_per_node(&syncs(&[(layer, Scheme::Adam)], &place), &place);
        assert!(
            bytes[1..].iter().all(|&other| bytes[0] == 3.0 * other),
            "{bytes:?}"
        );
    }

    #[test]
    fn pairs_are_whole_and_even() {
        let layer = LayerShape {
            bias: true,
            ..LayerShape::dense(10, 10)
        };
        assert_eq!(pairs(layer, 4 * 40), [33, 33, 34, 10]);
        assert_eq!(pair_count([layer, layer].into_iter(), 4 * 40), 8);
    }
}

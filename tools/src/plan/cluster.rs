//! Which node sends what to which to synchronise one layer.
//!
//! Numbers only. Invariant: the bytes of the messages made here, added up for a node, are the
//! floats of `dogwild::poseidon::cost` times four. A test holds them together. Two things differ:
//! pairs are whole (a layer smaller than a pair lies on one server), and `onebit` has two floats
//! more for each.

use dogwild::poseidon::{
    ClusterSize, LayerShape, Member, MemberRole, Partition, Plan, PlanLayer, PlanTensor, Reads,
    Scheme, StepSpec, Stragglers,
};

/// Machines and their links.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) cluster: ClusterSize,
    /// Servers have nodes of their own, behind those of the workers.
    pub(crate) apart: bool,
    /// Bytes of a KV pair, at most.
    pub(crate) pair_bytes: u64,
    /// Whether tensors are dealt to servers in pairs or whole.
    pub(crate) partition: Partition,
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

    /// The node of a member.
    pub(crate) fn home(&self, member: Member) -> usize {
        let index = usize::from(member.index);
        match member.role {
            MemberRole::Worker => index,
            MemberRole::Server if self.apart => self.workers() + index,
            MemberRole::Server => index % self.workers(),
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

/// Workers send to a pair's home, a server or one of them, which answers all of them when all have
/// sent.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Gather {
    /// The home's node.
    pub(crate) home: usize,
    /// Bytes from each worker.
    pub(crate) up: f64,
    /// Bytes of each message to each worker.
    pub(crate) down: Vec<f64>,
}

/// The plan that coordinator, servers and workers would share.
fn plan(layers: &[(LayerShape, Scheme)], place: &Place) -> Plan {
    let mut offset = 0;
    let mut tensor = |shape: &[usize]| {
        let tensor = PlanTensor::new("", offset, shape);
        offset += tensor.len;
        tensor
    };
    let mut layer = |&(shape, scheme): &(LayerShape, Scheme)| {
        let [outputs, inputs] = [shape.outputs, shape.inputs].map(|len| len as usize);
        let shapes: [&[usize]; 2] = [&[outputs, inputs], &[outputs]];
        PlanLayer {
            name: String::new(),
            shape,
            scheme,
            rows: place.cluster.batch() as u32,
            tensors: shapes[..if shape.bias { 2 } else { 1 }]
                .iter()
                .map(|shape| tensor(shape))
                .collect(),
        }
    };
    Plan {
        workers: place.cluster.workers() as u16,
        servers: place.cluster.servers() as u16,
        images: place.cluster.batch() as u32,
        layers: layers.iter().map(&mut layer).collect(),
        pair_bytes: place.pair_bytes,
        partition: place.partition,
        staleness: 0,
        reads: Reads::Own,
        stragglers: Stragglers::Wait,
        clocks: 1,
        checkpoint_every: 0,
        recipe: String::new(),
        step: StepSpec::default(),
    }
}

/// KV pairs that servers hold when all layers take `ps`.
pub(crate) fn pair_count(layers: impl Iterator<Item = LayerShape>, place: &Place) -> usize {
    let layers: Vec<_> = layers.map(|layer| (layer, Scheme::Ps)).collect();
    plan(&layers, place).pairs().len()
}

/// How each layer is brought into step: with the KV pairs and at the servers that a cluster of
/// dogwild's would use.
pub(crate) fn syncs(layers: &[(LayerShape, Scheme)], place: &Place) -> Vec<Sync> {
    let factors = |layer: LayerShape| (4 * place.cluster.batch() * layer.factors()) as f64;
    let start = |&(layer, scheme): &(LayerShape, Scheme)| match scheme {
        Scheme::Sfb => Sync::Broadcast(factors(layer)),
        _ => Sync::Gathers(Vec::new()),
    };
    let mut syncs: Vec<Sync> = layers.iter().map(start).collect();
    for pair in plan(layers, place).pairs() {
        let (layer, scheme) = (layers[pair.layer].0, pair.scheme);
        let (Sync::Gathers(gathers), Some(home)) = (&mut syncs[pair.layer], pair.home) else {
            continue;
        };
        let bytes = match scheme {
            Scheme::OneBit => 4 * pair.size().bits_len(),
            _ => 4 * pair.len,
        } as f64;
        match gathers.last_mut() {
            Some(whole) if scheme == Scheme::Adam => whole.down.push(bytes),
            _ => gathers.push(Gather {
                home: place.home(home),
                up: if scheme == Scheme::Adam {
                    factors(layer)
                } else {
                    bytes
                },
                down: vec![bytes],
            }),
        }
    }
    syncs
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

/// Payload bytes of all messages of one iteration, also those that stay on a node.
pub(crate) fn payload_bytes(syncs: &[Sync], place: &Place) -> f64 {
    let workers = place.workers() as f64;
    let bytes = |sync: &Sync| match sync {
        Sync::Broadcast(size) => (workers - 1.0) * size,
        Sync::Gathers(gathers) => gathers
            .iter()
            .map(|g| g.up + g.down.iter().sum::<f64>())
            .sum(),
    };
    workers * syncs.iter().map(bytes).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use dogwild::poseidon::cost::{node_floats, server_floats, worker_floats};

    /// M x N and pairs such that every server holds as many pairs.
    fn place(apart: bool) -> (Place, LayerShape) {
        let place = Place {
            cluster: ClusterSize::new(4, 4, 8).unwrap(),
            apart,
            pair_bytes: 4 * 64 * 96,
            partition: Partition::Pairs,
        };
        (place, LayerShape::dense(64 * 8, 96))
    }

    #[test]
    fn messages_are_what_the_cost_model_counts() {
        for scheme in Scheme::ALL {
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
}

//! KV pairs: how tensors are cut, and which member holds which part. Numbers only.

use serde::{Deserialize, Serialize};

use super::super::coordinator::{Member, MemberRole};
use super::super::message::PairSize;
use super::loads::Loads;
use super::{Partition, Plan, PlanTensor};
use crate::poseidon::cost::Scheme;

/// A KV pair: consecutive weights of one tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair {
    /// Its number in the plan.
    pub id: u32,
    /// Its layer, by the layer's place in the plan.
    pub layer: usize,
    /// Its tensor: weight (0) or bias (1) of the layer.
    pub tensor: usize,
    /// First weight in the buffer.
    pub offset: usize,
    /// First weight in the layer, when weight and bias follow each other without a gap.
    pub in_layer: usize,
    /// Number of weights.
    pub len: usize,
    /// How its gradient travels: by its layer's scheme, but biases of a layer under `onebit` by
    /// `ps`.
    pub scheme: Scheme,
    /// Consecutive weights that share two values under `onebit`, those of one output; at the end
    /// of the pair perhaps fewer.
    pub row: usize,
    /// The member that adds up its gradients and makes its steps: a server, or under `p2p` a
    /// worker. None if its layer takes `sfb`.
    pub home: Option<Member>,
}

impl Pair {
    /// How long messages about it are.
    pub fn size(&self) -> PairSize {
        PairSize {
            weights: self.len,
            row: self.row,
        }
    }
}

/// The scheme of a tensor whose layer has this one. A bias has one weight for each output: in bits
/// it would be no shorter, as each has two values then.
fn scheme_of(layer: Scheme, tensor: &PlanTensor) -> Scheme {
    match layer {
        Scheme::OneBit if tensor.row <= 1 => Scheme::Ps,
        other => other,
    }
}

/// Where the parts of a tensor begin and end, at most `most` weights each. Parts are as equal as
/// can be. Under `onebit` each has whole rows, or a row is in parts of its own.
fn cuts(tensor: &PlanTensor, scheme: Scheme, most: usize) -> Vec<[usize; 2]> {
    let even = |len: usize, parts: usize| {
        (0..parts).map(move |part| [part, part + 1].map(|p| p * len / parts))
    };
    if scheme != Scheme::OneBit {
        return even(tensor.len, tensor.len.div_ceil(most)).collect();
    }
    let rows = tensor.len.div_ceil(tensor.row);
    if tensor.row <= most {
        let parts = even(rows, rows.div_ceil(most / tensor.row));
        let whole =
            |rows: [usize; 2]| rows.map(|row| row.saturating_mul(tensor.row).min(tensor.len));
        return parts.map(whole).collect();
    }
    let of_row = |row: usize| {
        let from = row * tensor.row;
        let len = tensor.row.min(tensor.len - from);
        even(len, len.div_ceil(most)).map(move |part| part.map(|at| from + at))
    };
    (0..rows).flat_map(of_row).collect()
}

impl Plan {
    /// The KV pairs: each tensor in parts as equal as can be, each part at the server that holds
    /// least so far, or under `p2p` at the worker. A layer under `adam` stays together, for its
    /// gradient is rebuilt as a whole.
    pub fn pairs(&self) -> Vec<Pair> {
        let mut pairs = Vec::new();
        let mut servers = Loads::new(MemberRole::Server, self.servers);
        let mut workers = Loads::new(MemberRole::Worker, self.workers);
        let most = match self.partition {
            Partition::Pairs => (self.pair_bytes / 4).max(1) as usize,
            Partition::Tensor => usize::MAX,
        };
        for (layer, info) in self.layers.iter().enumerate() {
            let whole = servers.least();
            let mut in_layer = 0;
            for (tensor, t) in info.tensors.iter().enumerate() {
                let scheme = scheme_of(info.scheme, t);
                for [from, to] in cuts(t, scheme, most) {
                    let home = match scheme {
                        Scheme::Sfb => None,
                        Scheme::Adam => Some(servers.add(whole, to - from)),
                        Scheme::Ps | Scheme::OneBit => Some(servers.add_to_least(to - from)),
                        Scheme::P2p => Some(workers.add_to_least(to - from)),
                    };
                    pairs.push(Pair {
                        id: pairs.len() as u32,
                        layer,
                        tensor,
                        offset: t.offset + from,
                        in_layer: in_layer + from,
                        len: to - from,
                        scheme,
                        row: t.row.min(to - from),
                        home,
                    });
                }
                in_layer += t.len;
            }
        }
        pairs
    }
}

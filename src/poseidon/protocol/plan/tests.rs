//! Pairs are dealt evenly and cover every weight once; plans that contradict themselves are named.

use super::*;

fn spec() -> ClusterSpec {
    ClusterSpec {
        workers: 4,
        servers: 2,
        images: 8,
        policy: Policy::Force(Scheme::Ps),
        pair_bytes: 4000,
        partition: Partition::Pairs,
        staleness: 0,
        reads: Reads::Own,
        stragglers: Stragglers::Wait,
        clocks: 10,
        checkpoint_every: 0,
        recipe: "sgd".into(),
    }
}

fn layers() -> Vec<(String, LayerShape, Vec<PlanTensor>)> {
    let layer = |name: &str, at: usize, [outputs, inputs]: [usize; 2], fully_connected| {
        let shape = LayerShape {
            outputs: outputs as u64,
            inputs: inputs as u64,
            bias: true,
            fully_connected,
        };
        let tensor = |kind, offset, shape: &[usize]| {
            PlanTensor::new(&format!("{name}.{kind}"), offset, shape)
        };
        let bias_at = at + (outputs * inputs).next_multiple_of(16);
        let tensors = vec![
            tensor("weight", at, &[outputs, inputs]),
            tensor("bias", bias_at, &[outputs]),
        ];
        (name.to_owned(), shape, tensors)
    };
    vec![
        layer("conv", 0, [20, 25], false),
        layer("ip1", 1024, [100, 80], true),
        layer("ip2", 16384, [10, 100], true),
    ]
}

fn plan(spec: &ClusterSpec) -> Plan {
    Plan::new(spec, layers()).unwrap()
}

#[test]
fn pairs_cover_every_weight_once_and_spread_evenly() {
    for partition in [Partition::Pairs, Partition::Tensor] {
        let plan = plan(&ClusterSpec {
            partition,
            ..spec()
        });
        let pairs = plan.pairs();
        for (i, pair) in pairs.iter().enumerate() {
            assert_eq!(pair.id as usize, i);
            assert!(partition == Partition::Tensor || pair.len * 4 <= 4000);
        }
        for (l, layer) in plan.layers.iter().enumerate() {
            for (t, tensor) in layer.tensors.iter().enumerate() {
                let mut at = tensor.offset;
                for pair in pairs.iter().filter(|p| (p.layer, p.tensor) == (l, t)) {
                    assert_eq!(pair.offset, at);
                    at += pair.len;
                }
                assert_eq!(at, tensor.offset + tensor.len);
            }
        }
        let role = MemberRole::Server;
        let load = |index| -> usize {
            let held = pairs
                .iter()
                .filter(|p| p.home == Some(Member { role, index }));
            held.map(|p| p.len).sum()
        };
        let (a, b) = (load(0), load(1));
        let whole = partition == Partition::Tensor;
        assert_eq!(a.abs_diff(b) > 1000, whole, "{partition:?}: {a} and {b}");
    }
}

#[test]
fn a_layer_under_adam_stays_together_and_one_under_sfb_is_on_no_server() {
    let adam = plan(&ClusterSpec {
        policy: Policy::Force(Scheme::Adam),
        ..spec()
    });
    let homes = |plan: &Plan, layer| -> Vec<Option<Member>> {
        let mut of: Vec<_> = plan
            .pairs()
            .iter()
            .filter(|p| p.layer == layer)
            .map(|p| p.home)
            .collect();
        of.dedup();
        of
    };
    assert_eq!(homes(&adam, 1).len(), 1);
    let sfb = plan(&ClusterSpec {
        policy: Policy::Force(Scheme::Sfb),
        ..spec()
    });
    assert_eq!(homes(&sfb, 1), [None]);
    assert!(sfb.has_peers() && !adam.has_peers());
    assert_eq!(sfb.sizes().layers, [None, Some([100, 80]), Some([10, 100])]);
}

/// Two values are of one output: no pair has a part of a row and something else.
#[test]
fn pairs_in_bits_have_whole_rows_or_part_of_one_and_biases_are_floats() {
    let one_bit = ClusterSpec {
        policy: Policy::Force(Scheme::OneBit),
        ..spec()
    };
    for (pair_bytes, row, pairs_of_ip1) in [(4000, 80, 9), (320, 80, 100), (160, 40, 200)] {
        let plan = plan(&ClusterSpec {
            pair_bytes,
            ..one_bit.clone()
        });
        let pairs = plan.pairs().into_iter();
        let pairs: Vec<_> = pairs.filter(|pair| pair.layer == 1).collect();
        let matrix = pairs.iter().filter(|pair| pair.tensor == 0);
        assert_eq!(matrix.clone().count(), pairs_of_ip1);
        for pair in matrix {
            assert_eq!((pair.scheme, pair.row), (Scheme::OneBit, row));
            assert_eq!((pair.offset - 1024) % row, 0, "{pair:?}");
            assert!(pair.len.is_multiple_of(row) && pair.len * 4 <= pair_bytes as usize);
        }
        let bias = pairs.iter().find(|pair| pair.tensor == 1).unwrap();
        assert_eq!(bias.scheme, Scheme::Ps);
        // Of each row two values, and its bits in words.
        let of_row = 2 + row.div_ceil(32);
        let size = plan.sizes().pairs[pairs[0].id as usize];
        assert_eq!(size.bits_len(), pairs[0].len / row * of_row);
    }
}

#[test]
fn layers_under_p2p_are_dealt_evenly_to_the_workers() {
    let plan = plan(&ClusterSpec {
        policy: Policy::Force(Scheme::P2p),
        workers: 3,
        servers: 1,
        pair_bytes: 400,
        ..spec()
    });
    assert!(plan.has_peers());
    let role = MemberRole::Worker;
    let of = |index| {
        let pairs = plan.pairs().into_iter();
        let held = pairs.filter(|p| p.home == Some(Member { role, index }));
        held.map(|p| p.len).sum::<usize>()
    };
    let all: usize = plan.pairs().iter().map(|p| p.len).sum();
    let loads = [of(0), of(1), of(2)];
    assert_eq!(loads.iter().sum::<usize>(), all);
    let most = *loads.iter().max().unwrap();
    assert!(most - loads.iter().min().unwrap() <= 100, "{loads:?}");
    // No server holds anything, and one that is there holds nothing.
    let error = Plan::new(
        &ClusterSpec {
            policy: Policy::Force(Scheme::P2p),
            servers: 2,
            ..spec()
        },
        layers(),
    );
    let error = error.unwrap_err().to_string();
    assert!(error.contains("sfb and p2p have none"), "{error}");
}

#[test]
fn what_cannot_be_is_named() {
    let refused = |spec: &ClusterSpec| Plan::new(spec, layers()).unwrap_err().to_string();
    let message = refused(&ClusterSpec {
        servers: 15,
        ..spec()
    });
    assert!(
        message.contains("15 servers, but only 13 KV pairs"),
        "{message}"
    );
    let drop = Stragglers::Drop(0.5);
    let message = refused(&ClusterSpec {
        stragglers: drop,
        staleness: 2,
        ..spec()
    });
    assert!(
        message.contains("staleness 2 with late workers dropped"),
        "{message}"
    );
    let message = refused(&ClusterSpec {
        stragglers: drop,
        policy: Policy::Force(Scheme::Sfb),
        ..spec()
    });
    assert!(message.contains("sfb (layer ip1)"), "{message}");
    // A rule goes for its other scheme instead.
    for (policy, instead) in [
        (Policy::HybComm, Scheme::Ps),
        (Policy::Sacp, Scheme::Adam),
        (Policy::Force(Scheme::OneBit), Scheme::OneBit),
    ] {
        let spec = ClusterSpec {
            policy,
            images: 1,
            ..spec()
        };
        let scheme = |stragglers| {
            let spec = ClusterSpec {
                stragglers,
                ..spec.clone()
            };
            plan(&spec).layers[1].scheme
        };
        assert_eq!(scheme(drop), instead);
        let free = scheme(Stragglers::Wait);
        assert_eq!(free == Scheme::Sfb, instead != Scheme::OneBit, "{policy:?}");
    }
    let message = refused(&ClusterSpec {
        stragglers: Stragglers::Drop(0.0),
        ..spec()
    });
    assert!(message.contains("a quorum of 0:"), "{message}");
    for pair_bytes in [0, 3, u64::MAX] {
        let message = refused(&ClusterSpec {
            pair_bytes,
            ..spec()
        });
        assert!(message.contains("KV pairs of"), "{message}");
    }
    assert!(
        refused(&ClusterSpec {
            workers: 0,
            ..spec()
        })
        .contains("0 workers")
    );
}

#[test]
fn a_share_of_the_workers_makes_a_quorum() {
    let quorum = |stragglers| {
        plan(&ClusterSpec {
            stragglers,
            ..spec()
        })
        .quorum()
    };
    assert_eq!(quorum(Stragglers::Wait), 4);
    assert_eq!(quorum(Stragglers::Drop(0.75)), 3);
    assert_eq!(quorum(Stragglers::Drop(0.51)), 3);
    assert_eq!(quorum(Stragglers::Drop(0.01)), 1);
}

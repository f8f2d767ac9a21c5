//! Bytes on the wire, counted where they are sent and received, are those of the cost model.
//! Headers (24 bytes per message) are counted apart; first weights and `Alive` belong to no layer.

use dogwild::poseidon::cost::{server_floats, worker_floats};
use dogwild::poseidon::{ClusterSize, LayerShape, Scheme, TrafficReport};

use crate::cluster::{Cluster, force, servers, setup};

const CLOCKS: u64 = 6;

fn shape(layer: &str) -> LayerShape {
    let (outputs, inputs, fully_connected) = match layer {
        "conv1" => (20, 25, false),
        "conv2" => (50, 500, false),
        "ip1" => (500, 800, true),
        "ip2" => (10, 500, true),
        other => panic!("{other} is no layer of LeNet"),
    };
    LayerShape {
        outputs,
        inputs,
        bias: true,
        fully_connected,
    }
}

/// Bytes of a layer, both ways, in one iteration.
fn bytes(report: &TrafficReport, layer: &str) -> f64 {
    let counted = report
        .layers
        .iter()
        .find(|l| l.layer == layer)
        .expect("the layer");
    (counted.sent_bytes + counted.received_bytes) as f64 / CLOCKS as f64
}

fn assert_as_predicted(scheme: Scheme, pair_bytes: u64, layers: &[&str]) {
    let policy = force(scheme);
    let holders = servers(policy, 2);
    let mut setup = setup(policy, 3, holders, CLOCKS);
    setup.cluster.pair_bytes = pair_bytes;
    let cluster = Cluster::new(setup);
    cluster.run();
    let report = |name: String| -> TrafficReport {
        let path = cluster.folder.path().join(format!("{name}.json"));
        let text = std::fs::read_to_string(&path).expect("a report");
        serde_json::from_str(&text).expect("JSON")
    };
    let workers: Vec<_> = (0..3).map(|k| report(format!("worker{k}"))).collect();
    let servers: Vec<_> = (0..holders).map(|k| report(format!("server{k}"))).collect();
    let counts = ClusterSize::new(3, 2, 8).expect("a cluster");
    let near = |found: f64, predicted: f64, what: &str| {
        let within = (found - predicted).abs() <= 0.02 * predicted;
        assert!(
            within,
            "{scheme}, {what}: {found} bytes, predicted {predicted}"
        );
    };
    for layer in layers {
        let taken = workers[0].layers.iter().find(|l| l.layer == *layer);
        let scheme = taken.and_then(|l| l.scheme).expect("a scheme");
        let predicted = 4.0 * worker_floats(scheme, shape(layer), counts);
        for worker in &workers {
            near(bytes(worker, layer), predicted, layer);
        }
        if scheme == Scheme::P2p {
            assert!(servers.iter().all(|server| bytes(server, layer) == 0.0));
            continue;
        }
        let all: f64 = servers.iter().map(|server| bytes(server, layer)).sum();
        // The model gives a server's even share; one server has all of a layer under adam.
        let holders = if scheme == Scheme::Adam { 1.0 } else { 2.0 };
        let predicted = 4.0 * holders * server_floats(scheme, shape(layer), counts);
        near(all, predicted, &format!("{layer} at the servers"));
    }
}

const ALL: [&str; 4] = ["conv1", "conv2", "ip1", "ip2"];

#[test]
fn full_matrices() {
    assert_as_predicted(Scheme::Ps, 20_000, &ALL);
}

/// Small layers are one pair each, which one worker holds: only those of many pairs are even.
#[test]
fn full_matrices_to_peers() {
    assert_as_predicted(Scheme::P2p, 4_000, &["conv2", "ip1"]);
}

#[test]
fn factors_to_peers() {
    assert_as_predicted(Scheme::Sfb, 20_000, &ALL);
}

#[test]
fn factors_to_servers() {
    assert_as_predicted(Scheme::Adam, 20_000, &ALL);
}

/// Two values go with the bits of each output, and biases are floats.
#[test]
fn one_bit() {
    assert_as_predicted(Scheme::OneBit, 20_000, &["conv2", "ip1"]);
}

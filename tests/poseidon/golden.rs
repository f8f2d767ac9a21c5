//! The papers' own numbers, from a running coordinator: as answers before members have joined, and
//! in the description of the cluster that it sends when all have.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use dogwild::poseidon::{
    ClusterInfo, CoordinatorJob, LayerShape, Member, MemberHello, MemberRole, Message, MessageKind,
    Policy, RecordedLayer, Recording, Scheme, run_coordinator,
};
use serde_json::{Value, json};

use crate::cluster::{Cluster, SESSION, alter, setup, wait_for_file};
use crate::raw_client::RawClient;

/// A net of one fully connected layer without a bias, in which nothing is computed, and a
/// convolution for servers to hold.
fn net(outputs: u64, inputs: u64, images: u32) -> Recording {
    let layer = |name: &str, outputs, inputs, fully_connected| RecordedLayer {
        name: name.into(),
        shape: LayerShape {
            fully_connected,
            ..LayerShape::dense(outputs, inputs)
        },
        forward_us: 1,
        backward_us: 2,
    };
    Recording {
        images,
        layers: vec![
            layer("conv", 64, 256, false),
            layer("fc", outputs, inputs, true),
        ],
    }
}

/// Answers of a coordinator.
struct Answers {
    /// Floats by role and scheme.
    cost: Value,
    /// In the coordinator's answer, and in the description of the cluster.
    scheme: [Scheme; 2],
}

/// Starts the coordinator of a cluster of `nodes` workers and as many servers, greets it as each of
/// them, and asks.
fn ask(net: &Recording, nodes: u16, policy: Policy) -> Answers {
    let mut setup = setup(policy, nodes, nodes, 1);
    setup.cluster.pair_bytes = 4096;
    let cluster = Cluster::new(setup);
    let mut job: CoordinatorJob = cluster.coordinator(false);
    alter(&mut job.model, |model| model.replay = Some(net.clone()));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let run = scope.spawn(|| run_coordinator(&job, &stop));
        let file = cluster.folder.path().join("coordinator");
        let at = wait_for_file(&file, || run.is_finished()).expect("an address");
        let question = |key: &str| -> Value {
            let mut asking = RawClient::connect(&at);
            asking.send(&Message::text(MessageKind::Query, 0, key.into()));
            let answer = asking.receive(MessageKind::Answer).expect("an answer");
            serde_json::from_str(answer.as_text()).expect("JSON")
        };
        let (cost, scheme) = (question("cost:fc"), question("scheme:fc"));
        let recipe = question("recipe").as_str().expect("a text").to_owned();
        let roles = [MemberRole::Worker, MemberRole::Server].into_iter();
        let seats = roles.flat_map(|role| (0..nodes).map(move |index| Member { role, index }));
        let mut members: Vec<RawClient> = seats
            .map(|member| {
                let mut client = RawClient::connect(&at);
                client.send_hello(&MemberHello {
                    member,
                    session: SESSION,
                    fingerprint: net.manifest().expect("a manifest").fingerprint(),
                    recipe: recipe.clone(),
                    weights: 1,
                    images: net.images,
                    data: String::new(),
                    address: "127.0.0.1:1".into(),
                    checkpoints: Vec::new(),
                    replicas: Vec::new(),
                });
                client
            })
            .collect();
        let info = members[0]
            .receive(MessageKind::ClusterInfo)
            .expect("the description of the cluster");
        let info: ClusterInfo =
            serde_json::from_str(info.as_text()).expect("the description of the cluster");
        assert_eq!(info.workers.len(), usize::from(nodes));
        stop.store(true, Relaxed);
        run.join().expect("no panic").expect("a good end");
        let scheme: Scheme = serde_json::from_value(scheme).expect("a scheme");
        Answers {
            cost,
            scheme: [scheme, info.plan.layers[1].scheme],
        }
    })
}

/// Section 4.3: 18.9 M, 134.2 M and 75.5 M floats.
#[test]
fn numbers_of_the_2015_paper() {
    let answers = ask(&net(4096, 4096, 256), 4, Policy::Sacp);
    let cluster = &answers.cost["cluster"];
    assert_eq!(cluster["sfb"], json!(18_874_368.0));
    assert_eq!(cluster["ps"], json!(134_217_728.0));
    assert_eq!(cluster["adam"], json!(75_497_472.0));
    assert_eq!(answers.scheme, [Scheme::Sfb; 2]);
}

/// Section 3.2: 3.7 M, 33.6 M and 58.7 M floats.
#[test]
fn numbers_of_the_2017_paper() {
    let answers = ask(&net(4096, 4096, 32), 8, Policy::HybComm);
    assert_eq!(answers.cost["worker"]["sfb"], json!(3_670_016.0));
    assert_eq!(answers.cost["worker"]["ps"], json!(33_554_432.0));
    assert_eq!(answers.cost["node"]["ps"], json!(58_720_256.0));
    assert_eq!(answers.scheme, [Scheme::Sfb; 2]);
}

/// GoogLeNet's last layer, batch 128, 16 nodes.
#[test]
fn the_thin_layer_of_googlenet_goes_to_the_servers() {
    let answers = ask(&net(1000, 1024, 128), 16, Policy::HybComm);
    assert_eq!(answers.scheme, [Scheme::Ps; 2]);
}

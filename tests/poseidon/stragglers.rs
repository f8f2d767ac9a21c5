//! `--stragglers drop`: what waits for a slow worker is bounded; one that dies does not end the
//! others while the quorum stands; and one that takes its place ends with their weights.

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use dogwild::poseidon::{Message, MessageKind, Scheme, Stragglers, TrafficReport, run_worker};
use dogwild::weights::{Expect, SharedWeights};

use crate::cluster::{Cluster, Ended, force, setup};
use crate::raw_client::RawClient;
use crate::refusals::{error_of, join_as};
use crate::support::wait::wait_while;

/// Workers of which the last one is played by the test, and a server that holds all weights.
fn cluster(workers: u16, quorum: f64, clocks: u64) -> Cluster {
    let mut setup = setup(force(Scheme::Ps), workers, 1, clocks);
    setup.cluster.stragglers = Stragglers::Drop(quorum);
    let mut cluster = Cluster::new(setup);
    cluster.absent = 1;
    cluster
}

fn steps(cluster: &Cluster, worker: u16) -> u64 {
    let shared = SharedWeights::open(&cluster.buffer(worker), &Expect::default());
    shared.map_or(0, |shared| shared.globals().iterations())
}

fn wait_for_steps(cluster: &Cluster, worker: u16, wanted: u64) {
    wait_while(&format!("step {wanted}"), || {
        let made = steps(cluster, worker);
        (made < wanted).then(|| format!("worker {worker} has made {made} steps"))
    });
}

fn all_well(ended: Vec<(String, Ended)>) {
    for (name, ended) in ended {
        ended.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

/// Seen: 198 MB to 1.15 GB of weights waited for a slow worker after 8 s.
#[test]
fn at_most_one_set_of_weights_waits_for_a_slow_worker() {
    let cluster = cluster(2, 0.5, 200);
    let ended = cluster.run_with_client(
        false,
        |_| {},
        |coordinator| {
            let (mut to_coordinator, mut to_server) = join_as(&cluster, coordinator, 1);
            // It says that it lives, and reads nothing.
            while steps(&cluster, 0) < 200 {
                for to in [&mut to_coordinator, &mut to_server] {
                    to.send(&Message::bare(MessageKind::Alive, 1, 0));
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        },
    );
    all_well(ended);
    let report = std::fs::read_to_string(cluster.folder.path().join("server0.json"));
    let report: TrafficReport = serde_json::from_str(&report.expect("a report")).expect("JSON");
    let weights = 4 * cluster.weights(0).len() as u64;
    assert!(report.queued_bytes_max <= weights, "{report:?}");
    assert!(report.replaced_weights > 0, "{report:?}");
}

#[test]
fn another_worker_takes_the_place_of_a_dead_one() {
    let cluster = cluster(3, 0.6, 400);
    let ended = cluster.run_with_client(
        false,
        |_| {},
        |coordinator| {
            drop(join_as(&cluster, coordinator, 2));
            wait_for_steps(&cluster, 0, 20);
            let stop = Arc::new(AtomicBool::new(false));
            let job = cluster.worker(2, coordinator, false);
            run_worker(&job, &stop).expect("it takes the place");
            assert!(!stop.load(Relaxed));
        },
    );
    all_well(ended);
    assert_eq!(steps(&cluster, 2), 400);
    for worker in 1..3 {
        assert!(cluster.weights(worker) == cluster.weights(0), "{worker}");
    }
}

/// The others come to the end without its last updates. Seen: 299 of 300 iterations.
#[test]
fn a_slow_worker_comes_to_the_last_step() {
    let cluster = cluster(2, 0.5, 40);
    let ended = cluster.run_with_client(
        false,
        |_| {},
        |coordinator| {
            let mut job = cluster.worker(1, coordinator, false);
            job.slow = 8.0;
            run_worker(&job, &Arc::default()).expect("it comes to the end");
        },
    );
    all_well(ended);
    assert_eq!(steps(&cluster, 1), 40);
    assert!(cluster.weights(1) == cluster.weights(0));
}

#[test]
fn without_a_quorum_a_dead_worker_ends_the_run() {
    let cluster = cluster(3, 1.0, 100_000);
    let ended = cluster.run_with_client(
        false,
        |_| {},
        |coordinator| {
            let members = join_as(&cluster, coordinator, 2);
            wait_for_joined(&members.1.stream);
            drop(members);
        },
    );
    let message = error_of(&ended, "server 0");
    assert!(message.contains("worker 2"), "{message}");
}

/// Waits until a server has sent something: it has taken the worker.
fn wait_for_joined(stream: &TcpStream) {
    stream.peek(&mut [0]).expect("first weights");
}

/// Under one bit per weight no server has the weights that a new worker needs: the others go on
/// without it.
#[test]
fn under_one_bit_the_others_go_on_without_the_dead_one() {
    let mut cluster = cluster(3, 0.6, 60);
    cluster.setup.cluster.policy = force(Scheme::OneBit);
    let ended = cluster.run_with_client(
        false,
        |_| {},
        |coordinator| {
            let (first, second) = join_as(&cluster, coordinator, 2);
            drop((first, second, RawClient::connect(coordinator)));
        },
    );
    all_well(ended);
    assert!(cluster.weights(1) == cluster.weights(0));
}

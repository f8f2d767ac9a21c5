//! Two workers of the reliable path that compute their gradients themselves: a softmax over the
//! pixels of the built-in digits. The server makes the steps, with Adam.
//!
//! Coordinator, server and workers are threads here; each could be a process on a host of its own.
//! A worker names no layer, no pair and no session: the coordinator tells it the plan.
//!
//! `cargo run --release --example poseidon_client`

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use dogwild::poseidon::{
    Client, ClientJob, ClusterSpec, Contribution, CoordinatorJob, MemberJob, ModelJob, Policy,
    PoseidonError, Recording, Scheme, ServerJob, run_coordinator, run_server,
};
use dogwild::solver::data::{Images, Source};
use dogwild::weights::kernels;

const BATCH: usize = 32;
/// A layer of 10 outputs and 784 inputs, then 10 biases.
const MODEL: &str = r#"{"images": 32, "layers": [{"name": "fc", "forward_us": 0, "backward_us": 0,
    "shape": {"outputs": 10, "inputs": 784, "bias": true, "fully_connected": true}}]}"#;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let set = "digits:1,train=2000,test=500".parse::<Source>()?.load()?;
    let rule = serde_json::from_str(r#"{"rule": "adam", "rate": 0.01}"#)?;
    let model = ModelJob::of_layers(Recording::parse(MODEL)?, rule)?;
    let mut cluster = ClusterSpec::new(2, 1, 150);
    cluster.policy = Policy::Force(Scheme::Ps);
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let coordinator = CoordinatorJob::new(address, 1, model.clone(), cluster);
    let place = |index| MemberJob::new(index, &address.to_string());
    let (member, session) = (place(0), coordinator.session);
    let server = ServerJob {
        member,
        session,
        model,
    };
    let (stop, train) = (&Arc::new(AtomicBool::new(false)), &set.train);
    let [first, second] = thread::scope(|scope| {
        scope.spawn(move || run_coordinator(&coordinator, stop));
        scope.spawn(move || run_server(&server, stop));
        let worker = |index| scope.spawn(move || work(place(index), train, stop.clone()));
        [worker(0), worker(1)].map(|worker| worker.join().expect("no panic"))
    });
    let (weights, other) = (first?, second?);
    assert_eq!(weights, other);
    println!("the weights of both workers are equal");
    let guess = |i| argmax(&scores(&weights, &pixels(&set.test, i)));
    let right = (0..set.test.len()).filter(|&i| guess(i) == usize::from(set.test.labels[i]));
    let share = right.count() as f32 / set.test.len() as f32;
    println!("right answers: {:.1} %", 100.0 * share);
    Ok(())
}

/// Trains on every second image, and returns the weights.
fn work(
    member: MemberJob,
    images: &Images,
    stop: Arc<AtomicBool>,
) -> Result<Vec<f32>, PoseidonError> {
    let Some(client) = Client::join(ClientJob::new(member), None, stop)? else {
        return Ok(Vec::new());
    };
    let mut weights = vec![0.0; client.plan().extent()];
    while let Some(turn) = client.begin()? {
        kernels::copy_out(client.weights(), &mut weights);
        let mut values = vec![0.0; weights.len()];
        for k in 0..BATCH {
            let at = (turn.clock as usize * BATCH + k) * 2 + usize::from(client.index());
            add_gradient(&weights, images, at % images.len(), &mut values);
        }
        let (from, values) = (0, values.as_slice());
        client.send(0, Contribution::Gradient { from, values })?;
        client.end()?;
    }
    client.settle()?;
    kernels::copy_out(client.weights(), &mut weights);
    client.close()?;
    Ok(weights)
}

fn pixels(images: &Images, at: usize) -> Vec<f32> {
    let bytes = &images.pixels[at * 784..][..784];
    bytes.iter().map(|&byte| f32::from(byte) / 256.0).collect()
}

fn scores(weights: &[f32], x: &[f32]) -> Vec<f32> {
    let (rows, biases) = weights.split_at(7840);
    let dot = |row: &[f32]| row.iter().zip(x).map(|(w, x)| w * x).sum::<f32>();
    let sums = rows.chunks(784).map(dot);
    sums.zip(biases).map(|(sum, bias)| sum + bias).collect()
}

fn argmax(scores: &[f32]) -> usize {
    (0..10).fold(0, |best, k| if scores[k] > scores[best] { k } else { best })
}

/// Adds the gradient of one image's cross entropy, as a part of the mean over the batch.
fn add_gradient(weights: &[f32], images: &Images, at: usize, gradient: &mut [f32]) {
    let x = pixels(images, at);
    let powers: Vec<f32> = scores(weights, &x).iter().map(|s| s.exp()).collect();
    let sum: f32 = powers.iter().sum();
    for (class, power) in powers.iter().enumerate() {
        let wanted = f32::from(u8::from(usize::from(images.labels[at]) == class));
        let error = (power / sum - wanted) / BATCH as f32;
        let row = gradient[class * 784..][..784].iter_mut();
        row.zip(&x).for_each(|(g, x)| *g += error * x);
        gradient[7840 + class] += error;
    }
}

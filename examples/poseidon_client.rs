//! Two workers of the reliable path that compute their gradients themselves: a softmax over the
//! pixels of the built-in digits. The server makes the steps, with Adam. All members are threads
//! here; each could be a process on a host of its own.
//!
//! `cargo run --release --example poseidon_client`

use std::{net::TcpListener, sync::Arc, sync::atomic::AtomicBool, thread};

use dogwild::poseidon::{
    Client, ClientJob, ClusterSpec, Contribution, CoordinatorJob, MemberJob, ModelFile, ModelJob,
    PoseidonError, ServerJob, run_coordinator, run_server,
};
use dogwild::solver::data::{Images, Source};
use dogwild::weights::kernels;

/// A layer of 10 outputs and 784 inputs, then 10 biases, which lie behind it.
const MODEL: &str = r#"{"images": 32, "iterations": 150, "step": {"rule": "adam", "rate": 0.01},
    "layers": [{"name": "fc", "tensors": [
        {"name": "fc.weight", "shape": [10, 784]}, {"name": "fc.bias", "shape": [10]}]}]}"#;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let set = "digits:1,train=2000,test=500".parse::<Source>()?.load()?;
    let model = ModelJob::of_file(ModelFile::parse(MODEL)?)?;
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let cluster = ClusterSpec::new(2, 1, model.iterations());
    let coordinator = CoordinatorJob::new(address, 1, model.clone(), cluster);
    let place = |index| MemberJob::new(index, &address.to_string());
    let server = ServerJob::new(place(0), coordinator.session, model);
    let (stop, train) = (&Arc::new(AtomicBool::new(false)), &set.train);
    let [first, second] = thread::scope(|scope| {
        scope.spawn(move || run_coordinator(&coordinator, stop));
        scope.spawn(move || run_server(&server, stop));
        let start = |index| scope.spawn(move || work(place(index), train, stop.clone()));
        let workers = [0, 1].map(start);
        workers.map(|worker| worker.join().expect("no panic"))
    });
    let weights = first?;
    assert_eq!(weights, second?);
    let test = &set.test;
    let best = |scores: [f32; 10]| (0..10).max_by(|&a, &b| scores[a].total_cmp(&scores[b]));
    let right = |&i: &usize| best(scores(&weights, test, i)) == Some(test.labels[i].into());
    let right = (0..test.len()).filter(right).count() * 100;
    println!(
        "the weights of both workers are equal; right answers: {} %",
        right / test.len()
    );
    Ok(())
}

/// Trains on every second image, and returns the weights.
fn work(at: MemberJob, set: &Images, stop: Arc<AtomicBool>) -> Result<Vec<f32>, PoseidonError> {
    let client = Client::join(ClientJob::new(at), None, stop)?.expect("nothing stops it");
    let (batch, own) = (client.plan().images as usize, usize::from(client.index()));
    let mut weights = vec![0.0; client.plan().extent()];
    while let Some(turn) = client.begin()? {
        kernels::copy_out(client.weights(), &mut weights);
        let mut gradient = vec![0.0; weights.len()];
        for k in turn.clock as usize * batch..(turn.clock as usize + 1) * batch {
            add_gradient(&weights, set, (2 * k + own) % set.len(), &mut gradient);
        }
        gradient.iter_mut().for_each(|g| *g /= batch as f32);
        let (from, values) = (0, &*gradient);
        client.send(0, Contribution::Gradient { from, values })?;
        client.end()?;
    }
    client.settle()?;
    kernels::copy_out(client.weights(), &mut weights);
    client.close()?;
    Ok(weights)
}

fn pixels(set: &Images, at: usize) -> impl Iterator<Item = f32> {
    let bytes = &set.pixels[at * 784..][..784];
    bytes.iter().map(|&byte| f32::from(byte) / 256.0)
}

fn scores(weights: &[f32], set: &Images, at: usize) -> [f32; 10] {
    let mut scores: [f32; 10] = std::array::from_fn(|class| weights[7840 + class]);
    for (k, x) in pixels(set, at).enumerate() {
        (0..10).for_each(|class| scores[class] += weights[class * 784 + k] * x);
    }
    scores
}

/// Adds the gradient of one image's cross entropy.
fn add_gradient(weights: &[f32], set: &Images, at: usize, gradient: &mut [f32]) {
    let powers = scores(weights, set, at).map(f32::exp);
    for (class, power) in powers.iter().enumerate() {
        let right = usize::from(set.labels[at]) == class;
        let error = power / powers.iter().sum::<f32>() - f32::from(right);
        let row = gradient[class * 784..].iter_mut();
        row.zip(pixels(set, at)).for_each(|(g, x)| *g += error * x);
        gradient[7840 + class] += error;
    }
}

//! The members of a cluster as threads of this process: coordinator, servers, and workers whose
//! gradients are there already.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use anyhow::{Context, Result};
use dogwild::poseidon::{
    Client, ClientJob, ClusterSpec, Contribution, CoordinatorJob, First, Floats, MemberJob,
    ModelFile, ModelJob, ModelLayer, ModelTensor, Schedule, ServerJob, StepRule, run_coordinator,
    run_server,
};

use super::usage::Usage;
use super::{Args, Cost, Step, WARM_UP};

/// What a worker saw: the moments between which it is measured, and the bytes of one iteration, so
/// that those of all workers together count each byte once.
type Seen = ([Usage; 2], f64);

/// Runs a cluster, and gives what one iteration cost.
pub(super) fn run(args: &Args) -> Result<Cost> {
    let model = ModelJob::of_file(model(args))?;
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let clocks = WARM_UP + args.iterations;
    let cluster = ClusterSpec {
        policy: args.scheme,
        pair_bytes: args.pair_bytes,
        ..ClusterSpec::new(args.workers, args.servers, clocks)
    };
    let coordinator = CoordinatorJob::new(address, 1, model.clone(), cluster);
    let place = |index| MemberJob::new(index, &address.to_string());
    let servers: Vec<ServerJob> = (0..args.servers)
        .map(|index| ServerJob::new(place(index), coordinator.session, model.clone()))
        .collect();
    let stop = &Arc::new(AtomicBool::new(false));
    let seen: Vec<Seen> = thread::scope(|scope| {
        let coordinating = scope.spawn(move || {
            let ended = run_coordinator(&coordinator, stop);
            // The others wait for it otherwise.
            stop.store(ended.is_err(), Relaxed);
            ended
        });
        let serving: Vec<_> = servers
            .iter()
            .map(|server| scope.spawn(move || run_server(server, stop)))
            .collect();
        let working: Vec<_> = (0..args.workers)
            .map(|index| scope.spawn(move || work(place(index), stop.clone())))
            .collect();
        let seen: Vec<_> = working
            .into_iter()
            .map(|worker| worker.join().expect("no panic"))
            .collect();
        let served: Vec<_> = serving
            .into_iter()
            .map(|server| server.join().expect("no panic"))
            .collect();
        coordinating.join().expect("no panic")?;
        served.into_iter().collect::<Result<(), _>>()?;
        seen.into_iter().collect::<Result<_>>()
    })?;
    let [began, ended] = seen.first().context("no worker")?.0;
    let sent = seen.iter().map(|(_, bytes)| bytes).sum();
    Ok(began.cost_until(ended, args.iterations, sent))
}

/// Most inputs of a layer: those of AlexNet's and VGG19's are 4,096 and more.
const INPUTS: usize = 4096;

/// A matrix of so many weights, outputs first.
fn matrix(weights: usize) -> [usize; 2] {
    let inputs = (2..=INPUTS).rev().find(|n| weights.is_multiple_of(*n));
    let inputs = inputs.unwrap_or(weights);
    [weights / inputs, inputs]
}

/// Equal layers, and the rule of the steps.
fn model(args: &Args) -> ModelFile {
    let each = args.weights / args.layers as usize;
    let layer = |number| ModelLayer {
        name: format!("layer{number}"),
        factors: false,
        rows: None,
        scheme: None,
        tensors: vec![ModelTensor {
            name: format!("layer{number}.weight"),
            shape: matrix(each).to_vec(),
            lr_mult: 1.0,
            decay_mult: 1.0,
        }],
    };
    ModelFile {
        images: 1,
        iterations: None,
        step: match args.step {
            Step::Mean => StepRule::Mean {},
            Step::Sgd => StepRule::Sgd {
                rate: 0.01,
                schedule: Schedule::Fixed,
                momentum: 0.9,
                weight_decay: 0.0,
                penalty: dogwild::poseidon::Penalty::L2,
            },
        },
        layers: (0..args.layers).map(layer).collect(),
    }
}

/// Sends the same gradient in each iteration, the last layer first. It is not copied, as Gloo's is
/// not.
fn work(at: MemberJob, stop: Arc<AtomicBool>) -> Result<Seen> {
    let job = ClientJob {
        first: First::Zeros,
        ..ClientJob::new(at)
    };
    let client = Client::join(job, None, stop)?.context("nothing stops it")?;
    let plan = client.plan();
    let gradient = |layer| -> Result<Floats> {
        let mut room = client.room(layer)?;
        let values = room.iter_mut().enumerate();
        values.for_each(|(at, value)| *value = (at % 7) as f32);
        Ok(room)
    };
    let gradients: Vec<Floats> = (0..plan.layers.len())
        .map(gradient)
        .collect::<Result<_>>()?;
    let mut began = (Usage::now()?, [0; 2]);
    while let Some(turn) = client.begin()? {
        if turn.clock == WARM_UP {
            began = (Usage::now()?, client.traffic());
        }
        for layer in (0..plan.layers.len()).rev() {
            client.send(layer, Contribution::Own(gradients[layer].clone()))?;
        }
        client.end()?;
    }
    client.settle()?;
    let ended = (Usage::now()?, client.traffic());
    let iterations = (plan.clocks - WARM_UP) as f64;
    let [sent, received] = [0, 1].map(|way| (ended.1[way] - began.1[way]) as f64 / iterations);
    // What goes to a server and comes from it is counted here alone. All layers are alike.
    let bytes = match plan.layers[0].scheme.is_between_workers() {
        true => sent,
        false => sent + received,
    };
    client.close()?;
    Ok(([began.0, ended.0], bytes))
}

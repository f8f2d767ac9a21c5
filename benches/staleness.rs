//! What a delay alone does to training: SGD in one process whose gradients are D steps old.
//!
//! `cargo bench --bench staleness [-- [--data mnist:DIR] [--iterations N] [--batch N] [--delays
//! 0,1,2,3]]`
//!
//! No network, no other process, nothing of Poseidon: step t is made with the gradient at the
//! weights after step t - D, as the reliable path may make it with `--staleness D`. What diverges
//! here diverges for mathematical reasons. Printed with it: the largest product of rate and
//! curvature for which heavy-ball SGD with that delay is stable on a quadratic.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use dogwild::node::{Transforms, bound_net};
use dogwild::solver::data::{self, Batches, DataSet, Shard, Source};
use dogwild::solver::{Phase, SolverSpec, update};
use dogwild::weights::{WeightsView, kernels};

/// Momentum and rate: those of LeNet's solver file, smaller rates, and no momentum.
const SETTINGS: [(f32, f32); 5] = [
    (0.9, 0.01),
    (0.9, 0.003),
    (0.9, 0.001),
    (0.0, 0.1),
    (0.0, 0.01),
];
/// Iterations after which the loss is printed, in addition to the last.
const LOOKS: [u64; 2] = [100, 200];
/// Share of the newest loss in the smoothed one.
const SMOOTHING: f32 = 0.05;

struct Options {
    data: Source,
    iterations: u64,
    batch: usize,
    delays: Vec<usize>,
}

fn options() -> Options {
    let mut options = Options {
        data: parsed("digits:1,train=4000,test=100"),
        iterations: 500,
        batch: 64,
        delays: vec![0, 1, 2, 3],
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || {
            args.next()
                .unwrap_or_else(|| fail(&format!("{arg} needs a value")))
        };
        match arg.as_str() {
            "--data" => options.data = parsed(&value()),
            "--iterations" => options.iterations = parsed(&value()),
            "--batch" => options.batch = parsed::<usize>(&value()).max(1),
            "--delays" => options.delays = value().split(',').map(parsed).collect(),
            // What cargo itself passes.
            "--bench" => {}
            other => fail(&format!("unknown argument {other}")),
        }
    }
    options
}

fn parsed<T: std::str::FromStr>(text: &str) -> T {
    let wrong = || fail(&format!("`{text}` is not what belongs there"));
    text.parse().unwrap_or_else(|_| wrong())
}

fn fail(message: &str) -> ! {
    eprintln!("staleness bench: {message}");
    std::process::exit(2);
}

/// LeNet on batches of `batch`.
fn lenet(batch: usize, momentum: f32, rate: f32) -> SolverSpec {
    let net = include_str!("../models/lenet_train_test.prototxt");
    let net = net.replace("batch_size: 64", &format!("batch_size: {batch}"));
    let solver = include_str!("../models/lenet_solver.prototxt");
    let spec = SolverSpec::parse("lenet", solver, |_| Ok(("net".into(), net)));
    let mut spec = spec.unwrap_or_else(|error| fail(&error.to_string()));
    (spec.momentum, spec.base_lr) = (momentum, rate);
    spec
}

/// Smoothed losses at [`LOOKS`] and at the end, or the iteration at which the loss was NaN.
fn train(
    spec: &SolverSpec,
    set: &DataSet,
    images: &Arc<data::Images>,
    delay: usize,
    iterations: u64,
) -> Result<Vec<f32>, u64> {
    let batch = spec.net.batch_size(Phase::Train).unwrap_or(1);
    let bound = bound_net(&spec.net, Phase::Train, batch, images.shape, images.classes);
    let (mut net, _) = bound.unwrap_or_else(|error| fail(&error.to_string()));
    let transform = Transforms::of(spec, &set.train).train;
    let shard = Shard { index: 0, of: 1 };
    let batches = Batches::new(images.clone(), transform, Phase::Train, batch, shard, 1, 0);
    let mut batches = batches.unwrap_or_else(|error| fail(&error.to_string()));
    let zeros = |n: usize| (0..n).map(|_| AtomicU32::new(0)).collect::<Vec<_>>();
    let (w, history) = (zeros(net.extent()), zeros(net.extent()));
    let (w, history) = (WeightsView::of(&w), WeightsView::of(&history));
    net.initialise(w, 1);
    // The weights after each of the last `delay` steps and now, the oldest first.
    let mut past = VecDeque::from([copy(w)]);
    let mut grads = vec![0.0; net.extent()];
    let (mut smoothed, mut losses) = (None, Vec::new());
    for t in 0..iterations {
        let batch = batches.next();
        let read = WeightsView::of(&past[0]);
        let loss = net.forward_backward(read, &batch.images, &batch.labels, &mut grads);
        if !loss.is_finite() {
            return Err(t);
        }
        update(spec, &net, w, &grads, history, spec.rate_at(t));
        past.push_back(copy(w));
        if past.len() > delay + 1 {
            past.pop_front();
        }
        let before = smoothed.unwrap_or(loss);
        smoothed = Some(before + SMOOTHING * (loss - before));
        if LOOKS.contains(&(t + 1)) || t + 1 == iterations {
            losses.extend(smoothed);
        }
    }
    Ok(losses)
}

fn copy(w: WeightsView<'_>) -> Vec<AtomicU32> {
    let mut values = vec![0.0; w.len()];
    kernels::copy_out(w, &mut values);
    let words = values.into_iter().map(|v| AtomicU32::new(v.to_bits()));
    words.collect()
}

/// Largest rate times curvature for which w' = w + m (w - w_before) - a w_delayed stays bounded:
/// where the first root reaches the unit circle, (z - 1)(z - m) z^(D - 1) = -a.
fn stable(momentum: f64, delay: usize) -> f64 {
    let around = |angle: f64| {
        let (re, im) = (angle.cos(), angle.sin());
        let from = |point: f64| (im.atan2(re - point), (re - point).hypot(im));
        let ((one, far_one), (m, far_m)) = (from(1.0), from(momentum));
        (one + m + (delay as f64 - 1.0) * angle, far_one * far_m)
    };
    let (mut low, mut high) = (1e-9, std::f64::consts::PI);
    // The angle rises with the frequency from pi/2; half of it all is where it is pi.
    while high - low > 1e-12 {
        let middle = (low + high) / 2.0;
        match around(middle).0 < std::f64::consts::PI - 1e-12 {
            true => low = middle,
            false => high = middle,
        }
    }
    around(high).1
}

fn main() {
    let options = options();
    let set = options
        .data
        .load()
        .unwrap_or_else(|error| fail(&error.to_string()));
    let images = Arc::new(set.train.clone());
    println!(
        "LeNet, one process, batch {}, {} iterations; smoothed loss after {LOOKS:?} and all",
        options.batch, options.iterations
    );
    println!("momentum  rate   delay  stable up to rate x curvature   loss");
    for (momentum, rate) in SETTINGS {
        for &delay in &options.delays {
            let spec = lenet(options.batch, momentum, rate);
            let said = match train(&spec, &set, &images, delay, options.iterations) {
                Ok(losses) => losses.iter().map(|l| format!("{l:.3} ")).collect(),
                Err(t) => format!("no number at iteration {t}"),
            };
            let bound = stable(momentum.into(), delay);
            println!("{momentum:<9} {rate:<6} {delay:<6} {bound:<31.4} {said}");
        }
    }
}

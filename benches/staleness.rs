//! What a delay alone does to training: SGD in one process whose gradients are of old weights.
//!
//! `cargo bench --bench staleness [-- [--data SOURCE] [--iterations N] [--batch N] [--delays
//! 0,1,2,3] [--workers P] [--model NAME]]`
//!
//! No network, no other process, nothing of Poseidon: step t is made with the mean gradient of P
//! workers that have the weights after step t - D, as the reliable path may make it with
//! `--staleness D`. They read those as they are (`delayed`), or make the missing steps of their
//! own gradients first (`own`). What diverges here diverges for mathematical reasons. Printed with
//! it: the largest product of rate and curvature for which that is stable on a quadratic.
//!
//! Without a model it is LeNet with some rates, else that model as its solver file has it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use dogwild::node::{Tester, Transforms, bound_net};
use dogwild::solver::data::{Batches, DataSet, Images, Shard, Source};
use dogwild::solver::{Net, Phase, SolverSpec, update};
use dogwild::weights::{WeightsView, kernels};

/// Momentum and rate: those of LeNet's solver file, smaller rates, and no momentum.
const SETTINGS: [(f32, f32); 5] = [
    (0.9, 0.01),
    (0.9, 0.003),
    (0.9, 0.001),
    (0.0, 0.1),
    (0.0, 0.01),
];
/// Share of the newest loss in the smoothed one.
const SMOOTHING: f32 = 0.05;

struct Options {
    data: Source,
    model: Option<String>,
    iterations: u64,
    batch: usize,
    workers: usize,
    delays: Vec<usize>,
}

fn options() -> Options {
    let mut options = Options {
        data: parsed("digits:1,train=4000,test=1000"),
        model: None,
        iterations: 500,
        batch: 64,
        workers: 1,
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
            "--model" => options.model = Some(value()),
            "--iterations" => options.iterations = parsed(&value()),
            "--batch" => options.batch = parsed::<usize>(&value()).max(1),
            "--workers" => options.workers = parsed::<usize>(&value()).max(1),
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

fn or_fail<T, E: std::fmt::Display>(result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| fail(&error.to_string()))
}

fn fail(message: &str) -> ! {
    eprintln!("staleness bench: {message}");
    std::process::exit(2);
}

/// LeNet with this momentum and rate.
fn lenet(momentum: f32, rate: f32) -> SolverSpec {
    let mut spec = or_fail(SolverSpec::builtin("lenet"));
    (spec.momentum, spec.base_lr) = (momentum, rate);
    spec
}

/// Weights, and how far they went in the last step.
type State = [Vec<AtomicU32>; 2];

fn zeros(n: usize) -> Vec<AtomicU32> {
    (0..n).map(|_| AtomicU32::new(0)).collect()
}

fn copy(state: &State) -> State {
    state.each_ref().map(|of| {
        let mut values = vec![0.0; of.len()];
        kernels::copy_out(WeightsView::of(of), &mut values);
        values.iter().map(|v| AtomicU32::new(v.to_bits())).collect()
    })
}

fn step(spec: &SolverSpec, net: &Net, [w, history]: &State, gradient: &[f32], t: u64) {
    let (w, history) = (WeightsView::of(w), WeightsView::of(history));
    update(spec, net, w, gradient, history, spec.rate_at(t));
}

struct Worker {
    batches: Batches,
    /// Its gradients of the last steps, the oldest first.
    own: VecDeque<Vec<f32>>,
}

/// Workers that miss `delay` steps of each other.
struct Run<'r> {
    spec: &'r SolverSpec,
    net: Net,
    workers: Vec<Worker>,
    delay: usize,
    reads_own: bool,
}

impl<'r> Run<'r> {
    fn new(spec: &'r SolverSpec, set: &DataSet, images: &Arc<Images>, options: &Options) -> Self {
        let (shape, classes, batch) = (images.shape, images.classes, options.batch);
        let bound = bound_net(&spec.net, Phase::Train, batch, shape, classes);
        let worker = |index: usize| {
            let shard = Shard {
                index: index as u32,
                of: options.workers as u32,
            };
            let transform = Transforms::of(spec, &set.train).train;
            let (images, seed) = (images.clone(), 1 + index as u64);
            let batches = Batches::new(images, transform, Phase::Train, batch, shard, seed, 0);
            Worker {
                batches: or_fail(batches),
                own: VecDeque::new(),
            }
        };
        Self {
            spec,
            net: or_fail(bound).0,
            workers: (0..options.workers).map(worker).collect(),
            delay: 0,
            reads_own: false,
        }
    }

    /// The smoothed loss and the weights at the end, or the iteration at which the loss was NaN.
    fn train(&mut self, iterations: u64) -> Result<(f32, State), u64> {
        let n = self.net.extent();
        let state: State = [zeros(n), zeros(n)];
        self.net.initialise(WeightsView::of(&state[0]), 1);
        // After each of the last steps and now, the oldest first.
        let mut past = VecDeque::new();
        let mut smoothed: Option<f32> = None;
        for t in 0..iterations {
            past.push_back(copy(&state));
            if past.len() > self.delay + 1 {
                past.pop_front();
            }
            let missing = past.len() - 1;
            let (loss, mean) = self.gradient(&past[0], missing, t);
            if !loss.is_finite() {
                return Err(t);
            }
            step(self.spec, &self.net, &state, &mean, t);
            let before = smoothed.unwrap_or(loss);
            smoothed = Some(before + SMOOTHING * (loss - before));
        }
        Ok((smoothed.unwrap_or(f32::NAN), state))
    }

    /// Loss and mean gradient of all workers, who know `known` and miss the steps up to `t`.
    fn gradient(&mut self, known: &State, missing: usize, t: u64) -> (f32, Vec<f32>) {
        let share = 1.0 / self.workers.len() as f32;
        let (mut mean, mut gradient) = (vec![0.0; self.net.extent()], vec![0.0; self.net.extent()]);
        let mut loss = 0.0;
        for worker in &mut self.workers {
            let read = copy(known);
            let first = worker.own.len() - missing;
            for (k, own) in worker.own.iter().skip(first).enumerate() {
                if self.reads_own {
                    step(
                        self.spec,
                        &self.net,
                        &read,
                        own,
                        t - missing as u64 + k as u64,
                    );
                }
            }
            let batch = worker.batches.next();
            let read = WeightsView::of(&read[0]);
            let net = &mut self.net;
            loss += share * net.forward_backward(read, &batch.images, &batch.labels, &mut gradient);
            let all = mean.iter_mut().zip(&gradient);
            all.for_each(|(mean, own)| *mean += share * own);
            worker.own.push_back(gradient.clone());
            if worker.own.len() > self.delay {
                worker.own.pop_front();
            }
        }
        (loss, mean)
    }
}

/// Largest rate times curvature at which the workers' weights stay bounded on a quadratic, where
/// each worker begins somewhere else: by bisection.
fn stable(momentum: f64, delay: usize, workers: usize, reads_own: bool) -> f64 {
    let stays = |a: f64| {
        let (mut w, mut v) = (1.0, 0.0);
        let mut past = VecDeque::from(vec![(w, v); delay]);
        let start = |k: usize| VecDeque::from(vec![0.1 * (k as f64 + 1.0); delay]);
        let mut own: Vec<VecDeque<f64>> = (0..workers).map(start).collect();
        for _ in 0..40_000 {
            past.push_back((w, v));
            if past.len() > delay + 1 {
                past.pop_front();
            }
            let (missing, mut mean) = (past.len() - 1, 0.0);
            for own in &mut own {
                let (mut w, mut v) = past[0];
                for g in own.iter().skip(own.len() - missing).filter(|_| reads_own) {
                    v = momentum * v + a * g;
                    w -= v;
                }
                mean += w / workers as f64;
                own.push_back(w);
                own.pop_front();
            }
            v = momentum * v + a * mean;
            w -= v;
            if w.abs() > 1e6 || own.iter().flatten().any(|g| g.abs() > 1e6) {
                return false;
            }
        }
        true
    };
    let (mut low, mut high) = (0.0, 4.0);
    while high - low > 1e-3 {
        let middle = (low + high) / 2.0;
        if stays(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

fn main() {
    let options = options();
    let set = or_fail(options.data.load());
    let images = Arc::new(set.train.clone());
    let specs = match &options.model {
        Some(name) => vec![or_fail(SolverSpec::builtin(name))],
        None => SETTINGS.map(|(m, rate)| lenet(m, rate)).into(),
    };
    println!(
        "{}, {} workers in one process, batches of {}, {} iterations; smoothed loss and right \
         answers at the end",
        options.model.as_deref().unwrap_or("LeNet"),
        options.workers,
        options.batch,
        options.iterations
    );
    println!("momentum  rate    delay  reads    stable up to rate x curvature   found");
    for spec in &specs {
        for &delay in &options.delays {
            for reads_own in [false, true].into_iter().take(1 + delay.min(1)) {
                let mut run = Run::new(spec, &set, &images, &options);
                (run.delay, run.reads_own) = (delay, reads_own);
                let said = match run.train(options.iterations) {
                    Ok((loss, [w, _])) => {
                        let transform = Transforms::of(spec, &set.train).test;
                        let mut tester = or_fail(Tester::new(spec, transform, set.test.clone(), 0));
                        let found = or_fail(tester.test_within(WeightsView::of(&w), None));
                        format!("{loss:.3}, {:.2} %", 100.0 * found.accuracy)
                    }
                    Err(t) => format!("no number at iteration {t}"),
                };
                let (momentum, rate) = (spec.momentum, spec.base_lr);
                let reads = if reads_own { "own" } else { "delayed" };
                let bound = stable(momentum.into(), delay, options.workers, reads_own);
                println!("{momentum:<9} {rate:<7} {delay:<6} {reads:<8} {bound:<31.3} {said}");
            }
        }
    }
}

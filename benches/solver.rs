//! Training steps per second on one thread, compared with two others in the same run. One is the
//! bare matrix products of the same shapes: what is left if everything else cost nothing. The other
//! is PyTorch on one thread, where `/usr/bin/python3` has torch.
//!
//! `taskset -c 1 cargo bench --bench solver [-- [--seconds S] [--rounds N] [--model NAME]
//! [--json]]`
//!
//! The three take turns, round by round, because machines change speed. The figure of each is its
//! median round, and the ratios are medians of ratios within a round.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::AtomicU32;
use std::time::Instant;

use dogwild::solver::{LayerOp, Net, Phase, SolverSpec, bare_product, update};
use dogwild::weights::WeightsView;

struct Options {
    seconds: f64,
    rounds: usize,
    models: Vec<String>,
    json: bool,
}

fn options() -> Options {
    let mut options = Options {
        seconds: 1.0,
        rounds: 5,
        models: Vec::new(),
        json: false,
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--json" => options.json = true,
            "--seconds" => options.seconds = number(args.next(), &arg),
            "--rounds" => options.rounds = number::<usize>(args.next(), &arg).max(1),
            "--model" => options.models.extend(args.next()),
            // What cargo itself passes.
            "--bench" => {}
            other => fail(&format!("unknown argument {other}")),
        }
    }
    if options.models.is_empty() {
        options.models = vec!["lenet".to_owned(), "cifar10_quick".to_owned()];
    }
    options
}

fn number<T: std::str::FromStr>(value: Option<String>, name: &str) -> T {
    match value.as_deref().map(str::parse) {
        Some(Ok(number)) => number,
        _ => fail(&format!("{name} needs a number")),
    }
}

fn fail(message: &str) -> ! {
    eprintln!("solver bench: {message}");
    std::process::exit(2);
}

/// Something that can do steps and say how long they took.
trait Stepper {
    fn run(&mut self, steps: usize) -> f64;

    /// Steps per second over about `seconds`.
    fn rate(&mut self, seconds: f64) -> f64 {
        let once = self.run(1).max(1e-6);
        let steps = (seconds / once).ceil() as usize;
        steps as f64 / self.run(steps)
    }
}

/// forward, backward, update of this crate.
struct Ours {
    spec: SolverSpec,
    net: Net,
    words: Vec<AtomicU32>,
    history: Vec<AtomicU32>,
    grads: Vec<f32>,
    images: Vec<f32>,
    labels: Vec<u32>,
}

impl Ours {
    fn new(model: &str) -> Self {
        let spec = SolverSpec::builtin(model).unwrap_or_else(|e| fail(&e.to_string()));
        let input = if model.starts_with("cifar") {
            [3, 32, 32]
        } else {
            [1, 28, 28]
        };
        let batch = spec.net.batch_size(Phase::Train).unwrap_or(64);
        let net = Net::new(&spec.net, Phase::Train, batch, input, 10)
            .unwrap_or_else(|e| fail(&e.to_string()));
        let zeros = || {
            (0..net.extent())
                .map(|_| AtomicU32::new(0))
                .collect::<Vec<_>>()
        };
        let (words, history) = (zeros(), zeros());
        net.initialise(WeightsView::of(&words), 1);
        let size: usize = input.iter().product();
        Self {
            grads: vec![0.0; net.extent()],
            images: (0..batch * size)
                .map(|i| (i * 37 % 256) as f32 / 256.0)
                .collect(),
            labels: (0..batch as u32).map(|i| i % 10).collect(),
            spec,
            net,
            words,
            history,
        }
    }
}

impl Stepper for Ours {
    fn run(&mut self, steps: usize) -> f64 {
        let w = WeightsView::of(&self.words);
        let start = Instant::now();
        for _ in 0..steps {
            self.net
                .forward_backward(w, &self.images, &self.labels, &mut self.grads);
            let history = WeightsView::of(&self.history);
            update(&self.spec, &self.net, w, &self.grads, history, 0.001);
        }
        start.elapsed().as_secs_f64()
    }
}

/// The products that a step needs as matrices, nothing else. For a convolution the columns of its
/// images (im2col) are taken as given: for the whole batch or for a few images at a time, whichever
/// is faster here.
struct Products {
    /// Rows, columns, inner size, and how often.
    shapes: Vec<([usize; 3], usize)>,
    left: Vec<f32>,
    right: Vec<f32>,
    to: Vec<f32>,
}

impl Products {
    fn new(ours: &Ours) -> Self {
        let batch = ours.net.batch_size();
        let mut candidates: Vec<(f64, Self)> = [1, 4, 16, batch]
            .into_iter()
            .map(|images| {
                let mut products = Self::by(ours, images);
                let seconds = (0..4).map(|_| products.run(1)).fold(f64::MAX, f64::min);
                (seconds, products)
            })
            .collect();
        candidates.sort_by(|a, b| a.0.total_cmp(&b.0));
        candidates.swap_remove(0).1
    }

    /// Convolutions by `images` at a time.
    fn by(ours: &Ours, images: usize) -> Self {
        let batch = ours.net.batch_size();
        let mut shapes = Vec::new();
        let mut outputs = ours.net.tensors().into_iter().filter(|(_, s)| s.len() > 1);
        let mut size = [ours.net.input()[1], ours.net.input()[2]];
        for layer in ours.spec.net.layers_in(Phase::Train) {
            let (n, times) = match &layer.op {
                LayerOp::Convolution { window: w, .. } => {
                    for (a, size) in size.iter_mut().enumerate() {
                        *size = (*size + 2 * w.pad[a] - w.kernel[a]) / w.stride[a] + 1;
                    }
                    (size[0] * size[1] * images, batch.div_ceil(images))
                }
                LayerOp::Pooling { window: w, .. } => {
                    for (a, size) in size.iter_mut().enumerate() {
                        *size = (*size - w.kernel[a]).div_ceil(w.stride[a]) + 1;
                    }
                    continue;
                }
                LayerOp::InnerProduct { .. } => (batch, 1),
                _ => continue,
            };
            let Some((_, shape)) = outputs.next() else {
                break;
            };
            let (m, k) = (shape[0], shape[1..].iter().product::<usize>());
            if !shapes.is_empty() {
                shapes.push(([k, n, m], times));
            }
            shapes.push(([m, n, k], times));
            shapes.push(([m, k, n], times));
        }
        let room = |f: fn(&[usize; 3]) -> usize| {
            vec![0.5; shapes.iter().map(|s| f(&s.0)).max().unwrap_or(0)]
        };
        Self {
            left: room(|[m, _, k]| m * k),
            right: room(|[_, n, k]| k * n),
            to: room(|[m, n, _]| m * n),
            shapes,
        }
    }

    fn operations(&self) -> f64 {
        self.shapes
            .iter()
            .map(|(s, times)| 2.0 * (times * s.iter().product::<usize>()) as f64)
            .sum()
    }
}

impl Stepper for Products {
    fn run(&mut self, steps: usize) -> f64 {
        let start = Instant::now();
        for _ in 0..steps {
            for &(sizes, times) in &self.shapes {
                for _ in 0..times {
                    bare_product(sizes, &self.left, &self.right, &mut self.to);
                }
            }
        }
        start.elapsed().as_secs_f64()
    }
}

/// PyTorch in its own process.
struct Torch {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Torch {
    fn start(model: &str) -> Option<Self> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tools/torch_lenet.py");
        let mut child = Command::new("/usr/bin/python3")
            .args([script, model])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let input = child.stdin.take()?;
        let output = BufReader::new(child.stdout.take()?);
        let mut torch = Self {
            child,
            input,
            output,
        };
        // Warms up, and shows whether torch is there at all.
        torch.try_run(2).map(|_| torch)
    }

    fn try_run(&mut self, steps: usize) -> Option<f64> {
        writeln!(self.input, "{steps}").ok()?;
        let mut line = String::new();
        self.output.read_line(&mut line).ok()?;
        line.trim().parse().ok()
    }
}

impl Stepper for Torch {
    fn run(&mut self, steps: usize) -> f64 {
        self.try_run(steps)
            .unwrap_or_else(|| fail("torch ended in the middle"))
    }
}

impl Drop for Torch {
    fn drop(&mut self) {
        // Ended by its input otherwise; nothing to do if it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn measure(model: &str, options: &Options) -> serde_json::Value {
    let mut ours = Ours::new(model);
    let mut products = Products::new(&ours);
    let mut torch = Torch::start(model);
    if torch.is_none() {
        eprintln!(
            "SKIPPED: the comparison with PyTorch: /usr/bin/python3 has no torch (Debian: python3-torch)"
        );
    }
    ours.run(2);
    products.run(2);
    let mut rates: Vec<[f64; 3]> = Vec::new();
    for _ in 0..options.rounds {
        let theirs = torch.as_mut().map_or(f64::NAN, |t| t.rate(options.seconds));
        rates.push([
            ours.rate(options.seconds),
            products.rate(options.seconds),
            theirs,
        ]);
    }
    let of = |f: &dyn Fn(&[f64; 3]) -> f64| median(rates.iter().map(f).collect());
    let present = |x: f64| {
        if x.is_nan() {
            serde_json::Value::Null
        } else {
            x.into()
        }
    };
    serde_json::json!({
        "model": model,
        "batch": ours.net.batch_size(),
        "steps_per_s": of(&|r| r[0]),
        "gemm_limit_steps_per_s": of(&|r| r[1]),
        "gemm_limit_gflop_per_s": of(&|r| r[1]) * products.operations() / 1e9,
        "torch_steps_per_s": present(of(&|r| r[2])),
        "of_gemm_limit": of(&|r| r[0] / r[1]),
        "times_torch": present(of(&|r| r[0] / r[2])),
    })
}

fn main() {
    let options = options();
    for model in &options.models {
        let result = measure(model, &options);
        if options.json {
            println!("{result}");
            continue;
        }
        let number = |name: &str| {
            result[name]
                .as_f64()
                .map_or("-".to_owned(), |x| format!("{x:.2}"))
        };
        println!("{model}, batch {}, one thread", result["batch"]);
        println!("  dogwild    {:>9} steps/s", number("steps_per_s"));
        println!(
            "  bare GEMMs {:>9} steps/s ({} GFLOP/s): dogwild does {} of it",
            number("gemm_limit_steps_per_s"),
            number("gemm_limit_gflop_per_s"),
            number("of_gemm_limit")
        );
        println!(
            "  torch      {:>9} steps/s: dogwild does {} times that",
            number("torch_steps_per_s"),
            number("times_torch")
        );
    }
}

//! What the reliable path costs when there is no other worker: `--sync poseidon` with one worker
//! and one server, in turns with the plain solver.
//!
//! `cargo bench --bench poseidon_overhead [-- [--seconds S] [--rounds N] [--model NAME] [--scheme
//! NAME] [--json]]`
//!
//! Both are the real programs and live through the whole run. While one works, all processes of the
//! other are stopped (SIGSTOP), so that a round lasts moments and both meet the same machine. A
//! round begins and ends where the iteration counter moves. The ratio is the median of the rounds'
//! ratios; CPU time per iteration shows which part of the cost another core has carried.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use dogwild::job::{BufferPlan, make_buffer};
use dogwild::solver::SolverSpec;
use dogwild::solver::data::Source;
use dogwild::weights::{Existing, SharedWeights};

/// Time after a round's start that is not measured: caches are cold.
const WARM_UP: Duration = Duration::from_millis(300);

struct Options {
    seconds: f64,
    rounds: usize,
    models: Vec<String>,
    schemes: Vec<String>,
    json: bool,
}

fn options() -> Options {
    let mut options = Options {
        seconds: 2.0,
        rounds: 15,
        models: Vec::new(),
        schemes: Vec::new(),
        json: false,
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || {
            args.next()
                .unwrap_or_else(|| fail(&format!("{arg} needs a value")))
        };
        match arg.as_str() {
            "--json" => options.json = true,
            // Longer, and those that are stopped would be taken for dead.
            "--seconds" => options.seconds = number(&value()).clamp(0.1, 5.0),
            "--rounds" => options.rounds = (number(&value()) as usize).max(1),
            "--model" => options.models.push(value()),
            "--scheme" => options.schemes.push(value()),
            // What cargo itself passes.
            "--bench" => {}
            other => fail(&format!("unknown argument {other}")),
        }
    }
    let or = |given: &mut Vec<String>, default: [&str; 2]| {
        if given.is_empty() {
            *given = default.map(str::to_owned).into();
        }
    };
    or(&mut options.models, ["lenet", "cifar10_quick"]);
    or(&mut options.schemes, ["hybcomm", "ps"]);
    options
}

fn number(text: &str) -> f64 {
    text.parse()
        .unwrap_or_else(|_| fail(&format!("`{text}` is not a number")))
}

fn fail(message: &str) -> ! {
    eprintln!("poseidon_overhead bench: {message}");
    std::process::exit(2);
}

/// Processes that train one buffer.
struct Side {
    shared: SharedWeights,
    children: Vec<(&'static str, Child)>,
}

/// What a round gave: iterations per second, and CPU seconds per iteration by process.
struct Round {
    per_s: f64,
    cpu_s: Vec<f64>,
}

impl Side {
    fn new(folder: &Path, name: &str, spec: &SolverSpec, data: &Source) -> Self {
        let (input, classes) = data.shape();
        let path = folder.join(name);
        let buffer = make_buffer(&BufferPlan {
            path: &path,
            spec,
            data,
            input,
            classes,
            session: dogwild::cli::args::session("overhead"),
            nodes: 1,
            seed: 1,
            iterations: 0,
            weights: None,
            existing: Existing::Refuse,
        });
        Self {
            shared: buffer.unwrap_or_else(|error| fail(&error.to_string())),
            children: Vec::new(),
        }
    }

    fn start(&mut self, what: &'static str, words: &[&str]) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dogwild"));
        dogwild_lab::process::die_with_parent(&mut command);
        let command = command.arg(what).args(words).env("RUST_LOG", "warn");
        let child = command.stdin(Stdio::null()).spawn();
        let child = child.unwrap_or_else(|error| fail(&format!("cannot start {what}: {error}")));
        self.children.push((what, child));
    }

    fn signal(&self, signal: &str) {
        let ids = self
            .children
            .iter()
            .map(|(_, child)| child.id().to_string());
        let status = Command::new("kill").arg(signal).args(ids).status();
        if !status.is_ok_and(|status| status.success()) {
            fail("a process has ended (its message is above)");
        }
    }

    fn iterations(&self) -> u64 {
        self.shared.globals().local_iterations.load(Relaxed)
    }

    /// The moment at which the next iteration is done, and how many are then.
    fn tick(&mut self) -> (Instant, u64) {
        let before = self.iterations();
        loop {
            let now = self.iterations();
            if now != before {
                return (Instant::now(), now);
            }
            for (what, child) in &mut self.children {
                if let Ok(Some(status)) = child.try_wait() {
                    fail(&format!("the {what} ended with {status}"));
                }
            }
            std::thread::sleep(Duration::from_micros(20));
        }
    }

    /// CPU seconds of each process, and of the thread that computes.
    fn cpu_s(&self) -> Vec<f64> {
        let whole = self.children.iter().map(|(_, child)| cpu_s(child.id()).1);
        // The last that was started computes, in its first thread.
        let computing = self.children.iter().last();
        let computing = computing.map(|(_, child)| cpu_s(child.id()).0);
        whole.chain(computing).collect()
    }

    fn round(&mut self, seconds: f64) -> Round {
        self.signal("-CONT");
        std::thread::sleep(WARM_UP);
        let ((start, first), cpu_first) = (self.tick(), self.cpu_s());
        std::thread::sleep(Duration::from_secs_f64(seconds));
        let ((end, last), cpu_last) = (self.tick(), self.cpu_s());
        self.signal("-STOP");
        let done = (last - first) as f64;
        let cpu = cpu_last.iter().zip(&cpu_first);
        Round {
            per_s: done / (end - start).as_secs_f64(),
            cpu_s: cpu.map(|(to, from)| (to - from) / done).collect(),
        }
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        for (_, child) in &mut self.children {
            // One that has ended stays ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// CPU seconds of the first thread of a process, and of all.
fn cpu_s(process: u32) -> (f64, f64) {
    let folder = format!("/proc/{process}/task");
    let of = |task: PathBuf| -> Option<f64> {
        let text = std::fs::read_to_string(task.join("schedstat")).ok()?;
        let ns: f64 = text.split_whitespace().next()?.parse().ok()?;
        Some(ns / 1e9)
    };
    let tasks =
        std::fs::read_dir(&folder).unwrap_or_else(|error| fail(&format!("{folder}: {error}")));
    let all = tasks.flatten().filter_map(|task| of(task.path())).sum();
    let first = of(Path::new(&folder).join(process.to_string()));
    (first.unwrap_or(0.0), all)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Both sides of one model and scheme, started.
fn sides(folder: &Path, model: &str, scheme: &str, data: &Source) -> [Side; 2] {
    let spec = SolverSpec::builtin(model).unwrap_or_else(|error| fail(&error.to_string()));
    let text = data.to_string();
    let common = ["--solver", model, "--data", &text];
    let mut plain = Side::new(folder, "plain", &spec, data);
    let path = |side: &Side| side.shared.path().display().to_string();
    let buffer = path(&plain);
    let own = ["--buffer", &buffer, "--nodes", "1", "--test-every", "0"];
    plain.start("solver", &[&common[..], &own].concat());
    plain.tick();
    plain.signal("-STOP");

    let mut poseidon = Side::new(folder, "poseidon", &spec, data);
    let (buffer, file) = (path(&poseidon), folder.join("address"));
    let name = file.display().to_string();
    let own = [
        "--listen",
        "127.0.0.1:0",
        "--address-file",
        &name,
        "--session",
        "overhead",
        "--workers",
        "1",
        "--iterations",
        "1000000000",
        "--scheme",
        scheme,
    ];
    poseidon.start("coordinator", &[&common[..], &own].concat());
    let address = loop {
        if let Ok(address) = std::fs::read_to_string(&file) {
            break address;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let member = ["--index", "0", "--coordinator", &address];
    let own = ["--session", "overhead"];
    poseidon.start("server", &[&common[..], &member, &own].concat());
    let own = ["--buffer", &buffer, "--test-every", "0"];
    poseidon.start("worker", &[&common[..], &member, &own].concat());
    poseidon.tick();
    poseidon.signal("-STOP");
    [plain, poseidon]
}

fn main() {
    let options = options();
    for model in &options.models {
        let data = match (model.starts_with("cifar"), std::env::var("DOGWILD_CIFAR10")) {
            (false, _) => "digits:1,train=4000,test=100".to_owned(),
            (true, Ok(folder)) => format!("cifar10:{folder}"),
            (true, Err(_)) => fail("set DOGWILD_CIFAR10 to the folder of the binary batches"),
        };
        let data: Source = data.parse().unwrap_or_else(|_| fail("no such data"));
        for scheme in &options.schemes {
            let folder =
                tempfile::tempdir_in("/dev/shm").unwrap_or_else(|error| fail(&error.to_string()));
            let [mut plain, mut poseidon] = sides(folder.path(), model, scheme, &data);
            let rounds: Vec<[Round; 2]> = (0..options.rounds)
                .map(|_| {
                    [
                        plain.round(options.seconds),
                        poseidon.round(options.seconds),
                    ]
                })
                .collect();
            let of = |pick: &dyn Fn(&[Round; 2]) -> f64| median(rounds.iter().map(pick).collect());
            let ratio = of(&|[plain, poseidon]| poseidon.per_s / plain.per_s);
            let [a, b] = [of(&|r| r[0].per_s), of(&|r| r[1].per_s)];
            let cpu_ms = |side: usize, process: usize| 1e3 * of(&|r| r[side].cpu_s[process]);
            let (solver, server, worker) = (cpu_ms(0, 1), cpu_ms(1, 1), cpu_ms(1, 2));
            let computing = cpu_ms(1, 3);
            if options.json {
                println!(
                    "{}",
                    serde_json::json!({
                        "model": model, "scheme": scheme, "rounds": options.rounds,
                        "seconds": options.seconds, "plain_per_s": a, "poseidon_per_s": b,
                        "ratio": ratio, "solver_cpu_ms": solver, "worker_cpu_ms": worker,
                        "computing_thread_cpu_ms": computing, "server_cpu_ms": server,
                    })
                );
            } else {
                println!(
                    "{model}, {scheme}: plain {a:.1} it/s, poseidon {b:.1} it/s, ratio {ratio:.3}; CPU ms per \
                     iteration: solver {solver:.2}, worker {worker:.2} (thread that computes: {computing:.2}), server {server:.2}"
                );
            }
        }
    }
}

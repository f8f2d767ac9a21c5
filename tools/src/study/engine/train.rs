//! The engines `loopback` and `lab`: a cell as processes in real time, by `dogwild train`.
//!
//! Solvers are paced to the setting's time of a step, so that a machine has room for many nodes. A
//! node of its own tests, so that no solver stops for it. In a lab the kernel's token bucket keeps
//! the rate of links, on loopback each node does (`--pace`). Losses are made by the seeded fault
//! wrapper at each receiver.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use dogwild::job::iterations_of;
use dogwild::node::train_batch;
use dogwild::settings::FlowSettings;
use dogwild::stream::Merge;
use dogwild_tools::scratch::Scratch;
use serde::Deserialize;
use serde_json::Value;

use super::Files;
use crate::experiment::{Engine, Link, Nodes, Poseidon, Setting};
use crate::repeat::{WITH_SUMMARY, program};
use crate::results::{Ended, Figures, Point, Run};

/// A row of `curve.csv`.
#[derive(Deserialize)]
struct Row {
    iteration: u64,
    seconds: f64,
    test_accuracy: f64,
}

/// Trains with one seed.
///
/// # Errors
/// `dogwild train` cannot be started, or fails: with its message.
pub(crate) fn run(setting: &Setting, files: &Files, seed: u64, tell: &dyn Fn(u64)) -> Result<Run> {
    let scratch = Scratch::new("dogwild-study")?;
    let out = scratch.file("out");
    let mut command = Command::new(program()?);
    dogwild_lab::process::die_with_parent(&mut command);
    command.arg("train").args(args(setting, files)?);
    command.args(["--seed", &seed.to_string()]);
    if setting.poseidon.is_none() {
        // Each node adds its index.
        command.args(["--fault-seed", &seed.wrapping_mul(1000).to_string()]);
    }
    command.arg("--out").arg(&out);
    // On the reliable path each worker counts its own.
    let workers = u64::from(setting.nodes.count);
    let each = setting.poseidon.as_ref().map_or(1, |_| workers);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start dogwild train")?;
    let said = child.stderr.take().context("its errors are a pipe")?;
    let said = follow(said, &|iterations| tell(iterations * each));
    let status = child.wait().context("dogwild train does not end")?;
    let code = status.code().unwrap_or(-1);
    if !WITH_SUMMARY.contains(&code) {
        bail!("`dogwild train` ended with {status}:\n{}", said.trim_end());
    }
    let text = std::fs::read_to_string(out.join("summary.json"))
        .context("dogwild train has left no summary.json")?;
    let summary: Value = serde_json::from_str(&text).context("summary.json is not JSON")?;
    let batch = train_batch(&files.model(&setting.model.solver)?.net)? as u64;
    let points = points(&out.join("curve.csv"), batch, each)?;
    let ended = match code {
        3 => Ended::Diverged,
        _ if reached(setting, &points) => Ended::Target,
        _ => Ended::Done,
    };
    Ok(Run {
        seed,
        ended,
        iterations: summary["iterations"].as_u64().unwrap_or(0) * each,
        points,
        figures: match setting.poseidon {
            Some(_) => Figures::default(),
            None => figures(setting, &summary),
        },
    })
}

/// Reads what it writes, line by line, and tells how far it says that it is.
fn follow(said: impl Read, tell: &dyn Fn(u64)) -> String {
    let mut all = String::new();
    for line in BufReader::new(said).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        if let Some(iterations) = iterations_of(&line) {
            tell(iterations);
        }
        all += &line;
        all.push('\n');
    }
    all
}

fn reached(setting: &Setting, points: &[Point]) -> bool {
    let stop = &setting.stop;
    let there = |target| points.iter().any(|point| point.accuracy >= target);
    stop.at_target && stop.target.is_some_and(there)
}

/// The arguments of `dogwild train`.
fn args(setting: &Setting, files: &Files) -> Result<Vec<String>> {
    let (nodes, stop) = (&setting.nodes, &setting.stop);
    let mut args = Words::default();
    args.put("solver", files.model_name(&setting.model.solver));
    args.put("data", files.data_name(&setting.model.data)?);
    args.put("test-images", setting.model.test_images);
    // On the reliable path each worker counts its own.
    let each = setting
        .poseidon
        .as_ref()
        .map_or(1, |_| u64::from(nodes.count));
    args.put("iterations", stop.iterations.div_ceil(each));
    args.put("test-every", stop.test_every.div_ceil(each));
    if let Some(target) = stop.target.filter(|_| stop.at_target) {
        args.put("target-accuracy", target);
    }
    match &setting.poseidon {
        Some(poseidon) => reliable(setting, poseidon, &mut args),
        None => stream(setting, &mut args),
    }
    if setting.engine == Engine::Lab {
        args.flag("lab");
        if let Some(rate) = setting.link.rate.0 {
            args.put("lab-rate", rate);
            args.put("lab-queue", rate * setting.link.queue_ms / 1e3);
        }
    }
    Ok(args.0)
}

/// Words of a command line.
#[derive(Default)]
struct Words(Vec<String>);

impl Words {
    fn put(&mut self, name: &str, value: impl std::fmt::Display) {
        self.0.extend([format!("--{name}"), value.to_string()]);
    }

    fn flag(&mut self, name: &str) {
        self.0.push(format!("--{name}"));
    }
}

fn stream(setting: &Setting, args: &mut Words) {
    let (nodes, stream) = (&setting.nodes, &setting.stream);
    args.flag("tester");
    args.put("nodes", nodes.count);
    args.put("solvers", nodes.solvers);
    args.put("pace-steps", paces(nodes));
    for pause in &nodes.pauses {
        args.put(
            "pause",
            format!("{}:{}:{}", pause.node, pause.from_s, pause.for_s),
        );
    }
    args.put("transport", "udp");
    args.put("deltas", stream.deltas_name());
    let merge = match stream.merge {
        Merge::Mean => "mean",
        Merge::Sum => "sum",
    };
    args.put("merge", merge);
    args.put("precision", stream.precision.name());
    if let Some(masters) = stream.masters {
        args.put("masters", masters);
    }
    if let Some(rate) = stream.rate_bytes_per_s {
        args.put("rate", rate);
    }
    let window = stream.window_bytes.map(|bytes| bytes.to_string());
    args.put("window", window.unwrap_or_else(|| "max".to_owned()));
    if stream.sparse {
        args.flag("sparse");
    }
    if setting.engine == Engine::Loopback
        && let Some(rate) = setting.link.rate.0
    {
        args.put("pace", rate);
    }
    faults(&setting.link, args);
}

/// Steps a second of each node's solvers.
fn paces(nodes: &Nodes) -> String {
    let slow = |node: u16| nodes.slow.iter().filter(move |one| one.node == node);
    let pace = |node: u16| {
        let times: f64 = slow(node).map(|one| one.times).product();
        (1e3 / nodes.step_ms / times).to_string()
    };
    if nodes.slow.is_empty() {
        return pace(0);
    }
    (0..nodes.count).map(pace).collect::<Vec<_>>().join(",")
}

/// What each receiver does to frames.
fn faults(link: &Link, args: &mut Words) {
    for (name, share) in [
        ("loss", link.loss),
        ("corrupt", link.corrupt),
        ("duplicate", link.duplicate),
        ("reorder", link.reorder),
    ] {
        if share > 0.0 {
            args.put(name, share);
        }
    }
    if let Some(bursts) = link.loss_burst {
        let values = [bursts.p, bursts.r, bursts.loss_bad, bursts.loss_good];
        let values: Vec<String> = values.iter().map(f64::to_string).collect();
        args.put("loss-burst", values.join(","));
    }
}

/// TCP meets the losses of the link in the kernel of each receiver.
fn reliable(setting: &Setting, poseidon: &Poseidon, args: &mut Words) {
    args.put("sync", "poseidon");
    args.put("workers", setting.nodes.count);
    args.put("servers", poseidon.servers);
    args.put("scheme", &poseidon.scheme);
    args.put("staleness", poseidon.staleness);
    if let Some(bytes) = poseidon.pair_bytes {
        args.put("pair-bytes", bytes);
    }
    if setting.engine == Engine::Lab {
        args.put("lab-congestion", &poseidon.congestion);
        if setting.link.loss > 0.0 {
            args.put("lab-loss", setting.link.loss);
        }
    }
}

/// What only virtual time has.
///
/// # Errors
/// The setting has it; which field.
pub(crate) fn validate(setting: &Setting) -> Result<()> {
    if setting.poseidon.is_some() {
        validate_reliable(setting)?;
    }
    let (nodes, none) = (&setting.nodes, Link::default());
    let only_sim = [
        ("nodes.step_recording", nodes.step_recording.is_some()),
        ("nodes.cautious", !nodes.cautious),
        ("link_of", !setting.link_of.is_empty()),
        ("link.delay_ms", setting.link.delay_ms != none.delay_ms),
        (
            "link.reorder_ms",
            setting.link.reorder_ms != none.reorder_ms,
        ),
    ];
    ensure!(
        setting.engine == Engine::Lab || setting.link.queue_ms == none.queue_ms,
        "link.queue_ms: on loopback a node keeps its rate without a queue; leave it out, or take \
         engine = \"lab\""
    );
    for (field, given) in only_sim {
        ensure!(
            !given,
            "{field}: only the engine sim has it; leave it out, or leave out engine = \"{}\"",
            setting.engine.name()
        );
    }
    Ok(())
}

/// What the reliable path has no place for.
fn validate_reliable(setting: &Setting) -> Result<()> {
    let (link, nodes) = (&setting.link, &setting.nodes);
    let rate_differs = link.rate != Link::default().rate;
    let other = [
        ("nodes.solvers", nodes.solvers != 1),
        ("nodes.slow", !nodes.slow.is_empty()),
        ("nodes.pauses", !nodes.pauses.is_empty()),
        ("link.loss_burst", link.loss_burst.is_some()),
        ("link.corrupt", link.corrupt > 0.0),
        ("link.duplicate", link.duplicate > 0.0),
        ("link.reorder", link.reorder > 0.0),
        ("stream", setting.stream != FlowSettings::default()),
    ];
    for (field, given) in other {
        ensure!(
            !given,
            "{field}: the reliable path (poseidon) has it not; leave it out"
        );
    }
    ensure!(
        setting.engine == Engine::Lab || (link.loss == 0.0 && !rate_differs),
        "link: on loopback TCP meets no link; write engine = \"lab\""
    );
    Ok(())
}

fn points(curve: &Path, batch: u64, each: u64) -> Result<Vec<Point>> {
    let mut rows = csv::Reader::from_path(curve).context("dogwild train has left no curve.csv")?;
    let mut points = Vec::new();
    for row in rows.deserialize() {
        let row: Row = row.context("a row of curve.csv is none")?;
        points.push(Point {
            iterations: row.iteration * each,
            samples: row.iteration * each * batch,
            seconds: row.seconds,
            bytes: None,
            loss: None,
            accuracy: row.test_accuracy,
        });
    }
    Ok(points)
}

/// From `summary.json`; the tester is left out, as it trains nothing.
fn figures(setting: &Setting, summary: &Value) -> Figures {
    let count = usize::from(setting.nodes.count);
    let nodes = summary["per_node"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let nodes = &nodes[..count.min(nodes.len())];
    let numbers = |path: &str| -> Vec<f64> {
        let number = |node: &Value| node.pointer(path)?.as_f64();
        nodes.iter().filter_map(number).collect()
    };
    let seconds = summary["train_s"].as_f64().filter(|s| *s > 0.0);
    let steps: f64 = numbers("/iterations").iter().sum();
    let solvers = count as f64 * f64::from(setting.nodes.solvers);
    let made = seconds.map(|s| steps * setting.nodes.step_ms / 1e3 / (s * solvers));
    if count == 1 {
        return Figures {
            utilisation: made,
            ..Figures::default()
        };
    }
    let most = |path: &str| numbers(path).into_iter().max_by(f64::total_cmp);
    let sum = |path: &str| numbers(path).iter().sum::<f64>();
    let per_s = |bytes: f64| Some(bytes / (seconds? * count as f64));
    let chunk = most("/chunk_weights").unwrap_or(0.0) as usize;
    let useful = sum("/stream/positions_taken") + sum("/stream/deltas_applied");
    let (lost, there) = (
        sum("/stream/fault_dropped"),
        sum("/stream/frames_received") + sum("/stream/fault_dropped"),
    );
    Figures {
        age_s_p50: most("/age_us/p50").map(|us| us / 1e6),
        age_s_p99: most("/age_us/p99").map(|us| us / 1e6),
        age_steps_p50: most("/stream/age_steps_p50"),
        age_steps_p99: most("/stream/age_steps_p99"),
        sent_bytes_per_s: per_s(sum("/stream/bytes_sent")),
        goodput_bytes_per_s: per_s(useful * setting.stream.precision.payload_len(chunk) as f64),
        frames_lost: (there > 0.0).then(|| lost / there),
        utilisation: made,
        ..Figures::default()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::mpsc;

    use super::*;

    /// What is told must come before the process writes on: told at its end, this fails.
    #[test]
    fn a_run_is_followed_while_it_writes() {
        let (reader, mut writer) = std::io::pipe().expect("a pipe");
        let (told, tells) = mpsc::channel();
        let writing = std::thread::spawn(move || {
            let minute = std::time::Duration::from_secs(60);
            let mut heard = Vec::new();
            for line in [
                "waiting for node 1",
                "40/200  loss 0.5",
                "",
                "80/200  loss 0.4",
            ] {
                writeln!(writer, "{line}").expect("it is read");
                if line.starts_with(['4', '8']) {
                    heard.push(tells.recv_timeout(minute));
                }
            }
            heard
        });
        let all = follow(reader, &|iterations| {
            told.send(iterations).expect("it is heard")
        });
        assert_eq!(writing.join().expect("it ends"), [Ok(40), Ok(80)]);
        assert!(all.starts_with("waiting for node 1\n40/200"), "{all}");
    }
}

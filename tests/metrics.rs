//! What is served to Prometheus and written for TensorBoard, of processes that run.

#![cfg(feature = "metrics")]

mod support;

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use support::job::{Files, buffer, files, iterations, one_job};
use support::output::{assert_says, refused, said, succeeds};
use support::process::Process;
use support::program::dogwild;
use support::shm::shm_folder;
use support::wait::wait_for_or;

/// The address that a log tells.
fn address(log: &Path) -> Option<String> {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let (_, rest) = text.split_once("metrics: http://")?;
    Some(rest.split_once("/metrics")?.0.to_owned())
}

/// Waits for the address in `log`.
fn wait_for_address(log: &Path) -> String {
    let text = || std::fs::read_to_string(log).unwrap_or_default();
    wait_for_or("an address in the log", || address(log).is_some(), text);
    address(log).expect("it was there")
}

/// What is served at `address`.
fn scrape(address: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    let request = "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    text
}

/// The sum of all series of this name that have this text in their labels.
fn sum(text: &str, name: &str, label: &str) -> f64 {
    let start = format!("{name}{{");
    let series = text.lines().filter(|line| line.starts_with(&start));
    let series: Vec<&str> = series.filter(|line| line.contains(label)).collect();
    assert!(!series.is_empty(), "no {name} of {label} in\n{text}");
    let value = |line: &&str| {
        line.rsplit(' ')
            .next()
            .and_then(|value| value.parse::<f64>().ok())
    };
    series
        .iter()
        .map(|line| value(line).expect("a number"))
        .sum()
}

/// A streamer that loses a tenth of what it receives, and whose counters are served.
struct Streamer {
    process: Process,
    address: String,
    buffer: PathBuf,
}

impl Streamer {
    fn start(folder: &Path, session: &str, node: u16) -> Self {
        let buffer = folder.join(format!("n{node}"));
        let log = folder.join(format!("n{node}.log"));
        let init = ["init", "--session", session, "--data", "digits", "--buffer"];
        succeeds(dogwild().args(init).arg(&buffer));
        let mut command = dogwild();
        command.args([
            "stream",
            "--loss",
            "10%",
            "--mtu",
            "1500",
            "--metrics",
            "127.0.0.1:0",
        ]);
        command
            .args(["--node", &node.to_string(), "--buffer"])
            .arg(&buffer);
        command.env("RUST_LOG", "info").stdout(Stdio::null());
        command.stderr(File::create(&log).expect("a log"));
        let process = Process::start(&mut command);
        let address = wait_for_address(&log);
        Self {
            process,
            address,
            buffer,
        }
    }
}

/// What was lost, as the wrapper that lost it counts it, and as the stream counts what is missing.
struct Losses {
    dropped: f64,
    arrived: f64,
    missed: f64,
    taken: f64,
}

impl Losses {
    fn of(text: &str) -> Self {
        let sum = |name| sum(text, name, "node=\"1\"");
        Self {
            dropped: sum("dogwild_stream_fault_dropped_total"),
            arrived: sum("dogwild_stream_frames_received_total"),
            missed: sum("dogwild_peer_positions_missed_total"),
            taken: sum("dogwild_peer_positions_taken_total"),
        }
    }

    /// Share of the frames that the wrapper lost, and of the positions that never came, since
    /// `before`.
    fn shares_since(&self, before: &Self) -> [f64; 2] {
        let (dropped, arrived) = (self.dropped - before.dropped, self.arrived - before.arrived);
        let (missed, taken) = (self.missed - before.missed, self.taken - before.taken);
        [dropped / (dropped + arrived), missed / (missed + taken)]
    }
}

/// Frames of the comparison: the standard deviation of either share is 0.02 %.
const FRAMES: f64 = 2e6;

/// Three ways to the same truth, within 0.1 % of all positions: the fault wrapper, the metrics, and
/// `dogwild top`.
#[test]
#[ignore = "long: two million frames"]
fn losses_are_shown_as_they_are() {
    let _one = one_job();
    let folder = shm_folder();
    let session = format!("metrics-{}", std::process::id());
    let nodes = [0, 1].map(|node| Streamer::start(folder.path(), &session, node));
    let look = || Losses::of(&scrape(&nodes[1].address));
    let taken = |text: &str| text.contains("dogwild_peer_positions_taken_total");
    let text = || scrape(&nodes[1].address);
    wait_for_or(
        "positions",
        || taken(&text()) && look().taken > 1000.0,
        text,
    );
    let mut top = dogwild();
    let recording = folder.path().join("recording");
    top.args(["top", "--json", "--interval", "2", "--record"]);
    top.arg(&recording).arg(&nodes[1].buffer);
    let shown = folder.path().join("shown");
    let to = std::fs::File::create(&shown).expect("a file");
    let top = Process::start(top.stdout(to).stderr(Stdio::piped()));
    let lines = || std::fs::read_to_string(&shown).unwrap_or_default();
    let before = look();
    wait_for_or(
        "enough frames",
        // On a fast machine they come within one interval.
        || look().arrived - before.arrived > FRAMES && lines().lines().count() > 1,
        text,
    );
    let [lost, missed] = look().shares_since(&before);
    top.signal("INT");
    let output = top.output();
    assert!((lost - 0.1).abs() < 0.001, "the wrapper lost {lost}");
    assert!(
        (missed - lost).abs() < 0.001,
        "{missed} missed of {lost} lost"
    );
    // All intervals of `top` together.
    let (mut missed, mut all) = (0.0, 0.0);
    for line in lines().lines() {
        let frame: serde_json::Value = serde_json::from_str(line).expect("JSON");
        let peer = &frame["nodes"][0]["peers"][0];
        let of = |value: &serde_json::Value| value.as_f64().expect("a number");
        let taken = of(&peer["positions_per_s"]) * of(&frame["seconds"]);
        let share = of(&peer["lost_share"]);
        missed += taken * share / (1.0 - share);
        all += taken / (1.0 - share);
        assert_eq!(peer["node"], 0, "{line}");
    }
    assert!(
        all > FRAMES / 4.0,
        "{all} positions seen by top\n{}",
        said(&output)
    );
    let seen = missed / all;
    assert!(
        (seen - lost).abs() < 0.001,
        "top says {seen}, of {lost} lost"
    );
    // What goes the other way is told too: replicas at rest are as near as can be.
    let text = scrape(&nodes[1].address);
    assert!(sum(&text, "dogwild_peer_deltas_sent_total", "peer=\"0\"") > 0.0);
    assert!(sum(&text, "dogwild_peer_deltas_applied_total", "peer=\"0\"") > 0.0);
    assert_eq!(sum(&text, "dogwild_peer_member", "peer=\"0\""), 1.0);
    for mut node in nodes {
        node.process.signal("INT");
        assert!(node.process.wait().success());
    }
}

/// The scalars of an event file: step, tag and value. Each record's lengths must fit.
fn scalars(file: &Path) -> Vec<(u64, String, f32)> {
    let bytes = std::fs::read(file).expect("an event file");
    let (mut rest, mut all) = (bytes.as_slice(), Vec::new());
    while let Some((len, _)) = rest.split_first_chunk::<8>() {
        let len = u64::from_le_bytes(*len) as usize;
        let (record, behind) = rest.split_at(8 + 4 + len + 4);
        all.extend(event(&record[12..12 + len]));
        rest = behind;
    }
    assert!(rest.is_empty(), "{} has half a record", file.display());
    all
}

/// A number of protobuf at the start of `bytes`, and what follows it.
fn varint(bytes: &[u8]) -> (u64, &[u8]) {
    let len = 1 + bytes.iter().take_while(|byte| **byte >= 0x80).count();
    let parts = bytes[..len].iter().rev();
    (
        parts.fold(0, |value, byte| value << 7 | u64::from(byte & 0x7f)),
        &bytes[len..],
    )
}

/// Fields of a protobuf message: number, and value or bytes.
fn fields(mut bytes: &[u8]) -> Vec<(u64, u64, &[u8])> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let (key, behind) = varint(bytes);
        let (value, inner, behind) = match key & 7 {
            0 => {
                let (value, behind) = varint(behind);
                (value, &behind[..0], behind)
            }
            1 => (0, &behind[..8], &behind[8..]),
            2 => {
                let (len, behind) = varint(behind);
                (0, &behind[..len as usize], &behind[len as usize..])
            }
            _ => (0, &behind[..4], &behind[4..]),
        };
        all.push((key >> 3, value, inner));
        bytes = behind;
    }
    all
}

fn event(bytes: &[u8]) -> Vec<(u64, String, f32)> {
    let event = fields(bytes);
    let step = event
        .iter()
        .find(|field| field.0 == 2)
        .map_or(0, |field| field.1);
    let summaries = event.iter().filter(|field| field.0 == 5);
    let values = summaries.flat_map(|summary| fields(summary.2));
    let scalar = |(_, _, value): (u64, u64, &[u8])| {
        let value = fields(value);
        let of = |n| value.iter().find(|field| field.0 == n).map(|field| field.2);
        let tag = String::from_utf8_lossy(of(1).expect("a tag")).into_owned();
        let number = of(2).map_or(0.0, |bytes| {
            f32::from_le_bytes(bytes.try_into().expect("four bytes"))
        });
        (step, tag, number)
    };
    values.map(scalar).collect()
}

/// The only file in a folder.
fn only(folder: &Path) -> PathBuf {
    let mut all = std::fs::read_dir(folder).expect("a folder").flatten();
    let first = all.next().expect("a file").path();
    assert!(
        all.next().is_none(),
        "more than one file in {}",
        folder.display()
    );
    first
}

#[test]
fn a_job_is_served_and_written_for_tensorboard() {
    let _one = one_job();
    let folder = tempfile::tempdir().expect("a folder");
    let (log, board) = (folder.path().join("log"), folder.path().join("board"));
    let mut train = dogwild();
    train.args([
        "train",
        "--data",
        "digits:3,train=2000,test=200",
        "--iterations",
        "400",
    ]);
    train.args([
        "--test-every",
        "100",
        "--metrics",
        "127.0.0.1:0",
        "--tensorboard",
    ]);
    train
        .arg(&board)
        .arg("--out")
        .arg(folder.path().join("out"));
    train.stdin(Stdio::null()).stdout(Stdio::null());
    train.stderr(File::create(&log).expect("a log"));
    let mut job = Process::start(&mut train);
    let _files = Files(job.id());
    let at = wait_for_address(&log);
    let trains = || iterations(&buffer(job.id(), 1)) > 20;
    wait_for_or("it to train", trains, || {
        std::fs::read_to_string(&log).unwrap_or_default()
    });
    let text = scrape(&at);
    for node in ["node=\"0\"", "node=\"1\""] {
        assert!(sum(&text, "dogwild_local_iterations_total", node) > 0.0);
        assert_eq!(sum(&text, "dogwild_component_up", node), 2.0, "{text}");
        assert!(sum(&text, "dogwild_solver_loss", node) > 0.0);
    }
    assert!(
        job.wait().success(),
        "{}",
        std::fs::read_to_string(&log).unwrap_or_default()
    );
    assert!(
        files(job.id()).is_empty(),
        "what is served is removed at the end"
    );
    for node in ["node0", "node1"] {
        let all = scalars(&only(&board.join(node)));
        let of = |tag: &str| all.iter().filter(|one| one.1 == tag).collect::<Vec<_>>();
        let losses = of("train/loss/solver0");
        assert!(
            !losses.is_empty() && losses.iter().all(|one| one.2 > 0.0),
            "{all:?}"
        );
        assert!(losses.is_sorted_by_key(|one| one.0), "{losses:?}");
    }
    let tests: Vec<_> = ["node0", "node1"]
        .iter()
        .flat_map(|node| scalars(&only(&board.join(node))))
        .filter(|one| one.1 == "test/accuracy")
        .collect();
    let later = tests.iter().filter(|one| one.0 >= 100);
    assert!(later.count() >= 3, "{tests:?}");
    let is_share = |one: &(u64, String, f32)| (0.0..=1.0).contains(&one.2);
    assert!(tests.iter().all(is_share), "{tests:?}");
}

#[test]
fn what_cannot_be_served_or_written_is_refused_before_anything_trains() {
    let folder = tempfile::tempdir().expect("a folder");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = taken.local_addr().expect("an address").to_string();
    let mut jobs = 0;
    let mut train = |flag: &str, value: &str| {
        jobs += 1;
        let mut train = dogwild();
        train.args([
            "train",
            "--data",
            "digits:3,train=200,test=20",
            "--iterations",
            "10",
        ]);
        train
            .arg(flag)
            .arg(value)
            .arg("--out")
            .arg(folder.path().join(format!("out{jobs}")));
        refused(&mut train)
    };
    for address in [
        taken.as_str(),
        "nonsense",
        "192.0.2.1:9400",
        "127.0.0.1:99999",
    ] {
        let said = train("--metrics", address);
        assert_says(
            &said,
            &[&format!("--metrics {address}"), "cannot listen there"],
        );
    }
    let said = train("--tensorboard", "/proc/nowhere");
    assert_says(&said, &["--tensorboard", "/proc/nowhere/node0"]);
}

//! What a job says on the screen and in its files: the whole experiment, and nothing that is wider
//! than the screen.

#![cfg(feature = "program")]

mod support;

use std::path::Path;
use std::process::Output;

use dogwild::watch::curve::{CurveRow, read_rows};
use serde_json::Value;
use support::program::dogwild;
use support::results::summary;

const DATA: &str = "digits:1,train=2000,test=300";

/// `dogwild train` on a screen of 80 columns.
fn train(args: &[&str], out: &Path) -> Output {
    let mut command = dogwild();
    command.arg("train").args(args).arg("--out").arg(out);
    // Lines of the log are not folded: programs read them.
    command.env("COLUMNS", "80").env("RUST_LOG", "off");
    let output = command.output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}\n{said}");
    output
}

fn assert_fits(output: &Output, names: &[&str]) {
    let texts = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    for line in texts.iter().flat_map(|text| text.lines()) {
        let width = line.chars().count();
        // Those two name the folder, which is as long as it is.
        let names_the_folder = line.contains("summary.json") || line.contains("dogwild: ");
        assert!(width <= 80 || names_the_folder, "{line}");
    }
    let table = String::from_utf8_lossy(&output.stdout);
    for name in names {
        assert!(table.contains(name), "`{name}` is missing in:\n{table}");
    }
}

/// Host, program and time are those of this test.
fn assert_says_where(summary: &Value) {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("a name");
    assert_eq!(summary["host"]["name"], host.trim(), "{summary}");
    for field in ["kernel", "processor"] {
        assert!(summary["host"][field].is_string(), "{summary}");
    }
    for field in ["cores", "memory_bytes"] {
        assert!(summary["host"][field].as_u64() > Some(0), "{summary}");
    }
    assert_eq!(summary["dogwild"], env!("CARGO_PKG_VERSION"));
    assert!(summary.get("commit").is_some(), "{summary}");
    let started = summary["started"].as_str().expect("a time");
    assert!(started.len() == 20 && started.ends_with('Z'), "{started}");
    let command = summary["command"].as_array().expect("words");
    assert!(command.iter().any(|word| word == "--seed"), "{summary}");
}

/// The model and the pictures, whole.
fn assert_says_what(summary: &Value) {
    let solver = &summary["solver"];
    for (field, value) in [
        ("base_lr", 0.01),
        ("momentum", 0.9),
        ("weight_decay", 0.0005),
        ("gamma", 0.0001),
        ("max_iter", 10_000.0),
    ] {
        assert_eq!(solver[field], value, "{field}: {solver}");
    }
    assert_eq!(solver["lr_policy"], "inv", "{solver}");
    assert_eq!(solver["regularization_type"], "L2", "{solver}");
    let net = &summary["net"];
    assert_eq!(net["name"], "LeNet", "{net}");
    assert_eq!(net["hash"].as_str().map(str::len), Some(16), "{net}");
    let layers = net["layers"].as_array().expect("layers");
    assert!(layers.iter().any(|layer| layer == "conv1"), "{net}");
    let pictures = &summary["pictures"];
    assert_eq!(
        (&pictures["train"], &pictures["test"]),
        (&2000.into(), &300.into())
    );
    assert_eq!(pictures["classes"], 10, "{pictures}");
}

/// Every level is that of the first row of the curve which has reached it.
fn assert_levels_are_of_the_curve(summary: &Value, rows: &[CurveRow]) {
    let levels = summary["time_to_accuracy"].as_array().expect("levels");
    assert!(
        levels.iter().any(|level| level["target"] == true),
        "{summary}"
    );
    for level in levels {
        let wanted = level["accuracy"].as_f64().expect("a share");
        for (node, said) in level["per_node"]
            .as_array()
            .expect("nodes")
            .iter()
            .enumerate()
        {
            let of_node = rows.iter().filter(|row| usize::from(row.node) == node);
            let mut reached = of_node.filter(|row| {
                let found = row.test_accuracy.unwrap_or(0.0);
                found as f32 >= wanted as f32
            });
            let first = reached.next();
            assert_eq!(
                said["iterations"].as_u64(),
                first.map(|row| row.iteration),
                "{level}"
            );
            assert_eq!(
                said["seconds"].as_f64(),
                first.map(|row| row.seconds),
                "{level}"
            );
        }
        let nodes = level["per_node"].as_array().expect("nodes");
        let earliest = nodes.iter().filter_map(|said| said["seconds"].as_f64());
        let earliest = earliest.fold(f64::INFINITY, f64::min);
        let cluster = level["cluster"]["seconds"].as_f64();
        assert_eq!(cluster.unwrap_or(f64::INFINITY), earliest, "{level}");
    }
}

/// Tests enough to draw, and both nodes in every panel, with the settings above them.
fn assert_drawn(out: &Path, rows: &[CurveRow], settings: &[&str]) {
    assert!(rows.len() >= 20, "{} tests: {rows:?}", rows.len());
    for node in 0..2 {
        let tests = rows.iter().filter(|row| row.node == node).count();
        // While a node tests, another may get past the next test: then that one is left out.
        assert!(tests >= 7, "node {node}: {tests} tests: {rows:?}");
    }
    let svg = std::fs::read_to_string(out.join("curve.svg")).expect("a picture");
    let words = [
        "node 0",
        "node 1",
        "test error (%)",
        "training loss",
        "iterations",
        "seconds",
    ];
    for word in words.iter().chain(settings) {
        assert!(svg.contains(word), "`{word}` is missing in:\n{svg}");
    }
    // Two panels have each axis; a logarithmic one of error has round powers, not equal steps.
    assert_eq!(svg.matches("test error (%)").count(), 2, "{svg}");
    for colour in ["#0072B2", "#D55E00"] {
        let line = format!("<polyline fill=\"none\" opacity=\"1\" stroke=\"{colour}\"");
        let lines = svg.matches(&line);
        assert!(
            lines.count() >= 5,
            "{colour}: four panels and the legend: {svg}"
        );
    }
    let labels: Vec<&str> = svg
        .lines()
        .filter(|line| line.trim() == "50" || line.trim() == "20")
        .collect();
    assert!(labels.len() >= 2, "20 % and 50 % are on the axis: {svg}");
}

/// The settings are those that the job over the stream was given, or their defaults.
fn assert_asked_settings(settings: &Value) {
    for (path, value) in [
        ("/iterations", 240.into()),
        ("/test_every", 12.into()),
        ("/test_images", 2000.into()),
        ("/target_accuracy", 0.9999.into()),
        ("/seed", 7.into()),
        ("/nodes", 2.into()),
        ("/solvers", 1.into()),
        ("/solver", "lenet".into()),
        ("/data", DATA.replace(":1,", ":").into()),
        ("/sync", "stream".into()),
        ("/lab", false.into()),
        ("/weights", Value::Null),
        ("/transport/transport", "udp".into()),
        ("/transport/mtu", 1400.into()),
        ("/transport/pace_bytes_per_s", 50e6.into()),
        ("/stream/window_bytes", 1e6.into()),
        ("/stream/rate_bytes_per_s", 30e6.into()),
        ("/stream/deltas", "exactly-once".into()),
        ("/stream/atomic", false.into()),
        ("/faults/loss", 0.03.into()),
        ("/faults/duplicate", 0.01.into()),
        ("/faults/reorder", 0.0.into()),
        ("/faults/corrupt", 0.0.into()),
        ("/faults/delay_ms", 0.0.into()),
        ("/faults/fault_seed", 5.into()),
        ("/faults/loss_burst/p", 0.01.into()),
        ("/faults/loss_burst/r", 0.5.into()),
    ] {
        assert_eq!(settings.pointer(path), Some(&value), "{path}: {settings}");
    }
    assert!(settings.get("workers").is_none() && settings.get("poseidon").is_none());
}

#[test]
fn a_job_over_the_stream_says_all_that_it_was() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out");
    let args = [
        "--seed",
        "7",
        "--iterations",
        "240",
        "--data",
        DATA,
        "--mtu",
        "1400",
        "--window",
        "1MB",
        "--rate",
        "30MB",
        "--precision",
        "f32",
        "--pace",
        "400Mbit",
        "--loss",
        "3%",
        "--duplicate",
        "1%",
        "--fault-seed",
        "5",
        "--target-accuracy",
        "0.9999",
        "--loss-burst",
        "0.01,0.5",
    ];
    let mut command = dogwild();
    command.arg("train").args(args).arg("--out").arg(&out);
    // The target is out of reach: how that ends is tested elsewhere.
    command.env("COLUMNS", "80").env("RUST_LOG", "off");
    let output = command.output().expect("it starts");
    assert_fits(
        &output,
        &["node 0", "node 1", "test accuracy", "positions lost"],
    );
    let summary = summary(&out);
    assert_says_where(&summary);
    assert_says_what(&summary);
    assert_asked_settings(&summary["settings"]);
    for node in summary["per_node"].as_array().expect("nodes") {
        assert_eq!(node["link_mtu"], 1400, "{node}");
        let frame = node["frame_bytes"].as_u64().expect("bytes");
        assert!((1000..1400).contains(&frame), "{node}");
        let chunk = node["chunk_weights"].as_u64().expect("weights");
        assert!(chunk > 0 && chunk * 4 < frame, "{node}");
        // All pictures, not the share that tests on the way take.
        assert_eq!(node["test_images"], 300, "{node}");
    }
    let rows = read_rows(&out.join("curve.csv")).expect("rows");
    assert_levels_are_of_the_curve(&summary, &rows);
    assert_drawn(
        &out,
        &rows,
        &[
            "lenet",
            "2 nodes over udp",
            "seed 7",
            "loss 3 %",
            "base_lr 0.01",
        ],
    );
}

#[test]
fn a_job_of_the_reliable_path_says_all_that_it_was() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out");
    let args = [
        "--sync",
        "poseidon",
        "--seed",
        "7",
        "--iterations",
        "60",
        "--data",
        DATA,
        "--workers",
        "3",
        "--staleness",
        "1",
        "--target-accuracy",
        "0.1",
        "--test-every",
        "20",
    ];
    let output = train(&args, &out);
    assert_fits(&output, &["worker 2", "steps missing", "test accuracy"]);
    let summary = summary(&out);
    assert_says_where(&summary);
    assert_says_what(&summary);
    let settings = &summary["settings"];
    for (path, value) in [
        ("/iterations", 60.into()),
        ("/test_every", 20.into()),
        ("/sync", "poseidon".into()),
        ("/poseidon/workers", 3.into()),
        ("/poseidon/servers", 1.into()),
        ("/poseidon/staleness", 1.into()),
        ("/poseidon/scheme", "hybcomm".into()),
        ("/poseidon/partition", "pairs".into()),
        ("/poseidon/overlap", "wfbp".into()),
        ("/poseidon/bandwidth_bytes_per_s", Value::Null),
    ] {
        assert_eq!(settings.pointer(path), Some(&value), "{path}: {settings}");
    }
    assert!(settings.get("faults").is_none() && settings.get("nodes").is_none());
    let rows = read_rows(&out.join("curve.csv")).expect("rows");
    assert_levels_are_of_the_curve(&summary, &rows);
}

#[test]
fn doctor_breaks_no_word_on_a_narrow_screen() {
    let mut command = dogwild();
    command.arg("doctor").env("COLUMNS", "80");
    command.env("RUST_LOG", "off");
    let output = command.output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout);
    for line in text.lines() {
        // A word may be wider than the screen, a path for one.
        let words = line.split_whitespace().count();
        assert!(line.chars().count() <= 80 || words == 1, "{line}\n{text}");
    }
    for word in ["net.core.rmem_max", "packet_mmap", "--iface auto"] {
        assert!(text.contains(word), "`{word}` is missing in:\n{text}");
    }
}

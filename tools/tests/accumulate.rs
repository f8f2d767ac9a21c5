//! `dogwild-rawbench accumulate`: figures that must add up, and wrong use. Asserts no speed.

mod support;

use std::fs;
use std::process::Command;

use serde_json::Value;
use support::output::{assert_says, refused};
use support::results::number;
use support::{RAWBENCH, tool};

const TABLE: &str =
    "layer,kind,m,n,bias,flops\nc1,conv,20,25,yes,500000\nf2,fc,500,800,yes,800000\n";

fn accumulate(words: &[&str]) -> Command {
    let mut command = tool(RAWBENCH);
    command.arg("accumulate").args(words);
    command
}

#[test]
fn figures_add_up() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("small.csv");
    fs::write(&file, TABLE).expect("a table");
    let file = file.to_str().expect("a name");
    let throughput = ["--throughput", "2000", "--batch", "8"];
    for order in ["parts", "turns"] {
        let mut words = vec!["--layers", file, "--devices", "1,3", "--iterations", "5"];
        words.extend(["--order", order, "--json"]);
        words.extend(throughput);
        let output = accumulate(&words).output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(report["device_kind"], "host");
        assert_eq!(report["order"], order);
        assert!(number(&report["cores"]) >= 1.0);
        let net = &report["nets"][0];
        assert_eq!(number(&net["bytes"]), 4.0 * (20.0 * 26.0 + 500.0 * 801.0));
        assert_eq!(number(&net["layers"]), 2.0);
        let replayed = number(&net["replayed_ms"]);
        assert!(
            (replayed - 4.0).abs() < 0.01,
            "8 images at 2000/s: {replayed}"
        );
        assert!(number(&net["alone_ms"]) >= replayed);
        assert_eq!(net["paper"], Value::Null);
        let runs = net["runs"].as_array().expect("runs");
        let what = |run: &Value| (number(&run["devices"]), run["overlapped"] == true);
        let all: Vec<_> = runs.iter().map(what).collect();
        assert_eq!(all, [(1.0, true), (1.0, false), (3.0, true), (3.0, false)]);
        for run in runs {
            let (p50, p99) = (number(&run["wait_p50_us"]), number(&run["wait_p99_us"]));
            assert!(0.0 < p50 && p50 <= p99, "{run}");
            let iteration = number(&run["iteration_ms"]);
            assert!(iteration >= replayed, "{run}");
            let efficiency = number(&net["alone_ms"]) / iteration;
            let said = number(&run["weak_scaling_efficiency"]);
            assert!((efficiency / said - 1.0).abs() < 1e-9, "{run}");
        }
    }
}

#[test]
fn recordings_of_real_times_are_replayed_beside_the_papers_figures() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("alexnet.json");
    let layer = r#"{"name":"fc","shape":{"outputs":9,"inputs":10,"bias":true,"fully_connected":true},"forward_us":100,"backward_us":300}"#;
    fs::write(&file, format!(r#"{{"images":4,"layers":[{layer}]}}"#)).expect("a recording");
    let output = accumulate(&[
        "--layers",
        file.to_str().expect("a name"),
        "--iterations",
        "2",
    ])
    .output()
    .expect("it starts");
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{table}");
    for words in [
        "replayed 0.4 ms",
        "(paper's)",
        "43.00 ms",
        "21.8 µs",
        "cores busy",
    ] {
        assert!(table.contains(words), "`{words}` is missing in:\n{table}");
    }
}

#[test]
fn without_a_gpu_it_says_what_is_missing() {
    let words = [
        "--layers",
        "googlenet",
        "--devices",
        "1",
        "--iterations",
        "1",
        "--scale",
        "1000",
    ];
    let output = accumulate(&[&words[..], &["--device-kind", "cuda"]].concat())
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!said.contains("panicked"), "{said}");
    if !output.status.success() {
        let missing = ["CUDA", "NVIDIA", "NVRTC", "GPU"];
        assert!(missing.iter().any(|word| said.contains(word)), "{said}");
    }
}

#[test]
fn wrong_use_is_told() {
    let cases: [(&[&str], &str); 6] = [
        (&["--layers", "alexnot"], "no net `alexnot`"),
        (&["--devices", "0"], "give 1 to 64"),
        (&["--scale", "0.5"], "give 1 or more"),
        (&["--layers", "nothing.json"], "cannot read the recording"),
        (&["--layers", "alexnet", "--throughput", "0"], "above 0"),
        (
            &["--layers", "vgg19-22k", "--iterations", "0"],
            "--iterations",
        ),
    ];
    for (words, says) in cases {
        assert_says(&refused(&mut accumulate(words)), &[says]);
    }
}

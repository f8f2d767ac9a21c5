//! `dogwild-plan`: the papers' numbers come out of it, and bad input is told what is wrong.

mod support;

use std::path::PathBuf;
use std::process::Command;

use dogwild::poseidon::Recording;
use serde_json::Value;
use support::{PLAN, tool};

fn plan(words: &str) -> Command {
    let mut command = tool(PLAN);
    command.args(words.split_whitespace());
    command
}

fn report(words: &str) -> Value {
    let output = plan(words).arg("--json").output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}: {said}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn refused(words: &str) -> String {
    support::output::refused(&mut plan(words))
}

/// A layer table, removed at the end of the test.
struct Table {
    path: PathBuf,
    _folder: tempfile::TempDir,
}

fn table(text: &str) -> Table {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("net.csv");
    std::fs::write(&path, text).expect("written");
    Table {
        path,
        _folder: folder,
    }
}

const SQUARE: &str = "layer,kind,m,n,bias,flops\nfc,fc,4096,4096,no,33554432\n";

#[test]
fn the_papers_numbers_are_exact() {
    let net = table(SQUARE);
    let path = net.path.display();
    let rest = "--throughput 100 --bandwidth 1gbit";
    let found = report(&format!("{path} --nodes 8 --servers 8 --batch 32 {rest}"));
    let layer = &found["layers"][0];
    assert_eq!(layer["node_floats"]["sfb"], 3_670_016.0); // "3.7 M"
    assert_eq!(layer["node_floats"]["ps"], 58_720_256.0); // "58.7 M"
    assert_eq!(layer["hybcomm"], "sfb");
    let found = report(&format!(
        "{path} --nodes 8 --servers 8 --apart --batch 32 {rest}"
    ));
    assert_eq!(found["layers"][0]["node_floats"]["ps"], 33_554_432.0); // "33.6 M"
    let found = report(&format!("{path} --nodes 4 --batch 256 {rest}"));
    let cluster = &found["layers"][0]["cluster_floats"];
    assert_eq!(cluster["sfb"], 18_874_368.0); // "18.9 M"
    assert_eq!(cluster["ps"], 134_217_728.0); // "134.2 M"
    assert_eq!(cluster["adam"], 75_497_472.0); // "75.5 M"
}

#[test]
fn googlenets_thin_layer_goes_to_the_servers() {
    let found = report("googlenet --nodes 16 --batch 128 --bandwidth 10gbit");
    let layers = found["layers"].as_array().expect("layers");
    let last = layers.last().expect("a layer");
    assert_eq!(last["hybcomm"], "ps");
    assert_eq!((&last["m"], &last["n"]), (&1000.into(), &1024.into()));
}

/// What the papers report stands next to what is predicted, where they report it.
#[test]
fn the_papers_ratios_stand_beside_the_predictions() {
    let found = report("vgg19-22k --nodes 32 --batch 32 --bandwidth 14gbit --engine tensorflow");
    let way = |policy: &str| {
        let mut ways = found["ways"].as_array().expect("ways").iter();
        ways.find(|way| way["policy"] == policy).expect(policy)
    };
    let (ps, hybrid) = (way("ps"), way("hybcomm"));
    assert_eq!(ps["wfbp"]["paper"], 21.5);
    assert_eq!(ps["no_overlap"]["paper"], Value::Null);
    assert_eq!(hybrid["wfbp"]["paper"], 29.5);
    let other = report("vgg19-22k --nodes 8 --batch 32 --bandwidth 10gbit");
    assert_eq!(other["ways"][0]["wfbp"]["paper"], Value::Null);
}

/// Whatever the bandwidth: overlap never costs, and the hybrid sends no more than servers alone.
#[test]
fn predictions_keep_their_order() {
    for net in ["alexnet", "vgg19", "resnet-152"] {
        let found = report(&format!("{net} --nodes 8 --batch 32 --bandwidth 1gbit"));
        let way = |policy: &str, key: &str| {
            let ways = found["ways"].as_array().expect("ways");
            let way = ways
                .iter()
                .find(|way| way["policy"] == policy)
                .expect(policy);
            way.pointer(key).and_then(Value::as_f64).expect(key)
        };
        for policy in [
            "ps",
            "hybcomm",
            "sacp",
            "adam",
            "onebit-all",
            "p2p",
            "cheapest",
        ] {
            let [alone, hidden] =
                ["no_overlap", "wfbp"].map(|w| way(policy, &format!("/{w}/iteration_s")));
            assert!(hidden <= alone, "{net} {policy}: {hidden} after {alone}");
            let compute = found["alone_s"].as_f64().expect("alone_s");
            assert!(
                hidden >= compute * 0.999,
                "{net} {policy}: {hidden} below {compute}"
            );
        }
        assert!(way("hybcomm", "/bytes_per_node_mean") <= way("ps", "/bytes_per_node_mean"));
        for other in ["hybcomm", "p2p"] {
            let least = way("cheapest", "/bytes_per_node_mean");
            assert!(
                least <= way(other, "/bytes_per_node_mean") * 1.001,
                "{net} {other}"
            );
        }
        assert!(way("adam", "/imbalance") > way("ps", "/imbalance"), "{net}");
    }
}

/// What a host does with the bytes costs time too, if it is said how fast it is.
#[test]
fn slow_hosts_hold_a_cluster_back() {
    let found = |rest: &str| report(&format!("alexnet --nodes 8 --batch 256 --bandwidth {rest}"));
    let speedup = |found: &Value| found["ways"][0]["wfbp"]["speedup"].as_f64().expect("ps");
    let fast = found("40gbit");
    let [slow, slower] = ["0.5GB", "0.25GB"].map(|host| found(&format!("40gbit --host {host}")));
    assert!(speedup(&fast) > 7.9);
    assert!(speedup(&slow) < 6.5 && speedup(&slower) < speedup(&slow));
    assert_eq!(slow["host_bytes_per_s"], 0.5e9);
    assert_eq!(fast["host_bytes_per_s"], Value::Null);
    // A link that is slower than the host decides alone, but for what is left at the end.
    let [alone, both] = ["100mbit", "100mbit --host 1GB"].map(|rest| speedup(&found(rest)));
    assert!((both / alone - 1.0).abs() < 0.01, "{alone} and {both}");
}

#[test]
fn whole_tensors_load_servers_unevenly() {
    let imbalance = |partition: &str| {
        let words = format!("vgg19 --nodes 8 --batch 32 --bandwidth 1gbit --partition {partition}");
        report(&words)["ways"][0]["imbalance"]
            .as_f64()
            .expect("a ratio")
    };
    let [pairs, tensor] = ["pairs", "tensor"].map(imbalance);
    assert!(pairs < 1.1 && tensor > 2.0, "{pairs} and {tensor}");
}

#[test]
fn a_prototxt_is_planned_and_drawn() {
    let folder = tempfile::tempdir().expect("a folder");
    let picture = folder.path().join("lenet.svg");
    let net = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../models/lenet_train_test.prototxt"
    );
    let words =
        format!("{net} --input 1x28x28 --throughput 5000 --nodes 4 --batch 64 --bandwidth 100mbit");
    let recording = folder.path().join("lenet.json");
    let mut command = plan(&words);
    command.arg("--plot").arg(&picture);
    command.arg("--recording").arg(&recording);
    let output = command.output().expect("it starts");
    let table = String::from_utf8_lossy(&output.stdout);
    for word in [
        "ip1",
        "sfb",
        "hybcomm",
        "--throughput",
        "derived, not measured",
    ] {
        assert!(table.contains(word), "`{word}` is missing in:\n{table}");
    }
    let drawn = std::fs::read_to_string(&picture).expect("a picture");
    assert!(drawn.contains("<svg") && drawn.contains("linear"));
    let text = std::fs::read_to_string(&recording).expect("a recording");
    let recorded = Recording::parse(&text).expect("a recording");
    assert_eq!((recorded.images, recorded.layers.len()), (64, 4));
    let us = recorded
        .layers
        .iter()
        .map(|layer| layer.forward_us + layer.backward_us);
    let (alone_us, us) = (64e6 / 5000.0, us.sum::<u64>() as f64);
    assert!((us - alone_us).abs() <= 4.0, "{us} of {alone_us}");
}

#[test]
fn bad_input_is_told_what_is_wrong() {
    let net = table("layer,kind,m,n,bias,flops\na,fc,3,4,no,24\nb,fc,3,four,no,24\n");
    let small = table("layer,kind,m,n,bias,flops\na,fc,3,4,no,24\n");
    let (wrong, small) = (net.path.display(), small.path.display());
    let lenet = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../models/lenet_train_test.prototxt"
    );
    let rest = "--batch 32 --bandwidth 1gbit";
    let cases = [
        (format!("alexnot --nodes 8 {rest}"), "no net `alexnot`"),
        (
            format!("alexnot --nodes 8 {rest}"),
            "did you mean `alexnet`?",
        ),
        (format!("alexnet --nodes 0 {rest}"), "0 workers"),
        (format!("alexnet --nodes 8 --servers 0 {rest}"), "0 servers"),
        (
            "alexnet --nodes 8 --batch 0 --bandwidth 1gbit".into(),
            "batch of 0",
        ),
        (
            "alexnet --nodes 8 --batch 8 --bandwidth 0gbit".into(),
            "nothing would ever arrive",
        ),
        (
            "alexnet --nodes 8 --batch 8 --bandwidth 10".into(),
            "the unit is missing",
        ),
        (
            format!("{small} --nodes 8 --throughput 1 {rest}"),
            "8 servers",
        ),
        (
            format!("{wrong} --nodes 2 --throughput 1 {rest}"),
            "net.csv:3: `four` is not a valid n",
        ),
        (format!("{small} --nodes 1 {rest}"), "--throughput"),
        (
            format!("alexnet --nodes 8 --engine tensorflow {rest}"),
            "--throughput",
        ),
        (
            format!("{lenet} --nodes 2 --throughput 1 {rest}"),
            "--input",
        ),
        (
            format!("alexnet --nodes 8 --throughput 0 {rest}"),
            "above 0",
        ),
    ];
    for (words, says) in cases {
        let said = refused(&words);
        assert!(
            said.contains(says),
            "{words}: `{says}` is missing in:\n{said}"
        );
    }
}

const SMALL: &str = "layer,kind,m,n,bias,flops\nc,conv,32,75,yes,1000\nf,fc,64,512,yes,1000\n\
                     g,fc,10,64,yes,10\n";

/// PyTorch reduces what three workers of a tiny net have, over the same links, no faster than the
/// layers are computed: two thirds of all gradients leave each node twice.
#[test]
fn gloo_is_compared_over_the_same_links() {
    let lab = dogwild_lab::Lab::up(&dogwild_lab::Spec::of(3)).err();
    let missing = lab.map(|error| format!("a lab: {error}"));
    if let Some(missing) = missing.or_else(dogwild_tools::gloo::missing) {
        dogwild_lab::skip::skip(&missing);
        return;
    }
    let net = table(SMALL);
    let found = report(&format!(
        "{} --nodes 3 --batch 4 --bandwidth 400mbit --throughput 400 --emulate --scale 4 \
         --ways p2p --iterations 3 --compare gloo",
        net.path.display()
    ));
    let peer = &found["emulation"]["peers"][0];
    assert_eq!(peer["name"], "Gloo");
    let number = |of: &Value| of.as_f64().expect("a number");
    assert!(number(&peer["iteration_s"]) >= 0.01, "{peer}");
    // Half as many rows and columns: 16 x 38 + 16, 32 x 256 + 32, 5 x 32 + 5.
    let (floats, both_ways) = (9_013.0, 2.0);
    let least = both_ways * 2.0 * 4.0 * floats * 2.0 / 3.0;
    let of_nodes = peer["bytes_per_node"].as_array().expect("each node");
    assert_eq!(of_nodes.len(), 3);
    for bytes in of_nodes {
        let bytes = number(bytes);
        assert!(bytes > least && bytes < 1.5 * least, "{bytes}, not {least}");
    }
}

/// Three workers and servers of a tiny net on real links: what travels is what was predicted, byte
/// for byte, and the emulation tells it.
#[test]
fn an_emulated_cluster_sends_what_was_predicted() {
    if let Err(error) = dogwild_lab::Lab::up(&dogwild_lab::Spec::of(3)) {
        dogwild_lab::skip::skip(&format!("a lab: {error}"));
        return;
    }
    let net = table(SMALL);
    let words = format!(
        "{} --nodes 3 --batch 4 --bandwidth 400mbit --throughput 400 --pair-bytes 4096 \
         --emulate --scale 4 --iterations 2",
        net.path.display()
    );
    let found = report(&words);
    let runs = found["emulation"]["runs"].as_array().expect("runs");
    let ways: Vec<_> = runs
        .iter()
        .map(|run| run["policy"].as_str().expect("a name"))
        .collect();
    assert_eq!(ways, ["ps", "ps", "hybcomm", "sacp", "adam", "onebit-all"]);
    for run in runs {
        let number = |key: &str| run.pointer(key).and_then(Value::as_f64).expect(key);
        let [predicted, measured] =
            ["predicted", "measured"].map(|side| number(&format!("/{side}/payload_bytes")));
        assert_eq!(predicted, measured, "{run}");
        // It goes through the interfaces; counters are read in passing, so not to the byte.
        let [predicted, measured] =
            ["predicted", "measured"].map(|side| number(&format!("/{side}/bytes_per_node_mean")));
        assert!(measured > 0.5 * predicted, "{run}");
        let of_nodes = run["bytes_per_node"].as_array().expect("each node").iter();
        let of_nodes: Vec<f64> = of_nodes.filter_map(Value::as_f64).collect();
        let largest = of_nodes.iter().copied().fold(0.0, f64::max);
        assert_eq!(
            (of_nodes.len(), largest),
            (3, number("/measured/bytes_per_node_max"))
        );
        // No worker is faster than its own computing: 4 images at 400 a second. (An iteration that
        // begins late ends on time, so one of the two may be a little shorter.)
        assert!(number("/measured/iteration_s") >= 0.01 * 0.9, "{run}");
    }
}

//! The programs with the model file of a client, as one starts them by hand; and wrong files.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use dogwild::poseidon::{Client, ClientJob, Contribution, MemberJob, ModelFile};
use dogwild::snapshot;
use dogwild::weights::{WeightsView, kernels};

use crate::cluster::wait_for_file;
use crate::support::output::{assert_says, refused};
use crate::support::process::Process;
use crate::support::program::dogwild;

/// A layer of three tensors, one of them a single number, and two steps in all.
const MODEL: &str = r#"{"images": 4, "iterations": 2, "step": {"rule": "sgd", "rate": 0.5},
  "layers": [{"name": "norm", "tensors": [
    {"name": "norm.weight", "shape": [2, 2]},
    {"name": "norm.bias", "shape": [3], "lr_mult": 2},
    {"name": "norm.scale", "shape": []}]}]}"#;

fn write(folder: &Path, text: &str) -> PathBuf {
    let path = folder.join("model.json");
    std::fs::write(&path, text).expect("room");
    path
}

/// Starts a component with the model of a file.
fn start(name: &str, file: &Path, args: &[&str]) -> Process {
    let compute = format!("client:{}", file.display());
    let mut command = dogwild();
    command.args([name, "--compute", &compute]).args(args);
    Process::start(&mut command)
}

/// Weights that are given go to the clients, and the file's factors and iterations count.
#[test]
fn coordinator_and_server_train_what_a_file_says() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = write(folder.path(), MODEL);
    let manifest = ModelFile::parse(MODEL).expect("a model").manifest();
    let manifest = manifest.expect("a manifest");
    let first = |at: usize| AtomicU32::new((at as f32).to_bits());
    let first: Vec<_> = (0..33).map(first).collect();
    let weights = folder.path().join("w.safetensors");
    snapshot::save(&weights, &manifest, WeightsView::of(&first), HashMap::new()).expect("room");
    let weights = ["--weights", weights.to_str().expect("text")];
    let address = folder.path().join("address");
    let written = address.to_str().expect("text");
    let listen = ["--listen", "127.0.0.1:0", "--address-file", written];
    let cluster = ["--workers", "1", "--scheme", "ps"];
    let args = [&weights[..], &listen, &cluster].concat();
    let mut coordinator = start("coordinator", &file, &args);
    let at = wait_for_file(&address, || coordinator.ended().is_some()).expect("an address");
    let member = ["--index", "0", "--coordinator", &at];
    let mut server = start("server", &file, &[&weights[..], &member].concat());
    let job = ClientJob::new(MemberJob::new(0, &at));
    let client = Client::join(job, None, Arc::default()).expect("it joins");
    let client = client.expect("nothing stops it");
    let mut seen = vec![0.0; client.plan().extent()];
    let mut steps = 0;
    while let Some(turn) = client.begin().expect("no error") {
        assert_eq!(turn.clock, steps);
        assert!(steps < 2, "the file's iterations");
        let values = [1.0; 33];
        let (from, values) = (0, &values[..]);
        client
            .send(0, Contribution::Gradient { from, values })
            .expect("sent");
        client.end().expect("no error");
        steps += 1;
    }
    assert!(client.settle().expect("no error"));
    kernels::copy_out(client.weights(), &mut seen);
    client.close().expect("a good end");
    assert_eq!(steps, 2, "the file's iterations");
    for (tensor, rate) in manifest.tensors().iter().zip([0.5, 1.0, 0.5]) {
        let places = tensor.offset..tensor.offset + tensor.len();
        let expected: Vec<f32> = places.clone().map(|at| at as f32 - 2.0 * rate).collect();
        assert_eq!(seen[places], expected, "{}", tensor.name);
    }
    assert!(server.wait().success() && coordinator.wait().success());
}

/// A wrong file is told with its path and place, by each program that reads one.
#[test]
fn wrong_files_are_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let said = |name: &str, text: &str, more: &[&str]| {
        let file = write(folder.path(), text);
        let compute = format!("client:{}", file.display());
        let mut command = dogwild();
        command.args([name, "--compute", &compute]).args(more);
        refused(&mut command)
    };
    let path = folder.path().join("model.json");
    let path = path.to_str().expect("text");
    let member = ["--index", "0", "--coordinator", "127.0.0.1:1"];
    let twice = MODEL.replace("norm.bias", "norm.weight");
    let says = [path, "two tensors are called \"norm.weight\""];
    assert_says(&said("coordinator", &twice, &[]), &says);
    assert_says(&said("server", &twice, &member), &says);
    let unknown = MODEL.replace("lr_mult", "lr");
    let says = [path, "unknown field `lr`, expected one of", "line 4 column"];
    assert_says(&said("coordinator", &unknown, &[]), &says);
    let factors = MODEL.replace("\"norm\",", "\"norm\", \"scheme\": \"sfb\",");
    let says = [path, "layers[0] (norm): scheme sfb needs factors"];
    assert_says(&said("server", &factors, &member), &says);
    let says = ["--compute", "a model file has no net to compute"];
    let worker = [&member[..], &["--buffer", "/dev/shm/none"]].concat();
    assert_says(&said("worker", MODEL, &worker), &says);
    let says = ["--threads-per-worker 2: workers with a client add up"];
    let server = [&member[..], &["--threads-per-worker", "2"]].concat();
    assert_says(&said("server", MODEL, &server), &says);
    let says = [
        "--data digits",
        "workers with a client read their data themselves",
    ];
    assert_says(&said("coordinator", MODEL, &["--data", "digits"]), &says);
    let mut command = dogwild();
    command.args(["coordinator", "--compute", "client:/nowhere/model.json"]);
    assert_says(
        &refused(&mut command),
        &["cannot read the model file /nowhere/model.json"],
    );
}

/// The file in the guide is one.
#[test]
fn the_guides_model_file_can_be_read() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guide/reliable-path.md");
    let guide = std::fs::read_to_string(guide).expect("the guide");
    let text = guide.split("```json\n").nth(1).expect("a file in it");
    let text = text.split("```").next().expect("its end");
    let model = ModelFile::parse(text).expect("a model file");
    assert_eq!(model.layers.len(), 2);
}

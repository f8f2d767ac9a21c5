//! Snapshots while training, and `train --resume`: real processes, real kills, a real full disk.

#![cfg(feature = "program")]

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::MutexGuard;

use serde_json::Value;
use support::job::{Files, buffer, components, one_job};
use support::output::{assert_says, succeeds};
use support::process::{Process, alive, signal};
use support::program::dogwild;
use support::results::{json, tensors};
use support::wait::{wait_for, wait_for_or};
use tempfile::TempDir;

/// A small net that trains in no time, with dropout: its masks must go on too.
const NET: &str = r#"
name: "Small"
layer { name: "d" type: "Data" top: "data" top: "label" include { phase: TRAIN }
  transform_param { scale: 0.00390625 } data_param { source: "x" batch_size: 16 backend: LMDB } }
layer { name: "d" type: "Data" top: "data" top: "label" include { phase: TEST }
  transform_param { scale: 0.00390625 } data_param { source: "x" batch_size: 50 backend: LMDB } }
layer { name: "ip1" type: "InnerProduct" bottom: "data" top: "ip1"
  inner_product_param { num_output: HIDDEN weight_filler { type: "xavier" } } }
layer { name: "relu1" type: "ReLU" bottom: "ip1" top: "ip1" }
layer { name: "drop1" type: "Dropout" bottom: "ip1" top: "ip1" dropout_param { dropout_ratio: 0.3 } }
layer { name: "ip2" type: "InnerProduct" bottom: "ip1" top: "ip2"
  inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
layer { name: "accuracy" type: "Accuracy" bottom: "ip2" bottom: "label" top: "accuracy" include { phase: TEST } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip2" bottom: "label" top: "loss" }
"#;

/// A folder with a model in it, where jobs leave their results in `out`.
struct Place {
    dir: TempDir,
    _one: MutexGuard<'static, ()>,
}

impl Place {
    fn new() -> Self {
        let _one = one_job();
        let dir = tempfile::tempdir().expect("a folder");
        let place = Self { dir, _one };
        place.model("solver.prototxt", 32, "");
        place
    }

    /// Writes a solver file with `more` in it, and its net with `hidden` units.
    fn model(&self, name: &str, hidden: usize, more: &str) {
        let net = self.path(&format!("{name}.net"));
        std::fs::write(&net, NET.replace("HIDDEN", &hidden.to_string())).expect("a net");
        let text = format!(
            "net: \"{}\"\nbase_lr: 0.01\nmomentum: 0.9\nweight_decay: 0.0005\nlr_policy: \"inv\"\ngamma: 0.001\n\
             power: 0.75\nmax_iter: 200\ntest_iter: 2\ntest_interval: 100\n{more}\n",
            net.display()
        );
        std::fs::write(self.path(name), text).expect("a solver file");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn out(&self) -> PathBuf {
        self.path("out")
    }

    /// `dogwild train` with the small model and `args`.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = dogwild();
        command.arg("train");
        if !args.contains(&"--data") {
            command.args(["--data", "digits:1,train=1000,test=100"]);
        }
        for (name, path) in [("--solver", "solver.prototxt"), ("--out", "out")] {
            if !args.contains(&name) {
                command.arg(name).arg(self.path(path));
            }
        }
        command.args(args);
        command
    }

    /// Trains; gives what was said.
    fn train(&self, args: &[&str]) -> String {
        succeeds(&mut self.command(args))
    }

    /// Trains, which must be refused with all of `words`.
    fn refused(&self, args: &[&str], words: &[&str]) {
        assert_says(&support::output::refused(&mut self.command(args)), words);
    }

    /// Complete snapshots: the older ones first.
    fn snapshots(&self) -> Vec<(PathBuf, Value)> {
        snapshots_in(&self.out().join("snapshots"))
    }

    fn newest(&self) -> (PathBuf, Value) {
        self.snapshots().pop().expect("a snapshot")
    }

    /// Starts a job without an end.
    fn start(&self, args: &[&str]) -> Running {
        self.start_as(self.command(args))
    }

    fn start_as(&self, mut command: Command) -> Running {
        let log = std::fs::File::create(self.path("stderr")).expect("a file");
        command.stdout(Stdio::null()).stderr(log);
        let train = Process::start(&mut command);
        Running {
            files: Files(train.id()),
            train,
        }
    }

    /// What the job that was started has said.
    fn stderr(&self) -> String {
        std::fs::read_to_string(self.path("stderr")).unwrap_or_default()
    }

    /// Waits for a state; says what was there instead if it does not come.
    fn wait_for(&self, what: &str, holds: impl FnMut() -> bool) {
        let found = || format!("snapshots: {:?}\n{}", self.snapshots(), self.stderr());
        wait_for_or(what, holds, found);
    }

    fn summary(&self) -> Value {
        support::results::summary(&self.out())
    }

    /// Rows of the curve: node, iteration, seconds.
    fn curve(&self) -> Vec<(u64, u64, f64)> {
        let text = std::fs::read_to_string(self.out().join("curve.csv")).expect("a curve");
        let row = |line: &str| {
            let fields: Vec<&str> = line.split(',').collect();
            let number = |i: usize| fields[i].parse::<f64>().expect("a number");
            (number(0) as u64, number(2) as u64, number(3))
        };
        text.lines().skip(1).map(row).collect()
    }
}

/// A job that is killed, with its buffers, when the test ends.
struct Running {
    train: Process,
    files: Files,
}

impl Running {
    /// Kills launcher and components, as a power cut does.
    fn kill_all(mut self) {
        let components = ["stream", "solver"].map(|kind| components(self.files.0, kind));
        self.train.kill();
        // They die with it, but not at the same time.
        wait_for("the end of all components", || {
            !components.iter().flatten().any(|&pid| alive(pid))
        });
    }

    fn interrupt(mut self) {
        self.train.signal("INT");
        self.train.wait();
    }
}

fn snapshots_in(home: &Path) -> Vec<(PathBuf, Value)> {
    let entries = std::fs::read_dir(home).into_iter().flatten().flatten();
    let mut found: Vec<_> = entries
        .filter(|e| e.file_name().to_string_lossy().parse::<u64>().is_ok())
        .filter_map(|e| {
            // One that is removed meanwhile is no more.
            let text = std::fs::read(e.path().join("manifest.json")).ok()?;
            Some((
                e.path(),
                serde_json::from_slice::<Value>(&text).expect("JSON"),
            ))
        })
        .collect();
    found.sort_by_key(|(_, manifest)| manifest["sequence"].as_u64());
    found
}

fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("not a number: {value}"))
}

const ALONE: [&str; 2] = ["--nodes", "1"];

#[test]
fn a_run_that_was_resumed_ends_with_the_same_weights_bit_for_bit() {
    let place = Place::new();
    let straight = place.path("straight");
    let to = straight.to_str().expect("UTF-8");
    place.train(&[&ALONE[..], &["--iterations", "240", "--out", to]].concat());
    place.train(&[&ALONE[..], &["--iterations", "120"]].concat());
    let (folder, manifest) = place.newest();
    assert_eq!(
        (number(&manifest["iterations"]), &manifest["reason"]),
        (120, &Value::from("end"))
    );
    let momentum = tensors(&folder.join("node0-solver0.safetensors"));
    assert!(momentum.iter().any(|byte| *byte != 0));
    let said = place.train(&[&ALONE[..], &["--resume", "--iterations", "240"]].concat());
    assert!(said.contains("iteration 120"), "{said}");
    let weights = |out: &Path| tensors(&out.join("weights.safetensors"));
    assert!(
        weights(&straight) == weights(&place.out()),
        "the weights differ"
    );
    // What the snapshots at the end hold is equal too, momentum and place in the data included.
    let end = |out: &Path| {
        let (folder, manifest) = snapshots_in(&out.join("snapshots")).pop().expect("one");
        let solver = &manifest["per_node"][0]["solvers"][0];
        let momentum = tensors(&folder.join("node0-solver0.safetensors"));
        (
            number(&solver["cursor"]),
            solver["loss_bits"].clone(),
            momentum,
        )
    };
    let (one, other) = (end(&straight), end(&place.out()));
    assert_eq!((one.0, &one.1), (240 * 16, &other.1));
    assert_eq!(one.0, other.0);
    assert!(one.2 == other.2, "the momentum differs");
    assert_eq!(number(&place.summary()["iterations"]), 240);
    assert_the_curve_goes_on(&place, 240);
}

/// Iterations and seconds rise, from the first test to the last.
fn assert_the_curve_goes_on(place: &Place, end: u64) {
    let rows = place.curve();
    // From the beginning, long before it was resumed: until the first test other solvers may have
    // made some iterations.
    assert!(rows.first().is_some_and(|r| r.1 < end / 3), "{rows:?}");
    assert!(rows.iter().any(|r| r.1 >= end), "{rows:?}");
    for node in 0..2 {
        let own: Vec<_> = rows.iter().filter(|r| r.0 == node).collect();
        assert!(
            own.windows(2).all(|w| w[0].1 <= w[1].1 && w[0].2 <= w[1].2),
            "{rows:?}"
        );
    }
}

#[test]
fn killed_with_everything_it_goes_on_from_its_last_snapshot() {
    let place = Place::new();
    let running = place.start(&["--iterations", "0", "--snapshot-every", "50"]);
    place.wait_for("two snapshots", || place.snapshots().len() >= 2);
    running.kill_all();
    let (folder, manifest) = place.newest();
    assert_eq!(manifest["reason"], "snapshot_every");
    assert_eq!(number(&manifest["nodes"]), 2);
    let before = number(&manifest["iterations"]);
    let after = (before + 200).to_string();
    let said = place.train(&["--resume", "--iterations", &after]);
    assert!(said.contains(&folder.display().to_string()), "{said}");
    let summary = place.summary();
    assert!(number(&summary["iterations"]) >= before + 200, "{summary}");
    assert_eq!(summary["replicas_identical"], true);
    assert_the_curve_goes_on(&place, before + 200);
    let log = std::fs::read_to_string(place.out().join("node1-solver0.log")).expect("a log");
    assert!(log.contains("going on at batch"), "{log}");
}

/// Nothing but time has passed: the solver file asks for none.
#[test]
fn a_snapshot_is_taken_when_its_time_has_come() {
    let place = Place::new();
    let running = place.start(&["--iterations", "0", "--snapshot-every", "1s"]);
    place.wait_for("two snapshots", || place.snapshots().len() >= 2);
    running.kill_all();
    let found = place.snapshots();
    for (_, manifest) in &found {
        assert_eq!(manifest["reason"], "time", "{manifest}");
    }
    let (folder, manifest) = place.newest();
    let before = number(&manifest["iterations"]);
    assert!(before > number(&found[0].1["iterations"]), "{found:?}");
    let after = (before + 100).to_string();
    let said = place.train(&["--resume", "--iterations", &after, "--snapshot-every", "1h"]);
    assert!(said.contains(&folder.display().to_string()), "{said}");
    let summary = place.summary();
    assert!(number(&summary["iterations"]) >= before + 100, "{summary}");
    assert_eq!(summary["settings"]["snapshot_every"], "3600s", "{summary}");
    place.refused(&["--snapshot-every", "5m"], &["5m", "30s, 10min, 1h"]);
}

/// Flips one bit in the middle of a file.
fn damage(path: &Path) {
    let mut bytes = std::fs::read(path).expect("a file");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    std::fs::write(path, bytes).expect("a file");
}

#[test]
fn a_damaged_snapshot_is_passed_over() {
    let place = Place::new();
    place.train(&[&ALONE[..], &["--iterations", "60"]].concat());
    place.train(&[&ALONE[..], &["--iterations", "120", "--resume"]].concat());
    let found = place.snapshots();
    let [(older, _), (newest, _)] = &found[..] else {
        panic!("two snapshots, not {found:?}");
    };
    damage(&newest.join("weights.safetensors"));
    let more = [&ALONE[..], &["--iterations", "180", "--resume"]].concat();
    let said = place.train(&more);
    let words = ["120/weights.safetensors is damaged", "iteration 60"];
    assert_says(&said, &words);
    assert_says(&said, &[older.to_str().expect("UTF-8")]);
    for (folder, _) in place.snapshots() {
        damage(&folder.join("node0-solver0.safetensors"));
    }
    let words = ["no snapshot in", "60/", "180/", "is damaged"];
    place.refused(
        &[&ALONE[..], &["--iterations", "999", "--resume"]].concat(),
        &words,
    );
}

#[test]
fn another_model_seed_or_data_is_refused_by_name_and_so_is_nothing() {
    let place = Place::new();
    place.refused(
        &["--resume"],
        &[
            "no snapshot",
            "out/snapshots/<iteration>/manifest.json",
            "--out",
        ],
    );
    assert!(!place.out().exists(), "a folder was made");
    place.train(&[&ALONE[..], &["--iterations", "40"]].concat());
    let refused = |more: &[&str], words: &[&str]| {
        let args = [&ALONE[..], &["--resume", "--iterations", "80"], more].concat();
        place.refused(&args, words);
    };
    place.model("other.prototxt", 33, "");
    let other = place.path("other.prototxt").display().to_string();
    refused(&["--solver", &other], &["the model (--solver)", &other]);
    refused(&["--seed", "2"], &["--seed is 1 there and 2 here"]);
    refused(
        &["--data", "digits:1,train=999"],
        &["the data (--data)", "train=1000", "train=999"],
    );
    let weights = place.newest().0.join("weights.safetensors");
    let weights = weights.to_str().expect("UTF-8");
    refused(&["--weights", weights], &["--weights", "--resume"]);
    // A run that is done says so, and what to do.
    place.refused(
        &[&ALONE[..], &["--resume"]].concat(),
        &["has finished", "40 of 40", "--iterations 80"],
    );
}

#[test]
fn the_solver_files_snapshots_are_taken_and_stay() {
    let place = Place::new();
    let folder = place.path("caffe");
    let more = format!(
        "snapshot: 25\nsnapshot_prefix: \"{}/small\"\nsnapshot_after_train: false",
        folder.display()
    );
    place.model("solver.prototxt", 32, &more);
    let running = place.start(&[&ALONE[..], &["--iterations", "0"]].concat());
    // More than the number that is kept of others.
    place.wait_for("five snapshots", || place.snapshots().len() >= 5);
    running.interrupt();
    let found = place.snapshots();
    let (last, before) = found.split_last().expect("snapshots");
    assert_eq!(last.1["reason"], "end", "interrupted: nothing is lost");
    for (_, manifest) in before {
        assert_eq!(manifest["reason"], "solver_file", "{manifest}");
        let iteration = number(&manifest["iterations"]);
        let weights = folder.join(format!("small_iter_{iteration}.safetensors"));
        assert!(weights.exists(), "{} is missing", weights.display());
    }
    // Without the end's, when the job came to its end.
    let end = number(&last.1["iterations"]) + 10;
    let args = [
        "--resume",
        "--iterations",
        &end.to_string(),
        "--snapshot-every",
        "0",
    ];
    place.train(&[&ALONE[..], &args].concat());
    assert_eq!(place.newest().1, last.1);
}

#[test]
fn only_the_newest_of_the_others_are_kept() {
    let place = Place::new();
    let args = ["--iterations", "0", "--snapshot-every", "20"];
    let running = place.start(&[&ALONE[..], &args].concat());
    let newest = || {
        place
            .snapshots()
            .pop()
            .map_or(0, |(_, m)| number(&m["sequence"]))
    };
    place.wait_for("six snapshots", || newest() >= 6);
    running.interrupt();
    let found = place.snapshots();
    assert_eq!(found.len(), 3, "{found:?}");
    let left = std::fs::read_dir(place.out().join("snapshots")).expect("a folder");
    assert_eq!(left.count(), 3, "something else is there");
}

#[test]
fn two_nodes_with_two_solvers_go_on_learning() {
    let place = Place::new();
    // Four solvers add to each other's momentum: a smaller rate.
    let text = std::fs::read_to_string(place.path("solver.prototxt")).expect("it is there");
    let text = text.replace("base_lr: 0.01", "base_lr: 0.003");
    std::fs::write(place.path("solver.prototxt"), text).expect("a file");
    let two = ["--solvers", "2"];
    let running = place.start(&[&two[..], &["--iterations", "0"]].concat());
    let log = |node: u32| place.out().join(format!("node{node}-curve.csv"));
    let rows = |node| std::fs::read_to_string(log(node)).map_or(0, |text| text.lines().count());
    place.wait_for("tests on both nodes", || rows(0) > 2 && rows(1) > 2);
    running.interrupt();
    let (folder, manifest) = place.newest();
    assert_eq!(manifest["reason"], "end");
    let before = number(&manifest["iterations"]);
    let nodes = manifest["per_node"].as_array().expect("nodes");
    let solvers = |node: &Value| node["solvers"].as_array().cloned().expect("solvers");
    for solver in nodes.iter().flat_map(solvers) {
        assert_eq!(
            number(&solver["iterations"]) * 16,
            number(&solver["cursor"])
        );
        let file = solver["file"].as_str().expect("a name");
        assert!(folder.join(file).exists(), "{file}");
    }
    assert_eq!(nodes.iter().flat_map(solvers).count(), 4);
    let after = (before + 600).to_string();
    place.train(&[&two[..], &["--resume", "--iterations", &after]].concat());
    let summary = place.summary();
    // On a loaded machine a node may do all that is left before it hears of the other's work.
    let done = number(&summary["iterations"]);
    assert!(done >= before + 600, "{summary}");
    let accuracy = summary["per_node"][1]["test_accuracy"].as_f64();
    assert!(accuracy.is_some_and(|share| share > 0.4), "{summary}");
    assert_the_curve_goes_on(&place, before + 600);
    // With fewer nodes the weights go on, and what cannot is said.
    let after = (done + 600).to_string();
    let said = place.train(&[&ALONE[..], &["--resume", "--iterations", &after]].concat());
    assert!(
        said.contains("momentum and places in the data begin anew"),
        "{said}"
    );
    let summary = place.summary();
    assert!(number(&summary["iterations"]) >= done + 600, "{summary}");
}

#[test]
fn a_run_that_diverges_leaves_the_last_good_snapshot() {
    let place = Place::new();
    place.train(&[&ALONE[..], &["--iterations", "40"]].concat());
    let before = place.newest();
    let text = std::fs::read_to_string(place.path("solver.prototxt")).expect("it is there");
    let text = text.replace("base_lr: 0.01", "base_lr: 1e30");
    std::fs::write(place.path("solver.prototxt"), text).expect("a file");
    let args = ["--resume", "--iterations", "4000"];
    place.refused(&[&ALONE[..], &args].concat(), &["diverged"]);
    assert_eq!(place.newest(), before);
}

/// The solver is stopped meanwhile, so that it does not meet the NaN first.
#[test]
fn a_nan_in_the_weights_is_written_over_no_good_snapshot() {
    let place = Place::new();
    let args = ["--iterations", "0", "--snapshot-every", "1s"];
    let mut running = place.start(&[&ALONE[..], &args].concat());
    place.wait_for("a snapshot", || !place.snapshots().is_empty());
    let solver = components(running.files.0, "solver")[0].to_string();
    signal("STOP", &solver);
    let sequence = || number(&place.newest().1["sequence"]);
    let before = sequence();
    // One of the weights as they stand now; all later ones are of the same iteration.
    place.wait_for("one more snapshot", || sequence() > before + 1);
    let buffer = buffer(running.files.0, 0);
    let shared = dogwild::weights::SharedWeights::open(&buffer, &Default::default());
    let shared = shared.expect("the buffer");
    shared.view().store(0, f32::NAN);
    let stderr = || place.stderr();
    place.wait_for("a warning", || stderr().contains("no snapshot was taken"));
    assert!(stderr().contains("NaN"), "{}", stderr());
    let good = place.newest();
    signal("CONT", &solver);
    let status = running.train.wait();
    assert_eq!(status.code(), Some(3), "{}", stderr());
    assert_eq!(place.newest(), good);
    let values = tensors(&good.0.join("weights.safetensors"));
    let (words, _) = values.as_chunks::<4>();
    assert!(
        words
            .iter()
            .all(|word| f32::from_le_bytes(*word).is_finite())
    );
    let after = (number(&good.1["iterations"]) + 50).to_string();
    let said = place.train(&[&ALONE[..], &["--resume", "--iterations", &after]].concat());
    assert!(!said.contains("damaged"), "{said}");
    assert_eq!(
        place.summary()["resumed_from_iteration"],
        good.1["iterations"]
    );
}

#[test]
fn without_a_folder_the_last_numbered_run_goes_on() {
    let place = Place::new();
    let train = |args: &[&str]| {
        let mut command = place.command(&[&["--out", "-"], args].concat());
        let args: Vec<_> = command.get_args().map(|arg| arg.to_owned()).collect();
        command = dogwild();
        let none = args
            .iter()
            .position(|arg| arg == "--out")
            .expect("it is there");
        command.args(&args[..none]).args(&args[none + 2..]);
        succeeds(command.current_dir(place.dir.path()));
    };
    train(&[&ALONE[..], &["--iterations", "20"]].concat());
    train(&[&ALONE[..], &["--iterations", "30"]].concat());
    train(&[&ALONE[..], &["--iterations", "60", "--resume"]].concat());
    let iterations = |run: &str| {
        let found = snapshots_in(&place.out().join(run).join("snapshots"));
        let iterations = found.iter().map(|(_, m)| number(&m["iterations"]));
        iterations.collect::<Vec<_>>()
    };
    assert_eq!(
        (iterations("001"), iterations("002")),
        (vec![20], vec![30, 60])
    );
    assert!(!place.out().join("003").exists());
    let summary = json(&place.out().join("002/summary.json"));
    assert_eq!(number(&summary["iterations"]), 60);
    assert_eq!(number(&summary["resumed_from_iteration"]), 30);
}

/// A job whose results lie on a disk of 4 MB with a file of `filler` in it, in a mount namespace.
fn on_a_small_disk(place: &Place, filler: &str, args: &[&str]) -> Option<Running> {
    let tried = Command::new("unshare").args(["-rm", "true"]).output();
    if !tried.is_ok_and(|output| output.status.success()) {
        dogwild_lab::skip::skip("no mount namespaces here");
        return None;
    }
    let out = place.out();
    std::fs::create_dir(&out).expect("a folder");
    let job = place.command(args);
    let script = "mount -t tmpfs -o size=4m small \"$0\" && head -c $1 /dev/zero > \"$0/filler\" && shift && exec \"$@\"";
    let mut inside = Command::new("unshare");
    inside.args(["-rm", "sh", "-c", script]).arg(&out);
    inside.arg(filler).arg(job.get_program());
    inside.args(job.get_args()).stdin(Stdio::null());
    Some(place.start_as(inside))
}

#[test]
fn a_full_disk_costs_snapshots_and_nothing_else() {
    let place = Place::new();
    place.model("solver.prototxt", 64, "");
    // A snapshot needs more than 400 kB; logs and curves find room.
    let args = [
        "--iterations",
        "0",
        "--snapshot-every",
        "20",
        "--nodes",
        "1",
    ];
    let Some(running) = on_a_small_disk(&place, "3900000", &args) else {
        return;
    };
    let stderr = || place.stderr();
    place.wait_for("a warning", || stderr().contains("no snapshot was taken"));
    let text = stderr();
    assert!(
        text.contains("safetensors: cannot be written") && text.contains("training goes on"),
        "{text}"
    );
    let inside = PathBuf::from(format!("/proc/{}/root", running.files.0));
    let out = inside.join(place.out().strip_prefix("/").expect("absolute"));
    assert!(snapshots_in(&out.join("snapshots")).is_empty());
    std::fs::remove_file(out.join("filler")).expect("the filler");
    place.wait_for("a snapshot", || {
        !snapshots_in(&out.join("snapshots")).is_empty()
    });
    running.interrupt();
}

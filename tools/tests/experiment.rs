//! `dogwild-study run` and its like, as a person runs them.

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Output;

use support::process::Process;
use support::results::number;
use support::wait::wait_for;
use support::{STUDY, labs, tool};
use tempfile::TempDir;

/// Two loss rates, two ways and a reference; digits, so that nothing is needed.
const SMALL: &str = "
title = 'Small'
seeds = 2
[model]
data = 'digits:1,train=1000,test=300'
test_images = 300
[stop]
iterations = 24
test_every = 12
target = 0.3
[nodes]
count = 3
[[vary]]
link.loss = [0.0, 0.3]
[[compare]]
name = 'exactly-once'
[[compare]]
name = 'fire-and-forget'
stream.deltas = 'fire-and-forget'
[[compare]]
name = 'one node'
nodes.count = 1
";

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

fn file(folder: &TempDir, text: &str) -> PathBuf {
    let path = folder.path().join("small.toml");
    std::fs::write(&path, text).expect("written");
    path
}

fn study(action: &str, path: &Path, args: &[&str]) -> Output {
    let mut command = tool(STUDY);
    command.arg(action).arg(path).args(args);
    command.output().expect("it starts")
}

fn run(path: &Path, out: &Path, args: &[&str]) -> Output {
    let out = out.to_str().expect("UTF-8");
    study("run", path, &[&["--out", out][..], args].concat())
}

fn succeeds(output: Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    String::from_utf8_lossy(&output.stdout).into_owned() + &said
}

fn fails(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    said
}

/// All files below a folder, with what they hold.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            all.extend(files(&path));
        } else {
            all.insert(path.clone(), std::fs::read(&path).expect("a file"));
        }
    }
    all
}

fn names_and_bytes(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let inside = |path: PathBuf| path.strip_prefix(folder).expect("inside").to_owned();
    let all = files(folder).into_iter();
    all.map(|(path, bytes)| (inside(path), bytes)).collect()
}

#[test]
fn the_same_file_gives_the_same_bytes() {
    let folder = folder();
    let path = file(&folder, SMALL);
    let [one, other] = ["one", "other"].map(|name| folder.path().join(name));
    let said = succeeds(run(&path, &one, &["--jobs", "1"]));
    assert!(said.contains("10/10"), "{said}");
    succeeds(run(&path, &other, &["--jobs", "2"]));
    let all = names_and_bytes(&one);
    assert!(all == names_and_bytes(&other), "the bytes differ");
    // Ten runs, the experiment, the report and three tables.
    assert_eq!(all.len(), 15, "{:?}", all.keys());
    let results = &all[Path::new("results.json")];
    let results: serde_json::Value = serde_json::from_slice(results).expect("JSON");
    assert!(results.to_string().contains("fire-and-forget"), "{results}");
    let run = &all[Path::new("runs/fire-and-forget,link.loss=0.3/2.json")];
    let run: serde_json::Value = serde_json::from_slice(run).expect("JSON");
    let figures = &run["figures"];
    assert!(
        (0.25..0.35).contains(&number(&figures["frames_lost"])),
        "{figures}"
    );
    assert!(number(&figures["mass_lost"]) > 0.1, "{figures}");
    let run = &all[Path::new("runs/exactly-once,link.loss=0.3/2.json")];
    let run: serde_json::Value = serde_json::from_slice(run).expect("JSON");
    assert!(number(&run["figures"]["mass_late"]) > 0.1, "{run}");
    assert_eq!(number(&run["figures"]["mass_lost"]), 0.0, "{run}");
    assert_eq!(number(&run["points"][0]["iterations"]), 12.0);
    // Both report what they hold, and compare finds them alike.
    succeeds(study("report", &one, &[]));
    assert!(all == names_and_bytes(&one), "the report differs");
    let said = succeeds(study("compare", &one, &[other.to_str().expect("UTF-8")]));
    assert!(
        said.contains("rows overlap") && !said.contains("apart"),
        "{said}"
    );
}

#[test]
fn a_folder_with_results_is_gone_on_with() {
    let folder = folder();
    let path = file(&folder, SMALL);
    let out = folder.path().join("out");
    let said = succeeds(run(&path, &out, &["--only", "one-node"]));
    assert!(said.contains("2/2 one-node seed"), "{said}");
    let said = fails(&run(&path, &out, &[]));
    assert!(said.contains("holds results already: --resume"), "{said}");
    let said = succeeds(run(&path, &out, &["--resume"]));
    assert!(
        said.contains("8 runs") && said.contains("one-node: 0 of 2"),
        "{said}"
    );
    // Other settings of one cell: only its runs are made again.
    let path = file(&folder, &SMALL.replace("0.3]", "0.3, 0.5]"));
    let said = succeeds(run(&path, &out, &["--resume"]));
    assert!(said.contains("4 runs"), "{said}");
    let path = file(&folder, &SMALL.replace("count = 3", "count = 2"));
    let said = succeeds(run(&path, &out, &["--resume", "--only", "exactly-once"]));
    assert!(
        said.contains("seed 1 is of other settings: it is made again"),
        "{said}"
    );
    let damaged = out.join("runs/one-node/1.json");
    std::fs::write(&damaged, "{").expect("written");
    let said = fails(&run(&path, &out, &["--resume"]));
    assert!(said.contains("1.json is not a run's results"), "{said}");
}

/// A kill loses at most the runs that are under way.
#[test]
#[ignore = "long: whole trainings"]
fn a_kill_loses_no_run_that_was_made() {
    let folder = folder();
    let path = file(&folder, SMALL);
    let [whole, out] = ["whole", "out"].map(|name| folder.path().join(name));
    let mut command = tool(STUDY);
    command.arg("run").arg(&path).arg("--out").arg(&out);
    command.stderr(std::process::Stdio::null());
    let mut running = Process::start(&mut command);
    let runs = out.join("runs");
    wait_for("two runs", || {
        runs.is_dir()
            && files(&runs)
                .keys()
                .filter(|path| path.ends_with("1.json"))
                .count()
                > 1
    });
    let process = running.id();
    running.kill();
    // What a kill in the moment of a beginning leaves, and `dogwild clean` would find.
    for run in 0..10 {
        let _ = std::fs::remove_dir_all(format!("/dev/shm/dogwild-study-{process}-{run}"));
    }
    let there = files(&runs).into_iter();
    let there: Vec<_> = there
        .filter(|(path, _)| path.extension().is_some_and(|ending| ending == "json"))
        .collect();
    let said = succeeds(run(&path, &out, &["--resume"]));
    assert!(
        said.contains(&format!("{} runs", 10 - there.len())),
        "{said}"
    );
    let after = files(&runs);
    assert!(there.iter().all(|(path, bytes)| after[path] == *bytes));
    succeeds(run(&path, &whole, &[]));
    let made = |folder: &Path| {
        let mut all = names_and_bytes(folder);
        // What a killed process was writing.
        all.retain(|path, _| !path.to_string_lossy().ends_with(".new"));
        all
    };
    assert!(made(&out) == made(&whole), "the bytes differ");
}

#[test]
fn check_and_list_say_what_there_is() {
    let folder = folder();
    let path = file(&folder, SMALL);
    let said = succeeds(study("check", &path, &[]));
    assert!(said.contains("fire-and-forget,link.loss=0.3"), "{said}");
    assert!(
        said.contains("5 cells with 2 seeds: 10 runs, about"),
        "{said}"
    );
    std::fs::write(folder.path().join("wrong.toml"), "titel = 'x'").expect("written");
    let said = succeeds(study("list", folder.path(), &[]));
    assert!(said.contains("Small") && said.contains("5 x 2"), "{said}");
    assert!(said.contains("titel"), "{said}");
    let wrong = fails(&study("check", &folder.path().join("wrong.toml"), &[]));
    assert!(
        wrong.contains("wrong.toml") && wrong.contains("did you mean `title`?"),
        "{wrong}"
    );
    let gone = fails(&study("check", &folder.path().join("gone.toml"), &[]));
    assert!(gone.contains("cannot read the experiment"), "{gone}");
    let nothing = fails(&study("report", folder.path(), &[]));
    assert!(nothing.contains("it has no experiment.toml"), "{nothing}");
}

#[test]
fn what_an_experiment_names_must_be_there() {
    let folder = folder();
    let wrong = |from: &str, to: &str| {
        let path = file(&folder, &SMALL.replace(from, to));
        fails(&study("check", &path, &[]))
    };
    let said = wrong("data = 'digits:1,train=1000,test=300'", "data = 'letters'");
    assert!(said.contains("model.data = letters"), "{said}");
    let said = wrong("[model]", "[model]\nsolver = 'lenett'");
    assert!(said.contains("model.solver = lenett"), "{said}");
    let said = wrong("[nodes]", "[nodes]\nstep_recording = 'steps.txt'");
    assert!(
        said.contains("cannot read") && said.contains("steps.txt"),
        "{said}"
    );
    std::fs::write(folder.path().join("steps.txt"), "10\nfast\n").expect("written");
    let said = wrong("[nodes]", "[nodes]\nstep_recording = 'steps.txt'");
    assert!(
        said.contains("steps.txt, line 2: `fast` is not a time in ms"),
        "{said}"
    );
}

/// The same file in virtual time and as processes: what is learnt agrees.
#[test]
#[ignore = "long: whole trainings"]
fn sim_and_processes_agree() {
    let folder = folder();
    let text = SMALL
        .replace("iterations = 24", "iterations = 320")
        .replace("test_every = 12", "test_every = 80")
        .replace("count = 3", "count = 2\nstep_ms = 40")
        .replace("train=1000,test=300", "train=2000,test=500")
        .replace("test_images = 300", "test_images = 500");
    let path = file(&folder, &text);
    let only = ["--only", "exactly-once"];
    let mut engines = vec!["sim", "loopback"];
    if labs() {
        engines.push("lab");
    }
    let mut accuracies = Vec::new();
    for engine in engines {
        let out = folder.path().join(engine);
        succeeds(run(
            &path,
            &out,
            &[&only[..], &["--engine", engine]].concat(),
        ));
        for cell in ["exactly-once,link.loss=0.0", "exactly-once,link.loss=0.3"] {
            for seed in [1, 2] {
                let kept = out.join(format!("runs/{cell}/{seed}.json"));
                let text = std::fs::read_to_string(kept).expect("a run");
                let run: serde_json::Value = serde_json::from_str(&text).expect("JSON");
                assert_eq!(run["setting"]["engine"], engine);
                let points = run["points"].as_array().expect("points");
                let last = points.last().expect("a test");
                accuracies.push((engine, cell, number(&last["accuracy"])));
                // Two solvers of 25 steps a second, or fewer if the machine is busy. In virtual
                // time that is without the end, in which what they did comes to both.
                let batch = number(&last["samples"]) / number(&last["iterations"]);
                let pace = number(&run["figures"]["samples_per_s"]) / batch;
                assert!(pace < 60.0, "{engine}: {pace} steps/s");
                assert!(engine != "sim" || pace > 45.0, "{pace} steps/s");
                if cell.ends_with("0.3") {
                    let lost = number(&run["figures"]["frames_lost"]);
                    assert!((0.25..0.35).contains(&lost), "{engine}: {lost}");
                }
            }
        }
    }
    let least = accuracies.iter().map(|one| one.2).fold(1.0, f64::min);
    let most = accuracies.iter().map(|one| one.2).fold(0.0, f64::max);
    assert!(least > 0.8 && most - least < 0.1, "{accuracies:?}");
}

/// Another program, next to virtual time, in one report.
#[test]
fn another_program_is_compared() {
    let folder = folder();
    let script = "#!/bin/sh
echo 'this line is for people'
for step in 12 24 48; do
  echo \"{\\\"step\\\": $step, \\\"samples\\\": $((step * 10)), \\\"seconds\\\": $step.5, \\
    \\\"test_seconds\\\": 0.5, \\\"accuracy\\\": 0.$step}\"
done
[ $1 != 2 ] || { echo 'no more pictures' >&2; exit 7; }
";
    let program = folder.path().join("other.sh");
    std::fs::write(&program, script).expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&program, mode).expect("executable");
    let other = "
[[compare]]
name = 'other'
engine = 'program'
command = ['./other.sh', '{seed}', '{nodes}']
";
    let path = file(&folder, &(SMALL.to_owned() + other));
    let out = folder.path().join("out");
    let args = ["--only", "other,link.loss=0.3"];
    let said = fails(&run(&path, &out, &args));
    assert!(
        said.contains("48.00 % after 48 iterations, 48.0 s"),
        "{said}"
    );
    assert!(
        said.contains("ended with exit status: 7:\nno more pictures"),
        "{said}"
    );
    let kept = out.join("runs/other,link.loss=0.3/1.json");
    let text = std::fs::read_to_string(kept).expect("a run");
    let run: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(number(&run["points"][1]["samples"]), 240.0, "{run}");
    assert!(run["figures"]["frames_lost"].is_null(), "{run}");
    let page = std::fs::read_to_string(out.join("report.html")).expect("a report");
    assert!(page.contains("another program, in real time"));
    // One that says nothing of use, and one that is not there.
    std::fs::write(&program, "#!/bin/sh\necho hello\n").expect("written");
    let said = fails(&study(
        "run",
        &path,
        &["--out", "gone", "--only", "nothing"],
    ));
    assert!(said.contains("no cell is named so"), "{said}");
    let out = folder.path().join("silent");
    let said = fails(&self::run(&path, &out, &args));
    assert!(said.contains("told no test"), "{said}");
    std::fs::remove_file(&program).expect("removed");
    let out = folder.path().join("gone");
    let said = fails(&self::run(&path, &out, &args));
    assert!(said.contains("cannot start `./other.sh 1 3`"), "{said}");
}

/// A program that tells no test but figures, by names of the file's own.
#[test]
fn a_program_tells_figures_of_the_files_choice() {
    let folder = folder();
    let script = "#!/bin/sh
echo '{ \"runs\": [{ \"ratio\": '$1.5' }],'
echo '  \"weights\": \"many\" }'
";
    let program = folder.path().join("other.sh");
    std::fs::write(&program, script).expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&program, mode).expect("executable");
    let text = "
title = 'Figures'
seeds = 2
figures = ['imbalance']
engine = 'program'
command = ['./other.sh', '{size}']
takes_s = 1
figures_from.imbalance = '/runs/0/ratio'
[[vary]]
names.size = ['2', '30']
[paper]
source = 's'
figure = 'f'
says = 'w'
points = [{ of = 'imbalance', x = 2, y = 40 }]
";
    let path = file(&folder, text);
    let out = folder.path().join("out");
    let said = succeeds(run(&path, &out, &[]));
    assert!(said.contains("no test; its figures are kept"), "{said}");
    let page = std::fs::read_to_string(out.join("report.html")).expect("a report");
    for part in [
        "<h3>Busiest node over mean</h3>",
        "30.5",
        "2.5",
        "Values of f",
    ] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("final accuracy"), "there is none");
    let rows = std::fs::read_to_string(out.join("runs.csv")).expect("rows");
    assert_eq!(rows.matches(",30.5,").count(), 2, "{rows}");
    // A number that is not there.
    let wrong = text.replace("/runs/0/ratio", "/weights");
    std::fs::write(&path, wrong).expect("written");
    let said = fails(&run(&path, &folder.path().join("wrong"), &[]));
    assert!(
        said.contains("no number at /weights, where figures_from.imbalance expects it"),
        "{said}"
    );
}

/// TCP over links of 20 Mbit/s that lose 1 %: 20 iterations of 0.45 MB take seconds.
#[test]
fn the_reliable_path_meets_the_same_links() {
    if !labs() {
        return;
    }
    let folder = folder();
    let way = "
[[compare]]
name = 'reliable'
poseidon = { congestion = 'cubic' }
";
    let text = SMALL
        .replace("title", "engine = 'lab'\ntitle")
        .replace("seeds = 2", "seeds = 1")
        .replace("iterations = 24", "iterations = 40")
        .replace("test_every = 12", "test_every = 20")
        .replace("count = 3", "count = 2")
        .replace("[[vary]]", "[link]\nrate = '20Mbit'\n[[vary]]")
        .replace("[0.0, 0.3]", "[0.01]");
    let path = file(&folder, &(text + way));
    let out = folder.path().join("out");
    succeeds(run(&path, &out, &["--only", "reliable"]));
    let kept = out.join("runs/reliable,link.loss=0.01/1.json");
    let run = std::fs::read_to_string(kept).expect("a run");
    let run: serde_json::Value = serde_json::from_str(&run).expect("JSON");
    assert_eq!(number(&run["iterations"]), 40.0, "{run}");
    let points = run["points"].as_array().expect("points");
    let last = points.last().expect("a test");
    assert_eq!(number(&last["iterations"]), 40.0, "{run}");
    assert_eq!(number(&last["samples"]), 40.0 * 64.0, "{run}");
    assert!(number(&last["seconds"]) > 2.0, "{run}");
    assert!(number(&last["accuracy"]) > 0.3, "{run}");
}

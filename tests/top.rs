//! `dogwild top` on a job that runs, on its recording, and on what is none.

#![cfg(feature = "top")]

mod support;

use std::path::Path;
use std::process::Stdio;

use serde_json::Value;
use support::job::{Files, buffer, iterations, one_job};
use support::output::{said, succeeds};
use support::process::Process;
use support::program::dogwild;
use support::wait::wait_for;

fn lines(text: &str) -> Vec<Value> {
    let lines = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"));
    lines.collect()
}

/// The share of positions that a job loses on purpose is the share that is shown.
#[test]
fn a_live_job_is_seen_and_replayed() {
    let _one = one_job();
    let folder = tempfile::tempdir().expect("a folder");
    let mut train = dogwild();
    train.args([
        "train",
        "--data",
        "digits:3,train=2000,test=200",
        "--iterations",
        "100000",
    ]);
    train
        .args(["--loss", "10%", "--out"])
        .arg(folder.path().join("out"));
    train
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let job = Process::start(&mut train);
    let (id, recording) = (job.id(), folder.path().join("recording"));
    let _files = Files(id);
    wait_for("it to train", || iterations(&buffer(id, 1)) > 30);
    let buffers = [0, 1].map(|node| buffer(id, node));
    let printed = succeeds(dogwild().args(["top", "--once"]).args(&buffers));
    assert!(
        printed.starts_with("dogwild top   2 nodes here"),
        "{printed}"
    );
    assert!(
        printed.lines().all(|line| line.chars().count() <= 80),
        "{printed}"
    );
    // The same without a name: whatever else runs on this host is there too.
    assert!(succeeds(dogwild().args(["top", "--once"])).contains("nodes here"));
    let mut top = dogwild();
    top.args(["top", "--json", "--interval", "0.5", "--record"])
        .arg(&recording)
        .args(&buffers);
    let top = Process::start(
        top.stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped()),
    );
    std::thread::sleep(std::time::Duration::from_secs(4));
    top.signal("INT");
    let output = top.output();
    let frames = lines(&String::from_utf8_lossy(&output.stdout));
    assert!(frames.len() >= 3, "{}", said(&output));
    for frame in &frames {
        assert_eq!(frame["nodes"].as_array().map(Vec::len), Some(2), "{frame}");
    }
    let sum = |of: &dyn Fn(&Value) -> f64| frames.iter().map(of).sum::<f64>();
    let lost = sum(&|frame| frame["nodes"][1]["lost_share"].as_f64().expect("a share"));
    let lost = lost / frames.len() as f64;
    assert!((0.06..0.14).contains(&lost), "{lost}");
    assert!(sum(&|frame| frame["iterations_per_s"].as_f64().expect("a rate")) > 0.0);
    // A recording gives the same frames, also when the job is gone.
    drop(job);
    let again = succeeds(
        dogwild()
            .args(["top", "--json", "--replay"])
            .arg(&recording),
    );
    assert_eq!(lines(&again)[..frames.len()], frames);
    let last = succeeds(
        dogwild()
            .args(["top", "--once", "--replay"])
            .arg(&recording),
    );
    assert!(last.starts_with("dogwild top   2 nodes here"), "{last}");
    let dead = succeeds(dogwild().args(["top", "--once"]).arg(&buffers[0]));
    assert!(dead.contains("(died, pid"), "{dead}");
}

#[test]
fn what_cannot_be_shown_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        path
    };
    let refused = |flag: &str, path: &Path| {
        let mut top = dogwild();
        top.args(["top", "--once"]);
        if !flag.is_empty() {
            top.arg(flag);
        }
        let output = top.arg(path).output().expect("it runs");
        assert!(!output.status.success());
        said(&output)
    };
    let said = refused(
        "--replay",
        &text("a", "{\"unix_ms\": 1, \"buffers\": []}\nx\n"),
    );
    assert!(
        said.contains("a:2 is no look that --record wrote"),
        "{said}"
    );
    let said = refused("--replay", &text("b", ""));
    assert!(said.contains("the recording is empty"), "{said}");
    let said = refused("--replay", Path::new("/nowhere"));
    assert!(said.contains("--replay /nowhere"), "{said}");
    let said = refused("", &text("c", "no buffer"));
    assert!(said.contains("/c"), "{said}");
}

//! What is wrong is named: components by hand, one of them stopped, with another MTU, without the
//! key.

#![cfg(feature = "program")]

mod support;

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Stdio;

use dogwild::watch::StreamMeter;
use dogwild::weights::{Expect, Role, SharedWeights};
use serde_json::Value;
use support::output::succeeds;
use support::process::Process;
use support::program::dogwild;
use support::shm::shm_folder;
use support::wait::{wait_for_or, wait_while};
use tempfile::TempDir;

const DATA: &str = "digits:1,train=2000,test=200";

/// Two nodes on loopback, each with a buffer and logs in a folder under /dev/shm.
struct Hosts {
    folder: TempDir,
    session: String,
}

impl Hosts {
    fn new(name: &str) -> Self {
        let hosts = Self {
            folder: shm_folder(),
            session: format!("{name}-{}", std::process::id()),
        };
        for node in ["0", "1"] {
            let mut init = dogwild();
            init.args(["init", "--nodes", "2", "--data", DATA, "--session"]);
            init.arg(&hosts.session).arg("--buffer");
            succeeds(init.arg(hosts.buffer(node)));
        }
        hosts
    }

    fn buffer(&self, node: &str) -> PathBuf {
        self.folder.path().join(format!("n{node}"))
    }

    fn start(&self, what: &str, node: &str, args: &[&str]) -> Process {
        let log = File::create(self.folder.path().join(format!("{what}{node}.log")));
        let mut command = dogwild();
        command.args([what, "--nodes", "2", "--node", node, "--buffer"]);
        command.arg(self.buffer(node)).args(args);
        command.env("DOGWILD_LINE_EVERY_S", "1");
        command.stdout(Stdio::null()).stderr(log.expect("a log"));
        Process::start(&mut command)
    }

    fn log(&self, what: &str, node: &str) -> String {
        let path = self.folder.path().join(format!("{what}{node}.log"));
        fs::read_to_string(path).unwrap_or_default()
    }

    fn status(&self, node: &str, args: &[&str]) -> String {
        let out = dogwild()
            .args(["status", "--buffer"])
            .arg(self.buffer(node))
            .args(args)
            .output()
            .expect("status");
        assert!(out.status.success(), "{out:?}");
        String::from_utf8(out.stdout).expect("text")
    }

    /// A counter of the streamer of `node`.
    fn meter(&self, node: &str, name: &str) -> u64 {
        let status: Value = serde_json::from_str(&self.status(node, &["--json"])).expect("JSON");
        let components = status["components"].as_array().expect("components");
        let stream = components
            .iter()
            .find(|one| one["component"] == format!("stream {node}"));
        let meters = stream.and_then(|one| one["meters"].as_array());
        let meter = meters.and_then(|all| all.iter().find(|meter| meter[0] == name));
        meter.and_then(|meter| meter[1].as_u64()).unwrap_or(0)
    }

    fn everything(&self) -> String {
        let mut text = String::new();
        for node in ["0", "1"] {
            for what in ["stream", "solver"] {
                text += &format!("--- {what} {node}\n{}", self.log(what, node));
            }
            text += &self.status(node, &[]);
        }
        text
    }

    fn wait_for(&self, what: &str, done: impl FnMut() -> bool) {
        wait_for_or(what, done, || self.everything());
    }

    /// Waits until `node` has sent so many positions more.
    fn wait_for_positions(&self, node: &str, more: u64) {
        let before = self.meter(node, "positions_sent");
        wait_while(&format!("{more} positions of node {node}"), || {
            let sent = self.meter(node, "positions_sent") - before;
            (sent < more).then(|| format!("node {node} has sent {sent} of them"))
        });
    }
}

/// `--rate 4MB`: what piled up while one streamer was stopped was answered in full, on a debt
/// without a floor, and its range had no position any more while the log said that all was well.
#[test]
fn a_streamer_that_was_stopped_gets_its_share_of_the_rate_again() {
    let hosts = Hosts::new("pause");
    let nodes = ["0", "1"].map(|node| hosts.start("stream", node, &["--rate", "4MB"]));
    for node in ["0", "1"] {
        hosts.wait_for_positions(node, 100);
    }
    nodes[0].signal("STOP");
    hosts.wait_for_positions("1", 500);
    nodes[0].signal("CONT");
    // Twenty bursts: what goes before the debt is noticed is not enough.
    for node in ["0", "1", "0"] {
        hosts.wait_for_positions(node, 600);
    }
    let applied = hosts.meter("0", "deltas_applied");
    hosts.wait_for("deltas for node 0", || {
        hosts.meter("0", "deltas_applied") > applied + 100
    });
}

#[test]
fn a_stopped_solver_is_named_in_logs_and_by_status() {
    let hosts = Hosts::new("stopped");
    let streams = ["0", "1"].map(|node| hosts.start("stream", node, &[]));
    let args = ["--data", DATA, "--test-every", "0"];
    let solvers = ["0", "1"].map(|node| hosts.start("solver", node, &args));
    hosts.wait_for("lines of rates of solvers", || {
        ["0", "1"]
            .iter()
            .all(|node| hosts.log("solver", node).contains("/s, loss"))
    });
    hosts.wait_for("a line of rates of a streamer", || {
        hosts.log("stream", "0").contains("positions/s")
    });
    solvers[0].signal("STOP");
    hosts.wait_for("its streamer names it", || {
        hosts.log("stream", "0").contains("solver 0 is stopped")
    });
    hosts.wait_for("the other node names it", || {
        hosts
            .log("stream", "1")
            .contains("the solvers of node 0 stand still")
    });
    let status = hosts.status("0", &[]);
    assert!(status.contains("solver 0 is stopped"), "{status}");
    for name in [
        "positions_sent",
        "still_solvers",
        "drop_shape",
        "iterations",
    ] {
        assert!(status.contains(name), "{name} in\n{status}");
    }
    let longest = status.lines().map(|line| line.chars().count()).max();
    assert!(longest <= Some(80), "{status}");
    assert_eq!(hosts.meter("1", "still_nodes"), 1);
    solvers[0].signal("CONT");
    hosts.wait_for("that it is over", || {
        hosts.log("stream", "0").contains("over after")
            && hosts.log("stream", "1").contains("over after")
    });
    // A streamer that was killed leaves a buffer that still tells.
    drop(streams);
    let status = hosts.status("1", &[]);
    assert!(status.contains("stream 1 died"), "{status}");
    assert!(status.contains("no streamer runs"), "{status}");
}

#[test]
fn another_mtu_is_said_once_and_not_twenty_times_a_second() {
    let hosts = Hosts::new("mtu");
    let _nodes = [("0", "1500"), ("1", "9000")]
        .map(|(node, mtu)| hosts.start("stream", node, &["--mtu", mtu]));
    hosts.wait_for("100 hellos of the other kind on both nodes", || {
        ["0", "1"]
            .iter()
            .all(|node| hosts.meter(node, "drop_shape") >= 100)
    });
    for node in ["0", "1"] {
        let log = hosts.log("stream", node);
        let lines = log.lines().filter(|line| line.contains("--mtu")).count();
        assert!((1..=2).contains(&lines), "{lines} lines\n{log}");
    }
}

#[test]
fn a_key_on_one_side_only_is_said_on_both() {
    let hosts = Hosts::new("key");
    let path = hosts.folder.path().join("key");
    fs::write(&path, [7u8; 32]).expect("a key");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("its mode");
    let key = path.display().to_string();
    let _nodes = [
        hosts.start("stream", "0", &["--key-file", &key]),
        hosts.start("stream", "1", &[]),
    ];
    hosts.wait_for("the sealed node says it", || {
        hosts
            .log("stream", "0")
            .contains("frames with a bad tag from 127.0.0.1:")
    });
    hosts.wait_for("the other one says it", || {
        hosts
            .log("stream", "1")
            .contains("sealed frames from 127.0.0.1:")
    });
    hosts.wait_for("more of them", || hosts.meter("0", "seal_bad_tag") >= 100);
    let log = hosts.log("stream", "0");
    let lines = log.lines().filter(|line| line.contains("bad tag")).count();
    assert!(lines <= 2, "{log}");
}

/// What a streamer that was killed had last said is not told again once another one runs.
#[test]
fn a_new_streamer_says_nothing_of_what_is_over() {
    let hosts = Hosts::new("over");
    {
        let shared = SharedWeights::open(&hosts.buffer("0"), &Expect::default()).expect("a buffer");
        let slot = shared.claim_slot(Role::Stream, 0).expect("a slot");
        StreamMeter::SilentNodes.set(slot.meters(), 0b10);
        StreamMeter::OldRanges.set(slot.meters(), 0b10);
    }
    let stream = hosts.start("stream", "0", &["--rate", "2MB"]);
    let shared = SharedWeights::open(&hosts.buffer("0"), &Expect::default()).expect("a buffer");
    let slot = || {
        shared
            .slots()
            .into_iter()
            .find(|slot| slot.pid == stream.id())
    };
    let is_at_work = || slot().is_some_and(|slot| StreamMeter::FrameBytes.of(&slot.meters) > 0);
    wait_for_or("its streamer", is_at_work, || hosts.log("stream", "0"));
    let meters = slot().expect("its slot").meters;
    assert_eq!(StreamMeter::SilentNodes.of(&meters), 0);
    assert_eq!(StreamMeter::OldRanges.of(&meters), 0);
}

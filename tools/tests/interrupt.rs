//! Signals: what holds buffers in shared memory removes them, and its children end with it; a
//! streamer that one stops or kills is named by what waits for it.
//!
//! On the code before `dogwild_tools::scratch`, each of these left up to 60 MB in /dev/shm.

mod support;

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;

use support::output::said;
use support::process::{Process, alive, parent, processes, signal};
use support::wait::wait_for;
use support::{PLAN, RAWBENCH, labs, tool};

/// Names under /dev/shm that process `pid` made.
fn left(pid: u32) -> BTreeSet<String> {
    let all = std::fs::read_dir("/dev/shm")
        .expect("shared memory")
        .flatten();
    let names = all.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names
        .filter(|name| name.contains(&format!("-{pid}")))
        .collect()
}

/// Live processes whose parent or whose parent's parent is `pid`.
fn descendants(pid: u32) -> BTreeSet<u32> {
    let mut family = BTreeSet::from([pid]);
    for _ in 0..3 {
        for (child, _) in processes() {
            if parent(child).is_some_and(|parent| family.contains(&parent)) {
                family.insert(child);
            }
        }
    }
    family.remove(&pid);
    family
}

fn interrupt(program: &str, words: &[&str], children: usize, by: &str, code: i32) {
    let mut command = tool(program);
    command.args(words);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut tool = Process::start(&mut command);
    let pid = tool.id();
    let prefix = Path::new(program).file_name().expect("a name");
    let prefix = prefix.to_string_lossy().into_owned();
    wait_for(&format!("folder and children of {words:?}"), || {
        assert!(tool.ended().is_none(), "{words:?} ended");
        !left(pid).is_empty() && descendants(pid).len() >= children
    });
    for name in left(pid) {
        assert!(
            name.starts_with(&prefix),
            "{name} is not found by `dogwild clean`"
        );
    }
    let family = descendants(pid);
    tool.signal(by);
    let output = tool.output();
    let (status, said) = (output.status, said(&output));
    assert_eq!(
        (status.code(), status.signal()),
        (Some(code), None),
        "{words:?}: {said}"
    );
    assert!(!said.contains("panicked"), "{said}");
    assert_eq!(left(pid), BTreeSet::new(), "{words:?} {by}: {said}");
    wait_for("the end of its children", || {
        !family.iter().any(|&pid| alive(pid))
    });
    assert_eq!(
        left(pid),
        BTreeSet::new(),
        "{words:?} {by}, children: {said}"
    );
}

const CONSERVE: [&str; 7] = [
    "conserve",
    "--transport",
    "udp",
    "--weights",
    "100000",
    "--seconds",
    "100",
];

#[test]
fn conserve_leaves_nothing_at_int_term_and_hup() {
    for (signal, code) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        interrupt(RAWBENCH, &CONSERVE, 3, signal, code);
    }
}

/// `conserve` over loopback of which the streamer of node 0 gets `signal` while node 1 adds, in the
/// first run. Gives its exit code and all that it said, on one line.
fn conserve_with(by: &str) -> (Option<i32>, String) {
    let mut command = tool(RAWBENCH);
    command.args(["conserve", "--transport", "udp", "--weights", "30000"]);
    command.args(["--seconds", "3", "--settle", "1"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let bench = Process::start(&mut command);
    let pid = bench.id();
    let component = |words: &str| {
        descendants(pid).into_iter().find(|child| {
            let line = std::fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            line.contains(&format!("component {words}")) && !line.contains("--node 1")
        })
    };
    wait_for("node 1 adds", || component("adder").is_some());
    let streamer = component("stream").expect("the streamer of node 0");
    signal(by, &streamer.to_string());
    let ended = bench.output();
    let said = said(&ended);
    let words: Vec<&str> = said.split_whitespace().collect();
    assert_eq!(left(pid), BTreeSet::new(), "{said}");
    assert!(!alive(streamer), "the stopped streamer stayed");
    (ended.status.code(), words.join(" "))
}

/// A stopped process keeps its sockets and says nothing: only the replicas tell.
#[test]
#[ignore = "long: waits as long as weights may still come"]
fn conserve_says_which_node_lacks_what_when_a_streamer_stops() {
    let (code, said) = conserve_with("STOP");
    assert_eq!(code, Some(1), "{said}");
    for words in [
        "replicas identical ┆ NO",
        "FAILED: racing writes, no faults: replicas did not become identical",
        "node 0 differs in 15000 of the 15000 weights that node 1 is master of",
        "of the 15000 weights that node 0 is master of",
    ] {
        assert!(said.contains(words), "`{words}` is missing in: {said}");
    }
}

#[test]
fn conserve_names_a_streamer_that_is_killed() {
    let (code, said) = conserve_with("KILL");
    assert_eq!(code, Some(1), "{said}");
    let words = "the streamer of node 0 ended with signal: 9";
    assert!(said.contains(words), "{said}");
    assert!(!said.contains("conserved"), "{said}");
}

#[test]
fn a_gpu_measurement_leaves_nothing() {
    let words = ["gpu", "--weights", "1000000", "--seconds", "100"];
    interrupt(RAWBENCH, &words, 0, "INT", 130);
}

#[test]
fn racing_solvers_leave_nothing() {
    let words = ["hogwild", "--sizes", "64MiB", "--passes", "100000"];
    interrupt(RAWBENCH, &words, 1, "TERM", 143);
}

#[test]
fn an_emulated_cluster_leaves_nothing() {
    if !labs() {
        return;
    }
    let words = "alexnet --nodes 2 --batch 32 --bandwidth 1gbit --emulate --iterations 1000";
    let words: Vec<&str> = words.split(' ').collect();
    // The coordinator, two servers and two workers.
    interrupt(PLAN, &words, 5, "INT", 130);
}

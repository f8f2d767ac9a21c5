//! `dogwild-rawbench conserve` and `stream` as a user runs them: separate processes in a lab.

mod support;

use serde_json::Value;
use support::results::number;
use support::{RAWBENCH, labs, tool};

/// Runs the benchmark in a lab; `None` (said loudly) where there can be none.
fn rawbench(args: &[&str]) -> Option<Value> {
    if !labs() {
        return None;
    }
    let output = tool(RAWBENCH)
        .args(args)
        .args(["--lab", "--json"])
        .output()
        .expect("rawbench starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{args:?}: {said}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Some(serde_json::from_str(&said).expect("JSON"))
}

/// Exactly-once under 30 % loss, with the streamer killed on the way: the atomic run is exact
/// (rawbench itself fails if it is not), replicas end equal.
fn assert_conserves(nodes: &str, transport: &str, precision: &str, merge: &str) {
    let args = [
        "conserve",
        "--nodes",
        nodes,
        "--weights",
        "30000",
        "--transport",
        transport,
        "--precision",
        precision,
        "--merge",
        merge,
    ];
    let faults = [
        "--loss",
        "30%",
        "--duplicate",
        "1%",
        "--reorder",
        "1%",
        "--seconds",
        "0.5",
        "--kills",
        "2",
    ];
    let Some(report) = rawbench(&[args.as_slice(), &faults].concat()) else {
        return;
    };
    let runs = report["runs"].as_array().expect("runs");
    assert_eq!(runs.len(), 3);
    for run in runs {
        assert_eq!(run["replicas_identical"], true, "{run}");
        assert!(number(&run["passes"]) > 0.0, "{run}");
    }
    assert_eq!(runs[2]["added"], runs[2]["arrived"], "{report}");
    assert!(number(&runs[1]["dropped_on_purpose"]) > 0.0, "{report}");
    assert!(number(&runs[1]["deltas_repeated"]) > 0.0, "{report}");
}

#[test]
fn two_nodes_conserve_over_raw_ethernet() {
    assert_conserves("2", "packet_mmap", "f32", "sum");
}

#[test]
fn three_nodes_conserve_over_raw_ethernet() {
    assert_conserves("3", "packet_mmap", "f32", "sum");
}

#[test]
fn two_nodes_conserve_over_udp() {
    assert_conserves("2", "udp", "f32", "sum");
}

/// In a mean the portion of each addition arrives, once.
#[test]
fn portions_are_conserved() {
    assert_conserves("2", "packet_mmap", "f32", "mean");
    assert_conserves("4", "udp", "int8", "mean");
}

#[test]
fn two_nodes_conserve_in_narrow_payloads() {
    assert_conserves("2", "packet_mmap", "bf16", "sum");
    assert_conserves("3", "udp", "int8", "sum");
}

#[test]
fn fire_and_forget_shows_what_the_wire_loses() {
    let Some(report) = rawbench(&[
        "conserve",
        "--weights",
        "30000",
        "--loss",
        "30%",
        "--deltas",
        "fire-and-forget",
        "--seconds",
        "1",
    ]) else {
        return;
    };
    // Half of the range is foreign, so about 15 % of everything is lost; exactly-once loses
    // nothing.
    let missing = number(&report["runs"][2]["missing_share"]);
    assert!((0.05..0.3).contains(&missing), "{report}");
}

#[test]
fn a_stream_is_measured_beside_its_bounds() {
    for transport in ["udp", "packet_mmap"] {
        let args = [
            "stream",
            "--weights",
            "100000",
            "--seconds",
            "0.5",
            "--transport",
            transport,
        ];
        let Some(report) = rawbench(&args) else {
            return;
        };
        for figure in [
            "cycles_per_s",
            "frames_received_per_s",
            "memcpy_bytes_per_s",
            "share_of_raw_two_way",
        ] {
            assert!(number(&report[figure]) > 0.0, "{figure}: {report}");
        }
        let waited = report["waited_share"].as_array().expect("one per node");
        assert_eq!(waited.len(), 2, "{report}");
        // Counters are published every 50 ms, on a busy machine later: up to two intervals of the
        // ten too many.
        assert!(
            waited.iter().all(|w| (0.0..1.2).contains(&number(w))),
            "{report}"
        );
    }
}

/// Multicast: what a master sends does not grow with the number of its slaves.
#[test]
#[ignore = "long: streams over many seconds"]
fn one_frame_serves_all_slaves() {
    let mut bytes_per_cycle = Vec::new();
    for nodes in ["3", "5", "9"] {
        let args = [
            "stream",
            "--nodes",
            nodes,
            "--weights",
            "100000",
            "--seconds",
            "1",
            "--rate",
            "2MB",
        ];
        let Some(report) = rawbench(&args) else {
            return;
        };
        let interface = &report["interface"];
        // Counters are published some times a second, so the ends of the second are blurred; with a
        // frame per slave this would be 2, 4 and 8.
        let frames = number(&interface["frames_per_position"]);
        assert!((0.7..1.4).contains(&frames), "{nodes} nodes: {report}");
        bytes_per_cycle.push(number(&interface["bytes_per_cycle"]));
        if nodes == "3" {
            // 2 MB/s are nothing: each streamer waits, and says so.
            let waited = report["waited_share"].as_array().expect("one per node");
            assert!(waited.iter().all(|w| number(w) > 0.2), "{report}");
        }
    }
    println!("bytes per cycle with 2, 4 and 8 slaves: {bytes_per_cycle:?}");
}

/// The stream finds the rate of a thin link, and TCP next to it keeps at least half of it. What it
/// gets differs from run to run: the middle of three counts.
#[test]
#[ignore = "long: TCP flows over many seconds"]
fn tcp_keeps_half_of_a_thin_link() {
    let known = "/proc/sys/net/ipv4/tcp_available_congestion_control";
    let known = std::fs::read_to_string(known).unwrap_or_default();
    for congestion in ["cubic", "bbr"] {
        if !known.split_whitespace().any(|one| one == congestion) {
            dogwild_lab::skip::skip(&format!(
                "no TCP with {congestion} (modprobe tcp_{congestion})"
            ));
            continue;
        }
        let mut keeps = Vec::new();
        for _ in 0..3 {
            let Some(report) = next_to_tcp(congestion) else {
                return;
            };
            keeps.push(number(&report["tcp_keeps"]));
        }
        keeps.sort_by(f64::total_cmp);
        assert!(keeps[1] >= 0.5, "{congestion} keeps {keeps:?}");
    }
}

/// One run of the stream alone, next to a TCP flow, and alone again, over 50 Mbit/s.
fn next_to_tcp(congestion: &str) -> Option<Value> {
    let args = ["tcp", "--transport", "udp", "--link", "50mbit"];
    let rest = ["--seconds", "4", "--congestion", congestion];
    let report = rawbench(&[args.as_slice(), &rest].concat())?;
    let beside = number(&report["stream_beside_bytes_per_s"]);
    assert!(beside > 0.0, "{report}");
    // 50 Mbit/s less headers; the link is full when the stream has it alone, before and after.
    for alone in ["stream_alone_bytes_per_s", "stream_after_bytes_per_s"] {
        assert!(number(&report[alone]) > 4.5e6, "{alone}: {report}");
    }
    assert!(number(&report["positions_lost_share"]) < 0.02, "{report}");
    Some(report)
}

/// Under forged, recorded and damaged frames a sealed stream goes on, and no weight changes
/// (rawbench itself fails if one does).
#[test]
fn a_sealed_stream_goes_on_under_hostile_frames() {
    let args = [
        "hostile",
        "--transport",
        "udp",
        "--weights",
        "30000",
        "--frames",
        "300000",
        "--seconds",
        "0.3",
        "--rate",
        "5MB",
    ];
    let Some(report) = rawbench(&args) else {
        return;
    };
    assert_eq!(report["weights_changed"], 0, "{report}");
    assert_eq!(report["attack"]["sent"], 300_000, "{report}");
    assert!(number(&report["during"]["positions_taken_per_s"]) > 0.0);
    let refused = report["refused"].as_array().expect("reasons");
    for reason in ["bad tag", "replayed", "too short"] {
        let count = refused.iter().find(|pair| pair[0] == reason);
        let count = count.expect("a reason");
        // A few of the nodes' own come back to them.
        assert!(number(&count[1]) > 1000.0, "{reason}: {report}");
    }
}

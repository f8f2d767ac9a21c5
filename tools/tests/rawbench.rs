//! `dogwild-rawbench send | recv | ping | sweep`: short runs whose figures must add up, and wrong
//! use.
//!
//! Asserts no speed: only that something was sent, that no more arrived than was, and what is said.

mod support;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use serde_json::Value;
use support::output::{assert_says, refused, said};
use support::process::Process;
use support::results::number;
use support::{RAWBENCH, labs, tool};

fn rawbench() -> Command {
    tool(RAWBENCH)
}

/// Runs `command`, which must end well, and returns its report.
fn report(command: &mut Command) -> Value {
    let output = command.arg("--json").output().expect("it starts");
    assert!(output.status.success(), "{}", said(&output));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// The counts of a run are possible together.
fn assert_adds_up(run: &Value) {
    let (sent, received) = (number(&run["sent"]), number(&run["received"]));
    assert!(sent > 0.0 && received > 0.0 && received <= sent, "{run}");
    let lost = number(&run["lost_share"]);
    assert!((lost - (sent - received) / sent).abs() < 1e-9, "{run}");
    let bits = number(&run["received_frames_per_s"]) * number(&run["frame_bytes"]) * 8.0;
    let said = number(&run["received_bits_per_s"]);
    assert!((bits / said - 1.0).abs() < 1e-6, "{run}");
}

fn assert_says_where(report: &Value, iface: &str) {
    let machine = &report["machine"];
    assert_eq!(machine["iface"], iface);
    for name in ["processor", "kernel"] {
        let text = machine[name].as_str();
        assert!(text.is_some_and(|text| !text.is_empty()), "{report}");
    }
    assert!(number(&machine["mtu"]) > 0.0, "{report}");
}

/// Runs a driver against a `recv` on loopback that is there for it alone.
fn on_loopback(name: &str, args: &[&str]) -> Value {
    let session = format!("test-{name}-{}", std::process::id());
    let mut recv = rawbench();
    recv.args(["recv", "--session", &session]);
    let _recv = Process::start(recv.stdout(Stdio::null()));
    report(rawbench().args(args).args(["--session", &session]))
}

#[test]
fn udp_on_loopback_is_sent_and_counted() {
    let report = on_loopback("send", &["send", "--seconds", "0.1", "--frame", "256"]);
    assert_says_where(&report, "lo");
    assert_eq!(report["outcome"]["send"]["frame_bytes"], 256);
    assert_adds_up(&report["outcome"]["send"]);
}

#[test]
fn a_rate_is_kept() {
    let args = ["send", "--seconds", "0.3", "--rate", "1000", "--unicast"];
    let report = on_loopback("rate", &args);
    let run = &report["outcome"]["send"];
    assert_adds_up(run);
    // A busy machine may send fewer, none may send more.
    let most = number(&run["seconds"]) * 1000.0 + 1.0;
    assert!(number(&run["sent"]) <= most, "{run}");
}

#[test]
fn recv_tells_what_the_sender_tells_and_ends() {
    let session = format!("test-recv-{}", std::process::id());
    let mut recv = rawbench();
    recv.args(["recv", "--json", "--runs", "1", "--session", &session]);
    let recv = Process::start(recv.stdout(Stdio::piped()));
    let args = ["send", "--seconds", "0.1", "--session", &session];
    let report = report(rawbench().args(args));
    let output = recv.output();
    assert!(output.status.success());
    let run: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(run["frames"], report["outcome"]["send"]["received"]);
}

#[test]
fn lab_transports_are_sent_pinged_and_swept() {
    if !labs() {
        return;
    }
    for transport in ["udp", "packet_mmap"] {
        let over = ["--lab", "--transport", transport, "--seconds", "0.1"];
        let send = report(rawbench().arg("send").args(over));
        assert_says_where(&send, "eth0");
        assert_eq!(send["settings"]["transport"], transport);
        assert_adds_up(&send["outcome"]["send"]);

        let ping = report(rawbench().arg("ping").args(over));
        let pings = &ping["outcome"]["ping"];
        let (sent, received) = (number(&pings["sent"]), number(&pings["received"]));
        assert!(sent > 0.0 && received > 0.0 && received <= sent, "{pings}");
        let rising = ["p50_us", "p99_us", "p999_us"].map(|name| number(&pings[name]));
        assert!(rising[0] > 0.0 && rising.is_sorted(), "{pings}");

        let args = ["sweep", "--frames", "64,1024", "--steps", "3"];
        let sweep = report(rawbench().args(args).args(over));
        let points = sweep["outcome"]["sweep"].as_array().expect("points");
        assert_eq!(points.len(), 2);
        for point in points {
            assert_adds_up(&point["flat_out"]);
            let free = &point["loss_free"];
            if !free.is_null() {
                assert_adds_up(free);
                assert_eq!(free["sent"], free["received"]);
            }
        }
    }
}

#[test]
fn two_hosts_by_hand_find_their_interface_by_auto() {
    if !labs() {
        return;
    }
    let lab = dogwild_lab::Lab::up(&dogwild_lab::Spec::of(2)).expect("a lab");
    for transport in ["udp", "packet_mmap"] {
        let on = |host: usize, subcommand: &str| {
            let mut command = lab.command(host, RAWBENCH);
            command.args([subcommand, "--iface", "auto", "--transport", transport]);
            command.env("RUST_LOG", "info").stdin(Stdio::null());
            command
        };
        let mut recv = on(1, "recv");
        recv.stdout(Stdio::null()).stderr(Stdio::null());
        let _recv = Process::start(&mut recv);
        let output = on(0, "send")
            .args(["--seconds", "0.1", "--json"])
            .output()
            .expect("send starts");
        let said = said(&output);
        assert!(output.status.success(), "{said}");
        assert_says(&said, &["--iface auto: `eth0`"]);
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_says_where(&report, "eth0");
        assert_adds_up(&report["outcome"]["send"]);
    }
}

#[test]
fn the_picture_and_the_table_are_written() {
    if !labs() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let picture = folder.path().join("ping.svg");
    let output = rawbench()
        .args(["ping", "--lab", "--seconds", "0.05", "--plot"])
        .arg(&picture)
        .output()
        .expect("it starts");
    assert!(output.status.success(), "{}", said(&output));
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_says(&table, &["p50", "p99.9", "max", "Linux", "eth0"]);
    let svg = std::fs::read_to_string(&picture).expect("a picture");
    assert!(svg.starts_with("<svg"));
}

#[test]
fn peers_are_measured_or_named() {
    if !labs() {
        return;
    }
    let report = report(rawbench().args(["send", "--lab", "--seconds", "0.1", "--compare"]));
    let list = |name: &str| report["comparison"][name].as_array().expect("a list");
    for tool in ["iperf3", "trafgen", "dpdk-testpmd"] {
        let is = |one: &&Value| {
            let name = one["tool"].as_str();
            name.is_some_and(|name| name.starts_with(tool))
        };
        let ran: Vec<_> = list("peers").iter().filter(is).collect();
        let missing: Vec<_> = list("missing").iter().filter(is).collect();
        assert_ne!(ran.is_empty(), missing.is_empty(), "{tool} in {report}");
        for peer in ran {
            // A tool may fail here; it then says so and has no figure.
            let failed = peer["error"].is_string();
            assert_ne!(failed, peer["received_bits_per_s"].is_f64(), "{peer}");
            let command = peer["command"].as_str();
            assert!(
                failed || command.is_some_and(|line| line.contains(tool)),
                "{peer}"
            );
        }
        for one in missing {
            let package = one["debian_package"].as_str();
            assert!(package.is_some_and(|name| !name.is_empty()), "{one}");
        }
    }
}

#[test]
fn rounds_compare_ours_with_each_in_turns() {
    if !labs() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let key = folder.path().join("key");
    std::fs::write(&key, [7; 32]).expect("a key");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).expect("chmod");
    let over = ["--lab", "--seconds", "0.1", "--rounds", "3", "--core", "0"];
    let mut command = rawbench();
    command.arg("send").args(over).arg("--key-file").arg(&key);
    let report = report(command.arg("--compare=unsealed,trafgen"));
    let rounds = &report["rounds"];
    let each = rounds["rounds"].as_array().expect("rounds");
    assert_eq!(each.len(), 3);
    let first: Vec<_> = each.iter().map(|round| &round["ours_first"]).collect();
    assert_eq!(first, [true, false, true]);
    let trafgen = rounds["missing"].as_array().is_some_and(Vec::is_empty);
    let mut ratios = Vec::new();
    for round in each {
        let ours = &round["ours"];
        assert_adds_up(ours);
        assert!(number(&round["core_to_core_bytes_per_s"][0]) > 0.0);
        let peers = round["peers"].as_array().expect("a list");
        assert_eq!(peers.len(), 1 + usize::from(trafgen), "{round}");
        // Frames of the same payload, though a full one would be longer without a seal.
        let unsealed = &peers[peers.len() - 1];
        let compared = &unsealed["compared"];
        assert_eq!(compared["counted"], "received");
        assert_eq!(
            number(&unsealed["peer"]["payload_bytes"]),
            number(&ours["frame_bytes"])
        );
        let theirs = number(&unsealed["peer"]["received_frames_per_s"]);
        let ratio = number(&ours["received_frames_per_s"]) / theirs;
        assert!((number(&compared["ratio"]) / ratio - 1.0).abs() < 1e-9);
        let command = unsealed["peer"]["command"].as_str().expect("a command");
        assert!(!command.contains("--key-file"), "{command}");
        ratios.push(ratio);
    }
    ratios.sort_by(f64::total_cmp);
    let all = rounds["ratios"].as_array().expect("ratios");
    let spread = &all[all.len() - 1]["ratio"];
    let said = ["lowest", "median", "highest"].map(|name| number(&spread[name]));
    assert!(
        said.iter()
            .zip(&ratios)
            .all(|(a, b)| (a / b - 1.0).abs() < 1e-9),
        "{said:?} {ratios:?}"
    );
    let arguments = report["settings"]["arguments"].as_str();
    assert!(arguments.is_some_and(|said| said.contains("--key-file")));
}

#[test]
fn rounds_by_hand_open_the_link_anew_each_time() {
    let args = ["send", "--seconds", "0.05", "--rounds", "2"];
    let report = on_loopback("rounds", &args);
    let rounds = &report["rounds"];
    assert_eq!(rounds["rounds"].as_array().map(Vec::len), Some(2));
    assert_eq!(rounds["ratios"].as_array().map(Vec::len), Some(0));
    assert_adds_up(&rounds["rounds"][0]["ours"]);
    assert_adds_up(&rounds["rounds"][1]["ours"]);
}

#[test]
fn what_to_compare_with_is_chosen_by_name() {
    let said = refused(rawbench().args(["send", "--lab", "--compare=trafgen,netperf"]));
    assert_says(
        &said,
        &[
            "netperf",
            "all",
            "iperf3",
            "iperf3-tcp",
            "iperf3-udp",
            "trafgen",
            "testpmd",
            "testpmd-af_packet",
            "testpmd-af_xdp",
            "unsealed",
        ],
    );
    let said = refused(rawbench().args(["send", "--lab", "--compare=unsealed"]));
    assert_says(&said, &["unsealed", "--key-file"]);
    let keyed = ["--key-file", "/dev/null", "--compare=unsealed"];
    let said = refused(rawbench().args(["send", "--iface", "lo"]).args(keyed));
    assert_says(&said, &["unsealed", "--lab"]);
    let said = refused(rawbench().args(["ping", "--lab"]).args(keyed));
    assert_says(&said, &["unsealed", "send"]);
    for rounds in ["0", "many"] {
        let said = refused(rawbench().args(["send", "--lab", "--rounds", rounds]));
        assert_says(&said, &[rounds, "--rounds"]);
    }
}

#[test]
fn wrong_use_is_refused_with_a_reason() {
    let said = refused(rawbench().args(["send", "--lab", "--iface", "eth0"]));
    assert_says(&said, &["--lab", "--iface"]);
    for transport in ["udp", "packet_mmap"] {
        let args = ["recv", "--transport", transport, "--iface", "eth77"];
        assert_says(&refused(rawbench().args(args)), &["eth77", "lo"]);
    }
    let said = refused(rawbench().args(["send", "--transport", "packet_mmap"]));
    assert_says(&said, &["--iface"]);
    let said = refused(rawbench().args(["send", "--core", "0"]));
    assert_says(&said, &["--core", "--lab"]);
    let said = refused(rawbench().args(["send", "--seconds", "soon"]));
    assert_says(&said, &["soon", "seconds"]);
    let said = refused(rawbench().args(["send", "--rate", "fast"]));
    assert_says(&said, &["fast", "frames per second"]);
}

#[test]
fn what_does_not_fit_the_machine_is_refused() {
    if !labs() {
        return;
    }
    let said = refused(rawbench().args(["send", "--lab", "--frame", "4000"]));
    assert_says(&said, &["4000", "--mtu"]);
    let said = refused(rawbench().args(["send", "--lab", "--core", "99999"]));
    assert_says(&said, &["--core", "99999"]);
}

#[test]
fn without_privilege_raw_ethernet_names_the_capability() {
    let ethernet = dogwild_net::iface::list()
        .into_iter()
        .find(|iface| iface.up && iface.mac != [0; 6]);
    let Some(ethernet) = ethernet else {
        dogwild_lab::skip::skip("an Ethernet interface that is up");
        return;
    };
    let bin = tempfile::tempdir().expect("a folder");
    std::fs::set_permissions(bin.path(), std::fs::Permissions::from_mode(0o755)).expect("chmod");
    // A copy that any user may run, wherever this tree lies.
    let copy = bin.path().join("dogwild-rawbench");
    std::fs::copy(RAWBENCH, &copy).expect("a copy");
    let mut command = Command::new(copy);
    command.args(["send", "--transport", "packet_mmap", "--iface"]);
    command.arg(&ethernet.name);
    if dogwild_lab::enter::privileged() {
        command.uid(65_534).gid(65_534);
    }
    assert_says(&refused(&mut command), &["CAP_NET_RAW", "setcap"]);
}

#[test]
fn a_device_in_step_is_measured_beside_plain_copies() {
    let mut command = rawbench();
    command.args([
        "gpu",
        "--device",
        "host",
        "--weights",
        "20000",
        "--seconds",
        "0.2",
    ]);
    let line = report(&mut command);
    assert_eq!(
        (&line["weights"], &line["device"]),
        (&20000.into(), &"host device 0".into())
    );
    let [cycles, up, down, copy] = [
        "cycles_per_s",
        "sync_up_bytes_per_s",
        "sync_down_bytes_per_s",
        "copy_up_bytes_per_s",
    ]
    .map(|name| number(&line[name]));
    assert!(cycles > 0.0 && copy > 0.0 && down > up, "{line}");
    assert!((up / (cycles * 80_000.0) - 1.0).abs() < 1e-6, "{line}");
    assert!(
        (number(&line["up_share"]) - up / copy).abs() < 1e-9,
        "{line}"
    );
    assert_says(
        &refused(rawbench().args(["gpu", "--device", "gpu0"])),
        &["gpu0", "host"],
    );
    assert_says(
        &refused(rawbench().args(["gpu", "--weights", "0"])),
        &["--weights 0"],
    );
}

/// Bytes are known from the plan: what is sent is that, and 24 bytes for each message.
#[test]
fn the_reliable_path_is_measured_beside_plain_connections() {
    for (scheme, workers, times) in [
        ("ps", 2, 4),
        ("p2p", 2, 2),
        ("p2p", 3, 4),
        ("ps", 3, 6),
        ("cheapest", 3, 4),
        ("sfb", 2, 4),
    ] {
        let (weights, workers) = (40_000, workers.to_string());
        let mut command = rawbench();
        command.args(["reliable", "--weights", "40000", "--layers", "2"]);
        command.args(["--iterations", "3", "--rounds", "2", "--scheme", scheme]);
        let report = report(command.args(["--workers", &workers, "--step", "sgd"]));
        let rounds = report["rounds"].as_array().expect("rounds");
        assert_eq!(rounds.len(), 2, "{report}");
        for round in rounds {
            let [ours, plain] = ["ours", "plain"].map(|way| &round[way]);
            let bytes = f64::from(4 * times * weights);
            let sent = number(&ours["sent_bytes"]);
            // Alive messages may come in between.
            assert!(sent >= bytes && sent < bytes * 1.01, "{scheme}: {report}");
            let moved = number(&plain["sent_bytes"]);
            assert!((moved / sent - 1.0).abs() < 1e-3, "{report}");
            assert!(number(&ours["seconds"]) > 0.0 && number(&plain["seconds"]) > 0.0);
            assert!(round["gloo"].is_null(), "{report}");
        }
    }
    let mut command = rawbench();
    command.args(["reliable", "--weights", "40000", "--compare", "gloo"]);
    let report = report(command.args(["--iterations", "2", "--rounds", "1"]));
    let gloo = &report["rounds"][0]["gloo"];
    match report["not_compared"].as_str() {
        Some(why) => assert!(why.contains("python3-torch"), "{report}"),
        None => assert_eq!(number(&gloo["sent_bytes"]), 320_000.0, "{report}"),
    }
    assert_says(
        &refused(rawbench().args(["reliable", "--weights", "3"])),
        &["--weights 3", "8 or more"],
    );
    // What the coordinator refuses ends the other members too.
    let failed = rawbench()
        .args(["reliable", "--weights", "40000", "--scheme", "p2p"])
        .args(["--servers", "2"])
        .output()
        .expect("it starts");
    assert!(!failed.status.success());
    assert_says(&said(&failed), &["2 servers", "use fewer servers"]);
    assert_says(
        &refused(rawbench().args(["reliable", "--scheme", "ring"])),
        &["ring", "p2p"],
    );
}

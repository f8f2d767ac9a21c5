//! Names as documented, and values as counted.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use super::answer::Exchange;
use super::names::{Metric, Metrics};
use super::{Serving, collect::text};
use crate::job::testing::buffer;
use crate::watch::{DROPS_AT, PeerMeter, SolverMeter, StreamMeter};
use crate::weights::Role;
use crate::wire::DropReason;

fn row(metric: &Metric) -> String {
    let labels: Vec<String> = metric.labels.iter().map(|one| format!("`{one}`")).collect();
    let kind = if metric.is_counter {
        "counter"
    } else {
        "gauge"
    };
    format!(
        "| `{}` | {kind} | {} | {} |",
        metric.full_name(),
        labels.join(", "),
        metric.help
    )
}

#[test]
fn the_documented_metrics_are_those_that_there_are() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/reference/metrics.md");
    let documented = std::fs::read_to_string(file).expect("docs/reference/metrics.md");
    let documented: Vec<&str> = documented
        .lines()
        .filter(|line| line.starts_with("| `dogwild_"))
        .collect();
    let rows: Vec<String> = Metrics::all().iter().map(row).collect();
    assert_eq!(
        documented,
        rows,
        "docs/reference/metrics.md should have this table:\n{}",
        rows.join("\n")
    );
}

#[test]
fn names_are_unique_and_as_prometheus_wants_them() {
    let all = Metrics::all();
    let mut names: Vec<String> = all.iter().map(Metric::full_name).collect();
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    for name in &names {
        assert!(name.chars().all(allowed) && !name.contains("__"), "{name}");
        for unit in ["_ns", "_us", "_ms", "_bits", "permille", "millionths"] {
            assert!(
                !name.contains(&format!("{unit}_")) && !name.ends_with(unit),
                "{name}"
            );
        }
    }
    let before = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), before);
}

/// The dashboard asks for nothing that there is not.
#[test]
fn the_dashboard_knows_the_metrics() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/grafana.json");
    let text = std::fs::read_to_string(file).expect("deploy/grafana.json");
    let dashboard: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let all = Metrics::all();
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().expect("targets"));
    let mut asked = 0;
    for target in targets {
        let expr = target["expr"].as_str().expect("an expression");
        let words = expr.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        for name in words.filter(|word| word.starts_with("dogwild_")) {
            let metric = all.iter().find(|metric| metric.full_name() == name);
            let metric = metric.unwrap_or_else(|| panic!("there is no {name}: {expr}"));
            // A rate of what goes up and down means nothing.
            let is_rate = expr.contains(&format!("rate({name}"));
            assert_eq!(metric.is_counter, is_rate, "{expr}");
            let legend = target["legendFormat"].as_str().expect("a legend");
            for label in legend
                .split("{{")
                .skip(1)
                .filter_map(|part| part.split("}}").next())
            {
                assert!(
                    metric.labels.contains(&label),
                    "{legend}: {name} has no {label}"
                );
            }
            asked += 1;
        }
    }
    assert!(asked > 10, "{asked}");
}

/// The value of a series, as printed.
fn value<'t>(text: &'t str, series: &str) -> Option<&'t str> {
    let mut lines = text.lines();
    lines.find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))
}

#[test]
fn counters_get_their_units_and_labels() {
    let folder = tempfile::tempdir().expect("a folder");
    let shared = buffer(&folder.path().join("n0"), 7);
    let at = format!("buffer=\"{}\",node=\"3\"", shared.path().display());
    let stream = shared.claim_slot(Role::Stream, 3).expect("a slot");
    StreamMeter::CpuNs.set(stream.meters(), 1_500_000_000);
    StreamMeter::SilentNodes.set(stream.meters(), 0b101);
    StreamMeter::BytesSent.set(stream.meters(), u64::MAX);
    let late = DROPS_AT + DropReason::Late as usize;
    stream.meters()[late].store(4, std::sync::atomic::Ordering::Relaxed);
    let solver = shared.claim_slot(Role::Solver, 1).expect("a slot");
    SolverMeter::LossBits.set(solver.meters(), 0.25_f32.to_bits().into());
    PeerMeter::DeltasSent.set(shared.peer_meters(9), 8);
    let text = text(&Metrics::all(), std::slice::from_ref(&shared));
    for (series, expected) in [
        (format!("dogwild_stream_cpu_seconds_total{{{at}}}"), "1.5"),
        (format!("dogwild_stream_silent_nodes{{{at}}}"), "2.0"),
        (
            format!("dogwild_stream_sent_bytes_total{{{at}}}"),
            "18446744073709551615",
        ),
        (
            format!("dogwild_stream_dropped_frames_total{{{at},reason=\"late\"}}"),
            "4",
        ),
        (format!("dogwild_solver_loss{{{at},solver=\"1\"}}"), "0.25"),
        (
            format!("dogwild_peer_deltas_sent_total{{{at},peer=\"9\"}}"),
            "8",
        ),
        (format!("dogwild_weights{{{at}}}"), "10.0"),
        (
            format!("dogwild_component_up{{{at},role=\"solver\",index=\"1\"}}"),
            "1.0",
        ),
    ] {
        assert_eq!(value(&text, &series), Some(expected), "{series}\n{text}");
    }
    // No test has been made.
    assert!(!text.contains("dogwild_solver_accuracy_ratio{"), "{text}");
    // Nothing is told of a number that is no node.
    assert!(!text.contains("peer=\"8\""), "{text}");
}

/// What the server says to a request.
fn asked(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    write!(stream, "{request}\r\nHost: x\r\nConnection: close\r\n\r\n").expect("sent");
    let mut said = String::new();
    stream.read_to_string(&mut said).expect("an answer");
    said
}

#[test]
fn it_answers_and_ends_while_clients_do_not_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let shared = buffer(&folder.path().join("n0"), 7);
    let path = shared.path().to_owned();
    let serving = Serving::start("127.0.0.1:0", std::slice::from_ref(&path)).expect("served");
    let address = serving.address();
    // One who says nothing, and one who asks and never reads.
    let _silent = TcpStream::connect(&address).expect("it listens");
    let mut deaf = TcpStream::connect(&address).expect("it listens");
    for _ in 0..100 {
        let _ = write!(deaf, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    }
    for _ in 0..20 {
        let said = asked(&address, "GET /metrics HTTP/1.1");
        assert!(said.starts_with("HTTP/1.1 200 OK\r\n"), "{said}");
        assert!(said.contains("text/plain; version=0.0.4"), "{said}");
        assert!(said.contains("\ndogwild_build_info{version="), "{said}");
    }
    let head = asked(&address, "HEAD /metrics?x=y HTTP/1.0");
    assert!(head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"));
    let taken = Serving::start(&address, std::slice::from_ref(&path));
    let why = format!("{:#}", taken.err().expect("the address is taken"));
    assert!(why.contains(&address) && why.contains("in use"), "{why}");
    drop(serving);
    // It has nothing open: the buffer can go.
    drop(shared);
    crate::weights::remove_buffer(&path).expect("removed");
}

#[test]
fn what_is_no_scrape_is_told_what_is() {
    let serving = Serving::start("127.0.0.1:0", &[]).expect("served");
    let says = |request: &str, status: &str, why: &str| {
        let said = asked(&serving.address(), request);
        assert!(said.starts_with(&format!("HTTP/1.1 {status} ")), "{said}");
        assert!(said.contains(why), "{said}");
    };
    says("GET / HTTP/1.1", "404", "see /metrics");
    says("POST /metrics HTTP/1.1", "405", "only GET");
    says("GET /metrics", "400", "no request of HTTP/1");
    says("\u{16}\u{3}\u{1}", "400", "no request of HTTP/1");
    let long = format!("GET /metrics HTTP/1.1\r\nX: {}", "x".repeat(20_000));
    says(&long, "431", "16 KiB");
    let many = format!("GET /metrics HTTP/1.1{}", "\r\nX: x".repeat(200));
    says(&many, "431", "100 fields");
}

#[test]
fn who_comes_when_there_are_too_many_is_told() {
    let serving = Serving::start("127.0.0.1:0", &[]).expect("served");
    let address = serving.address();
    let connect = |_| TcpStream::connect(&address).expect("it listens");
    let silent: Vec<TcpStream> = (0..64).map(connect).collect();
    let mut said = String::new();
    let mut refused = connect(64);
    refused.read_to_string(&mut said).expect("an answer");
    assert!(said.starts_with("HTTP/1.1 503 "), "{said}");
    assert!(said.contains("too many connections"), "{said}");
    drop(silent);
    // Their threads end.
    while !asked_or_refused(&address).starts_with("HTTP/1.1 200 ") {
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// One who is refused may find the connection reset before it has asked.
fn asked_or_refused(address: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n");
    let mut said = String::new();
    let _ = stream.read_to_string(&mut said);
    said
}

/// One drips its request, one takes no more than the connection holds of its answer.
#[test]
fn slow_clients_are_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let pair = || {
        let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("a client");
        (client, listener.accept().expect("a connection").0)
    };
    let (mut drips, served) = pair();
    let dripping = std::thread::spawn(move || {
        while drips.write_all(b"G").is_ok() {
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    let (mut deaf, flooded) = pair();
    deaf.write_all(b"GET /metrics HTTP/1.1\r\n\r\n")
        .expect("sent");
    let huge = || Some("x".repeat(64 << 20));
    let flood = std::thread::spawn(move || Exchange::new(flooded).answer(huge));
    let heard = Exchange::new(served).answer(|| None);
    let late = |error: &std::io::Error| {
        matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock)
    };
    assert!(heard.is_err_and(|error| late(&error)));
    dripping.join().expect("it was closed");
    let sent = flood.join().expect("it ended");
    assert!(sent.is_err_and(|error| late(&error)));
}

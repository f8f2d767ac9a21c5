//! Names as documented, and values as counted.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::names::{Metric, Metrics};
use super::{Serving, collect::text};
use crate::watch::{DROPS_AT, PeerMeter, SolverMeter, StreamMeter};
use crate::weights::{BufferSpec, Created, DataKind, Existing, Manifest, Role, SharedWeights};
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

/// A buffer of one tensor in `folder`.
fn buffer(folder: &std::path::Path) -> SharedWeights {
    let spec = BufferSpec {
        session: 7,
        manifest: Manifest::new(vec![("w".to_owned(), vec![10])]).expect("a manifest"),
        data: DataKind::default(),
    };
    match SharedWeights::create(&folder.join("n0"), &spec, Existing::Refuse) {
        Ok(Created::New(new)) => new.ready(),
        other => panic!("{other:?}"),
    }
}

/// The value of a series, as printed.
fn value<'t>(text: &'t str, series: &str) -> Option<&'t str> {
    let mut lines = text.lines();
    lines.find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))
}

#[test]
fn counters_get_their_units_and_labels() {
    let folder = tempfile::tempdir().expect("a folder");
    let shared = buffer(folder.path());
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

/// A port that was free a moment ago.
fn free() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").to_string()
}

#[test]
fn it_answers_and_ends_while_a_client_does_not_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let shared = buffer(folder.path());
    let (path, address) = (shared.path().to_owned(), free());
    let serving = Serving::start(&address, std::slice::from_ref(&path)).expect("served");
    // One who says nothing, and one who asks and never reads.
    let _silent = TcpStream::connect(&address).expect("it listens");
    let mut deaf = TcpStream::connect(&address).expect("it listens");
    for _ in 0..100 {
        let _ = write!(deaf, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    }
    let said = asked(&address, "GET /metrics HTTP/1.1");
    assert!(said.starts_with("HTTP/1.1 200"), "{said}");
    assert!(said.contains("text/plain; version=0.0.4"), "{said}");
    assert!(said.contains("\ndogwild_build_info{version="), "{said}");
    let said = asked(&address, "GET / HTTP/1.1");
    assert!(
        said.starts_with("HTTP/1.1 404") && said.contains("see /metrics"),
        "{said}"
    );
    assert!(asked(&address, "POST /metrics HTTP/1.1").starts_with("HTTP/1.1 405"));
    let taken = Serving::start(&address, std::slice::from_ref(&path));
    let why = format!("{:#}", taken.err().expect("the address is taken"));
    assert!(why.contains(&address) && why.contains("in use"), "{why}");
    drop(serving);
    // It has nothing open: the buffer can go.
    drop(shared);
    crate::weights::remove_buffer(&path).expect("removed");
}

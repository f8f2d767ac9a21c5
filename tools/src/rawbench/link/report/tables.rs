//! What came out, as tables.

use dogwild::watch::screen::Columns;

use super::super::pings::Pings;
use super::super::run::{Flow, Run};
use super::{Latency, Outcome, Point};
use crate::rounds::Spread;

impl Outcome {
    /// For people.
    pub(super) fn table(&self) -> String {
        match self {
            // Nothing but the way back.
            Self::Send(run) if run.sent == 0 && run.back.is_some() => flows(run),
            Self::Send(run) => runs([("", Some(run.as_ref()))]).to_string() + &flows(run),
            Self::Sweep(points) => {
                let rows = points.iter().flat_map(|point| {
                    [
                        ("flat out", Some(&point.flat_out)),
                        ("loss-free", point.loss_free.as_ref()),
                    ]
                });
                let repeats: String = points.iter().filter_map(repeats).collect();
                runs(rows).to_string() + &repeats
            }
            Self::Ping(pings) => {
                let mut table = Columns::boxed(ROUND_TRIPS);
                table.row(round_trips(pings));
                table.to_string()
            }
            Self::Latency(latency) => loaded(latency),
        }
    }
}

const ROUND_TRIPS: [&str; 9] = [
    "payload",
    "sent",
    "lost",
    "p50 µs",
    "p90 µs",
    "p99 µs",
    "p99.9 µs",
    "max µs",
    "mean µs",
];

fn round_trips(pings: &Pings) -> [String; 9] {
    let us = |us: f64| format!("{us:.1}");
    [
        pings.frame_bytes.to_string(),
        pings.sent.to_string(),
        (pings.sent - pings.received).to_string(),
        us(pings.p50_us),
        us(pings.p90_us),
        us(pings.p99_us),
        us(pings.p999_us),
        us(pings.max_us),
        us(pings.mean_us),
    ]
}

fn runs<'a>(rows: impl IntoIterator<Item = (&'a str, Option<&'a Run>)>) -> Columns {
    let mut table = Columns::boxed([
        "",
        "payload",
        "sent/s",
        "received/s",
        "Gb/s",
        "lost",
        "ns/frame\nsend, recv",
    ]);
    for (name, run) in rows {
        let Some(run) = run else {
            table.row([name, "none found"]);
            continue;
        };
        let there = |text: String| if run.alone { "-".to_owned() } else { text };
        table.row([
            name.to_owned(),
            run.frame_bytes.to_string(),
            format!("{:.0}", run.sent_frames_per_s),
            there(format!("{:.0}", run.received_frames_per_s)),
            there(format!("{:.3}", run.received_bits_per_s / 1e9)),
            there(format!("{:.3} %", run.lost_share * 100.0)),
            format!(
                "{:.0}, {}",
                run.send_cpu_ns_per_frame,
                there(format!("{:.0}", run.receive_cpu_ns_per_frame))
            ),
        ]);
    }
    table
}

/// Where there is more than one flow or a loss: each of them, with how sure its loss is.
fn flows(run: &Run) -> String {
    let mut rows: Vec<(String, Flow)> = Vec::new();
    let numbered = |name: &str, flows: &[Flow]| -> Vec<(String, Flow)> {
        let name = |i: usize| format!("{name} {i}");
        let flows = (1..).zip(flows);
        flows.map(|(i, flow)| (name(i), flow.clone())).collect()
    };
    if run.sent > 0 {
        rows.extend(numbered("stream", &run.streams));
    }
    rows.extend(numbered("receiver", &run.receivers));
    if run.received > 0 && (run.lost_share > 0.0 || run.back.is_some()) {
        rows.push(("there".into(), run.there()));
    }
    rows.extend(run.back.clone().map(|back| ("back".into(), back)));
    if rows.is_empty() {
        return String::new();
    }
    let mut table = Columns::boxed([
        "",
        "sent",
        "received",
        "received/s",
        "Gb/s",
        "lost",
        "chance of a loss\n(95 % sure)",
    ]);
    for (name, flow) in rows {
        let [low, high] = flow.loss_between.map(|share| share * 100.0);
        table.row([
            name,
            flow.sent.to_string(),
            flow.received.to_string(),
            format!("{:.0}", flow.received_frames_per_s),
            format!("{:.3}", flow.received_bits_per_s / 1e9),
            format!("{:.3} %", flow.lost_share * 100.0),
            format!("{low:.3} to {high:.3} %"),
        ]);
    }
    match run.sent {
        0 => table.to_string(),
        _ => format!("\n{table}"),
    }
}

/// How far repeated searches lie apart.
fn repeats(point: &Point) -> Option<String> {
    if point.repeats.len() < 2 {
        return None;
    }
    let spread = Spread::of(point.repeats.iter().copied())?;
    Some(format!(
        "\n{} bytes, {} searches: {:.0} to {:.0} frames/s without loss, {:.2} % apart",
        point.flat_out.frame_bytes,
        point.repeats.len(),
        spread.lowest,
        spread.highest,
        (spread.highest - spread.lowest) / spread.median.max(1e-9) * 100.0,
    ))
}

fn loaded(latency: &Latency) -> String {
    let mut heads = vec!["load", "frames/s", "lost", "pings", "pings\nlost"];
    heads.extend(&ROUND_TRIPS[3..]);
    let mut table = Columns::boxed(heads);
    for load in &latency.loads {
        let mut row = vec![
            format!("{} %", load.per_cent),
            format!("{:.0}", load.run.sent_frames_per_s),
            format!("{:.3} %", load.run.lost_share * 100.0),
        ];
        if let Some(pings) = &load.run.pings {
            row.extend(round_trips(pings).into_iter().skip(1));
        }
        table.row(row);
    }
    let how = match &latency.search {
        Some(_) => "the highest rate found without loss",
        None => "as --highest says",
    };
    let highest = latency.highest_frames_per_s;
    format!("{table}\n100 % is {highest:.0} frames/s, {how}")
}

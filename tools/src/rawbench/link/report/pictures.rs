//! The report as a picture.

use dogwild::watch::curve::{Axis, Curve, Panel, Series};

use super::super::interval::{Interval, Way};
use super::super::pings::Pings;
use super::super::run::Run;
use super::{Latency, Load, Outcome, Point, Report};

impl Report {
    /// As a picture.
    pub(crate) fn curve(&self) -> Curve {
        let transport = &self.settings.transport;
        let panels = match &self.outcome {
            Outcome::Send(run) => sent(transport, run),
            Outcome::Ping(pings) => {
                vec![round_trips(vec![line(
                    transport,
                    pings.percentiles.clone(),
                )])]
            }
            Outcome::Sweep(points) => {
                let frames = sweep(points, |run| run.received_frames_per_s);
                let bits = sweep(points, |run| run.received_bits_per_s / 1e9);
                let by_size = |y, series| Panel {
                    x_axis: Axis::Log,
                    ..panel("payload, bytes", y, series)
                };
                vec![
                    by_size("frames/s received", frames),
                    by_size("Gb/s received", bits),
                ]
            }
            Outcome::Latency(latency) => loaded(latency),
        };
        Curve {
            title: self.title(),
            panels,
        }
    }
}

fn panel(x: &str, y: &str, series: Vec<Series>) -> Panel {
    Panel {
        series,
        x_label: x.to_owned(),
        y_label: y.to_owned(),
        ..Panel::default()
    }
}

fn line(name: &str, points: Vec<(f64, f64)>) -> Series {
    Series {
        name: name.to_owned(),
        points,
    }
}

fn round_trips(series: Vec<Series>) -> Panel {
    Panel {
        y_axis: Axis::Log,
        ..panel("per cent of round trips", "µs at most", series)
    }
}

/// The rate over time; with `-i` what went in each interval instead, and what was lost.
fn sent(transport: &str, run: &Run) -> Vec<Panel> {
    // Streams and receivers have lines of their own; sums and what is omitted have none.
    let shown: Vec<&Interval> = run
        .intervals
        .iter()
        .filter(|one| !one.omitted && one.id.is_some())
        .collect();
    let mut names: Vec<(Option<u32>, Way)> = shown.iter().map(|one| (one.id, one.way)).collect();
    names.sort_by_key(|&(id, way)| (way == Way::Back, id));
    names.dedup();
    let lines = |y: &dyn Fn(&Interval) -> Option<f64>| -> Vec<Series> {
        let one = |&(id, way): &(Option<u32>, Way)| {
            let of = shown.iter().filter(|one| one.id == id && one.way == way);
            let points = of.filter_map(|one| Some((one.end_s, y(one)?))).collect();
            let way = if way == Way::Back { "back" } else { "there" };
            line(&format!("{} {way}", id.unwrap_or(0)), points)
        };
        names.iter().map(one).collect()
    };
    if shown.is_empty() {
        let parts = vec![line(transport, run.parts.clone())];
        return vec![panel("seconds", "frames/s sent", parts)];
    }
    let rates = lines(&|one| Some(one.bits_per_s / 1e6));
    let mut panels = vec![panel("seconds", "Mb/s in the interval", rates)];
    if shown.iter().any(|one| one.lost_share.is_some()) {
        let losses = lines(&|one| one.lost_share.map(|share| share * 100.0));
        panels.push(panel("seconds", "% lost in the interval", losses));
    }
    panels
}

/// The distribution at each load, and its longest round trips.
fn loaded(latency: &Latency) -> Vec<Panel> {
    let lines = |points: &dyn Fn(&Pings) -> Vec<(f64, f64)>| -> Vec<Series> {
        let one = |load: &Load| {
            let pings = load.run.pings.as_ref()?;
            Some(line(&format!("{} % load", load.per_cent), points(pings)))
        };
        latency.loads.iter().filter_map(one).collect()
    };
    let longest = |pings: &Pings| {
        let rows = pings.distribution.iter();
        let below = rows.filter(|(_, quantile, _)| *quantile < 1.0);
        below
            .map(|&(us, quantile, _)| (1.0 / (1.0 - quantile), us))
            .collect()
    };
    vec![
        round_trips(lines(&|pings| pings.percentiles.clone())),
        Panel {
            x_axis: Axis::Log,
            y_axis: Axis::Log,
            ..panel(
                "one round trip of so many",
                "takes longer, µs",
                lines(&longest),
            )
        },
    ]
}

/// The two lines of a sweep.
fn sweep(points: &[Point], y: impl Fn(&Run) -> f64) -> Vec<Series> {
    let of = |run: &Run| (run.frame_bytes as f64, y(run));
    let flat = points.iter().map(|point| of(&point.flat_out)).collect();
    let free = points.iter().filter_map(|point| point.loss_free.as_ref());
    vec![
        line("flat out", flat),
        line("loss-free", free.map(of).collect()),
    ]
}

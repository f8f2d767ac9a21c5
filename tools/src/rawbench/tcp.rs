//! `dogwild-rawbench tcp`: what a TCP flow keeps of a slow link that the stream uses too, and how
//! soon the stream finds the link's rate: alone, with TCP, and when TCP has gone.
//!
//! Two hosts of a lab, their link limited by `tbf`. TCP goes from host 0 to host 1, the stream both
//! ways.

mod flow;

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use dogwild::cli::args::{seconds, share};
use dogwild::watch::StreamMeter;
use dogwild::watch::screen::Columns;
use dogwild_lab::{Lab, Spec};
use serde::Serialize;

pub(crate) use self::flow::{FlowArgs, SinkArgs};
use super::fleet::{Fleet, FleetArgs, Reading};

/// Time between two looks at the stream's rate.
const LOOK: Duration = Duration::from_millis(200);
/// The stream has found the link's rate when it sends this share of what it sends alone.
const FOUND: f64 = 0.9;

/// Arguments of `dogwild-rawbench tcp`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    fleet: FleetArgs,
    /// Rate of the link, in tc's words
    #[arg(long, value_name = "RATE", default_value = "100mbit")]
    link: String,
    /// Bytes that wait at the link before frames are dropped
    #[arg(long, value_name = "BYTES", default_value_t = 256 << 10)]
    queue: u32,
    /// Share of the frames that get lost, as 0.01 or 1%
    #[arg(long, allow_hyphen_values = true, value_name = "SHARE", default_value = "0", value_parser = share)]
    loss: f64,
    /// Congestion control of TCP (`sysctl net.ipv4.tcp_available_congestion_control` lists them)
    #[arg(long, value_name = "NAME", default_value = "cubic")]
    congestion: String,
    /// Seconds of each measurement
    #[arg(long, value_name = "S", default_value = "10", value_parser = seconds)]
    seconds: f64,
    /// Machine-readable output
    #[arg(long)]
    json: bool,
}

/// What was measured; rates are of payload that left host 0.
#[derive(Debug, Serialize)]
struct Report {
    link: String,
    queue_bytes: u32,
    loss: f64,
    congestion: String,
    transport: String,
    seconds: f64,
    /// What TCP delivers alone, and with the stream.
    tcp_alone_bytes_per_s: f64,
    tcp_beside_bytes_per_s: f64,
    /// The second as a share of the first: over the whole time, and over its second half.
    tcp_keeps: f64,
    tcp_keeps_settled: f64,
    /// What TCP delivers with the stream in each tenth of the time.
    tcp_parts_bytes_per_s: Vec<f64>,
    /// What the stream sends alone, with TCP, and after it.
    stream_alone_bytes_per_s: f64,
    stream_beside_bytes_per_s: f64,
    stream_after_bytes_per_s: f64,
    /// Whole exchanges of the buffer per second, alone.
    cycles_per_s: f64,
    /// Share of positions that never arrived, alone.
    positions_lost_share: f64,
    /// Time in queues of the network as the stream measures it, alone and with TCP, µs.
    queued_alone_us: u64,
    queued_beside_us: u64,
    /// Time until the stream sent 90 % of what it sends alone: from its first frame on, and after
    /// TCP ended.
    found_after_s: f64,
    back_after_s: f64,
}

impl Args {
    pub(crate) fn run(mut self) -> Result<()> {
        self.fleet.lab = true;
        if self.fleet.nodes != 2 {
            bail!("a link has two ends: leave --nodes at 2");
        }
        if self.fleet.transport.is_raw() {
            // A token bucket at the sender is skipped by PACKET_QDISC_BYPASS; the one at the port
            // is not.
            log::info!("raw Ethernet: the link is limited at the port of the receiver only");
        }
        let report = self.measure()?;
        if self.json {
            dogwild_lab::say!("{}", serde_json::to_string_pretty(&report)?);
        } else {
            dogwild_lab::say!("{}", report.table());
        }
        Ok(())
    }

    fn make_lab(&self) -> Result<Lab> {
        Ok(Lab::up(&Spec {
            mtu: self.fleet.mtu,
            rate: Some(self.link.clone()),
            queue_bytes: Some(self.queue),
            loss: (self.loss > 0.0).then_some(self.loss),
            ..Spec::of(2)
        })?)
    }

    fn measure(&self) -> Result<Report> {
        let lab = self.make_lab()?;
        let alone = mean(&self.flow(&lab)?.finish()?);
        let began = Instant::now();
        let mut fleet = Fleet::start(&self.fleet, Some(lab), &[])?;
        let mut watch = Watch::new(&fleet, began);
        watch.look_for(&fleet, self.seconds);
        let found = watch.take();
        let lab = fleet.lab.as_ref().expect("made above");
        let flow = self.flow(lab)?;
        watch.look_for(&fleet, self.seconds);
        let tcp_parts = flow.finish()?;
        let tcp_beside = mean(&tcp_parts);
        let tcp_settled = mean(&tcp_parts[flow::PARTS / 2..]);
        let beside = watch.take();
        watch.look_for(&fleet, self.seconds);
        let after = watch.take();
        fleet.stop()?;
        // The first half is for finding the rate.
        let stream_alone = found.rate_of_second_half();
        let when = |looks: &Looks| looks.when(FOUND * stream_alone).unwrap_or(f64::INFINITY);
        Ok(Report {
            link: self.link.clone(),
            queue_bytes: self.queue,
            loss: self.loss,
            congestion: self.congestion.clone(),
            transport: self.fleet.transport.name().into(),
            seconds: self.seconds,
            tcp_alone_bytes_per_s: alone,
            tcp_beside_bytes_per_s: tcp_beside,
            tcp_keeps: tcp_beside / alone,
            tcp_keeps_settled: tcp_settled / alone,
            tcp_parts_bytes_per_s: tcp_parts,
            stream_alone_bytes_per_s: stream_alone,
            stream_beside_bytes_per_s: beside.rate_of_second_half(),
            stream_after_bytes_per_s: after.rate_of_second_half(),
            cycles_per_s: found.per_s_of_second_half(StreamMeter::Cycles),
            positions_lost_share: found.lost_in_second_half(),
            queued_alone_us: found.last(StreamMeter::QueuedUs),
            queued_beside_us: beside.last(StreamMeter::QueuedUs),
            found_after_s: when(&found),
            back_after_s: when(&after),
        })
    }

    fn flow(&self, lab: &Lab) -> Result<flow::Flow> {
        flow::Flow::start(lab, &self.congestion, self.seconds)
    }
}

/// Looks at the counters of node 0, again and again.
struct Watch {
    began: Instant,
    readings: Vec<Reading>,
}

/// What was seen in one phase.
struct Looks {
    began: Instant,
    readings: Vec<Reading>,
}

impl Watch {
    fn new(fleet: &Fleet, began: Instant) -> Self {
        let mut watch = Self {
            began,
            readings: Vec::new(),
        };
        watch.look(fleet);
        watch
    }

    fn look(&mut self, fleet: &Fleet) {
        self.readings.extend(fleet.read().into_iter().next());
    }

    fn look_for(&mut self, fleet: &Fleet, seconds: f64) {
        let end = Instant::now() + Duration::from_secs_f64(seconds);
        while Instant::now() < end {
            std::thread::sleep(LOOK);
            self.look(fleet);
        }
    }

    /// Ends a phase; the next one begins now.
    fn take(&mut self) -> Looks {
        Looks {
            began: std::mem::replace(&mut self.began, Instant::now()),
            readings: std::mem::take(&mut self.readings),
        }
    }
}

impl Looks {
    fn second_half(&self) -> Option<(&Reading, &Reading)> {
        Some((
            self.readings.get(self.readings.len() / 2)?,
            self.readings.last()?,
        ))
    }

    fn per_s_of_second_half(&self, meter: StreamMeter) -> f64 {
        let ends = self.second_half();
        ends.map_or(0.0, |(first, last)| last.per_s(first, meter))
    }

    fn rate_of_second_half(&self) -> f64 {
        self.per_s_of_second_half(StreamMeter::BytesSent)
    }

    fn lost_in_second_half(&self) -> f64 {
        let missed = self.per_s_of_second_half(StreamMeter::PositionsMissed);
        let taken = self.per_s_of_second_half(StreamMeter::PositionsTaken);
        missed / (missed + taken).max(f64::MIN_POSITIVE)
    }

    fn last(&self, meter: StreamMeter) -> u64 {
        self.readings.last().map_or(0, |reading| reading.now(meter))
    }

    /// Time from the beginning of the phase until so much went per second, s.
    fn when(&self, bytes_per_s: f64) -> Option<f64> {
        let pairs = self.readings.windows(2);
        let reached = pairs
            .filter(|pair| pair[1].per_s(&pair[0], StreamMeter::BytesSent) >= bytes_per_s)
            .map(|pair| (pair[1].at - self.began).as_secs_f64());
        reached.min_by(f64::total_cmp)
    }
}

fn mean(rates: &[f64]) -> f64 {
    rates.iter().sum::<f64>() / rates.len() as f64
}

impl Report {
    fn table(&self) -> String {
        let title = format!(
            "{} link, {} KiB wait, {} with {}",
            self.link,
            self.queue_bytes >> 10,
            self.congestion,
            self.transport
        );
        let mut table = Columns::boxed([title, "host 0".to_owned()]);
        let mb = |rate: f64| format!("{:.2}", rate / 1e6);
        let ms = |us: u64| format!("{:.1}", us as f64 / 1e3);
        for (name, value) in [
            ("TCP alone, MB/s", mb(self.tcp_alone_bytes_per_s)),
            ("TCP with the stream, MB/s", mb(self.tcp_beside_bytes_per_s)),
            (
                "TCP keeps, share of alone; of the second half",
                format!(
                    "{:.0} %; {:.0} %",
                    self.tcp_keeps * 100.0,
                    self.tcp_keeps_settled * 100.0
                ),
            ),
            ("stream alone, MB/s", mb(self.stream_alone_bytes_per_s)),
            ("stream with TCP, MB/s", mb(self.stream_beside_bytes_per_s)),
            ("stream after TCP, MB/s", mb(self.stream_after_bytes_per_s)),
            ("cycles/s, alone", format!("{:.1}", self.cycles_per_s)),
            (
                "positions lost, alone",
                format!("{:.2} %", self.positions_lost_share * 100.0),
            ),
            (
                "in queues alone; with TCP, ms",
                format!(
                    "{}; {}",
                    ms(self.queued_alone_us),
                    ms(self.queued_beside_us)
                ),
            ),
            (
                "rate found; found again after TCP, s",
                format!("{:.1}; {:.1}", self.found_after_s, self.back_after_s),
            ),
        ] {
            table.row([name.to_owned(), value]);
        }
        table.to_string()
    }
}

//! The values of all metrics at one moment, as text.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::EncodeMetric;
use prometheus_client::encoding::{DescriptorEncoder, prometheus_text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use super::names::{Metric, Metrics, Value};
use crate::poseidon::TrafficReport;
use crate::watch::drops;
use crate::weights::{Role, SharedWeights, SlotInfo};

/// One series: the values of its labels, and its own.
type Series = (Vec<String>, Value);

/// Metrics with what they are now, by their place in the order of all.
#[derive(Debug, Default)]
struct Scrape(BTreeMap<String, (Metric, Vec<Series>)>);

impl Scrape {
    /// With the version of this program.
    fn of_build(metrics: &Metrics) -> Self {
        let mut scrape = Self::default();
        let version = vec![env!("CARGO_PKG_VERSION").to_owned()];
        scrape.add(&metrics.build, version, Value::Whole(1));
        scrape
    }

    fn text(self) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        prometheus_text::encode(&mut text, &registry).expect("a String takes any text");
        text
    }

    fn add(&mut self, metric: &Metric, labels: Vec<String>, value: Value) {
        let entry = self.0.entry(metric.full_name());
        let (_, series) = entry.or_insert_with(|| (metric.clone(), Vec::new()));
        series.push((labels, value));
    }

    /// What counters `words` say, under these labels.
    fn add_all(&mut self, metrics: &[Metric], labels: &[String], words: &[u64]) {
        for metric in metrics {
            if let Some(value) = metric.value(words) {
                self.add(metric, labels.to_vec(), value);
            }
        }
    }

    fn add_buffer(&mut self, metrics: &Metrics, shared: &SharedWeights) {
        let slots = shared.slots();
        let mut streamers = slots.iter().filter(|slot| slot.role == Role::Stream);
        // A buffer without a streamer is that of the only node.
        let node = streamers.next().map_or(0, |slot| slot.index);
        let labels = [shared.path().display().to_string(), node.to_string()];
        let globals = shared.globals();
        let values = [
            shared.used() as u64,
            globals.iterations(),
            globals.local_iterations.load(Relaxed),
            globals.target_iterations.load(Relaxed),
        ];
        for (metric, value) in metrics.buffer.iter().zip(values) {
            self.add(metric, labels.to_vec(), Value::Whole(value));
        }
        for slot in &slots {
            self.add_component(metrics, shared, &labels, slot);
        }
    }

    fn add_component(
        &mut self,
        metrics: &Metrics,
        shared: &SharedWeights,
        labels: &[String; 2],
        slot: &SlotInfo,
    ) {
        let and = |more: &[String]| [labels.as_slice(), more].concat();
        let (words, index) = (&slot.meters, slot.index.to_string());
        let up = and(&[slot.role.to_string(), index.clone()]);
        self.add(&metrics.up, up, Value::Whole(slot.alive.into()));
        match slot.role {
            Role::Stream => {
                self.add_all(&metrics.stream, labels, words);
                for (reason, frames) in drops(words) {
                    let labels = and(&[reason.name().to_owned()]);
                    self.add(&metrics.dropped, labels, Value::Whole(frames));
                }
                self.add_peers(metrics, shared, labels);
            }
            Role::Gpu => self.add_all(&metrics.gpu, &and(&[index]), words),
            Role::Solver | Role::Other => {
                let labels = and(&[index]);
                self.add_all(&metrics.solver, &labels, words);
                self.add_all(&metrics.sync, &labels, words);
            }
            Role::Snapshot => {}
        }
    }

    /// What the streamer tells of other nodes.
    fn add_peers(&mut self, metrics: &Metrics, shared: &SharedWeights, labels: &[String; 2]) {
        for (peer, words) in shared.peers() {
            let labels = [labels.as_slice(), &[peer.to_string()]].concat();
            self.add_all(&metrics.peer, &labels, &words);
        }
    }
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (metric, series) in self.0.values() {
            let kind = if metric.is_counter {
                MetricType::Counter
            } else {
                MetricType::Gauge
            };
            let unit = metric.unit.map(|unit| Unit::Other(unit.to_owned()));
            let mut family =
                encoder.encode_descriptor(&metric.name, &metric.help, unit.as_ref(), kind)?;
            for (values, value) in series {
                let labels: Vec<(&str, &str)> = metric
                    .labels
                    .iter()
                    .copied()
                    .zip(values.iter().map(String::as_str))
                    .collect();
                let one = family.encode_family(&labels)?;
                match (metric.is_counter, *value) {
                    (true, Value::Whole(n)) => ConstCounter::new(n).encode(one)?,
                    (true, Value::Real(x)) => ConstCounter::new(x).encode(one)?,
                    (false, Value::Whole(n)) => ConstGauge::new(n as f64).encode(one)?,
                    (false, Value::Real(x)) => ConstGauge::new(x).encode(one)?,
                }
            }
        }
        Ok(())
    }
}

/// What the metrics of these buffers are now, in the text format of Prometheus.
pub(super) fn text(metrics: &Metrics, buffers: &[SharedWeights]) -> String {
    let mut scrape = Scrape::of_build(metrics);
    for shared in buffers {
        scrape.add_buffer(metrics, shared);
    }
    scrape.text()
}

/// The same of server `index`, which has told what it has sent and received, or nothing yet.
pub(super) fn text_of_server(
    metrics: &Metrics,
    index: u16,
    report: Option<&TrafficReport>,
) -> String {
    let mut scrape = Scrape::of_build(metrics);
    let server = index.to_string();
    let Some(report) = report else {
        return scrape.text();
    };
    for layer in &report.layers {
        let values = [
            layer.sent_bytes,
            layer.received_bytes,
            layer.sent_messages,
            layer.received_messages,
        ];
        for (metric, value) in metrics.layer.iter().zip(values) {
            let labels = vec![server.clone(), layer.layer.clone()];
            scrape.add(metric, labels, Value::Whole(value));
        }
    }
    for (worker, dropped) in report.dropped_updates.iter().enumerate() {
        let labels = vec![server.clone(), worker.to_string()];
        scrape.add(&metrics.late, labels, Value::Whole(*dropped));
    }
    let values = [report.queued_bytes_max, report.checkpoints_lacking];
    for (metric, value) in metrics.server.iter().zip(values) {
        scrape.add(metric, vec![server.clone()], Value::Whole(value));
    }
    scrape.text()
}

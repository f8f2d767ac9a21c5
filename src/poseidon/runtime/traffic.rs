//! Bytes on the wire, counted per layer where they are sent and received.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::{Deserialize, Serialize};

use crate::poseidon::{HEADER_LEN, Message, MessageKind, Plan, Scheme};

/// Messages and the bytes of their payloads, one way.
#[derive(Debug, Default)]
struct Count {
    messages: AtomicU64,
    bytes: AtomicU64,
}

impl Count {
    fn add(&self, message: &Message) {
        self.messages.fetch_add(1, Relaxed);
        let bytes = message.body.bytes().len() as u64;
        self.bytes.fetch_add(bytes, Relaxed);
    }

    fn get(&self) -> (u64, u64) {
        (self.messages.load(Relaxed), self.bytes.load(Relaxed))
    }
}

/// The traffic of one member.
#[derive(Debug)]
pub(super) struct Traffic {
    names: Vec<(String, Scheme)>,
    pair_layer: Vec<usize>,
    start: u64,
    /// Per layer, and one more for everything that is not training: sent and received.
    counts: Vec<[Count; 2]>,
    /// Checkpoints for which the disk had no room.
    lacking: AtomicU64,
}

/// Traffic of one layer of one member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerTraffic {
    /// The layer; `control` for messages that belong to none: `Hello`, first weights, `Alive`.
    pub layer: String,
    /// How its gradient travels.
    pub scheme: Option<Scheme>,
    /// Messages that were sent about this layer.
    pub sent_messages: u64,
    /// Bytes of their payloads.
    pub sent_bytes: u64,
    /// Messages that were received about this layer.
    pub received_messages: u64,
    /// Bytes of their payloads.
    pub received_bytes: u64,
}

/// What a member has sent and received.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrafficReport {
    /// Bytes of the header of each message, which the payloads do not count.
    pub header_bytes: usize,
    /// One entry for each layer, and one for `control`.
    pub layers: Vec<LayerTraffic>,
    /// Updates of each worker that came too late and were dropped (servers).
    pub dropped_updates: Vec<u64>,
    /// Checkpoints for which the disk had no room.
    #[serde(default)]
    pub checkpoints_lacking: u64,
    /// Bytes that waited for one slow worker at once, at most (servers).
    #[serde(default)]
    pub queued_bytes_max: u64,
    /// Weights that newer ones replaced before they were sent to a slow worker (servers).
    #[serde(default)]
    pub replaced_weights: u64,
}

impl TrafficReport {
    /// Bytes sent and received, headers included, those of TCP not.
    pub fn totals(&self) -> [u64; 2] {
        let header = self.header_bytes as u64;
        let sent = self
            .layers
            .iter()
            .map(|l| l.sent_bytes + l.sent_messages * header);
        let received = self
            .layers
            .iter()
            .map(|l| l.received_bytes + l.received_messages * header);
        [sent.sum(), received.sum()]
    }
}

impl Traffic {
    /// Zero counts of a run that begins after `start` steps.
    pub(super) fn new(plan: &Plan, start: u64) -> Self {
        let names: Vec<_> = plan
            .layers
            .iter()
            .map(|l| (l.name.clone(), l.scheme))
            .collect();
        Self {
            counts: (0..=names.len()).map(|_| Default::default()).collect(),
            names,
            pair_layer: plan.pairs().iter().map(|pair| pair.layer).collect(),
            start,
            lacking: AtomicU64::new(0),
        }
    }

    /// Counts a checkpoint for which the disk had no room.
    pub(super) fn lacks_checkpoint(&self) {
        self.lacking.fetch_add(1, Relaxed);
    }

    /// Counts a message that is sent.
    pub(super) fn sent(&self, message: &Message) {
        self.counts[self.layer(message)][0].add(message);
    }

    /// Counts a message that was received.
    pub(super) fn received(&self, message: &Message) {
        self.counts[self.layer(message)][1].add(message);
    }

    /// The layer of a message, or one past the last for control messages.
    pub(super) fn layer(&self, message: &Message) -> usize {
        let subject = message.subject as usize;
        let control = self.names.len();
        match message.kind {
            MessageKind::Factors => subject.min(control),
            // The first weights are not part of any step.
            MessageKind::Weights if message.clock == self.start => control,
            MessageKind::Weights | MessageKind::Gradient | MessageKind::Bits => {
                self.pair_layer.get(subject).copied().unwrap_or(control)
            }
            _ => control,
        }
    }

    /// Bytes sent and received so far, headers included.
    pub(super) fn totals(&self) -> [u64; 2] {
        [0, 1].map(|way| {
            let counts = self.counts.iter().map(|count| count[way].get());
            counts
                .map(|(messages, bytes)| messages * HEADER_LEN as u64 + bytes)
                .sum()
        })
    }

    /// The counts as a report.
    pub(super) fn report(&self) -> TrafficReport {
        let control = ("control".to_owned(), None);
        let named = self
            .names
            .iter()
            .map(|(name, scheme)| (name.clone(), Some(*scheme)));
        let layers = named
            .chain([control])
            .zip(&self.counts)
            .map(|((layer, scheme), count)| {
                let [
                    (sent_messages, sent_bytes),
                    (received_messages, received_bytes),
                ] = [count[0].get(), count[1].get()];
                LayerTraffic {
                    layer,
                    scheme,
                    sent_messages,
                    sent_bytes,
                    received_messages,
                    received_bytes,
                }
            });
        TrafficReport {
            header_bytes: HEADER_LEN,
            layers: layers.collect(),
            dropped_updates: Vec::new(),
            checkpoints_lacking: self.lacking.load(Relaxed),
            queued_bytes_max: 0,
            replaced_weights: 0,
        }
    }
}

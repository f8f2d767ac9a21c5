//! What outlives a streamer, as values; and the one place in which streamers are run.
//!
//! A [`Streamer`] borrows a buffer and a state file. All copies of a node's streamer borrow the
//! same two, which belong to an [`Arena`]: before one of them takes a step, the memory of its state
//! is put there, and afterwards read back. So a state is a few copies of values, and nothing in the
//! streamer knows of it.
//!
//! Invariant: of the state file all is copied but the journal and halves of deltas. Both are idle
//! between two steps.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::super::*;
use crate::weights::{ForkRecord, StreamState, WeightsView};

/// The numbers of one chunk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) version: u32,
    pub(super) epoch: u32,
    pub(super) seq: u8,
    pub(super) flags: u8,
    pub(super) given: u16,
    pub(super) begun: (u32, u32),
    pub(super) applied: Vec<u8>,
    pub(super) w: Vec<u32>,
    pub(super) last: Vec<u32>,
    pub(super) sent: Vec<u32>,
}

/// What is known of one node and its range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OfNode {
    pub(super) life: u64,
    pub(super) promised: u32,
    pub(super) streamed: u32,
}

/// Weights and state file of one node.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Memory {
    pub(super) chunks: Vec<Chunk>,
    pub(super) nodes: Vec<OfNode>,
    /// What is kept of ranges that had two masters, the oldest first.
    pub(super) forks: Vec<ForkRecord>,
}

impl Memory {
    /// That of a node which begins.
    pub(super) fn new(config: &Config) -> Self {
        let weights = vec![0; config.chunk_weights as usize];
        let places = usize::from(config.places());
        let chunk = Chunk {
            applied: vec![0; places],
            w: weights.clone(),
            last: weights.clone(),
            sent: weights,
            ..Chunk::default()
        };
        Self {
            chunks: vec![chunk; config.chunks as usize],
            nodes: vec![OfNode::default(); places],
            forks: Vec::new(),
        }
    }

    /// A weight of the buffer.
    pub(super) fn w(&self, chunk: usize, i: usize) -> f32 {
        f32::from_bits(self.chunks[chunk].w[i])
    }

    /// The epoch in which the node streams a range; 0: it does not.
    pub(super) fn streamed(&self, range: u16) -> u32 {
        self.nodes[usize::from(range)].streamed
    }
}

/// The buffers and state files that streamers of a test borrow.
pub(super) struct Arena {
    config: Config,
    places: Vec<Place>,
}

/// Those of one node.
struct Place {
    state: &'static StreamState,
    weights: WeightsView<'static>,
    /// What is there now.
    holds: Option<Arc<Memory>>,
}

impl Arena {
    /// State files go to `folder`. What is borrowed stays until the process ends.
    pub(super) fn new(config: &Config, folder: &Path) -> Self {
        let len = config.chunks as usize * config.chunk_weights as usize;
        let place = |node: u16| {
            let config = Config {
                node,
                ..config.clone()
            };
            let path = folder.join(format!("n{node}.stream"));
            let state = StreamState::open_or_create(&path, &config.state_spec(len));
            let words = std::iter::repeat_with(|| AtomicU32::new(0)).take(len);
            let words: &'static [AtomicU32] = Vec::leak(words.collect());
            Place {
                state: Box::leak(Box::new(state.expect("a state file").0)),
                weights: WeightsView::of(words),
                holds: None,
            }
        };
        Self {
            config: config.clone(),
            places: (0..config.places()).map(place).collect(),
        }
    }

    /// A streamer of `node` in its life number `life`, which begins on `memory`.
    pub(super) fn begin(
        &mut self,
        node: u16,
        life: u8,
        memory: &Arc<Memory>,
    ) -> (Streamer<'static>, Arc<Memory>) {
        let incarnation = 1 + u64::from(node) + 1_000_003 * u64::from(life);
        let config = Config {
            node,
            incarnation,
            ..self.config.clone()
        };
        self.with(node, memory, |weights, state| {
            let mut streamer = Streamer::new(config, weights, state);
            streamer.slave.forget_statistics();
            streamer
        })
    }

    /// Runs `step` of a streamer of `node` over `memory`. Gives what the memory is then.
    pub(super) fn with<R>(
        &mut self,
        node: u16,
        memory: &Arc<Memory>,
        step: impl FnOnce(WeightsView<'static>, &'static StreamState) -> R,
    ) -> (R, Arc<Memory>) {
        let place = &mut self.places[usize::from(node)];
        // Gone, should the step panic.
        let holds = place.holds.take();
        if !holds.is_some_and(|holds| Arc::ptr_eq(&holds, memory)) {
            place.put(memory);
        }
        let result = step(place.weights, place.state);
        let now = place.read(memory);
        place.holds = Some(now.clone());
        (result, now)
    }
}

impl Place {
    fn views(&self, chunk: usize, len: usize) -> [WeightsView<'static>; 3] {
        let at = chunk * len;
        [self.weights, self.state.last(), self.state.sent()].map(|view| view.slice(at, len))
    }

    fn put(&self, memory: &Memory) {
        for (at, chunk) in memory.chunks.iter().enumerate() {
            let state = self.state.chunk(at as u32);
            state.version.store(chunk.version, Relaxed);
            state.epoch.store(chunk.epoch, Relaxed);
            state.seq.store(chunk.seq, Relaxed);
            state.flags.store(chunk.flags, Relaxed);
            state.given.store(chunk.given, Relaxed);
            state.begun_epoch.store(chunk.begun.0, Relaxed);
            state.begun_version.store(chunk.begun.1, Relaxed);
            for (to, from) in self.state.applied(at as u32).iter().zip(&chunk.applied) {
                to.store(*from, Relaxed);
            }
            let values = [&chunk.w, &chunk.last, &chunk.sent];
            for (view, values) in self.views(at, chunk.w.len()).into_iter().zip(values) {
                for (to, from) in view.words().iter().zip(values) {
                    to.store(*from, Relaxed);
                }
            }
        }
        for (at, node) in (0..).zip(&memory.nodes) {
            let state = self.state.node(at);
            state.life.store(node.life, Relaxed);
            state.promised.store(node.promised, Relaxed);
            state.streamed.store(node.streamed, Relaxed);
        }
        let forks = self.state.forks();
        let there = forks.records();
        if there != memory.forks {
            there.iter().for_each(|record| forks.remove(&record.key));
            let put = |record| forks.put(record).expect("a file in memory");
            memory.forks.iter().for_each(put);
        }
    }

    /// What is there now: `before` itself, if that is what it was.
    fn read(&self, before: &Arc<Memory>) -> Arc<Memory> {
        let idle = self.state.journal().pending().is_none() && !self.state.has_partials();
        assert!(idle, "a step leaves nothing half done");
        let chunk = |(at, chunk): (usize, &Chunk)| {
            let state = self.state.chunk(at as u32);
            let values = self.views(at, chunk.w.len()).map(|view| {
                let words = view.words().iter();
                words.map(|word| word.load(Relaxed)).collect()
            });
            let [w, last, sent] = values;
            let applied = self.state.applied(at as u32).iter();
            Chunk {
                version: state.version.load(Relaxed),
                epoch: state.epoch.load(Relaxed),
                seq: state.seq.load(Relaxed),
                flags: state.flags.load(Relaxed),
                given: state.given.load(Relaxed),
                begun: (
                    state.begun_epoch.load(Relaxed),
                    state.begun_version.load(Relaxed),
                ),
                applied: applied.map(|ack| ack.load(Relaxed)).collect(),
                w,
                last,
                sent,
            }
        };
        let node = |at: usize| {
            let state = self.state.node(at as u16);
            OfNode {
                life: state.life.load(Relaxed),
                promised: state.promised.load(Relaxed),
                streamed: state.streamed.load(Relaxed),
            }
        };
        let now = Memory {
            chunks: before.chunks.iter().enumerate().map(chunk).collect(),
            nodes: (0..before.nodes.len()).map(node).collect(),
            forks: self.state.forks().records(),
        };
        if now == **before {
            before.clone()
        } else {
            Arc::new(now)
        }
    }
}

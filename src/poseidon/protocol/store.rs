//! The KV store: one server's share of the globally shared parameters.
//!
//! Counts the updates of each KV pair. When enough workers have sent one, it makes the solver's
//! step and returns the pair for the broadcast. No I/O, no clock: messages in, messages out.
//! Invariants: a step is made once, in the order of the clocks, from updates summed in the order of
//! the workers. An update that comes too late is dropped and counted.

mod shard;

use std::collections::HashMap;
use std::sync::atomic::AtomicU32;

use super::arithmetic::{Arithmetic, add, rebuild};
use super::bandwidth::Priority;
use super::message::{Body, Message, MessageKind};
use super::onebit;
use super::plan::{Pair, Plan, PlanLayer};
use super::rounds::{Added, Rounds};
use super::step::{StepRule, state_name};
use super::violation::ProtocolViolation;
use crate::poseidon::cost::Scheme;
use crate::weights::{WeightsView, kernels};
use shard::Shard;

/// Pairs that are updated together: a single pair, or all of a layer under `adam`.
#[derive(Debug)]
struct Unit {
    layer: usize,
    scheme: Scheme,
    shards: Vec<Shard>,
    rounds: Rounds<Message>,
}

/// An array of a checkpoint, after its name.
pub type Saved = (String, Vec<f32>);

/// A checkpoint in the making: the units of a server reach its clock one after the other.
#[derive(Debug, Default)]
struct Gathering {
    units: usize,
    saved: Vec<Saved>,
}

/// A complete checkpoint of one member.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// Number of steps that were made.
    pub clock: u64,
    /// The state that the member continues from.
    pub arrays: Vec<Saved>,
}

/// One server's store.
#[derive(Debug)]
pub struct KvStore {
    plan: Plan,
    server: u16,
    units: Vec<Unit>,
    by_pair: HashMap<u32, usize>,
    by_layer: HashMap<u32, usize>,
    dropped: Vec<u64>,
    gathering: HashMap<u64, Gathering>,
    whole: Vec<Checkpoint>,
    scratch: Vec<f32>,
}

impl KvStore {
    /// The store of `server` after `start` steps, with the weights of `w`, which has the layout of
    /// the buffer; zero history.
    pub fn new(plan: &Plan, server: u16, start: u64, w: WeightsView<'_>) -> Self {
        let mut store = Self {
            plan: plan.clone(),
            server,
            units: Vec::new(),
            by_pair: HashMap::new(),
            by_layer: HashMap::new(),
            dropped: vec![0; plan.workers.into()],
            gathering: HashMap::new(),
            whole: Vec::new(),
            scratch: Vec::new(),
        };
        for pair in plan
            .pairs()
            .into_iter()
            .filter(|p| p.server == Some(server))
        {
            store.add_pair(pair, start, w);
        }
        store
    }

    fn add_pair(&mut self, pair: Pair, start: u64, w: WeightsView<'_>) {
        let scheme = self.plan.layers[pair.layer].scheme;
        let zeros = |n| (0..n).map(|_| AtomicU32::new(0)).collect::<Vec<_>>();
        // Under `onebit` the workers make the step; the server only sums.
        let (held, residual) = match scheme {
            Scheme::OneBit => (0, vec![0.0; pair.len]),
            _ => (pair.len, Vec::new()),
        };
        let shard = Shard {
            weights: zeros(held),
            state: (0..self.plan.step.rule.states())
                .map(|_| zeros(held))
                .collect(),
            residual,
            pair,
        };
        for i in 0..held {
            WeightsView::of(&shard.weights).store(i, w.load(pair.offset + i));
        }
        let layer = pair.layer as u32;
        let unit = match self.by_layer.get(&layer) {
            Some(&unit) if scheme == Scheme::Adam => unit,
            _ => {
                let window = u64::from(self.plan.staleness) + 1;
                self.units.push(Unit {
                    layer: pair.layer,
                    scheme,
                    shards: Vec::new(),
                    rounds: Rounds::new(self.plan.workers, window, start),
                });
                self.units.len() - 1
            }
        };
        match scheme {
            Scheme::Adam => self.by_layer.insert(layer, unit),
            _ => self.by_pair.insert(pair.id, unit),
        };
        self.units[unit].shards.push(shard);
    }

    /// Adds a worker's update, and makes the steps that it completes. Returns the messages for all
    /// workers.
    ///
    /// # Errors
    /// See [`ProtocolViolation`]; nothing has changed then.
    pub fn receive(
        &mut self,
        message: Message,
        math: &dyn Arithmetic,
    ) -> Result<Vec<Message>, ProtocolViolation> {
        let (kind, subject) = (message.kind, message.subject);
        let unit = match kind {
            MessageKind::Factors => self.by_layer.get(&subject),
            MessageKind::Gradient | MessageKind::Bits => self.by_pair.get(&subject),
            _ => None,
        };
        let takes = |unit: &usize| match self.units[*unit].scheme {
            Scheme::Ps => kind == MessageKind::Gradient,
            Scheme::OneBit => kind == MessageKind::Bits,
            Scheme::Adam => kind == MessageKind::Factors,
            Scheme::Sfb => false,
        };
        let at = *unit
            .filter(|unit| takes(unit))
            .ok_or(ProtocolViolation::UnexpectedSubject { kind, subject })?;
        let worker = message.sender;
        let unit = &mut self.units[at];
        if unit.rounds.add(worker, message.clock, message)? == Added::Late {
            self.dropped[usize::from(worker)] += 1;
            return Ok(Vec::new());
        }
        let mut out = Vec::new();
        // One update can complete several steps: with staleness, the others of later clocks may be
        // waiting for it. Steps are made strictly by clock, because momentum and learning rate make
        // the weights depend on their order, and all replicas must be equal bit for bit.
        while let Some((clock, updates)) = self.units[at].rounds.take(self.plan.quorum()) {
            let updates = updates.into_iter().map(|(_, message)| message).collect();
            let layer = &self.plan.layers[self.units[at].layer];
            let workers = self.plan.workers.into();
            self.units[at].step(layer, clock, updates, workers, math, &mut self.scratch);
            // Weights replace each other, so only the newest are sent. Sums under `onebit` are
            // added up by the workers, so each one is sent.
            if self.units[at].scheme != Scheme::OneBit {
                out.clear();
            }
            out.extend(self.units[at].broadcast(self.server, &mut self.scratch));
            // Copied before the next step of this loop changes the unit; see `save`.
            self.save(at, clock + 1);
        }
        Ok(out)
    }

    /// Forgets the updates of a dead worker whose steps are not made: one that takes its place
    /// sends its own for them.
    pub fn forget(&mut self, worker: u16) {
        self.units
            .iter_mut()
            .for_each(|unit| unit.rounds.forget(worker));
    }

    /// True if a worker can begin with what is here: under `onebit` the workers hold the weights.
    pub fn has_all_weights(&self) -> bool {
        self.units.iter().all(|unit| unit.scheme != Scheme::OneBit)
    }

    /// All weights as they are, for a worker that has just connected.
    pub fn weights(&self) -> Vec<Message> {
        let units = self
            .units
            .iter()
            .filter(|unit| unit.scheme != Scheme::OneBit);
        units.flat_map(|unit| unit.weights(self.server)).collect()
    }

    /// Priority of a pair's last step: its length over that of the pair's weights. The history of
    /// the solver's momentum is what the step subtracted from the weights. Under `onebit` the
    /// weights are not here, and other rules than SGD do not keep their steps: only the layer
    /// counts then.
    pub fn priority_of(&self, pair: u32) -> Priority {
        let shards = self.units.iter().flat_map(|unit| &unit.shards);
        let Some(shard) = shards.into_iter().find(|shard| shard.pair.id == pair) else {
            return Priority {
                magnitude: 0.0,
                layer: 0,
            };
        };
        let length = |words: &[AtomicU32]| {
            let values = WeightsView::of(words);
            let squares = (0..words.len()).map(|i| values.load(i) * values.load(i));
            squares.sum::<f32>().sqrt()
        };
        let weights = length(&shard.weights).max(f32::MIN_POSITIVE);
        let step = match (&self.plan.step.rule, shard.state.first()) {
            (StepRule::Sgd { .. }, Some(history)) => length(history),
            _ => 0.0,
        };
        Priority {
            magnitude: step / weights,
            layer: shard.pair.layer as u32,
        }
    }

    /// For each worker the number of updates that came too late.
    pub fn dropped(&self) -> &[u64] {
        &self.dropped
    }

    /// The oldest iteration that only some workers have sent, and the workers that have not.
    pub fn late(&self) -> Option<(u64, Vec<u16>)> {
        let late = self
            .units
            .iter()
            .map(|unit| (unit.rounds.now(), unit.rounds.late()));
        late.filter(|(_, workers)| !workers.is_empty()).min()
    }

    /// True if this server has made all steps of the plan.
    pub fn finished(&self) -> bool {
        self.units
            .iter()
            .all(|unit| unit.rounds.now() >= self.plan.clocks)
    }

    /// Removes and returns a complete checkpoint, if there is one.
    pub fn take_checkpoint(&mut self) -> Option<Checkpoint> {
        self.whole.pop()
    }

    /// Copies a unit that has reached the clock of a checkpoint. Units reach it at different times,
    /// but each is copied at the same clock, so the whole is the state after that many steps.
    fn save(&mut self, unit: usize, clock: u64) {
        if !self.plan.checkpoint_at(clock) {
            return;
        }
        let gathering = self.gathering.entry(clock).or_default();
        gathering.units += 1;
        for shard in &self.units[unit].shards {
            gathering.saved.extend(shard.arrays());
        }
        if gathering.units == self.units.len() {
            let arrays = std::mem::take(&mut gathering.saved);
            self.gathering.remove(&clock);
            self.whole.push(Checkpoint { clock, arrays });
        }
    }

    /// Loads a checkpoint: `array` returns the saved array of a name and length.
    ///
    /// # Errors
    /// The error of `array`.
    pub fn restore<E>(
        &mut self,
        mut array: impl FnMut(&str, usize) -> Result<Vec<f32>, E>,
    ) -> Result<(), E> {
        for shard in self.units.iter_mut().flat_map(|unit| &mut unit.shards) {
            let name = |what| format!("pair{}.{what}", shard.pair.id);
            let state = shard.state.iter().enumerate();
            let state = state.map(|(which, words)| (state_name(which), words));
            for (what, words) in std::iter::once(("weights", &shard.weights)).chain(state) {
                let saved = array(&name(what), words.len())?;
                kernels::copy_in(WeightsView::of(words), &saved);
            }
            shard.residual = array(&name("residual"), shard.residual.len())?;
        }
        Ok(())
    }
}

impl Unit {
    /// Makes step `clock` from the updates of some of so many workers, in their order.
    fn step(
        &mut self,
        layer: &PlanLayer,
        clock: u64,
        updates: Vec<Message>,
        workers: usize,
        math: &dyn Arithmetic,
        scratch: &mut Vec<f32>,
    ) {
        let contributions = updates.len();
        if self.scheme == Scheme::Adam {
            rebuild(layer, updates.iter(), math, scratch);
        } else {
            let mut updates = updates.into_iter();
            match updates.next().map(|first| first.body) {
                Some(Body::Floats(first)) => {
                    *scratch = first;
                    updates.for_each(|message| add(scratch, message.floats()));
                }
                Some(Body::Words(first)) => {
                    scratch.clear();
                    scratch.resize(self.shards[0].pair.len, 0.0);
                    onebit::add(&first, scratch);
                    updates.for_each(|message| onebit::add(message.words(), scratch));
                }
                _ => {}
            }
        }
        if self.scheme == Scheme::OneBit {
            // The workers make the step, and divide by the number of all workers.
            if contributions < workers {
                let share = workers as f32 / contributions as f32;
                scratch.iter_mut().for_each(|sum| *sum *= share);
            }
            return;
        }
        let first = self.shards.first().map_or(0, |shard| shard.pair.in_layer);
        for shard in &self.shards {
            let from = shard.pair.in_layer - first;
            let gradient = &scratch[from..from + shard.pair.len];
            let state: Vec<_> = shard.state.iter().map(|x| WeightsView::of(x)).collect();
            let w = WeightsView::of(&shard.weights);
            math.step(&shard.pair, clock, contributions, gradient, w, &state);
        }
    }

    /// The messages for all workers after a step; `scratch` holds the sum of the gradients.
    fn broadcast(&mut self, server: u16, scratch: &mut [f32]) -> Vec<Message> {
        if self.scheme != Scheme::OneBit {
            return self.weights(server);
        }
        let clock = self.rounds.now();
        let sums = self.shards.iter_mut().map(|shard| Message {
            kind: MessageKind::Bits,
            subject: shard.pair.id,
            sender: server,
            clock,
            body: Body::Words(onebit::quantise(scratch, &mut shard.residual)),
        });
        sums.collect()
    }

    fn weights(&self, server: u16) -> Vec<Message> {
        let clock = self.rounds.now();
        let weights = |shard: &Shard| {
            let mut values = vec![0.0; shard.pair.len];
            kernels::copy_out(WeightsView::of(&shard.weights), &mut values);
            Message {
                kind: MessageKind::Weights,
                subject: shard.pair.id,
                sender: server,
                clock,
                body: Body::Floats(values),
            }
        };
        self.shards.iter().map(weights).collect()
    }
}

//! The KV store: one member's share of the globally shared parameters.
//!
//! Counts the updates of each KV pair. When enough workers have sent one, it makes the solver's
//! step and gives the pair for the broadcast. No I/O, no clock: messages in, messages out. Several
//! threads may bring messages: each unit has a lock of its own. Invariants: a step is made once, in
//! the order of the clocks, from updates summed in the order of the workers. An update that comes
//! too late is dropped and counted. What a step gives leaves before the next step of its pair.

mod made;
mod shard;
mod unit;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::arithmetic::Arithmetic;
use super::coordinator::Member;
use super::message::{Message, MessageKind, Pool};
use super::plan::{Pair, Plan};
use super::rounds::{Added, Rounds};
use super::step::state_name;
use super::violation::ProtocolViolation;
use crate::poseidon::cost::Scheme;
use crate::weights::{WeightsView, kernels};
pub use made::Made;
use shard::Shard;
use unit::Unit;

/// An array of a checkpoint, after its name.
pub type Saved = (String, Vec<f32>);

/// A checkpoint in the making: the units of a store reach its clock one after the other.
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

/// The store of one member.
#[derive(Debug)]
pub struct KvStore {
    plan: Plan,
    pool: Pool,
    units: Vec<Mutex<Unit>>,
    by_pair: HashMap<u32, usize>,
    by_layer: HashMap<u32, usize>,
    dropped: Vec<AtomicU64>,
    gathering: Mutex<HashMap<u64, Gathering>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A thread that panics ends the run; until then the others may look.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl KvStore {
    /// The store of `home` after `start` steps, with the weights of `w`, which has the layout of
    /// the buffer; zero history. What it sends lies in memory of `pool`.
    pub fn new(plan: &Plan, home: Member, start: u64, w: WeightsView<'_>, pool: &Pool) -> Self {
        let mut store = Self {
            plan: plan.clone(),
            pool: pool.clone(),
            units: Vec::new(),
            by_pair: HashMap::new(),
            by_layer: HashMap::new(),
            dropped: (0..plan.workers).map(|_| AtomicU64::new(0)).collect(),
            gathering: Mutex::default(),
        };
        let pairs = plan.pairs().into_iter();
        for pair in pairs.filter(|pair| pair.home == Some(home)) {
            store.add_pair(pair, start, w);
        }
        store
    }

    fn add_pair(&mut self, pair: Pair, start: u64, w: WeightsView<'_>) {
        let scheme = pair.scheme;
        let shard = Shard::new(&self.plan, pair, start, w, &self.pool);
        let layer = pair.layer as u32;
        let unit = match self.by_layer.get(&layer) {
            Some(&unit) if scheme == Scheme::Adam => unit,
            _ => {
                let window = u64::from(self.plan.staleness) + 1;
                let rounds = Rounds::new(self.plan.workers, window, start);
                self.units
                    .push(Mutex::new(Unit::new(pair.layer, scheme, rounds)));
                self.units.len() - 1
            }
        };
        match scheme {
            Scheme::Adam => self.by_layer.insert(layer, unit),
            _ => self.by_pair.insert(pair.id, unit),
        };
        lock(&self.units[unit]).shards.push(shard);
    }

    /// Adds a worker's update, and makes the steps that it completes. `deliver` gets what is for
    /// all workers: messages about the same pair leave in the order of these calls. Returns what it
    /// returns; `None`: no step was made.
    ///
    /// # Errors
    /// See [`ProtocolViolation`]; nothing has changed then.
    pub fn receive<R>(
        &self,
        message: Message,
        math: &dyn Arithmetic,
        deliver: impl FnOnce(Made<'_>) -> R,
    ) -> Result<Option<R>, ProtocolViolation> {
        let (kind, subject) = (message.kind, message.subject);
        let at = match kind {
            MessageKind::Factors => self.by_layer.get(&subject),
            MessageKind::Gradient | MessageKind::Bits => self.by_pair.get(&subject),
            _ => None,
        };
        let unexpected = ProtocolViolation::UnexpectedSubject { kind, subject };
        let mut unit = lock(&self.units[*at.ok_or(unexpected)?]);
        if !unit.takes(kind) {
            return Err(unexpected);
        }
        let worker = message.sender;
        if unit.rounds.add(worker, message.clock, message)? == Added::Late {
            self.dropped[usize::from(worker)].fetch_add(1, Relaxed);
            return Ok(None);
        }
        let (mut messages, mut checkpoints) = (Vec::new(), Vec::new());
        // One update can complete several steps: with staleness, the others of later clocks may be
        // waiting for it. Steps are made strictly by clock, because momentum and learning rate make
        // the weights depend on their order, and all replicas must be equal bit for bit.
        while let Some((clock, updates)) = unit.rounds.take(self.plan.quorum()) {
            let updates = updates.into_iter().map(|(_, message)| message).collect();
            // Weights replace each other, so only the newest are sent: the step changes those that
            // nothing holds where they lie. Sums under `onebit` are added up by the workers, so
            // each one is sent.
            if unit.scheme != Scheme::OneBit {
                messages.clear();
            }
            messages.extend(unit.step(&self.plan, clock, updates, math, &self.pool));
            // Copied before the next step of this loop changes the unit; see `save`.
            checkpoints.extend(self.save(&unit, clock + 1));
        }
        if messages.is_empty() {
            return Ok(None);
        }
        let made = Made::new(&self.plan, &unit, messages, checkpoints);
        Ok(Some(deliver(made)))
    }

    /// Forgets the updates of a dead worker whose steps are not made: one that takes its place
    /// sends its own for them.
    pub fn forget(&self, worker: u16) {
        let units = self.units.iter();
        units.for_each(|unit| lock(unit).rounds.forget(worker));
    }

    /// True if a worker can begin with what is here: under `onebit` the workers hold the weights.
    pub fn has_all_weights(&self) -> bool {
        let mut units = self.units.iter();
        units.all(|unit| lock(unit).scheme != Scheme::OneBit)
    }

    /// All weights as they are, for a worker that has just connected: `deliver` gets those of a
    /// unit, and no step of it comes in between.
    pub fn weights(&self, mut deliver: impl FnMut(Made<'_>)) {
        for unit in &self.units {
            let unit = lock(unit);
            if unit.scheme != Scheme::OneBit {
                let messages = unit.weights();
                deliver(Made::new(&self.plan, &unit, messages, Vec::new()));
            }
        }
    }

    /// For each worker the number of updates that came too late.
    pub fn dropped(&self) -> Vec<u64> {
        let dropped = self.dropped.iter();
        dropped.map(|dropped| dropped.load(Relaxed)).collect()
    }

    /// The oldest iteration that only some workers have sent, and the workers that have not.
    pub fn late(&self) -> Option<(u64, Vec<u16>)> {
        let late = self.units.iter().map(|unit| {
            let unit = lock(unit);
            (unit.rounds.now(), unit.rounds.late())
        });
        late.filter(|(_, workers)| !workers.is_empty()).min()
    }

    /// True if so many steps are made of every pair.
    pub fn has_made(&self, steps: u64) -> bool {
        let mut units = self.units.iter();
        units.all(|unit| lock(unit).rounds.now() >= steps)
    }

    /// Copies a unit that has reached the clock of a checkpoint, and gives the checkpoint when it
    /// is complete. Units reach it at different times, but each is copied at the same clock, so the
    /// whole is the state after that many steps.
    fn save(&self, unit: &Unit, clock: u64) -> Option<Checkpoint> {
        if !self.plan.checkpoint_at(clock) {
            return None;
        }
        let saved: Vec<Saved> = unit.shards.iter().flat_map(Shard::arrays).collect();
        let mut all = lock(&self.gathering);
        let gathering = all.entry(clock).or_default();
        gathering.units += 1;
        gathering.saved.extend(saved);
        if gathering.units < self.units.len() {
            return None;
        }
        let arrays = all.remove(&clock)?.saved;
        Some(Checkpoint { clock, arrays })
    }

    /// True if it holds no pair: there is nothing to save.
    pub fn is_empty(&self) -> bool {
        self.units.is_empty()
    }

    /// What a checkpoint must hold, as it is now.
    pub fn saved(&self) -> Vec<Saved> {
        let of_unit = |unit: &Mutex<Unit>| -> Vec<Saved> {
            lock(unit).shards.iter().flat_map(Shard::arrays).collect()
        };
        self.units.iter().flat_map(of_unit).collect()
    }

    /// Loads a checkpoint: `array` returns the saved array of a name and length.
    ///
    /// # Errors
    /// The error of `array`.
    pub fn restore<E>(
        &mut self,
        mut array: impl FnMut(&str, usize) -> Result<Vec<f32>, E>,
    ) -> Result<(), E> {
        for unit in &mut self.units {
            let unit = unit.get_mut().unwrap_or_else(PoisonError::into_inner);
            for shard in &mut unit.shards {
                let pair = shard.pair.id;
                let name = |what| format!("pair{pair}.{what}");
                let len = shard.weights().map_or(0, <[f32]>::len);
                let saved = array(&name("weights"), len)?;
                shard.set_weights(&saved);
                for (which, words) in shard.state.iter().enumerate() {
                    let saved = array(&name(state_name(which)), words.len())?;
                    kernels::copy_in(WeightsView::of(words), &saved);
                }
                shard.residual = array(&name("residual"), shard.residual.len())?;
            }
        }
        Ok(())
    }
}

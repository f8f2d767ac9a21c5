//! The iterations of a client: which one it is at, and which layers it has sent.
//!
//! Invariant: between `begin` and `end` each layer is sent once; outside none is.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use super::super::error::PoseidonError;
use super::Turn;
use super::hub::Hub;
use crate::poseidon::{Contribution, Floats, Plan, PlanLayer};

/// See the module.
pub(super) struct Turns {
    /// Iterations that have ended.
    clock: AtomicU64,
    start: u64,
    begun: AtomicBool,
    /// For each layer, whether this iteration has sent it.
    sent: Vec<AtomicBool>,
}

fn misuse<T>(what: String) -> Result<T, PoseidonError> {
    Err(PoseidonError::Misuse(what))
}

impl Turns {
    /// Of a run of `layers` layers that begins after `start` steps.
    pub(super) fn new(layers: usize, start: u64) -> Self {
        Self {
            clock: AtomicU64::new(start),
            start,
            begun: AtomicBool::new(false),
            sent: (0..layers).map(|_| AtomicBool::new(false)).collect(),
        }
    }

    pub(super) fn clock(&self) -> u64 {
        self.clock.load(Relaxed)
    }

    /// Iterations of which this client has sent something.
    pub(super) fn reach(&self) -> u64 {
        let any = self.sent.iter().any(|sent| sent.load(Relaxed));
        self.clock() + u64::from(any)
    }

    /// See [`super::Client::begin`].
    pub(super) fn begin(&self, hub: &Hub, plan: &Plan) -> Result<Option<Turn>, PoseidonError> {
        if self.begun.load(Relaxed) {
            return misuse("begin: an iteration has begun already; end it first".into());
        }
        let mut clock = self.clock();
        let over = |clock| clock >= plan.clocks.min(hub.end_at());
        if let Some(error) = hub.shutdown.take() {
            return Err(error);
        }
        if over(clock) || hub.shutdown.has_begun() {
            return Ok(None);
        }
        let checkpoint = plan.checkpoint_at(clock) && clock > self.start;
        // A checkpoint holds exactly `clock` steps, so it needs them all; else staleness may hide
        // some.
        let needed = match checkpoint {
            true => clock,
            false => clock.saturating_sub(plan.staleness.into()),
        };
        if !hub.wait_for(needed) {
            return hub.shutdown.take().map_or(Ok(None), Err);
        }
        if hub.drops_late() {
            // A worker that was left behind continues where the others are: updates for the steps
            // in between would be dropped.
            clock = clock.max(hub.steps());
            self.clock.store(clock, Relaxed);
        }
        // The end may have been announced while this worker waited, or the others may have come
        // to it.
        if over(clock) {
            return Ok(None);
        }
        let missing = clock.saturating_sub(hub.steps());
        hub.begin();
        self.sent.iter().for_each(|sent| sent.store(false, Relaxed));
        self.begun.store(true, Relaxed);
        Ok(Some(Turn {
            clock,
            missing,
            checkpoint,
        }))
    }

    /// See [`super::Client::send`].
    pub(super) fn send(
        &self,
        hub: &Hub,
        plan: &Plan,
        layer: usize,
        contribution: Contribution<'_>,
    ) -> Result<(), PoseidonError> {
        let info = of(plan, layer)?;
        if !self.begun.load(Relaxed) {
            return misuse(format!("send: no iteration has begun ({})", info.name));
        }
        check(info, &contribution, &hub.extent(layer))?;
        if self.sent[layer].swap(true, Relaxed) {
            return misuse(format!(
                "send: {} was sent in this iteration already",
                info.name
            ));
        }
        hub.send_layer(layer, self.clock(), contribution);
        Ok(())
    }

    /// See [`super::Client::room`].
    pub(super) fn room(
        &self,
        hub: &Hub,
        plan: &Plan,
        layer: usize,
    ) -> Result<Floats, PoseidonError> {
        of(plan, layer)?;
        Ok(hub.pool().take(hub.extent(layer).len()))
    }

    /// Refuses a wait that nothing can end.
    pub(super) fn check_wait(
        &self,
        plan: &Plan,
        layer: usize,
        steps: u64,
    ) -> Result<(), PoseidonError> {
        let info = of(plan, layer)?;
        let sent = self.clock() + u64::from(self.sent[layer].load(Relaxed));
        match steps <= sent {
            true => Ok(()),
            false => misuse(format!(
                "wait: step {steps} of {} cannot be made, as this worker has sent its part of {sent} only",
                info.name
            )),
        }
    }

    /// See [`super::Client::end`].
    pub(super) fn end(&self, hub: &Hub, plan: &Plan) -> Result<(), PoseidonError> {
        if !self.begun.load(Relaxed) {
            return misuse("end: no iteration has begun".into());
        }
        for (layer, info) in plan.layers.iter().enumerate() {
            if self.sent[layer].load(Relaxed) {
                continue;
            }
            if info.scheme.sends_factors() {
                self.send(hub, plan, layer, Contribution::Factors(Vec::new()))?;
                continue;
            }
            let mut zeros = self.room(hub, plan, layer)?;
            zeros.fill(0.0);
            self.send(hub, plan, layer, Contribution::Own(zeros))?;
        }
        self.begun.store(false, Relaxed);
        self.sent.iter().for_each(|sent| sent.store(false, Relaxed));
        self.clock.fetch_add(1, Relaxed);
        Ok(())
    }
}

fn of(plan: &Plan, layer: usize) -> Result<&PlanLayer, PoseidonError> {
    let all = plan.layers.len();
    let what =
        || PoseidonError::Misuse(format!("layer {layer}: the plan has {all}, counted from 0"));
    plan.layers.get(layer).ok_or_else(what)
}

/// Refuses what the layer cannot take: it would be lost, and all would wait for it.
fn check(
    layer: &PlanLayer,
    contribution: &Contribution<'_>,
    extent: &std::ops::Range<usize>,
) -> Result<(), PoseidonError> {
    let (name, scheme) = (&layer.name, layer.scheme);
    match contribution {
        Contribution::Gradient { .. } | Contribution::Own(_) if scheme.sends_factors() => misuse(
            format!("send: {name} travels by {scheme}: give its factors, not its gradient"),
        ),
        Contribution::Gradient { from, values } => {
            let given = *from..from + values.len();
            match given.start <= extent.start && extent.end <= given.end {
                true => Ok(()),
                false => misuse(format!(
                    "send: {name} is weights {extent:?} of the plan, and the gradient is of {given:?}"
                )),
            }
        }
        Contribution::Own(floats) => match floats.len() == extent.len() {
            true => Ok(()),
            false => misuse(format!(
                "send: {name} has {} weights, and its own gradient is of {}",
                extent.len(),
                floats.len()
            )),
        },
        Contribution::Factors(_) if !scheme.sends_factors() => misuse(format!(
            "send: {name} travels by {scheme}: give its gradient, not factors"
        )),
        Contribution::Factors(factors) => {
            let row = (layer.shape.outputs + layer.shape.inputs) as usize;
            let most = row * layer.rows as usize;
            match factors.len() % row == 0 && factors.len() <= most {
                true => Ok(()),
                false => misuse(format!(
                    "send: factors of {} floats for {name}: give rows of {row} (outputs and inputs), {} at most",
                    factors.len(),
                    layer.rows
                )),
            }
        }
    }
}

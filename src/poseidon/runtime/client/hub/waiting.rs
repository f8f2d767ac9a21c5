//! How threads of a client wait: for all layers, for one, or for the others' ends.
//!
//! Locks are taken in this order: syncer, then completion vector.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::super::super::budget::Budget;
use super::super::super::error::PoseidonError;
use super::super::super::sync::{lock, wait};
use super::{Hub, LOOK_UP};
use crate::poseidon::{Member, Message, MessageKind, Syncer};
use crate::weights::WeightsView;

/// Time after which a worker that still waits logs what it waits for, and looks whether that can
/// come.
const LONG_WAIT: Duration = Duration::from_secs(5);

impl Hub {
    /// Applies what a layer has received, and updates its bit of the completion vector. The caller
    /// holds the syncer's lock, so that the bit always fits the syncer's clock.
    pub(super) fn apply_received(&self, layer: usize, syncer: &mut Syncer) {
        let state: Vec<WeightsView<'_>> = (0..self.states).map(|k| self.replica.state(k)).collect();
        let before = syncer.clock();
        syncer.apply_received(self.replica.weights(), &state, &self.math);
        let mut waited = lock(&self.waited);
        let ready = syncer.clock() >= waited.needed;
        if syncer.clock() != before {
            self.moved.notify_all();
        }
        waited.bits.set(layer, ready);
        if ready && waited.bits.all() {
            self.ready.notify_all();
        }
    }

    /// Waits until `needed` steps are in the weights of every layer. False if the run ends before
    /// that.
    pub(in super::super) fn wait_for(&self, needed: u64) -> bool {
        lock(&self.waited).needed = needed;
        // The bits still answer for the previous `needed`, so each is computed anew. `needed` is
        // set first: a reading thread that comes in between already computes with the new one.
        for (layer, syncer) in self.syncers.iter().enumerate() {
            self.apply_received(layer, &mut lock(syncer));
        }
        let mut long = Instant::now() + LONG_WAIT;
        let mut waited = lock(&self.waited);
        while !waited.bits.all() {
            // Where late updates are dropped, an announced end takes effect at once: the missing
            // steps may never be made, because the other workers have stopped.
            if self.shutdown.has_begun() || self.drop_late && self.end_at() != u64::MAX {
                return false;
            }
            if Instant::now() >= long {
                long = Instant::now() + LONG_WAIT;
                let missing: Vec<usize> = waited.bits.missing().collect();
                // The log line needs the syncers' locks, which come before this one. The bits may
                // change meanwhile, so the loop looks at them again before it waits.
                drop(waited);
                self.log_missing(&missing, needed);
                waited = lock(&self.waited);
                continue;
            }
            // `apply_received` notifies. The shutdown does not, hence the time limit.
            waited = wait(&self.ready, waited, LOOK_UP);
        }
        !self.shutdown.has_begun()
    }

    /// Waits until `needed` steps are in the weights of `layer`. False if the run ends before that.
    pub(in super::super) fn wait_for_layer(&self, layer: usize, needed: u64) -> bool {
        let mut long = Instant::now() + LONG_WAIT;
        loop {
            let mut syncer = lock(&self.syncers[layer]);
            self.apply_received(layer, &mut syncer);
            if syncer.clock() >= needed {
                return true;
            }
            // Locked before the syncer is let go: a thread that moves the layer needs both, so its
            // notification cannot come before this wait.
            let waited = lock(&self.waited);
            drop(syncer);
            if self.shutdown.has_begun() || self.drop_late && self.end_at() != u64::MAX {
                return false;
            }
            drop(wait(&self.moved, waited, LOOK_UP));
            if Instant::now() >= long {
                long = Instant::now() + LONG_WAIT;
                self.log_missing(&[layer], needed);
            }
        }
    }

    /// Ends the sending threads, sends `Bye` on all connections, and waits until the reading
    /// threads have received the `Bye` of all others.
    pub(in super::super) fn send_bye_and_wait(&self, worker: u16) {
        self.done.store(true, Relaxed);
        if self.shutdown.has_begun() {
            return;
        }
        // `Bye` ends a connection: what waits for the budget must be sent before.
        let is_sent = || self.budget.as_ref().is_none_or(Budget::is_empty);
        while !is_sent() && !self.shutdown.has_begun() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let bye = Message::bare(MessageKind::Bye, worker, 0);
        self.links.to_all(&Arc::new(bye));
        let mut long = Instant::now() + LONG_WAIT;
        while self.readers() > 0 && !self.shutdown.has_begun() {
            if Instant::now() >= long {
                long = Instant::now() + LONG_WAIT;
                let staying = self.links.staying();
                let names = staying.iter().map(Member::to_string);
                let names: Vec<_> = names.chain(["the coordinator".to_owned()]).collect();
                log::info!("done; waiting for the others to end: {}", names.join(", "));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn log_missing(&self, layers: &[usize], steps: u64) {
        for layer in layers {
            let syncer = lock(&self.syncers[*layer]);
            let awaited = syncer.awaited(steps).into_iter();
            let mut from: Vec<_> = awaited
                .filter(|member| *member != self.own)
                .chain(self.late_in_share())
                .collect();
            from.sort_unstable();
            from.dedup();
            let left = from.iter().find(|member| self.links.has_left(**member));
            if let (Some(who), false) = (left, self.drop_late) {
                return self.shutdown.fail(PoseidonError::LeftEarly(*who));
            }
            let from: Vec<_> = from.iter().map(Member::to_string).collect();
            let (name, from) = (syncer.name(), from.join(", "));
            log::info!("waiting for step {steps} of {name}, from {from}");
        }
    }

    /// Steps that are in the weights of every layer.
    pub(in super::super) fn steps(&self) -> u64 {
        let clocks = self.syncers.iter().map(|syncer| lock(syncer).clock());
        clocks.min().unwrap_or(0)
    }
}

//! Waiting for sums. A long wait is logged, and no thread waits for a device that has failed.

use std::sync::atomic::Ordering;
use std::sync::{Condvar, PoisonError};
use std::time::Duration;

use super::{Sum, lock};
use crate::accumulate::AccumulateError;

/// Waiting that is worth a line in the log.
const LONG_WAIT: Duration = Duration::from_secs(5);

impl<N> Sum<N> {
    /// Waits until everything that `device` has given is added and handed on.
    ///
    /// # Errors
    /// A device has failed, or the accumulation has ended.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn wait(&self, device: usize) -> Result<(), AccumulateError> {
        for (index, layer) in self.layers.iter().enumerate().rev() {
            self.wait_for(device, index, layer.claimed[device].load(Ordering::Relaxed))?;
        }
        Ok(())
    }

    /// Waits until `rounds` sums of a layer are handed on; gives `rounds` back.
    pub(super) fn wait_for(
        &self,
        device: usize,
        layer: usize,
        rounds: u64,
    ) -> Result<u64, AccumulateError> {
        // Acquire: what was read for that sum may be written from now on.
        let there = || self.layers[layer].rounds.load(Ordering::Acquire) >= rounds;
        self.wait_until(device, layer, there)?;
        Ok(rounds)
    }

    pub(super) fn wait_until(
        &self,
        device: usize,
        layer: usize,
        there: impl Fn() -> bool,
    ) -> Result<(), AccumulateError> {
        // `there` reads counters that change without the lock. It is called under the lock, and a
        // thread that changes a counter takes the lock once before it notifies. So no notification
        // falls between a look and the sleep that follows.
        let mut queue = lock(&self.queue);
        loop {
            if let Some(error) = &queue.error {
                return Err(error.clone());
            }
            if there() {
                return Ok(());
            }
            if queue.closed {
                let layer = self.layers[layer].name.clone();
                return Err(AccumulateError::Ended { device, layer });
            }
            let woken = self.moved.wait_timeout(queue, LONG_WAIT);
            let (guard, timeout) = woken.unwrap_or_else(PoisonError::into_inner);
            queue = guard;
            if timeout.timed_out() {
                log::warn!(
                    "device {device} is waiting for the sum of layer {}: {}",
                    self.layers[layer].name,
                    self.missing(layer)
                );
            }
        }
    }

    /// Which devices the sum of a layer waits for.
    pub(in crate::accumulate) fn missing(&self, layer: usize) -> String {
        let layer = &self.layers[layer];
        let rounds = layer.rounds.load(Ordering::Relaxed);
        let devices = layer.given.iter().enumerate();
        let missing: Vec<String> = devices
            .filter(|(_, given)| given.load(Ordering::Relaxed) <= rounds)
            .map(|(device, _)| device.to_string())
            .collect();
        match missing.len() {
            0 => "all devices have given theirs, the threads that add are busy".into(),
            1 => format!("device {} has not given its gradient", missing[0]),
            _ => format!("devices {} have not given theirs", missing.join(", ")),
        }
    }

    /// Ends everything because `device` has failed: each thread that waits gets the error.
    pub fn fail(&self, device: usize, why: impl Into<String>) {
        let why = why.into();
        self.end(AccumulateError::Device { device, why });
    }

    pub(super) fn end(&self, error: AccumulateError) {
        lock(&self.queue).error.get_or_insert(error);
        self.wake_all();
    }

    /// Ends the threads that work; each thread that waits gets an error.
    pub fn close(&self) {
        lock(&self.queue).closed = true;
        self.wake_all();
    }

    fn wake_all(&self) {
        self.more.iter().for_each(Condvar::notify_all);
        self.moved.notify_all();
    }

    /// What ended it, if something did.
    pub fn error(&self) -> Option<AccumulateError> {
        lock(&self.queue).error.clone()
    }

    /// For a thread that acts for `device`: if it ends without having said that it is done (an
    /// error, a panic), the device has failed, and the others do not wait for it.
    pub fn watch(&self, device: usize) -> Watch<'_> {
        Watch {
            sum: Some(self),
            device,
        }
    }
}

/// What a [`Watch`] tells that a device has failed.
trait Fails {
    fn fail(&self, device: usize, why: &str);
}

impl<N> Fails for Sum<N> {
    fn fail(&self, device: usize, why: &str) {
        Sum::fail(self, device, why);
    }
}

/// See [`Sum::watch`].
pub struct Watch<'s> {
    sum: Option<&'s dyn Fails>,
    device: usize,
}

impl Watch<'_> {
    /// The thread ends as it should.
    pub fn done(mut self) {
        self.sum = None;
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if let Some(sum) = self.sum {
            let why = match std::thread::panicking() {
                true => "its thread panicked",
                false => "its thread ended too early",
            };
            sum.fail(self.device, why);
        }
    }
}

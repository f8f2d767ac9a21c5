//! The sum itself: gradients of several devices, layer by layer, added in the order of the devices.
//!
//! Each device has memory of its own for what it gives, and there is one total. One counter per
//! layer says how many devices have given theirs. In [`Order::Parts`] the thread that brings the
//! last one cuts the layer into parts. Every thread that has nothing else to do takes parts from
//! the queue and adds all devices' gradients there, the first device's first. So no thread waits
//! for a turn, and a large layer is added by all threads at once. Every float is the same sum in
//! the same order, whatever the timing. In [`Order::Turns`] the counter says whose turn it is: each
//! device's thread waits for those before it and adds its gradient to the total.
//!
//! Who writes what: a device's floats of a layer are its own from [`Sum::claim`] to
//! [`Sum::arrive`]. From then on nothing writes them until the layer's sum is handed on, which the
//! next claim waits for. A part of the total belongs to the thread that took it from the queue,
//! until it is handed on. Sums begin at +0, so that none is ever -0. Starts no thread: its user
//! lends some ([`Sum::work`]).

mod add;
mod wait;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use pulp::Arch;

use super::error::AccumulateError;
use crate::device::HostMemory;
use crate::weights::kernels;
use add::view;
pub use wait::Watch;

/// Floats of a part: enough that taking it from the queue costs little compared with adding it.
const PART: usize = 1 << 17;

/// A layer: where its gradient lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerRange {
    /// For messages.
    pub name: String,
    /// Its floats among all.
    pub range: Range<usize>,
}

/// How the fixed order of addition is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// When all have given a layer, all threads add parts of it, each part in the order of devices.
    Parts,
    /// Each device's thread adds its gradient when its turn comes.
    Turns,
}

/// What a [`Sum`] calls when parts and layers of a sum are done.
pub trait Sink: Sync {
    /// A layer of the total is to be written again: waits until nothing reads its last sum.
    ///
    /// # Errors
    /// Ends the accumulation.
    fn clear(&self, _layer: usize) -> Result<(), AccumulateError> {
        Ok(())
    }

    /// Some of a layer's floats are final: `range`, among all.
    ///
    /// # Errors
    /// Ends the accumulation.
    fn part(&self, layer: usize, range: &Range<usize>) -> Result<(), AccumulateError>;

    /// All of a layer's sum of iteration `clock` is there, and every part has been handed on.
    ///
    /// # Errors
    /// Ends the accumulation.
    fn layer(&self, layer: usize, clock: u64) -> Result<(), AccumulateError>;
}

struct Layer {
    name: String,
    range: Range<usize>,
    parts: usize,
    /// Gradients that have come, of all rounds: the counter that guards the sum.
    arrived: AtomicU64,
    /// Parts of this round that were handed on.
    handed: AtomicUsize,
    /// Rounds whose sum was handed on.
    rounds: AtomicU64,
    /// The iteration that this round's gradients are of.
    clock: AtomicU64,
    /// By device: rounds it has begun to give, and those it has given.
    claimed: Vec<AtomicU64>,
    given: Vec<AtomicU64>,
}

struct Part {
    layer: usize,
    range: Range<usize>,
}

struct Queue<N> {
    parts: VecDeque<Part>,
    /// By thread: what it alone is told.
    notes: Vec<VecDeque<N>>,
    error: Option<AccumulateError>,
    closed: bool,
}

/// Adds the gradients of several devices. `N` is what else a device's thread is told.
pub struct Sum<N = std::convert::Infallible> {
    arch: Arch,
    order: Order,
    layers: Vec<Layer>,
    /// By device.
    gradients: Vec<HostMemory>,
    total: HostMemory,
    queue: Mutex<Queue<N>>,
    /// By thread: something to do.
    more: Vec<Condvar>,
    /// A layer's counter has moved, or the accumulation has ended.
    moved: Condvar,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<N> Sum<N> {
    /// Of the gradients of `devices` devices. Layers are in forward order.
    ///
    /// # Errors
    /// No devices, no layers, layers that are empty or overlap.
    pub fn new(
        layers: &[LayerRange],
        devices: usize,
        order: Order,
    ) -> Result<Self, AccumulateError> {
        if devices == 0 {
            return Err(AccumulateError::NoDevices);
        }
        let mut by_place: Vec<&LayerRange> = layers.iter().collect();
        by_place.sort_by_key(|layer| layer.range.start);
        let len = by_place.last().ok_or(AccumulateError::NoLayers)?.range.end;
        if let Some(layer) = layers.iter().find(|layer| layer.range.is_empty()) {
            return Err(AccumulateError::Empty(layer.name.clone()));
        }
        if let Some(pair) = (by_place.windows(2)).find(|p| p[0].range.end > p[1].range.start) {
            let [a, b] = [0, 1].map(|i| pair[i].name.clone());
            return Err(AccumulateError::Overlap(a, b));
        }
        let counters = || (0..devices).map(|_| AtomicU64::new(0)).collect();
        let layers = layers.iter().map(|layer| Layer {
            name: layer.name.clone(),
            range: layer.range.clone(),
            parts: layer.range.len().div_ceil(PART),
            arrived: AtomicU64::new(0),
            handed: AtomicUsize::new(0),
            rounds: AtomicU64::new(0),
            clock: AtomicU64::new(0),
            claimed: counters(),
            given: counters(),
        });
        let memory = || {
            HostMemory::zeroed(len).map_err(|why| AccumulateError::NoMemory(len, why.to_string()))
        };
        let gradients = (0..devices).map(|_| memory());
        Ok(Self {
            arch: Arch::new(),
            order,
            layers: layers.collect(),
            gradients: gradients.collect::<Result<_, _>>()?,
            total: memory()?,
            queue: Mutex::new(Queue {
                parts: VecDeque::new(),
                notes: (0..devices).map(|_| VecDeque::new()).collect(),
                error: None,
                closed: false,
            }),
            more: (0..devices).map(|_| Condvar::new()).collect(),
            moved: Condvar::new(),
        })
    }

    /// Devices whose gradients are added, and threads that may [`Sum::work`].
    pub fn devices(&self) -> usize {
        self.gradients.len()
    }

    /// Number of layers.
    pub fn layers(&self) -> usize {
        self.layers.len()
    }

    /// Gives a layer's gradient of one device in iteration `clock`, which is the same for all
    /// devices; `gradient` is as long as the layer. If this device's last one of that layer is not
    /// added yet, waits for that first.
    ///
    /// # Errors
    /// A device has failed, or the accumulation has ended.
    ///
    /// # Panics
    /// If there is no such device or layer, or `gradient` is not as long.
    pub fn give(
        &self,
        device: usize,
        layer: usize,
        clock: u64,
        gradient: &[f32],
        sink: &dyn Sink,
    ) -> Result<(), AccumulateError> {
        self.claim(device, layer, clock)?;
        let to = view(&self.gradients[device], &self.layers[layer].range);
        kernels::copy_in(to, gradient);
        self.arrive(device, layer, sink)
    }

    /// Makes a device's memory of a layer its own, until [`Sum::arrive`].
    pub(super) fn claim(
        &self,
        device: usize,
        layer: usize,
        clock: u64,
    ) -> Result<(), AccumulateError> {
        let counters = &self.layers[layer];
        let claimed = &counters.claimed[device];
        loop {
            let round = self.wait_for(device, layer, claimed.load(Ordering::Relaxed))?;
            // Fails if another thread has claimed for the same device meanwhile.
            let next =
                claimed.compare_exchange(round, round + 1, Ordering::Relaxed, Ordering::Relaxed);
            if next.is_ok() {
                // Read when all have arrived, which is after this.
                counters.clock.store(clock, Ordering::Relaxed);
                return Ok(());
            }
        }
    }

    /// Where gradients of a device go, between claim and arrival; all layers.
    pub(super) fn gradient(&self, device: usize) -> &HostMemory {
        &self.gradients[device]
    }

    /// Where the sums are; all layers.
    pub fn total(&self) -> &HostMemory {
        &self.total
    }

    /// Where a layer lies.
    pub fn range(&self, layer: usize) -> &Range<usize> {
        &self.layers[layer].range
    }

    /// A device's claimed gradient of a layer is in its place.
    pub(super) fn arrive(
        &self,
        device: usize,
        layer: usize,
        sink: &dyn Sink,
    ) -> Result<(), AccumulateError> {
        let counters = &self.layers[layer];
        counters.given[device].fetch_add(1, Ordering::Relaxed);
        if self.order == Order::Turns {
            return self.add_in_turn(device, layer, sink);
        }
        // Release: the gradient is there before it is counted. Acquire: the thread that counts the
        // last one sees all of them.
        let before = counters.arrived.fetch_add(1, Ordering::AcqRel);
        if !(before + 1).is_multiple_of(self.devices() as u64) {
            return Ok(());
        }
        let Range { start, end } = counters.range;
        let parts = (start..end).step_by(PART).map(|from| Part {
            layer,
            range: from..end.min(from + PART),
        });
        lock(&self.queue).parts.extend(parts);
        // This thread goes on to take parts as well, so one of the threads that are woken may find
        // none.
        let others = self.more.iter().take(counters.parts);
        others.for_each(Condvar::notify_one);
        Ok(())
    }

    /// Adds the gradient of `device` when those before it are added.
    fn add_in_turn(
        &self,
        device: usize,
        layer: usize,
        sink: &dyn Sink,
    ) -> Result<(), AccumulateError> {
        let counters = &self.layers[layer];
        let devices = self.devices() as u64;
        let turn = || counters.arrived.load(Ordering::Acquire) % devices == device as u64;
        self.wait_until(device, layer, turn)?;
        if device == 0 {
            // Others may have given nothing yet, and have the last sum on their way up.
            sink.clear(layer)?;
        }
        self.add(
            &counters.range,
            &self.gradients[device..=device],
            device == 0,
        );
        let last = device + 1 == self.devices();
        if last {
            sink.part(layer, &counters.range)?;
            sink.layer(layer, counters.clock.load(Ordering::Relaxed))?;
            counters.rounds.fetch_add(1, Ordering::Release);
        }
        counters.arrived.fetch_add(1, Ordering::Release);
        drop(lock(&self.queue));
        self.moved.notify_all();
        Ok(())
    }

    /// Tells thread `thread` something.
    pub(super) fn tell(&self, thread: usize, note: N) {
        lock(&self.queue).notes[thread].push_back(note);
        self.more[thread].notify_one();
    }

    /// Lends a thread, one for each device: adds parts, and does what the thread is told, until
    /// [`Sum::close`] or an error, which is the result.
    ///
    /// # Errors
    /// What ended it.
    ///
    /// # Panics
    /// If there is no device `thread`.
    pub fn work(
        &self,
        thread: usize,
        sink: &dyn Sink,
        mut told: impl FnMut(N) -> Result<(), AccumulateError>,
    ) -> Result<(), AccumulateError> {
        let watch = self.watch(thread);
        let mut queue = lock(&self.queue);
        loop {
            if let Some(error) = &queue.error {
                watch.done();
                return Err(error.clone());
            }
            if queue.closed {
                watch.done();
                return Ok(());
            }
            let done = if let Some(part) = queue.parts.pop_front() {
                drop(queue);
                self.add_part(&part, sink)
            } else if let Some(note) = queue.notes[thread].pop_front() {
                drop(queue);
                told(note)
            } else {
                let woken = self.more[thread].wait(queue);
                queue = woken.unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            if let Err(error) = done {
                self.end(error);
            }
            queue = lock(&self.queue);
        }
    }

    fn add_part(&self, part: &Part, sink: &dyn Sink) -> Result<(), AccumulateError> {
        let Part { layer, range } = part;
        let counters = &self.layers[*layer];
        self.add(range, &self.gradients, true);
        sink.part(*layer, range)?;
        // Release: this part is there before it is counted. Acquire: the thread that counts the
        // last one sees the whole layer.
        if counters.handed.fetch_add(1, Ordering::AcqRel) + 1 < counters.parts {
            return Ok(());
        }
        counters.handed.store(0, Ordering::Relaxed);
        sink.layer(*layer, counters.clock.load(Ordering::Relaxed))?;
        // Release: nothing of this round is touched after it.
        counters.rounds.fetch_add(1, Ordering::Release);
        drop(lock(&self.queue));
        self.moved.notify_all();
        Ok(())
    }
}

//! Gradients on their way: down from each device, and the sums up to all.
//!
//! Each device has one stream down and one up, in addition to those that compute. Its gradients are
//! in its own memory, where the sums replace them. The thread that acts for a device calls
//! [`Accumulate::give`] when the backward pass of a layer is put on a stream or done, goes on with
//! its pass, and calls [`Accumulate::wait`] at the end. Invariant: a layer of the total is not
//! written before the last sum of it has arrived on every device, nor a gradient on the host before
//! it was added. So every device gets the same sums whatever the timing.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use super::error::AccumulateError;
use super::sum::{LayerRange, Order, Sink, Sum, Watch};
use crate::device::{Device, DeviceError, Event as _, Memory, Stream as _, pin};

/// What a device does with a layer's sum as soon as it is there: puts the update on the stream that
/// brings it. Arguments: device, layer, iteration, stream.
pub type Work<D> =
    Box<dyn Fn(usize, usize, u64, &<D as Device>::Stream) -> Result<(), DeviceError> + Send + Sync>;

/// A gradient on its way down.
struct Down<D: Device> {
    layer: usize,
    there: D::Event,
}

/// A device with its two streams and its gradients.
struct Lane<D: Device> {
    gradient: D::Memory,
    down: D::Stream,
    up: D::Stream,
    /// By layer: its last sum is there, and worked on.
    done: Vec<Mutex<Option<D::Event>>>,
}

impl<D: Device> Lane<D> {
    /// Waits until the last sum of a layer has left the host.
    fn wait_until_up(&self, layer: usize) -> Result<(), DeviceError> {
        let done = self.done[layer].lock();
        let done = done.unwrap_or_else(PoisonError::into_inner).clone();
        done.map_or(Ok(()), |done| done.wait())
    }
}

/// Brings gradients down from devices, lets [`Sum`] add them, and brings the sums up to all.
pub struct Accumulate<D: Device> {
    lanes: Vec<Lane<D>>,
    sum: Sum<Down<D>>,
    work: Work<D>,
}

fn failed(device: usize) -> impl Fn(DeviceError) -> AccumulateError {
    move |error| AccumulateError::Device {
        device,
        why: error.to_string(),
    }
}

impl<D: Device> Accumulate<D> {
    /// Of devices with their gradients: device memory in which all layers have their places. `work`
    /// is called for each device and layer.
    ///
    /// # Errors
    /// What [`Sum::new`] refuses, gradients that do not hold all layers, and what devices say.
    pub fn new(
        layers: &[LayerRange],
        devices: Vec<(D, D::Memory)>,
        order: Order,
        work: Work<D>,
    ) -> Result<Self, AccumulateError> {
        let sum = Sum::new(layers, devices.len(), order)?;
        let lane = |(index, (device, gradient)): (usize, (D, D::Memory))| {
            if gradient.len() < sum.total().len() {
                return Err(AccumulateError::Short {
                    device: index,
                    words: gradient.len(),
                    needed: sum.total().len(),
                });
            }
            let make = || -> Result<Lane<D>, DeviceError> {
                pin(&device, sum.gradient(index));
                pin(&device, sum.total());
                Ok(Lane {
                    down: device.stream()?,
                    up: device.stream()?,
                    done: layers.iter().map(|_| Mutex::new(None)).collect(),
                    gradient,
                })
            };
            make().map_err(failed(index))
        };
        let lanes = devices.into_iter().enumerate().map(lane);
        Ok(Self {
            lanes: lanes.collect::<Result<_, _>>()?,
            sum,
            work,
        })
    }

    /// Gives `device`'s gradient of a layer, iteration `clock`: it starts down when `ready` is
    /// done. From now on its memory is not the device's to write, until [`Accumulate::wait`].
    ///
    /// # Errors
    /// Some device has failed, or all is over.
    ///
    /// # Panics
    /// If there is no such device or layer.
    pub fn give(
        &self,
        device: usize,
        layer: usize,
        clock: u64,
        ready: &D::Event,
    ) -> Result<(), AccumulateError> {
        let lane = &self.lanes[device];
        let down = || -> Result<D::Event, DeviceError> {
            let range = self.sum.range(layer).clone();
            lane.down.wait(ready)?;
            let to = self.sum.gradient(device).part(range.clone());
            lane.down.download(lane.gradient.part(range), to)?;
            lane.down.record()
        };
        // Else the next sum could overwrite the one that is on its way up.
        lane.wait_until_up(layer)
            .map_err(|error| self.tell_failed(device, error))?;
        self.sum.claim(device, layer, clock)?;
        let there = down().map_err(|error| self.tell_failed(device, error))?;
        self.sum.tell(device, Down { layer, there });
        Ok(())
    }

    /// Waits until the sums of all that `device` has given are in its gradient memory, and worked
    /// on.
    ///
    /// # Errors
    /// Some device has failed, or all is over.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn wait(&self, device: usize) -> Result<(), AccumulateError> {
        self.sum.wait(device)?;
        // Everything is on the stream by now, and in order.
        let up = self.lanes[device].up.finish();
        up.map_err(|error| self.tell_failed(device, error))
    }

    /// The error of a device, after the others were told: they would wait for what it does not
    /// give.
    fn tell_failed(&self, device: usize, error: DeviceError) -> AccumulateError {
        self.sum.fail(device, error.to_string());
        failed(device)(error)
    }

    /// Lends the CPU thread of `device`: waits for its gradients, and adds. Until
    /// [`Accumulate::close`], or an error, which is the result.
    ///
    /// # Errors
    /// What ended it.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn work(&self, device: usize) -> Result<(), AccumulateError> {
        self.sum.work(device, self, |Down { layer, there }| {
            there.wait().map_err(failed(device))?;
            self.sum.arrive(device, layer, self)
        })
    }

    /// The sums on the host.
    pub fn sum(&self) -> &crate::device::HostMemory {
        self.sum.total()
    }

    /// Ends the threads that work; each thread that waits gets an error.
    pub fn close(&self) {
        self.sum.close();
    }

    /// See [`Sum::fail`].
    pub fn fail(&self, device: usize, why: impl Into<String>) {
        self.sum.fail(device, why);
    }

    /// See [`Sum::watch`].
    pub fn watch(&self, device: usize) -> Watch<'_> {
        self.sum.watch(device)
    }
}

impl<D: Device> Sink for Accumulate<D> {
    fn clear(&self, layer: usize) -> Result<(), AccumulateError> {
        for (device, lane) in self.lanes.iter().enumerate() {
            lane.wait_until_up(layer).map_err(failed(device))?;
        }
        Ok(())
    }

    fn part(&self, _: usize, range: &Range<usize>) -> Result<(), AccumulateError> {
        for (device, lane) in self.lanes.iter().enumerate() {
            let from = self.sum.total().part(range.clone());
            let up = lane.up.upload(from, lane.gradient.part(range.clone()));
            up.map_err(failed(device))?;
        }
        Ok(())
    }

    fn layer(&self, layer: usize, clock: u64) -> Result<(), AccumulateError> {
        for (device, lane) in self.lanes.iter().enumerate() {
            let done = || -> Result<D::Event, DeviceError> {
                (self.work)(device, layer, clock, &lane.up)?;
                lane.up.record()
            };
            let done = done().map_err(failed(device))?;
            let place = lane.done[layer].lock();
            *place.unwrap_or_else(PoisonError::into_inner) = Some(done);
        }
        Ok(())
    }
}

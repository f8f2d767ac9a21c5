//! A net on a device, for a thread of a worker.
//!
//! The weights go up from the worker's buffer while the forward pass runs, each layer in time for
//! it. A layer's gradient, or its factors, comes down on a stream of its own as soon as its
//! backward pass is done, while the pass goes on with the layers below. Small layers are copied
//! together: so many that the words take as long as the copy itself. Touches the device and the
//! memory that copies go through. Invariant: nothing of a pass is on its way when the next one
//! begins.

use std::collections::HashMap;
use std::ops::Range;

use super::PoseidonError;
use super::local::Layer;
use crate::accumulate::{join_small, worth_a_copy};
#[cfg(feature = "cuda")]
use crate::device::cuda::CudaDevice;
use crate::device::host::HostDevice;
use crate::device::{Device, DeviceError, Event, HostMemory, Memory, Stream, Which, pin, pinned};
use crate::solver::{DeviceNet, DeviceNetError, Net, SolverSpec};
use crate::weights::{WeightsView, kernels};

/// What has come of a layer: the gradients of all that have, in the layout of the buffer, and this
/// layer's factors, if it sends those.
pub(super) type Came<'c> = dyn FnMut(usize, &[f32], Option<Vec<f32>>) + 'c;

/// The net of one thread, on whatever device. A pass is [`OnDevice::feed`], [`OnDevice::begin`] and
/// [`OnDevice::end`]; the next batch may be fed before the end.
pub(super) trait OnDevice: Send {
    /// Puts a batch on its way.
    fn feed(&mut self, images: &[f32], labels: &[u32]) -> Result<(), DeviceError>;

    /// Puts a pass over the next batch on the device. Gradients are added to those of the pass
    /// before if `keep`, and come down if `send`; factors always do.
    fn begin(&mut self, keep: bool, send: bool) -> Result<(), DeviceError>;

    /// Waits for the pass, layer by layer from the last one on. `grads` gets the gradients. Gives
    /// the mean loss.
    fn end(&mut self, grads: &mut [f32], came: &mut Came<'_>) -> Result<f32, DeviceError>;
}

/// What computes on a device: the training net of `spec`, whose layers are sent as `layers` says,
/// with the weights of `buffer`.
#[derive(Clone, Copy)]
pub(super) struct Given<'g> {
    pub(super) spec: &'g SolverSpec,
    pub(super) net: &'g Net,
    pub(super) layers: &'g [Layer],
    pub(super) buffer: &'g HostMemory,
}

impl Given<'_> {
    /// Puts it on device `which`; a host device gets the number `index`.
    pub(super) fn open(
        self,
        which: Which,
        index: usize,
    ) -> Result<Box<dyn OnDevice>, PoseidonError> {
        match which {
            Which::Host => Ok(Box::new(Work::new(&HostDevice::new(index), self)?)),
            #[cfg(feature = "cuda")]
            Which::Cuda(number) => {
                let device = CudaDevice::open(number).map_err(DeviceNetError::from)?;
                Ok(Box::new(Work::new(&device, self)?))
            }
            #[cfg(not(feature = "cuda"))]
            Which::Cuda(_) => Err(PoseidonError::WithoutCuda),
        }
    }
}

/// Layers that are copied together, in their order, and where they lie.
struct Group {
    layers: Vec<usize>,
    extent: Range<usize>,
}

impl Group {
    /// Those of all `layers` (number and extent, in the order in which they are copied) that have
    /// fewer than `least` floats are joined.
    fn all(layers: Vec<(usize, Range<usize>)>, least: usize) -> Vec<Self> {
        let floats = layers.iter().map(|(layer, extent)| (*layer, extent.len()));
        let joined = join_small(floats, least);
        let mut left = layers.into_iter();
        let group = |layers: Vec<usize>| {
            // In the order of the layers, or in that of a backward pass.
            let own = left.by_ref().take(layers.len()).map(|(_, extent)| extent);
            let both = |a: Range<usize>, b: Range<usize>| a.start.min(b.start)..a.end.max(b.end);
            Self {
                extent: own.reduce(both).unwrap_or_default(),
                layers,
            }
        };
        joined.into_iter().map(group).collect()
    }
}

/// Where a layer's weights are, and what comes down of it.
struct Place {
    extent: Range<usize>,
    /// Room for its factors, if it sends those.
    factors: Option<HostMemory>,
}

struct Work<D: Device> {
    net: DeviceNet<D>,
    weights: D::Memory,
    /// The weights of the worker.
    buffer: HostMemory,
    /// Gradients that have come down.
    landed: HostMemory,
    places: Vec<Place>,
    /// Weights that go up together.
    rising: Vec<Group>,
    /// Gradients that come down together, by the layer that is the last to be done.
    falling: HashMap<usize, Group>,
    up: D::Stream,
    down: D::Stream,
    /// Layers of the pass that come down, and when they are there.
    coming: Vec<(usize, D::Event)>,
}

impl<D: Device> Work<D> {
    fn new(device: &D, given: Given<'_>) -> Result<Self, DeviceNetError> {
        let Given {
            spec,
            net,
            layers,
            buffer,
        } = given;
        let mut on_device = DeviceNet::of_gradients(device, spec, net)?;
        let mut places = Vec::new();
        for (number, layer) in layers.iter().enumerate() {
            let images = net.batch_size();
            let factors = layer.factored.map(|[outputs, inputs]| {
                on_device.keep_factors(number);
                pinned(device, (outputs + inputs) * images)
            });
            places.push(Place {
                extent: layer.extent.clone(),
                factors: factors.transpose()?,
            });
        }
        pin(device, buffer);
        let least = worth_a_copy(device)?;
        log::debug!(
            "{}: layers of less than {least} weights are joined",
            device.name()
        );
        let extent = |(layer, place): (usize, &'_ Place)| (layer, place.extent.clone());
        let all = places.iter().enumerate();
        let rising = Group::all(all.clone().map(extent).collect(), least);
        let dense = all.rev().filter(|(_, place)| place.factors.is_none());
        let falling = Group::all(dense.map(extent).collect(), least);
        let falling = falling
            .into_iter()
            .filter_map(|group| Some((*group.layers.last()?, group)));
        Ok(Self {
            rising,
            falling: falling.collect(),
            weights: device.alloc(net.extent())?,
            landed: pinned(device, net.extent())?,
            up: device.stream()?,
            down: device.stream()?,
            coming: Vec::new(),
            net: on_device,
            buffer: buffer.clone(),
            places,
        })
    }

    /// Puts the weights on their way: for each layer the moment at which they are there.
    fn load(&self) -> Result<Vec<D::Event>, DeviceError> {
        let mut there = Vec::with_capacity(self.places.len());
        for group in &self.rising {
            let [from, to] = [group.extent.clone(), group.extent.clone()];
            self.up
                .upload(self.buffer.part(from), self.weights.part(to))?;
            let event = self.up.record()?;
            there.extend(group.layers.iter().map(|_| event.clone()));
        }
        Ok(there)
    }
}

impl<D: Device> OnDevice for Work<D> {
    fn feed(&mut self, images: &[f32], labels: &[u32]) -> Result<(), DeviceError> {
        self.net.feed(images, labels)
    }

    fn begin(&mut self, keep: bool, send: bool) -> Result<(), DeviceError> {
        // The weights stay as they are during an iteration.
        let there = match keep {
            false => self.load()?,
            true => Vec::new(),
        };
        let Self {
            net,
            weights,
            landed,
            places,
            falling,
            down,
            coming,
            ..
        } = self;
        net.begin_by_layers(weights, keep, &there, |done| {
            let factors = places[done.layer].factors.as_ref().zip(done.factors);
            let group = falling.get(&done.layer).filter(|_| send);
            if factors.is_none() && group.is_none() {
                return Ok(());
            }
            down.wait(&done.ready)?;
            if let Some((to, [u, v])) = factors {
                down.download(u.all(), to.part(0..u.len()))?;
                down.download(v.all(), to.part(u.len()..to.len()))?;
                coming.push((done.layer, down.record()?));
            }
            if let Some(group) = group {
                let [from, to] = [group.extent.clone(), group.extent.clone()];
                down.download(done.gradients.part(from), landed.part(to))?;
                let there = down.record()?;
                coming.extend(group.layers.iter().map(|layer| (*layer, there.clone())));
            }
            Ok(())
        })
    }

    fn end(&mut self, grads: &mut [f32], came: &mut Came<'_>) -> Result<f32, DeviceError> {
        for (layer, there) in std::mem::take(&mut self.coming) {
            there.wait()?;
            let place = &self.places[layer];
            let factors = place.factors.as_ref().map(|factors| copied(factors.view()));
            if factors.is_none() {
                let Range { start, end } = place.extent;
                let landed = self.landed.view().slice(start, end - start);
                kernels::copy_out(landed, &mut grads[start..end]);
            }
            came(layer, grads, factors);
        }
        self.net.end()
    }
}

fn copied(from: WeightsView<'_>) -> Vec<f32> {
    let mut values = vec![0.0; from.len()];
    kernels::copy_out(from, &mut values);
    values
}

#[cfg(test)]
mod tests;

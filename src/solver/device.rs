//! A net on a device: forward, backward and step by the kernels of `device`, on the device's own
//! weights.
//!
//! Built from the same net as the processor's ([`Net`] has checked shapes and tensors), for chains
//! of the layers that LeNet has. Touches the device. Blobs are `[channel][row][column][image]`.
//! Invariants: all memory is taken at the start; the host waits once for each batch, for the loss.
//! The next batch goes up meanwhile.

mod chain;
mod feed;
mod step;

use std::ops::Range;

use super::error::ModelError;
use super::net::{Net, Tensor};
use super::net_spec::{LayerOp, LayerSpec, Phase};
use super::spec::SolverSpec;
use crate::device::kernels::{self, Geometry};
use crate::device::{Device, DeviceError, Event, HostMemory, Memory, Stream, pinned};
use chain::Chain;
use feed::Feed;

/// Why a net does not run on a device.
#[derive(Debug, thiserror::Error)]
pub enum DeviceNetError {
    /// The net has what devices cannot do.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The device has failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Where a layer's weight and bias are among all weights.
type Places = (Range<usize>, Option<Range<usize>>);

enum Op<M> {
    Convolution {
        geometry: Geometry,
        places: Places,
        columns: M,
    },
    MaxPool {
        geometry: Geometry,
        which: M,
    },
    InnerProduct {
        inputs: usize,
        places: Places,
    },
    Relu {
        slope: f32,
    },
    Loss,
}

struct Stage<M> {
    op: Op<M>,
    bottom: usize,
    top: usize,
    /// Its place in [`Net::layers`], if it learns.
    layer: Option<usize>,
}

struct Blob<M> {
    data: M,
    diff: M,
}

/// A layer whose backward pass is on the stream. What it leaves stays until the next pass begins.
pub struct LayerLeft<'n, D: Device> {
    /// Its place in [`Net::layers`].
    pub layer: usize,
    /// The gradients of all layers, in the layout of the buffer; not those of a layer that keeps
    /// its factors.
    pub gradients: &'n D::Memory,
    /// The factors of a fully connected layer, u (`[outputs][images]`) and v (`[inputs][images]`).
    pub factors: Option<[&'n D::Memory; 2]>,
    /// Once it is done, they are there.
    pub ready: D::Event,
}

/// A net for training on a device.
pub struct DeviceNet<D: Device> {
    stages: Vec<Stage<D::Memory>>,
    blobs: Vec<Blob<D::Memory>>,
    feed: Feed<D>,
    loss: D::Memory,
    gradients: D::Memory,
    history: D::Memory,
    stream: D::Stream,
    /// Brings the momentum to the host.
    keeper: D::Stream,
    host_loss: HostMemory,
    /// Sums of squares of weights and step, here and there.
    sums: D::Memory,
    host_sums: HostMemory,
    tensors: Vec<Tensor>,
    images: usize,
    loss_scale: f32,
    /// For each layer that learns, whether it keeps its factors.
    keeps_factors: Vec<bool>,
}

impl<D: Device> DeviceNet<D> {
    /// The training net `net` of `spec` on `device`.
    ///
    /// # Errors
    /// A layer or setting that devices do not have, by name; too little memory.
    pub fn new(device: &D, spec: &SolverSpec, net: &Net) -> Result<Self, DeviceNetError> {
        Self::with(device, spec, net, net.extent())
    }

    /// As [`new`](Self::new), for one who makes steps elsewhere. It has no momentum, and
    /// [`step`](Self::step) and what is about momentum panic.
    ///
    /// # Errors
    /// As of [`new`](Self::new).
    pub fn of_gradients(device: &D, spec: &SolverSpec, net: &Net) -> Result<Self, DeviceNetError> {
        Self::with(device, spec, net, 0)
    }

    fn with(
        device: &D,
        spec: &SolverSpec,
        net: &Net,
        momentum: usize,
    ) -> Result<Self, DeviceNetError> {
        if spec.clip_gradients.is_some() {
            return Err(ModelError::Mismatch(
                "clip_gradients does not work on a device: remove it, or train on the processor"
                    .to_owned(),
            )
            .into());
        }
        let n = net.batch_size();
        let mut chain = Chain::new(device, net);
        chain.blob(net.input().iter().product::<usize>() * n)?;
        let layers = spec.net.layers_in(Phase::Train);
        let layers: Vec<&LayerSpec> = layers
            .filter(|layer| !matches!(layer.op, LayerOp::Data { .. } | LayerOp::Accuracy { .. }))
            .collect();
        for layer in layers {
            chain.add(layer)?;
        }
        let Some(loss_scale) = chain.loss_scale else {
            return Err(ModelError::Mismatch(format!(
                "the net {} has no SoftmaxWithLoss layer: nothing can be learned",
                spec.net.name
            ))
            .into());
        };
        Ok(Self {
            feed: Feed::new(device, chain.sizes[0] / n, n)?,
            host_loss: pinned(device, n)?,
            sums: device.alloc(2 * step::SUMS)?,
            host_sums: pinned(device, 2 * step::SUMS)?,
            loss: device.alloc(n)?,
            gradients: device.alloc(net.extent())?,
            history: device.alloc(momentum)?,
            stream: device.stream()?,
            keeper: device.stream()?,
            tensors: net.parameters().to_vec(),
            images: n,
            loss_scale,
            keeps_factors: vec![false; net.layers().len()],
            stages: chain.stages,
            blobs: chain.blobs,
        })
    }

    /// Puts a batch (NCHW) on its way. That may be while the batch before is worked on: between
    /// [`begin`](Self::begin) and [`end`](Self::end).
    ///
    /// # Errors
    /// The device has failed.
    ///
    /// # Panics
    /// If it has another size than the net, or if there are two that were not worked on.
    pub fn feed(&mut self, images: &[f32], labels: &[u32]) -> Result<(), DeviceError> {
        self.feed.put(images, labels)
    }

    /// Begins with the gradients of the next batch that was fed, overwriting those before, or added
    /// to them if `keep`. `weights` are read as they are at that moment, racing with their writers.
    ///
    /// # Errors
    /// The device has failed.
    ///
    /// # Panics
    /// If no batch was fed.
    pub fn begin(&mut self, weights: &D::Memory, keep: bool) -> Result<(), DeviceError> {
        self.begin_by_layers(weights, keep, &[], |_| Ok(()))
    }

    /// As [`begin`](Self::begin), layer by layer: the forward pass waits for the weights of a layer
    /// (`there`, in the order of [`Net::layers`]; empty: for none), and `done` is called for each
    /// layer that learns, the last one first, when its backward pass is on the stream.
    ///
    /// # Errors
    /// The device has failed; what `done` returns.
    ///
    /// # Panics
    /// If no batch was fed.
    pub fn begin_by_layers(
        &mut self,
        weights: &D::Memory,
        keep: bool,
        there: &[D::Event],
        mut done: impl FnMut(LayerLeft<'_, D>) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        self.feed.take(&self.stream)?;
        for stage in &self.stages {
            if let Some(there) = stage.layer.and_then(|layer| there.get(layer)) {
                self.stream.wait(there)?;
            }
            self.forward(stage, weights)?;
        }
        for stage in self.stages.iter().rev() {
            self.backward(stage, weights, keep)?;
            if let Some(layer) = stage.layer {
                let factors = [&self.blobs[stage.top].diff, self.data(stage.bottom)];
                let connected = matches!(stage.op, Op::InnerProduct { .. });
                done(LayerLeft {
                    layer,
                    gradients: &self.gradients,
                    factors: connected.then_some(factors),
                    ready: self.stream.record()?,
                })?;
            }
        }
        self.stream.download(self.loss.all(), self.host_loss.all())
    }

    /// Leaves out the gradients of fully connected layer `layer` (of [`Net::layers`]), whose
    /// factors are taken instead.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn keep_factors(&mut self, layer: usize) {
        self.keeps_factors[layer] = true;
    }

    /// Waits until the gradients are there; gives the mean loss.
    ///
    /// # Errors
    /// The device has failed.
    pub fn end(&self) -> Result<f32, DeviceError> {
        self.stream.record()?.wait()?;
        let losses = (0..self.images).map(|i| self.host_loss.view().load(i));
        Ok(losses.sum::<f32>() * self.loss_scale)
    }

    /// What is in a blob; the first are the pictures.
    fn data(&self, blob: usize) -> &D::Memory {
        match blob {
            0 => self.feed.images(),
            _ => &self.blobs[blob].data,
        }
    }

    fn forward(&self, stage: &Stage<D::Memory>, weights: &D::Memory) -> Result<(), DeviceError> {
        let stream = &self.stream;
        let (x, y) = (self.data(stage.bottom), &self.blobs[stage.top].data);
        match &stage.op {
            Op::Convolution {
                geometry,
                places,
                columns,
            } => {
                kernels::im2col(stream, x.all(), columns.all(), geometry)?;
                let sizes = [geometry.rows(), geometry.columns()];
                self.times_weights(weights, places, columns, y, sizes)
            }
            Op::InnerProduct { inputs, places } => {
                self.times_weights(weights, places, x, y, [*inputs, self.images])
            }
            Op::MaxPool { geometry, which } => {
                kernels::max_pool(stream, x.all(), y.all(), which.all(), geometry)
            }
            Op::Relu { slope } => kernels::relu(stream, x.all(), y.all(), *slope),
            Op::Loss => {
                let diff = self.blobs[stage.bottom].diff.all();
                let (labels, loss) = (self.feed.labels().all(), self.loss.all());
                kernels::softmax_loss(stream, x.all(), labels, diff, loss, self.loss_scale)
            }
        }
    }

    /// `y = weights × x + bias`; `x` is `inner × columns`.
    fn times_weights(
        &self,
        weights: &D::Memory,
        (weight, bias): &Places,
        x: &D::Memory,
        y: &D::Memory,
        [inner, columns]: [usize; 2],
    ) -> Result<(), DeviceError> {
        let sizes = [weight.len() / inner, columns, inner];
        let operands = [weights.part(weight.clone()), x.all(), y.all()];
        kernels::product(&self.stream, operands, sizes, [false; 2], false)?;
        match bias {
            Some(bias) => kernels::add_bias(&self.stream, y.all(), weights.part(bias.clone())),
            None => Ok(()),
        }
    }

    fn backward(
        &self,
        stage: &Stage<D::Memory>,
        weights: &D::Memory,
        keep: bool,
    ) -> Result<(), DeviceError> {
        let stream = &self.stream;
        let (bottom, top) = (&self.blobs[stage.bottom], &self.blobs[stage.top]);
        // The gradient of the pictures is not needed.
        let wanted = stage.bottom > 0;
        match &stage.op {
            Op::Convolution {
                geometry,
                places,
                columns,
            } => {
                let sizes = [geometry.rows(), geometry.columns()];
                self.weight_gradient(places, columns, &top.diff, sizes, keep)?;
                if !wanted {
                    return Ok(());
                }
                // The matrix of the forward pass is not needed any more: that of the backward pass
                // replaces it.
                self.back_through(weights, places, &top.diff, columns, sizes)?;
                kernels::col2im(stream, columns.all(), bottom.diff.all(), geometry)
            }
            Op::InnerProduct { inputs, places } => {
                let sizes = [*inputs, self.images];
                let x = self.data(stage.bottom);
                if !stage.layer.is_some_and(|layer| self.keeps_factors[layer]) {
                    self.weight_gradient(places, x, &top.diff, sizes, keep)?;
                }
                if !wanted {
                    return Ok(());
                }
                self.back_through(weights, places, &top.diff, &bottom.diff, sizes)
            }
            Op::MaxPool { geometry, which } if wanted => {
                let (dy, dx) = (top.diff.all(), bottom.diff.all());
                kernels::max_pool_back(stream, dy, which.all(), dx, geometry)
            }
            Op::Relu { slope } if wanted => {
                let (dy, dx) = (top.diff.all(), bottom.diff.all());
                kernels::relu_back(stream, top.data.all(), dy, dx, *slope)
            }
            // The forward pass of the loss has left its gradient.
            Op::MaxPool { .. } | Op::Relu { .. } | Op::Loss => Ok(()),
        }
    }

    /// The gradient of weight and bias: `dy × xᵀ`, and the sum of `dy`.
    fn weight_gradient(
        &self,
        (weight, bias): &Places,
        x: &D::Memory,
        dy: &D::Memory,
        [inner, columns]: [usize; 2],
        keep: bool,
    ) -> Result<(), DeviceError> {
        let sizes = [weight.len() / inner, inner, columns];
        let operands = [dy.all(), x.all(), self.gradients.part(weight.clone())];
        kernels::product(&self.stream, operands, sizes, [false, true], keep)?;
        match bias {
            Some(bias) => {
                let to = self.gradients.part(bias.clone());
                kernels::sum_rows(&self.stream, dy.all(), to, keep)
            }
            None => Ok(()),
        }
    }

    /// `dx = weightsᵀ × dy`.
    fn back_through(
        &self,
        weights: &D::Memory,
        (weight, _): &Places,
        dy: &D::Memory,
        dx: &D::Memory,
        [inner, columns]: [usize; 2],
    ) -> Result<(), DeviceError> {
        let sizes = [inner, columns, weight.len() / inner];
        let operands = [weights.part(weight.clone()), dy.all(), dx.all()];
        kernels::product(&self.stream, operands, sizes, [true, false], false)
    }
}

#[cfg(test)]
mod tests;

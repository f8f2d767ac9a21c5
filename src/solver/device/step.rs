//! The step of SGD on a device: that of `update`, and of `stride` in a cluster.

use super::DeviceNet;
use crate::device::kernels::{self, StepFactors};
use crate::device::{Device, DeviceError, Event, HostMemory, Memory, Stream};
use crate::solver::spec::{Regularization, SolverSpec};
use crate::solver::stride::Cluster;
use crate::solver::update::Squares;

/// Threads that sum squares.
pub(super) const SUMS: usize = 4096;

impl<D: Device> DeviceNet<D> {
    /// Makes a step with the gradients (of `iter_size` batches), which [`end`](Self::end) has
    /// waited for, on `stream`, which sees the weights alone if it is the one that takes positions.
    /// The next batch is worked on after it. Gives the stride, as
    /// [`update_in_cluster`](crate::solver::update_in_cluster) does.
    ///
    /// # Errors
    /// The device has failed.
    pub fn step(
        &self,
        spec: &SolverSpec,
        stream: &D::Stream,
        weights: &D::Memory,
        rate: f32,
        cluster: &Cluster,
    ) -> Result<f32, DeviceError> {
        let alone = cluster.portion >= 1.0;
        self.velocity(spec, stream, weights, rate, if alone { 1.0 } else { 0.0 })?;
        let mut stride = 1.0;
        if !alone {
            stride = cluster.stride_of(self.squares(stream, weights)?);
            for tensor in &self.tensors {
                let all = tensor.offset..tensor.offset + tensor.len;
                for (part, factor) in cluster.parts(all, stride) {
                    if !part.is_empty() {
                        let step = self.history.part(part.clone());
                        kernels::walk(stream, weights.part(part), step, factor)?;
                    }
                }
            }
        }
        self.stream.wait(&stream.record()?)?;
        Ok(stride)
    }

    /// Halves the momentum, as if the last steps had been half as long.
    ///
    /// # Errors
    /// The device has failed.
    pub fn halve_momentum(&self, stream: &D::Stream) -> Result<(), DeviceError> {
        for tensor in &self.tensors {
            let place = tensor.offset..tensor.offset + tensor.len;
            let [history, same] = [place.clone(), place].map(|place| self.history.part(place));
            kernels::walk(stream, history, same, 0.5)?;
        }
        Ok(())
    }

    /// Goes on with a momentum that [`keep_momentum`](Self::keep_momentum) has brought.
    ///
    /// # Errors
    /// The device has failed.
    ///
    /// # Panics
    /// If it has fewer values than there are weights.
    pub fn take_momentum(&self, from: &HostMemory) -> Result<(), DeviceError> {
        let all = from.part(0..self.history.len());
        self.stream.upload(all, self.history.all())?;
        self.stream.finish()
    }

    /// Brings the momentum to the host, behind what is on `stream` by now. Steps may go on
    /// meanwhile: what arrives is in parts of one step and in parts of a later one. The event is
    /// done when all of it is there.
    ///
    /// # Errors
    /// The device has failed.
    ///
    /// # Panics
    /// If `to` has fewer values than there are weights.
    pub fn keep_momentum(
        &self,
        stream: &D::Stream,
        to: &HostMemory,
    ) -> Result<D::Event, DeviceError> {
        self.keeper.wait(&stream.record()?)?;
        let all = to.part(0..self.history.len());
        self.keeper.download(self.history.all(), all)?;
        self.keeper.record()
    }

    /// Leaves the step in the history, and takes it off the weights `stride` times.
    fn velocity(
        &self,
        spec: &SolverSpec,
        stream: &D::Stream,
        weights: &D::Memory,
        rate: f32,
        stride: f32,
    ) -> Result<(), DeviceError> {
        for tensor in &self.tensors {
            let place = tensor.offset..tensor.offset + tensor.len;
            let rate = rate * tensor.param.lr_mult;
            kernels::sgd_step(
                stream,
                weights.part(place.clone()),
                self.gradients.part(place.clone()),
                self.history.part(place),
                StepFactors {
                    rate: rate / spec.iter_size as f32,
                    decay: rate * spec.weight_decay * tensor.param.decay_mult,
                    momentum: spec.momentum,
                    l1: spec.regularization_type == Regularization::L1,
                    stride,
                },
            )?;
        }
        Ok(())
    }

    /// The squares of weights and step, summed on the device as far as many threads go, here the
    /// rest.
    fn squares(&self, stream: &D::Stream, weights: &D::Memory) -> Result<Squares, DeviceError> {
        let halves = [0..SUMS, SUMS..2 * SUMS];
        for (memory, half) in [weights, &self.history].into_iter().zip(&halves) {
            for (i, tensor) in self.tensors.iter().enumerate() {
                let values = memory.part(tensor.offset..tensor.offset + tensor.len);
                kernels::squares(stream, values, self.sums.part(half.clone()), i > 0)?;
            }
        }
        stream.download(self.sums.all(), self.host_sums.all())?;
        stream.record()?.wait()?;
        let sums = self.host_sums.view();
        let [weights, step] = halves.map(|half| half.map(|i| f64::from(sums.load(i))).sum());
        Ok(Squares { weights, step })
    }
}

//! The sum over the threads of one worker: their gradients of a layer become one contribution.
//!
//! The third level of Poseidon, below peers and servers. Gradients are accumulated
//! (`accumulate`): a thread copies its own and continues its pass. Other threads add those of all,
//! in the order of the threads, and give the sum to the layer's syncer. Factors are joined by the
//! thread that comes last. A worker of one thread sends its gradients as they are.

use std::ops::Range;
use std::sync::Mutex;

use super::super::client::Client;
use super::super::error::PoseidonError;
use super::super::sync::lock;
use crate::accumulate::{AccumulateError, LayerRange, Order, Sink, Sum, Watch};
use crate::poseidon::{Contribution, Plan, PlanLayer};
use crate::solver::Factors;
use crate::weights::kernels;

/// A layer: its range in the buffer, and how its gradient travels.
#[derive(Clone, Debug)]
pub(super) struct Layer {
    pub(super) extent: Range<usize>,
    /// Outputs and inputs, if factors travel instead of gradients.
    pub(super) factored: Option<[usize; 2]>,
}

impl Layer {
    pub(super) fn of(layer: &PlanLayer) -> Self {
        let first = layer.tensors.first().map_or(0, |t| t.offset);
        let end = layer.tensors.last().map_or(0, |t| t.offset + t.len);
        let sizes = [layer.shape.outputs as usize, layer.shape.inputs as usize];
        Self {
            extent: first..end,
            factored: layer.scheme.sends_factors().then_some(sizes),
        }
    }
}

/// Factors of a layer, each with the thread they come from.
type Parts = Vec<(usize, Vec<f32>)>;

/// The sums of one worker; see the module.
pub(super) struct Local {
    threads: usize,
    layers: Vec<(Layer, Mutex<Parts>)>,
    /// For each layer its place in the sum, if its gradients are added.
    place: Vec<Option<usize>>,
    /// For each place in the sum the layer.
    summed: Vec<usize>,
    /// `None` if there is one thread, or all layers send factors.
    sum: Option<Sum>,
}

/// Gives finished sums to the syncers.
struct Sending<'s> {
    local: &'s Local,
    sum: &'s Sum,
    client: &'s Client,
}

impl Sink for Sending<'_> {
    fn part(&self, _: usize, _: &Range<usize>) -> Result<(), AccumulateError> {
        Ok(())
    }

    fn layer(&self, place: usize, _: u64) -> Result<(), AccumulateError> {
        let layer = self.local.summed[place];
        let range = self.sum.range(place);
        let total = self.sum.total().view().slice(range.start, range.len());
        match self.client.room(layer) {
            Ok(mut room) => {
                kernels::copy_out(total, &mut room);
                self.local.send(self.client, layer, Contribution::Own(room));
            }
            Err(error) => self.client.abort(error),
        }
        Ok(())
    }
}

/// Ends the threads that add, however the worker ends.
pub(super) struct Closing<'l>(&'l Local);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        if let Some(sum) = &self.0.sum {
            sum.close();
        }
    }
}

impl Local {
    /// The sums for `threads` threads and the layers of `plan`.
    pub(super) fn new(
        plan: &Plan,
        layers: Vec<Layer>,
        threads: usize,
    ) -> Result<Self, PoseidonError> {
        let added = |layer: &&usize| threads > 1 && layers[**layer].factored.is_none();
        let all: Vec<usize> = (0..layers.len()).collect();
        let summed: Vec<usize> = all.iter().filter(added).copied().collect();
        let place = |layer| summed.iter().position(|other| *other == layer);
        let place = all.iter().map(|layer| place(*layer)).collect();
        let range = |layer: &usize| LayerRange {
            name: plan.layers[*layer].name.clone(),
            range: layers[*layer].extent.clone(),
        };
        let ranges: Vec<_> = summed.iter().map(range).collect();
        let sum = match ranges.is_empty() {
            true => None,
            false => Some(Sum::new(&ranges, threads, Order::Parts)?),
        };
        let layers = layers.into_iter().map(|layer| (layer, Mutex::default()));
        Ok(Self {
            threads,
            layers: layers.collect(),
            place,
            summed,
            sum,
        })
    }

    /// Lends `thread` (one for each that computes) to add gradients until [`Closing`] is dropped.
    pub(super) fn work(&self, thread: usize, client: &Client) {
        let Some(sum) = &self.sum else { return };
        let sink = Sending {
            local: self,
            sum,
            client,
        };
        if let Err(error) = sum.work(thread, &sink, |note| match note {}) {
            client.abort(error.into());
        }
    }

    /// Sends a layer. What the client refuses ends the run: the plan and this worker disagree.
    fn send(&self, client: &Client, layer: usize, contribution: Contribution<'_>) {
        if let Err(error) = client.send(layer, contribution) {
            client.abort(error);
        }
    }

    /// A guard that ends the adding threads when it is dropped.
    pub(super) fn closing(&self) -> Closing<'_> {
        Closing(self)
    }

    /// A guard for computing thread `thread`: if it panics, the others do not wait for it.
    pub(super) fn watch(&self, thread: usize) -> Option<Watch<'_>> {
        self.sum.as_ref().map(|sum| sum.watch(thread))
    }

    /// Waits until the syncers have all gradients that `thread` gave.
    pub(super) fn wait(&self, thread: usize) -> Result<(), PoseidonError> {
        match &self.sum {
            Some(sum) => Ok(sum.wait(thread)?),
            None => Ok(()),
        }
    }

    /// Takes a thread's gradients of a layer; the sum is sent when those of all threads are there.
    pub(super) fn give(
        &self,
        client: &Client,
        clock: u64,
        thread: usize,
        layer: usize,
        grads: &[f32],
        factors: Vec<Vec<f32>>,
    ) {
        let (info, parts) = &self.layers[layer];
        if let (Some(sum), Some(place)) = (&self.sum, self.place[layer]) {
            let sink = Sending {
                local: self,
                sum,
                client,
            };
            let own = &grads[info.extent.clone()];
            if let Err(error) = sum.give(thread, place, clock, own, &sink) {
                client.abort(error.into());
            }
            return;
        }
        let Some(sizes) = info.factored else {
            let (from, values) = (0, grads);
            return self.send(client, layer, Contribution::Gradient { from, values });
        };
        let mut parts = lock(parts);
        parts.push((thread, join(factors, sizes)));
        if parts.len() < self.threads {
            return;
        }
        let mut all = std::mem::take(&mut *parts);
        all.sort_by_key(|(thread, _)| *thread);
        let factors = join(all.into_iter().map(|(_, part)| part).collect(), sizes);
        self.send(client, layer, Contribution::Factors(factors));
    }
}

/// Factors without the padding between them: u, then v. Empty for a layer that no loss reaches.
pub(super) fn compact(factors: Option<Factors<'_>>, [outputs, inputs]: [usize; 2]) -> Vec<f32> {
    let Some(Factors {
        u,
        v,
        images,
        stride,
    }) = factors
    else {
        return Vec::new();
    };
    let mut packed = Vec::with_capacity((outputs + inputs) * images);
    for row in u.chunks_exact(stride).chain(v.chunks_exact(stride)) {
        packed.extend_from_slice(&row[..images]);
    }
    packed
}

/// Joins the factors of several batches: each row continues with that of the next batch.
fn join(mut parts: Vec<Vec<f32>>, [outputs, inputs]: [usize; 2]) -> Vec<f32> {
    let rows = outputs + inputs;
    if parts.len() < 2 {
        return parts.pop().unwrap_or_default();
    }
    let mut joined = Vec::with_capacity(parts.iter().map(Vec::len).sum());
    for row in 0..rows {
        for part in &parts {
            let images = part.len() / rows;
            joined.extend_from_slice(&part[row * images..(row + 1) * images]);
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_of_two_batches_are_those_of_one() {
        let f = |u: &'static [f32], v: &'static [f32], images, stride| {
            Some(Factors {
                u,
                v,
                images,
                stride,
            })
        };
        let a = compact(f(&[1., 2., 0., 3., 4., 0.], &[5., 6., 0.], 2, 3), [2, 1]);
        assert_eq!(a, [1., 2., 3., 4., 5., 6.]);
        let b = compact(f(&[7., 8.], &[9.], 1, 1), [2, 1]);
        assert_eq!(
            join(vec![a, b, compact(None, [2, 1])], [2, 1]),
            [1., 2., 7., 3., 4., 8., 5., 6., 9.]
        );
    }
}

//! The passes of a net: forward, backward, evaluation.

use super::layers::{Bottoms, Gradients, Outcome, Params, Pass, Top};
use super::net::{Gives, Net, Node, Tensor};
use super::net_spec::Phase;
use crate::weights::WeightsView;
use dogwild_kernels::elementwise::{add, images_to_blocks};

/// What an evaluation found, summed over its images.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Evaluation {
    /// Sum over images of the objective (losses times their weights).
    pub loss_sum: f64,
    /// Images whose label had the largest score (by the net's first `Accuracy` layer, or its
    /// first loss if there is none).
    pub correct: usize,
    /// Images that counted.
    pub count: usize,
}

impl Evaluation {
    /// Mean loss per image; 0 if there was none.
    pub fn loss(&self) -> f64 {
        self.loss_sum / self.count.max(1) as f64
    }

    /// Share of correct images, 0 to 1.
    pub fn accuracy(&self) -> f64 {
        self.correct as f64 / self.count.max(1) as f64
    }
}

impl std::ops::AddAssign for Evaluation {
    fn add_assign(&mut self, other: Self) {
        self.loss_sum += other.loss_sum;
        self.correct += other.correct;
        self.count += other.count;
    }
}

/// Sufficient factors of a fully connected layer for one batch: its gradient is `u × vᵀ`, and
/// that of its bias the sum of `u` over the images.
#[derive(Debug, Clone, Copy)]
pub struct Factors<'a> {
    /// Gradients of the loss with respect to the layer's top, `[output][stride]`.
    pub u: &'a [f32],
    /// The layer's bottom, `[input][stride]`.
    pub v: &'a [f32],
    /// Images of the batch: the first of each row; what follows is padding.
    pub images: usize,
    /// Values of a row.
    pub stride: usize,
}

/// A layer whose backward pass is done.
pub struct LayerDone<'a> {
    /// Which, of [`Net::layers`].
    pub layer: usize,
    /// Its tensors.
    pub tensors: &'a [Tensor],
    /// All gradients, in the layout of the weights; final where this layer's tensors lie (and not
    /// written there if [`Net::keep_factors`]).
    pub gradients: &'a mut [f32],
    /// Its factors, if it is fully connected and the loss reaches it.
    pub factors: Option<Factors<'a>>,
}

impl Net {
    /// One step's gradients: runs `images` (NCHW, one per label, at most a batch) forward and
    /// backward and overwrites `grads`, which has the layout of `w`, where the net's tensors lie.
    /// Gives the loss. Weights are read from `w` as they are at that moment, racing with their
    /// writers.
    ///
    /// # Panics
    /// If lengths do not fit, or a label is not below the number of outputs.
    pub fn forward_backward(
        &mut self,
        w: WeightsView<'_>,
        images: &[f32],
        labels: &[u32],
        grads: &mut [f32],
    ) -> f32 {
        self.pass(w, images, labels, grads, false, |_| {})
    }

    /// As [`Net::forward_backward`], but adds to `grads`: for `iter_size` batches per update.
    ///
    /// # Panics
    /// As [`Net::forward_backward`].
    pub fn add_gradients(
        &mut self,
        w: WeightsView<'_>,
        images: &[f32],
        labels: &[u32],
        grads: &mut [f32],
    ) -> f32 {
        self.pass(w, images, labels, grads, true, |_| {})
    }

    /// As [`Net::forward_backward`] (or [`Net::add_gradients`] if `keep`); calls `done` for each
    /// layer as soon as its gradients are final, last layer first: what wait-free backpropagation
    /// sends. That layer's weights are not read again in this pass.
    ///
    /// # Panics
    /// As [`Net::forward_backward`].
    pub fn forward_backward_with(
        &mut self,
        w: WeightsView<'_>,
        images: &[f32],
        labels: &[u32],
        grads: &mut [f32],
        keep: bool,
        done: impl FnMut(LayerDone<'_>),
    ) -> f32 {
        self.pass(w, images, labels, grads, keep, done)
    }

    fn pass(
        &mut self,
        w: WeightsView<'_>,
        images: &[f32],
        labels: &[u32],
        grads: &mut [f32],
        keep: bool,
        done: impl FnMut(LayerDone<'_>),
    ) -> f32 {
        assert!(
            grads.len() >= self.extent(),
            "{} gradients for {} weights",
            grads.len(),
            self.extent()
        );
        let pass = self.forward(w, images, labels);
        self.backward(pass, w, grads, keep, done);
        let loss: f64 = self
            .outcomes()
            .map(|(weight, o)| weight * o.loss_sum / o.normaliser)
            .sum();
        loss as f32
    }

    /// Runs `images` forward only.
    ///
    /// # Panics
    /// As [`Net::forward_backward`].
    pub fn evaluate(&mut self, w: WeightsView<'_>, images: &[f32], labels: &[u32]) -> Evaluation {
        self.forward(w, images, labels);
        let loss_sum = self.outcomes().map(|(weight, o)| weight * o.loss_sum).sum();
        let best = self.outcomes().map(|(_, o)| o).min_by_key(|o| o.is_loss);
        let (correct, count) = best.map_or((0, labels.len()), |o| (o.correct, o.count));
        Evaluation {
            loss_sum,
            correct,
            count,
        }
    }

    fn outcomes(&self) -> impl Iterator<Item = (f64, Outcome)> + '_ {
        self.nodes
            .iter()
            .filter_map(|n| n.layer.outcome().map(|o| (f64::from(n.loss_weight), o)))
    }

    fn forward<'a>(&mut self, w: WeightsView<'_>, images: &[f32], labels: &'a [u32]) -> Pass<'a> {
        let size: usize = self.input.iter().product();
        assert_eq!(
            images.len(),
            size * labels.len(),
            "images of {size} values, one per label"
        );
        assert!(
            labels.len() <= self.batch,
            "{} images for a batch of {}",
            labels.len(),
            self.batch
        );
        assert!(
            w.len() >= self.extent(),
            "a buffer of {} for {} weights",
            w.len(),
            self.extent()
        );
        self.passes = self.passes.wrapping_add(1);
        let train = self.phase == Phase::Train;
        let pass = Pass {
            images: labels.len(),
            labels,
            train,
            count: self.passes,
        };
        let input = &mut self.blobs[self.input_blob].data;
        images_to_blocks(self.arch, images, size, input);
        // Blocks without any image keep what was there; zero them so that nothing stale is summed.
        let used = size * labels.len().next_multiple_of(dogwild_kernels::BLOCK);
        input[used..].fill(0.0);
        for node in &mut self.nodes {
            let params = params(&self.tensors, node, w);
            // The top leaves the blobs while its layer reads the others.
            let mut top = node
                .top
                .map(|t| std::mem::take(&mut self.blobs[t].data))
                .unwrap_or_default();
            let bottoms = Bottoms {
                blobs: &self.blobs,
                indices: &node.bottoms,
            };
            if node.layer.in_place() && !node.shares_blob {
                top.copy_from_slice(bottoms.data(0));
            }
            node.layer.forward(pass, params, bottoms, &mut top);
            if let Some(t) = node.top {
                self.blobs[t].data = top;
            }
        }
        pass
    }

    fn backward(
        &mut self,
        pass: Pass<'_>,
        w: WeightsView<'_>,
        grads: &mut [f32],
        keep: bool,
        mut done: impl FnMut(LayerDone<'_>),
    ) {
        let mut layer = self.nodes.iter().filter(|node| node.tensors.1 > 0).count();
        for i in (0..self.nodes.len()).rev() {
            let (first, count) = self.nodes[i].tensors;
            let tensors = first..first + count;
            if self.nodes[i].reached {
                self.layer_backward(i, pass, w, grads, keep);
            } else if !keep {
                for t in &self.tensors[tensors.clone()] {
                    grads[t.offset..t.offset + t.len].fill(0.0);
                }
            }
            if count > 0 {
                layer -= 1;
                let node = &self.nodes[i];
                let factors = node.layer.factors().filter(|_| node.reached);
                done(LayerDone {
                    layer,
                    tensors: &self.tensors[tensors],
                    gradients: grads,
                    factors: factors.map(|(u, v)| Factors {
                        u,
                        v,
                        images: pass.images,
                        stride: dogwild_kernels::BLOCK
                            * self.batch.div_ceil(dogwild_kernels::BLOCK),
                    }),
                });
            }
        }
    }

    fn layer_backward(
        &mut self,
        i: usize,
        pass: Pass<'_>,
        w: WeightsView<'_>,
        grads: &mut [f32],
        keep: bool,
    ) {
        let Self {
            nodes,
            blobs,
            tensors,
            ..
        } = self;
        let node = &mut nodes[i];
        let params = params(tensors, node, w);
        // Leaves the blobs while the layer reads the others, as the top does forward.
        let mut top_diff = node
            .top
            .map(|t| std::mem::take(&mut blobs[t].diff))
            .unwrap_or_default();
        let bottoms = Bottoms {
            blobs,
            indices: &node.bottoms,
        };
        if node.shares_blob {
            let top = Top {
                data: bottoms.data(0),
                diff: &[],
                loss_weight: node.loss_weight,
            };
            node.layer
                .backward_data(pass, params, bottoms, 0, top, &mut top_diff);
        } else {
            if let Some(gradients) = gradients(tensors, node, grads, keep) {
                node.layer.backward_params(bottoms, &top_diff, gradients);
            }
            self.bottom_gradients(i, pass, w, &top_diff);
        }
        if let Some(t) = self.nodes[i].top {
            self.blobs[t].diff = top_diff;
        }
    }

    /// Gives each bottom that wants it its gradient, or adds to what another layer gave.
    fn bottom_gradients(&mut self, i: usize, pass: Pass<'_>, w: WeightsView<'_>, top_diff: &[f32]) {
        let Self {
            nodes,
            blobs,
            tensors,
            scratch,
            arch,
            ..
        } = self;
        let node = &mut nodes[i];
        let params = params(tensors, node, w);
        for (j, gives) in node.gives.iter().enumerate() {
            let bottom = node.bottoms[j];
            let mut own = match gives {
                Gives::Nothing => continue,
                Gives::First => std::mem::take(&mut blobs[bottom].diff),
                Gives::Added => std::mem::take(scratch),
            };
            let len = blobs[bottom].data.len();
            let bottoms = Bottoms {
                blobs,
                indices: &node.bottoms,
            };
            let data: &[f32] = node.top.map_or(&[], |t| &blobs[t].data);
            let top = Top {
                data,
                diff: top_diff,
                loss_weight: node.loss_weight,
            };
            if node.layer.in_place() {
                own[..len].copy_from_slice(top_diff);
            }
            node.layer
                .backward_data(pass, params, bottoms, j, top, &mut own[..len]);
            if *gives == Gives::First {
                blobs[bottom].diff = own;
            } else {
                add(*arch, &own[..len], &mut blobs[bottom].diff);
                *scratch = own;
            }
        }
    }
}

/// A layer's part of the shared weights.
fn params<'a>(tensors: &[Tensor], node: &Node, w: WeightsView<'a>) -> Params<'a> {
    let (first, count) = node.tensors;
    let view =
        |i: usize| (i < count).then(|| w.slice(tensors[first + i].offset, tensors[first + i].len));
    Params {
        weight: view(0),
        bias: view(1),
    }
}

/// A layer's part of the gradients.
fn gradients<'a>(
    tensors: &[Tensor],
    node: &Node,
    grads: &'a mut [f32],
    keep: bool,
) -> Option<Gradients<'a>> {
    let (first, count) = node.tensors;
    let range =
        |i: usize| tensors[first + i].offset..tensors[first + i].offset + tensors[first + i].len;
    match count {
        0 => None,
        1 => Some(Gradients {
            weight: &mut grads[range(0)],
            bias: None,
            keep,
        }),
        _ => {
            // `bind` has refused tensors that overlap.
            let [weight, bias] = grads.get_disjoint_mut([range(0), range(1)]).ok()?;
            Some(Gradients {
                weight,
                bias: Some(bias),
                keep,
            })
        }
    }
}

//! What is learned and how well: `SoftmaxWithLoss` and `Accuracy`.

use super::softmax::softmax;
use super::{Bottoms, Layer, Outcome, Params, Pass, Shape, Top, block_len};
use crate::solver::net_spec::Normalization;
use dogwild_kernels::{BLOCK, Buffer};

fn classes([channels, height, width]: Shape) -> Result<usize, String> {
    if height * width == 1 {
        Ok(channels)
    } else {
        Err(format!(
            "scores of {channels}x{height}x{width} are not one score per class; only 1x1 is supported"
        ))
    }
}

/// Place of the score for `class` of image `n`.
fn place(classes: usize, n: usize, class: usize) -> usize {
    (n / BLOCK * classes + class) * BLOCK + n % BLOCK
}

/// Whether fewer than `top_k` classes score at least as much as the label's (Caffe's rule
/// counts a tie against the label).
fn hit(scores: &[f32], classes: usize, n: usize, label: usize, top_k: usize) -> bool {
    let own = scores[place(classes, n, label)];
    let better = (0..classes)
        .filter(|&c| c != label && scores[place(classes, n, c)] >= own)
        .count();
    // A score that is not a number never hits.
    better < top_k && !own.is_nan()
}

/// Label of image `n` if it counts.
///
/// # Panics
/// If a label is not below the number of classes: loaders check that.
fn label_of(pass: &Pass<'_>, n: usize, classes: usize, ignore: Option<u32>) -> Option<usize> {
    let label = pass.labels[n];
    if ignore == Some(label) {
        return None;
    }
    assert!(
        (label as usize) < classes,
        "label {label} of image {n}, but the net has {classes} outputs"
    );
    Some(label as usize)
}

/// Softmax, then minus the logarithm of the label's share, summed over images.
pub(crate) struct SoftmaxWithLoss {
    classes: usize,
    ignore_label: Option<u32>,
    normalization: Normalization,
    shares: Buffer,
    outcome: Outcome,
}

impl SoftmaxWithLoss {
    pub(crate) fn new(
        scores: Shape,
        (ignore_label, normalization): (Option<u32>, Normalization),
        blocks: usize,
    ) -> Result<Self, String> {
        Ok(Self {
            classes: classes(scores)?,
            ignore_label,
            normalization,
            shares: Buffer::zeros(block_len(scores) * blocks),
            outcome: Outcome {
                loss_sum: 0.0,
                normaliser: 1.0,
                correct: 0,
                count: 0,
                is_loss: true,
            },
        })
    }
}

impl Layer for SoftmaxWithLoss {
    fn forward(&mut self, pass: Pass<'_>, _: Params<'_>, bottoms: Bottoms<'_>, _: &mut [f32]) {
        let k = self.classes;
        softmax([k, 1, 1], bottoms.data(0), &mut self.shares);
        let (mut sum, mut correct, mut count) = (0.0, 0, 0);
        for n in 0..pass.images {
            if let Some(label) = label_of(&pass, n, k, self.ignore_label) {
                let share = self.shares[place(k, n, label)];
                // `max` would replace a NaN by the smallest share, and hide that training has
                // diverged.
                let share = match share.is_nan() {
                    true => share,
                    false => share.max(f32::MIN_POSITIVE),
                };
                sum -= f64::from(share.ln());
                correct += usize::from(hit(&self.shares, k, n, label, 1));
                count += 1;
            }
        }
        let normaliser = match self.normalization {
            Normalization::Valid => count.max(1) as f64,
            Normalization::BatchSize => pass.images.max(1) as f64,
            Normalization::None => 1.0,
        };
        self.outcome = Outcome {
            loss_sum: sum,
            normaliser,
            correct,
            count,
            is_loss: true,
        };
    }

    fn backward_data(
        &mut self,
        pass: Pass<'_>,
        _: Params<'_>,
        _: Bottoms<'_>,
        _: usize,
        top: Top<'_>,
        diff: &mut [f32],
    ) {
        let k = self.classes;
        let scale = (f64::from(top.loss_weight) / self.outcome.normaliser) as f32;
        diff.fill(0.0);
        for n in 0..pass.images {
            if let Some(label) = label_of(&pass, n, k, self.ignore_label) {
                for c in 0..k {
                    let share = self.shares[place(k, n, c)];
                    diff[place(k, n, c)] = (share - f32::from(u8::from(c == label))) * scale;
                }
            }
        }
    }

    fn outcome(&self) -> Option<Outcome> {
        Some(self.outcome)
    }
}

/// Counts images whose label is among the `top_k` largest scores.
pub(crate) struct Accuracy {
    classes: usize,
    top_k: usize,
    ignore_label: Option<u32>,
    outcome: Outcome,
}

impl Accuracy {
    pub(crate) fn new(
        scores: Shape,
        top_k: usize,
        ignore_label: Option<u32>,
    ) -> Result<Self, String> {
        let classes = classes(scores)?;
        if top_k > classes {
            return Err(format!(
                "top_k is {top_k}, but there are only {classes} scores"
            ));
        }
        let outcome = Outcome {
            loss_sum: 0.0,
            normaliser: 1.0,
            correct: 0,
            count: 0,
            is_loss: false,
        };
        Ok(Self {
            classes,
            top_k,
            ignore_label,
            outcome,
        })
    }
}

impl Layer for Accuracy {
    fn forward(&mut self, pass: Pass<'_>, _: Params<'_>, bottoms: Bottoms<'_>, _: &mut [f32]) {
        (self.outcome.correct, self.outcome.count) = (0, 0);
        for n in 0..pass.images {
            if let Some(label) = label_of(&pass, n, self.classes, self.ignore_label) {
                self.outcome.correct +=
                    usize::from(hit(bottoms.data(0), self.classes, n, label, self.top_k));
                self.outcome.count += 1;
            }
        }
    }

    fn backward_data(
        &mut self,
        _: Pass<'_>,
        _: Params<'_>,
        _: Bottoms<'_>,
        _: usize,
        _: Top<'_>,
        _: &mut [f32],
    ) {
    }

    fn outcome(&self) -> Option<Outcome> {
        Some(self.outcome)
    }
}

//! The update of a solver whose node is one of several: it walks ahead as fast as all of them will.
//!
//! Work of other nodes comes late. A solver that goes on at its own speed until then, and whose work
//! is added to theirs later, makes the cluster unstable: all have gone the same way. Here its steps
//! are longer by the *stride*, up to the inverse of its node's portion of the cluster's iterations, and its
//! streamer sends that portion of what it walked: the rest was a guess at what the others do,
//! which their work replaces. In weights that the node masters there is nothing to guess: there it adds
//! the portion at once.
//!
//! A stride is limited so that no step is longer than 1 % of the weights (the trust ratio of LARS,
//! arXiv 1708.03888, as a limit): rates that learn well are below that, eight times them may not be.
//! Where the limit holds, the cluster learns as if its rate were lower, and stays stable.

use std::ops::Range;

use super::net::Net;
use super::spec::SolverSpec;
use super::update::{CHUNK, TensorStep, gradient_scale, update};
use crate::weights::{WeightsView, kernels};

/// Longest step that a stride may make, as a share of the length of all weights.
const LONGEST: f64 = 0.01;

/// What a solver has to know of the cluster that its node is in.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// This node's portion of the cluster's iterations, above 0, at most 1: what its streamer multiplies
    /// deltas by.
    pub portion: f32,
    /// The weights that this node masters.
    pub own: Range<usize>,
}

/// As [`update`], but walks ahead for the whole cluster. Gives the stride, 1 to 1 / portion. Alone
/// (portion 1) it is [`update`], bit for bit.
///
/// # Panics
/// As [`update`].
pub fn update_in_cluster(
    spec: &SolverSpec,
    net: &Net,
    w: WeightsView<'_>,
    grads: &[f32],
    history: WeightsView<'_>,
    rate: f32,
    cluster: &Cluster,
) -> f32 {
    if cluster.portion >= 1.0 {
        update(spec, net, w, grads, history, rate);
        return 1.0;
    }
    let scale = gradient_scale(spec, net.parameters(), grads);
    let mut squares = Squares::default();
    for tensor in net.parameters() {
        let (at, len) = (tensor.offset, tensor.len);
        TensorStep::new(spec, net.arch, tensor, rate, scale).prepare(
            w.slice(at, len),
            &grads[at..at + len],
            history.slice(at, len),
            &mut squares,
        );
    }
    let stride = squares.stride(1.0 / cluster.portion);
    for tensor in net.parameters() {
        let all = tensor.offset..tensor.offset + tensor.len;
        walk(w, history, all, stride, cluster);
    }
    stride
}

/// Sums of squares over all weights.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Squares {
    /// Of the weights.
    pub(super) weights: f64,
    /// Of the step.
    pub(super) step: f64,
}

impl Squares {
    /// The stride, at most `most`.
    pub(super) fn stride(self, most: f32) -> f32 {
        let limit = LONGEST * (self.weights / self.step).sqrt();
        // A step of nothing, or of what is not finite, has no limit to obey.
        if limit.is_nan() {
            return 1.0;
        }
        (limit as f32).min(most).max(1.0)
    }
}

impl Cluster {
    /// The parts of the weights `all` and how often a step is taken off each: `stride` times, but its portion
    /// where this node is the master.
    pub(super) fn parts(&self, all: Range<usize>, stride: f32) -> [(Range<usize>, f32); 3] {
        let begin = self.own.start.clamp(all.start, all.end);
        let end = self.own.end.clamp(begin, all.end);
        [
            (all.start..begin, stride),
            (begin..end, stride * self.portion),
            (end..all.end, stride),
        ]
    }
}

/// Takes the step in `history` off the weights `all`.
fn walk(
    w: WeightsView<'_>,
    history: WeightsView<'_>,
    all: Range<usize>,
    stride: f32,
    cluster: &Cluster,
) {
    let mut step = [0.0; CHUNK];
    for (part, factor) in cluster.parts(all, stride) {
        for at in part.clone().step_by(CHUNK) {
            let len = CHUNK.min(part.end - at);
            kernels::copy_out(history.slice(at, len), &mut step[..len]);
            kernels::racy_axpy(w.slice(at, len), -factor, &step[..len]);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;
    use crate::solver::Phase;

    const LENET: [usize; 3] = [1, 28, 28];

    struct Model {
        spec: SolverSpec,
        net: Net,
        w: Vec<AtomicU32>,
        history: Vec<AtomicU32>,
        grads: Vec<f32>,
    }

    impl Model {
        fn new() -> Self {
            let spec = SolverSpec::builtin("lenet").unwrap();
            let mut net = Net::new(&spec.net, Phase::Train, 2, LENET, 10).unwrap();
            let zeros = || -> Vec<AtomicU32> {
                let zero = || AtomicU32::new(0);
                std::iter::repeat_with(zero).take(net.extent()).collect()
            };
            let (w, history) = (zeros(), zeros());
            net.initialise(WeightsView::of(&w), 1);
            let mut grads = vec![0.0; net.extent()];
            let images: Vec<f32> = (0..2 * 784).map(|i| (i % 7) as f32 / 7.0).collect();
            net.forward_backward(WeightsView::of(&w), &images, &[3, 7], &mut grads);
            Self {
                spec,
                net,
                w,
                history,
                grads,
            }
        }

        fn step(&mut self, rate: f32, cluster: &Cluster) -> f32 {
            let (w, history) = (WeightsView::of(&self.w), WeightsView::of(&self.history));
            update_in_cluster(
                &self.spec,
                &self.net,
                w,
                &self.grads,
                history,
                rate,
                cluster,
            )
        }

        fn values(&self) -> Vec<f32> {
            let w = WeightsView::of(&self.w);
            (0..w.len()).map(|i| w.load(i)).collect()
        }
    }

    #[test]
    fn alone_it_is_the_plain_update() {
        let (mut one, two) = (Model::new(), Model::new());
        let alone = Cluster {
            portion: 1.0,
            own: 0..one.net.extent(),
        };
        assert_eq!(one.step(0.01, &alone), 1.0);
        let (w, history) = (WeightsView::of(&two.w), WeightsView::of(&two.history));
        update(&two.spec, &two.net, w, &two.grads, history, 0.01);
        assert_eq!(one.values(), two.values());
    }

    /// A step that is short walks the whole stride abroad and one step's portion of it at home.
    #[test]
    fn it_walks_its_stride_abroad_and_its_portion_at_home() {
        let (mut cluster, mut plain) = (Model::new(), Model::new());
        let before = plain.values();
        let own = 100..200_000;
        let stride = cluster.step(
            1e-5,
            &Cluster {
                portion: 0.25,
                own: own.clone(),
            },
        );
        assert_eq!(stride, 4.0);
        plain.step(
            1e-5,
            &Cluster {
                portion: 1.0,
                own: 0..0,
            },
        );
        let (far, near) = (cluster.values(), plain.values());
        for i in 0..before.len() {
            let want = (near[i] - before[i]) * if own.contains(&i) { 1.0 } else { 4.0 };
            let got = far[i] - before[i];
            assert!(
                (got - want).abs() <= 1e-7 + 1e-3 * want.abs(),
                "weight {i}: {got}, not {want}"
            );
        }
    }

    #[test]
    fn no_stride_makes_a_step_longer_than_one_percent_of_the_weights() {
        let mut model = Model::new();
        let before = model.values();
        let stride = model.step(
            0.004,
            &Cluster {
                portion: 1.0 / 64.0,
                own: 0..0,
            },
        );
        assert!(stride > 1.0 && stride < 64.0, "{stride}");
        let length = |values: &mut dyn Iterator<Item = f32>| {
            values
                .map(|x| f64::from(x) * f64::from(x))
                .sum::<f64>()
                .sqrt()
        };
        let walked = length(&mut model.values().iter().zip(&before).map(|(a, b)| a - b));
        let ratio = walked / length(&mut before.iter().copied());
        assert!((0.0095..0.0105).contains(&ratio), "{ratio}");
    }
}

//! The update of a solver whose node is one of several: its steps are as long as those of all nodes
//! together.
//!
//! Work of other nodes comes late. A solver that goes on at its own speed until then, and whose
//! work is added to theirs later, makes the cluster unstable: all have gone the same way. Here its
//! steps are longer by the *stride*, up to the inverse of its node's portion of the cluster's
//! iterations. Its streamer sends that portion of what it walked. The rest was a guess at what the
//! others do, which their work replaces. In weights that the node masters there is nothing to
//! guess: there it adds the portion at once.
//!
//! A stride is limited so that no step is longer than 1 % of the weights, nor those of several
//! solvers on one node together. This is the trust ratio of LARS (arXiv 1708.03888) as a limit.
//! Rates that learn well are below that; eight times such a rate may be above it. Where the limit
//! holds, the cluster learns as if its rate were lower, and stays stable.

use std::ops::Range;

use pulp::Arch;

use super::net::Net;
use super::spec::SolverSpec;
use super::update::{CHUNK, Squares, TensorStep, gradient_scale, square, update};
use crate::weights::{SharedWeights, WeightsView, kernels};

/// Longest step that a stride may make, as a share of the length of all weights.
const LONGEST: f64 = 0.01;

/// What a solver has to know of the cluster that its node is in.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// This node's portion of the cluster's iterations, above 0, at most 1: what its streamer
    /// multiplies deltas by.
    pub portion: f32,
    /// The longest stride, 1 or more.
    pub most_stride: f32,
    /// The weights that this node masters: runs that rise.
    pub own: Vec<Range<usize>>,
    /// Steps that all solvers of this node make while this one makes one, 1 or more: together they
    /// may make the longest step, not each.
    pub crew: f32,
}

/// Measures how many steps the solvers of a node make while one of them makes one.
#[derive(Clone, Debug, Default)]
pub struct Crew {
    /// Steps of this solver, and of all of its node, smoothed; nothing measured: 0.
    own: f64,
    all: f64,
    /// Both counts when the window began.
    began: Option<(u64, u64)>,
}

impl Crew {
    /// Steps of a solver over which it is measured.
    const WINDOW: u64 = 8;

    /// Notes that this solver has made `own` steps, all solvers of its node `all`.
    pub fn note(&mut self, own: u64, all: u64) {
        let (own_began, all_began) = *self.began.get_or_insert((own, all));
        if own < own_began + Self::WINDOW {
            return;
        }
        self.own += (own - own_began) as f64 - self.own / 8.0;
        self.all += all.saturating_sub(all_began) as f64 - self.all / 8.0;
        self.began = Some((own, all));
    }

    /// Steps of all for one of this solver, 1 or more.
    pub fn size(&self) -> f32 {
        if self.own > 0.0 {
            (self.all / self.own).max(1.0) as f32
        } else {
            1.0
        }
    }
}

/// Halves the momentum, as if the last steps had been half as long.
pub fn halve_momentum(history: WeightsView<'_>) {
    let mut step = [0.0; CHUNK];
    for at in (0..history.len()).step_by(CHUNK) {
        let len = CHUNK.min(history.len() - at);
        let history = history.slice(at, len);
        kernels::copy_out(history, &mut step[..len]);
        step[..len].iter_mut().for_each(|v| *v /= 2.0);
        kernels::copy_in(history, &step[..len]);
    }
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
    let stride = cluster.stride_of(squares);
    for tensor in net.parameters() {
        let all = tensor.offset..tensor.offset + tensor.len;
        walk(w, history, all, stride, cluster);
    }
    stride
}

/// Adds a step that an optimiser of another program made in a copy of the weights, from `before` to
/// `after`, and walks ahead as [`update_in_cluster`] does. Gives the stride. `after` is used up.
///
/// # Panics
/// If one of them is not as long as `w`.
pub fn walk_ahead(w: WeightsView<'_>, before: &[f32], after: &mut [f32], cluster: &Cluster) -> f32 {
    assert_eq!((before.len(), after.len()), (w.len(), w.len()));
    let arch = Arch::new();
    let mut squares = Squares::default();
    for (before, after) in before.chunks(CHUNK).zip(after.chunks_mut(CHUNK)) {
        arch.dispatch(
            #[inline(always)]
            || {
                for (after, before) in after.iter_mut().zip(before) {
                    *after -= before;
                }
            },
        );
        squares.weights += square(arch, before);
        squares.step += square(arch, after);
    }
    let stride = cluster.stride_of(squares);
    for (part, factor) in cluster.parts(0..w.len(), stride) {
        kernels::racy_axpy(w.slice(part.start, part.len()), factor, &after[part]);
    }
    stride
}

impl Cluster {
    /// What the streamer of a buffer has told of the cluster, and who else steps on it.
    pub fn of(shared: &SharedWeights, crew: &Crew) -> Self {
        let globals = shared.globals();
        Self {
            portion: globals.portion(),
            most_stride: globals.most_stride(),
            own: globals.own_ranges(),
            crew: crew.size(),
        }
    }

    /// For a step in the weights `all` that another program makes: the stride, and how often the
    /// step is added in each part. `weights` and `step` are the sums of their squares.
    pub fn stride_over(
        &self,
        all: Range<usize>,
        weights: f64,
        step: f64,
    ) -> (f32, Vec<(Range<usize>, f32)>) {
        let stride = self.stride_of(Squares { weights, step });
        (stride, self.parts(all, stride))
    }

    /// How many steps a solver takes at once whose step and weights have these squares.
    pub(super) fn stride_of(&self, squares: Squares) -> f32 {
        let longest = LONGEST / f64::from(self.crew);
        let limit = longest * (squares.weights / squares.step).sqrt();
        // A step of nothing, or of what is not finite, has no limit to obey.
        if limit.is_nan() {
            return 1.0;
        }
        let most = self.most_stride.min(1.0 / self.portion);
        (limit as f32).min(most).max(1.0)
    }

    /// The parts of the weights `all` and how often a step is taken off each: `stride` times, but
    /// its portion where this node is the master.
    pub(super) fn parts(&self, all: Range<usize>, stride: f32) -> Vec<(Range<usize>, f32)> {
        let mut parts = Vec::with_capacity(2 * self.own.len() + 1);
        let mut next = all.start;
        for own in &self.own {
            let begin = own.start.clamp(next, all.end);
            let end = own.end.clamp(begin, all.end);
            parts.push((next..begin, stride));
            parts.push((begin..end, stride * self.portion));
            next = end;
        }
        parts.push((next..all.end, stride));
        parts
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
            most_stride: f32::INFINITY,
            own: std::iter::once(0..one.net.extent()).collect(),
            crew: 1.0,
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
                most_stride: f32::INFINITY,
                own: vec![own.clone()],
                crew: 1.0,
            },
        );
        assert_eq!(stride, 4.0);
        plain.step(
            1e-5,
            &Cluster {
                portion: 1.0,
                most_stride: f32::INFINITY,
                own: Vec::new(),
                crew: 1.0,
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
                most_stride: f32::INFINITY,
                own: Vec::new(),
                crew: 1.0,
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

    /// A step of another program is walked as one of this solver.
    #[test]
    fn a_step_made_in_a_copy_walks_as_its_own() {
        let (mut ours, mut plain) = (Model::new(), Model::new());
        let cluster = Cluster {
            portion: 0.25,
            most_stride: f32::INFINITY,
            own: vec![100..200_000, 300_000..300_016],
            crew: 1.0,
        };
        let alone = Cluster {
            portion: 1.0,
            most_stride: f32::INFINITY,
            ..cluster.clone()
        };
        let before = plain.values();
        plain.step(1e-5, &alone);
        let mut after = plain.values();
        let theirs: Vec<_> = before.iter().map(|w| AtomicU32::new(w.to_bits())).collect();
        let view = WeightsView::of(&theirs);
        // Another process adds during the step: that is no part of it.
        view.store(7, view.load(7) + 1.0);
        let stride = walk_ahead(view, &before, &mut after, &cluster);
        assert_eq!(ours.step(1e-5, &cluster), stride);
        for (i, want) in ours.values().into_iter().enumerate() {
            let got = view.load(i) - if i == 7 { 1.0 } else { 0.0 };
            assert!((got - want).abs() < 1e-6, "weight {i}: {got}, not {want}");
        }
    }

    #[test]
    fn the_crew_is_what_the_node_makes_for_one_step() {
        let mut crew = Crew::default();
        assert_eq!(crew.size(), 1.0);
        // It goes on from many; two others make one step and a half each.
        for step in 1_000..1_200u64 {
            crew.note(step, 50_000 + 4 * step);
        }
        assert!((crew.size() - 4.0).abs() < 0.01, "{}", crew.size());
        for step in 1_200..2_000u64 {
            crew.note(step, 53_600 + step);
        }
        assert!((crew.size() - 1.0).abs() < 0.01, "{}", crew.size());
    }
}

//! At staleness 0, P workers with batch K give the weights of one worker with batch PK, to float
//! rounding. The one worker's batch is, iteration by iteration, the batches of the P workers one
//! after the other (worker p takes shard p of P, in the order of its seed).

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use dogwild::device::Which;
use dogwild::node::{Transforms, bound_net};
use dogwild::poseidon::{Overlap, Partition, Policy, Scheme};
use dogwild::solver::data::{Batches, Images, Shard};
use dogwild::solver::{Phase, SolverSpec, update};
use dogwild::weights::WeightsView;

use crate::cluster::{Cluster, Setup, force, lenet, servers, setup};

/// The batches of `of` threads, each with its share of the pictures in the order of its seed.
fn shares(setup: &Setup, images: &Arc<Images>, of: u32) -> Vec<Batches> {
    let batch = setup.spec.net.batch_size(Phase::Train);
    let batch = batch.expect("a batch size");
    let transform = Transforms::of(&setup.spec, images).train;
    let share = |index| {
        let seed = setup.seed ^ u64::from(index).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let shard = Shard { index, of };
        let (images, transform) = (images.clone(), transform.clone());
        let phase = Phase::Train;
        Batches::new(images, transform, phase, batch, shard, seed, 0).expect("batches")
    };
    (0..of).map(share).collect()
}

/// Weights of one process that makes all steps on the batches of all workers.
fn one_worker(setup: &Setup) -> Vec<f32> {
    let workers = u32::from(setup.cluster.workers) * setup.threads as u32;
    let batch = setup
        .spec
        .net
        .batch_size(Phase::Train)
        .expect("a batch size");
    let parts = setup.spec.iter_size as usize;
    let all = batch * workers as usize * parts;
    // All in one batch, so no sum over several.
    let whole = SolverSpec {
        iter_size: 1,
        ..lenet(all)
    };
    let set = setup.data.load().expect("data");
    let (mut net, _) = bound_net(
        &whole.net,
        Phase::Train,
        all,
        set.train.shape,
        set.train.classes,
    )
    .expect("a net");
    let images = Arc::new(set.train);
    let mut batches = shares(setup, &images, workers);
    let words = || {
        (0..net.extent())
            .map(|_| AtomicU32::new(0))
            .collect::<Vec<_>>()
    };
    let (w, history) = (words(), words());
    let (w, history) = (WeightsView::of(&w), WeightsView::of(&history));
    net.initialise(w, setup.seed);
    let mut grads = vec![0.0; net.extent()];
    for clock in 0..setup.cluster.clocks {
        let (mut pixels, mut labels) = (Vec::new(), Vec::new());
        for batches in &mut batches {
            for _ in 0..parts {
                let batch = batches.next();
                pixels.extend_from_slice(&batch.images);
                labels.extend_from_slice(&batch.labels);
            }
        }
        net.forward_backward(w, &pixels, &labels, &mut grads);
        update(&whole, &net, w, &grads, history, whole.rate_at(clock));
    }
    (0..net.extent()).map(|i| w.load(i)).collect()
}

/// Largest difference, and the largest distance training has moved a weight.
fn compare(a: &[f32], b: &[f32], first: &[f32]) -> (f32, f32) {
    let largest = |x: &[f32], y: &[f32]| {
        x.iter()
            .zip(y)
            .map(|(x, y)| (x - y).abs())
            .fold(0.0, f32::max)
    };
    (largest(a, b), largest(b, first))
}

/// What the one worker of this setup gives: its weights, and those that it began with.
struct Expected {
    weights: Vec<f32>,
    first: Vec<f32>,
}

impl Expected {
    fn of(setup: &Setup) -> Self {
        let mut nothing = setup.clone();
        nothing.cluster.clocks = 0;
        Self {
            weights: one_worker(setup),
            first: one_worker(&nothing),
        }
    }
}

/// Runs the cluster, and compares it with the one worker.
///
/// The sums of the gradients are made in another order (per worker, then over workers), which
/// changes them by a few units in the last place: about 1e-7 of the weights and of what ten steps
/// move them. 2e-6 leaves room for ReLUs that a rounding turns; a batch lost, doubled or wrongly
/// weighted shows as 1e-4 and more.
fn assert_equal(setup: Setup, expected: &Expected) {
    let what = format!(
        "{:?}, {} workers, {} servers, {:?}, {:?}",
        setup.cluster.policy,
        setup.cluster.workers,
        setup.cluster.servers,
        setup.overlap,
        setup.cluster.partition
    );
    let found = Cluster::new(setup).run();
    for (k, weights) in found.iter().enumerate() {
        let (difference, moved) = compare(weights, &expected.weights, &expected.first);
        assert!(moved > 1e-3, "{what}: nothing was learnt");
        assert!(
            difference <= 2e-6,
            "{what}, worker {k}: {difference} (moved {moved})"
        );
        let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits();
        assert!(
            weights.iter().zip(&found[0]).all(same),
            "{what}: worker {k} is not worker 0"
        );
    }
}

fn all_ways(policy: Policy) {
    for workers in [2, 4] {
        // How gradients travel changes nothing for one worker.
        let expected = Expected::of(&setup(policy, workers, servers(policy, 2), 10));
        for overlap in [Overlap::Wfbp, Overlap::None] {
            for partition in [Partition::Pairs, Partition::Tensor] {
                let mut setup = setup(policy, workers, servers(policy, 2), 10);
                setup.overlap = overlap;
                setup.cluster.partition = partition;
                setup.cluster.pair_bytes = 100_000;
                assert_equal(setup, &expected);
            }
        }
    }
}

#[test]
fn parameter_server() {
    all_ways(force(Scheme::Ps));
}

#[test]
fn sufficient_factors() {
    all_ways(force(Scheme::Sfb));
}

#[test]
fn adam() {
    all_ways(force(Scheme::Adam));
}

#[test]
fn peer_to_peer() {
    all_ways(force(Scheme::P2p));
}

#[test]
fn cheapest() {
    all_ways(Policy::Cheapest);
}

#[test]
fn hybcomm() {
    all_ways(Policy::HybComm);
}

/// Where a rule would give a layer to servers, and there are none, workers hold it.
#[test]
fn a_cluster_without_servers() {
    for policy in [Policy::HybComm, Policy::Cheapest] {
        let setup = setup(policy, 3, 0, 10);
        let expected = Expected::of(&setup);
        assert_equal(setup, &expected);
    }
}

#[test]
fn sacp() {
    all_ways(Policy::Sacp);
}

#[test]
fn threads_add_up_before_they_send() {
    for scheme in [Scheme::Ps, Scheme::Sfb, Scheme::P2p] {
        let mut setup = setup(force(scheme), 2, 1, 6);
        setup.threads = 2;
        let expected = Expected::of(&setup);
        assert_equal(setup, &expected);
    }
}

#[test]
fn several_batches_make_one_update() {
    for scheme in [Scheme::Ps, Scheme::Sfb, Scheme::Adam] {
        let mut setup = setup(force(scheme), 2, 1, 6);
        setup.spec.iter_size = 3;
        let expected = Expected::of(&setup);
        assert_equal(setup, &expected);
    }
}

/// Workers whose threads compute on devices of their own, with gradients and factors that come down
/// layer by layer.
#[test]
fn devices_compute_for_workers() {
    for (scheme, overlap) in [
        (Scheme::Ps, Overlap::Wfbp),
        (Scheme::Ps, Overlap::None),
        (Scheme::Sfb, Overlap::Wfbp),
        (Scheme::P2p, Overlap::Wfbp),
    ] {
        let mut setup = setup(force(scheme), 2, 1, 6);
        (setup.threads, setup.devices) = (2, vec![Which::Host; 2]);
        (setup.overlap, setup.spec.iter_size) = (overlap, 2);
        let expected = Expected::of(&setup);
        assert_equal(setup, &expected);
    }
}

/// The sum over the devices of a worker is that over as many workers, bit for bit: the scheme of
/// TRL and that of a server have one order.
#[test]
fn devices_of_one_worker_are_as_many_workers_bit_for_bit() {
    let found = |workers, devices| {
        let mut setup = setup(force(Scheme::Ps), workers, 1, 10);
        (setup.threads, setup.devices) = (devices, vec![Which::Host; devices]);
        Cluster::new(setup).run().remove(0)
    };
    let (together, apart) = (found(1, 3), found(3, 1));
    let pairs = together.iter().zip(&apart);
    let differ = pairs.filter(|(a, b)| a.to_bits() != b.to_bits());
    assert_eq!(differ.count(), 0);
}

#[test]
fn one_worker_makes_the_plain_solvers_steps_bit_for_bit() {
    let setup = setup(force(Scheme::Ps), 1, 1, 10);
    let expected = one_worker(&setup);
    let found = Cluster::new(setup).run().remove(0);
    let differ = found
        .iter()
        .zip(&expected)
        .filter(|(a, b)| a.to_bits() != b.to_bits());
    assert_eq!(differ.count(), 0);
}

/// Weights of one process that computes the batches of all threads of one worker one after the
/// other, and adds their gradients in the order of the threads.
fn synchronous_sum(setup: &Setup) -> Vec<f32> {
    let batch = setup.spec.net.batch_size(Phase::Train);
    let batch = batch.expect("a batch size");
    let images = Arc::new(setup.data.load().expect("data").train);
    let (shape, classes) = (images.shape, images.classes);
    let bound = bound_net(&setup.spec.net, Phase::Train, batch, shape, classes);
    let (mut net, _) = bound.expect("a net");
    let mean = SolverSpec {
        iter_size: setup.threads as u64,
        ..setup.spec.clone()
    };
    let words = || (0..net.extent()).map(|_| AtomicU32::new(0));
    let (w, history): (Vec<_>, Vec<_>) = (words().collect(), words().collect());
    let (w, history) = (WeightsView::of(&w), WeightsView::of(&history));
    net.initialise(w, setup.seed);
    let mut shares = shares(setup, &images, setup.threads as u32);
    let mut grads = vec![0.0; net.extent()];
    for clock in 0..setup.cluster.clocks {
        let mut sum = vec![0.0; net.extent()];
        for share in &mut shares {
            let batch = share.next();
            net.forward_backward(w, &batch.images, &batch.labels, &mut grads);
            sum.iter_mut().zip(&grads).for_each(|(s, g)| *s += g);
        }
        update(&mean, &net, w, &sum, history, mean.rate_at(clock));
    }
    (0..net.extent()).map(|i| w.load(i)).collect()
}

#[test]
fn threads_of_a_worker_make_the_synchronous_sum_bit_for_bit() {
    for threads in [2, 4] {
        for overlap in [Overlap::Wfbp, Overlap::None] {
            let mut setup = setup(force(Scheme::Ps), 1, 1, 10);
            (setup.threads, setup.overlap) = (threads, overlap);
            let expected = synchronous_sum(&setup);
            let found = Cluster::new(setup).run().remove(0);
            let differ = found
                .iter()
                .zip(&expected)
                .filter(|(a, b)| a.to_bits() != b.to_bits());
            assert_eq!(differ.count(), 0, "{threads} threads, {overlap:?}");
        }
    }
}

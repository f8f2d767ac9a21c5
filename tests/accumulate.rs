//! Whole training on the devices of one host, gradients accumulated on the CPU: equal bit for bit
//! to the synchronous sum of the same batches in the order of the devices, whatever the timing, and
//! equal to one device with as many times the batch up to rounding.

#![cfg(feature = "caffe")]

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use dogwild::accumulate::{Accumulate, LayerRange, Order};
use dogwild::device::host::HostDevice;
use dogwild::device::{Device, HostMemory, Memory, Stream};
use dogwild::node::{Transforms, bound_net};
use dogwild::solver::data::{self, Batches, Images, Shard};
use dogwild::solver::{Net, Phase, SolverSpec, update};
use dogwild::weights::{WeightsView, kernels};

const BATCH: usize = 8;
const ITERATIONS: u64 = 8;
const SEED: u64 = 3;

/// LeNet on batches of `batch`; a step is the mean over `batches` of them.
fn lenet(batch: usize, batches: usize) -> SolverSpec {
    let net = include_str!("../models/lenet_train_test.prototxt");
    let net = net.replace("batch_size: 64", &format!("batch_size: {batch}"));
    let solver = include_str!("../models/lenet_solver.prototxt");
    let spec = SolverSpec::parse("lenet", solver, |_| Ok(("net".into(), net))).expect("LeNet");
    SolverSpec {
        iter_size: batches as u64,
        ..spec
    }
}

/// Weights and momentum of one device, as it begins.
struct Model {
    net: Net,
    w: Vec<AtomicU32>,
    history: Vec<AtomicU32>,
    grads: Vec<f32>,
}

impl Model {
    fn new(spec: &SolverSpec, batch: usize, images: &Images) -> Self {
        let shape = (images.shape, images.classes);
        let bound = bound_net(&spec.net, Phase::Train, batch, shape.0, shape.1);
        let (net, _) = bound.expect("a net");
        let words = || (0..net.extent()).map(|_| AtomicU32::new(0)).collect();
        let (w, history): (Vec<_>, _) = (words(), words());
        net.initialise(WeightsView::of(&w), SEED);
        let grads = vec![0.0; net.extent()];
        Self {
            net,
            w,
            history,
            grads,
        }
    }

    fn update(&mut self, spec: &SolverSpec, clock: u64) {
        let (w, history) = (WeightsView::of(&self.w), WeightsView::of(&self.history));
        update(
            spec,
            &self.net,
            w,
            &self.grads,
            history,
            spec.rate_at(clock),
        );
    }

    fn weights(&self) -> Vec<f32> {
        let w = WeightsView::of(&self.w);
        (0..w.len()).map(|i| w.load(i)).collect()
    }

    /// Where the layers lie.
    fn layers(&self) -> Vec<LayerRange> {
        let tensors = self.net.parameters();
        let layers = self.net.layers().into_iter().map(|layer| {
            let (first, last) = (layer.tensors.start, layer.tensors.end - 1);
            let range = tensors[first].offset..tensors[last].offset + tensors[last].len;
            let name = layer.name;
            LayerRange { name, range }
        });
        layers.collect()
    }
}

fn digits() -> (Arc<Images>, data::Source) {
    let source: data::Source = "digits:1,train=400,test=100".parse().expect("a source");
    (Arc::new(source.load().expect("digits").train), source)
}

/// The batches of device `index` of `of`.
fn batches(images: &Arc<Images>, spec: &SolverSpec, index: usize, of: usize) -> Batches {
    let shard = Shard {
        index: index as u32,
        of: of as u32,
    };
    let transform = Transforms::of(spec, images).train;
    let seed = SEED ^ index as u64;
    let phase = Phase::Train;
    Batches::new(images.clone(), transform, phase, BATCH, shard, seed, 0).expect("batches")
}

/// Every device trains on its own share; gives the weights of each.
fn accumulated(count: usize, order: Order, pauses: bool) -> Vec<Vec<f32>> {
    let (images, _) = digits();
    let spec = &lenet(BATCH, count);
    let models: Vec<_> = (0..count)
        .map(|_| Model::new(spec, BATCH, &images))
        .collect();
    let (layers, len) = (models[0].layers(), models[0].net.extent());
    let devices: Vec<_> = (0..count).map(HostDevice::new).collect();
    let memories: Vec<_> = devices
        .iter()
        .map(|d| d.alloc(len).expect("memory"))
        .collect();
    let of = devices
        .iter()
        .cloned()
        .zip(memories.iter().cloned())
        .collect();
    let nothing = Box::new(|_, _, _, _: &_| Ok(()));
    let accumulate = Accumulate::new(&layers, of, order, nothing).expect("layers that fit");
    let (accumulate, layers, images) = (&accumulate, &layers, &images);
    std::thread::scope(|scope| {
        for index in 0..count {
            scope.spawn(move || accumulate.work(index).expect("no failure"));
        }
        let all = models.into_iter().zip(devices).zip(memories).enumerate();
        let all = all.map(|(index, ((mut model, device), memory))| {
            scope.spawn(move || {
                let compute = device.stream().expect("a stream");
                let host = HostMemory::zeroed(len).expect("memory");
                let mut batches = batches(images, spec, index, count);
                for clock in 0..ITERATIONS {
                    let batch = batches.next();
                    let w = WeightsView::of(&model.w);
                    let (grads, net) = (&mut model.grads, &mut model.net);
                    let (pixels, labels) = (&batch.images, &batch.labels);
                    net.forward_backward_with(w, pixels, labels, grads, false, |done| {
                        if pauses {
                            // Another device is late in each iteration and layer.
                            let late = (clock as usize + done.layer) % count == index;
                            std::thread::sleep(Duration::from_micros(if late { 500 } else { 0 }));
                        }
                        let range = layers[done.layer].range.clone();
                        let to = host.view().slice(range.start, range.len());
                        kernels::copy_in(to, &done.gradients[range.clone()]);
                        let up = compute.upload(host.part(range.clone()), memory.part(range));
                        up.expect("the device goes on");
                        let ready = compute.record().expect("the device goes on");
                        let given = accumulate.give(index, done.layer, clock, &ready);
                        given.expect("no device fails");
                    });
                    accumulate.wait(index).expect("no device fails");
                    compute
                        .download(memory.all(), host.all())
                        .expect("the device goes on");
                    compute.finish().expect("the device goes on");
                    kernels::copy_out(host.view(), &mut model.grads);
                    model.update(spec, clock);
                }
                model.weights()
            })
        });
        let all: Vec<_> = all.collect();
        let weights = all
            .into_iter()
            .map(|d| d.join().expect("no panic"))
            .collect();
        accumulate.close();
        weights
    })
}

/// The same batches one after the other; gradients are added in the order of the devices.
fn synchronous(count: usize) -> Vec<f32> {
    let (images, _) = digits();
    let spec = lenet(BATCH, count);
    let mut model = Model::new(&spec, BATCH, &images);
    let mut shares: Vec<_> = (0..count)
        .map(|i| batches(&images, &spec, i, count))
        .collect();
    for clock in 0..ITERATIONS {
        let mut sum = vec![0.0; model.grads.len()];
        for batches in &mut shares {
            let batch = batches.next();
            let w = WeightsView::of(&model.w);
            let (pixels, labels) = (&batch.images, &batch.labels);
            model
                .net
                .forward_backward(w, pixels, labels, &mut model.grads);
            for (sum, gradient) in sum.iter_mut().zip(&model.grads) {
                *sum += gradient;
            }
        }
        model.grads = sum;
        model.update(&spec, clock);
    }
    model.weights()
}

/// One device that sees the batches of all in one.
fn one_device(count: usize) -> [Vec<f32>; 2] {
    let (images, _) = digits();
    let all = BATCH * count;
    let spec = lenet(all, 1);
    let mut model = Model::new(&spec, all, &images);
    let first = model.weights();
    let mut shares: Vec<_> = (0..count)
        .map(|i| batches(&images, &spec, i, count))
        .collect();
    for clock in 0..ITERATIONS {
        let (mut pixels, mut labels) = (Vec::new(), Vec::new());
        for batches in &mut shares {
            let batch = batches.next();
            pixels.extend_from_slice(&batch.images);
            labels.extend_from_slice(&batch.labels);
        }
        let w = WeightsView::of(&model.w);
        model
            .net
            .forward_backward(w, &pixels, &labels, &mut model.grads);
        model.update(&spec, clock);
    }
    [model.weights(), first]
}

fn bits(weights: &[f32]) -> Vec<u32> {
    weights.iter().map(|w| w.to_bits()).collect()
}

fn largest(a: &[f32], b: &[f32]) -> f32 {
    let differences = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    differences.fold(0.0, f32::max)
}

fn assert_equal(order: Order, pauses: bool) {
    for count in [1, 2, 4] {
        let expected = synchronous(count);
        let [whole, first] = one_device(count);
        assert!(largest(&expected, &first) > 1e-3, "nothing was learnt");
        for (device, found) in accumulated(count, order, pauses).iter().enumerate() {
            let what = format!("{order:?}, device {device} of {count}");
            assert!(
                bits(found) == bits(&expected),
                "{what}: not the synchronous sum"
            );
            // Rounding: see tests/poseidon/equality.rs.
            let difference = largest(found, &whole);
            assert!(difference <= 2e-6, "{what}: {difference} from one device");
        }
    }
}

#[test]
fn devices_train_as_the_synchronous_sum() {
    assert_equal(Order::Parts, false);
}

#[test]
fn whoever_is_late() {
    assert_equal(Order::Parts, true);
}

#[test]
fn in_turns_too() {
    assert_equal(Order::Turns, true);
}

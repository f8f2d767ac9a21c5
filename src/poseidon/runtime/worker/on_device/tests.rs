//! Passes of a worker on a device against those of the processor, with weights that change between
//! them.

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::super::local::compact;
use super::*;
use crate::solver::Phase;

const NET: &str =
    "layer { name: 'd' type: 'Data' top: 'data' top: 'label' data_param { batch_size: 4 } }
    layer { name: 'c' type: 'Convolution' bottom: 'data' top: 'c'
      convolution_param { num_output: 5 kernel_size: 3 weight_filler { type: 'xavier' } } }
    layer { name: 'r' type: 'ReLU' bottom: 'c' top: 'c' }
    layer { name: 'i' type: 'InnerProduct' bottom: 'c' top: 'i'
      inner_product_param { num_output: 20 weight_filler { type: 'xavier' } } }
    layer { name: 's' type: 'ReLU' bottom: 'i' top: 'i' }
    layer { name: 'o' type: 'InnerProduct' bottom: 'i' top: 'o'
      inner_product_param { num_output: 10 weight_filler { type: 'xavier' } } }
    layer { name: 'l' type: 'SoftmaxWithLoss' bottom: 'o' bottom: 'label' top: 'l' }";
const SOLVER: &str = "net: 'n' base_lr: 0.1 lr_policy: 'fixed'";
const BATCH: usize = 4;
const IMAGE: [usize; 3] = [2, 9, 9];

#[track_caller]
fn close(what: &str, device: &[f32], host: &[f32]) {
    assert_eq!(device.len(), host.len(), "{what}");
    let most = host.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    for (i, (a, b)) in device.iter().zip(host).enumerate() {
        let off = (a - b).abs();
        assert!(off <= 1e-4 * most + 1e-7, "{what}[{i}]: {a}, not {b}");
    }
}

/// Layers send their gradients, which are those of two batches, one perhaps its factors.
fn layers_come_down<D: Device>(device: &D) {
    layers_come(device, None);
    layers_come(device, Some(1));
}

fn layers_of(net: &Net, sends_factors: Option<usize>) -> Vec<Layer> {
    let tensors = net.parameters();
    let layers = net.layers().into_iter().enumerate();
    let layer = |(number, layer): (usize, crate::solver::LayerTensors)| {
        let last = &tensors[layer.tensors.end - 1];
        Layer {
            extent: tensors[layer.tensors.start].offset..last.offset + last.len,
            factored: layer.factored.filter(|_| sends_factors == Some(number)),
        }
    };
    layers.map(layer).collect()
}

fn layers_come<D: Device>(device: &D, sends_factors: Option<usize>) {
    let read = SolverSpec::parse("s", SOLVER, |_| Ok(("n".to_owned(), NET.to_owned())));
    let spec = read.unwrap();
    let mut net = Net::new(&spec.net, Phase::Train, BATCH, IMAGE, 10).unwrap();
    let layers = layers_of(&net, sends_factors);
    let n = net.extent();
    let buffer = HostMemory::zeroed(n).unwrap();
    let mut work = Work::new(
        device,
        Given {
            spec: &spec,
            net: &net,
            layers: &layers,
            buffer: &buffer,
        },
    )
    .unwrap();
    // All are small: those that follow each other go together, the first one alone.
    assert_eq!(work.rising.len(), 2);
    assert_eq!(work.falling.len(), 2);
    let mut random = Xoshiro256PlusPlus::seed_from_u64(3);
    let mut grads = vec![0.0; n];
    for pass in 0..6 {
        net.initialise(buffer.view(), 7 + pass);
        let w = buffer.view();
        let mut expected = vec![0.0; n];
        for part in 0..2 {
            let values = BATCH * IMAGE.iter().product::<usize>();
            let images = (0..values).map(|_| random.random_range(0.0f32..1.0));
            let images: Vec<f32> = images.collect();
            let labels: Vec<u32> = (0..BATCH).map(|_| random.random_range(0..10)).collect();
            let mut factors = Vec::new();
            let loss =
                net.forward_backward_with(w, &images, &labels, &mut expected, part > 0, |done| {
                    if sends_factors == Some(done.layer) {
                        let own = done.factors.as_ref().map(|factors| factors.images);
                        assert_eq!(own, Some(BATCH));
                        factors = compact(done.factors, layers[1].factored.unwrap_or([20, 245]));
                    }
                });
            work.feed(&images, &labels).unwrap();
            work.begin(part > 0, part == 1).unwrap();
            let mut order = Vec::new();
            let mut came = |layer: usize, grads: &[f32], own: Option<Vec<f32>>| {
                order.push(layer);
                match own {
                    Some(own) => close("factors", &own, &factors),
                    None => {
                        let place = layers[layer].extent.clone();
                        close("gradient", &grads[place.clone()], &expected[place]);
                    }
                }
            };
            let found = work.end(&mut grads, &mut came).unwrap();
            // What does not come down yet does so with the last batch.
            let first: Vec<usize> = sends_factors.into_iter().collect();
            assert_eq!(order, if part == 1 { vec![2, 1, 0] } else { first });
            assert!(
                (found - loss).abs() < 1e-4 * loss,
                "loss {found}, not {loss}"
            );
        }
    }
}

#[test]
fn layers_of_a_worker_come_down_from_a_device() {
    layers_come_down(&HostDevice::new(0));
}

#[cfg(feature = "cuda")]
#[test]
fn a_gpu_gives_a_worker_its_layers() {
    match CudaDevice::open(0) {
        Ok(device) => layers_come_down(&device),
        Err(error) => {
            assert!(matches!(error, DeviceError::Missing { .. }), "{error}");
            let place = "where there is a GPU (docs/guide/gpu.md)";
            dogwild_lab::skip::elsewhere(&error.to_string(), place);
        }
    }
}

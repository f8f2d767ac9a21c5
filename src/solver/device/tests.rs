//! A net on a device against the same net on the processor: gradients, steps, refusals.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::*;
use crate::device::host::HostDevice;
use crate::solver::{Cluster, update_in_cluster};
use crate::weights::WeightsView;

fn close(name: &str, device: &[f32], host: &[f32]) {
    let most = host.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    for (i, (a, b)) in device.iter().zip(host).enumerate() {
        assert!(
            (a - b).abs() <= 1e-4 * most + 1e-7,
            "{name}[{i}]: {a} on the device, {b} on the processor"
        );
    }
}

fn down<D: Device>(net: &DeviceNet<D>, memory: &D::Memory) -> Vec<f32> {
    let back = HostMemory::zeroed(memory.len()).unwrap();
    net.stream.download(memory.all(), back.all()).unwrap();
    net.stream.finish().unwrap();
    (0..back.len()).map(|i| back.view().load(i)).collect()
}

/// Gradients and steps of `spec` on `device` against those of the processor.
fn agrees<D: Device>(device: &D, spec: &SolverSpec, input: [usize; 3], batch: usize) {
    for portion in [1.0, 0.25] {
        agrees_in_cluster(device, spec, input, batch, portion);
    }
}

fn agrees_in_cluster<D: Device>(
    device: &D,
    spec: &SolverSpec,
    input: [usize; 3],
    batch: usize,
    portion: f32,
) {
    let mut net = Net::new(&spec.net, Phase::Train, batch, input, 10).unwrap();
    let mut on_device = DeviceNet::new(device, spec, &net).unwrap();
    let mut random = Xoshiro256PlusPlus::seed_from_u64(3);
    let n = net.extent();
    let zeros = || (0..n).map(|_| AtomicU32::new(0)).collect::<Vec<_>>();
    let (words, history) = (zeros(), zeros());
    let (w, v) = (WeightsView::of(&words), WeightsView::of(&history));
    net.initialise(w, 7);
    let weights = device.alloc(n).unwrap();
    // Steps are on another stream than gradients, as in a component.
    let steps = device.stream().unwrap();
    let [there, kept] = [(); 2].map(|()| HostMemory::zeroed(n).unwrap());
    let mut grads = vec![0.0; n];
    let mut some = || {
        let values = batch * input.iter().product::<usize>();
        let images = (0..values).map(|_| random.random_range(0.0f32..1.0));
        let images: Vec<f32> = images.collect();
        let labels: Vec<u32> = (0..batch).map(|_| random.random_range(0..10)).collect();
        (images, labels)
    };
    let mut next = some();
    on_device.feed(&next.0, &next.1).unwrap();
    for iteration in 0..4 {
        if iteration == 2 {
            // Another one goes on with its momentum.
            let event = on_device.keep_momentum(&steps, &kept);
            event.unwrap().wait().unwrap();
            on_device = DeviceNet::new(device, spec, &net).unwrap();
            on_device.take_momentum(&kept).unwrap();
            on_device.feed(&next.0, &next.1).unwrap();
        }
        // The same weights each time: what rounding has moved apart could let another value be a
        // window's largest.
        (0..n).for_each(|i| there.view().store(i, w.load(i)));
        on_device.stream.upload(there.all(), weights.all()).unwrap();
        for part in 0..spec.iter_size {
            let keep = part > 0;
            on_device.begin(&weights, keep).unwrap();
            // The next one goes up while this one is worked on.
            let (images, labels) = std::mem::replace(&mut next, some());
            on_device.feed(&next.0, &next.1).unwrap();
            let theirs = on_device.end().unwrap();
            let ours = match keep {
                false => net.forward_backward(w, &images, &labels, &mut grads),
                true => net.add_gradients(w, &images, &labels, &mut grads),
            };
            assert!(
                (theirs - ours).abs() < 1e-4 * ours,
                "loss {theirs}, not {ours}"
            );
        }
        let got = down(&on_device, &on_device.gradients);
        for tensor in net.parameters() {
            let place = tensor.offset..tensor.offset + tensor.len;
            close(&tensor.name, &got[place.clone()], &grads[place]);
        }
        let rate = spec.rate_at(iteration);
        let own = n / 3..n / 2;
        let cluster = Cluster {
            portion,
            most_stride: f32::INFINITY,
            own: vec![own],
            crew: 2.0,
        };
        let stride = update_in_cluster(spec, &net, w, &grads, v, rate, &cluster);
        let there = on_device.step(spec, &steps, &weights, rate, &cluster);
        close("stride", &[there.unwrap()], &[stride]);
        let here: Vec<f32> = words
            .iter()
            .map(|x| f32::from_bits(x.load(Relaxed)))
            .collect();
        close("weights", &down(&on_device, &weights), &here);
    }
}

#[test]
fn lenet_on_a_device_does_what_it_does_on_the_processor() {
    for name in ["lenet", "lenet_no_momentum"] {
        agrees(
            &HostDevice::new(0),
            &SolverSpec::builtin(name).unwrap(),
            [1, 28, 28],
            5,
        );
    }
}

/// The first GPU, if there is one. The own kernel multiplies: another order of sums could let
/// another value be the largest of a window.
#[cfg(feature = "cuda")]
fn a_gpu() -> Option<crate::device::cuda::CudaDevice> {
    use crate::device::cuda::{CudaDevice, Products};
    match CudaDevice::open_with(0, Products::Own) {
        Ok(device) => Some(device),
        Err(error) => {
            assert!(matches!(error, DeviceError::Missing { .. }), "{error}");
            let place = "where there is a GPU (docs/guide/gpu.md)";
            dogwild_lab::skip::elsewhere(&error.to_string(), place);
            None
        }
    }
}

#[cfg(feature = "cuda")]
#[test]
fn lenet_on_a_gpu_does_what_it_does_on_the_processor() {
    let Some(device) = a_gpu() else { return };
    let lenet = SolverSpec::builtin("lenet").unwrap();
    agrees(&device, &lenet, [1, 28, 28], 16);
}

#[cfg(feature = "cuda")]
#[test]
fn a_small_net_on_a_gpu_does_what_it_does_on_the_processor() {
    let Some(device) = a_gpu() else { return };
    let net = solver(&format!("{NET} {LOSS}"), "iter_size: 2");
    agrees(&device, &net, [3, 11, 9], 4);
}

const NET: &str = "layer { name: 'd' type: 'Data' top: 'data' top: 'label' data_param { batch_size: 20 } }
    layer { name: 'c' type: 'Convolution' bottom: 'data' top: 'c'
      convolution_param { num_output: 5 kernel_h: 3 kernel_w: 2 stride_h: 2 stride_w: 1 pad_h: 1 pad_w: 1 weight_filler { type: 'xavier' } } }
    layer { name: 'r' type: 'ReLU' bottom: 'c' top: 'r' relu_param { negative_slope: 0.1 } }
    layer { name: 'p' type: 'Pooling' bottom: 'r' top: 'p' pooling_param { kernel_size: 3 stride: 2 pad: 1 } }
    layer { name: 'c2' type: 'Convolution' bottom: 'p' top: 'c2'
      convolution_param { num_output: 4 kernel_size: 3 pad: 1 bias_term: false weight_filler { type: 'xavier' } } }
    layer { name: 'i' type: 'InnerProduct' bottom: 'c2' top: 'i'
      inner_product_param { num_output: 10 weight_filler { type: 'xavier' } } }";
const LOSS: &str =
    "layer { name: 'l' type: 'SoftmaxWithLoss' bottom: 'i' bottom: 'label' top: 'l' }";

fn solver(net: &str, more: &str) -> SolverSpec {
    let text =
        format!("net: 'n' base_lr: 0.1 lr_policy: 'fixed' momentum: 0.9 weight_decay: 0.01 {more}");
    SolverSpec::parse("s", &text, |_| Ok(("n".to_owned(), net.to_owned()))).unwrap()
}

#[test]
fn strides_padding_slopes_and_several_batches_for_a_step() {
    let net = format!("{NET} {LOSS}");
    agrees(
        &HostDevice::new(0),
        &solver(&net, "iter_size: 2"),
        [3, 11, 9],
        4,
    );
    agrees(
        &HostDevice::new(0),
        &solver(&net, "regularization_type: 'L1'"),
        [2, 8, 8],
        3,
    );
}

#[test]
fn what_a_device_cannot_do_is_refused_by_name() {
    let refused = |net: &str, more: &str| {
        let spec = solver(net, more);
        let net = Net::new(&spec.net, Phase::Train, 2, [3, 11, 9], 10).unwrap();
        match DeviceNet::new(&HostDevice::new(0), &spec, &net) {
            Ok(_) => panic!("not refused"),
            Err(error) => error.to_string(),
        }
    };
    let lrn = format!(
        "{NET} layer {{ name: 'norm' type: 'LRN' bottom: 'i' top: 'n' }}
        layer {{ name: 'l' type: 'SoftmaxWithLoss' bottom: 'n' bottom: 'label' top: 'l' }}"
    );
    let said = refused(&lrn, "");
    assert!(
        said.contains("norm") && said.contains("on the processor"),
        "{said}"
    );
    let said = refused(&format!("{NET} {LOSS}"), "clip_gradients: 1");
    assert!(said.contains("clip_gradients"), "{said}");
}

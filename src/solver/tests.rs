//! Whole nets: they learn, alone and two on one buffer; their gradients are right through
//! branches; and what cannot work is refused with a message that says where and why.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::*;
use crate::weights::WeightsView;
use dogwild_kernels::archs;

const DATA: &str =
    "layer { name: 'd' type: 'Data' top: 'data' top: 'label' data_param { batch_size: 20 } }";
const LOSS: &str =
    "layer { name: 'loss' type: 'SoftmaxWithLoss' bottom: 'ip' bottom: 'label' top: 'loss' }";

/// A convolution small enough for tests.
fn small_net() -> NetSpec {
    net(&format!(
        "{DATA}
        layer {{ name: 'conv' type: 'Convolution' bottom: 'data' top: 'conv'
          param {{ lr_mult: 1 }} param {{ lr_mult: 2 decay_mult: 0 }}
          convolution_param {{ num_output: 6 kernel_size: 3 weight_filler {{ type: 'xavier' }} }} }}
        layer {{ name: 'pool' type: 'Pooling' bottom: 'conv' top: 'pool'
          pooling_param {{ kernel_size: 2 stride: 2 }} }}
        layer {{ name: 'relu' type: 'ReLU' bottom: 'pool' top: 'pool' }}
        layer {{ name: 'ip' type: 'InnerProduct' bottom: 'pool' top: 'ip'
          inner_product_param {{ num_output: 4 weight_filler {{ type: 'xavier' }} }} }}
        layer {{ name: 'acc' type: 'Accuracy' bottom: 'ip' bottom: 'label' top: 'acc' include {{ phase: TEST }} }}
        {LOSS}"
    ))
}

fn net(text: &str) -> NetSpec {
    NetSpec::parse("net.prototxt", text).expect("a valid net")
}

fn solver(net: NetSpec, more: &str) -> SolverSpec {
    let text = format!("net: 'n' base_lr: 0.1 lr_policy: 'fixed' {more}");
    let spec = SolverSpec::parse("solver.prototxt", &text, |_| {
        Ok(("n".to_owned(), DATA.to_owned()))
    });
    SolverSpec {
        net,
        ..spec.expect("a valid solver")
    }
}

/// Images of 8 × 8 with noise and a bright bar, whose side of the image is the class.
fn bars(rng: &mut Xoshiro256PlusPlus, count: usize) -> (Vec<f32>, Vec<u32>) {
    let mut images: Vec<f32> = (0..count * 64)
        .map(|_| rng.random_range(0.0f32..0.7))
        .collect();
    let labels: Vec<u32> = (0..count).map(|_| rng.random_range(0..4)).collect();
    for (image, label) in images.chunks_exact_mut(64).zip(&labels) {
        for i in 1..7 {
            let at = [8 + i, 48 + i, i * 8 + 1, i * 8 + 6][*label as usize];
            image[at] += 0.5;
        }
    }
    (images, labels)
}

fn zeros(len: usize) -> Vec<AtomicU32> {
    (0..len).map(|_| AtomicU32::new(0)).collect()
}

fn train(spec: &SolverSpec, w: WeightsView<'_>, seed: u64, steps: u64) {
    let mut net = Net::new(&spec.net, Phase::Train, 20, [1, 8, 8], 4).expect("it fits");
    let history = zeros(net.extent());
    let mut grads = vec![0.0; net.extent()];
    let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
    for step in 0..steps {
        let (images, labels) = bars(rng, 20);
        net.forward_backward(w, &images, &labels, &mut grads);
        update(
            spec,
            &net,
            w,
            &grads,
            WeightsView::of(&history),
            spec.rate_at(step),
        );
    }
}

fn test(spec: &SolverSpec, w: WeightsView<'_>) -> Evaluation {
    let mut net = Net::new(&spec.net, Phase::Test, 100, [1, 8, 8], 4).expect("it fits");
    let (images, labels) = bars(&mut Xoshiro256PlusPlus::seed_from_u64(99), 400);
    let mut sum = Evaluation::default();
    for (images, labels) in images.chunks(64 * 100).zip(labels.chunks(100)) {
        sum += net.evaluate(w, images, labels);
    }
    sum
}

#[test]
fn one_solver_learns() {
    for more in [
        "momentum: 0",
        "momentum: 0.9 weight_decay: 0.0005 base_lr: 0.03",
    ] {
        let more = more.replace("base_lr: 0.03", "");
        let spec = solver(small_net(), &more);
        let spec = SolverSpec {
            base_lr: if spec.momentum > 0.0 { 0.03 } else { 0.1 },
            ..spec
        };
        let net = Net::new(&spec.net, Phase::Train, 20, [1, 8, 8], 4).unwrap();
        let words = zeros(net.extent());
        let w = WeightsView::of(&words);
        net.initialise(w, 7);
        let before = test(&spec, w);
        train(&spec, w, 1, 300);
        let after = test(&spec, w);
        assert!(
            before.accuracy() < 0.6 && after.accuracy() > 0.97,
            "{before:?} -> {after:?}"
        );
        assert!(
            after.loss() < before.loss() / 3.0,
            "{before:?} -> {after:?}"
        );
    }
}

#[test]
fn two_solvers_on_one_buffer_learn() {
    let spec = solver(small_net(), "momentum: 0.5");
    let net = Net::new(&spec.net, Phase::Train, 20, [1, 8, 8], 4).unwrap();
    let words = zeros(net.extent());
    let w = WeightsView::of(&words);
    net.initialise(w, 7);
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let spec = &spec;
            scope.spawn(move || train(spec, w, seed, 200));
        }
    });
    let after = test(&spec, w);
    assert!(after.accuracy() > 0.97, "{after:?}");
}

#[test]
fn a_part_batch_counts_only_its_images() {
    for arch in archs() {
        let spec = small_net();
        let mut whole = Net::with_arch(&spec, Phase::Train, 40, [1, 8, 8], 4, arch).unwrap();
        let words = zeros(whole.extent());
        let w = WeightsView::of(&words);
        whole.initialise(w, 3);
        let (images, labels) = bars(&mut Xoshiro256PlusPlus::seed_from_u64(5), 40);
        let mut all = vec![0.0; whole.extent()];
        let loss = whole.forward_backward(w, &images, &labels, &mut all);
        // 7 and 33 images, in a net that has just seen 40: summed they are the same.
        let (mut part, mut sum, mut losses) = (all.clone(), vec![0.0; all.len()], 0.0);
        for (from, to) in [(0, 7), (7, 40)] {
            let n = (to - from) as f32;
            losses += whole.forward_backward(
                w,
                &images[from * 64..to * 64],
                &labels[from..to],
                &mut part,
            ) * n
                / 40.0;
            sum.iter_mut()
                .zip(&part)
                .for_each(|(s, p)| *s += p * n / 40.0);
        }
        assert!((loss - losses).abs() < 1e-5, "{loss} {losses}");
        for (a, s) in all.iter().zip(&sum) {
            assert!((a - s).abs() < 1e-5, "{arch:?}: {a} {s}");
        }
        // Adding to gradients is what iter_size does.
        whole.add_gradients(w, &images, &labels, &mut all);
        whole.forward_backward(w, &images, &labels, &mut part);
        assert!(
            all.iter()
                .zip(&part)
                .all(|(a, p)| (a - 2.0 * p).abs() < 1e-5)
        );
    }
}

/// Two branches that are joined, a blob with two readers, two losses: the gradient of the weights
/// through the whole net against differences (a rectifier of slope 1: a kink would spoil them).
#[test]
fn gradients_flow_through_branches() {
    let text = format!(
        "{DATA}
        layer {{ name: 'a' type: 'Convolution' bottom: 'data' top: 'a' convolution_param {{ num_output: 3 kernel_size: 3 pad: 1 weight_filler {{ type: 'xavier' }} }} }}
        layer {{ name: 'r' type: 'ReLU' bottom: 'a' top: 'r' relu_param {{ negative_slope: 1 }} }}
        layer {{ name: 'b' type: 'Convolution' bottom: 'r' top: 'b' convolution_param {{ num_output: 2 kernel_size: 1 bias_term: false weight_filler {{ type: 'xavier' }} }} }}
        layer {{ name: 'p' type: 'Pooling' bottom: 'r' top: 'p' pooling_param {{ pool: AVE kernel_size: 3 stride: 1 pad: 1 }} }}
        layer {{ name: 'n' type: 'LRN' bottom: 'p' top: 'n' lrn_param {{ local_size: 3 alpha: 0.5 }} }}
        layer {{ name: 'cat' type: 'Concat' bottom: 'b' bottom: 'n' bottom: 'r' top: 'cat' }}
        layer {{ name: 'side' type: 'InnerProduct' bottom: 'b' top: 'side' inner_product_param {{ num_output: 4 weight_filler {{ type: 'xavier' }} }} }}
        layer {{ name: 'side_loss' type: 'SoftmaxWithLoss' bottom: 'side' bottom: 'label' top: 'l' loss_weight: 0.3 }}
        layer {{ name: 'ip' type: 'InnerProduct' bottom: 'cat' top: 'ip' inner_product_param {{ num_output: 4 weight_filler {{ type: 'xavier' }} }} }}
        layer {{ name: 'lost' type: 'InnerProduct' bottom: 'cat' top: 'lost' inner_product_param {{ num_output: 2 }} }}
        {LOSS}"
    );
    let mut net = Net::new(&net(&text), Phase::Train, 5, [1, 8, 8], 4).unwrap();
    let words = zeros(net.extent());
    let w = WeightsView::of(&words);
    net.initialise(w, 3);
    let (images, labels) = bars(&mut Xoshiro256PlusPlus::seed_from_u64(5), 5);
    let mut grads = vec![f32::NAN; net.extent()];
    net.forward_backward(w, &images, &labels, &mut grads);
    let tensors = net.parameters().to_vec();
    let rng = &mut Xoshiro256PlusPlus::seed_from_u64(6);
    for tensor in &tensors {
        for _ in 0..12 {
            let i = tensor.offset + rng.random_range(0..tensor.len);
            let (old, step) = (w.load(i), 1e-2);
            let mut loss = |value: f32| {
                w.store(i, value);
                let e = net.evaluate(w, &images, &labels);
                e.loss_sum / 5.0
            };
            let difference = (loss(old + step) - loss(old - step)) / (2.0 * f64::from(step));
            w.store(i, old);
            let gradient = f64::from(grads[i]);
            assert!(
                (difference - gradient).abs() < 1e-3 * (1.0 + gradient.abs()),
                "{} at {i}: {gradient}, difference {difference}",
                tensor.name
            );
        }
    }
    // What no loss depends on has gradient 0, not what was there.
    let lost = tensors.iter().find(|t| t.name == "lost.weight").unwrap();
    assert!(
        grads[lost.offset..lost.offset + lost.len]
            .iter()
            .all(|&g| g == 0.0)
    );
}

#[test]
fn layers_report_when_their_gradients_are_final() {
    let mut net = Net::new(&small_net(), Phase::Train, 3, [1, 8, 8], 4).unwrap();
    let words = zeros(net.extent());
    net.initialise(WeightsView::of(&words), 3);
    let (images, labels) = bars(&mut Xoshiro256PlusPlus::seed_from_u64(5), 3);
    let (mut grads, mut seen, mut early) = (vec![0.0; net.extent()], Vec::new(), Vec::new());
    net.forward_backward_with(
        WeightsView::of(&words),
        &images,
        &labels,
        &mut grads,
        false,
        |done| {
            seen.extend(done.tensors.iter().map(|t| (done.layer, t.name.clone())));
            let first = |t: &Tensor| (t.offset, done.gradients[t.offset]);
            early.extend(done.tensors.iter().map(first));
        },
    );
    let names: Vec<(usize, &str)> = seen.iter().map(|(l, n)| (*l, n.as_str())).collect();
    let expected = [
        (1, "ip.weight"),
        (1, "ip.bias"),
        (0, "conv.weight"),
        (0, "conv.bias"),
    ];
    assert_eq!(names, expected);
    assert!(early.iter().all(|&(at, g)| grads[at] == g));
}

/// Whole gradients of one net, factors of another: a fully connected layer's gradient is `u × vᵀ`,
/// and that of its bias the sum of `u`.
#[test]
fn factors_make_the_gradient() {
    let spec = small_net();
    let (images, labels) = bars(&mut Xoshiro256PlusPlus::seed_from_u64(5), 3);
    let mut whole = Net::new(&spec, Phase::Train, 3, [1, 8, 8], 4).unwrap();
    let words = zeros(whole.extent());
    let w = WeightsView::of(&words);
    whole.initialise(w, 3);
    let mut grads = vec![0.0; whole.extent()];
    whole.forward_backward(w, &images, &labels, &mut grads);

    let mut net = Net::new(&spec, Phase::Train, 3, [1, 8, 8], 4).unwrap();
    let layers = net.layers();
    let ip = layers.iter().position(|l| l.name == "ip").unwrap();
    let [outputs, inputs] = layers[ip].factored.unwrap();
    assert_eq!(layers[0].factored, None, "a convolution has no factors");
    net.keep_factors(ip);
    let mut rest = vec![7.0; net.extent()];
    let mut made = None;
    net.forward_backward_with(w, &images, &labels, &mut rest, false, |done| {
        if done.layer == ip {
            let f = done.factors.unwrap();
            assert_eq!(f.images, 3);
            let rows = |x: &[f32]| -> Vec<f32> {
                x.chunks(f.stride)
                    .flat_map(|row| row[..f.images].to_vec())
                    .collect()
            };
            let (u, v) = (rows(f.u), rows(f.v));
            let mut weight = vec![0.0; outputs * inputs];
            add_outer_products([outputs, inputs], &u, &v, &mut weight);
            let bias: Vec<f32> = u.chunks(f.images).map(|row| row.iter().sum()).collect();
            made = Some((weight, bias));
        }
    });
    let (weight, bias) = made.unwrap();
    let tensors = &net.parameters()[layers[ip].tensors.clone()];
    for (tensor, made) in tensors.iter().zip([weight, bias]) {
        let at = tensor.offset..tensor.offset + tensor.len;
        assert!(rest[at.clone()].iter().all(|&g| g == 7.0), "left alone");
        for (a, b) in made.iter().zip(&grads[at]) {
            assert!((a - b).abs() <= 1e-6 * (1.0 + b.abs()), "{a} for {b}");
        }
    }
}

#[test]
fn a_step_in_parts_is_the_step() {
    let mut spec = SolverSpec::builtin("lenet").unwrap();
    spec.net = small_net();
    let net = Net::new(&spec.net, Phase::Train, 3, [1, 8, 8], 4).unwrap();
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(9);
    let grads: Vec<f32> = (0..net.extent())
        .map(|_| rng.random::<f32>() - 0.5)
        .collect();
    let all = || [zeros(net.extent()), zeros(net.extent())];
    let ([w, history], [w2, history2]) = (all(), all());
    for words in [&w, &w2] {
        net.initialise(WeightsView::of(words), 3);
    }
    for iteration in 0..3 {
        let rate = spec.rate_at(iteration);
        let view = WeightsView::of(&history);
        update(&spec, &net, WeightsView::of(&w), &grads, view, rate);
        for tensor in net.parameters() {
            let step = TensorStep::of(&spec, tensor, rate, 1.0);
            for from in (0..tensor.len).step_by(7) {
                let (at, len) = (tensor.offset + from, 7.min(tensor.len - from));
                let [part, past] = [&w2, &history2].map(|x| WeightsView::of(&x[at..at + len]));
                step.apply(part, &grads[at..at + len], past);
            }
        }
    }
    let bits = |words: &[AtomicU32]| words.iter().map(|x| x.load(Relaxed)).collect::<Vec<_>>();
    assert_eq!((bits(&w), bits(&history)), (bits(&w2), bits(&history2)));
}

#[test]
fn tensors_are_packed_by_cache_lines_as_the_manifest_does() {
    let net = Net::new(
        &SolverSpec::builtin("lenet").unwrap().net,
        Phase::Train,
        64,
        [1, 28, 28],
        10,
    )
    .unwrap();
    let shapes = net.tensors();
    assert_eq!(shapes[0], ("conv1.weight".to_owned(), vec![20, 1, 5, 5]));
    assert_eq!(shapes[5], ("ip1.bias".to_owned(), vec![500]));
    assert_eq!(
        shapes
            .iter()
            .map(|(_, s)| s.iter().product::<usize>())
            .sum::<usize>(),
        431_080
    );
    let manifest = crate::weights::Manifest::new(shapes).unwrap();
    let offsets: Vec<usize> = manifest.tensors().iter().map(|t| t.offset).collect();
    assert_eq!(
        offsets,
        net.parameters()
            .iter()
            .map(|t| t.offset)
            .collect::<Vec<_>>()
    );
    assert_eq!(
        net.parameters()[1].param,
        ParamSpec {
            lr_mult: 2.0,
            decay_mult: 1.0
        }
    );
}

#[test]
fn bind_refuses_what_does_not_fit() {
    let mut net = Net::new(&small_net(), Phase::Train, 3, [1, 8, 8], 4).unwrap();
    assert!(
        net.bind(&[0, 64, 80])
            .unwrap_err()
            .to_string()
            .contains("another model")
    );
    let e = net.bind(&[0, 50, 80, 400]).unwrap_err().to_string();
    assert!(e.contains("conv.weight and conv.bias overlap"), "{e}");
    net.bind(&[1000, 64, 80, 800]).unwrap();
    assert_eq!(net.extent(), 1054);
}

/// The update against Caffe's steps one by one: normalise, regularise, momentum, subtract.
#[test]
fn update_follows_caffe() {
    for more in [
        "",
        "momentum: 0.9 weight_decay: 0.01",
        "momentum: 0.5 weight_decay: 0.1 regularization_type: 'L1' iter_size: 3",
        "momentum: 0.5 weight_decay: 0.1 clip_gradients: 0.5 iter_size: 2",
    ] {
        let spec = solver(small_net(), more);
        let net = Net::new(&spec.net, Phase::Train, 3, [1, 8, 8], 4).unwrap();
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(1);
        let mut random = || {
            (0..net.extent())
                .map(|_| rng.random_range(-1.0f32..1.0))
                .collect::<Vec<_>>()
        };
        let (start, grads, old) = (random(), random(), random());
        let share = |v: &[f32]| {
            v.iter()
                .map(|x| AtomicU32::new(x.to_bits()))
                .collect::<Vec<_>>()
        };
        let (words, history) = (share(&start), share(&old));
        let (w, h) = (WeightsView::of(&words), WeightsView::of(&history));
        let rate = 0.05;
        update(&spec, &net, w, &grads, h, rate);
        let parts = || {
            net.parameters()
                .iter()
                .flat_map(|t| (t.offset..t.offset + t.len).map(move |i| (i, t.param)))
        };
        let length = parts()
            .map(|(i, _)| grads[i] * grads[i])
            .sum::<f32>()
            .sqrt();
        let clip = spec
            .clip_gradients
            .filter(|&c| c < length)
            .map_or(1.0, |c| c / length);
        for (i, param) in parts() {
            let mut g = grads[i] * clip / spec.iter_size as f32;
            let decay = spec.weight_decay * param.decay_mult;
            g += decay
                * if spec.regularization_type == Regularization::L1 {
                    start[i].signum()
                } else {
                    start[i]
                };
            let v = rate * param.lr_mult * g + spec.momentum * old[i];
            assert!(
                (w.load(i) - (start[i] - v)).abs() < 1e-6,
                "{more}: weight {i}"
            );
            if spec.momentum > 0.0 {
                assert!((h.load(i) - v).abs() < 1e-6, "{more}: history {i}");
            }
        }
        // Nothing between the tensors was touched.
        let gap = net.parameters()[1].offset - 1;
        assert_eq!(w.load(gap), start[gap]);
    }
}

#[test]
fn dropout_and_phases() {
    let text = format!(
        "{DATA}
        layer {{ name: 'ip' type: 'InnerProduct' bottom: 'data' top: 'ip' inner_product_param {{ num_output: 4 weight_filler {{ type: 'xavier' }} }} }}
        layer {{ name: 'drop' type: 'Dropout' bottom: 'ip' top: 'ip' dropout_param {{ dropout_ratio: 0.5 }} }}
        {LOSS}"
    );
    let spec = net(&text);
    let (images, labels) = bars(&mut Xoshiro256PlusPlus::seed_from_u64(5), 20);
    let loss = |phase, passes: usize| {
        let mut net = Net::new(&spec, phase, 20, [1, 8, 8], 4).unwrap();
        let words = zeros(net.extent());
        net.initialise(WeightsView::of(&words), 3);
        (0..passes)
            .map(|_| {
                net.evaluate(WeightsView::of(&words), &images, &labels)
                    .loss_sum
            })
            .collect::<Vec<_>>()
    };
    let (train, test) = (loss(Phase::Train, 2), loss(Phase::Test, 2));
    assert_eq!(test[0], test[1]);
    assert_ne!(train[0], train[1]);
    assert_eq!(train, loss(Phase::Train, 2), "a seed repeats its masks");
}

/// What Caffe's larger examples say, in their manner of writing: it all parses.
#[test]
fn fields_of_the_larger_caffe_models_parse() {
    let spec = net(r#"name: "like AlexNet and GoogLeNet"
        layer { name: "data" type: "Data" top: "data" top: "label" include { phase: TRAIN }
          transform_param { mirror: true crop_size: 32 mean_file: "data/ilsvrc12/imagenet_mean.binaryproto" }
          data_param { source: "examples/imagenet/ilsvrc12_train_lmdb" batch_size: 256 backend: LMDB } }
        layer { name: "data" type: "Data" top: "data" top: "label" include { phase: TEST }
          transform_param { mirror: false crop_size: 32 mean_value: 104 mean_value: 117 mean_value: 123 }
          data_param { source: "examples/imagenet/ilsvrc12_val_lmdb" batch_size: 50 backend: LMDB } }
        layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
          param { lr_mult: 1 decay_mult: 1 } param { lr_mult: 2 decay_mult: 0 }
          convolution_param { num_output: 8 kernel_size: 11 stride: 4
            weight_filler { type: "gaussian" std: 0.01 } bias_filler { type: "constant" value: 0 } } }
        layer { name: "relu1" type: "ReLU" bottom: "conv1" top: "conv1" }
        layer { name: "norm1" type: "LRN" bottom: "conv1" top: "norm1" lrn_param { local_size: 5 alpha: 0.0001 beta: 0.75 } }
        layer { name: "pool1" type: "Pooling" bottom: "norm1" top: "pool1" pooling_param { pool: MAX kernel_size: 3 stride: 2 } }
        layer { name: "conv2" type: "Convolution" bottom: "pool1" top: "conv2"
          convolution_param { num_output: 4 pad: 2 kernel_size: 5 group: 2 weight_filler { type: "xavier" std: 0.1 } } }
        layer { name: "norm2" type: "LRN" bottom: "conv2" top: "norm2"
          lrn_param { local_size: 3 alpha: 5e-05 beta: 0.75 norm_region: WITHIN_CHANNEL } }
        layer { name: "out" type: "Concat" bottom: "pool1" bottom: "norm2" top: "out" }
        layer { name: "drop" type: "Dropout" bottom: "out" top: "out" dropout_param { dropout_ratio: 0.7 } }
        layer { name: "fc" type: "InnerProduct" bottom: "out" top: "fc" inner_product_param { num_output: 10 } }
        layer { name: "loss1/loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" top: "loss1/loss1" loss_weight: 0.3 }
        layer { name: "top5" type: "Accuracy" bottom: "fc" bottom: "label" top: "top5" include { phase: TEST } accuracy_param { top_k: 5 } }"#);
    assert_eq!(
        (spec.batch_size(Phase::Train), spec.batch_size(Phase::Test)),
        (Some(256), Some(50))
    );
    let transform = spec.transform_param(Phase::Train).unwrap();
    assert!(transform.mirror && transform.crop_size == 32 && transform.mean_file.is_some());
    assert_eq!(
        spec.transform_param(Phase::Test).unwrap().mean_value,
        [104.0, 117.0, 123.0]
    );
    for phase in [Phase::Train, Phase::Test] {
        let mut net = Net::new(&spec, phase, 2, [3, 32, 32], 10).expect("it builds");
        let words = zeros(net.extent());
        net.initialise(WeightsView::of(&words), 1);
        let mut grads = vec![0.0; net.extent()];
        let images = vec![0.5; 2 * 3072];
        let loss = net.forward_backward(WeightsView::of(&words), &images, &[1, 2], &mut grads);
        assert!(loss.is_finite() && grads.iter().all(|g| g.is_finite()));
    }
    let deploy = net("name: 'x' input: 'data' input_dim: 1 input_dim: 3 input_dim: 8 input_dim: 8
        layer { name: 'ip' type: 'InnerProduct' bottom: 'data' top: 'ip' inner_product_param { num_output: 2 } }
        layer { name: 'prob' type: 'Softmax' bottom: 'ip' top: 'prob' }");
    assert!(Net::new(&deploy, Phase::Test, 1, [3, 8, 8], 2).is_ok());
}

#[test]
fn what_cannot_work_is_refused_with_place_and_reason() {
    let layer = |text: &str| {
        NetSpec::parse("n", &format!("{DATA}\n{text}"))
            .and_then(|spec| Net::new(&spec, Phase::Train, 2, [1, 8, 8], 4).map(|_| ()))
    };
    for (text, want) in [
        ("layer { name: 'x' type: 'Embed' }", "n:2: layer \"x\": type \"Embed\" is not supported; these are: Data"),
        ("layer { name: 'x' type: 'Convolution' bottom: 'data' top: 'x' }", "field `num_output`: missing"),
        ("layer { name: 'x' type: 'Convolution' bottom: 'data' top: 'x' convolution_param { num_output: 2 } }", "field `kernel_size`: missing"),
        ("layer { name: 'x' type: 'Convolution' bottom: 'data' top: 'x' convolution_param { num_output: 2 kernel_size: 9 } }", "the kernel reaches over 9 pixels, but the padded image has 8"),
        ("layer { name: 'x' type: 'Convolution' bottom: 'data' top: 'x' convolution_param { num_output: 4 kernel_size: 3 group: 2 } }", "1 channels cannot be split in 2 groups"),
        ("layer { name: 'x' type: 'Convolution' bottom: 'data' top: 'x' convolution_param { num_output: 4 kernel_size: 3 kernel_h: 3 } }", "given twice"),
        ("layer { name: 'x' type: 'Convolution' bottom: 'data' top: 'x' convolution_param { num_output: 4 kernel_size: 3 stride: 0 } }", "0 is not usable"),
        ("layer { name: 'x' type: 'InnerProduct' bottom: 'dat' top: 'x' inner_product_param { num_output: 2 } }", "no layer before it has a top \"dat\""),
        ("layer { name: 'x' type: 'InnerProduct' bottom: 'label' top: 'x' inner_product_param { num_output: 2 } }", "is the labels"),
        ("layer { name: 'x' type: 'InnerProduct' bottom: 'data' top: 'data' inner_product_param { num_output: 2 } }", "cannot work in place"),
        ("layer { name: 'x' type: 'InnerProduct' bottom: 'data' top: 'x' inner_product_param { num_output: 2 weight_filler { type: 'bilinear' } } }", "\"bilinear\" is none of"),
        ("layer { name: 'x' type: 'Pooling' bottom: 'data' top: 'x' pooling_param { pool: STOCHASTIC kernel_size: 2 } }", "STOCHASTIC is not supported"),
        ("layer { name: 'x' type: 'Dropout' bottom: 'data' top: 'x' dropout_param { dropout_ratio: 1 } }", "outside 0 to below 1"),
        ("layer { name: 'd' type: 'ReLU' bottom: 'data' top: 'x' }", "same name"),
        ("layer { name: 'x' type: 'ReLU' bottom: 'data' top: 'x' }", "no loss in phase TRAIN"),
        ("layer { name: 'l' type: 'SoftmaxWithLoss' bottom: 'data' bottom: 'label' }", "there are 1 scores, but the data has 4 classes"),
        ("layer { name: 'x' type: 'InnerProduct' bottom: 'data' top: 'x' param { name: 'shared' } inner_product_param { num_output: 2 } }", "sharing parameters"),
        ("layer { name: 'x' type: 'Pooling' bottom: 'data' top: 'p' pooling_param { kernel_size: 2 } }
          layer { name: 'y' type: 'ReLU' bottom: 'data' top: 'data' }", "would overwrite in place what layer \"x\" still needs"),
        ("layer { name: 'x' type: 'ReLU' bottom: 'data' top: 'x' relu_param { slope: 1 } }", "n:2: "),
        ("layer { name: 'x' type: 'Data' top: 'again' }", "only one source of images"),
    ] {
        let e = layer(text).unwrap_err().to_string();
        assert!(e.contains(want), "{text}\n-> {e}\n(wanted {want})");
    }
    let spec = small_net();
    let e = Net::new(&spec, Phase::Train, 0, [1, 8, 8], 4)
        .err()
        .unwrap()
        .to_string();
    assert!(e.contains("empty"), "{e}");
    let e = Net::new(&spec, Phase::Train, 2, [1, 8, 8], 100)
        .err()
        .unwrap()
        .to_string();
    assert!(e.contains("4 scores, but the data has 100 classes"), "{e}");
    let e = NetSpec::parse("solver.prototxt", "name: 'x'")
        .unwrap_err()
        .to_string();
    assert!(e.contains("is this a net file"), "{e}");
}

/// Mangled text gives an error or a net, never a panic.
#[test]
fn mangled_files_never_panic() {
    let rng = &mut Xoshiro256PlusPlus::seed_from_u64(8);
    let texts = [
        include_str!("../../models/lenet_train_test.prototxt"),
        include_str!("../../models/cifar10_quick_train_test.prototxt"),
    ];
    for round in 0..400 {
        let mut text = texts[round % 2].to_owned();
        for _ in 0..rng.random_range(1..4) {
            let lines: Vec<&str> = text.lines().collect();
            let (i, j) = (
                rng.random_range(0..lines.len()),
                rng.random_range(0..lines.len()),
            );
            let mut lines: Vec<String> = lines.iter().map(|l| (*l).to_owned()).collect();
            match rng.random_range(0..4) {
                0 => drop(lines.remove(i)),
                1 => lines.swap(i, j),
                2 => {
                    lines[i] = lines[i].replace(
                        ['1', '2', '5'],
                        ["-3", "0", "99999999999", "1e40"][round % 4],
                    )
                }
                _ => lines[i] = lines[j].clone(),
            }
            text = lines.join("\n");
        }
        if let Ok(spec) = NetSpec::parse("mangled", &text) {
            // Sizes that would only fill memory are left alone.
            let large = spec
                .layers
                .iter()
                .any(|l| format!("{:?}", l.op).contains("999"));
            if !large {
                let _ = Net::new(&spec, Phase::Train, 1, [1, 28, 28], 10).map(|n| n.extent());
            }
        }
    }
}

/// Weights that are no numbers give a loss that is none: training says that it has diverged.
#[test]
fn a_loss_of_broken_weights_is_no_number() {
    let mut net = Net::new(&small_net(), Phase::Train, 20, [1, 8, 8], 4).expect("a net");
    let words: Vec<AtomicU32> = (0..net.extent()).map(|_| AtomicU32::new(0)).collect();
    net.initialise(WeightsView::of(&words), 1);
    let (images, labels) = bars(&mut Xoshiro256PlusPlus::seed_from_u64(1), 20);
    let mut grads = vec![0.0; net.extent()];
    let mut loss = || net.forward_backward(WeightsView::of(&words), &images, &labels, &mut grads);
    assert!(loss().is_finite());
    words
        .iter()
        .for_each(|word| word.store(f32::NAN.to_bits(), Relaxed));
    assert!(loss().is_nan());
}

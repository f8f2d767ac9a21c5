//! Golden numbers of each rule, and that parts of a tensor make the steps of the whole.

use std::sync::atomic::AtomicU32;

use super::*;

/// Gradients of three steps for four weights.
const GRADIENTS: [[f32; 4]; 3] = [
    [0.5, -1.0, 0.0, 2.0],
    [0.25, -1.0, 1e-3, -2.0],
    [-0.5, 3.0, 1e-3, 0.125],
];
const FIRST: [f32; 4] = [1.0, -2.0, 0.5, 0.0];

fn words(values: &[f32]) -> Vec<AtomicU32> {
    values.iter().map(|v| AtomicU32::new(v.to_bits())).collect()
}

fn floats(words: &[AtomicU32]) -> Vec<f32> {
    let view = WeightsView::of(words);
    (0..words.len()).map(|i| view.load(i)).collect()
}

/// The weights after steps with gradients, which are sums of two.
fn after(
    named: &StepRule,
    first: &[f32],
    gradients: &[Vec<f32>],
    multipliers: [f32; 2],
) -> Vec<f32> {
    let (w, made) = (words(first), step_of(named));
    let state: Vec<_> = (0..named.states())
        .map(|_| words(&vec![0.0; first.len()]))
        .collect();
    let state: Vec<_> = state.iter().map(|x| WeightsView::of(x)).collect();
    for (clock, gradient) in gradients.iter().enumerate() {
        let input = StepInput {
            clock: clock as u64,
            scale: 0.5,
            multipliers,
        };
        made.make(input, gradient, WeightsView::of(&w), &state);
    }
    floats(&w)
}

/// [`GRADIENTS`], each as the sum of two.
fn sums() -> Vec<Vec<f32>> {
    let sums = GRADIENTS.iter().map(|row| row.map(|g| 2.0 * g).to_vec());
    sums.collect()
}

fn near(got: &[f32], want: [f32; 4]) {
    let mut pairs = got.iter().zip(want);
    assert!(
        pairs.all(|(g, w)| (g - w).abs() <= 3e-7),
        "{got:?}, not {want:?}"
    );
}

fn sgd() -> StepRule {
    StepRule::Sgd {
        rate: 0.1,
        schedule: Schedule::Fixed,
        momentum: 0.9,
        weight_decay: 0.01,
        penalty: Penalty::L2,
    }
}

fn adam(weight_decay: f32, decoupled: bool) -> StepRule {
    StepRule::Adam {
        rate: 0.1,
        schedule: Schedule::Fixed,
        beta1: 0.8,
        beta2: 0.99,
        epsilon: 1e-6,
        weight_decay,
        decoupled,
    }
}

/// What PyTorch 1.13 makes of them: `torch.optim.SGD(lr=.1, momentum=.9, weight_decay=.01)`,
/// `Adam(lr=.1, betas=(.8, .99), eps=1e-6)`, the same with `weight_decay=.05`, and `AdamW`.
#[test]
fn each_rule_makes_the_steps_of_another_implementation() {
    let made = |rule: &StepRule| after(rule, &FIRST, &sums(), [1.0; 2]);
    near(
        &made(&sgd()),
        [0.861_609_76, -1.828_269_5, 0.496_907_5, -0.173_940_18],
    );
    near(
        &made(&adam(0.0, false)),
        [0.806_614_76, -1.833_267_3, 0.331_725_36, -0.083_987_39],
    );
    near(
        &made(&adam(0.05, false)),
        [0.795_580_75, -1.828_555_2, 0.205_849_3, -0.083_656_58],
    );
    near(
        &made(&adam(0.05, true)),
        [0.793_144_6, -1.804_914_6, 0.324_654_1, -0.083_045_445],
    );
    assert_eq!(made(&StepRule::Mean {}), GRADIENTS[2]);
}

/// A factor of 0 on the rate holds a tensor; one of 0 on the decay leaves it without decay.
#[test]
fn multipliers_are_those_of_the_tensor() {
    for rule in [sgd(), adam(0.05, true)] {
        assert_eq!(after(&rule, &FIRST, &sums(), [0.0, 1.0]), FIRST, "{rule:?}");
    }
    let plain = after(&adam(0.0, false), &FIRST, &sums(), [1.0; 2]);
    for decoupled in [false, true] {
        let made = after(&adam(0.05, decoupled), &FIRST, &sums(), [1.0, 0.0]);
        assert_eq!(made, plain, "decoupled: {decoupled}");
    }
}

#[test]
fn a_rate_falls_as_its_schedule_says() {
    let schedule = Schedule::Multistep {
        gamma: 0.0,
        stepvalues: vec![2],
    };
    let StepRule::Adam {
        rate,
        beta1,
        beta2,
        epsilon,
        ..
    } = adam(0.0, false)
    else {
        panic!("it is Adam");
    };
    let falls = StepRule::Adam {
        schedule,
        rate,
        beta1,
        beta2,
        epsilon,
        weight_decay: 0.0,
        decoupled: false,
    };
    let two = after(&adam(0.0, false), &FIRST, &sums()[..2], [1.0; 2]);
    assert_eq!(after(&falls, &FIRST, &sums(), [1.0; 2]), two);
}

/// Pairs are parts of tensors, and each is stepped on its own.
#[test]
fn parts_make_the_steps_of_the_whole() {
    let n = 2 * CHUNK + 77;
    let value = |seed: usize| move |i: usize| ((i * 7919 + seed) % 1000) as f32 / 500.0 - 1.0;
    let first: Vec<f32> = (0..n).map(value(1)).collect();
    let gradients: Vec<Vec<f32>> = (0..3).map(|t| (0..n).map(value(t + 2)).collect()).collect();
    for rule in [sgd(), StepRule::Mean {}, adam(0.05, false)] {
        let whole = after(&rule, &first, &gradients, [1.0; 2]);
        let mut parts = Vec::new();
        for range in [0..500, 500..CHUNK + 501, CHUNK + 501..n] {
            let part = |row: &Vec<f32>| row[range.clone()].to_vec();
            let gradients: Vec<_> = gradients.iter().map(part).collect();
            parts.extend(after(&rule, &part(&first), &gradients, [1.0; 2]));
        }
        let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&whole), bits(&parts), "{rule:?}");
    }
}

/// What Caffe's policies are here and back.
#[test]
fn schedules_are_caffes_policies() {
    for given in [
        Schedule::Fixed,
        Schedule::Step {
            gamma: 0.1,
            stepsize: 7,
        },
        Schedule::Exp { gamma: 0.9 },
        Schedule::Inv {
            gamma: 1e-4,
            power: 0.75,
        },
        Schedule::Multistep {
            gamma: 0.1,
            stepvalues: vec![5, 9],
        },
        Schedule::Poly {
            power: 1.0,
            max_iter: 50,
        },
        Schedule::Sigmoid {
            gamma: -0.1,
            stepsize: 20,
        },
    ] {
        assert_eq!(schedule(&policy(&given)), given);
    }
}

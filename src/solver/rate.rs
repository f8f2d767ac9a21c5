//! Caffe's learning-rate policies: the rate as a function of the iteration alone, so that it
//! can follow the iteration count of a whole cluster.

use serde::Serialize;

/// How the rate falls with the iterations (`lr_policy`).
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "lr_policy", rename_all = "lowercase")]
pub enum LrPolicy {
    /// Always `base_lr`.
    Fixed,
    /// `base_lr * gamma ^ floor(iteration / stepsize)`.
    Step {
        /// Factor per step.
        gamma: f32,
        /// Iterations per step.
        stepsize: u64,
    },
    /// `base_lr * gamma ^ iteration`.
    Exp {
        /// Factor per iteration.
        gamma: f32,
    },
    /// `base_lr * (1 + gamma * iteration) ^ -power`.
    Inv {
        /// Growth of the base, per iteration.
        gamma: f32,
        /// Exponent; the larger, the faster the rate falls.
        power: f32,
    },
    /// `base_lr * gamma ^ (number of step values reached)`.
    Multistep {
        /// Factor per step value.
        gamma: f32,
        /// Iterations at which the rate falls, rising.
        stepvalues: Vec<u64>,
    },
    /// `base_lr * (1 - iteration / max_iter) ^ power`; 0 from `max_iter` on.
    Poly {
        /// Exponent; 1: the rate falls in a straight line.
        power: f32,
        /// Where the rate is 0; summaries have it in the solver's own field.
        #[serde(skip_serializing)]
        max_iter: u64,
    },
    /// `base_lr / (1 + exp(-gamma * (iteration - stepsize)))`.
    Sigmoid {
        /// Steepness (negative: falling).
        gamma: f32,
        /// Iteration of the middle.
        stepsize: u64,
    },
}

impl LrPolicy {
    /// The rate at `iteration` (from 0). Computed in f64 and rounded once, so that a long
    /// run's rate does not depend on f32 powers.
    pub fn rate_at(&self, base_lr: f32, iteration: u64) -> f32 {
        let t = iteration as f64;
        let factor = match self {
            Self::Fixed => 1.0,
            Self::Step { gamma, stepsize } => f64::from(*gamma).powf((iteration / stepsize) as f64),
            Self::Exp { gamma } => f64::from(*gamma).powf(t),
            Self::Inv { gamma, power } => (1.0 + f64::from(*gamma) * t).powf(-f64::from(*power)),
            Self::Multistep { gamma, stepvalues } => {
                let steps = stepvalues.iter().take_while(|&&s| iteration >= s).count();
                f64::from(*gamma).powf(steps as f64)
            }
            Self::Poly { power, max_iter } => (1.0 - t / (*max_iter as f64))
                .max(0.0)
                .powf(f64::from(*power)),
            Self::Sigmoid { gamma, stepsize } => {
                1.0 / (1.0 + (-f64::from(*gamma) * (t - *stepsize as f64)).exp())
            }
        };
        (f64::from(base_lr) * factor) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Caffe's formulas (caffe.proto), worked out by hand for a base rate of 0.01.
    fn holds(policy: &LrPolicy, table: &[(u64, f32)]) {
        for &(iteration, want) in table {
            let got = policy.rate_at(0.01, iteration);
            assert!(
                (got - want).abs() <= 1e-7,
                "{policy:?} at {iteration}: {got}, not {want}"
            );
        }
    }

    #[test]
    fn fixed_and_stepwise_policies() {
        holds(&LrPolicy::Fixed, &[(0, 0.01), (123, 0.01)]);
        let step = LrPolicy::Step {
            gamma: 0.1,
            stepsize: 100,
        };
        holds(&step, &[(99, 0.01), (100, 0.001), (250, 0.0001)]);
        let multistep = LrPolicy::Multistep {
            gamma: 0.1,
            stepvalues: vec![10, 20],
        };
        holds(
            &multistep,
            &[(9, 0.01), (10, 0.001), (19, 0.001), (20, 0.0001)],
        );
    }

    #[test]
    fn smooth_policies() {
        holds(&LrPolicy::Exp { gamma: 0.5 }, &[(0, 0.01), (3, 0.00125)]);
        let inv = LrPolicy::Inv {
            gamma: 0.0001,
            power: 0.75,
        };
        holds(&inv, &[(0, 0.01), (10_000, 0.01 / 2f32.powf(0.75))]);
        let poly = |power| LrPolicy::Poly {
            power,
            max_iter: 100,
        };
        holds(&poly(2.0), &[(0, 0.01), (50, 0.0025), (100, 0.0)]);
        holds(&poly(0.5), &[(200, 0.0)]);
        let sigmoid = LrPolicy::Sigmoid {
            gamma: -0.1,
            stepsize: 50,
        };
        holds(&sigmoid, &[(50, 0.005), (0, 0.01 / (1.0 + (-5f32).exp()))]);
    }
}

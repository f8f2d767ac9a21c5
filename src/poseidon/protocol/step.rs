//! Which step is made of a mean gradient: a rule and its numbers, which are part of the plan.
//!
//! Numbers only: `runtime::step` makes the steps. Servers make them for the pairs that they hold,
//! workers for the layers that no server holds; all read the rule from the plan. Invariant of a
//! checked plan: every number is finite and within its range.

use serde::{Deserialize, Serialize};

/// A rule, and how it is scaled for each tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepSpec {
    /// The rule.
    pub rule: StepRule,
    /// Gradients that a worker's contribution is the sum of; the step divides by them.
    pub batches: u64,
    /// For each layer, for each tensor: factor on the rate, factor on the weight decay. Empty: all
    /// are 1.
    pub multipliers: Vec<Vec<[f32; 2]>>,
}

/// What becomes of a mean gradient.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "rule", rename_all = "lowercase", deny_unknown_fields)]
pub enum StepRule {
    /// Caffe's SGD: `v = rate × (gradient + decay) + momentum × v`, `w -= v`.
    Sgd {
        /// Rate at step 0.
        rate: f32,
        /// How the rate falls with the steps.
        #[serde(default)]
        schedule: Schedule,
        /// Share of the last step that is added to the next one, 0 to below 1.
        #[serde(default)]
        momentum: f32,
        /// Factor of the penalty on the weights.
        #[serde(default)]
        weight_decay: f32,
        /// Which penalty.
        #[serde(default)]
        penalty: Penalty,
    },
    /// None: the mean gradient takes the place of the weights, and each worker's own optimiser
    /// makes the step.
    Mean {},
    /// Adam (Kingma & Ba 2015, algorithm 1), with its correction for the first steps.
    Adam {
        /// Rate at step 0.
        rate: f32,
        /// How the rate falls with the steps.
        #[serde(default)]
        schedule: Schedule,
        /// Share of the first moment that stays, 0 to below 1.
        #[serde(default = "beta1")]
        beta1: f32,
        /// Share of the second moment that stays, 0 to below 1.
        #[serde(default = "beta2")]
        beta2: f32,
        /// Added to the root of the second moment, above 0.
        #[serde(default = "epsilon")]
        epsilon: f32,
        /// Factor of the penalty on the weights (L2).
        #[serde(default)]
        weight_decay: f32,
        /// The decay is taken from the weights themselves (AdamW) instead of added to the gradient.
        #[serde(default)]
        decoupled: bool,
    },
}

/// Penalty on the weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Penalty {
    /// Gradient of `decay/2 × w²`.
    #[default]
    L2,
    /// Gradient of `decay × |w|`.
    L1,
}

/// How a rate falls with the steps: Caffe's policies.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "policy", rename_all = "lowercase", deny_unknown_fields)]
pub enum Schedule {
    /// Not at all.
    #[default]
    Fixed,
    /// `rate × gamma ^ floor(step / stepsize)`.
    Step {
        /// Factor by which the rate falls.
        gamma: f32,
        /// Steps between two falls, 1 or more.
        stepsize: u64,
    },
    /// `rate × gamma ^ step`.
    Exp {
        /// Factor by which the rate falls.
        gamma: f32,
    },
    /// `rate × (1 + gamma × step) ^ -power`.
    Inv {
        /// Growth of the base.
        gamma: f32,
        /// Exponent of the fall.
        power: f32,
    },
    /// `rate × gamma ^ (number of step values reached)`.
    Multistep {
        /// Factor by which the rate falls.
        gamma: f32,
        /// Steps at which the rate falls, rising.
        stepvalues: Vec<u64>,
    },
    /// `rate × (1 - step / max_iter) ^ power`; 0 from `max_iter` on.
    Poly {
        /// Exponent of the fall.
        power: f32,
        /// Where the rate is 0, 1 or more.
        max_iter: u64,
    },
    /// `rate / (1 + exp(-gamma × (step - stepsize)))`.
    Sigmoid {
        /// Steepness (negative: falling).
        gamma: f32,
        /// Step of the middle.
        stepsize: u64,
    },
}

/// Why a step cannot be made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum StepError {
    /// A number is out of its range.
    #[error("step: {field} is {value}: give {range}")]
    Range {
        /// Name of the number.
        field: &'static str,
        /// What was given.
        value: f32,
        /// What can be.
        range: &'static str,
    },
    /// There are multipliers of other layers or tensors than those of the plan.
    #[error("step: multipliers of {0} tensors, and the layers have {1}")]
    Multipliers(usize, usize),
    /// The contributions are the sum of no gradient.
    #[error("step: a contribution is the sum of 0 batches: give 1 or more")]
    Batches,
}

/// Name in a checkpoint of what a rule remembers, by its place.
pub fn state_name(which: usize) -> &'static str {
    match which {
        0 => "history",
        _ => "history2",
    }
}

fn beta1() -> f32 {
    0.9
}

fn beta2() -> f32 {
    0.999
}

fn epsilon() -> f32 {
    1e-8
}

impl Default for StepSpec {
    /// Plain SGD at a rate of 0.01.
    fn default() -> Self {
        Self::of(StepRule::Sgd {
            rate: 0.01,
            schedule: Schedule::Fixed,
            momentum: 0.0,
            weight_decay: 0.0,
            penalty: Penalty::L2,
        })
    }
}

impl StepSpec {
    /// A rule for contributions of one gradient each, the same for all tensors.
    pub fn of(rule: StepRule) -> Self {
        Self {
            rule,
            batches: 1,
            multipliers: Vec::new(),
        }
    }

    /// Factors on the rate and on the weight decay of a tensor of a layer.
    pub fn multipliers(&self, layer: usize, tensor: usize) -> [f32; 2] {
        let of_layer = self.multipliers.get(layer);
        of_layer
            .and_then(|of| of.get(tensor))
            .copied()
            .unwrap_or([1.0; 2])
    }

    /// Checks the numbers, for layers of so many tensors each.
    ///
    /// # Errors
    /// See [`StepError`].
    pub fn check(&self, tensors: &[usize]) -> Result<(), StepError> {
        if self.batches == 0 {
            return Err(StepError::Batches);
        }
        let own: Vec<usize> = self.multipliers.iter().map(Vec::len).collect();
        if !own.is_empty() && own != tensors {
            let [own, theirs] = [own.iter().sum(), tensors.iter().sum()];
            return Err(StepError::Multipliers(own, theirs));
        }
        for value in self.multipliers.iter().flatten().flatten() {
            within("a multiplier", *value, "a number", f32::is_finite)?;
        }
        self.rule.check()
    }
}

impl StepRule {
    /// Numbers for each weight that must be remembered between two steps.
    pub fn states(&self) -> usize {
        match self {
            Self::Mean {} => 0,
            Self::Sgd { .. } => 1,
            Self::Adam { .. } => 2,
        }
    }

    /// Checks the numbers.
    ///
    /// # Errors
    /// See [`StepError`].
    pub fn check(&self) -> Result<(), StepError> {
        let share = |field, value| {
            let range = "0 or more, and less than 1";
            within(field, value, range, |value| (0.0..1.0).contains(&value))
        };
        let positive = |field, value| {
            within(field, value, "more than 0", |value| {
                value > 0.0 && value.is_finite()
            })
        };
        let decay = |value| {
            within("weight_decay", value, "0 or more", |value| {
                value >= 0.0 && value.is_finite()
            })
        };
        match self {
            Self::Mean {} => Ok(()),
            Self::Sgd {
                rate,
                schedule,
                momentum,
                weight_decay,
                penalty: _,
            } => {
                within("rate", *rate, "a number", f32::is_finite)?;
                share("momentum", *momentum)?;
                decay(*weight_decay)?;
                schedule.check()
            }
            Self::Adam {
                rate,
                schedule,
                beta1,
                beta2,
                epsilon,
                weight_decay,
                decoupled: _,
            } => {
                within("rate", *rate, "a number", f32::is_finite)?;
                share("beta1", *beta1)?;
                share("beta2", *beta2)?;
                positive("epsilon", *epsilon)?;
                decay(*weight_decay)?;
                schedule.check()
            }
        }
    }
}

impl Schedule {
    fn check(&self) -> Result<(), StepError> {
        let number = |field, value| within(field, value, "a number", f32::is_finite);
        let count =
            |field, value: u64| within(field, value as f32, "1 or more", |value| value >= 1.0);
        match self {
            Self::Fixed => Ok(()),
            Self::Exp { gamma } | Self::Multistep { gamma, .. } | Self::Sigmoid { gamma, .. } => {
                number("schedule.gamma", *gamma)
            }
            Self::Inv { gamma, power } => {
                number("schedule.gamma", *gamma)?;
                number("schedule.power", *power)
            }
            Self::Step { gamma, stepsize } => {
                number("schedule.gamma", *gamma)?;
                count("schedule.stepsize", *stepsize)
            }
            Self::Poly { power, max_iter } => {
                number("schedule.power", *power)?;
                count("schedule.max_iter", *max_iter)
            }
        }
    }
}

fn within(
    field: &'static str,
    value: f32,
    range: &'static str,
    holds: impl Fn(f32) -> bool,
) -> Result<(), StepError> {
    match holds(value) {
        true => Ok(()),
        false => Err(StepError::Range {
            field,
            value,
            range,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The plan travels as JSON: a number that changed on the way would be another step.
    #[test]
    fn every_number_comes_back_to_the_bit() {
        let numbers = [0.01, 1e-8, 0.1 + 0.2, f32::MIN_POSITIVE, 1.0 / 3.0, 6.1e-5];
        for rate in numbers {
            let rule = StepRule::Adam {
                rate,
                schedule: Schedule::Inv {
                    gamma: rate,
                    power: 0.75,
                },
                beta1: 0.9,
                beta2: 0.999,
                epsilon: rate,
                weight_decay: 5e-4,
                decoupled: true,
            };
            let spec = StepSpec {
                multipliers: vec![vec![[rate, 2.0], [1.0, 0.0]]],
                batches: 3,
                rule,
            };
            let text = serde_json::to_string(&spec).unwrap();
            assert_eq!(serde_json::from_str::<StepSpec>(&text).unwrap(), spec);
        }
    }

    #[test]
    fn wrong_numbers_are_told_by_name() {
        let said = |text: &str| {
            let rule: Result<StepRule, _> = serde_json::from_str(text);
            match rule {
                Ok(rule) => rule.check().unwrap_err().to_string(),
                Err(why) => why.to_string(),
            }
        };
        for (text, says) in [
            (
                r#"{"rule":"sgd","rate":0.1,"momentum":1}"#,
                "momentum is 1: give 0 or more, and",
            ),
            (
                r#"{"rule":"sgd","rate":0.1,"weight_decay":-1}"#,
                "weight_decay is -1",
            ),
            (r#"{"rule":"sgd","rate":1e39}"#, "rate is inf"),
            (r#"{"rule":"adam","rate":0.1,"beta2":1.5}"#, "beta2 is 1.5"),
            (
                r#"{"rule":"adam","rate":0.1,"epsilon":0}"#,
                "epsilon is 0: give more than 0",
            ),
            (
                r#"{"rule":"sgd","rate":1,"schedule":{"policy":"step","gamma":1,"stepsize":0}}"#,
                "schedule.stepsize is 0",
            ),
            (
                r#"{"rule":"sgd","rate":0.1,"beta1":0.9}"#,
                "unknown field `beta1`",
            ),
            (r#"{"rule":"mean","rate":0.1}"#, "unknown field `rate`"),
            (r#"{"rule":"sgd"}"#, "missing field `rate`"),
            (
                r#"{"rule":"lion","rate":1}"#,
                "unknown variant `lion`, expected one of `sgd`",
            ),
        ] {
            assert!(said(text).contains(says), "{text}: {}", said(text));
        }
        let spec = StepSpec {
            multipliers: vec![vec![[1.0; 2]]],
            ..StepSpec::default()
        };
        let said = spec.check(&[2]).unwrap_err().to_string();
        assert_eq!(
            said,
            "step: multipliers of 1 tensors, and the layers have 2"
        );
    }
}

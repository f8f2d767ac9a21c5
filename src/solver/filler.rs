//! First values of weights: Caffe's fillers, from a seeded generator.

use rand::RngExt;
use rand_distr::{Distribution, Normal};
use rand_xoshiro::Xoshiro256PlusPlus;

/// What `xavier` and `msra` divide the variance by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VarianceNorm {
    /// Inputs of one output.
    FanIn,
    /// Outputs of one input.
    FanOut,
    /// Their mean.
    Average,
}

/// How a tensor is first filled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Filler {
    /// One value.
    Constant {
        /// Value of all weights.
        value: f32,
    },
    /// Uniform from `min` to `max`.
    Uniform {
        /// Lower end.
        min: f32,
        /// Upper end.
        max: f32,
    },
    /// Normal distribution.
    Gaussian {
        /// Mean of the distribution.
        mean: f32,
        /// Standard deviation.
        std: f32,
    },
    /// Uniform with variance 1/n (Glorot and Bengio 2010, as Caffe simplifies it).
    Xavier {
        /// What n is.
        norm: VarianceNorm,
    },
    /// Normal with variance 2/n (He et al. 2015).
    Msra {
        /// What n is.
        norm: VarianceNorm,
    },
    /// Uniform, then scaled so that the inputs of each output sum to 1.
    PositiveUnitball,
}

impl Filler {
    /// Says what is wrong with its numbers.
    pub(crate) fn check(&self) -> Result<(), String> {
        match *self {
            Self::Constant { value } if !value.is_finite() => {
                Err(format!("value {value} is not finite"))
            }
            Self::Uniform { min, max } if !(min <= max && (max - min).is_finite()) => {
                Err(format!("min {min} to max {max} is not a range"))
            }
            Self::Gaussian { mean, std }
                if !(mean.is_finite() && std.is_finite() && std >= 0.0) =>
            {
                Err(format!(
                    "mean {mean}, std {std} is not a normal distribution"
                ))
            }
            _ => Ok(()),
        }
    }

    /// Values for a tensor of `shape` (outputs first).
    pub fn values(&self, shape: &[usize], rng: &mut Xoshiro256PlusPlus) -> Vec<f32> {
        let count: usize = shape.iter().product();
        let fan_in = count / shape[0].max(1);
        let fan_out = if shape.len() > 1 {
            count / shape[1].max(1)
        } else {
            count
        };
        let n = |norm| match norm {
            VarianceNorm::FanIn => fan_in as f32,
            VarianceNorm::FanOut => fan_out as f32,
            VarianceNorm::Average => (fan_in + fan_out) as f32 / 2.0,
        };
        match *self {
            Self::Constant { value } => vec![value; count],
            Self::Uniform { min, max } => uniform(count, min, max, rng),
            Self::Gaussian { mean, std } => gaussian(count, mean, std, rng),
            Self::Xavier { norm } => {
                let limit = (3.0 / n(norm)).sqrt();
                uniform(count, -limit, limit, rng)
            }
            Self::Msra { norm } => gaussian(count, 0.0, (2.0 / n(norm)).sqrt(), rng),
            Self::PositiveUnitball => {
                let mut values = uniform(count, 0.0, 1.0, rng);
                for row in values.chunks_mut(fan_in.max(1)) {
                    let sum: f32 = row.iter().sum();
                    row.iter_mut()
                        .for_each(|v| *v /= sum.max(f32::MIN_POSITIVE));
                }
                values
            }
        }
    }
}

fn uniform(count: usize, min: f32, max: f32, rng: &mut Xoshiro256PlusPlus) -> Vec<f32> {
    (0..count)
        .map(|_| min + (max - min) * rng.random::<f32>())
        .collect()
}

fn gaussian(count: usize, mean: f32, std: f32, rng: &mut Xoshiro256PlusPlus) -> Vec<f32> {
    // `check` has excluded what Normal refuses.
    let Ok(normal) = Normal::new(mean, std) else {
        return vec![mean; count];
    };
    (0..count).map(|_| normal.sample(rng)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn spread_matches_caffe_rules() {
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(1);
        let shape = [50, 20, 5, 5];
        let std = |v: &[f32]| (v.iter().map(|x| x * x).sum::<f32>() / v.len() as f32).sqrt();
        let cases = [
            (
                Filler::Xavier {
                    norm: VarianceNorm::FanIn,
                },
                (1f32 / 500.0).sqrt(),
            ),
            (
                Filler::Xavier {
                    norm: VarianceNorm::FanOut,
                },
                (1f32 / 1250.0).sqrt(),
            ),
            (
                Filler::Msra {
                    norm: VarianceNorm::Average,
                },
                (2f32 / 875.0).sqrt(),
            ),
            (
                Filler::Gaussian {
                    mean: 0.0,
                    std: 0.01,
                },
                0.01,
            ),
            (Filler::Constant { value: 0.25 }, 0.25),
        ];
        for (filler, want) in cases {
            let got = std(&filler.values(&shape, rng));
            assert!(
                (got / want - 1.0).abs() < 0.03,
                "{filler:?}: {got}, not {want}"
            );
        }
        let ball = Filler::PositiveUnitball.values(&[4, 10], rng);
        assert!(
            ball.chunks(10)
                .all(|row| (row.iter().sum::<f32>() - 1.0).abs() < 1e-5)
        );
    }

    #[test]
    fn a_seed_repeats_its_values() {
        let of = |seed| {
            let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
            Filler::Xavier {
                norm: VarianceNorm::FanIn,
            }
            .values(&[3, 7], rng)
        };
        assert_eq!(of(7), of(7));
        assert_ne!(of(7), of(8));
    }
}

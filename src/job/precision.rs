//! How weights travel where a job leaves the choice to us: by the age that they would have.
//!
//! A node sends its range and its answers to all others in a pass: as many weights as there are. So
//! a pass takes weights * bytes / rate, and that many steps of its solvers old is what others
//! compute from. The choice is the widest payload with which that is a step at most; int8 if none
//! is.

use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::node::{bound_net, train_batch};
use crate::settings::DtypeName;
use crate::solver::data::Source;
use crate::solver::{Phase, SolverSpec};
use crate::weights::WeightsView;
use crate::wire::Dtype;

/// Steps that are timed at most; the quickest counts.
const STEPS: u32 = 4;
/// Steps of large models take minutes: after this time what was timed is enough.
const LONG_ENOUGH: Duration = Duration::from_millis(500);

/// What decides: all of a node, but for the rate that of its link.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Weights of the model.
    pub weights: usize,
    /// Time of a step of all its solvers together, s.
    pub step_s: f64,
    /// What may be sent; `None`: no limit is known.
    pub bytes_per_s: Option<f64>,
}

impl Load {
    /// Measures a step of the model on pictures of that shape, of which none is read. On this
    /// machine `solvers` in all share the cores, `per_node` at most on a node, and no solver makes
    /// more than `pace_steps` a second.
    ///
    /// # Errors
    /// The model does not fit the pictures.
    pub fn measure(
        spec: &SolverSpec,
        data: &Source,
        [solvers, per_node]: [u32; 2],
        pace_steps: Option<f64>,
        bytes_per_s: Option<f64>,
    ) -> Result<Self> {
        let (shape, classes) = data.shape();
        let batch = train_batch(&spec.net)?;
        let (mut net, _) = bound_net(&spec.net, Phase::Train, batch, shape, classes)?;
        let weights: Vec<AtomicU32> = (0..net.extent()).map(|_| AtomicU32::new(0)).collect();
        let view = WeightsView::of(&weights);
        net.initialise(view, 1);
        let images = vec![0.0; batch * net.input().iter().product::<usize>()];
        let (labels, mut gradients) = (vec![0; batch], vec![0.0; net.extent()]);
        let (mut quickest, begun) = (f64::INFINITY, Instant::now());
        for _ in 0..STEPS {
            let start = Instant::now();
            net.forward_backward(view, &images, &labels, &mut gradients);
            quickest = quickest.min(start.elapsed().as_secs_f64());
            if begun.elapsed() >= LONG_ENOUGH {
                break;
            }
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        let crowd = (f64::from(solvers) / cores).max(1.0);
        let step_s = (quickest * spec.iter_size.max(1) as f64 * crowd)
            .max(pace_steps.map_or(0.0, |pace| 1.0 / pace));
        Ok(Self {
            weights: net.extent(),
            step_s: step_s / f64::from(per_node),
            bytes_per_s,
        })
    }

    /// Of a node that no link limits, whatever it computes.
    pub fn unlimited() -> Self {
        Self {
            weights: 0,
            step_s: 1.0,
            bytes_per_s: None,
        }
    }

    /// The same with a link that carries no more than this; none: it is not known.
    pub fn at_most(self, bytes_per_s: Option<f64>) -> Self {
        let rates = [self.bytes_per_s, bytes_per_s].into_iter().flatten();
        Self {
            bytes_per_s: rates.reduce(f64::min),
            ..self
        }
    }

    /// How old weights get in `precision`, in steps of a node.
    pub fn age_steps(&self, precision: Dtype) -> f64 {
        let bytes = precision.payload_len(self.weights) as f64;
        self.bytes_per_s
            .map_or(0.0, |rate| bytes / rate / self.step_s)
    }

    /// The widest precision in which weights are a step old at most; int8 if none is.
    pub fn precision(&self) -> Dtype {
        [Dtype::F32, Dtype::Bf16]
            .into_iter()
            .find(|precision| self.age_steps(*precision) <= 1.0)
            .unwrap_or(Dtype::Int8)
    }
}

/// What a node wants of the precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wish {
    /// This one.
    #[serde(with = "DtypeName")]
    pub precision: Dtype,
    /// And no other: its buffer has it.
    pub settled: bool,
}

impl Wish {
    /// Of two nodes: what is settled, else the narrower one.
    pub fn and(self, other: Self) -> Self {
        let bytes = |wish: &Self| (!wish.settled, wish.precision.payload_len(1024));
        [self, other].into_iter().min_by_key(bytes).unwrap_or(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_widest_that_is_young_enough_is_taken() {
        let load = |bytes_per_s| Load {
            weights: 431_080,
            step_s: 0.01,
            bytes_per_s,
        };
        // A pass of 1.72 MB within 10 ms takes 172 MB/s.
        for (rate, wanted) in [
            (None, Dtype::F32),
            (Some(173e6), Dtype::F32),
            (Some(172e6), Dtype::Bf16),
            (Some(87e6), Dtype::Bf16),
            (Some(86e6), Dtype::Int8),
            (Some(1e6), Dtype::Int8),
        ] {
            assert_eq!(load(rate).precision(), wanted, "{rate:?}");
        }
    }

    #[test]
    fn a_step_is_measured_and_no_quicker_than_its_pace() {
        let spec = SolverSpec::builtin("lenet").unwrap();
        let data: Source = "digits:1,train=100,test=100".parse().unwrap();
        let free = Load::measure(&spec, &data, [1, 1], None, Some(1e6)).unwrap();
        assert!(free.weights >= 431_080);
        assert!(free.step_s > 1e-5);
        let paced = Load::measure(&spec, &data, [2, 2], Some(0.5), None).unwrap();
        // Two solvers of one step in two seconds make one a second.
        assert!(paced.step_s >= 1.0, "{paced:?}");
    }
}

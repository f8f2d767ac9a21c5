//! Solver: stochastic gradient descent on weights that others change at the same time.
//!
//! A [`SolverSpec`] is a Caffe solver file, checked; its [`NetSpec`] is the net file. [`Net`]
//! gives the net shapes and memory for one solver, computes gradients from a
//! [`WeightsView`](crate::weights::WeightsView), and [`update`] adds a step to the weights,
//! racily. Several solvers on one buffer are Hogwild.
//!
//! ```
//! use std::sync::atomic::AtomicU32;
//! use dogwild::solver::{Net, Phase, SolverSpec, update};
//! use dogwild::weights::WeightsView;
//!
//! # fn main() -> Result<(), dogwild::solver::ModelError> {
//! let spec = SolverSpec::builtin("lenet")?;
//! let mut net = Net::new(&spec.net, Phase::Train, 2, [1, 28, 28], 10)?;
//! let words: Vec<AtomicU32> = (0..net.extent()).map(|_| AtomicU32::new(0)).collect();
//! let history: Vec<AtomicU32> = (0..net.extent()).map(|_| AtomicU32::new(0)).collect();
//! let w = WeightsView::of(&words);
//! net.initialise(w, 1);
//! let mut grads = vec![0.0; net.extent()];
//! let loss = net.forward_backward(w, &[0.5; 2 * 784], &[3, 7], &mut grads);
//! update(&spec, &net, w, &grads, WeightsView::of(&history), spec.rate_at(0));
//! assert!(loss > 0.0);
//! # Ok(())
//! # }
//! ```
//!
//! [`DeviceNet`] is a training net on a device.
//!
//! May touch: model files (reading), the weights through a view, a device. No threads, no clock, no
//! global randomness. `unsafe` only in `gemm.rs`.

mod caution;
pub mod data;
mod device;
mod error;
mod filler;
mod gemm;
mod layers;
pub mod near;
mod net;
mod net_spec;
mod proto;
mod rate;
mod run;
mod spec;
mod stride;
mod update;

#[cfg(test)]
mod tests;

pub use caution::Caution;
pub use device::{DeviceNet, DeviceNetError, LayerLeft};
pub use error::{ModelError, Place};
pub use filler::{Filler, VarianceNorm};
pub use gemm::{add_outer_products, bare_product};
pub use net::{LayerTensors, Net, TENSOR_ALIGN, Tensor};
pub use net_spec::{
    LAYER_TYPES, LayerOp, LayerSpec, NetSpec, Normalization, ParamSpec, Phase, PoolMethod,
    TransformSpec, Window,
};
pub use rate::LrPolicy;
pub use run::{Evaluation, Factors, LayerDone};
pub use spec::{Regularization, SolverSpec};
pub use stride::{Cluster, Crew, halve_momentum, update_in_cluster, walk_ahead};
pub use update::{Sgd, TensorStep, update};

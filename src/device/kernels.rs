//! All kernels: as CUDA C (`*.cu` here), as Rust for the host device, and as functions to call.
//!
//! Touch only the parts they are given. [`ALL`] names every kernel, [`SOURCES`] every file of CUDA
//! C; a test compiles the files and looks for each name in them.

mod net;
mod sync;
mod train;

pub use net::{
    ADD_BIAS, COL2IM, Geometry, IM2COL, MAX_POOL, MAX_POOL_BACK, PRODUCT, SUM_ROWS, add_bias,
    col2im, im2col, max_pool, max_pool_back, product, sum_rows,
};
pub use sync::{ADD_SCALAR, TAKE_POSITION, TOLD, add_scalar, take_position};
pub use train::{
    RELU, RELU_BACK, SGD_STEP, SOFTMAX_LOSS, SQUARES, StepFactors, WALK, relu, relu_back, sgd_step,
    softmax_loss, squares, walk,
};

use super::Kernel;

/// Files of CUDA C: name and text.
pub const SOURCES: [(&str, &str); 2] = [
    ("sync.cu", include_str!("kernels/sync.cu")),
    ("net.cu", include_str!("kernels/net.cu")),
];

/// Every kernel.
pub static ALL: [&Kernel; 15] = [
    &TAKE_POSITION,
    &ADD_SCALAR,
    &IM2COL,
    &COL2IM,
    &MAX_POOL,
    &MAX_POOL_BACK,
    &PRODUCT,
    &ADD_BIAS,
    &SUM_ROWS,
    &RELU,
    &RELU_BACK,
    &SOFTMAX_LOSS,
    &SGD_STEP,
    &WALK,
    &SQUARES,
];

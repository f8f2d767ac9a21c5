//! All kernels: as CUDA C (`*.cu` here), as Rust for the host device, and as functions to call.
//!
//! Touch only the parts they are given. [`ALL`] names every kernel; `PTX` (feature `cuda`) has
//! every file of CUDA C as it is shipped.

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

/// Files of CUDA C by name, as PTX that a GPU's driver compiles: made by `cargo xtask ptx`.
#[cfg(feature = "cuda")]
pub const PTX: [(&str, &str); 2] = [
    ("sync.cu", include_str!("kernels/sync.ptx")),
    ("net.cu", include_str!("kernels/net.ptx")),
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

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use super::*;

    /// Each kernel is an entry of its file, and each entry is a kernel.
    #[test]
    fn every_kernel_is_in_the_ptx() {
        for (source, ptx) in PTX {
            let named: Vec<_> = ALL
                .iter()
                .filter(|kernel| kernel.source == source)
                .collect();
            for kernel in &named {
                let entry = format!(".visible .entry {}(", kernel.name);
                assert!(ptx.contains(&entry), "{source} has no {}", kernel.name);
            }
            let entries = ptx.matches(".visible .entry ").count();
            assert_eq!(
                entries,
                named.len(),
                "{source} has kernels that ALL does not name"
            );
            // What drivers from 520 on take, for GPUs from Maxwell on.
            assert!(ptx.contains(".version 7.8") && ptx.contains(".target sm_50"));
        }
    }
}

//! Looks for devices: the host device, and what CUDA needs.
//!
//! Tries to load the driver and the compiler and asks for the GPUs; opens none.

use super::{Check, State};

pub(super) fn check() -> Vec<Check> {
    vec![
        Check::works(
            "host",
            "a device of threads and memcpy (--device host), on any machine",
        ),
        cuda(),
    ]
}

#[cfg(feature = "cuda")]
fn cuda() -> Check {
    use crate::device::cuda::gpus;

    match gpus() {
        Ok(gpus) if !gpus.is_empty() => Check::works("cuda", gpus.join(", ")),
        Ok(_) => Check::new("cuda", State::Missing, "the driver lists no GPU")
            .needing("a GPU of NVIDIA; --device host works without"),
        Err(error) => {
            Check::new("cuda", State::Missing, "no GPU that can be used").needing(error.to_string())
        }
    }
}

#[cfg(not(feature = "cuda"))]
fn cuda() -> Check {
    Check::new("cuda", State::Missing, "not in this build")
        .needing("a build with `--features cuda`, which needs nothing of CUDA")
}

//! Looks for devices: the host device, and what CUDA needs.
//!
//! Loads the driver, if it is there, and runs a kernel on each GPU.

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
    use crate::device::cuda::{gpus, try_out};

    let missing = |what: &str, need: String| Check::new("cuda", State::Missing, what).needing(need);
    let gpus = match gpus() {
        Ok(gpus) if gpus.is_empty() => {
            let need = "a GPU of NVIDIA; --device host works without";
            return missing("the driver lists no GPU", need.into());
        }
        Ok(gpus) => gpus,
        Err(error) => return missing("no GPU that can be used", error.to_string()),
    };
    let tried: Result<Vec<String>, _> = (0..gpus.len()).map(try_out).collect();
    match tried {
        Ok(works) => Check::works("cuda", works.join("; ")),
        Err(error) => missing("a GPU does not run kernels", error.to_string()),
    }
}

#[cfg(not(feature = "cuda"))]
fn cuda() -> Check {
    Check::new("cuda", State::Missing, "not in this build")
        .needing("a build with `--features cuda`, which needs nothing of CUDA")
}

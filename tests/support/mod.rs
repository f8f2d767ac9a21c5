//! What the integration tests share: the program, processes that end with their test, files of
//! jobs, waiting for a state, and results.
//!
//! tools/tests/support has the parts that do not need the program `dogwild`. Tidy holds that tests
//! start processes and make folders under /dev/shm by these functions only.
#![allow(
    dead_code,
    reason = "each test is a crate of its own and uses a part of this"
)]

pub(crate) mod hosts;
pub(crate) mod job;
pub(crate) mod mounts;
pub(crate) mod output;
pub(crate) mod process;
pub(crate) mod program;
pub(crate) mod results;
pub(crate) mod shm;
pub(crate) mod slurm;
pub(crate) mod wait;

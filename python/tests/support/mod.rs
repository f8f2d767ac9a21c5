//! What the tests of the package share: the interpreter, and the parts of tests/support that do not
//! need the program `dogwild` of the same package.
#![allow(
    dead_code,
    reason = "each test is a crate of its own and uses a part of this"
)]

#[path = "../../../tests/support/output.rs"]
pub(crate) mod output;
#[path = "../../../tests/support/process.rs"]
pub(crate) mod process;
pub(crate) mod python;
#[path = "../../../tests/support/slurm.rs"]
pub(crate) mod slurm;
#[path = "../../../tests/support/wait.rs"]
pub(crate) mod wait;

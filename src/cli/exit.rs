//! Exit codes of errors. The table for users is in `docs/guide/train.md`.

use anyhow::Error;

use super::job_file::Problems;
use crate::job::{NotAsAsked, WorldError, codes};
use crate::node::{GpuError, Interrupted, SolverError};
use crate::poseidon::{ANOTHER_FAILED, PoseidonError};

/// The table at the end of `dogwild train --help`.
pub(super) const TABLE: &str = "\
Exit codes:
    0  the job did what was asked
    1  it failed (the message says why and where its weights are)
    2  wrong arguments
    3  training diverged: the loss or a weight is NaN or infinite
    4  --target-accuracy was not reached
    5  the replicas were compared and differ
  129  the terminal was closed (HUP); 130: Ctrl-C (INT); 143: TERM";

/// The code of arguments that cannot be, which is clap's.
const WRONG_ARGUMENTS: u8 = 2;

/// What a program ends with that failed so.
pub(super) fn code_of(error: &Error) -> u8 {
    if let Some(end) = error.downcast_ref::<NotAsAsked>() {
        return end.outcome.code();
    }
    if let Some(interrupted) = error.downcast_ref::<Interrupted>() {
        return interrupted.code();
    }
    if error.downcast_ref::<Problems>().is_some() || error.downcast_ref::<WorldError>().is_some() {
        return WRONG_ARGUMENTS;
    }
    let solver = |error: &SolverError| match error {
        SolverError::Diverged { .. } => codes::DIVERGED,
        _ => codes::FAILED,
    };
    if let Some(error) = error.downcast_ref::<SolverError>() {
        return solver(error);
    }
    match (
        error.downcast_ref::<GpuError>(),
        error.downcast_ref::<PoseidonError>(),
    ) {
        (Some(GpuError::Solver(error)), _) | (_, Some(PoseidonError::Solver(error))) => {
            solver(error)
        }
        (_, Some(PoseidonError::Diverged { .. } | PoseidonError::NotFinite { .. })) => {
            codes::DIVERGED
        }
        (_, Some(error)) if error.is_fault_of_another() => ANOTHER_FAILED,
        _ => codes::FAILED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_end_has_its_code() {
        let diverged = || SolverError::Diverged {
            loss: f32::NAN,
            iteration: 7,
        };
        assert_eq!(code_of(&diverged().into()), 3);
        assert_eq!(code_of(&PoseidonError::Solver(diverged()).into()), 3);
        assert_eq!(code_of(&GpuError::Solver(diverged()).into()), 3);
        let not_finite = PoseidonError::NotFinite {
            name: "ip1.weight.weights".into(),
            value: f32::INFINITY,
            steps: 5,
            remedy: "Lower base_lr",
        };
        assert_eq!(code_of(&not_finite.into()), 3);
        assert_eq!(code_of(&Interrupted(15).into()), 143);
        assert_eq!(code_of(&PoseidonError::NoThreads.into()), 1);
        assert_eq!(code_of(&anyhow::anyhow!("anything else")), 1);
    }
}

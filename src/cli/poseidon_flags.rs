//! Which arguments an error of the reliable path is about: the library names settings in words.

use anyhow::Error;

use crate::poseidon::{CheckpointError, PlanError, PoseidonError};

/// `error`, after the arguments to change if the user gave the setting by one.
pub(super) fn with_flags(error: PoseidonError) -> Error {
    match flags(&error) {
        Some(flags) => Error::new(error).context(flags),
        None => error.into(),
    }
}

fn flags(error: &PoseidonError) -> Option<&'static str> {
    Some(match error {
        PoseidonError::Listen { .. } => "--listen",
        PoseidonError::Address { .. } => "--coordinator",
        PoseidonError::Bandwidth(_) => "--bandwidth",
        PoseidonError::NoThreads => "--threads-per-worker",
        PoseidonError::Clipping => "--sync poseidon",
        PoseidonError::Checkpoint(CheckpointError::Other { .. }) => "--checkpoints",
        PoseidonError::Plan(error) => match error {
            PlanError::Servers { .. } => "--servers, --pair-bytes",
            PlanError::PairBytes(_) => "--pair-bytes",
            PlanError::Tensor(..) => "--partition",
            PlanError::StalenessAndDrop(_) => "--staleness, --stragglers",
            PlanError::SfbAndDrop(_) => "--scheme, --stragglers",
            PlanError::Quorum(_) => "--quorum",
            PlanError::Cluster(_) | PlanError::TooLarge(_) => return None,
        },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_argument_comes_first_and_the_exit_code_stays() {
        let error = with_flags(PoseidonError::Plan(PlanError::Quorum(2.0)));
        let text = dogwild_lab::out::told(&*error);
        assert!(text.starts_with("--quorum: a quorum of 2: give"), "{text}");
        let found = error.downcast_ref::<PoseidonError>();
        assert!(matches!(found, Some(PoseidonError::Plan(_))));
        // What no argument changes stands alone.
        let error = with_flags(PoseidonError::Panicked);
        let text = dogwild_lab::out::told(&*error);
        assert!(text.starts_with("a thread of this process"), "{text}");
    }
}

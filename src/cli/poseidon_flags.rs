//! Which arguments an error of the reliable path is about, or which file of settings: the library
//! names settings in words.

use std::path::PathBuf;

use anyhow::Error;

use super::given::{From, Given, shown};
use crate::poseidon::{CheckpointError, PlanError, PoseidonError};

/// `error`, after the arguments to change if the user gave the setting by one.
pub(super) fn with_flags(error: PoseidonError) -> Error {
    match flags(&error) {
        Some(flags) => Error::new(error).context(flags),
        None => error.into(),
    }
}

/// Where a member's settings came from.
pub(super) enum Origin {
    Flags,
    File(PathBuf),
}

impl Origin {
    pub(super) fn of<A>(given: &Given<A>) -> Self {
        match &given.from {
            From::Flags(_) => Self::Flags,
            From::File(file) => Self::File(file.clone()),
        }
    }

    /// `error`, after the arguments or the file to change.
    pub(super) fn name(self, error: PoseidonError) -> Error {
        match self {
            Self::Flags => with_flags(error),
            Self::File(file) if flags(&error).is_some() => Error::new(error).context(shown(&file)),
            Self::File(_) => error.into(),
        }
    }
}

fn flags(error: &PoseidonError) -> Option<&'static str> {
    Some(match error {
        PoseidonError::Listen { .. } => "--listen",
        PoseidonError::Address { .. } => "--coordinator",
        PoseidonError::Bandwidth(_) => "--bandwidth",
        PoseidonError::NoThreads => "--threads-per-worker",
        PoseidonError::Devices { .. } => "--gpu, --threads-per-worker",
        PoseidonError::NoSolver => "--compute",
        PoseidonError::Clipping => "--sync poseidon",
        PoseidonError::Resume(_) => "--resume",
        PoseidonError::Checkpoint(CheckpointError::Other { .. }) => "--checkpoints",
        PoseidonError::Plan(error) => match error {
            PlanError::Servers { .. } => "--servers, --pair-bytes",
            PlanError::DropAlone => "--servers, --stragglers",
            PlanError::NoServer(..) => "--servers, --scheme",
            PlanError::PairBytes(_) => "--pair-bytes",
            PlanError::Tensor(..) => "--partition",
            PlanError::StalenessAndDrop(_) => "--staleness, --stragglers",
            PlanError::PeersAndDrop(..) => "--scheme, --stragglers",
            PlanError::Quorum(_) => "--quorum",
            PlanError::Mean(_) => "--staleness, --stragglers",
            PlanError::Cluster(_) | PlanError::TooLarge(_) | PlanError::Step(_) => return None,
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
        let file = Origin::File("w.json".into());
        let error = file.name(PoseidonError::Plan(PlanError::Quorum(2.0)));
        let text = dogwild_lab::out::told(&*error);
        assert!(text.starts_with("w.json: a quorum of 2: give"), "{text}");
        // What no argument changes stands alone.
        let error = with_flags(PoseidonError::Panicked);
        let text = dogwild_lab::out::told(&*error);
        assert!(text.starts_with("a thread of this process"), "{text}");
    }
}

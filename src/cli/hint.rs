//! Which options help against an error of the library, whose messages name none.
//!
//! Looks at the causes of an error, whichever component it comes from: wrappers in between keep
//! them as their source.

use anyhow::Error;

use crate::settings::ReadError;
use crate::weights::{CreateError, OpenError, StateError};

/// What to add to the message of `error`.
pub(super) fn of(error: &Error) -> Option<&'static str> {
    error.chain().find_map(|cause| {
        let open = cause.downcast_ref().and_then(of_open);
        let create = || cause.downcast_ref().and_then(of_create);
        let state = || cause.downcast_ref().and_then(of_state);
        let settings = || cause.downcast_ref().map(of_settings);
        open.or_else(create).or_else(state).or_else(settings)
    })
}

fn of_open(error: &OpenError) -> Option<&'static str> {
    match error {
        OpenError::OtherVersion { .. }
        | OpenError::Truncated { .. }
        | OpenError::Damaged { .. }
        | OpenError::CreatorDied { .. }
        | OpenError::OtherModel { .. } => Some("`dogwild init --fresh` makes it anew"),
        OpenError::Stale { .. } => Some("--resume continues with it, --fresh makes it anew"),
        OpenError::OtherData { .. } => {
            Some("--data names the data, `dogwild init --fresh` makes a buffer anew")
        }
        OpenError::NotFound { .. }
        | OpenError::Io { .. }
        | OpenError::NotOurs { .. }
        | OpenError::ByteOrder { .. }
        | OpenError::Initialising { .. } => None,
    }
}

fn of_create(error: &CreateError) -> Option<&'static str> {
    match error {
        CreateError::Exists { .. } => Some("--resume continues with it, --fresh makes it anew"),
        _ => None,
    }
}

fn of_state(error: &StateError) -> Option<&'static str> {
    match error {
        StateError::OtherVersion { .. }
        | StateError::Truncated { .. }
        | StateError::OtherBuffer { .. } => Some("`dogwild init --fresh` makes both anew"),
        StateError::Stale { .. } => Some(
            "give --session, --nodes, --masters, --mtu and --precision as before, or make both anew with \
             `dogwild init --fresh`",
        ),
        _ => None,
    }
}

fn of_settings(_: &ReadError) -> &'static str {
    "docs/reference/settings.md lists the fields; `dogwild train` leaves such files in its --out folder, as \
     node0-solver0-settings.json"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::BufferError;
    use crate::node::{SolverError, StreamerError};

    #[test]
    fn options_are_named_whichever_component_failed() {
        let damaged = || OpenError::Damaged {
            path: "/dev/shm/b".into(),
            what: "no chunks".into(),
        };
        let exists = CreateError::Exists {
            path: "/dev/shm/b".into(),
            what: "a buffer".into(),
        };
        let truncated = StateError::Truncated {
            path: "/dev/shm/b.stream".into(),
            has: 1,
            needs: 2,
        };
        let errors: [Error; 4] = [
            SolverError::from(damaged()).into(),
            StreamerError::from(truncated).into(),
            BufferError::from(exists).into(),
            Error::from(StreamerError::from(damaged())).context("the streamer of node 1"),
        ];
        for error in errors {
            let hint = of(&error).expect("a hint");
            assert!(hint.contains("--fresh"), "{hint}");
            let told = dogwild_lab::out::told(&*error);
            assert!(!told.contains("--"), "{told}");
            // The cause is told once, although it is a source and in the text.
            assert_eq!(told.matches("/dev/shm/b").count(), 1, "{told}");
        }
        let wrong = crate::settings::from_json::<crate::settings::TesterSettings>("{");
        let wrong = wrong
            .map_err(Error::from)
            .map_err(|error| error.context("tester.json"));
        let hint = of(&wrong.expect_err("half a file")).expect("a hint");
        assert!(hint.contains("settings.md"), "{hint}");
        assert_eq!(of(&anyhow::anyhow!("anything else")), None);
        let missing = OpenError::NotFound { path: "/no".into() };
        assert_eq!(of(&missing.into()), None);
    }
}

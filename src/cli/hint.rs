//! Which options help against an error of the library, whose messages name none.
//!
//! Looks at the causes of an error, whichever component it comes from: wrappers in between keep
//! them as their source.

use anyhow::Error;
use dogwild_net::verbs::VerbsError;

use crate::device::DeviceError;
use crate::node::{GpuError, JoinError, SolverError, StreamerError, TransportError};
use crate::settings::ReadError;
use crate::solver::data::DataError;
use crate::stream::NoNumber;
use crate::weights::{CreateError, OpenError, StateError};

/// What to add to the message of `error`.
pub(super) fn of(error: &Error) -> Option<&'static str> {
    error.chain().find_map(|cause| {
        let open = cause.downcast_ref().and_then(of_open);
        let create = || cause.downcast_ref().and_then(of_create);
        let state = || cause.downcast_ref().and_then(of_state);
        let settings = || cause.downcast_ref().map(of_settings);
        let streamer = || cause.downcast_ref().and_then(of_streamer);
        let transport = || cause.downcast_ref().and_then(of_transport);
        let join = || cause.downcast_ref().map(of_join);
        let gpu = || cause.downcast_ref().and_then(of_gpu);
        let device = || cause.downcast_ref().and_then(of_device);
        let solver = || cause.downcast_ref().and_then(of_solver);
        let data = open.or_else(create).or_else(state).or_else(settings);
        let network = || streamer().or_else(transport).or_else(join);
        data.or_else(network)
            .or_else(gpu)
            .or_else(device)
            .or_else(solver)
            .or_else(|| cause.downcast_ref().and_then(of_set))
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

fn of_streamer(error: &StreamerError) -> Option<&'static str> {
    match error {
        StreamerError::Node { .. } => Some("--node, --nodes, --places"),
        StreamerError::Masters { .. } => Some("--masters"),
        StreamerError::Mtu { .. } => Some("--mtu"),
        StreamerError::Number(NoNumber::OtherJob { .. }) => Some("--nodes, --places"),
        StreamerError::Number(NoNumber::Full { .. }) => Some("--node K, --places"),
        StreamerError::Number(NoNumber::Taken { .. }) => {
            Some("`dogwild init --fresh` makes it anew")
        }
        _ => None,
    }
}

fn of_transport(error: &TransportError) -> Option<&'static str> {
    match error {
        TransportError::NoInterface(_) => Some("--iface NAME or --iface auto"),
        TransportError::Auto(_) | TransportError::Verbs(VerbsError::Several { .. }) => {
            Some("--iface NAME")
        }
        _ => None,
    }
}

fn of_join(error: &JoinError) -> &'static str {
    match error {
        JoinError::Unknown { .. } | JoinError::NoIpv4 { .. } => "--join",
        JoinError::NoRoute { .. } => "--join, --iface NAME",
    }
}

fn of_gpu(error: &GpuError) -> Option<&'static str> {
    match error {
        GpuError::OtherModel { .. } => Some("--solver"),
        _ => None,
    }
}

fn of_solver(error: &SolverError) -> Option<&'static str> {
    match error {
        SolverError::Diverged { .. } => Some("--merge mean"),
        SolverError::Data(error) => of_set(error),
        _ => None,
    }
}

fn of_set(error: &DataError) -> Option<&'static str> {
    match error {
        DataError::NoFolder { .. } | DataError::NoFile { .. } if cfg!(feature = "data-get") => {
            Some("`dogwild data get mnist` or `cifar10` downloads a set, --to FOLDER")
        }
        _ => None,
    }
}

fn of_device(error: &DeviceError) -> Option<&'static str> {
    match error {
        DeviceError::NotShared { .. } => Some("--device 0"),
        DeviceError::Missing { .. } => Some("--device host"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::BufferError;
    use crate::node::Transport;

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

    /// What stands in the middle of a chain keeps its cause.
    #[test]
    fn options_of_components_are_named() {
        let join = || JoinError::NoIpv4 { text: "h".into() };
        let host = DeviceError::NotShared {
            device: "host".into(),
        };
        let diverged = SolverError::Diverged {
            loss: f32::NAN,
            iteration: 7,
        };
        let of_components: [(Error, &str); 6] = [
            (
                StreamerError::Masters {
                    masters: 3,
                    nodes: 2,
                }
                .into(),
                "--masters",
            ),
            (
                StreamerError::from(TransportError::from(join())).into(),
                "--join",
            ),
            (
                StreamerError::from(TransportError::NoInterface(Transport::PacketMmap)).into(),
                "--iface NAME or --iface auto",
            ),
            (
                TransportError::from(VerbsError::Several {
                    existing: "a, b".into(),
                })
                .into(),
                "--iface NAME",
            ),
            (GpuError::from(host).into(), "--device 0"),
            (diverged.into(), "--merge mean"),
        ];
        for (error, options) in of_components {
            assert_eq!(of(&error), Some(options));
            let told = dogwild_lab::out::told(&*error);
            assert!(!told.contains("--"), "{told}");
        }
    }
}

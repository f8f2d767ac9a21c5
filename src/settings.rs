//! What a component is started with: typed values that the command line makes, that a file holds as
//! JSON, and that `dogwild train` gives to the components it starts.
//!
//! One type per component, each with one [`Settings::validate`]. Nothing here knows how a value is
//! written on the command line: that is `cli`. Invariants: what [`to_json`] writes [`from_json`]
//! reads back as the same values; a file with a field that nothing reads is refused.
//! `docs/reference/settings.md` lists the fields.

mod choices;
mod cluster;
mod devices;
mod error;
mod gpu;
pub mod limits;
mod link;
mod poseidon;
mod solver;
mod stream;
mod tester;

use serde::Serialize;
use serde::de::DeserializeOwned;

pub use self::choices::DtypeName;
pub use self::cluster::{
    CHECKPOINT_EVERY, ClusterSettings, Compute, MemberSettings, ModelSettings, SlowSettings,
    StragglerChoice, bandwidth,
};
pub use self::devices::Devices;
pub use self::error::{ReadError, SettingsError};
pub use self::gpu::{ADDERS, CHUNK_WEIGHTS, GpuSettings, UpRate};
pub use self::link::{BurstSettings, FaultSettings, TransportSettings, capture_of_node};
pub use self::poseidon::{CoordinatorSettings, ServerSettings, WorkerSettings};
pub use self::solver::SolverSettings;
pub use self::stream::{FlowSettings, StreamSettings};
pub use self::tester::TesterSettings;

/// The settings of a component.
pub trait Settings: Serialize + DeserializeOwned {
    /// The subcommand that takes them.
    const COMPONENT: &str;
    /// True if it is asked to end when its launcher has died; else it is killed.
    const TIDIES_UP: bool = false;

    /// Whether they make sense together and each by itself. What only the buffer, the model or the
    /// host can tell is found when the component starts.
    ///
    /// # Errors
    /// The first field that does not, and what to do.
    fn validate(&self) -> Result<(), SettingsError>;
}

/// Reads and validates settings.
///
/// # Errors
/// What is wrong, with its line, and the field that was meant if one is near.
pub fn from_json<S: Settings>(text: &str) -> Result<S, ReadError> {
    let settings: S = serde_json::from_str(text).map_err(|error| ReadError::json(&error))?;
    settings.validate()?;
    Ok(settings)
}

/// The settings as a person would write them: every field, one a line.
///
/// # Errors
/// A path that is not UTF-8, which JSON cannot hold.
pub fn to_json<S: Settings>(settings: &S) -> Result<String, serde_json::Error> {
    Ok(serde_json::to_string_pretty(settings)? + "\n")
}

#[cfg(test)]
mod tests;

//! Why settings are refused.

use crate::solver::near;

/// A value that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} {what}")]
pub struct SettingsError {
    /// The field, with those it stands in: `stream.masters`.
    pub field: &'static str,
    /// The value, what is wrong with it, and what to do.
    pub what: String,
}

impl SettingsError {
    /// About one field.
    pub(super) fn new(field: &'static str, what: impl Into<String>) -> Self {
        let what = what.into();
        Self { field, what }
    }
}

/// Why a file of settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It is not JSON, lacks a field, or has one that nothing reads.
    #[error("{0}")]
    Json(String),
    /// A value cannot be.
    #[error(transparent)]
    Value(#[from] SettingsError),
}

impl ReadError {
    /// What serde found, with the name that was probably meant.
    pub(super) fn json(error: &serde_json::Error) -> Self {
        let said = error.to_string();
        // "unknown field `nods`, expected one of `node`, `nodes` at line 3 column 8"
        let mut names = said.split('`').skip(1).step_by(2);
        let hint = match names.next() {
            Some(wrong) if said.starts_with("unknown ") => near::hint(wrong, names),
            _ => String::new(),
        };
        Self::Json(said + &hint)
    }
}

//! What can be wrong with a model: one error type for reading solver and net files and for
//! building a net from them. Every message says where, what, and what to do.

use std::fmt;
use std::path::PathBuf;

use super::near;
use super::net_spec::LAYER_TYPES;

/// Where in a model file something is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The file, or the name of a built-in model.
    pub file: String,
    /// Line, counted from 1, where it could be told.
    pub line: Option<usize>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}", self.file),
            None => write!(f, "{}", self.file),
        }
    }
}

/// Why a model could not be read or built.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A model file cannot be read.
    #[error("cannot read the {what} file {path}: {source}{hint}", path = path.display())]
    Read {
        /// `solver` or `net`.
        what: &'static str,
        /// The path as it was tried.
        path: PathBuf,
        /// The reason the system gave.
        source: std::io::Error,
        /// Other places that were tried, or nothing.
        hint: String,
    },
    /// The text is not Caffe's: a token, field name or value that the format does not know.
    #[error("{place}: {message}")]
    Parse {
        /// File and line.
        place: Place,
        /// What the parser found.
        message: String,
    },
    /// A net where a solver was wanted, or the reverse.
    #[error("{file} is {is}: {advice}")]
    OtherKind {
        /// Path of the file.
        file: String,
        /// What it is and is not.
        is: &'static str,
        /// What to do.
        advice: String,
    },
    /// A field of the solver or of the net as a whole is missing or has a value that cannot be
    /// used.
    #[error("{place}: field `{field}`: {problem}")]
    Field {
        /// File and line.
        place: Place,
        /// The field's name.
        field: String,
        /// What is wrong and what to do.
        problem: String,
    },
    /// A layer is wrong.
    #[error("{place}: layer \"{layer}\"{}: {problem}", field.as_ref().map(|f| format!(", field `{f}`")).unwrap_or_default())]
    Layer {
        /// File and line.
        place: Place,
        /// The layer's name.
        layer: String,
        /// The field, if one is to blame.
        field: Option<String>,
        /// What is wrong and what to do.
        problem: String,
    },
    /// The layer's type does not work here.
    #[error(
        "{place}: layer \"{layer}\": type \"{kind}\" is not supported{}; these are: {}",
        near::hint(kind, LAYER_TYPES), LAYER_TYPES.join(", ")
    )]
    LayerType {
        /// File and line.
        place: Place,
        /// The layer's name.
        layer: String,
        /// Its type.
        kind: String,
    },
    /// There is no built-in model of that name.
    #[error(
        "there is no built-in model \"{name}\" and no such file{hint}; built in are: {known}. For a file give its path, e.g. models/lenet_solver.prototxt"
    )]
    NoBuiltin {
        /// Name that was asked for.
        name: String,
        /// What there is.
        known: String,
        /// The nearest of them, or nothing.
        hint: String,
    },
    /// The net does not fit what it is used with (data set, buffer).
    #[error("{0}")]
    Mismatch(String),
}

//! Errors of the crate as exceptions of `dogwild.errors`.

use dogwild::weights::{CreateError, OpenError, SlotError};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// The exception `dogwild.errors.<class>` with this text.
pub(crate) fn raise(class: &str, text: String) -> PyErr {
    Python::attach(|py| {
        let made = || -> PyResult<PyErr> {
            let class = py.import("dogwild.errors")?.getattr(class)?;
            Ok(PyErr::from_value(class.call1((text.as_str(),))?))
        };
        made().unwrap_or_else(|_| PyRuntimeError::new_err(text.clone()))
    })
}

pub(crate) fn open(error: &OpenError) -> PyErr {
    let class = match error {
        OpenError::NotFound { .. } | OpenError::Initialising { .. } => "BufferNotReady",
        OpenError::OtherModel { .. } | OpenError::OtherData { .. } | OpenError::Stale { .. } => {
            "BufferMismatch"
        }
        _ => "DogwildError",
    };
    raise(class, error.to_string())
}

pub(crate) fn create(error: &CreateError) -> PyErr {
    let class = match error {
        CreateError::Resume(error) => return open(error),
        CreateError::Exists { .. } | CreateError::InUse { .. } => "BufferInUse",
        CreateError::NoSpace { .. } => "NoSpace",
        CreateError::NotOurs { .. } | CreateError::Io { .. } => "DogwildError",
    };
    raise(class, error.to_string())
}

pub(crate) fn slot(error: &SlotError) -> PyErr {
    let class = match error {
        SlotError::Held { .. } => "BufferInUse",
        SlotError::Full { .. } | SlotError::Io(_) => "DogwildError",
    };
    raise(class, error.to_string())
}

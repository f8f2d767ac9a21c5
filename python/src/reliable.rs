//! The reliable path for Python: a worker whose gradients another program computes, and the
//! coordinator and servers that its process hosts.
//!
//! Owns threads and connections. Invariants: no call holds the interpreter's lock while it waits;
//! Ctrl-C ends each wait; a forked child neither uses nor ends what its parent has.

mod hosted;
mod own;
mod waiting;
mod worker;

use std::path::PathBuf;

use dogwild::poseidon::{
    ClusterKey, ClusterSpec, ModelFile, ModelJob, Policy, PoseidonError, Scheme,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors;
pub(crate) use hosted::Hosted;
pub(crate) use worker::Worker;

/// Servers that `workers` workers can host for a model under `policy`, at most: each must hold
/// something. The same on all workers.
#[pyfunction]
pub(crate) fn servers_of(model_text: &str, workers: u16, policy: &str) -> PyResult<u16> {
    let (model, policy) = (model(model_text)?, policy_of(policy)?);
    let fits = |servers: &u16| {
        let mut cluster = ClusterSpec::new(workers, *servers, model.iterations());
        cluster.policy = policy;
        model.check(&cluster).is_ok()
    };
    // Where none fits the coordinator says why.
    if policy == Policy::Force(Scheme::P2p) {
        return Ok(0);
    }
    Ok((1..=workers).rev().find(fits).unwrap_or(1))
}

fn policy_of(name: &str) -> PyResult<Policy> {
    let policy = name.parse::<Policy>();
    policy.map_err(|why| PyValueError::new_err(why.to_string()))
}

fn error(error: &PoseidonError) -> PyErr {
    let text = error.to_string();
    // What the coordinator refuses it says in words alone.
    let refused = |says: &str| match error {
        PoseidonError::Refused { why, .. } => why.contains(says),
        _ => false,
    };
    if refused("stopped by a signal") {
        let text = "worker 0 gave up, or was stopped, before all workers had come";
        return errors::raise("PeerLost", text.into());
    }
    let lost = error.is_fault_of_another() || matches!(error, PoseidonError::Ended(_));
    match lost {
        true if text.contains("server ") => {
            let text = format!("{text} (server K is in the process of worker K)");
            errors::raise("PeerLost", text)
        }
        true => errors::raise("PeerLost", text),
        false if refused("begins with other weights") => errors::raise("WeightsDiffer", text),
        false => errors::raise("DogwildError", text),
    }
}

fn key(file: Option<PathBuf>) -> PyResult<Option<ClusterKey>> {
    let read = file.map(|file| ClusterKey::read(&file)).transpose();
    read.map_err(|why| errors::raise("DogwildError", why.to_string()))
}

fn model(text: &str) -> PyResult<ModelJob> {
    let file = ModelFile::parse(text);
    let file = file.map_err(|why| errors::raise("NotShareable", why.to_string()))?;
    ModelJob::of_file(file).map_err(|why| error(&why))
}

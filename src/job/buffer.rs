//! Makes the buffer of a node: the model's tensors, initial weights, the job's numbers.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::node::{NetError, bound_net, data_kind};
use crate::snapshot::{self, LoadError};
use crate::solver::data::Source;
use crate::solver::{Phase, SolverSpec};
use crate::weights::{BufferSpec, CreateError, Created, Existing, SharedWeights, WeightsView};

/// What to make.
pub struct BufferPlan<'a> {
    /// The file.
    pub path: &'a Path,
    /// The model.
    pub spec: &'a SolverSpec,
    /// Where the pictures come from: its kind counts.
    pub data: &'a Source,
    /// Channels, height and width of the pictures.
    pub input: [usize; 3],
    /// Classes of the pictures.
    pub classes: usize,
    /// Which job.
    pub session: u64,
    /// Number of nodes.
    pub nodes: u16,
    /// Seed of the initial weights.
    pub seed: u64,
    /// Iterations of the cluster at which solvers end; 0: never.
    pub iterations: u64,
    /// Weights to start from instead of random ones.
    pub weights: Option<&'a Path>,
    /// What to do with a file that is there.
    pub existing: Existing,
}

/// Why a buffer could not be made.
#[derive(Debug, thiserror::Error)]
pub enum BufferError {
    /// The model.
    #[error(transparent)]
    Model(#[from] NetError),
    /// The buffer.
    #[error("{0}")]
    Create(#[from] CreateError),
    /// A buffer of another job.
    #[error(
        "{path} is of session {have:016x}, this job is {want:016x}: name the same --session as when it was made, \
         or replace it (--fresh)"
    )]
    Session {
        /// The buffer.
        path: std::path::PathBuf,
        /// Its session.
        have: u64,
        /// The session asked for.
        want: u64,
    },
    /// The weights to start from.
    #[error(transparent)]
    Weights(#[from] LoadError),
}

/// Makes (or, with [`Existing::Resume`], opens) the buffer that `plan` describes.
pub fn make_buffer(plan: &BufferPlan<'_>) -> Result<SharedWeights, BufferError> {
    let (net, manifest) = bound_net(&plan.spec.net, Phase::Train, 1, plan.input, plan.classes)?;
    let spec = BufferSpec {
        session: plan.session,
        manifest,
        data: data_kind(plan.data, plan.input, plan.classes),
    };
    // Before anything is made or replaced: a mistyped name must not cost the buffer that is there.
    let mut given = Vec::new();
    if let Some(file) = plan.weights {
        given.resize_with(net.extent(), AtomicU32::default);
        snapshot::load(file, &spec.manifest, WeightsView::of(&given))?;
    }
    let shared = match SharedWeights::create(plan.path, &spec, plan.existing)? {
        Created::Resumed(shared) if shared.session() != plan.session => {
            return Err(BufferError::Session {
                path: plan.path.into(),
                have: shared.session(),
                want: plan.session,
            });
        }
        Created::Resumed(shared) => shared,
        Created::New(new) => {
            for file in new.removed() {
                log::warn!(
                    "removed {}: the buffer that it belonged to was gone",
                    file.display()
                );
            }
            if given.is_empty() {
                net.initialise(new.view(), plan.seed);
            } else {
                let given = WeightsView::of(&given);
                (0..given.len()).for_each(|i| new.view().store(i, given.load(i)));
            }
            new.ready()
        }
    };
    let globals = shared.globals();
    globals.target_iterations.store(plan.iterations, Relaxed);
    globals.stop.store(0, Relaxed);
    globals.ready.store(u32::from(plan.nodes == 1), Relaxed);
    Ok(shared)
}

//! Joins a model file to pictures: nets of the right shape, bound to the buffer's tensors.

use crate::solver::data::{Images, Mean, Source, Transform};
use crate::solver::{ModelError, Net, NetSpec, Phase};
use crate::weights::{DataKind, Manifest, ManifestError};

/// Why a model cannot be joined to pictures or to a buffer.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// The model cannot be built for these pictures.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The tensors cannot be packed.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The net has no batch size.
    #[error(
        "the net {0} has no data layer with a batch_size for training: add one to its Data layer"
    )]
    NoBatch(String),
}

/// Images in a training batch, as the net file says.
pub fn train_batch(net: &NetSpec) -> Result<usize, NetError> {
    net.batch_size(Phase::Train)
        .ok_or_else(|| NetError::NoBatch(net.name.clone()))
}

/// What the net's data layer does to pictures; a mean image is that of `train`.
pub(super) fn transform(net: &NetSpec, phase: Phase, train: &Images) -> Transform {
    let Some(spec) = net.transform_param(phase) else {
        return Transform::default();
    };
    Transform {
        scale: spec.scale,
        mirror: spec.mirror,
        crop: (spec.crop_size > 0).then_some(spec.crop_size),
        mean: match (&spec.mean_file, spec.mean_value.is_empty()) {
            // Caffe's mean files are the mean of the training pictures, made ahead; here it is made
            // now.
            (Some(_), _) => Mean::Image(train.mean_image()),
            (None, false) => Mean::Values(spec.mean_value.clone()),
            (None, true) => Mean::None,
        },
    }
}

/// The kind of data of `source`, whose pictures have this shape and so many classes.
pub fn data_kind(source: &Source, shape: [usize; 3], classes: usize) -> DataKind {
    DataKind::new(source.kind(), shape, classes)
}

/// A net for `input` pictures (channels, height, width) before its transform, with its tensors
/// packed.
///
/// The tensors of both phases are the same and lie at the same places, in the same order.
pub fn bound_net(
    spec: &NetSpec,
    phase: Phase,
    batch: usize,
    input: [usize; 3],
    classes: usize,
) -> Result<(Net, Manifest), NetError> {
    let crop = spec
        .transform_param(phase)
        .map_or(0, |transform| transform.crop_size);
    let input = if crop > 0 {
        [input[0], crop, crop]
    } else {
        input
    };
    let mut net = Net::new(spec, phase, batch, input, classes)?;
    let manifest = Manifest::new(net.tensors())?;
    let offsets: Vec<usize> = manifest
        .tensors()
        .iter()
        .map(|tensor| tensor.offset)
        .collect();
    net.bind(&offsets)?;
    Ok((net, manifest))
}

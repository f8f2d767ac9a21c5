//! Recorded computing: the layers of a model and the time that each pass spends in them.
//!
//! A worker that replays a recording spends its times and computes nothing, while gradients of the
//! recorded sizes travel as if it had. So two cores can stand for many GPUs, and the network is
//! what is measured. Text and numbers only: no file, no clock. Invariant: a [`Recording`] has
//! layers, every one has weights, and no two have the same name.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::plan::PlanTensor;
use crate::poseidon::cost::LayerShape;
use crate::weights::{Manifest, ManifestError};

/// Longest time of a pass through one layer: a longer one is a mistyped unit.
const MAX_MICROSECONDS: u64 = 3_600_000_000;
/// Most weights of a layer.
const MAX_WEIGHTS: u64 = 1 << 32;

/// One layer's share of an iteration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedLayer {
    /// Name of the layer.
    pub name: String,
    /// Size of its weight matrix.
    pub shape: LayerShape,
    /// Microseconds of the forward pass.
    pub forward_us: u64,
    /// Microseconds of the backward pass.
    pub backward_us: u64,
}

impl RecordedLayer {
    /// Time of the forward pass.
    pub fn forward(&self) -> Duration {
        Duration::from_micros(self.forward_us)
    }

    /// Time of the backward pass.
    pub fn backward(&self) -> Duration {
        Duration::from_micros(self.backward_us)
    }
}

/// The layers of a model with their recorded times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recording {
    /// Images of one iteration.
    pub images: u32,
    /// Layers that learn, first layer first.
    pub layers: Vec<RecordedLayer>,
}

/// Why a text is not a recording.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// Not JSON, or other fields than those of a recording.
    #[error("is not a recording: {0}; dogwild-plan writes one")]
    Json(#[from] serde_json::Error),
    /// It has no images or no layers.
    #[error("has {0}, so that there is nothing to replay")]
    Empty(&'static str),
    /// A layer has no weights, or too many.
    #[error("layer {0} has no weights, or more than {MAX_WEIGHTS}")]
    Weights(String),
    /// A time is too long to be one of a layer.
    #[error("layer {0} takes more than an hour: times are in microseconds")]
    Time(String),
    /// No buffer can hold the layers.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
}

impl Recording {
    /// Reads a recording from JSON.
    ///
    /// # Errors
    /// See [`RecordingError`].
    pub fn parse(text: &str) -> Result<Self, RecordingError> {
        let recording: Self = serde_json::from_str(text)?;
        recording.manifest()?;
        Ok(recording)
    }

    /// The recording as JSON, which [`Recording::parse`] reads.
    pub fn to_json(&self) -> String {
        // Numbers and names, which JSON can always express.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// Where the tensors lie in a buffer: `<layer>.weight`, and `<layer>.bias` if there is one.
    ///
    /// # Errors
    /// See [`RecordingError`].
    pub fn manifest(&self) -> Result<Manifest, RecordingError> {
        if self.images == 0 {
            return Err(RecordingError::Empty("no images"));
        }
        if self.layers.is_empty() {
            return Err(RecordingError::Empty("no layers"));
        }
        let mut tensors = Vec::new();
        for layer in &self.layers {
            let [m, n] = [layer.shape.outputs, layer.shape.inputs];
            let weights = m.checked_mul(n).filter(|n| (1..=MAX_WEIGHTS).contains(n));
            if weights.is_none() {
                return Err(RecordingError::Weights(layer.name.clone()));
            }
            if layer.forward_us.max(layer.backward_us) > MAX_MICROSECONDS {
                return Err(RecordingError::Time(layer.name.clone()));
            }
            let [m, n] = [m as usize, n as usize];
            tensors.push((format!("{}.weight", layer.name), vec![m, n]));
            if layer.shape.bias {
                tensors.push((format!("{}.bias", layer.name), vec![m]));
            }
        }
        Ok(Manifest::new(tensors)?)
    }

    /// The layers as a plan wants them: name, shape, tensors where `manifest` (this recording's)
    /// has them.
    pub fn plan_layers(&self, manifest: &Manifest) -> Vec<(String, LayerShape, Vec<PlanTensor>)> {
        let tensors = manifest.tensors().iter();
        let mut tensors = tensors.map(|t| PlanTensor::new(&t.name, t.offset, &t.shape));
        let layers = self.layers.iter().map(|layer| {
            let count = if layer.shape.bias { 2 } else { 1 };
            let tensors = tensors.by_ref().take(count).collect();
            (layer.name.clone(), layer.shape, tensors)
        });
        layers.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recording() -> Recording {
        let layer = |name: &str, bias| RecordedLayer {
            name: name.into(),
            shape: LayerShape {
                bias,
                ..LayerShape::dense(3, 5)
            },
            forward_us: 10,
            backward_us: 20,
        };
        Recording {
            images: 4,
            layers: vec![layer("a", true), layer("b", false)],
        }
    }

    #[test]
    fn recordings_come_back_as_they_were() {
        let recording = recording();
        assert_eq!(Recording::parse(&recording.to_json()).unwrap(), recording);
        let manifest = recording.manifest().unwrap();
        let layers = recording.plan_layers(&manifest);
        let names: Vec<Vec<&str>> = layers
            .iter()
            .map(|(_, _, tensors)| tensors.iter().map(|t| t.name.as_str()).collect())
            .collect();
        assert_eq!(names, [vec!["a.weight", "a.bias"], vec!["b.weight"]]);
        assert_eq!(layers[1].2[0].len, 15);
        assert_eq!(
            layers[1].2[0].offset, 32,
            "behind 15 and 3, each in whole blocks"
        );
    }

    #[test]
    fn what_cannot_be_replayed_is_refused() {
        let refused = |change: fn(&mut Recording), says: &str| {
            let mut recording = recording();
            change(&mut recording);
            let said = Recording::parse(&recording.to_json())
                .unwrap_err()
                .to_string();
            assert!(said.contains(says), "{said}");
        };
        refused(|r| r.images = 0, "no images");
        refused(|r| r.layers.clear(), "no layers");
        refused(|r| r.layers[1].shape.inputs = 0, "layer b has no weights");
        refused(
            |r| r.layers[1].shape.inputs = u64::MAX,
            "layer b has no weights, or more",
        );
        refused(|r| r.layers[0].backward_us = u64::MAX, "microseconds");
        refused(|r| r.layers[1].name = "a".into(), "a.weight");
        let said = Recording::parse("{\n\"images\": 1,\n\"layer\": []}").unwrap_err();
        assert!(said.to_string().contains("line 3"), "{said}");
    }
}

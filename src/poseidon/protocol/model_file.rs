//! A model file: what coordinator and servers must know of a model whose gradients are computed by
//! programs with a client.
//!
//! Names, shapes and numbers as JSON; no file, no net. Invariant: a [`ModelFile`] that
//! [`ModelFile::check`] has passed has layers, each with tensors, all names differ, and every
//! number is within its range.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::plan::{LayerSpec, PlanTensor};
use super::step::{StepError, StepRule, StepSpec};
use crate::poseidon::cost::{LayerShape, Scheme};
use crate::weights::{Manifest, ManifestError};

/// A model: the layers that learn, and how steps are made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelFile {
    /// Images (samples) of one worker in one iteration, 1 or more. The schemes are chosen for it.
    pub images: u32,
    /// Iterations of each worker; none: until a client ends the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iterations: Option<u64>,
    /// What becomes of a mean gradient.
    pub step: StepRule,
    /// Layers, first layer first.
    pub layers: Vec<ModelLayer>,
}

/// Tensors whose gradients travel together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelLayer {
    /// Its name, for messages and queries.
    pub name: String,
    /// The layer is fully connected, so that its gradient is a sum of products of two vectors. Its
    /// tensors are then a weight `[outputs, inputs]` and, if it has one, a bias `[outputs]`.
    #[serde(default)]
    pub factors: bool,
    /// Rows of factors that a worker sends in one iteration, at most; none: as many as images. More
    /// where each image passes through the layer several times (the places of a text).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<u32>,
    /// How it travels; none: as the cluster's policy chooses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheme: Option<Scheme>,
    /// Its tensors, in the order in which they lie in the buffer.
    pub tensors: Vec<ModelTensor>,
}

/// One tensor of f32.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelTensor {
    /// Its name, in checkpoints and in files of weights.
    pub name: String,
    /// Its shape, outermost dimension first; empty for a single number.
    pub shape: Vec<usize>,
    /// Factor on the rate of its steps.
    #[serde(default = "one")]
    pub lr_mult: f32,
    /// Factor on the weight decay of its steps.
    #[serde(default = "one")]
    pub decay_mult: f32,
}

fn one() -> f32 {
    1.0
}

/// Why a text is not a model file.
#[derive(Debug, thiserror::Error)]
pub enum ModelFileError {
    /// Not JSON, or other fields than those of a model file.
    #[error("is not a model file: {0}")]
    Json(#[from] serde_json::Error),
    /// A number of the whole model is 0, or there are no layers.
    #[error("{0}")]
    Empty(&'static str),
    /// A layer cannot be.
    #[error("layers[{place}] ({name}): {what}")]
    Layer {
        /// Its place, from 0.
        place: usize,
        /// Its name.
        name: String,
        /// What is wrong, and what can be.
        what: String,
    },
    /// The rule of the steps cannot be.
    #[error(transparent)]
    Step(#[from] StepError),
    /// No buffer can hold the tensors.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
}

impl ModelFile {
    /// Reads a model from JSON, and checks it.
    ///
    /// # Errors
    /// See [`ModelFileError`].
    pub fn parse(text: &str) -> Result<Self, ModelFileError> {
        let model: Self = serde_json::from_str(text)?;
        model.check()?;
        Ok(model)
    }

    /// The model as JSON, which [`ModelFile::parse`] reads.
    pub fn to_json(&self) -> String {
        // Numbers and names, which JSON can always express.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// Checks the model.
    ///
    /// # Errors
    /// See [`ModelFileError`].
    pub fn check(&self) -> Result<(), ModelFileError> {
        let empty = |what| Err(ModelFileError::Empty(what));
        if self.images == 0 {
            return empty("images is 0: give the images of one worker in one iteration");
        }
        if self.iterations == Some(0) {
            return empty("iterations is 0: give 1 or more, or leave it out");
        }
        if self.layers.is_empty() {
            return empty("layers is empty: name the layers that learn");
        }
        let mut names = HashSet::new();
        for (place, layer) in self.layers.iter().enumerate() {
            let known = !names.insert(layer.name.as_str());
            let what = match known {
                true => Some("another layer has this name: give each its own".to_owned()),
                false => layer.fault(),
            };
            if let Some(what) = what {
                let name = layer.name.clone();
                return Err(ModelFileError::Layer { place, name, what });
            }
        }
        self.step.check()?;
        self.manifest()?;
        Ok(())
    }

    /// Where the tensors lie in a buffer: in their order, each at a multiple of 16 weights.
    ///
    /// # Errors
    /// Two tensors have one name, or they are too large together.
    pub fn manifest(&self) -> Result<Manifest, ManifestError> {
        let tensors = self.layers.iter().flat_map(|layer| &layer.tensors);
        Manifest::new(tensors.map(|t| (t.name.clone(), t.shape.clone())).collect())
    }

    /// The layers as a plan wants them, with the offsets of `manifest` (this model's).
    pub fn plan_layers(&self, manifest: &Manifest) -> Vec<LayerSpec> {
        let tensors = manifest.tensors().iter();
        let mut tensors = tensors.map(|t| PlanTensor::new(&t.name, t.offset, &t.shape));
        let layers = self.layers.iter().map(|layer| {
            let tensors: Vec<_> = tensors.by_ref().take(layer.tensors.len()).collect();
            LayerSpec {
                name: layer.name.clone(),
                shape: layer.shape(&tensors),
                tensors,
                rows: layer.rows,
                scheme: layer.scheme,
            }
        });
        layers.collect()
    }

    /// How steps are made of the clients' mean gradients.
    pub fn step(&self) -> StepSpec {
        let of_layer = |layer: &ModelLayer| {
            let tensors = layer.tensors.iter();
            tensors.map(|t| [t.lr_mult, t.decay_mult]).collect()
        };
        StepSpec {
            multipliers: self.layers.iter().map(of_layer).collect(),
            ..StepSpec::of(self.step.clone())
        }
    }
}

impl ModelLayer {
    /// What is wrong with it, if something is.
    fn fault(&self) -> Option<String> {
        if self.name.is_empty() {
            return Some("name is empty: messages and queries need one".into());
        }
        if self.tensors.is_empty() {
            return Some("tensors is empty: leave out layers that do not learn".into());
        }
        for tensor in &self.tensors {
            for (field, value) in [
                ("lr_mult", tensor.lr_mult),
                ("decay_mult", tensor.decay_mult),
            ] {
                if !value.is_finite() {
                    return Some(format!(
                        "{field} of {} is {value}: give a number",
                        tensor.name
                    ));
                }
            }
        }
        if self.factors {
            return self.fault_of_factors();
        }
        match (self.scheme, self.rows) {
            (Some(scheme), _) if scheme.sends_factors() => Some(format!(
                "scheme {scheme} needs factors: set factors to true, or choose ps, p2p or onebit"
            )),
            (_, Some(rows)) => Some(format!(
                "rows is {rows}, and only layers with factors have rows: leave it out"
            )),
            _ => None,
        }
    }

    fn fault_of_factors(&self) -> Option<String> {
        if self.rows == Some(0) {
            return Some("rows is 0: give 1 or more, or leave it out".into());
        }
        let shapes: Vec<&[usize]> = self.tensors.iter().map(|t| &*t.shape).collect();
        match shapes[..] {
            [[_, _]] => None,
            [[outputs, _], [bias]] if outputs == bias => None,
            _ => Some(format!(
                "a layer with factors has a weight [outputs, inputs] and perhaps a bias [outputs], not \
                 tensors of shapes {shapes:?}"
            )),
        }
    }

    /// Its shape for the choice of a scheme; `tensors` are its own.
    fn shape(&self, tensors: &[PlanTensor]) -> LayerShape {
        let dims = &self.tensors[0].shape;
        if self.factors {
            return LayerShape {
                bias: tensors.len() > 1,
                ..LayerShape::dense(dims[0] as u64, dims[1] as u64)
            };
        }
        // As many weights as there are, whatever their shapes: without factors only that counts.
        let weights: usize = tensors.iter().map(|t| t.len).sum();
        LayerShape {
            fully_connected: false,
            ..LayerShape::dense(1, weights as u64)
        }
    }
}

#[cfg(test)]
mod tests;

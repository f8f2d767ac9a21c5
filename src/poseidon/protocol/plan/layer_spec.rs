//! A layer as it is given, before a policy has chosen how it travels.

use super::PlanTensor;
use crate::poseidon::cost::{LayerShape, Scheme};

/// A layer as a [`Plan`](super::Plan) is made from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerSpec {
    /// Name of the layer.
    pub name: String,
    /// Its weight matrix.
    pub shape: LayerShape,
    /// Weight, then bias if it has one.
    pub tensors: Vec<PlanTensor>,
    /// See [`PlanLayer::rows`](super::PlanLayer::rows); `None`: as many as images.
    pub rows: Option<u32>,
    /// How its gradient travels; `None`: as the cluster's policy chooses.
    pub scheme: Option<Scheme>,
}

impl From<(String, LayerShape, Vec<PlanTensor>)> for LayerSpec {
    fn from((name, shape, tensors): (String, LayerShape, Vec<PlanTensor>)) -> Self {
        Self {
            name,
            shape,
            tensors,
            rows: None,
            scheme: None,
        }
    }
}

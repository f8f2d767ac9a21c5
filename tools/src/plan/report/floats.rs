//! What a layer would send under each scheme.

use dogwild::poseidon::{ClusterSize, LayerShape, Scheme};
use serde::Serialize;

/// Floats per scheme; none where a scheme cannot be.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Floats {
    pub(crate) ps: f64,
    pub(crate) sfb: Option<f64>,
    pub(crate) adam: Option<f64>,
    pub(crate) onebit: f64,
    pub(crate) p2p: f64,
}

impl Floats {
    /// As `count` counts them, one of those of `dogwild::poseidon::cost`.
    pub(super) fn new(
        count: fn(Scheme, LayerShape, ClusterSize) -> f64,
        shape: LayerShape,
        cluster: ClusterSize,
    ) -> Self {
        let floats = |scheme| count(scheme, shape, cluster);
        let factors = |scheme| shape.fully_connected.then(|| floats(scheme));
        Self {
            ps: floats(Scheme::Ps),
            sfb: factors(Scheme::Sfb),
            adam: factors(Scheme::Adam),
            onebit: floats(Scheme::OneBit),
            p2p: floats(Scheme::P2p),
        }
    }
}

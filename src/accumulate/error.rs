//! What can go wrong while gradients are added up.

use thiserror::Error;

/// Why there is no sum.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AccumulateError {
    /// There are no devices.
    #[error("no devices: gradients of at least one device are needed")]
    NoDevices,
    /// Nothing to add up.
    #[error("no layers: there is nothing to add up")]
    NoLayers,
    /// A layer without weights.
    #[error("layer {0} has no weights; leave it out")]
    Empty(String),
    /// Two layers at one place.
    #[error("layers {0} and {1} overlap in the gradient; they are of different models")]
    Overlap(String, String),
    /// No memory for so many floats.
    #[error("no memory for {0} gradients of 4 bytes: {1}; use fewer devices or a smaller model")]
    NoMemory(usize, String),
    /// A device's memory for gradients does not hold all layers.
    #[error(
        "device {device} has {words} words for gradients, and the layers reach to {needed}; they are of different models"
    )]
    Short {
        /// Its number, from 0.
        device: usize,
        /// Length of the memory, in words of 32 bits.
        words: usize,
        /// What the layers need.
        needed: usize,
    },
    /// A device or its thread has failed; the others do not wait for it.
    #[error("device {device} has failed: {why}")]
    Device {
        /// Its number, from 0.
        device: usize,
        /// What it said.
        why: String,
    },
    /// The accumulation was ended.
    #[error("ended while device {device} was waiting for the sum of layer {layer}")]
    Ended {
        /// Number of the device that was waiting.
        device: usize,
        /// Name of the layer.
        layer: String,
    },
}

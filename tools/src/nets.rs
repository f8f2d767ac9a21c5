//! Nets as the programs see them: layers with weights and operations, and how long they take.
//!
//! Reads layer tables, Caffe nets and recordings; no other I/O.

mod layers;
mod models;

use dogwild::poseidon::{RecordedLayer, Recording};

pub use layers::{Kind, Layer};
pub use models::{Engine, Stated, find, reported};

/// Seconds of each layer, forward and backward: an iteration of `alone_s` seconds, divided in
/// proportion to operations, of which the backward pass has twice as many.
pub fn times(layers: &[Layer], alone_s: f64) -> Vec<[f64; 2]> {
    let total: u64 = layers.iter().map(|layer| layer.flops).sum();
    let time = |layer: &Layer| alone_s / 3.0 * layer.flops as f64 / total as f64;
    layers
        .iter()
        .map(|layer| [time(layer), 2.0 * time(layer)])
        .collect()
}

/// Layers and their times, to be replayed, for `images` images.
pub fn recording(layers: &[Layer], times: &[[f64; 2]], images: u32) -> Recording {
    let us = |seconds: f64| (seconds * 1e6).round() as u64;
    let layers = layers.iter().zip(times);
    let recorded = |(layer, [forward, backward]): (&Layer, &[f64; 2])| RecordedLayer {
        name: layer.name.clone(),
        shape: layer.shape,
        forward_us: us(*forward),
        backward_us: us(*backward),
    };
    Recording {
        images,
        layers: layers.map(recorded).collect(),
    }
}

//! Two nodes in one process keep their weights in step, over a network that loses a third of all
//! frames.
//!
//! Each node adds 1 to all its weights, a hundred times. In the end every weight of both is 200:
//! nothing was lost, nothing came twice.
//!
//! `cargo run --release --example two_nodes_in_memory`

use std::error::Error;
use std::sync::atomic::AtomicU32;

use dogwild::node::StreamLoop;
use dogwild::stream::{Config, Merge, Streamer};
use dogwild::weights::{StreamState, WeightsView, padded_len};
use dogwild_net::{fault, memory};

const WEIGHTS: usize = 10_000;
const FRAME_BYTES: usize = 1472;
const STEPS: u32 = 100;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let len = padded_len(WEIGHTS);
    let memory: [Vec<AtomicU32>; 2] =
        std::array::from_fn(|_| (0..len).map(|_| AtomicU32::new(0)).collect());
    let mut states = Vec::new();
    for node in 0..2 {
        let path = folder.path().join(format!("node{node}.stream"));
        states.push(StreamState::open_or_create(&path, &config(node)?.state_spec(len))?.0);
    }
    let mut nodes = Vec::new();
    for (node, link) in (0..2).zip(memory::Hub::new(2, FRAME_BYTES, 1024)) {
        let faults = fault::FaultConfig {
            drop: 0.33,
            seed: u64::from(node),
            ..fault::FaultConfig::default()
        };
        let at = usize::from(node);
        let streamer = Streamer::new(config(node)?, WeightsView::of(&memory[at]), &states[at]);
        nodes.push(StreamLoop::new(streamer, fault::wrap(link, &faults), None));
    }
    // A node trains when it has seen every range: then its weights are those of the cluster.
    while !nodes.iter().all(StreamLoop::ready) {
        turn(&mut nodes)?;
    }
    for _ in 0..STEPS {
        for weights in &memory {
            let w = WeightsView::of(weights);
            (0..WEIGHTS).for_each(|i| w.store(i, w.load(i) + 1.0));
        }
        turn(&mut nodes)?;
    }
    // What is still on the way arrives, however often it gets lost.
    let want = 2.0 * STEPS as f32;
    let all = |w: WeightsView<'_>| (0..WEIGHTS).all(|i| w.load(i) == want);
    while !memory.iter().all(|weights| all(WeightsView::of(weights))) {
        turn(&mut nodes)?;
    }
    for (node, stream) in nodes.iter_mut().enumerate() {
        let lost = stream.link_stats().1.fault.dropped;
        let again = stream.counters().deltas_repeated;
        println!("node {node}: every weight is {want}; {lost} frames lost, {again} deltas again");
    }
    Ok(())
}

/// What a delta counts for is the whole of it: two nodes may add, more should take the mean.
fn config(node: u16) -> Result<Config, Box<dyn Error>> {
    let mut config = Config::new(node, 2, WEIGHTS, FRAME_BYTES).ok_or("too short a frame")?;
    config.merge = Merge::Sum;
    Ok(config)
}

fn turn(nodes: &mut [StreamLoop<'_>]) -> Result<(), Box<dyn Error>> {
    for node in nodes {
        node.step()?;
    }
    Ok(())
}

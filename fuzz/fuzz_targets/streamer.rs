//! Any bytes as frames of the right session: the state machine never panics and takes in no weight
//! that is not finite.
#![no_main]

use dogwild::sim::{Faults, Fleet, World};
use dogwild::stream::{Config, Deltas, Merge};
use dogwild::weights::Writes;
use dogwild::wire::Dtype;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let config = Config {
        session: 0,
        fingerprint: 0,
        data: 1,
        first_weights: 2,
        incarnation: 3,
        node: 0,
        nodes: 2,
        later: 1,
        min_nodes: Some(1),
        masters: 2,
        chunk_weights: 16,
        chunks: 4,
        deltas: Deltas::ExactlyOnce,
        merge: Merge::Mean,
        precision: Dtype::F32,
        sparse: false,
        writes: Writes::Racy,
        window_frames: 0,
        silence_ns: dogwild::stream::SILENCE_NS,
    };
    let folder = tempfile::tempdir_in("/dev/shm").expect("a folder");
    let fleet = Fleet::new(&config, folder.path()).expect("a fleet");
    let mut world = World::new(&fleet, Faults::default(), 1);
    for _ in 0..20 {
        world.step();
    }
    for frame in bytes.chunks(160) {
        let mut frame = frame.to_vec();
        // Past the outer checks, so that the deeper ones are reached.
        for (at, byte) in [(0, b'D'), (1, b'W'), (2, dogwild::wire::VERSION)] {
            if let Some(slot) = frame.get_mut(at) {
                *slot = byte;
            }
        }
        if frame.len() >= 16 {
            frame[8..16].fill(0);
        }
        world.inject(0, &frame);
        world.step();
    }
    let w = fleet.weights(0);
    assert!((0..w.len()).all(|i| w.load(i).is_finite()));
});

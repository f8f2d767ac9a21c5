//! Trainings in virtual time: the same again from the same seed; a mean learns where a sum
//! diverges.

use super::*;
use crate::solver::data::Source;
use crate::stream::{Deltas, Merge, chunk_weights_for};
use crate::weights::Writes;
use crate::wire::Dtype;

fn digits() -> DataSet {
    let source: Source = "digits:1,train=2000,test=500".parse().unwrap();
    source.load().unwrap()
}

fn solvers(nodes: u16, seed: u64) -> Solvers {
    Solvers {
        spec: SolverSpec::builtin("lenet").unwrap(),
        per_node: 1,
        step_ns: vec![10_000_000; nodes.into()],
        jitter: 0.2,
        recording: Arc::default(),
        cautious: false,
        seed,
        pauses: Vec::new(),
    }
}

fn config(nodes: u16, merge: Merge, data: &DataSet) -> Config {
    let chunk_weights = chunk_weights_for(1472, nodes, Dtype::F32).unwrap();
    let weights = weights_of(&SolverSpec::builtin("lenet").unwrap(), data).unwrap();
    Config {
        session: 1,
        fingerprint: 1,
        data: 0,
        first_weights: 0,
        incarnation: 1,
        node: 0,
        nodes,
        later: 0,
        min_nodes: None,
        masters: nodes,
        chunk_weights,
        chunks: weights.div_ceil(chunk_weights as usize) as u32,
        deltas: Deltas::ExactlyOnce,
        merge,
        precision: Dtype::F32,
        sparse: false,
        writes: Writes::Racy,
        window_frames: 1400,
        silence_ns: crate::stream::SILENCE_NS,
    }
}

/// A rate that makes a weight some four local steps old, and a tenth of the frames lost.
fn faults() -> Faults {
    Faults {
        drop: 0.1,
        delay_ns: 100_000,
        limit: Some(crate::sim::Limit {
            bytes_per_s: 32e6,
            burst_bytes: 1 << 20,
            known_frame_bytes: 1472,
        }),
        ..Faults::default()
    }
}

/// Solvers on `nodes` nodes, cautious or not.
fn with_caution(nodes: u16, seed: u64, cautious: bool) -> Solvers {
    Solvers {
        cautious,
        ..solvers(nodes, seed)
    }
}

/// What a training has come to: smoothed loss, all weights of all nodes, share of right answers.
fn train(merge: Merge, how: Solvers, nodes: u16, iterations: u64) -> Option<(f32, Vec<u32>, f64)> {
    let data = digits();
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let fleet = fleet(&config(nodes, merge, &data), &how, &data, folder.path()).unwrap();
    let mut training = Training::new(&fleet, how, &data, faults()).unwrap();
    assert!(training.wait_ready());
    let loss = training.run(iterations)?;
    let bits = |node| {
        let w = fleet.weights(node);
        (0..w.len()).map(move |i| w.load(i).to_bits())
    };
    let accuracy = training.test(&data, 500).unwrap().accuracy();
    Some((loss, (0..nodes).flat_map(bits).collect(), accuracy))
}

/// A node alone streams to no other; what is tested are its weights.
#[test]
fn a_node_alone_is_tested() {
    let (_, bits, accuracy) = train(Merge::Mean, solvers(1, 1), 1, 60).unwrap();
    assert!(bits.iter().any(|bits| *bits != 0));
    assert!(accuracy > 0.2, "{accuracy}: no better than by chance");
}

#[test]
fn the_same_seed_gives_the_same_run_to_the_bit() {
    let [once, again, other] =
        [7, 7, 8].map(|seed| train(Merge::Mean, solvers(3, seed), 3, 30).unwrap());
    assert_eq!(once.0.to_bits(), again.0.to_bits());
    assert!(once.1 == again.1, "weights differ");
    assert!(once.1 != other.1, "the seed changes nothing");
}

/// A node that stands still makes no step; the others go on, and it goes on after them.
#[test]
fn a_paused_node_stands_still_and_goes_on() {
    let data = digits();
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let pause = |(from_ms, for_ms): (u64, u64)| Pause {
        node: 1,
        from_ns: from_ms * 1_000_000,
        for_ns: for_ms * 1_000_000,
    };
    let how = Solvers {
        // Two that overlap: 800 to 950 ms.
        pauses: [(800, 100), (850, 100)].map(pause).to_vec(),
        ..solvers(3, 1)
    };
    let fleet = fleet(&config(3, Merge::Mean, &data), &how, &data, folder.path()).unwrap();
    let mut training = Training::new(&fleet, how, &data, faults()).unwrap();
    assert!(training.wait_ready());
    let mut made_until = |ms: u64| {
        while training.trained_ns() < ms * 1_000_000 {
            training.run(training.iterations() + 1).unwrap();
        }
        training.iterations.clone()
    };
    let (before, during, after) = (made_until(800), made_until(940), made_until(1_050));
    assert!(before[1] > 5, "{before:?}");
    assert!(
        during[1] <= before[1] + 1 && during[0] > before[0] + 9,
        "{during:?}"
    );
    assert!(after[1] > during[1] + 5, "{after:?}");
}

/// Steps take what a recording says, one after the other and then again.
#[test]
fn steps_take_the_times_of_a_recording() {
    let data = digits();
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let how = Solvers {
        recording: [1.0, 3.0].into(),
        ..solvers(1, 1)
    };
    let fleet = fleet(&config(1, Merge::Mean, &data), &how, &data, folder.path()).unwrap();
    let mut training = Training::new(&fleet, how, &data, faults()).unwrap();
    assert!(training.wait_ready());
    for (steps, ms) in [(1, 10), (2, 40), (3, 50), (4, 80)] {
        training.run(steps).unwrap();
        let late_ns = training.trained_ns() - ms * 1_000_000;
        assert!(late_ns < 10 * STEP_NS, "{steps} steps: {late_ns} ns late");
    }
    assert!(training.utilisation() > 0.99);
}

/// The failure that the mean is there for: four nodes, momentum 0.9, weights four steps old.
#[test]
#[ignore = "long: whole trainings"]
fn four_nodes_learn_by_a_mean_and_diverge_by_a_sum() {
    assert!(
        train(Merge::Sum, solvers(4, 1), 4, 400).is_none(),
        "a sum learns here: this test shows nothing"
    );
    let (loss, _, accuracy) = train(Merge::Mean, solvers(4, 1), 4, 400).expect("diverged");
    assert!(
        loss < 0.5 && accuracy > 0.85,
        "loss {loss}, accuracy {accuracy}"
    );
}

/// A training that diverges is noticed before its loss is NaN, and goes on with shorter steps.
#[test]
#[ignore = "long: whole trainings"]
fn a_training_that_begins_to_diverge_steps_back() {
    let how = with_caution(4, 1, true);
    let (loss, ..) = train(Merge::Sum, how, 4, 600).expect("diverged");
    assert!(loss < 2.3, "it has learnt nothing: loss {loss}");
}

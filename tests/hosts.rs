//! Two hosts by hand, as docs/guide/two-hosts.md says: the component programs alone, without
//! `train`.

#![cfg(feature = "program")]

mod support;

use support::hosts::{DATA, Hosts};
use support::output::{assert_says, refused};
use support::program::dogwild;
use support::wait::wait_for;

#[test]
fn components_started_by_hand_train_and_agree() {
    let hosts = Hosts::new("by-hand", 2);
    let _streams = [0, 1].map(|node| {
        hosts.init(node, 1, 150);
        hosts.stream(node)
    });
    let before = hosts.snapshot(0);
    hosts.train();
    let after = hosts.wait_until_equal("equal weights after training");
    assert_ne!(before, after, "nothing was learnt");
}

#[test]
fn a_killed_streamer_and_solver_go_on() {
    let hosts = Hosts::new("killed", 2);
    let mut streams = [0, 1].map(|node| {
        hosts.init(node, 1, 200);
        hosts.stream(node)
    });
    let mut solvers = [0, 1].map(|node| hosts.solver(node));
    let begun = hosts.snapshot(1);
    wait_for("the first steps", || hosts.snapshot(1) != begun);
    solvers[0].kill();
    solvers[0] = hosts.solver(0);
    streams[1].kill();
    streams[1] = hosts.stream(1);
    for mut solver in solvers {
        assert!(solver.wait().success());
    }
    hosts.wait_until_equal("equal weights after two kills");
    drop(streams);
}

#[test]
fn a_node_that_lost_its_buffer_gets_the_trained_range_back() {
    let hosts = Hosts::new("lost", 2);
    let mut streams = [0, 1].map(|node| {
        hosts.init(node, 1, 100);
        hosts.stream(node)
    });
    hosts.train();
    let trained = hosts.wait_until_equal("equal weights after training");
    streams[1].kill();
    // The machine came back with other initial weights, which must run over nothing.
    hosts.init(1, 2, 100);
    assert_ne!(hosts.snapshot(1), trained);
    streams[1] = hosts.stream(1);
    let restored = hosts.wait_until_equal("the range to be given back");
    assert_eq!(restored, trained);
    drop(streams);
}

/// Only the file of the weights is lost, and what its streamer knew of them stays behind: it speaks
/// of other weights than those that `init` makes.
#[test]
fn a_buffer_that_was_removed_alone_takes_nothing_of_what_was_trained_with_it() {
    let hosts = Hosts::new("removed", 2);
    let mut streams = [0, 1].map(|node| {
        hosts.init(node, 1, 100);
        hosts.stream(node)
    });
    hosts.train();
    let trained = hosts.wait_until_equal("equal weights after training");
    let left = hosts.folder.path().join("n1.stream");
    let kept = hosts.folder.path().join("kept");

    // While its streamer runs, no process may take its state away.
    std::fs::remove_file(hosts.buffer(1)).expect("a buffer to remove");
    let mut init = dogwild();
    init.args(["init", "--nodes", "2", "--data", DATA, "--buffer"]);
    let said = refused(init.arg(hosts.buffer(1)));
    assert_says(&said, &["n1.stream", "in use"]);
    streams[1].kill();

    std::fs::copy(&left, &kept).expect("a copy");
    let said = hosts.init_with(1, 1, 100, &[]);
    assert_says(&said, &["removed", "n1.stream"]);
    // Brought back by hand it is refused: it would run initial weights over trained ones.
    std::fs::copy(&kept, &left).expect("a copy");
    let mut stream = dogwild();
    stream.args(["stream", "--nodes", "2", "--node", "1", "--buffer"]);
    let said = refused(stream.arg(hosts.buffer(1)));
    let words = ["n1.stream", "n1 was made anew", "Remove", "--fresh"];
    assert_says(&said, &words);
    std::fs::remove_file(&left).expect("removed as the message says");

    streams[1] = hosts.stream(1);
    assert_eq!(
        hosts.wait_until_equal("the range to be given back"),
        trained
    );

    // Both lost: a new job, which begins with its own first weights.
    for (node, stream) in streams.iter_mut().enumerate() {
        stream.kill();
        std::fs::remove_file(hosts.buffer(node as u16)).expect("a buffer to remove");
    }
    let first = [0, 1].map(|node| {
        hosts.init_with(node, 3, 1, &[]);
        hosts.snapshot(node)
    });
    assert!(first[0] == first[1] && first[0] != trained);
    streams = [0, 1].map(|node| hosts.stream(node));
    // A solver begins when both ranges were seen; its step is all that may differ.
    assert!(hosts.solver(0).wait().success());
    let after = hosts.wait_until_equal("equal weights of the new job");
    let moved = distance(&after, &first[0]);
    assert!(moved < 0.1, "weights moved by {moved} in one step");
    drop(streams);
}

/// The largest difference between two weights.
fn distance(a: &[u8], b: &[u8]) -> f32 {
    let floats = |bytes: &[u8]| -> Vec<f32> {
        let words = bytes.as_chunks::<4>().0;
        words.iter().map(|word| f32::from_le_bytes(*word)).collect()
    };
    let pairs = floats(a).into_iter().zip(floats(b));
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

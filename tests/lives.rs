//! Three hosts by hand, some of which lose their memory or are away: what was learnt stays, and
//! nothing waits for ever.

#![cfg(feature = "program")]

mod support;

use support::hosts::Hosts;
use support::job::iterations;
use support::process::Process;
use support::wait::{wait_for, wait_while};

/// Hosts whose streamers run on buffers that were just made.
fn begin(name: &str, iterations: u64) -> (Hosts, Vec<Process>) {
    let hosts = Hosts::new(name, 3);
    let streams = (0..3).map(|node| {
        hosts.init(node, 1, iterations);
        hosts.stream(node)
    });
    let streams = streams.collect();
    (hosts, streams)
}

/// The machine of `node` comes back with other initial weights, which must run over nothing.
fn lose(hosts: &Hosts, streams: &mut [Process], node: u16, iterations: u64) {
    let stream = &mut streams[usize::from(node)];
    stream.kill();
    hosts.init(node, 2, iterations);
    *stream = hosts.stream(node);
}

#[test]
fn memory_that_is_lost_again_and_again_while_others_train_comes_back() {
    const ITERATIONS: u64 = 300;
    let (hosts, mut streams) = begin("again", ITERATIONS);
    let begun = hosts.snapshot(0);
    let solvers = [0, 2].map(|node| hosts.solver(node));
    wait_for("the first steps", || hosts.snapshot(0) != begun);
    for pause_ms in [0, 5, 40, 200] {
        lose(&hosts, &mut streams, 1, ITERATIONS);
        std::thread::sleep(std::time::Duration::from_millis(pause_ms));
    }
    for mut solver in solvers {
        assert!(solver.wait().success());
    }
    let trained = hosts.wait_until_equal("equal weights after a memory that was lost four times");
    assert_ne!(trained, begun);
}

/// Node 0 stands still while the others learn. Then node 1 loses its memory, and node 0 goes on: it
/// has the lowest index and an old replica, and rolls nothing back.
#[test]
fn a_node_that_was_away_rolls_nothing_back() {
    let (hosts, mut streams) = begin("away", 100);
    hosts.wait_until_ready(0..3);
    let begun = hosts.range(1, 1);
    streams[0].signal("STOP");
    assert!(hosts.solver(1).wait().success());
    wait_for("node 2 to have what node 1 learnt", || {
        hosts.range(1, 2) == hosts.range(1, 1)
    });
    let trained = hosts.range(1, 2);
    assert_ne!(trained, begun);
    streams[0].signal("CONT");
    lose(&hosts, &mut streams, 1, 100);
    hosts.wait_until_equal("equal weights after node 0 was away");
    assert!(hosts.range(1, 1) == trained, "what was learnt is gone");
}

/// Node 2 is dead, and stays so; node 1 loses its memory. Node 0 holds what both had, so node 1
/// trains on.
#[test]
fn a_node_that_lost_its_memory_trains_while_another_is_dead() {
    let (hosts, mut streams) = begin("dead", 40);
    let begun = hosts.range(2, 2);
    for node in [0, 1, 2] {
        assert!(hosts.solver(node).wait().success());
    }
    hosts.wait_until_equal("equal weights after training");
    let left = hosts.range(2, 2);
    assert_ne!(left, begun);
    streams[2].kill();
    lose(&hosts, &mut streams, 1, 400);
    let before = hosts.range(0, 0);
    let mut solver = hosts.solver(1);
    wait_for("node 1 to train on", || hosts.range(0, 0) != before);
    solver.kill();
    streams[2] = hosts.stream(2);
    hosts.wait_until_equal("equal weights when node 2 is back");
    assert_ne!(hosts.range(2, 1), begun);
}

/// All three machines are replaced, one after the other. What was made counts on, so the job ends
/// by its number of iterations, and the rate follows them.
#[test]
fn iterations_count_on_where_no_machine_is_left_that_made_them() {
    let (hosts, mut streams) = begin("count", 60);
    for mut solver in [0, 1, 2].map(|node| hosts.solver(node)) {
        assert!(solver.wait().success());
    }
    let known = |node| hosts.open(node).globals().iterations();
    let made: u64 = (0..3).map(|node| iterations(&hosts.buffer(node))).sum();
    let counted = |what: &str, node: u16| {
        wait_while(what, || {
            let known = known(node);
            (known != made).then(|| format!("node {node} knows {known} of {made}"))
        });
    };
    (0..3).for_each(|node| counted("all iterations", node));
    for node in [1, 2, 0] {
        lose(&hosts, &mut streams, node, 60);
        counted("what was made before the memory was lost", node);
    }
    assert_eq!(iterations(&hosts.buffer(0)), 0);
    let trained = hosts.wait_until_equal("equal weights");
    assert!(hosts.solver(0).wait().success());
    assert!(hosts.snapshot(0) == trained, "a job that was over went on");
}

//! Frames from samples made by hand, and what a screen of 80 columns and 24 lines shows of them.

use super::frame::Meters;
use super::*;
use crate::job::testing;

fn component(role: &str, meters: &[(&str, u64)]) -> ComponentSample {
    ComponentSample {
        role: role.into(),
        index: 0,
        pid: 7,
        alive: true,
        meters: meters
            .iter()
            .map(|(name, value)| ((*name).into(), *value))
            .collect(),
    }
}

/// Node 5 of the job, and node 6, which has left.
fn peers(meters: &[(&str, u64)]) -> std::collections::BTreeMap<u16, Meters> {
    let of = |meters: &[(&str, u64)]| component("", meters).meters;
    [(5, of(meters)), (6, of(&[("positions_taken", 9)]))].into()
}

/// A node after so many seconds of the same pace.
fn buffer(node: u64, seconds: u64) -> BufferSample {
    let loss = u64::from((0.5f32 + node as f32).to_bits());
    BufferSample {
        path: format!("/dev/shm/dogwild-train-77-n{node}").into(),
        session: 5,
        weights: 431_080,
        iterations: 30 * seconds,
        local_iterations: (10 + node) * seconds,
        target_iterations: 3000,
        components: vec![
            component(
                "stream",
                &[
                    ("cycles", 100 * seconds),
                    ("bytes_sent", 3_000_000 * seconds),
                    ("bytes_received", 2_500_000 * seconds),
                    ("positions_taken", 900 * seconds),
                    ("positions_missed", 100 * seconds),
                    ("age_p50_us", 12_300),
                    ("age_p99_us", 45_600),
                    ("cpu_ns", 250_000_000 * seconds),
                    ("silent_nodes", 0b100 * node),
                    ("drop_repeated", 40 * seconds),
                    ("drop_epoch", 3),
                    ("kernel_drops", 2 * seconds),
                ],
            ),
            component(
                "solver",
                &[("loss_bits", loss), ("cpu_ns", 500_000_000 * seconds)],
            ),
        ],
        peers: peers(&[
            ("member", 1),
            ("positions_taken", 450 * seconds),
            ("positions_missed", 50 * seconds),
            ("deltas_sent", 440 * seconds),
            ("deltas_applied", 400 * seconds),
            ("oldest_ms", 40),
            ("silent_ms", 3),
            ("drift_bits", u64::from(0.002f32.to_bits())),
        ]),
    }
}

fn sample(seconds: u64, nodes: u64) -> Sample {
    Sample {
        unix_ms: 1_000 * seconds,
        buffers: (0..nodes).map(|node| buffer(node, seconds)).collect(),
    }
}

#[test]
fn rates_are_those_of_the_interval() {
    let frame = Frame::between(&sample(10, 2), &sample(12, 2));
    assert_eq!((frame.seconds, frame.iterations), (2.0, 360));
    assert_eq!(frame.iterations_per_s, 21.0);
    assert_eq!(frame.loss, Some(1.0));
    let one = &frame.nodes[1];
    assert_eq!((one.name.as_str(), one.iterations_per_s), ("77-n1", 11.0));
    assert_eq!((one.cycles_per_s, one.sent_bytes_per_s), (100.0, 3e6));
    assert_eq!((one.lost_share, one.age_ms), (0.1, [12.3, 45.6]));
    assert_eq!(one.cpu_share, [0.25, 0.5]);
    assert_eq!(one.silent, [2]);
    let peer = Peer {
        node: 5,
        positions_per_s: 450.0,
        lost_share: 0.1,
        deltas_sent_per_s: 440.0,
        deltas_applied_per_s: 400.0,
        age_ms: 40,
        silent_ms: 3,
        drift: Some(0.002),
    };
    assert_eq!(one.peers, [peer]);
    // What did not grow is left out.
    let dropped: Vec<_> = one
        .dropped_per_s
        .iter()
        .map(|(why, n)| (why.as_str(), *n))
        .collect();
    assert_eq!(dropped, [("kernel_drops", 2.0), ("repeated", 40.0)]);
}

/// Its counters begin anew: nothing is negative, and nothing is a rate of all that ever was.
#[test]
fn a_component_or_a_buffer_that_is_new_has_no_rates_yet() {
    let (old, mut new) = (sample(10, 1), sample(12, 2));
    new.buffers[0].components[0]
        .meters
        .insert("cycles".into(), 3);
    let frame = Frame::between(&old, &new);
    assert_eq!(frame.nodes[0].cycles_per_s, 0.0);
    assert_eq!(frame.nodes[1].iterations_per_s, 0.0);
    assert_eq!(frame.nodes[1].peers[0].positions_per_s, 0.0);
    assert_eq!(frame.nodes[1].loss, Some(1.5));
    let at_once = Frame::between(&new, &new);
    assert!(at_once.nodes.iter().all(|node| node.cycles_per_s == 0.0));
}

#[test]
fn a_small_screen_shows_all_of_a_few_nodes() {
    let mut screen = Screen::default();
    for second in 1..6 {
        screen.push(Frame::between(&sample(second, 3), &sample(second + 1, 3)));
    }
    let shown = text(&screen, 80, 24);
    for line in [
        "dogwild top   3 nodes here   180/3000 iterations   33 it/s",
        "node       it/s   loss  acc % cycl/s out MB/s in MB/s lost % p50 ms p99 ms CPU %",
        "77-n0      10.0  0.500      -  100.0     3.00    2.50  10.00   12.3   45.6    75",
        "77-n0: stream 0 (pid 7), solver 0 (pid 7)",
        "dropped: kernel_drops 2/s, repeated 40/s",
        "silent nodes: none",
        "CPU: streamer 25 %, solvers 50 %",
        "from others: 5: lost 10.0 % age 40 ms drift 2.0e-3",
    ] {
        assert!(
            shown.lines().any(|shown| shown == line),
            "{line} is not in\n{shown}"
        );
    }
    assert!(shown.lines().count() <= 24, "{shown}");
    assert!(
        shown.contains("loss") && shown.contains("1.5000"),
        "{shown}"
    );
}

#[test]
fn nodes_are_sorted_and_selected_and_scroll() {
    let mut screen = Screen::default();
    screen.push(Frame::between(&sample(1, 40), &sample(2, 40)));
    screen.select(39);
    let shown = text(&screen, 80, 24);
    assert!(
        shown.contains("\n77-n9: stream 0"),
        "the last by name: {shown}"
    );
    screen.select(-100);
    screen.sort();
    let shown = text(&screen, 80, 24);
    assert!(shown.contains("s sort (by slowest)"), "{shown}");
    assert!(shown.contains("\n77-n0: stream 0"), "the slowest: {shown}");
    // However narrow: no panic.
    for (width, height) in [(1, 1), (20, 5), (300, 100)] {
        let _ = text(&screen, width, height);
    }
}

#[test]
fn a_dead_job_and_an_empty_host_are_shown() {
    let mut dead = sample(3, 1);
    for one in &mut dead.buffers[0].components {
        (one.alive, one.pid) = (false, 9);
    }
    let mut screen = Screen::default();
    screen.push(Frame::between(&dead, &dead));
    let shown = text(&screen, 80, 24);
    assert!(shown.contains("stream 0 (died, pid 9)"), "{shown}");
    let mut nothing = Screen::default();
    nothing.push(Frame::between(&Sample::default(), &Sample::default()));
    assert!(text(&nothing, 80, 24).contains("0 nodes here"));
}

/// The buffer of a node that was killed and began anew has its name again, and no content of it.
#[test]
fn a_buffer_that_is_made_anew_is_looked_at_anew() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("n0");
    let old = testing::buffer(&path, 7);
    let mut watched = open(std::slice::from_ref(&path)).expect("a buffer");
    let mut session = || Sample::of(&mut watched).buffers[0].session;
    assert_eq!(session(), 7);
    drop(old);
    std::fs::remove_file(&path).expect("it may go");
    assert_eq!(session(), 7, "how it ended is still shown");
    let _new = testing::buffer(&path, 8);
    assert_eq!(session(), 8);
}

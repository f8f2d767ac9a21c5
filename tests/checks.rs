//! Two hosts by hand, and damage to what one holds of the other's range: it is named, and all is
//! well again.

#![cfg(feature = "program")]

mod support;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

use dogwild::weights::{Expect, SharedWeights, StreamState};
use support::hosts::Hosts;
use support::output::said;
use support::wait::wait_for_or;

const SUM: [&str; 3] = ["--merge", "sum", "--atomic"];

/// `last` in the state file of a streamer, from outside.
struct Last {
    file: File,
    at: u64,
}

impl Last {
    /// Of the streamer of `buffer`. The two arrays at the end of its file are as long as the
    /// buffer, and begin 21 and 43 cache lines into their pages.
    fn of(buffer: &SharedWeights) -> Self {
        let path = StreamState::path_beside(buffer.path());
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.expect("a state file");
        let bytes = 4 * buffer.padded() as u64;
        let sent = file.metadata().expect("its length").len() - bytes;
        let page = sent - 43 * 64;
        assert!(page.is_multiple_of(4096), "not where it was");
        let latest = page - bytes;
        let at = latest - (latest - 21 * 64) % 4096;
        Self { file, at }
    }

    fn load(&self, i: usize) -> f32 {
        let mut bytes = [0; 4];
        let read = self.file.read_exact_at(&mut bytes, self.at + 4 * i as u64);
        read.expect("it is there");
        f32::from_le_bytes(bytes)
    }

    fn store(&self, i: usize, value: f32) {
        let written = self
            .file
            .write_all_at(&value.to_le_bytes(), self.at + 4 * i as u64);
        written.expect("it is there");
    }
}

#[test]
fn damage_to_what_a_slave_holds_is_named_and_set_right() {
    let hosts = Hosts::new("checks", 2);
    for node in [0, 1] {
        hosts.init(node, 1, 100);
    }
    let _master = hosts.stream_with(0, &SUM);
    let mut slave = hosts.stream_told(1, &SUM);
    hosts.wait_until_ready([0, 1]);
    // Not as much on both: then they would be equal before anything was delivered.
    hosts.add(0, 1.0);
    hosts.add(1, 2.0);
    hosts.wait_until_equal("both to have what was added");

    let buffer = SharedWeights::open(&hosts.buffer(1), &Expect::default()).expect("a buffer");
    let last = Last::of(&buffer);
    // In the range of node 0.
    let weight = buffer.used() / 5;
    assert_eq!(last.load(weight), buffer.view().load(weight));

    // While it is stopped. What it held is replaced by the next position, and no check comes first.
    slave.kill();
    let held = last.load(weight);
    last.store(weight, f32::from_bits(held.to_bits() ^ 1 << 22));
    let slave = hosts.stream_told(1, &SUM);
    hosts.wait_until_ready([1]);
    let came = || hosts.weights(0)[weight] != held;
    wait_for_or("the false delta to arrive", came, || hosts.status(0));
    hosts.wait_until_equal("both to be equal after a state file was damaged");
    assert_eq!(hosts.meter(0, "differing_chunks"), 0);

    // A program that writes there all the time, into the buffer too: as if what was taken were not
    // what node 0 sends.
    wait_for_or(
        "the damage to be named",
        || {
            for _ in 0..2_000 {
                last.store(weight, last.load(weight) + 1.0);
                buffer.view().atomic_add(weight, 1.0);
                std::thread::yield_now();
            }
            hosts.meter(1, "differing_chunks") > 0
        },
        || hosts.status(1),
    );
    let status = hosts.status(1);
    let words = status.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains("differed from what their masters had sent"),
        "{status}"
    );
    assert!(hosts.meter(0, "checks_sent") > 0 && hosts.meter(1, "chunks_checked") > 0);
    hosts.wait_until_equal("both to be equal after the damage has ended");
    slave.signal("TERM");
    let told = said(&slave.output());
    let name = format!(
        "held of a chunk of node 0 were not what it had sent, the first is weight {weight};"
    );
    assert!(told.contains(&name), "{told}");
    assert_eq!(hosts.meter(0, "differing_chunks"), 0);
}

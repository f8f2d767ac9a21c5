//! Two hosts by hand, as docs/guide/two-hosts.md says: the component programs alone, without
//! `train`.

#![cfg(feature = "program")]

mod support;

use std::path::PathBuf;
use std::process::Stdio;

use dogwild::weights::{Expect, SharedWeights};
use support::output::{assert_says, refused, said, succeeds};
use support::process::Process;
use support::program::dogwild;
use support::results::tensors;
use support::shm::shm_folder;
use support::wait::{wait_for, wait_while};
use tempfile::TempDir;

const DATA: &str = "digits:1,train=2000,test=200";

/// Two nodes on loopback, each with a buffer in a folder under /dev/shm.
struct Hosts {
    folder: TempDir,
    session: String,
}

impl Hosts {
    fn new(name: &str) -> Self {
        Self {
            folder: shm_folder(),
            session: format!("{name}-{}", std::process::id()),
        }
    }

    fn buffer(&self, node: u16) -> PathBuf {
        self.folder.path().join(format!("n{node}"))
    }

    fn init(&self, node: u16, seed: u64, iterations: u64) {
        let said = self.init_with(node, seed, iterations, &["--fresh"]);
        assert!(!said.contains("removed"), "{said}");
    }

    /// What `init` said.
    fn init_with(&self, node: u16, seed: u64, iterations: u64, more: &[&str]) -> String {
        let made = dogwild()
            .args([
                "init",
                "--nodes",
                "2",
                "--data",
                DATA,
                "--session",
                &self.session,
            ])
            .args([
                "--seed",
                &seed.to_string(),
                "--iterations",
                &iterations.to_string(),
            ])
            .arg("--buffer")
            .arg(self.buffer(node))
            .args(more)
            .output()
            .expect("init runs");
        let said = said(&made);
        assert!(made.status.success(), "init of node {node}: {said}");
        said
    }

    fn stream(&self, node: u16) -> Process {
        self.start(&["stream"], node)
    }

    fn solver(&self, node: u16) -> Process {
        self.start(&["solver", "--data", DATA, "--test-every", "0"], node)
    }

    fn start(&self, component: &[&str], node: u16) -> Process {
        let mut command = dogwild();
        command.args(component).args(["--nodes", "2", "--node"]);
        command.arg(node.to_string()).arg("--buffer");
        command.arg(self.buffer(node));
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Process::start(&mut command)
    }

    /// Starts both solvers and waits for their ends.
    fn train(&self) {
        for mut solver in [0, 1].map(|node| self.solver(node)) {
            assert!(solver.wait().success());
        }
    }

    /// The weights of `node` as they are now, and the iterations that were told with them.
    fn snapshot(&self, node: u16) -> Vec<u8> {
        let out = self
            .folder
            .path()
            .join(format!("snapshot{node}.safetensors"));
        let mut command = dogwild();
        command.args(["snapshot", "--buffer"]);
        command.arg(self.buffer(node)).arg("--out").arg(&out);
        succeeds(&mut command);
        tensors(&out)
    }

    /// What each node lacks of the other one's range; `None` if both hold the same.
    fn lacking(&self) -> Option<String> {
        let open = |node| SharedWeights::open(&self.buffer(node), &Expect::default());
        let [first, second] = [0, 1].map(|node| open(node).expect("a buffer"));
        let bits = |shared: &SharedWeights, at| shared.view().load(at).to_bits();
        let own = first.globals().own_range();
        let (mut of_first, mut of_second) = (0, 0);
        for at in (0..first.used()).filter(|&at| bits(&first, at) != bits(&second, at)) {
            if own.contains(&at) {
                of_first += 1;
            } else {
                of_second += 1;
            }
        }
        (of_first + of_second > 0).then(|| {
            format!(
                "node 1 lacks {of_first} weights of node 0's range, \
                 node 0 lacks {of_second} of node 1's"
            )
        })
    }

    fn wait_until_equal(&self, what: &str) -> Vec<u8> {
        wait_while(what, || self.lacking());
        let [first, second] = [0, 1].map(|node| self.snapshot(node));
        assert!(first == second, "snapshots of equal weights differ");
        first
    }
}

#[test]
fn components_started_by_hand_train_and_agree() {
    let hosts = Hosts::new("by-hand");
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
    let hosts = Hosts::new("killed");
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
    let hosts = Hosts::new("lost");
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
    let hosts = Hosts::new("removed");
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

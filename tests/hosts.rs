//! Two hosts by hand, as docs/guide/two-hosts.md says: the component programs alone, without
//! `train`.

#![cfg(feature = "program")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

const DATA: &str = "digits:1,train=2000,test=200";

fn dogwild() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dogwild"));
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// A process that is killed when the test ends, however it ends.
struct Component(Child);

impl Drop for Component {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Two nodes on loopback, each with a buffer in a folder under /dev/shm.
struct Hosts {
    folder: TempDir,
    session: String,
}

impl Hosts {
    fn new(name: &str) -> Self {
        let folder = tempfile::tempdir_in("/dev/shm").expect("a folder under /dev/shm");
        Self {
            folder,
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
            .stderr(Stdio::piped())
            .output()
            .expect("init runs");
        let said = String::from_utf8_lossy(&made.stderr).into_owned();
        assert!(made.status.success(), "init of node {node}: {said}");
        said
    }

    fn stream(&self, node: u16) -> Component {
        let mut command = dogwild();
        command
            .args([
                "stream",
                "--nodes",
                "2",
                "--node",
                &node.to_string(),
                "--buffer",
            ])
            .arg(self.buffer(node));
        Component(command.spawn().expect("a streamer"))
    }

    fn solver(&self, node: u16) -> Component {
        let mut command = dogwild();
        command.args([
            "solver",
            "--nodes",
            "2",
            "--node",
            &node.to_string(),
            "--data",
            DATA,
            "--test-every",
            "0",
        ]);
        command.arg("--buffer").arg(self.buffer(node));
        Component(command.spawn().expect("a solver"))
    }

    /// The weights of `node` as they are now, and the iterations that were told with them.
    fn snapshot(&self, node: u16) -> Vec<u8> {
        let out = self
            .folder
            .path()
            .join(format!("snapshot{node}.safetensors"));
        let made = dogwild()
            .args(["snapshot", "--buffer"])
            .arg(self.buffer(node))
            .arg("--out")
            .arg(&out)
            .status();
        assert!(
            made.is_ok_and(|status| status.success()),
            "snapshot of node {node}"
        );
        tensors(&out)
    }

    fn wait_until_equal(&self, what: &str) -> Vec<u8> {
        wait_for(what, || self.snapshot(0) == self.snapshot(1));
        self.snapshot(0)
    }
}

/// The bytes behind the header, which alone also names the iterations.
fn tensors(file: &Path) -> Vec<u8> {
    let bytes = std::fs::read(file).expect("a snapshot");
    let header = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
    bytes[8 + header..].to_vec()
}

fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        // Against a hang only.
        assert!(
            start.elapsed() < Duration::from_secs(600),
            "waited in vain for {what}"
        );
        std::thread::sleep(Duration::from_millis(50));
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
    for mut solver in [0, 1].map(|node| hosts.solver(node)) {
        assert!(solver.0.wait().expect("a solver").success());
    }
    let after = hosts.wait_until_equal("equal weights after training");
    assert_ne!(before, after, "nothing was learnt");
}

#[test]
fn a_killed_streamer_and_solver_go_on() {
    let hosts = Hosts::new("killed");
    let mut streams = [0, 1].map(|node| {
        hosts.init(node, 1, 400);
        hosts.stream(node)
    });
    let mut solvers = [0, 1].map(|node| hosts.solver(node));
    let begun = hosts.snapshot(1);
    wait_for("the first steps", || hosts.snapshot(1) != begun);
    solvers[0] = {
        let _ = solvers[0].0.kill();
        let _ = solvers[0].0.wait();
        hosts.solver(0)
    };
    streams[1] = {
        let _ = streams[1].0.kill();
        let _ = streams[1].0.wait();
        hosts.stream(1)
    };
    for mut solver in solvers {
        assert!(solver.0.wait().expect("a solver").success());
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
    for mut solver in [0, 1].map(|node| hosts.solver(node)) {
        assert!(solver.0.wait().expect("a solver").success());
    }
    let trained = hosts.wait_until_equal("equal weights after training");
    let _ = streams[1].0.kill();
    let _ = streams[1].0.wait();
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
    for mut solver in [0, 1].map(|node| hosts.solver(node)) {
        assert!(solver.0.wait().expect("a solver").success());
    }
    let trained = hosts.wait_until_equal("equal weights after training");
    let left = hosts.folder.path().join("n1.stream");
    let kept = hosts.folder.path().join("kept");

    // While its streamer runs, nobody may take its state away.
    std::fs::remove_file(hosts.buffer(1)).expect("a buffer to remove");
    let refused = dogwild()
        .args(["init", "--nodes", "2", "--data", DATA, "--buffer"])
        .arg(hosts.buffer(1))
        .stderr(Stdio::piped())
        .output()
        .expect("init runs");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && said.contains("n1.stream") && said.contains("in use"),
        "{said}"
    );
    let _ = streams[1].0.kill();
    let _ = streams[1].0.wait();

    std::fs::copy(&left, &kept).expect("a copy");
    let said = hosts.init_with(1, 1, 100, &[]);
    assert!(
        said.contains("removed") && said.contains("n1.stream"),
        "{said}"
    );
    // Brought back by hand it is refused: it would run initial weights over trained ones.
    std::fs::copy(&kept, &left).expect("a copy");
    let refused = dogwild()
        .args(["stream", "--nodes", "2", "--node", "1", "--buffer"])
        .arg(hosts.buffer(1))
        .stderr(Stdio::piped())
        .output()
        .expect("a streamer");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success(), "{said}");
    for part in ["n1.stream", "n1 was made anew", "Remove", "--fresh"] {
        assert!(said.contains(part), "{part} is missing in: {said}");
    }
    std::fs::remove_file(&left).expect("removed as the message says");

    streams[1] = hosts.stream(1);
    assert_eq!(
        hosts.wait_until_equal("the range to be given back"),
        trained
    );

    // Both lost: a new job, which begins with its own first weights.
    for (node, stream) in streams.iter_mut().enumerate() {
        let _ = stream.0.kill();
        let _ = stream.0.wait();
        std::fs::remove_file(hosts.buffer(node as u16)).expect("a buffer to remove");
    }
    let first = [0, 1].map(|node| {
        hosts.init_with(node, 3, 1, &[]);
        hosts.snapshot(node)
    });
    assert!(first[0] == first[1] && first[0] != trained);
    streams = [0, 1].map(|node| hosts.stream(node));
    // A solver begins when both ranges were seen; its step is all that may differ.
    assert!(hosts.solver(0).0.wait().expect("a solver").success());
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

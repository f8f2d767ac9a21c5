//! Two hosts by hand, as docs/guide-hosts.md says: the component programs alone, without `train`.

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
        let made = dogwild()
            .args([
                "init",
                "--fresh",
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
            .status();
        assert!(
            made.is_ok_and(|status| status.success()),
            "init of node {node}"
        );
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

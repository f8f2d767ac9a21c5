//! Hosts by hand on loopback, each with a buffer: the component programs alone, without `train`.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use dogwild::weights::{Expect, SharedWeights, kernels};
use tempfile::TempDir;

use super::output::{said, succeeds};
use super::process::Process;
use super::program::dogwild;
use super::results::tensors;
use super::shm::shm_folder;
use super::wait::{wait_for, wait_while};

pub(crate) const DATA: &str = "digits:1,train=2000,test=200";

/// Nodes on loopback, each with a buffer in a folder under /dev/shm.
pub(crate) struct Hosts {
    pub(crate) folder: TempDir,
    nodes: u16,
    session: String,
    data: String,
}

impl Hosts {
    pub(crate) fn new(name: &str, nodes: u16) -> Self {
        Self::with_data(name, nodes, DATA)
    }

    /// The same on other pictures.
    pub(crate) fn with_data(name: &str, nodes: u16, data: &str) -> Self {
        Self {
            data: data.to_owned(),
            nodes,
            folder: shm_folder(),
            session: format!("{name}-{}", std::process::id()),
        }
    }

    pub(crate) fn buffer(&self, node: u16) -> PathBuf {
        self.folder.path().join(format!("n{node}"))
    }

    pub(crate) fn init(&self, node: u16, seed: u64, iterations: u64) {
        let said = self.init_with(node, seed, iterations, &["--fresh"]);
        assert!(!said.contains("removed"), "{said}");
    }

    /// What `init` said.
    pub(crate) fn init_with(&self, node: u16, seed: u64, iterations: u64, more: &[&str]) -> String {
        let made = dogwild()
            .args([
                "init",
                "--nodes",
                &self.nodes.to_string(),
                "--data",
                &self.data,
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

    pub(crate) fn stream(&self, node: u16) -> Process {
        self.start(&["stream"], node)
    }

    /// A streamer of a job whose deltas are added as they are.
    pub(crate) fn stream_sum(&self, node: u16) -> Process {
        self.start(&["stream", "--merge", "sum", "--atomic"], node)
    }

    /// A streamer with more arguments.
    pub(crate) fn stream_with(&self, node: u16, more: &[&str]) -> Process {
        self.start(&[&["stream"], more].concat(), node)
    }

    pub(crate) fn solver(&self, node: u16) -> Process {
        Process::start(&mut self.solver_command(node, &[]))
    }

    /// A solver, to be started elsewhere, or with more arguments.
    pub(crate) fn solver_command(&self, node: u16, more: &[&str]) -> Command {
        let solver = ["solver", "--data", &self.data, "--test-every", "0"];
        self.command(&[&solver[..], more].concat(), node)
    }

    /// The same as `stream_with`, and what it says can be read at its end.
    pub(crate) fn stream_told(&self, node: u16, more: &[&str]) -> Process {
        Process::start(self.stream_command(node, more).stderr(Stdio::piped()))
    }

    /// The same, to be started elsewhere.
    pub(crate) fn stream_command(&self, node: u16, more: &[&str]) -> Command {
        self.command(&[&["stream"], more].concat(), node)
    }

    fn start(&self, component: &[&str], node: u16) -> Process {
        Process::start(&mut self.command(component, node))
    }

    fn command(&self, component: &[&str], node: u16) -> Command {
        let mut command = self.unnumbered_command(component, node);
        command.arg("--node").arg(node.to_string());
        command
    }

    /// A component on the buffer of `host` that is not told which node it is.
    pub(crate) fn unnumbered_command(&self, component: &[&str], host: u16) -> Command {
        let mut command = dogwild();
        let nodes = self.nodes.to_string();
        command.args(component).args(["--nodes", &nodes]);
        command.arg("--buffer").arg(self.buffer(host));
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Starts a solver on each node and waits for their ends.
    pub(crate) fn train(&self) {
        let solvers: Vec<Process> = (0..self.nodes).map(|node| self.solver(node)).collect();
        for mut solver in solvers {
            assert!(solver.wait().success());
        }
    }

    /// The weights of `node` as they are now, and the iterations that were told with them.
    pub(crate) fn snapshot(&self, node: u16) -> Vec<u8> {
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

    /// Adds 1.0 to every weight in the buffer of `node`.
    pub(crate) fn add_one(&self, node: u16) {
        self.add(node, 1.0);
    }

    /// Adds `by` to every weight in the buffer of `node`.
    pub(crate) fn add(&self, node: u16, by: f32) {
        kernels::atomic_add_scalar(self.open(node).view(), by);
    }

    /// The weights in the buffer of `node`.
    pub(crate) fn weights(&self, node: u16) -> Vec<f32> {
        let buffer = self.open(node);
        (0..buffer.used()).map(|i| buffer.view().load(i)).collect()
    }

    /// What `dogwild status` says of the buffer of `node`.
    pub(crate) fn status(&self, node: u16) -> String {
        let mut status = dogwild();
        succeeds(status.arg("status").arg("--buffer").arg(self.buffer(node)))
    }

    /// A counter of the first component in the buffer of `node`.
    pub(crate) fn meter(&self, node: u16, name: &str) -> u64 {
        let mut status = dogwild();
        status.args(["status", "--json", "--buffer"]);
        let said = succeeds(status.arg(self.buffer(node)));
        let status: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        let meters = status["components"][0]["meters"].as_array();
        let mut meters = meters.expect("meters").iter();
        let meter = meters.find(|meter| meter[0] == name);
        meter.expect("the meter")[1].as_u64().expect("a count")
    }

    /// A command whose messages go to the end of the log `name` of this job.
    pub(crate) fn logged(&self, mut command: Command, name: &str) -> Command {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.folder.path().join(name));
        command.stderr(log.expect("a log"));
        command
    }

    /// What is in the log `name`.
    pub(crate) fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(name)).unwrap_or_default()
    }

    /// A file with a key to seal frames with.
    pub(crate) fn key_file(&self) -> String {
        let path = self.folder.path().join("key");
        std::fs::write(&path, "5".repeat(64)).expect("a key file");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("a mode");
        path.display().to_string()
    }

    /// Of how many weights the streamer of `node` says that it is their master.
    pub(crate) fn mastered(&self, node: u16) -> usize {
        let runs = self.open(node).globals().own_ranges();
        runs.iter().map(ExactSizeIterator::len).sum()
    }

    pub(crate) fn open(&self, node: u16) -> SharedWeights {
        SharedWeights::open(&self.buffer(node), &Expect::default()).expect("a buffer")
    }

    /// The weights that are at home on node `of` (but for a chunk at either end) as they are in the
    /// buffer of node `at`, as bits.
    pub(crate) fn range(&self, of: u16, at: u16) -> Vec<u32> {
        const CHUNK: usize = 2048;
        let buffer = self.open(at);
        let start = |node: u16| buffer.used() * usize::from(node) / usize::from(self.nodes);
        (start(of) + CHUNK..start(of + 1) - CHUNK)
            .map(|i| buffer.view().load(i).to_bits())
            .collect()
    }

    /// In how many weights of each range the nodes differ from its master; `None`: in none.
    fn lacking(&self) -> Option<String> {
        let mut lacking = String::new();
        for of in 0..self.nodes {
            let master = self.range(of, of);
            for at in (0..self.nodes).filter(|at| *at != of) {
                let pairs = master.iter().zip(self.range(of, at));
                let count = pairs.filter(|(here, there)| **here != *there).count();
                if count > 0 {
                    lacking += &format!("node {at} lacks {count} weights of node {of}'s range; ");
                }
            }
        }
        (!lacking.is_empty()).then_some(lacking)
    }

    /// Waits until solvers may start on these nodes: what is added before is run over.
    pub(crate) fn wait_until_ready(&self, nodes: impl IntoIterator<Item = u16>) {
        for node in nodes {
            wait_for(&format!("node {node} to be ready"), || self.is_ready(node));
        }
    }

    pub(crate) fn is_ready(&self, node: u16) -> bool {
        self.status(node).contains("ready       yes")
    }

    /// Waits until all nodes hold the same weights, and returns a snapshot.
    pub(crate) fn wait_until_equal(&self, what: &str) -> Vec<u8> {
        wait_while(what, || self.lacking());
        let mut all = (0..self.nodes).map(|node| self.snapshot(node));
        let first = all.next().expect("a node");
        assert!(
            all.all(|one| one == first),
            "snapshots of equal weights differ"
        );
        first
    }
}

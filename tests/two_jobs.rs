//! Streamers that meet what does not belong to their job: a second process with their index, a node
//! with other data, forged numbers, weights that are not finite. Live processes on loopback.

#![cfg(feature = "program")]

mod support;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering::Relaxed;

use dogwild::cli::args::session;
use dogwild::node::job_group;
use dogwild::stream::chunk_weights_for;
use dogwild::watch::StreamMeter;
use dogwild::weights::{
    BufferSpec, Created, DataKind, Existing, Expect, METERS, Role, SharedWeights,
};
use dogwild::wire::{Dtype, Header, Hello, Kind, NodeSeen};
use dogwild_net::{To, udp};
use support::output::succeeds;
use support::process::Process;
use support::program::dogwild;
use support::shm::shm_folder;
use support::wait::wait_for_or;

/// `dogwild` with these words, on this buffer.
fn on_buffer(args: &[&str], buffer: &Path) -> Command {
    let mut command = dogwild();
    command.args(args).arg("--buffer").arg(buffer);
    command
}

/// A streamer with its buffer; what it says goes to a file.
struct Node {
    name: &'static str,
    weights: SharedWeights,
    log: PathBuf,
    streamer: Process,
}

/// Makes a buffer as a user does.
fn init(folder: &Path, name: &str, session: &str) -> SharedWeights {
    let buffer = folder.join(name);
    let args = ["init", "--session", session, "--data", "digits"];
    succeeds(&mut on_buffer(&args, &buffer));
    SharedWeights::open(&buffer, &Expect::default()).expect("a buffer")
}

impl Node {
    fn start(name: &'static str, weights: SharedWeights, node: u16) -> Self {
        let log = weights.path().with_extension("log");
        let mut command = on_buffer(&["stream", "--node", &node.to_string()], weights.path());
        command.env("RUST_LOG", "info").stdout(Stdio::null());
        command.stderr(File::create(&log).expect("a log"));
        let streamer = Process::start(&mut command);
        Self {
            name,
            weights,
            log,
            streamer,
        }
    }

    fn meter(&self, meter: StreamMeter) -> u64 {
        let slots = self.weights.slots();
        let slot = slots.iter().find(|slot| slot.role == Role::Stream);
        meter.of(&slot.map_or([0; METERS], |slot| slot.meters))
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn says(&self, text: &str) -> bool {
        self.said().contains(text)
    }

    fn ready(&self) -> bool {
        self.weights.globals().ready.load(Relaxed) != 0
    }

    fn lives(&mut self) {
        let ended = self.streamer.ended();
        assert!(
            ended.is_none(),
            "{} ended: {ended:?}\n{}",
            self.name,
            self.said()
        );
    }
}

/// Waits for a state of live nodes.
fn wait(nodes: &mut [Node], what: &str, mut done: impl FnMut(&[Node]) -> bool) {
    let logs: Vec<_> = nodes
        .iter()
        .map(|node| (node.name, node.log.clone()))
        .collect();
    let said = || {
        let said = |(name, log): &(_, PathBuf)| {
            format!(
                "{name}:\n{}",
                std::fs::read_to_string(log).unwrap_or_default()
            )
        };
        logs.iter().map(said).collect::<Vec<_>>().join("\n")
    };
    let holds = || {
        nodes.iter_mut().for_each(Node::lives);
        done(nodes)
    };
    wait_for_or(what, holds, said);
}

fn session_name(test: &str) -> String {
    format!("{test}-{}", std::process::id())
}

#[test]
fn two_processes_with_one_index_are_named_by_all_three() {
    let (folder, session) = (shm_folder(), session_name("twins"));
    let mut nodes = [("first", 0), ("other", 1), ("second", 0)].map(|(name, node)| {
        let weights = init(folder.path(), name, &session);
        Node::start(name, weights, node)
    });
    wait(
        &mut nodes,
        "both say that another process has their index",
        |nodes| {
            let text = "another process is node 0 of this session";
            nodes[0].says(text) && nodes[2].says(text)
        },
    );
    wait(&mut nodes, "the third says who is there twice", |nodes| {
        nodes[1].says("two processes are node 0 of this session")
    });
}

#[test]
fn a_node_with_other_data_is_named_on_both_sides_and_taken_from_by_neither() {
    let (folder, session) = (shm_folder(), session_name("data"));
    let digits = init(folder.path(), "digits", &session);
    let spec = BufferSpec {
        session: digits.session(),
        manifest: digits.manifest().clone(),
        data: DataKind::new("mnist", [1, 28, 28], 10),
    };
    let path = folder.path().join("mnist");
    let mnist = match SharedWeights::create(&path, &spec, Existing::Refuse).expect("a buffer") {
        Created::New(new) => new.ready(),
        Created::Resumed(_) => unreachable!("nothing was there"),
    };
    let mut nodes = [
        Node::start("digits", digits, 0),
        Node::start("mnist", mnist, 1),
    ];
    wait(&mut nodes, "both name the other", |nodes| {
        nodes[0].says("node 1 trains on other data") && nodes[1].says("node 0 trains on other data")
    });
    let kinds = ["digits 1x28x28/10", "mnist 1x28x28/10"];
    for (node, (own, other)) in nodes
        .iter()
        .zip([(kinds[0], kinds[1]), (kinds[1], kinds[0])])
    {
        let words = format!("other data: {other} there, {own} here");
        assert!(
            node.says(&words),
            "`{words}` is missing in:\n{}",
            node.said()
        );
        // The command that the message names.
        assert!(node.says("dogwild status --buffer"), "{}", node.said());
        let shown = succeeds(&mut on_buffer(&["status"], node.weights.path()));
        let line = format!("data        {own}\n");
        assert!(shown.contains(&line), "{shown}");
        assert_eq!(node.meter(StreamMeter::PositionsTaken), 0, "{}", node.name);
        assert!(!node.ready(), "{}", node.name);
    }
}

/// What a node on such weights would say.
fn hello_of(weights: &SharedWeights, chunk_weights: u32) -> Hello {
    Hello {
        fingerprint: weights.fingerprint(),
        data: weights.data(),
        first_weights: weights.first_weights(),
        incarnation: 0,
        chunk_weights,
        chunks: weights.used().div_ceil(chunk_weights as usize) as u32,
        nodes: 2,
        later: 14,
        stay: dogwild::wire::Stay::Stays,
        settled: false,
        masters: 2,
        trained_ms: 0,
        first: 0,
        seen: vec![NodeSeen::default(); 2],
    }
}

/// Two forged hellos ended a job with exit 0: the iterations they claimed were believed.
#[test]
fn forged_iterations_end_no_job() {
    let (folder, name) = (shm_folder(), session_name("claims"));
    let mut nodes = [("zero", 0), ("one", 1)].map(|(buffer, node)| {
        let weights = init(folder.path(), buffer, &name);
        // As of a job that goes on.
        weights
            .globals()
            .local_iterations
            .store(3_000 + u64::from(node), Relaxed);
        Node::start(buffer, weights, node)
    });
    let (group, _) = job_group(session(&name), None);
    let config = udp::UdpConfig {
        group,
        iface: Some("lo".into()),
        segmentation: false,
        ..udp::UdpConfig::default()
    };
    let mut attacker = udp::open(&config).expect("udp on lo");
    let weights = &nodes[0].weights;
    let chunk_weights = chunk_weights_for(attacker.tx.mtu(), 2, Dtype::F32).expect("a chunk");
    let hello = hello_of(weights, chunk_weights);
    wait(&mut nodes, "both are ready", |nodes| {
        nodes.iter().all(Node::ready)
    });
    let mut forge = || {
        for sender in [0, 1] {
            let header = Header {
                kind: Kind::Hello,
                flags: 2,
                dtype: Dtype::None,
                acks: 0,
                seq: 0,
                session: session(&name),
                epoch: 1,
                sender,
                range: u16::MAX,
                chunk: 0,
                chunk_version: 0,
                iterations: u64::MAX,
                payload_len: Hello::len(2) as u32,
                content: 0,
                part: 0,
                held: 0,
            };
            let fill = &mut |slot: &mut [u8]| hello.emit(header.emit(slot).1);
            attacker.tx.send(To::Group, header.frame_len(), fill);
        }
        attacker.tx.flush().expect("flush");
    };
    wait(
        &mut nodes,
        "both refuse what is claimed, and say so",
        |nodes| {
            forge();
            nodes.iter().all(|node| {
                node.meter(StreamMeter::RefusedClaims) >= 5
                    && node.says("claim 18446744073709551615 iterations")
            })
        },
    );
    for (node, other) in nodes.iter().zip([3_001, 3_000]) {
        let remote = node.weights.globals().remote_iterations.load(Relaxed);
        assert_eq!(remote, other, "{}", node.name);
    }
}

#[test]
fn nan_in_a_masters_own_range_heals() {
    let (folder, session) = (shm_folder(), session_name("nan"));
    let mut nodes = [("zero", 0), ("one", 1)].map(|(name, node)| {
        let weights = init(folder.path(), name, &session);
        Node::start(name, weights, node)
    });
    wait(&mut nodes, "both are ready", |nodes| {
        nodes.iter().all(Node::ready)
    });
    // The first weights are node 0's, the last are node 1's.
    let last = nodes[0].weights.used() - 1;
    let was = [5, last].map(|i| nodes[0].weights.view().load(i));
    nodes[0].weights.view().store(5, f32::NAN);
    nodes[1].weights.view().store(last, f32::NEG_INFINITY);
    wait(
        &mut nodes,
        "both have their last finite values again",
        |nodes| {
            nodes.iter().all(|node| {
                let w = node.weights.view();
                [5, last].map(|i| w.load(i)) == was
            })
        },
    );
    wait(&mut nodes, "both count and name it", |nodes| {
        nodes.iter().all(|node| {
            node.meter(StreamMeter::HealedWeights) >= 1 && node.says("were NaN or infinite")
        })
    });
}

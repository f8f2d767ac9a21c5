//! Two sealed streamers on a network where another host forges, replays, cuts and damages frames.
//!
//! `DOGWILD_HOSTILE_FRAMES` sets how many frames the two have to refuse in the storm.

#![cfg(feature = "program")]

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use dogwild::cli::args::session;
use dogwild::node::job_group;
use dogwild::watch::StreamMeter;
use dogwild::weights::{Expect, METERS, Role, SharedWeights};
use dogwild_net::{Link, To, seal, udp};
use rand::{Rng, RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use support::output::succeeds;
use support::process::Process;
use support::program::dogwild;
use support::shm::shm_folder;
use support::wait::wait_while;

/// Frames that the two refuse: in the storm, and in the test that is run all the time.
const STORM: u64 = 1_000_000;
const FRAMES: u64 = 100_000;
/// Genuine frames that the attacker has recorded.
const RECORDED: usize = 500;
const BATCH: usize = 256;
const KEY: [u8; seal::KEY_BYTES] = *b"a key that the attacker has not.";

/// `dogwild` with these words, on this buffer.
fn on_buffer(args: &[&str], buffer: &Path) -> Command {
    let mut command = dogwild();
    command.args(args).arg("--buffer").arg(buffer);
    command.stdout(Stdio::null()).env("RUST_LOG", "error");
    command
}

/// A sealed node with its buffer.
struct Node {
    buffer: PathBuf,
    weights: SharedWeights,
    streamer: Process,
}

impl Node {
    fn start(folder: &Path, node: u16, session: &str) -> Self {
        let buffer = folder.join(format!("n{node}"));
        succeeds(&mut on_buffer(&["init", "--session", session], &buffer));
        let weights = SharedWeights::open(&buffer, &Expect::default()).expect("a buffer");
        let key = folder.join("key");
        let key = key.to_str().expect("a path");
        let number = node.to_string();
        let args = ["stream", "--node", &number, "--key-file", key];
        let streamer = Process::start(&mut on_buffer(&args, &buffer));
        Self {
            buffer,
            weights,
            streamer,
        }
    }

    fn bits(&self) -> Vec<u32> {
        let view = self.weights.view();
        (0..self.weights.used())
            .map(|at| view.load(at).to_bits())
            .collect()
    }

    fn meters(&self) -> [u64; METERS] {
        let slots = self.weights.slots();
        let slot = slots.iter().find(|slot| slot.role == Role::Stream);
        slot.map_or([0; METERS], |slot| slot.meters)
    }

    /// Frames refused by their seal.
    fn refused(&self) -> u64 {
        let meters = self.meters();
        [
            StreamMeter::SealBadTag,
            StreamMeter::SealReplayed,
            StreamMeter::SealTruncated,
            StreamMeter::SealTooManyLinks,
        ]
        .map(|meter| meter.of(&meters))
        .iter()
        .sum()
    }
}

/// One frame of an attacker who has seen `recorded` and has no key.
fn hostile(rng: &mut impl Rng, recorded: &[Vec<u8>], mtu: usize) -> Vec<u8> {
    let mut frame = recorded[rng.random_range(0..recorded.len())].clone();
    match rng.random_range(0..5) {
        0 => {
            frame.resize(rng.random_range(1..=mtu), 0);
            rng.fill_bytes(&mut frame);
        }
        1 => {}
        2 => frame.truncate(rng.random_range(1..frame.len())),
        3 => {
            let bit = rng.random_range(0..frame.len() * 8);
            frame[bit / 8] ^= 1 << (bit % 8);
        }
        // As from a node that knows no seals.
        _ => frame.truncate(frame.len() - seal::OVERHEAD_BYTES),
    }
    frame
}

fn record(attacker: &mut Link) -> Vec<Vec<u8>> {
    let mut recorded = Vec::new();
    while recorded.len() < RECORDED {
        attacker.rx.wait(Duration::from_millis(100)).expect("wait");
        let each = &mut |_, frame: &[u8]| recorded.push(frame.to_vec());
        attacker.rx.recv(BATCH, each).expect("receive");
    }
    recorded
}

#[test]
fn hostile_frames_change_no_weight() {
    refuses(FRAMES);
}

#[test]
#[ignore = "long: a storm of frames"]
fn a_storm_of_hostile_frames_changes_no_weight() {
    let wanted = std::env::var("DOGWILD_HOSTILE_FRAMES");
    refuses(wanted.map_or(STORM, |text| text.parse().expect("a number of frames")));
}

/// Sends hostile frames until two nodes have refused half of `wanted` each.
fn refuses(wanted: u64) {
    let folder = shm_folder();
    let key = folder.path().join("key");
    std::fs::write(&key, KEY).expect("write the key");
    let owner_only = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o600);
    std::fs::set_permissions(&key, owner_only).expect("chmod");
    let name = format!("hostile-{wanted}-{}", std::process::id());
    let mut nodes = [0, 1].map(|node| Node::start(folder.path(), node, &name));
    let before = nodes[0].bits();
    let (group, _) = job_group(session(&name), None);
    let config = udp::UdpConfig {
        group,
        iface: Some("lo".into()),
        segmentation: false,
        ..udp::UdpConfig::default()
    };
    let mut attacker = udp::open(&config).expect("udp on lo");
    let recorded = record(&mut attacker);
    let seed = 7;
    println!("seed {seed}, {wanted} frames");
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mtu = attacker.tx.mtu();
    while nodes.iter().map(Node::refused).min() < Some(wanted / 2) {
        for _ in 0..BATCH {
            let frame = hostile(&mut rng, &recorded, mtu);
            let fill = &mut |slot: &mut [u8]| slot.copy_from_slice(&frame);
            attacker.tx.send(To::Group, frame.len(), fill);
        }
        attacker.tx.flush().expect("flush");
        for node in &mut nodes {
            let ended = node.streamer.ended();
            assert!(ended.is_none(), "{}: {ended:?}", node.buffer.display());
        }
    }
    // Genuine ones still come through, and nothing has changed.
    let taken = |node: &Node| StreamMeter::PositionsTaken.of(&node.meters());
    let then = nodes.each_ref().map(taken);
    wait_while("new positions on both nodes", || {
        let mut pairs = nodes.iter().zip(then);
        let (node, _) = pairs.find(|(node, then)| taken(node) <= *then)?;
        Some(format!("{} has taken none", node.buffer.display()))
    });
    for node in &nodes {
        let meters = node.meters();
        for meter in [
            StreamMeter::SealBadTag,
            StreamMeter::SealReplayed,
            StreamMeter::SealTruncated,
        ] {
            assert!(meter.of(&meters) > 0, "{meter:?}");
        }
        assert!(
            node.bits() == before,
            "{}: weights changed",
            node.buffer.display()
        );
        // What was taken is remembered for the node's next start.
        let memory = node.buffer.with_file_name(format!(
            "{}.seal",
            node.buffer.file_name().expect("a name").display()
        ));
        assert!(memory.is_file(), "{}", memory.display());
        println!("{}: {} refused", node.buffer.display(), node.refused());
    }
}

//! Any sequence of frames for the streamers of a small job: the state machine never panics, and
//! takes in no weight that is not finite.
//!
//! The first byte chooses a job; then 16 bytes are one step ([`STEP`]). Most steps take a frame
//! that a streamer sent, change some of its fields, and give it to a streamer: so frames of every
//! kind get past the outer checks, those of hosts without a key. The memory of a job is made once
//! and cleared for each input: making it takes longer than a thousand frames.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use dogwild::sim::{Faults, Fleet, World};
use dogwild::stream::{Config, Deltas, Merge, SILENCE_NS};
use dogwild::weights::Writes;
use dogwild::wire::{Dtype, Frame, Header, Kind, MAGIC, NO_NODE, Seek, VERSION};

/// Bytes of a step.
pub const STEP: usize = 16;
/// Frames that a host without a key gave to streamers so far.
pub static FRAMES: AtomicU64 = AtomicU64::new(0);
/// Frames of each kind that a streamer took as genuine ones.
pub static TAKEN: [AtomicU64; 10] = [const { AtomicU64::new(0) }; 10];

const DTYPES: [Dtype; 5] = [
    Dtype::None,
    Dtype::F32,
    Dtype::Bf16,
    Dtype::Int8,
    Dtype::Int2,
];
/// Frames that are kept to be changed.
const KEPT: usize = 64;
const PLACES: u16 = 3;
const SESSION: u64 = 7;

/// A job: its memory, and what that is at first.
struct Job {
    fleet: Fleet,
    /// Of each node: its state file and the bytes of a new one.
    files: Vec<(File, Vec<u8>)>,
    _folder: tempfile::TempDir,
}

thread_local! {
    static JOBS: RefCell<[Option<Job>; 8]> = const { RefCell::new([const { None }; 8]) };
}

fn config(choice: usize) -> Config {
    let deltas = [Deltas::ExactlyOnce, Deltas::FireAndForget][usize::from(choice == 7)];
    Config {
        session: SESSION,
        fingerprint: 0,
        data: 1,
        first_weights: 2,
        incarnation: 3,
        node: 0,
        nodes: 2,
        later: PLACES - 2,
        min_nodes: Some(1),
        masters: 2,
        chunk_weights: 16,
        chunks: 4,
        deltas,
        merge: [Merge::Mean, Merge::Sum][choice % 2],
        precision: [Dtype::F32, Dtype::Bf16, Dtype::Int8, Dtype::F32][choice / 2],
        sparse: choice == 6,
        writes: Writes::Racy,
        window_frames: 0,
        silence_ns: SILENCE_NS,
    }
}

impl Job {
    fn new(choice: usize) -> Self {
        let folder = tempfile::tempdir_in("/dev/shm").expect("a folder");
        let fleet = Fleet::new(&config(choice), folder.path()).expect("a fleet");
        let file = |node: u16| {
            let path = folder.path().join(format!("n{node}.stream"));
            let bytes = std::fs::read(&path).expect("a state file");
            let file = OpenOptions::new().write(true).open(&path);
            (file.expect("a state file"), bytes)
        };
        Self {
            files: (0..PLACES).map(file).collect(),
            fleet,
            _folder: folder,
        }
    }

    /// As if it had just been made.
    fn clear(&self) {
        for (node, (file, bytes)) in (0..PLACES).zip(&self.files) {
            file.write_all_at(bytes, 0).expect("a file in memory");
            let w = self.fleet.weights(node);
            (0..w.len()).for_each(|i| w.store(i, 0.0));
            let forks = self.fleet.state(node).forks();
            for record in forks.records() {
                forks.remove(&record.key);
            }
        }
    }
}

/// Goes through all steps.
pub fn run(bytes: &[u8]) {
    let Some((choice, steps)) = bytes.split_first() else {
        return;
    };
    let choice = usize::from(choice % 8);
    JOBS.with_borrow_mut(|jobs| {
        let job = jobs[choice].get_or_insert_with(|| Job::new(choice));
        job.clear();
        go(&job.fleet, steps.as_chunks::<STEP>().0);
    });
}

fn go(fleet: &Fleet, steps: &[[u8; STEP]]) {
    let mut world = World::new(fleet, Faults::default(), 1).listen();
    for _ in 0..20 {
        world.step();
    }
    let mut kept = world.overhear();
    for step in steps {
        let node = u16::from(step[1]) % PLACES;
        match step[0] % 16 {
            0 => (0..1 + step[2] % 8).for_each(|_| world.step()),
            1 => match step[2] % 8 {
                0 | 1 => world.kill(node),
                2 | 3 => world.restart(node),
                4 if world.streamer(node).is_some() => world.leave(node),
                5 => world.pause(node),
                6 => world.go_on(node),
                // Time passes, until others are silent.
                _ => (0..8).for_each(|_| world.step_by(SILENCE_NS / 6)),
            },
            2 => {
                let w = fleet.weights(node);
                let i = usize::from(step[2]) % w.len();
                w.racy_add(i, f32::from(step[3]) - 128.0);
            }
            // As it was.
            3 => give(&mut world, node, pick(&kept, step[2])),
            // Some bytes of it are others.
            4 => {
                let mut frame = pick(&kept, step[2]).to_vec();
                for pair in step[4..].chunks(2) {
                    let at = usize::from(pair[0]);
                    if let Some(byte) = frame.get_mut(at) {
                        *byte ^= pair[1];
                    }
                }
                give(&mut world, node, &frame);
            }
            // Cut, or longer than it says.
            5 => {
                let mut frame = pick(&kept, step[2]).to_vec();
                frame.resize(usize::from(step[3]), step[4]);
                give(&mut world, node, &frame);
            }
            _ => {
                if let Some(frame) = forge(pick(&kept, step[2]), step) {
                    give(&mut world, node, &frame);
                }
            }
        }
        kept.extend(world.overhear());
        let more = kept.len().saturating_sub(KEPT);
        kept.drain(..more);
    }
    for node in 0..PLACES {
        let w = fleet.weights(node);
        assert!((0..w.len()).all(|i| w.load(i).is_finite()), "node {node}");
    }
}

fn pick(kept: &[Vec<u8>], which: u8) -> &[u8] {
    kept.get(usize::from(which) % kept.len().max(1))
        .map_or(&[], Vec::as_slice)
}

fn give(world: &mut World<'_>, node: u16, frame: &[u8]) {
    FRAMES.fetch_add(1, Relaxed);
    if let Ok(frame) = Frame::parse(frame) {
        TAKEN[frame.header.kind as usize].fetch_add(1, Relaxed);
    }
    world.inject(node, frame);
}

/// A frame with the fields of `base`, but for those that `step` names.
fn forge(base: &[u8], step: &[u8; STEP]) -> Option<Vec<u8>> {
    let base = Frame::parse(base).ok()?;
    let mut header = base.header;
    let other = |bit: u8| step[3 + usize::from(bit / 8)] & 1 << (bit % 8) != 0;
    let signed = |at: usize| i32::from(step[at] as i8) as u32;
    if other(0) {
        header.kind = Kind::ALL[usize::from(step[5]) % Kind::ALL.len()];
    }
    if other(1) {
        header.sender = u16::from(step[6] % 4);
    }
    if other(2) {
        header.range = u16::from(step[6] / 4 % 4);
    }
    if other(3) {
        header.chunk = u32::from(step[7] % 5);
    }
    if other(4) {
        let owner = u32::from(step[8] % 4);
        header.epoch = (header.epoch & !255).wrapping_add(signed(9) << 8) | owner;
    }
    if other(5) {
        header.seq = header.seq.wrapping_add(step[10]);
    }
    if other(6) {
        header.chunk_version = header.chunk_version.wrapping_add(signed(11));
    }
    if other(7) {
        header.dtype = DTYPES[usize::from(step[12]) % DTYPES.len()];
    }
    if other(8) {
        header.part = step[12] / 4 % 8;
    }
    if other(9) {
        header.content = u16::from(step[13]);
    }
    if other(10) {
        header.iterations = u64::from(step[13]) << (step[14] % 64);
    }
    if other(11) {
        header.acks = step[14] % 4;
    }
    if header.kind != base.header.kind && !other(12) {
        fit_kind(&mut header, step[15] % 5);
    } else if other(13) {
        header.payload_len = u32::from(step[15]);
    }
    let mut frame = vec![0; header.frame_len()];
    let (acks, payload) = header.emit(&mut frame);
    acks.iter_mut()
        .zip(base.acks)
        .for_each(|(to, from)| *to = *from);
    payload
        .iter_mut()
        .zip(base.payload)
        .for_each(|(to, from)| *to = *from);
    if other(14) {
        let fill = |(at, byte): (usize, &mut u8)| *byte = step[5 + at % 11];
        payload.iter_mut().enumerate().for_each(fill);
    }
    if other(15)
        && let Some(ack) = acks.first_mut()
    {
        *ack = ack.wrapping_add(step[10]);
    }
    debug_assert!(frame[..2] == MAGIC.to_le_bytes() && frame[2] == VERSION);
    Some(frame)
}

/// Sets what goes with the kind of a frame; asks, offers and contacts have `items`.
fn fit_kind(header: &mut Header, items: u8) {
    let numbers = header.kind == Kind::Restore && items == 0;
    let weights = header.kind.has_weights() && !numbers;
    header.dtype = if weights { Dtype::F32 } else { Dtype::None };
    let acks = matches!(header.kind, Kind::Position | Kind::Check | Kind::Restore);
    header.acks = if acks { PLACES as u8 } else { 0 };
    header.payload_len = match header.kind {
        Kind::Ask => 4 * u32::from(items),
        Kind::Offer => 8 * u32::from(items),
        Kind::Contacts => 20 * u32::from(items),
        Kind::Seek => {
            header.sender = NO_NODE;
            Seek::LEN as u32
        }
        Kind::Hello => header.payload_len,
        Kind::Restore if numbers => 0,
        _ => 64,
    };
}

//! A streamer killed with SIGKILL two hundred times: nothing lost, nothing doubled.
//!
//! The parent starts this test's own executable as a child. The child plays master, slave and two
//! solvers on shared files, one after the other in one thread, over a lossy wire. The parent kills
//! it at a random moment, recovers as a restarted streamer would, and adds up every weight.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering::*};
use std::time::Duration;

use rand::{Rng, RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::child;
use crate::weights::kernels::{
    apply_delta, copy_out_bytes, take_confirmed, take_keep, take_unconfirmed,
};
use crate::weights::*;

const CHUNK: usize = 5 * BLOCK;
const CHUNKS: u32 = 2;
const N: usize = CHUNK * CHUNKS as usize;
const SESSION: u64 = 7;
const CHILD: &str = "DOGWILD_TEST_KILL_CHILD";

/// One side: its buffer, its streamer's state, and how much was added to each of its weights
/// (a second buffer), with a note of the addition in progress (its third tensor).
struct Side {
    weights: SharedWeights,
    added: SharedWeights,
    state: StreamState,
}

impl Side {
    fn open(dir: &Path, node: u16) -> Self {
        let buffer = |name: &str, tensors: Vec<(String, Vec<usize>)>| {
            let spec = BufferSpec {
                session: SESSION,
                manifest: Manifest::new(tensors).unwrap(),
                data: Default::default(),
            };
            let path = dir.join(format!("{name}{node}"));
            match SharedWeights::create(&path, &spec, Existing::Resume).unwrap() {
                Created::New(new) => new.ready(),
                Created::Resumed(old) => old,
            }
        };
        let weights = buffer("w", vec![("w".into(), vec![N])]);
        let added = buffer(
            "added",
            vec![("added".into(), vec![N]), ("note".into(), vec![16])],
        );
        let spec = StreamStateSpec {
            session: SESSION,
            fingerprint: weights.fingerprint(),
            identity: weights.identity(),
            node,
            nodes: 2,
            places: 2,
            masters: 2,
            chunk_weights: CHUNK as u32,
            chunks: CHUNKS,
            padded: weights.padded(),
        };
        let path = StreamState::path_beside(weights.path());
        let state = StreamState::open_or_create(&path, &spec).unwrap().0;
        Self {
            weights,
            added,
            state,
        }
    }

    fn chunk(&self, c: u32) -> [WeightsView<'_>; 3] {
        let all = [self.weights.view(), self.state.last(), self.state.sent()];
        all.map(|v| v.slice(c as usize * CHUNK, CHUNK))
    }

    /// The solver: adds 1 to weight `i`, in such a way that a kill can be made good.
    fn add_one(&self, i: usize) {
        let (w, count) = (self.weights.view(), self.added.view());
        self.note(0).store(0, Release);
        self.note(1).store(w.load(i).to_bits(), Release);
        self.note(2).store(count.load(i).to_bits(), Release);
        self.note(0).store(i as u32 + 1, Release);
        w.word(i).store((w.load(i) + 1.0).to_bits(), Release);
        count
            .word(i)
            .store((count.load(i) + 1.0).to_bits(), Release);
        self.note(0).store(0, Release);
    }

    fn finish_adding(&self) {
        let i = self.note(0).load(Acquire) as usize;
        if i > 0 {
            for (view, note) in [(self.weights.view(), 1), (self.added.view(), 2)] {
                view.store(i - 1, f32::from_bits(self.note(note).load(Relaxed)) + 1.0);
            }
            self.note(0).store(0, Release);
        }
    }

    fn note(&self, k: usize) -> &AtomicU32 {
        self.added
            .view()
            .word(self.added.manifest().find("note").unwrap().offset + k)
    }

    /// What a streamer does before anything else.
    fn recover(&self) -> bool {
        let journal = self.state.journal();
        let Some(pending) = journal.pending() else {
            return false;
        };
        let [w, last, sent] = self.chunk(pending.chunk);
        let found = journal.recover(w, last, sent).unwrap();
        let (chunk, peer) = (self.state.chunk(found.chunk), found.peer);
        match found.kind {
            JournalOp::Confirmed | JournalOp::Rounded => chunk.seq.store(found.seq, Release),
            JournalOp::Unconfirmed | JournalOp::Keep | JournalOp::PutBack => {}
            JournalOp::Apply | JournalOp::TakeOut => {
                let applied = &self.state.applied(found.chunk)[usize::from(peer)];
                if applied.load(Relaxed) == found.seq || found.progress as usize == CHUNK {
                    applied.store(found.seq, Release);
                    self.state.forget_partial(found.chunk, peer);
                } else {
                    assert!(self.state.remember_partial(&found));
                }
            }
        }
        journal.end();
        true
    }
}

/// One position from master to slave and the delta back, either of which may be lost.
fn exchange(master: &Side, slave: &Side, c: u32, lossy: bool, writes: Writes, rng: &mut impl Rng) {
    let mut chance = |p: f64| lossy && rng.random_bool(p);
    let mut pos = vec![0; CHUNK * 4 + 1];
    let pos = &mut pos[1..];
    copy_out_bytes(master.chunk(c)[0], pos);
    let ack = master.state.applied(c)[1].load(Relaxed);
    if chance(0.2) {
        return;
    }
    let [w, last, sent] = slave.chunk(c);
    let (journal, seq) = (slave.state.journal(), &slave.state.chunk(c).seq);
    let mut delta = vec![0; CHUNK * 4];
    let now = seq.load(Relaxed);
    if ack != now {
        journal.begin(JournalOp::Unconfirmed, c, 0, now, 0);
        take_unconfirmed(w, last, sent, pos, Some(&mut delta), 1.0, journal, writes);
    } else if chance(0.2) {
        journal.begin(JournalOp::Keep, c, 0, now, 0);
        take_keep(w, last, pos, journal, writes);
        journal.end();
        return;
    } else {
        journal.begin(JournalOp::Confirmed, c, 0, now.wrapping_add(1), 0);
        take_confirmed(w, last, sent, pos, &mut delta, 1.0, journal, writes);
        seq.store(now.wrapping_add(1), Release);
    }
    journal.end();
    let seq = seq.load(Relaxed);
    for _ in 0..if chance(0.2) {
        0
    } else {
        1 + usize::from(chance(0.1))
    } {
        let applied = &master.state.applied(c)[1];
        if applied.load(Relaxed) == seq {
            continue;
        }
        let (journal, first) = (master.state.journal(), master.state.partial(c, 1, seq));
        journal.begin_at(JournalOp::Apply, c, 1, seq, 0, first);
        apply_delta(master.chunk(c)[0], &delta, first, journal, writes);
        applied.store(seq, Release);
        master.state.forget_partial(c, 1);
        journal.end();
    }
}

/// The child: works until it is killed. Does nothing when run as a test of its own.
#[test]
fn child() {
    let Some(arguments) = std::env::var_os(CHILD) else {
        return;
    };
    let arguments = arguments.into_string().unwrap();
    let (seed, dir) = arguments.split_once(' ').unwrap();
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed.parse().unwrap());
    let [master, slave] = [0, 1].map(|n| Side::open(Path::new(dir), n));
    let writes = if rng.random_bool(0.5) {
        Writes::Racy
    } else {
        Writes::Atomic
    };
    println!("working");
    loop {
        for side in [&master, &slave] {
            side.add_one(rng.random_range(0..N));
        }
        let c = rng.random_range(0..CHUNKS);
        exchange(&master, &slave, c, true, writes, &mut rng);
    }
}

/// Starts the child, lets it work for a moment, kills it.
fn run_and_kill(dir: &Path, seed: u64, rng: &mut impl Rng) {
    use std::io::Read;
    let mut child = child::command(concat!(module_path!(), "::child"))
        .env(CHILD, format!("{seed} {}", dir.display()))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut said, mut byte) = (Vec::new(), [0]);
    let out = child.stdout.as_mut().unwrap();
    while !said.ends_with(b"working\n") {
        assert_eq!(
            out.read(&mut byte).unwrap(),
            1,
            "the child died: {}",
            String::from_utf8_lossy(&said)
        );
        said.push(byte[0]);
    }
    std::thread::sleep(Duration::from_micros(rng.random_range(0..2000)));
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
}

#[test]
fn two_hundred_kills_lose_and_double_nothing() {
    let dir = tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap();
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(3);
    let (mut interrupted, mut partial) = (0, 0);
    for kill in 0..200 {
        run_and_kill(dir.path(), kill, &mut rng);
        let [master, slave] = [0, 1].map(|n| Side::open(dir.path(), n));
        for side in [&master, &slave] {
            interrupted += u32::from(side.recover());
            side.finish_adding();
        }
        partial += check(&master, &slave, kill);
    }
    println!("killed 200 times, {interrupted} within a chunk, {partial} deltas half applied");
    assert!(interrupted > 0);
    let [master, slave] = [0, 1].map(|n| Side::open(dir.path(), n));
    for c in [0, 1, 0, 1, 0, 1] {
        exchange(&master, &slave, c, false, Writes::Racy, &mut rng);
    }
    for i in 0..N {
        let total = master.added.view().load(i) + slave.added.view().load(i);
        assert_eq!(
            [&master, &slave].map(|s| s.weights.view().load(i)),
            [total; 2],
            "weight {i}"
        );
    }
}

/// Adds up every weight: what the master has, what is on its way, what the slave has not
/// sent. Returns the number of half-applied deltas.
fn check(master: &Side, slave: &Side, kill: u64) -> u32 {
    let mut half = 0;
    for i in 0..N {
        let c = (i / CHUNK) as u32;
        let seq = slave.state.chunk(c).seq.load(Relaxed);
        let partial = master.state.partial(c, 1, seq);
        half += u32::from(partial > 0 && i % CHUNK == 0);
        let applied =
            master.state.applied(c)[1].load(Relaxed) == seq || (i % CHUNK) < partial as usize;
        let way = if applied {
            0.0
        } else {
            slave.state.sent().load(i)
        };
        let local = slave.weights.view().load(i) - slave.state.last().load(i);
        let found = master.weights.view().load(i) + way + local;
        let added = master.added.view().load(i) + slave.added.view().load(i);
        assert_eq!(
            found, added,
            "kill {kill}, weight {i}: on its way {way}, local {local}"
        );
    }
    half
}

//! Damaged files next to a buffer: reading them never panics, and refuses or gives what was there.
//!
//! The first byte chooses a kind of file. Then three bytes are one change of a genuine one: where,
//! from its start or its end, and what. Headers have checksums, so most changes there are refused.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU32;

use dogwild::snapshot;
use dogwild::weights::{
    BufferId, ForkFile, ForkKey, ForkKind, ForkRecord, Manifest, SolverState, StreamState,
    StreamStateSpec, WeightsView,
};

const ID: BufferId = BufferId {
    session: 1,
    fingerprint: 2,
    identity: 3,
};
const SPEC: StreamStateSpec = StreamStateSpec {
    session: ID.session,
    fingerprint: ID.fingerprint,
    identity: ID.identity,
    node: 0,
    nodes: 2,
    places: 3,
    masters: 2,
    chunk_weights: 16,
    chunks: 4,
    padded: 64,
};
/// With what is between the two tensors.
const WEIGHTS: usize = 22;

/// Genuine files.
struct Files {
    state: Vec<u8>,
    forks: Vec<u8>,
    solver: Vec<u8>,
    snapshot: Vec<u8>,
    records: Vec<ForkRecord>,
    folder: tempfile::TempDir,
}

thread_local! {
    static FILES: RefCell<Option<Files>> = const { RefCell::new(None) };
}

fn manifest() -> Manifest {
    Manifest::new(vec![
        ("a".to_owned(), vec![3, 5]),
        ("b".to_owned(), vec![6]),
    ])
    .expect("a manifest")
}

fn weights(len: usize, at: impl Fn(usize) -> f32) -> Vec<AtomicU32> {
    (0..len).map(|i| AtomicU32::new(at(i).to_bits())).collect()
}

impl Files {
    fn new() -> Self {
        let folder = tempfile::tempdir_in("/dev/shm").expect("a folder");
        let path = |name: &str| folder.path().join(name);
        let (state, _) = StreamState::open_or_create(&path("a.stream"), &SPEC).expect("a state");
        for (number, kind) in [ForkKind::Base, ForkKind::Contested, ForkKind::Owed]
            .into_iter()
            .enumerate()
        {
            let record = ForkRecord {
                key: ForkKey {
                    kind,
                    chunk: number as u32,
                    node: 1,
                    epoch: 257,
                },
                position: (257, 9),
                seq: 4,
                life: 77,
                acks: vec![1, 2, 3],
                weights: (0..16).map(|i| i as f32).collect(),
            };
            state.forks().put(&record).expect("room");
        }
        let records = state.forks().records();
        drop(state);
        drop(SolverState::open_or_create(&path("a.solver0"), ID, WEIGHTS).expect("a state"));
        let w = weights(WEIGHTS, |i| i as f32 / 8.0);
        let view = WeightsView::of(&w);
        let notes = HashMap::from([("step".to_owned(), "9".to_owned())]);
        snapshot::save(&path("a.safetensors"), &manifest(), view, notes).expect("a snapshot");
        let read = |name: &str| std::fs::read(path(name)).expect("a file");
        Self {
            state: read("a.stream"),
            forks: read("a.forks"),
            solver: read("a.solver0"),
            snapshot: read("a.safetensors"),
            records,
            folder,
        }
    }

    fn put(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, bytes).expect("room");
        path
    }
}

/// Reads one damaged file.
pub fn run(bytes: &[u8]) {
    let Some((choice, changes)) = bytes.split_first() else {
        return;
    };
    FILES.with_borrow_mut(|files| {
        let files = files.get_or_insert_with(Files::new);
        match choice % 4 {
            0 => read_state(&files.put("b.stream", &changed(&files.state, changes, 8192))),
            1 => {
                let _ = files.put("c.stream", &files.state);
                let _ = files.put("c.forks", &changed(&files.forks, changes, 1024));
                read_forks(&files.folder.path().join("c.stream"), &files.records);
            }
            2 => {
                let path = files.put("d.solver0", &changed(&files.solver, changes, 1024));
                if let Ok((state, _)) = SolverState::open_or_create(&path, ID, WEIGHTS) {
                    let _ = (state.progress().loss(), state.progress().caution_words());
                }
            }
            _ => {
                let damaged = changed(&files.snapshot, changes, 1024);
                let path = files.put("e.safetensors", &damaged);
                read_snapshot(&path, damaged == files.snapshot, says_whose(&damaged));
            }
        }
    });
}

/// The file with the changes; a change of what lies behind its end makes it longer or shorter.
fn changed(file: &[u8], changes: &[u8], span: usize) -> Vec<u8> {
    let mut file = file.to_vec();
    for change in changes.as_chunks::<3>().0 {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % span;
        match file.get_mut(at) {
            Some(byte) => *byte ^= change[2],
            None => file.truncate(file.len().saturating_sub(usize::from(change[2]))),
        }
    }
    file
}

fn read_state(path: &Path) {
    if let Ok((state, resumed)) = StreamState::open_or_create(path, &SPEC) {
        assert!(resumed, "a file that is there is not made anew");
        for chunk in 0..SPEC.chunks {
            let _ = (state.chunk(chunk), state.applied(chunk));
            let _ = state.partial(chunk, 1, 0);
        }
    }
    let _ = StreamState::look(path, ID, SPEC.padded);
}

/// Only records that were written are found.
fn read_forks(state: &Path, written: &[ForkRecord]) {
    let Ok((state, _)) = StreamState::open_or_create(state, &SPEC) else {
        return;
    };
    let forks: &ForkFile = state.forks();
    let found = forks.records();
    for record in &found {
        assert!(written.contains(record), "{record:?} was never written");
        forks.remove(&record.key);
    }
    assert!(forks.records().is_empty());
}

/// Whether a snapshot still has one of the notes by which it is known as ours. Without them it is
/// a file of another program, which needs no checksum.
fn says_whose(snapshot: &[u8]) -> bool {
    [&b"\"writer\":\"dogwild\""[..], b"\"checksum\":"]
        .iter()
        .any(|note| snapshot.windows(note.len()).any(|window| window == *note))
}

fn read_snapshot(path: &Path, whole: bool, ours: bool) {
    let w = weights(WEIGHTS, |_| 0.5);
    let view = WeightsView::of(&w);
    let loaded = snapshot::load(path, &manifest(), view).is_ok();
    assert!(loaded || !whole, "a snapshot that is whole is refused");
    let tensors = manifest();
    let all = tensors.tensors().iter();
    for i in all.flat_map(|tensor| tensor.offset..tensor.offset + tensor.len()) {
        let expected = if loaded { i as f32 / 8.0 } else { 0.5 };
        assert!(
            view.load(i) == expected || loaded && !ours,
            "weight {i} of {loaded}"
        );
    }
}

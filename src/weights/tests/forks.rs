//! The file of forks: what a kill leaves in it, and what counts as no record.

use std::fs;
use std::path::PathBuf;

use crate::weights::*;

const ID: u64 = 7;

fn spec(identity: u64) -> StreamStateSpec {
    StreamStateSpec {
        session: 5,
        fingerprint: 6,
        identity,
        node: 1,
        nodes: 3,
        places: 3,
        masters: 3,
        chunk_weights: 32,
        chunks: 10,
        padded: 20480,
    }
}

/// A folder, and the paths of a state and its forks.
fn at() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = StreamState::path_beside(&dir.path().join("job-n1"));
    let forks = dir.path().join("job-n1.forks");
    (dir, path, forks)
}

fn open(path: &std::path::Path) -> StreamState {
    StreamState::open_or_create(path, &spec(ID)).unwrap().0
}

fn record(kind: ForkKind, chunk: u32, node: u16, value: f32) -> ForkRecord {
    let owed = kind == ForkKind::Owed;
    ForkRecord {
        key: ForkKey {
            kind,
            chunk,
            node,
            epoch: 0x203,
        },
        position: (0x102, 88),
        seq: 255,
        life: u64::MAX,
        acks: if owed { vec![] } else { vec![1, 2, 3] },
        weights: if owed { vec![] } else { vec![value; 32] },
    }
}

#[test]
fn what_was_kept_is_found_by_the_next_streamer_until_it_is_removed() {
    let (_dir, path, file) = at();
    let state = open(&path);
    assert!(!file.exists(), "made when it is needed");
    let [base, contested, owed] = [
        record(ForkKind::Base, 3, 0, 1.0),
        record(ForkKind::Contested, 3, 2, 2.0),
        record(ForkKind::Owed, 4, 2, 0.0),
    ];
    for one in [&base, &contested, &owed] {
        state.forks().put(one).unwrap();
    }
    // In place of the first, and later than the others.
    let again = record(ForkKind::Base, 3, 0, 5.0);
    state.forks().put(&again).unwrap();
    state.forks().remove(&contested.key);
    drop(state);
    let state = open(&path);
    assert_eq!(state.forks().records(), [owed.clone(), again.clone()]);
    let len = fs::metadata(&file).unwrap().len();
    for _ in 0..20 {
        state.forks().put(&again).unwrap();
    }
    assert_eq!(
        fs::metadata(&file).unwrap().len(),
        len,
        "slots are used again"
    );
    state.forks().remove(&owed.key);
    state.forks().remove(&again.key);
    assert_eq!(fs::metadata(&file).unwrap().len(), 0);
    state.forks().put(&owed).unwrap();
    assert_eq!(state.forks().records(), [owed]);
}

#[test]
fn a_record_that_is_not_whole_is_none() {
    let (_dir, path, file) = at();
    let state = open(&path);
    let [first, second] = [1, 2].map(|chunk| record(ForkKind::Base, chunk, 0, 1.0));
    state.forks().put(&first).unwrap();
    state.forks().put(&second).unwrap();
    drop(state);
    let whole = fs::read(&file).unwrap();
    for at in 0..whole.len() / 2 {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        fs::write(&file, &bytes).unwrap();
        let found = open(&path).forks().records();
        // Behind the acks is room for those of more nodes, which no record has.
        let there = found == [first.clone(), second.clone()];
        assert!(there || found == [second.clone()], "byte {at}: {found:?}");
        assert!(!there || at >= 64 + 3 + 32 * 4, "byte {at} is not checked");
    }
    // The end of the file is missing.
    fs::write(&file, &whole[..whole.len() - 1]).unwrap();
    assert_eq!(open(&path).forks().records(), [first]);
}

#[test]
fn records_of_another_buffer_and_of_a_former_memory_are_none() {
    let (_dir, path, file) = at();
    let one = record(ForkKind::Base, 1, 0, 1.0);
    open(&path).forks().put(&one).unwrap();
    fs::remove_file(&path).unwrap();
    // The state is new, and so has no forks.
    assert_eq!(open(&path).forks().records(), []);
    open(&path).forks().put(&one).unwrap();
    let bytes = fs::read(&file).unwrap();
    fs::remove_file(&path).unwrap();
    let (state, _) = StreamState::open_or_create(&path, &spec(ID + 1)).unwrap();
    drop(state);
    fs::write(&file, bytes).unwrap();
    let (state, resumed) = StreamState::open_or_create(&path, &spec(ID + 1)).unwrap();
    assert!(resumed);
    assert_eq!(state.forks().records(), []);
}

#[test]
fn what_is_no_file_is_refused_by_name() {
    let (_dir, path, file) = at();
    fs::create_dir(&file).unwrap();
    let error = StreamState::open_or_create(&path, &spec(ID)).unwrap_err();
    assert!(error.to_string().contains("job-n1.forks"), "{error}");
}

/// Who only looks at a state sees and touches no records.
#[test]
fn looking_changes_nothing() {
    let (_dir, path, file) = at();
    let state = open(&path);
    let one = record(ForkKind::Owed, 4, 2, 0.0);
    state.forks().put(&one).unwrap();
    let id = BufferId {
        session: 5,
        fingerprint: 6,
        identity: ID,
    };
    let before = fs::read(&file).unwrap();
    let look = StreamState::look(&path, id, 20480).unwrap();
    assert_eq!(look.forks().records(), []);
    assert_eq!(fs::read(&file).unwrap(), before);
    assert_eq!(state.forks().records(), [one]);
}

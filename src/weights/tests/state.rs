//! The state files: what survives, and every refusal.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;

use proptest::prelude::*;

use crate::weights::*;

fn dir() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap()
}

const ID: BufferId = BufferId {
    session: 5,
    fingerprint: 6,
    identity: 7,
};

fn spec() -> StreamStateSpec {
    StreamStateSpec {
        session: 5,
        fingerprint: 6,
        identity: 7,
        node: 1,
        nodes: 3,
        places: 3,
        masters: 3,
        chunk_weights: 352,
        chunks: 10,
        padded: 20480,
    }
}

struct At(tempfile::TempDir, PathBuf);

fn at() -> At {
    let dir = dir();
    let path = StreamState::path_beside(&dir.path().join("job-n1"));
    At(dir, path)
}

#[test]
fn a_streamers_state_survives_it() {
    let At(_dir, path) = at();
    assert!(path.ends_with("job-n1.stream"));
    let (state, resumed) = StreamState::open_or_create(&path, &spec()).unwrap();
    assert!(!resumed && state.journal().pending().is_none());
    assert!((0..20480).all(|i| state.last().load(i) == 0.0 && state.sent().load(i) == 0.0));
    state.last().store(20479, 1.0);
    state.sent().store(0, 2.0);
    state.chunk(9).version.store(77, Relaxed);
    state.chunk(9).seq.store(255, Relaxed);
    state.applied(9)[2].store(3, Relaxed);
    state.node(2).streamed.store(4, Relaxed);
    drop(state);
    let (state, resumed) = StreamState::open_or_create(&path, &spec()).unwrap();
    assert!(resumed);
    assert_eq!((state.last().load(20479), state.sent().load(0)), (1.0, 2.0));
    assert_eq!(
        (
            state.chunk(9).version.load(Relaxed),
            state.chunk(9).seq.load(Relaxed)
        ),
        (77, 255)
    );
    assert_eq!(
        (state.applied(9)[2].load(Relaxed), state.applied(9).len()),
        (3, 3)
    );
    assert_eq!(
        (
            state.chunk(8).version.load(Relaxed),
            state.node(2).streamed.load(Relaxed)
        ),
        (0, 4)
    );
    assert_eq!(state.spec(), &spec());
}

#[test]
fn arrays_are_never_a_power_of_two_apart() {
    for padded in [16 * 1100, 1 << 15, 1 << 20, 431_104 + MAX_CHUNK] {
        let At(_dir, path) = at();
        let spec = StreamStateSpec { padded, ..spec() };
        let state = StreamState::open_or_create(&path, &spec).unwrap().0;
        let [last, sent] = [state.last(), state.sent()].map(|v| v.as_ptr().addr());
        assert!(last.is_multiple_of(64) && sent.is_multiple_of(64));
        // The weights begin at a page: three different places within it.
        assert!(last % 4096 != 0 && sent % 4096 != 0 && last % 4096 != sent % 4096);
        assert!(!(sent - last).is_power_of_two());
    }
}

#[test]
fn a_second_streamer_is_refused() {
    let At(_dir, path) = at();
    let state = StreamState::open_or_create(&path, &spec()).unwrap().0;
    let error = StreamState::open_or_create(&path, &spec()).unwrap_err();
    assert!(matches!(error, StateError::InUse { pid, .. } if pid == std::process::id()));
    assert!(error.to_string().contains("end it first"), "{error}");
    drop(state);
    assert!(StreamState::open_or_create(&path, &spec()).is_ok());
}

#[test]
fn of_many_streamers_one_wins() {
    let At(_dir, path) = at();
    let results: Vec<_> = std::thread::scope(|s| {
        let threads: Vec<_> = (0..8)
            .map(|_| s.spawn(|| StreamState::open_or_create(&path, &spec())))
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert_eq!(results.iter().filter(|r| r.is_ok()).count(), 1);
    assert!(
        results
            .iter()
            .flat_map(|r| r.as_ref().err())
            .all(|e| matches!(e, StateError::InUse { .. }))
    );
}

#[test]
fn another_job_is_refused_by_name() {
    let At(_dir, path) = at();
    drop(StreamState::open_or_create(&path, &spec()).unwrap());
    for (other, name) in [
        (
            StreamStateSpec {
                session: 9,
                ..spec()
            },
            "session 0x5, this job of 0x9",
        ),
        (
            StreamStateSpec {
                fingerprint: 9,
                ..spec()
            },
            "model 0x6",
        ),
        (StreamStateSpec { node: 2, ..spec() }, "node 0x1"),
        (
            StreamStateSpec { nodes: 4, ..spec() },
            "number of nodes 0x3",
        ),
        (
            StreamStateSpec {
                masters: 1,
                ..spec()
            },
            "number of masters 0x3",
        ),
        (
            StreamStateSpec {
                chunk_weights: 368,
                ..spec()
            },
            "chunk size",
        ),
        (
            StreamStateSpec {
                chunks: 11,
                ..spec()
            },
            "number of chunks",
        ),
        (
            StreamStateSpec {
                padded: 20496,
                ..spec()
            },
            "padded length",
        ),
    ] {
        let error = StreamState::open_or_create(&path, &other).unwrap_err();
        assert!(matches!(error, StateError::Stale { .. }), "{error}");
        assert!(
            error.to_string().contains(name) && error.to_string().contains("make the buffer anew"),
            "{error}"
        );
    }
}

#[test]
fn the_state_of_a_former_buffer_is_refused() {
    let At(_dir, path) = at();
    drop(StreamState::open_or_create(&path, &spec()).unwrap());
    let anew = StreamStateSpec {
        identity: 8,
        ..spec()
    };
    let solver = path.with_extension("solver0");
    drop(SolverState::open_or_create(&solver, ID, 100).unwrap());
    let gpu = path.with_extension("gpu3");
    drop(GpuState::open_or_create(&gpu, ID, 64, 80).unwrap());
    let id = BufferId { identity: 8, ..ID };
    for (file, error) in [
        (
            &path,
            StreamState::open_or_create(&path, &anew).unwrap_err(),
        ),
        (
            &solver,
            SolverState::open_or_create(&solver, id, 100).unwrap_err(),
        ),
        (
            &gpu,
            GpuState::open_or_create(&gpu, id, 64, 80).unwrap_err(),
        ),
    ] {
        assert!(matches!(error, StateError::OtherBuffer { .. }), "{error}");
        let message = error.to_string();
        let buffer = format!("{} was made anew", file.with_extension("").display());
        let remedy = format!("Remove {}", file.display());
        for part in [&buffer, &remedy, "make both anew"] {
            assert!(message.contains(part), "{message} lacks {part}");
        }
    }
    assert!(StreamState::open_or_create(&path, &spec()).unwrap().1);
}

#[test]
fn a_flipped_bit_of_a_head_is_refused() {
    let At(_dir, path) = at();
    drop(StreamState::open_or_create(&path, &spec()).unwrap());
    let whole = fs::read(&path).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    let head = size_of::<crate::weights::state_file::StateHead>();
    let holder = 40..44;
    for offset in (0..head).filter(|offset| !holder.contains(offset)) {
        for bit in 0..8 {
            let flipped = [whole[offset] ^ 1 << bit];
            file.write_all_at(&flipped, offset as u64).unwrap();
            let error = StreamState::open_or_create(&path, &spec());
            let error = error.expect_err(&format!("bit {bit} of byte {offset}"));
            assert!(
                error.to_string().starts_with(path.to_str().unwrap()),
                "{error}"
            );
        }
        let right = &whole[offset..=offset];
        file.write_all_at(right, offset as u64).unwrap();
    }
    assert!(StreamState::open_or_create(&path, &spec()).unwrap().1);
}

#[test]
fn nonsense_is_refused() {
    let At(_dir, path) = at();
    for other in [
        StreamStateSpec {
            chunk_weights: 0,
            ..spec()
        },
        StreamStateSpec {
            chunk_weights: 350,
            ..spec()
        },
        StreamStateSpec {
            chunk_weights: 16400,
            ..spec()
        },
        StreamStateSpec { node: 3, ..spec() },
        StreamStateSpec {
            chunks: 59,
            ..spec()
        },
        StreamStateSpec {
            padded: usize::MAX,
            ..spec()
        },
        StreamStateSpec {
            padded: usize::MAX / 4,
            ..spec()
        },
    ] {
        let error = StreamState::open_or_create(&path, &other).unwrap_err();
        assert!(matches!(error, StateError::BadSpec { .. }), "{error}");
        assert!(!path.exists());
    }
    assert!(matches!(
        SolverState::open_or_create(&path, ID, usize::MAX),
        Err(StateError::BadSpec { .. })
    ));
}

#[test]
fn other_files_are_refused() {
    let At(_dir, path) = at();
    let refusal = || StreamState::open_or_create(&path, &spec()).unwrap_err();
    for content in ["", "short", &"x".repeat(4096)] {
        fs::write(&path, content).unwrap();
        assert!(
            matches!(refusal(), StateError::NotOurs { .. }),
            "{}",
            refusal()
        );
    }
    fs::remove_file(&path).unwrap();
    drop(SolverState::open_or_create(&path, ID, 100).unwrap());
    assert!(
        matches!(refusal(), StateError::NotOurs { .. }),
        "another kind of state"
    );
    fs::remove_file(&path).unwrap();
    drop(StreamState::open_or_create(&path, &spec()).unwrap());
    let file = File::options().write(true).open(&path).unwrap();
    file.write_all_at(&9u32.to_le_bytes(), 12).unwrap();
    assert!(
        matches!(refusal(), StateError::OtherVersion { found: 9, .. }),
        "{}",
        refusal()
    );
    file.write_all_at(&7u32.to_le_bytes(), 12).unwrap();
    file.set_len(5000).unwrap();
    assert!(
        matches!(refusal(), StateError::Truncated { has: 5000, .. }),
        "{}",
        refusal()
    );
}

#[test]
fn half_applied_deltas_are_remembered_one_per_chunk_and_peer() {
    let At(_dir, path) = at();
    let state = StreamState::open_or_create(&path, &spec()).unwrap().0;
    let found = |chunk, peer, seq, progress| Interrupted {
        kind: JournalOp::Apply,
        chunk,
        peer,
        seq,
        version: 0,
        progress,
    };
    assert!(state.remember_partial(&found(3, 2, 9, 64)));
    assert!(state.remember_partial(&found(4, 2, 9, 80)));
    assert_eq!((state.partial(3, 2, 9), state.partial(4, 2, 9)), (64, 80));
    assert_eq!(
        (
            state.partial(3, 2, 8),
            state.partial(3, 0, 9),
            state.partial(5, 2, 9)
        ),
        (0, 0, 0)
    );
    assert!(
        state.remember_partial(&found(3, 2, 9, 96)),
        "the same again, further on"
    );
    assert_eq!(state.partial(3, 2, 9), 96);
    state.forget_partial(3, 2);
    assert_eq!((state.partial(3, 2, 9), state.partial(4, 2, 9)), (0, 80));
    state.forget_partial(4, 2);
    assert!((0..PARTIALS as u32).all(|c| state.remember_partial(&found(c, 0, 1, 16))));
    assert!(!state.remember_partial(&found(99, 0, 1, 16)));
}

#[test]
fn a_solvers_state_survives_it() {
    let dir = dir();
    let path = SolverState::path_beside(&dir.path().join("job-n0"), 2);
    assert!(path.ends_with("job-n0.solver2"));
    let (state, resumed) = SolverState::open_or_create(&path, ID, 431_080).unwrap();
    assert!(!resumed);
    state.history().store(431_079, 0.5);
    state.progress().iteration.store(10, Relaxed);
    state.progress().cursor.store(640, Relaxed);
    state.progress().caution[2].store(1, Relaxed);
    // A look disturbs no other process, and sees what is written meanwhile.
    let look = SolverState::look(&path, ID, 431_080).unwrap();
    state.progress().cursor.store(704, Relaxed);
    assert_eq!(look.progress().cursor.load(Relaxed), 704);
    assert_eq!(look.history().load(431_079), 0.5);
    drop(look);
    state.progress().cursor.store(640, Relaxed);
    let other = BufferId {
        identity: ID.identity + 1,
        ..ID
    };
    assert!(SolverState::look(&path, other, 431_080).is_err());
    assert!(matches!(
        SolverState::look(&dir.path().join("none"), ID, 431_080),
        Err(StateError::Io { .. })
    ));
    assert!(matches!(
        SolverState::open_or_create(&path, ID, 431_080),
        Err(StateError::InUse { .. })
    ));
    drop(state);
    let (state, resumed) = SolverState::open_or_create(&path, ID, 431_080).unwrap();
    assert!(resumed);
    assert_eq!(
        (state.history().load(431_079), state.history().len()),
        (0.5, 431_080)
    );
    assert_eq!(
        (
            state.progress().iteration.load(Relaxed),
            state.progress().cursor.load(Relaxed)
        ),
        (10, 640)
    );
    assert_eq!(state.progress().caution[2].load(Relaxed), 1);
    drop(state);
    let error = SolverState::open_or_create(&path, ID, 100).unwrap_err();
    assert!(error.to_string().contains("number of weights"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_content_of_a_head_makes_open_panic(
        edits in prop::collection::vec((0usize..256, any::<u8>()), 1..12),
        cut in prop::option::weighted(0.2, 0u64..200_000),
    ) {
        let At(_dir, path) = at();
        drop(StreamState::open_or_create(&path, &spec()).unwrap());
        let whole = fs::read(&path).unwrap();
        let mut bytes = whole.clone();
        edits.iter().for_each(|(at, byte)| bytes[*at] = *byte);
        bytes.truncate(cut.map_or(bytes.len(), |len| len as usize));
        let head = size_of::<crate::weights::state_file::StateHead>();
        let same = bytes.len() == whole.len()
            && (0..head).all(|at| (40..44).contains(&at) || bytes[at] == whole[at]);
        fs::write(&path, bytes).unwrap();
        match StreamState::open_or_create(&path, &spec()) {
            Ok((_, resumed)) => prop_assert!(same && resumed),
            Err(error) => prop_assert!(!same && !error.to_string().is_empty()),
        }
    }
}

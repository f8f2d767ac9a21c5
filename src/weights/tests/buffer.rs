//! The buffer: every refusal with its message, races, slots, a full file system.

use std::fs::{self, File};
use std::mem::offset_of;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use dogwild_lab::skip::skip;
use proptest::prelude::*;

use super::child;
use crate::weights::header::{Head, MANIFEST_OFFSET};
use crate::weights::process::Process;
use crate::weights::*;

const CHILD: &str = "DOGWILD_TEST_BUFFER_CHILD";

struct Dir(tempfile::TempDir);

impl Dir {
    fn new() -> Self {
        Self(
            tempfile::tempdir_in("/dev/shm")
                .or_else(|_| tempfile::tempdir())
                .unwrap(),
        )
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("job-n0")
    }

    fn make(&self) -> SharedWeights {
        make(&self.path(), Existing::Refuse)
    }

    /// A finished buffer, changed by `edit`, and what `open` says to it.
    fn refusal(edit: impl FnOnce(&File)) -> OpenError {
        let dir = Self::new();
        drop(dir.make());
        edit(
            &File::options()
                .write(true)
                .read(true)
                .open(dir.path())
                .unwrap(),
        );
        let error = open(&dir.path()).unwrap_err();
        let message = error.to_string();
        assert!(
            message.starts_with(dir.path().to_str().unwrap()),
            "{message}"
        );
        error
    }
}

fn model(n: usize) -> Manifest {
    Manifest::new(vec![
        ("ip.weight".into(), vec![n, 3]),
        ("ip.bias".into(), vec![n]),
    ])
    .unwrap()
}

fn spec() -> BufferSpec {
    BufferSpec {
        session: 0xab,
        manifest: model(10),
        data: Default::default(),
    }
}

fn expect() -> Expect {
    Expect {
        session: Some(0xab),
        fingerprint: Some(model(10).fingerprint()),
        data: None,
    }
}

fn open(path: &Path) -> Result<SharedWeights, OpenError> {
    SharedWeights::open(path, &expect())
}

fn make(path: &Path, existing: Existing) -> SharedWeights {
    match SharedWeights::create(path, &spec(), existing).unwrap() {
        Created::New(new) => new.ready(),
        Created::Resumed(_) => panic!("there was one already"),
    }
}

fn put(file: &File, offset: usize, bytes: &[u8]) {
    file.write_all_at(bytes, offset as u64).unwrap();
}

#[test]
fn what_one_writes_the_other_reads() {
    let dir = Dir::new();
    let a = dir.make();
    assert_eq!((a.used(), a.padded()), (42, 48 + MAX_CHUNK));
    assert_eq!((a.session(), a.manifest()), (0xab, &model(10)));
    let file = fs::metadata(dir.path()).unwrap();
    assert_eq!(file.mode() & 0o777, 0o600);
    assert_eq!(
        (file.len() - a.padded() as u64 * 4) % (2 << 20),
        0,
        "weights are 2 MiB aligned"
    );
    let b = open(&dir.path()).unwrap();
    assert_eq!(b.view().len(), a.padded());
    assert!((0..b.padded()).all(|i| b.view().word(i).load(Relaxed) == 0));
    a.view().store(41, 2.5);
    a.globals().local_iterations.fetch_add(7, Relaxed);
    b.globals().remote_iterations.fetch_add(4, Relaxed);
    assert_eq!(b.view().load(41), 2.5);
    assert_eq!(a.globals().iterations(), 11);
    let json = fs::read(dir.path()).unwrap()[MANIFEST_OFFSET..].to_vec();
    assert!(
        json.starts_with(br#"{"ip.weight":{"dtype":"F32","shape":[10,3],"data_offsets":[0,120]}"#)
    );
}

#[test]
fn a_file_that_is_not_ours() {
    let dir = Dir::new();
    let path = dir.path();
    let why = |path: &Path| match open(path).unwrap_err() {
        OpenError::NotOurs { why, .. } => why,
        other => panic!("{other}"),
    };
    let missing = open(&path).unwrap_err();
    assert!(
        matches!(missing, OpenError::NotFound { .. })
            && missing.to_string().contains("start the job")
    );
    for (content, reason) in [
        (&b""[..], "it is empty"),
        (b"DOG", "it is too small"),
        (b"PK\x03\x04 and more", "does not begin"),
    ] {
        fs::write(&path, content).unwrap();
        assert!(why(&path).contains(reason));
    }
    let other = path.with_extension("link");
    symlink(&path, &other).unwrap();
    assert_eq!(why(&other), "a symbolic link");
    assert_eq!(why(dir.0.path()), "a directory");
    let fifo = path.with_extension("fifo");
    if Command::new("mkfifo")
        .arg(&fifo)
        .status()
        .is_ok_and(|s| s.success())
    {
        assert_eq!(why(&fifo), "not a regular file");
    }
}

#[test]
fn another_version() {
    let error = Dir::refusal(|f| put(f, offset_of!(Head, layout_version), &9u32.to_le_bytes()));
    assert!(matches!(
        error,
        OpenError::OtherVersion {
            found: 9,
            ours: LAYOUT_VERSION,
            ..
        }
    ));
    assert!(error.to_string().contains("layout version 9"), "{error}");
}

#[test]
fn another_byte_order() {
    let error = Dir::refusal(|f| put(f, offset_of!(Head, byte_order), &[1, 2, 3, 4]));
    assert!(matches!(error, OpenError::ByteOrder { .. }));
}

#[test]
fn truncated() {
    for len in [
        9,
        100,
        4096,
        MANIFEST_OFFSET as u64 + 10,
        2 << 20,
        (2 << 20) + 4096,
    ] {
        let error = Dir::refusal(|f| f.set_len(len).unwrap());
        assert!(
            matches!(error, OpenError::Truncated { has, .. } if has == len),
            "{error}"
        );
        assert!(
            error
                .to_string()
                .contains(&format!("truncated: {len} bytes of")),
            "{error}"
        );
    }
}

#[test]
fn damaged() {
    for (offset, value) in [
        (offset_of!(Head, used), 43u64),
        (offset_of!(Head, padded), u64::MAX),
        (offset_of!(Head, manifest_offset), 64),
        (offset_of!(Head, manifest_bytes), u64::MAX),
        (offset_of!(Head, manifest_bytes), 3),
        (offset_of!(Head, weights_offset), u64::MAX - 4),
        (offset_of!(Head, file_bytes), 0),
        (offset_of!(Head, fingerprint), 1),
        (offset_of!(Head, slots), 1),
        (offset_of!(Head, state), 3),
        (MANIFEST_OFFSET, 0),
    ] {
        let error = Dir::refusal(|f| put(f, offset, &value.to_le_bytes()));
        assert!(
            matches!(error, OpenError::Damaged { .. }),
            "{offset} {value}: {error}"
        );
        assert!(error.to_string().contains("make"), "{error}");
    }
    let error = Dir::refusal(|f| f.set_len(1 << 22).unwrap());
    assert!(
        error
            .to_string()
            .contains("real length of the file is 4194304"),
        "{error}"
    );
}

#[test]
fn a_flipped_bit_of_the_header_or_the_manifest_is_refused() {
    let dir = Dir::new();
    drop(dir.make());
    let whole = fs::read(dir.path()).unwrap();
    let file = File::options().write(true).open(dir.path()).unwrap();
    let json = model(10).to_json().len();
    for offset in (0..size_of::<Head>()).chain(MANIFEST_OFFSET..MANIFEST_OFFSET + json) {
        for bit in 0..8 {
            put(&file, offset, &[whole[offset] ^ 1 << bit]);
            let error = SharedWeights::open(&dir.path(), &Expect::default());
            let error = error.expect_err(&format!("bit {bit} of byte {offset}"));
            assert!(!error.to_string().is_empty());
        }
        put(&file, offset, &whole[offset..=offset]);
    }
    assert!(open(&dir.path()).is_ok());
}

#[test]
fn a_buffer_made_anew_has_another_identity_and_the_same_first_weights() {
    let dir = Dir::new();
    let make = |last: f32| {
        let new = SharedWeights::create(&dir.path(), &spec(), Existing::Fresh).unwrap();
        let Created::New(new) = new else {
            panic!("asked for a fresh one");
        };
        new.view().store(0, 0.25);
        new.view().store(41, last);
        let made = new.ready();
        made.view().store(1, 7.0);
        let ids = (made.identity(), made.first_weights());
        drop(made);
        let opened = open(&dir.path()).unwrap();
        assert_eq!((opened.identity(), opened.first_weights()), ids);
        ids
    };
    let [a, b, c] = [1.0, 1.0, 2.0].map(make);
    assert!(a.0 != b.0 && b.0 != c.0 && a.0 != 0, "{a:?} {b:?} {c:?}");
    assert_eq!(a.1, b.1);
    assert_ne!(b.1, c.1, "the last weight counts");
}

#[test]
fn another_kind_of_data_is_refused_by_name() {
    let dir = Dir::new();
    let kind = |name| DataKind::new(name, [1, 28, 28], 10);
    let create = |data, existing| {
        let spec = BufferSpec { data, ..spec() };
        SharedWeights::create(&dir.path(), &spec, existing)
    };
    let Created::New(new) = create(kind("digits"), Existing::Refuse).unwrap() else {
        panic!("nothing was there");
    };
    let made = new.ready();
    assert_eq!(
        (made.data(), made.data_kind()),
        (kind("digits").hash(), kind("digits"))
    );
    drop(made);
    let open = |data| {
        SharedWeights::open(
            &dir.path(),
            &Expect {
                data: Some(data),
                ..expect()
            },
        )
    };
    assert!(open(kind("digits")).is_ok() && open(DataKind::default()).is_ok());
    for refused in [
        open(kind("mnist")).unwrap_err(),
        match create(kind("mnist"), Existing::Resume).unwrap_err() {
            CreateError::Resume(error) => error,
            other => panic!("{other}"),
        },
    ] {
        assert!(matches!(refused, OpenError::OtherData { .. }), "{refused}");
        let message = refused.to_string();
        for part in ["digits 1x28x28/10", "mnist 1x28x28/10", "make it anew"] {
            assert!(message.contains(part), "{message}");
        }
    }
}

#[test]
fn another_session_and_another_model() {
    let dir = Dir::new();
    drop(dir.make());
    let stale = SharedWeights::open(
        &dir.path(),
        &Expect {
            session: Some(1),
            ..expect()
        },
    )
    .unwrap_err();
    assert!(matches!(
        stale,
        OpenError::Stale {
            found: 0xab,
            expected: 1,
            ..
        }
    ));
    assert!(
        stale.to_string().contains("resume it") && stale.to_string().contains("make it anew"),
        "{stale}"
    );
    let expect = Expect {
        fingerprint: Some(1),
        ..expect()
    };
    let other = SharedWeights::open(&dir.path(), &expect).unwrap_err();
    assert!(matches!(other, OpenError::OtherModel { expected: 1, .. }));
    assert!(
        other.to_string().contains("2 tensors, 42 weights"),
        "{other}"
    );
    assert!(SharedWeights::open(&dir.path(), &Expect::default()).is_ok());
}

#[test]
fn still_being_initialised() {
    let dir = Dir::new();
    let Created::New(new) = SharedWeights::create(&dir.path(), &spec(), Existing::Refuse).unwrap()
    else {
        panic!("nothing was there");
    };
    new.view().store(0, 1.0);
    let error = open(&dir.path()).unwrap_err();
    assert!(matches!(error, OpenError::Initialising { pid, .. } if pid == std::process::id()));
    assert!(
        error
            .to_string()
            .contains(&format!("process {}", std::process::id())),
        "{error}"
    );
    let weights = new.ready();
    assert_eq!(
        open(&dir.path()).unwrap().view().load(0),
        weights.view().load(0)
    );
}

#[test]
fn creator_child() {
    if let Some(path) = std::env::var_os(CHILD) {
        std::mem::forget(SharedWeights::create(path.as_ref(), &spec(), Existing::Refuse).unwrap());
        std::process::abort();
    }
}

#[test]
fn the_creator_died() {
    let dir = Dir::new();
    let test = concat!(module_path!(), "::creator_child");
    let mut child = child::command(test);
    let mut child = child
        .env(CHILD, dir.path())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let pid = child.id();
    child.wait().unwrap();
    let error = open(&dir.path()).unwrap_err();
    assert!(
        matches!(error, OpenError::CreatorDied { pid: p, .. } if p == pid),
        "{error}"
    );
    assert!(
        error.to_string().contains(&format!("process {pid}, died")),
        "{error}"
    );
    let resume = SharedWeights::create(&dir.path(), &spec(), Existing::Resume).unwrap_err();
    assert!(
        matches!(resume, CreateError::Resume(OpenError::CreatorDied { .. })),
        "{resume}"
    );
    make(&dir.path(), Existing::Fresh);
}

#[test]
fn a_file_that_exists_is_never_reused_in_silence() {
    let dir = Dir::new();
    let path = dir.path();
    dir.make().view().store(3, 3.0);
    let error = SharedWeights::create(&path, &spec(), Existing::Refuse).unwrap_err();
    assert!(matches!(error, CreateError::Exists { .. }));
    let message = error.to_string();
    assert!(
        message.contains("resume it") && message.contains("session 0x00000000000000ab"),
        "{message}"
    );

    let Created::Resumed(old) = SharedWeights::create(&path, &spec(), Existing::Resume).unwrap()
    else {
        panic!("it was there");
    };
    assert_eq!(old.view().load(3), 3.0);
    drop(old);
    let other = BufferSpec {
        session: 0xab,
        manifest: model(11),
        data: Default::default(),
    };
    let error = SharedWeights::create(&path, &other, Existing::Resume).unwrap_err();
    assert!(
        matches!(error, CreateError::Resume(OpenError::OtherModel { .. })),
        "{error}"
    );

    let beside = [
        "job-n0.stream",
        "job-n0.forks",
        "job-n0.solver12",
        "job-n0.solverx",
        "job-n01.stream",
    ]
    .map(|n| path.with_file_name(n));
    beside.iter().for_each(|p| fs::write(p, "state").unwrap());
    assert_eq!(make(&path, Existing::Fresh).view().load(3), 0.0);
    assert_eq!(
        beside.map(|p| p.exists()),
        [false, false, false, true, true]
    );
}

#[test]
fn fresh_deletes_nothing_that_is_used_or_foreign() {
    let dir = Dir::new();
    let weights = dir.make();
    let fresh = || SharedWeights::create(&dir.path(), &spec(), Existing::Fresh).unwrap_err();
    assert!(matches!(fresh(), CreateError::InUse { .. }), "{}", fresh());
    let slot = weights.claim_slot(Role::Solver, 3).unwrap();
    let name = format!("solver 3 (process {})", std::process::id());
    assert!(fresh().to_string().contains(&name), "{}", fresh());
    std::mem::forget(slot);
    drop(weights);
    assert!(
        fresh().to_string().contains(&name),
        "a slot counts without a lock: {}",
        fresh()
    );
    fs::write(dir.path(), "my thesis").unwrap();
    assert!(matches!(fresh(), CreateError::NotOurs { .. }));
    assert!(fresh().to_string().contains("not deleted"), "{}", fresh());
    assert_eq!(fs::read(dir.path()).unwrap(), b"my thesis");
    // But what begins like a buffer may go, whatever happened to it.
    fs::write(dir.path(), "DOGWILD\0 was here").unwrap();
    make(&dir.path(), Existing::Fresh);
}

/// A process that is about to die is waited for a moment; what it was counts no more then.
#[test]
fn fresh_waits_a_moment_for_a_component_that_ends() {
    let dir = Dir::new();
    // On a busy machine a moment may be too short.
    let made = (0..20).any(|_| {
        let slot = Arc::new(make(&dir.path(), Existing::Fresh))
            .claim_owned_slot(Role::Solver, 0)
            .unwrap();
        let ends = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            drop(slot);
        });
        let made = SharedWeights::create(&dir.path(), &spec(), Existing::Fresh);
        ends.join().unwrap();
        matches!(made, Ok(Created::New(_)))
    });
    assert!(made, "refused for a component that has ended");
}

/// Who watches keeps no buffer from being removed, and sees what it was.
#[test]
fn a_watched_buffer_may_be_made_anew() {
    let dir = Dir::new();
    let old = dir.make();
    old.view().store(3, 3.0);
    let watched = SharedWeights::watch(&dir.path()).unwrap();
    assert!(watched.is_at_its_path());
    assert!(remove_buffer(&dir.path()).is_err(), "a component has it");
    drop(old);
    assert!(!found(&dir.path()).in_use);
    let new = make(&dir.path(), Existing::Fresh);
    assert!(!watched.is_at_its_path() && new.is_at_its_path());
    assert_eq!((watched.view().load(3), new.view().load(3)), (3.0, 0.0));
    fs::remove_file(dir.path()).unwrap();
    assert!(!new.is_at_its_path());
    let gone = SharedWeights::watch(&dir.path());
    assert!(matches!(gone, Err(OpenError::NotFound { .. })));
}

#[test]
fn states_without_their_buffer_go_when_it_is_made_anew() {
    for existing in [Existing::Refuse, Existing::Resume, Existing::Fresh] {
        let dir = Dir::new();
        let beside = |suffix: &str| dir.path().with_file_name(format!("job-n0{suffix}"));
        let weights = dir.make();
        let solver = beside(".solver0");
        let state = SolverState::open_or_create(&solver, weights.id(), 100)
            .unwrap()
            .0;
        for suffix in [".gpu1", ".gpu1.ipc", ".seal"] {
            fs::write(beside(suffix), "left").unwrap();
        }
        fs::remove_file(dir.path()).unwrap();
        // A component that still works on the buffer without a name is not robbed of its state.
        let error = SharedWeights::create(&dir.path(), &spec(), existing).unwrap_err();
        let message = error.to_string();
        assert!(
            matches!(error, CreateError::InUse { ref path, .. } if *path == solver)
                && message.contains(&format!("process {}", std::process::id())),
            "{message}"
        );
        assert!(solver.exists() && beside(".gpu1").exists() && !dir.path().exists());
        drop((state, weights));
        let Created::New(new) = SharedWeights::create(&dir.path(), &spec(), existing).unwrap()
        else {
            panic!("nothing was there");
        };
        let gone = [".gpu1", ".gpu1.ipc", ".solver0"].map(beside);
        assert_eq!(new.removed(), gone);
        assert!(gone.iter().all(|file| !file.exists()));
        assert!(beside(".seal").exists(), "it belongs to the key");
        drop(new.ready());
    }
}

#[test]
fn fresh_over_a_live_component_leaves_every_file() {
    let dir = Dir::new();
    let weights = dir.make();
    let solver = dir.path().with_file_name("job-n0.solver0");
    drop(SolverState::open_or_create(&solver, weights.id(), 100).unwrap());
    let error = SharedWeights::create(&dir.path(), &spec(), Existing::Fresh).unwrap_err();
    assert!(matches!(error, CreateError::InUse { .. }), "{error}");
    assert!(remove_buffer(&dir.path()).is_err());
    assert!(solver.exists());
    drop(weights);
    assert_eq!(remove_buffer(&dir.path()).unwrap(), [solver, dir.path()]);
    assert!(remove_buffer(&dir.path()).unwrap().is_empty());
}

fn found(path: &Path) -> BufferInfo {
    match look(path).unwrap() {
        Look::Buffer(info) => info,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_look_tells_what_a_file_is_and_whether_it_is_used() {
    let dir = Dir::new();
    let path = dir.path();
    assert_eq!(look(&path).unwrap(), Look::Missing);
    assert!(matches!(look(dir.0.path()).unwrap(), Look::NotOurs { .. }));
    fs::write(&path, "my thesis").unwrap();
    assert!(matches!(look(&path).unwrap(), Look::NotOurs { .. }));
    assert_eq!(fs::read(&path).unwrap(), b"my thesis");
    fs::remove_file(&path).unwrap();

    let weights = dir.make();
    weights.globals().local_iterations.store(5, Relaxed);
    weights.globals().remote_iterations.store(2, Relaxed);
    let info = found(&path);
    assert_eq!((info.session, info.identity), (0xab, weights.identity()));
    assert_eq!(
        (info.weights, info.iterations, info.saved_iterations),
        (42, 7, 0)
    );
    assert!(info.in_use && info.ready && info.unsaved() && weights.globals().unsaved());
    assert_eq!(info.users_text(), "another process");
    let slot = weights.claim_slot(Role::Stream, 0).unwrap();
    let name = format!("stream 0 (process {})", std::process::id());
    assert_eq!(found(&path).users_text(), name);
    drop(slot);
    weights.globals().saved_iterations.store(7, Relaxed);
    drop(weights);
    let info = found(&path);
    assert!(!info.in_use && !info.unsaved() && info.users_text().is_empty());
    // Looking leaves it as usable as it was.
    let weights = open(&path).unwrap();
    assert!(found(&path).in_use);
    drop(weights);

    let file = File::options().read(true).write(true).open(&path).unwrap();
    put(&file, offset_of!(Head, identity), &[0; 8]);
    let Look::Damaged { why, in_use } = look(&path).unwrap() else {
        panic!("damaged");
    };
    assert!(why.contains("checksum") && !in_use, "{why}");
    file.lock_shared().unwrap();
    assert!(matches!(
        look(&path).unwrap(),
        Look::Damaged { in_use: true, .. }
    ));
}

#[test]
fn a_buffer_that_was_never_finished_holds_no_work() {
    let dir = Dir::new();
    let created = SharedWeights::create(&dir.path(), &spec(), Existing::Refuse).unwrap();
    assert!(found(&dir.path()).in_use);
    drop(created);
    let info = found(&dir.path());
    assert!(!info.ready && !info.in_use && !info.unsaved());
}

#[test]
fn holder_child() {
    if let Some(path) = std::env::var_os(CHILD) {
        let weights = open(path.as_ref()).unwrap();
        weights
            .claim_slot(Role::Solver, 0)
            .map(std::mem::forget)
            .unwrap();
        println!("holding");
        let _ = std::io::stdin().read_line(&mut String::new());
    }
}

/// With a shared /dev/shm and a PID namespace of its own, a live component has a pid that means
/// nothing here.
#[test]
fn a_user_in_another_pid_namespace_counts() {
    use std::io::{BufRead, BufReader};
    let dir = Dir::new();
    drop(dir.make());
    // SAFETY: only asks who we are.
    let root = unsafe { libc::geteuid() } == 0;
    let flags = if root { "-pf" } else { "-Urpf" };
    let flags = [flags, "--mount-proc"];
    let works = Command::new("unshare").args(flags).arg("true").status();
    if !works.is_ok_and(|status| status.success()) {
        return skip("no PID namespace: a user in another one (run as root)");
    }
    let mut child = Command::new("unshare")
        .args(flags)
        .arg("--kill-child")
        .arg(std::env::current_exe().unwrap())
        .args(child::arguments(concat!(module_path!(), "::holder_child")))
        .env(CHILD, dir.path())
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(
        lines.any(|line| line.unwrap().ends_with("holding")),
        "the child died"
    );
    let seen = found(&dir.path());
    let fresh = SharedWeights::create(&dir.path(), &spec(), Existing::Fresh);
    let removed = remove_buffer(&dir.path());
    drop(child.stdin.take());
    child.wait().unwrap();
    assert!(seen.in_use, "{seen:?}");
    for error in [fresh.unwrap_err(), removed.unwrap_err()] {
        assert!(matches!(error, CreateError::InUse { .. }), "{error}");
    }
    assert!(!found(&dir.path()).in_use);
}

#[test]
fn of_many_creators_one_wins() {
    for existing in [Existing::Refuse, Existing::Resume, Existing::Fresh] {
        let dir = Dir::new();
        let results: Vec<_> = std::thread::scope(|s| {
            let threads: Vec<_> = (0..8)
                .map(|_| s.spawn(|| SharedWeights::create(&dir.path(), &spec(), existing)))
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        let new = results
            .iter()
            .filter(|r| matches!(r, Ok(Created::New(_))))
            .count();
        assert_eq!(new, 1, "{existing:?}: {results:?}");
        for error in results.iter().filter_map(|r| r.as_ref().err()) {
            let named = match error {
                CreateError::Exists { .. } => existing == Existing::Refuse,
                CreateError::Resume(OpenError::Initialising { .. }) => existing == Existing::Resume,
                CreateError::InUse { .. } => existing == Existing::Fresh,
                _ => false,
            };
            assert!(named, "{existing:?}: {error}");
        }
        assert_eq!(
            fs::read_dir(dir.0.path()).unwrap().count(),
            1,
            "nothing left behind"
        );
    }
}

#[test]
fn slots_keep_their_meters_and_refuse_a_second_holder() {
    let dir = Dir::new();
    let [a, b] = [dir.make(), open(&dir.path()).unwrap()];
    let slot = a.claim_slot(Role::Solver, 1).unwrap();
    slot.meters()[5].store(42, Relaxed);
    let error = b.claim_slot(Role::Solver, 1).unwrap_err();
    assert!(
        matches!(error, SlotError::Held { role: Role::Solver, index: 1, pid } if pid == std::process::id())
    );
    assert!(
        error
            .to_string()
            .contains(&format!("as process {}", std::process::id())),
        "{error}"
    );
    let other = b.claim_slot(Role::Stream, 1).unwrap();
    assert_eq!((other.role(), other.index()), (Role::Stream, 1));
    let infos = a.slots();
    assert_eq!(infos.len(), 2);
    assert_eq!(
        (
            infos[0].role,
            infos[0].index,
            infos[0].alive,
            infos[0].meters[5]
        ),
        (Role::Solver, 1, true, 42)
    );
    let beat = infos[0].heartbeat_unix_ns;
    slot.heartbeat();
    assert!(a.slots()[0].heartbeat_unix_ns >= beat && beat >= infos[0].started_unix_ns);
    drop(slot);
    assert_eq!(
        (a.slots()[0].pid, a.slots()[0].alive, a.slots()[0].meters[5]),
        (0, false, 42)
    );
    let slot = b.claim_slot(Role::Solver, 1).unwrap();
    assert_eq!(slot.meters()[5].fetch_add(1, Relaxed), 42);
    assert_eq!(a.slots().len(), 2);
}

/// What a forked child does with its copies of the parent's handles; the parent waits for its end.
fn in_a_forked_child(then: impl FnOnce()) {
    // SAFETY: the child runs `then`, which takes no lock but that of malloc, for which glibc sees
    // to forks; and it ends without running anything of its parent.
    match unsafe { libc::fork() } {
        0 => {
            then();
            // SAFETY: ends the process.
            unsafe { libc::_exit(0) }
        }
        child => {
            let mut status = 0;
            // SAFETY: a child of ours, and a place for how it ended.
            let waited = unsafe { libc::waitpid(child, &mut status, 0) };
            assert_eq!((waited, status), (child, 0));
        }
    }
}

#[test]
fn a_forked_child_frees_nothing_of_its_parent() {
    let dir = Dir::new();
    let shared = std::sync::Arc::new(dir.make());
    let owned = shared.claim_owned_slot(Role::Solver, 3).unwrap();
    owned.meters()[1].store(7, Relaxed);
    assert_eq!((owned.role(), owned.index()), (Role::Solver, 3));
    let borrowed = shared.claim_slot(Role::Solver, 4).unwrap();
    let copies = (&owned, &borrowed, &shared);
    in_a_forked_child(|| {
        // SAFETY: bit copies of values that this process never uses nor drops again.
        let (owned, borrowed, shared) = unsafe {
            (
                std::ptr::read(copies.0),
                std::ptr::read(copies.1),
                std::ptr::read(std::sync::Arc::as_ptr(copies.2)),
            )
        };
        drop(owned);
        drop(borrowed);
        drop(shared);
    });
    let alive: Vec<_> = shared.slots().iter().map(|slot| slot.alive).collect();
    assert_eq!(alive, [true, true]);
    let file = File::open(dir.path()).unwrap();
    assert!(file.try_lock().is_err(), "the lock went with the child");
    drop(borrowed);
    drop(owned);
    let of = |slot: &SlotInfo| (slot.pid, slot.meters[1]);
    assert_eq!(
        shared.slots().iter().map(of).collect::<Vec<_>>(),
        [(0, 7), (0, 0)]
    );
    drop(shared);
    assert!(file.try_lock().is_ok(), "the parent unlocks");
}

#[test]
fn the_slot_of_a_killed_component_is_free() {
    let dir = Dir::new();
    let weights = dir.make();
    std::mem::forget(weights.claim_slot(Role::Gpu, 0).unwrap());
    let file = File::options().write(true).open(dir.path()).unwrap();
    // As if this pid had been given to another process since.
    let start = Process::current().start + 1;
    put(&file, header::SLOTS_OFFSET + 16, &start.to_le_bytes());
    assert!(!weights.slots()[0].alive);
    weights.claim_slot(Role::Gpu, 0).unwrap();
}

#[test]
fn sixty_four_slots_and_no_more() {
    let dir = Dir::new();
    let weights = dir.make();
    let all: Vec<_> = std::thread::scope(|s| {
        let weights = &weights;
        let threads: Vec<_> = (0..SLOTS as u32)
            .map(|i| s.spawn(move || weights.claim_slot(Role::Other, i).unwrap()))
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    for slot in &all {
        slot.meters()[0].store(slot.index().into(), Relaxed);
    }
    assert!(
        weights
            .slots()
            .iter()
            .all(|s| s.alive && s.meters[0] == u64::from(s.index))
    );
    let error = weights.claim_slot(Role::Snapshot, 0).unwrap_err();
    assert!(
        error.to_string().contains("all 64 component slots"),
        "{error}"
    );
    drop(all);
    assert!(weights.claim_slot(Role::Other, 63).is_ok());
}

#[test]
fn full_child() {
    let Some(dir) = std::env::var_os(CHILD) else {
        return;
    };
    let path = Path::new(&dir).join("job-n0");
    let free = "3 MiB free";
    let big = BufferSpec {
        session: 1,
        manifest: model(1 << 20),
        data: Default::default(),
    };
    let error = SharedWeights::create(&path, &big, Existing::Refuse).unwrap_err();
    assert!(matches!(error, CreateError::NoSpace { .. }), "{error}");
    assert!(
        error.to_string().contains("needs 17 MiB") && error.to_string().contains(free),
        "{error}"
    );
    const ID: BufferId = BufferId {
        session: 1,
        fingerprint: 1,
        identity: 1,
    };
    let error =
        SolverState::open_or_create(&path.with_extension("solver0"), ID, 1 << 20).unwrap_err();
    assert!(
        matches!(error, StateError::NoSpace { .. }) && error.to_string().contains(free),
        "{error}"
    );
    assert_eq!(
        fs::read_dir(&dir).unwrap().count(),
        0,
        "nothing half-made left"
    );
    make(&path, Existing::Refuse);
    println!("full file system refused");
}

#[test]
fn a_full_file_system() {
    let dir = Dir::new();
    let script = format!(
        "mount -t tmpfs -o size=3m tmpfs {0} && {1}=\"{0}\" exec \"$0\" \"$@\"",
        dir.0.path().display(),
        CHILD
    );
    // SAFETY: only asks who we are.
    let root = unsafe { libc::geteuid() } == 0;
    let run = |inside: &[&str]| {
        let flags = if root { "-m" } else { "-Urm" };
        Command::new("unshare")
            .args([flags, "sh", "-c"])
            .args(inside)
            .output()
    };
    match run(&["true"]) {
        Ok(o) if o.status.success() => {}
        _ => {
            return skip(
                "no mount namespace: /dev/shm full (run as root, or allow user namespaces)",
            );
        }
    }
    let exe = std::env::current_exe().unwrap();
    let mut inside = vec![script.as_str(), exe.to_str().unwrap()];
    inside.extend(child::arguments(concat!(module_path!(), "::full_child")));
    let output = run(&inside).unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.contains("full file system refused"),
        "{said}{errors}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_content_makes_open_panic(
        edits in prop::collection::vec(
            (prop_oneof![3 => 0..size_of::<Head>(), 1 => MANIFEST_OFFSET..MANIFEST_OFFSET + 150], any::<u8>()),
            1..12,
        ),
        cut in prop::option::weighted(0.2, 0u64..2_200_000),
    ) {
        thread_local!(static DIR: Dir = {
            let dir = Dir::new();
            drop(dir.make());
            dir
        });
        DIR.with(|dir| {
            let whole = fs::read(dir.path()).unwrap();
            let file = File::options().write(true).open(dir.path()).unwrap();
            for (offset, byte) in &edits {
                put(&file, *offset, &[*byte]);
            }
            if let Some(len) = cut {
                file.set_len(len).unwrap();
            }
            let now = fs::read(dir.path()).unwrap();
            let changed = now != whole;
            // What lies behind the manifest means nothing.
            let json = MANIFEST_OFFSET + model(10).to_json().len();
            look(&dir.path()).unwrap();
            match SharedWeights::open(&dir.path(), &expect()) {
                Ok(weights) => {
                    assert_eq!(now[..json], whole[..json], "taken although changed");
                    weights.view().store(0, 0.0);
                }
                Err(error) => assert!(changed && !error.to_string().is_empty()),
            }
            file.set_len(whole.len() as u64).unwrap();
            put(&file, 0, &whole);
        });
    }
}

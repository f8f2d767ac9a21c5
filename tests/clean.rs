//! What jobs leave under /dev/shm: never lost, never removed while in use, and told of. Everything
//! here runs in a mount namespace with a /dev/shm of its own, so that other jobs of this machine
//! are safe.

#![cfg(feature = "program")]

mod support;

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use support::job::iterations;
use support::output::assert_says;
use support::process::Process;
use support::program::DOGWILD;
use support::wait::wait_for;
use tempfile::TempDir;

const DATA: [&str; 2] = ["--data", "digits:1,train=400,test=100"];

/// A /dev/shm of this size, as long as this lives.
struct Shm {
    holder: Process,
    user: bool,
    folder: TempDir,
}

impl Shm {
    /// `None` if the kernel forbids mount namespaces.
    fn new(size: &str) -> Option<Self> {
        let try_out = |flags: &[&str]| {
            let tried = Command::new("unshare").args(flags).arg("true").output();
            tried.is_ok_and(|output| output.status.success())
        };
        let user = !try_out(&["--mount"]);
        let mut flags = vec!["--mount"];
        if user {
            flags.push("--map-root-user");
        }
        if !try_out(&flags) {
            dogwild_lab::skip::skip("no mount namespace (run as root, or allow user namespaces)");
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let ready = folder.path().join("ready");
        let mut holder = Command::new("unshare");
        let script = format!(
            "mount -t tmpfs -o size={size} none /dev/shm && : > '{}' && exec sleep 100000",
            ready.display()
        );
        holder.args(flags).args(["sh", "-c", &script]);
        let mut shm = Self {
            holder: Process::start(&mut holder),
            user,
            folder,
        };
        wait_for("a /dev/shm", || {
            let ended = shm.holder.ended();
            assert!(ended.is_none(), "no /dev/shm: {ended:?}");
            ready.exists()
        });
        Some(shm)
    }

    /// A command with this /dev/shm, in this test's folder.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        dogwild_lab::process::die_with_parent(&mut command);
        command.args(["--target", &self.holder.id().to_string(), "--mount"]);
        if self.user {
            command.args(["--user", "--preserve-credentials"]);
        }
        command.arg(format!("--wd={}", self.folder.path().display()));
        command.args(words).stdin(Stdio::null());
        command
    }

    fn program(&self, args: &[&str]) -> Command {
        self.command(&[&[DOGWILD], args].concat())
    }

    /// The file or folder of this name under this /dev/shm, seen from outside.
    fn path(&self, name: &str) -> PathBuf {
        format!("/proc/{}/root/dev/shm/{name}", self.holder.id()).into()
    }

    fn has(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(""))
            .expect("/dev/shm")
            .flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.collect()
    }

    /// A job that goes on for ever, once both nodes have iterated.
    fn job(&self, out: &str) -> Job<'_> {
        let args = ["train", "--iterations", "0", "--out", out];
        let mut command = self.program(&[&args[..], &DATA].concat());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let job = Job {
            train: Process::start(&mut command),
            shm: self,
        };
        wait_for("two nodes that iterate", || {
            (0..2).all(|node| iterations(&self.path(&job.buffer(node))) > 1)
        });
        job
    }
}

struct Job<'s> {
    train: Process,
    shm: &'s Shm,
}

impl Job<'_> {
    fn buffer(&self, node: u32) -> String {
        format!("dogwild-train-{}-n{node}", self.train.id())
    }

    /// Kills it, and waits until no process uses its buffers.
    fn kill(&mut self) -> [String; 2] {
        let buffers = [self.buffer(0), self.buffer(1)];
        self.train.kill();
        wait_for("the end of all components", || {
            let free = |name: &String| {
                let file = std::fs::File::open(self.shm.path(name)).expect("the buffer");
                file.try_lock().is_ok()
            };
            buffers.iter().all(free)
        });
        buffers
    }

    fn interrupt(self) -> Output {
        self.train.signal("INT");
        self.train.output()
    }
}

/// What a command said that ended with `code`.
#[track_caller]
fn said(command: &mut Command, code: i32) -> String {
    let output = command.output().expect("it starts");
    let said = support::output::said(&output);
    assert_eq!(output.status.code(), Some(code), "{said}");
    said
}

/// A job killed with -9 leaves its only copy; `train` tells of it, `clean` lists it, and it goes
/// only when that is asked for. What measuring tools leave goes; what is in use, made by hand or
/// not ours stays.
#[test]
fn only_what_holds_nothing_unsaved_goes() {
    let Some(shm) = Shm::new("200m") else { return };
    let [kept, other] = shm.job("killed").kill();
    // What `rawbench conserve`, `rawbench gpu` and `dogwild-plan --emulate` leave, and a lonely
    // state.
    let copy = |name: &str| std::fs::copy(shm.path(&kept), shm.path(name)).expect("a copy");
    copy("dogwild-bench-7-n0");
    copy("by-hand");
    std::fs::copy(shm.path(&format!("{kept}.stream")), shm.path("gone.stream")).expect("a copy");
    std::fs::write(shm.path("stranger"), "a file of another program").expect("a file");
    for tool in ["dogwild-plan-7-0", "rawbench-gpu-7"] {
        std::fs::create_dir(shm.path(tool)).expect("a folder");
        std::fs::copy(shm.path(&kept), shm.path(tool).join("w")).expect("a copy");
        let old = ["touch", "-d", "2 hours ago"];
        let path = shm.path(tool);
        let (folder, file) = (
            path.display().to_string(),
            path.join("w").display().to_string(),
        );
        let status = Command::new(old[0])
            .args(&old[1..])
            .args([&file, &folder])
            .status();
        assert!(status.expect("touch").success());
    }
    let live = shm.job("live");
    let before = shm.names().len();

    let listed = said(&mut shm.program(&["clean"]), 0);
    let save = format!("dogwild snapshot --buffer /dev/shm/{kept} --out");
    let words = [
        "not saved",
        "in use by",
        "its buffer is gone",
        "rm /dev/shm/by-hand*",
        &save,
    ];
    assert_says(&listed, &words);
    assert!(!listed.contains("stranger"), "{listed}");
    assert_eq!(shm.names().len(), before, "listing removes nothing");

    said(&mut shm.program(&["clean", "--yes"]), 0);
    for gone in [
        "dogwild-bench-7-n0",
        "dogwild-plan-7-0",
        "rawbench-gpu-7",
        "gone.stream",
    ] {
        assert!(!shm.has(gone), "{gone} is still there");
    }
    for stays in [&kept, &other, "by-hand", "stranger", &live.buffer(0)] {
        assert!(shm.has(stays), "{stays} is gone");
    }

    // The next job tells of it, and rescuing works.
    let args = ["train", "--iterations", "2", "--out", "next"];
    let next = said(&mut shm.program(&[&args[..], &DATA].concat()), 0);
    assert_says(&next, &[&save, "dogwild clean"]);
    assert!(shm.has(&kept) && shm.has(&live.buffer(1)));
    let buffer = format!("/dev/shm/{kept}");
    let out = ["--out", "rescued.safetensors"];
    said(
        &mut shm.program(&[&["snapshot", "--buffer", &buffer], &out[..]].concat()),
        0,
    );
    let rescued = shm.folder.path().join("rescued.safetensors").metadata();
    assert!(rescued.expect("weights").len() > 1_000_000);
    said(&mut shm.program(&["clean", "--yes"]), 0);
    assert!(!shm.has(&kept) && shm.has(&other), "saved, and not saved");

    said(&mut shm.program(&["clean", "--yes", "--unsaved"]), 0);
    assert!(!shm.has(&kept) && !shm.has(&other));
    for stays in ["by-hand", "stranger", &live.buffer(0), &live.buffer(1)] {
        assert!(shm.has(stays), "{stays} is gone");
    }
    let ended = live.interrupt();
    assert_eq!(ended.status.code(), Some(130));
    assert!(shm.folder.path().join("live/weights.safetensors").exists());
}

/// Seen: with a shared /dev/shm and another process namespace, `train` deleted the files of a live
/// job, whose process number means nothing there.
#[test]
fn a_job_of_another_process_namespace_keeps_its_files() {
    let Some(shm) = Shm::new("200m") else { return };
    let live = shm.job("live");
    let inside = |args: &[&str]| {
        let unshare = ["unshare", "--pid", "--fork", "--mount-proc"];
        shm.command(&[&unshare[..], &[DOGWILD], args].concat())
    };
    let args = ["train", "--iterations", "2", "--out", "inside"];
    said(&mut inside(&[&args[..], &DATA].concat()), 0);
    let listed = said(&mut inside(&["clean", "--yes", "--unsaved"]), 0);
    assert_says(&listed, &["in use by"]);
    for node in 0..2 {
        for end in ["", ".stream", ".solver0"] {
            let name = live.buffer(node) + end;
            assert!(shm.has(&name), "{name} is gone");
        }
    }
    let ended = live.interrupt();
    assert_eq!(ended.status.code(), Some(130));
}

/// The sum for all nodes is named before anything is made, not the first file's.
#[test]
fn a_shm_that_is_too_small_is_refused_with_the_sum() {
    let Some(shm) = Shm::new("8m") else { return };
    for sync in [
        &["--nodes", "2"][..],
        &["--sync", "poseidon", "--workers", "4"],
    ] {
        let args = ["train", "--iterations", "2"];
        let refused = said(&mut shm.program(&[&args[..], &DATA, sync].concat()), 1);
        assert_says(
            &refused,
            &["/dev/shm has", "this job needs", "dogwild clean"],
        );
        assert!(shm.names().is_empty(), "{:?}", shm.names());
        assert!(
            !shm.folder.path().join("out").exists(),
            "an empty folder stayed"
        );
    }
}

/// Seen: with --key-file each node's file of taken frames (9 MB) was in no sum, and the second
/// streamer failed in a job that had begun.
#[test]
fn a_shm_that_is_too_small_for_the_files_of_seals_is_refused() {
    // Two nodes of LeNet take 15 MB, and 18 MB more with a key.
    let Some(shm) = Shm::new("24m") else { return };
    let key = shm.folder.path().join("key");
    std::fs::write(&key, "5a".repeat(32)).expect("a file");
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&key, private).expect("its mode");
    let job = [&["train", "--iterations", "2"][..], &DATA].concat();
    let with_key = [&job[..], &["--key-file", "key", "--out", "sealed"]].concat();
    let refused = said(&mut shm.program(&with_key), 1);
    assert_says(&refused, &["/dev/shm has", "--key-file", "dogwild clean"]);
    assert!(shm.names().is_empty(), "{:?}", shm.names());
    assert!(!shm.folder.path().join("sealed").exists());
    said(&mut shm.program(&job), 0);
}

//! The `verbs` transport tested for real: boots the Soft-RoCE machine (`tools/soft-roce`) and runs
//! in it the conformance suite, what only verbs must do, two-node streaming with conservation, and
//! rawbench. The machine sees this host's files, read-only, so it runs what cargo has built here.

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::RAWBENCH;
use support::process::Process;

/// The machine is stuck if it takes longer than this: some ten times what it needs without KVM.
const STUCK: Duration = Duration::from_secs(1800);

/// What runs in the machine, in this order.
const PARTS: [&str; 6] = ["conformance", "verbs", "conserve", "send", "ping", "doctor"];

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Where cargo puts its files.
fn target() -> PathBuf {
    let rawbench = Path::new(RAWBENCH);
    let target = rawbench.parent().and_then(Path::parent);
    target.expect("a folder above the program's").to_owned()
}

/// A program that cargo built: `test` or `bin`, its name, its file.
type Executable = (String, String, PathBuf);

/// The test programs and programs of the workspace, by name, as cargo built them for this very run.
fn executables() -> Vec<Executable> {
    let mut command = Command::new(env!("CARGO"));
    command
        .args([
            "test",
            "--workspace",
            "--no-run",
            // The third needs the program `dogwild`, which is built for it.
            "--test=conformance",
            "--test=verbs",
            "--test=doctor",
            "--message-format=json",
            "--quiet",
        ])
        .current_dir(here(".."))
        .stderr(Stdio::inherit())
        .stdin(Stdio::null());
    if RAWBENCH.contains("/release/") {
        command.arg("--release");
    }
    let output = command.output().expect("run cargo");
    assert!(
        output.status.success(),
        "cargo test --no-run: {}",
        output.status
    );
    let lines = String::from_utf8(output.stdout).expect("text");
    let built = lines.lines().filter_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        let program = message["executable"].as_str()?.into();
        // A program's own unit tests have its name too.
        let target = &message["target"];
        let kind = target["kind"][0].as_str()?.to_owned();
        let whole = kind == "test" || message["profile"]["test"] == false;
        whole.then_some((kind, target["name"].as_str()?.to_owned(), program))
    });
    built.collect()
}

/// Builds the machine; `None` (said loudly) where something for that is missing.
fn build(folder: &Path) -> Option<()> {
    let missing = |what: &str| {
        dogwild_lab::skip::skip(what);
        None
    };
    let version = Command::new("qemu-system-x86_64").arg("--version").output();
    if version.is_err() {
        return missing("qemu-system-x86_64 (Debian: apt-get install qemu-system-x86)");
    }
    let library = "/usr/lib/x86_64-linux-gnu/libibverbs";
    if !Path::new(library).exists()
        || !Path::new("/usr/bin/rdma").exists() && !Path::new("/bin/rdma").exists()
    {
        return missing(
            "RDMA user space (Debian: apt-get install libibverbs1 ibverbs-providers iproute2)",
        );
    }
    let output = Command::new(here("soft-roce/build"))
        .arg(folder)
        .output()
        .expect("run build");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    match output.status.code() {
        Some(0) => Some(()),
        // What it needs of this host is not there, and it says what.
        Some(3) => missing(said.trim()),
        _ => panic!(
            "tools/soft-roce/build: {said}{}",
            String::from_utf8_lossy(&output.stderr)
        ),
    }
}

/// The script that the machine runs.
fn script(executables: &[Executable]) -> String {
    let program = |wanted: &str, name: &str| {
        let is = |(kind, other, _): &&Executable| (&**kind, &**other) == (wanted, name);
        let (_, _, path) = executables
            .iter()
            .find(is)
            .unwrap_or_else(|| panic!("cargo built no {wanted} `{name}`"));
        path.display()
    };
    format!(
        r#"
        . {guest}
        export DOGWILD_VERBS_PORTS=rxe0:1,rxe1:1 DOGWILD_VERBS_SWITCH=roce0,roce1 RUST_BACKTRACE=0 RUST_LOG=error
        # Plain and under one wrapper: the others are above the transport, and tested on others.
        part conformance {conformance} --test-threads 1 --include-ignored verbs_ \
            --skip under_capture --skip under_seal --skip under_pace --skip under_all
        part verbs {verbs} --test-threads 1
        part conserve {rawbench} conserve --transport verbs --iface rxe0,rxe1 --weights 30000 \
            --loss 30% --duplicate 1% --reorder 1% --seconds 1 --kills 2
        {rawbench} recv --transport verbs --iface rxe1 &
        receiver=$!
        part send {rawbench} send --transport verbs --iface rxe0 2>/dev/null
        part ping {rawbench} ping --transport verbs --iface rxe0 2>/dev/null
        kill $receiver
        part doctor bash -c \
            '{dogwild} doctor --json | grep -A3 "\"name\": \"verbs\"" | grep "\"state\": \"works\""'
        "#,
        guest = here("soft-roce/guest").display(),
        conformance = program("test", "conformance"),
        verbs = program("test", "verbs"),
        rawbench = RAWBENCH,
        dogwild = program("bin", "dogwild"),
    )
}

/// Boots the machine and returns its console (also in the file `console` meanwhile); kills it when
/// it is stuck.
fn boot(folder: &Path, script: &Path) -> (Vec<String>, bool) {
    let (console, writer) = std::io::pipe().expect("a pipe");
    let mut command = Command::new(here("soft-roce/run"));
    command
        .args([folder, script])
        .stdin(Stdio::null())
        .stdout(Stdio::from(writer))
        .stderr(Stdio::inherit());
    let mut machine = Process::start(&mut command);
    // The command holds an end of the pipe, which the machine alone may keep open.
    drop(command);
    let console = BufReader::new(console);
    let (sender, lines) = mpsc::channel();
    let reader = thread::spawn(move || {
        for line in console.split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).trim_end().to_owned();
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    let end = Instant::now() + STUCK;
    let mut file = fs::File::create(folder.join("console")).expect("a file for the console");
    let mut seen = Vec::new();
    let stuck = loop {
        match lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                writeln!(file, "{line}").expect("write the console");
                seen.push(line);
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => break false,
            Err(mpsc::RecvTimeoutError::Timeout) => break true,
        }
    };
    machine.kill();
    drop(lines);
    let _ = reader.join();
    (seen, stuck)
}

#[test]
#[ignore = "long: boots a virtual machine"]
fn verbs_does_what_it_must_on_soft_roce() {
    let folder = target().join("soft-roce");
    if build(&folder).is_none() {
        return;
    }
    let file = folder.join("parts");
    fs::write(&file, script(&executables())).expect("write the script");
    let start = Instant::now();
    let (console, stuck) = boot(&folder, &file);
    let text = console.join("\n");
    assert!(!stuck, "the machine is stuck:\n{text}");
    for part in PARTS {
        let passed = format!("PART PASS {part} ");
        let line = console.iter().find(|line| line.starts_with(&passed));
        println!(
            "{}",
            line.unwrap_or_else(|| panic!("part `{part}` failed:\n{text}"))
        );
    }
    let accelerator = console
        .iter()
        .find(|line| line.starts_with("MACHINE accelerator"));
    println!(
        "{} s on {}",
        start.elapsed().as_secs(),
        accelerator.map_or("?", |line| line.as_str())
    );
}

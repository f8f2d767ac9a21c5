//! The program `dogwild-lab`, and that nothing is left of a lab, whatever ends it.

use dogwild_lab::skip::skip;
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The program with a registry of its own.
fn program(registry: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dogwild-lab"));
    command.env("XDG_RUNTIME_DIR", registry);
    command
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

#[test]
fn the_version_names_the_commit() {
    let folder = tempfile::tempdir().unwrap();
    let output = program(folder.path()).arg("--version").output().unwrap();
    let start = format!("dogwild-lab {} (", env!("CARGO_PKG_VERSION"));
    let said = text(&output);
    assert!(
        said.starts_with(&start) && said.contains("commit"),
        "{said}"
    );
}

/// True, and printed, if this kernel does not let this user make a lab here.
fn forbidden() -> bool {
    let folder = tempfile::tempdir().unwrap();
    let out = program(folder.path())
        .args(["run", "1", "--", "true"])
        .output()
        .unwrap();
    let refused = text(&out).contains("refused a new namespace");
    if refused {
        skip(&text(&out));
    }
    refused
}

/// Inodes of the network namespaces that processes, descriptors or mounts still hold.
fn held() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut note = |path: &Path| {
        let target = fs::read_link(path).unwrap_or_default();
        let target = target.to_string_lossy();
        if target.starts_with("net:[") {
            found.insert(target.into_owned());
        }
    };
    for process in fs::read_dir("/proc").unwrap().flatten() {
        note(&process.path().join("ns/net"));
        for fd in fs::read_dir(process.path().join("fd"))
            .into_iter()
            .flatten()
            .flatten()
        {
            note(&fd.path());
        }
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mounted = mounts
        .split_whitespace()
        .filter(|word| word.starts_with("net:["));
    found.extend(mounted.map(str::to_owned));
    found
}

fn interfaces() -> BTreeSet<String> {
    let table = fs::read_to_string("/proc/net/dev").unwrap();
    table
        .lines()
        .filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned()))
        .collect()
}

/// Waits until none of `namespaces` is held; the limit only keeps a failure from hanging.
fn wait_until_gone(namespaces: &BTreeSet<String>) {
    let start = Instant::now();
    while !held().is_disjoint(namespaces) {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "{namespaces:?} are still held"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn nothing_is_left_after_kill_9() {
    if forbidden() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let before = interfaces();
    let script = "for pid in $DOGWILD_LAB_PIDS; do readlink /proc/$pid/ns/net; done; \
                  echo $$; exec sleep 1000";
    let mut owner = program(folder.path())
        .args([
            "run", "3", "--loss", "1%", "--rate", "1gbit", "--", "sh", "-c", script,
        ])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(owner.stdout.take().unwrap())
        .lines()
        .map(Result::unwrap);
    let namespaces: BTreeSet<String> = lines.by_ref().take(3).collect();
    let inside: String = lines.next().unwrap();
    assert_eq!(namespaces.len(), 3);
    assert!(held().is_superset(&namespaces));
    assert_eq!(
        interfaces(),
        before,
        "an interface appeared in the machine's own namespace"
    );

    owner.kill().unwrap();
    owner.wait().unwrap();
    // The processes that held them are gone then, the command inside too.
    wait_until_gone(&namespaces);
    let state = fs::read_to_string(format!("/proc/{inside}/stat")).unwrap_or_default();
    assert!(
        state.is_empty() || state.contains(") Z "),
        "the command lives: {state}"
    );
    assert_eq!(interfaces(), before);
}

#[test]
fn a_lab_comes_up_is_entered_listed_and_goes_down() {
    if forbidden() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let say = |words: &[&str]| {
        let out = program(folder.path()).args(words).output().unwrap();
        (out.status.success(), text(&out))
    };
    assert!(say(&["list"]).1.contains("no lab is up"));
    let (ok, up) = say(&["up", "2", "--name", "x", "--mtu", "9000"]);
    assert!(ok && up.contains("host 1  10.77.0.2"), "{up}");
    assert!(say(&["list"]).1.contains("lab x"));

    let (ok, twice) = say(&["up", "2", "--name", "x"]);
    assert!(
        !ok && twice.contains("up already") && twice.contains("--name"),
        "{twice}"
    );
    let (ok, shown) = say(&[
        "exec", "x", "1", "--", "/sbin/ip", "-o", "link", "show", "eth0",
    ]);
    assert!(
        ok && shown.contains("mtu 9000") && shown.contains("02:44:57:00:00:02"),
        "{shown}"
    );
    let (ok, beyond) = say(&["exec", "x", "2", "--", "true"]);
    assert!(!ok && beyond.contains("hosts 0 to 1, not 2"), "{beyond}");

    // Ends also what does not heed SIGTERM.
    let stubborn = [
        "exec",
        "x",
        "0",
        "--",
        "sh",
        "-c",
        "trap '' TERM; sleep 1000 & readlink /proc/self/ns/net; wait",
    ];
    let mut stubborn = program(folder.path())
        .args(stubborn)
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    let lines = BufReader::new(stubborn.stdout.take().unwrap()).lines();
    let namespaces: BTreeSet<String> = lines.take(1).map(Result::unwrap).collect();
    let (ok, down) = say(&["down", "x"]);
    assert!(ok, "{down}");
    stubborn.wait().unwrap();
    wait_until_gone(&namespaces);
    let (ok, again) = say(&["down", "x"]);
    assert!(!ok && again.contains("no lab x"), "{again}");
    assert_eq!(
        fs::read_dir(folder.path().join("dogwild-lab"))
            .unwrap()
            .count(),
        0
    );
}

#[test]
fn a_lab_whose_holder_was_killed_is_forgotten() {
    if forbidden() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let say = |words: &[&str]| text(&program(folder.path()).args(words).output().unwrap());
    let up = say(&["up", "2"]);
    let holder = up
        .split_once("held by process ")
        .and_then(|(_, rest)| rest.split(')').next());
    let killed = Command::new("kill")
        .args(["-9", holder.unwrap()])
        .status()
        .unwrap();
    assert!(killed.success());
    let start = Instant::now();
    while !say(&["list"]).contains("no lab is up") {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "the dead lab is still listed"
        );
    }
    assert!(say(&["up", "2"]).contains("lab lab"));
    assert!(say(&["down"]).contains("is down"));
}

#[test]
fn the_result_of_the_command_is_the_result() {
    if forbidden() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let code = |script: &str| {
        let run = ["run", "1", "--", "sh", "-c", script];
        program(folder.path()).args(run).status().unwrap().code()
    };
    assert_eq!(code("exit 7"), Some(7));
    assert_eq!(code("kill -9 $$"), Some(137));
}

#[test]
fn commands_find_the_other_hosts() {
    if forbidden() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "{} exec . 2 -- /sbin/ip -o addr",
        env!("CARGO_BIN_EXE_dogwild-lab")
    );
    let out = program(folder.path())
        .args(["run", "3", "--", "sh", "-c", &script])
        .output();
    let seen = text(&out.unwrap());
    assert!(seen.contains("10.77.0.3/24"), "{seen}");
}

#[test]
fn wrong_arguments_teach() {
    let folder = tempfile::tempdir().unwrap();
    let says = |words: &[&str]| {
        let out = program(folder.path()).args(words).output().unwrap();
        assert!(!out.status.success(), "{words:?} was accepted");
        text(&out)
    };
    assert!(says(&["run", "0", "--", "true"]).contains("1 to 254 hosts"));
    assert!(says(&["run", "2", "--loss", "300%", "--", "true"]).contains("0% to 100%"));
    assert!(says(&["run", "2", "--loss", "some", "--", "true"]).contains("0.1 or 10%"));
    assert!(says(&["run", "3", "--cable", "direct", "--", "true"]).contains("exactly 2 hosts"));
    assert!(says(&["up", "2", "--name", "../x"]).contains("a lab's name has"));
    assert!(says(&["exec", ".", "0", "--", "true"]).contains("no lab around"));
    assert!(says(&["down", "x"]).contains("no lab x is up"));
}

/// On the code before: `up` panicked (101) and the lab stayed.
#[test]
fn a_lab_whose_making_could_not_be_told_is_removed() {
    if forbidden() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let run = |words: &[&str], stdout: Stdio| {
        let mut command = program(folder.path());
        command.args(words).stdin(Stdio::null()).stdout(stdout);
        command.stderr(Stdio::piped());
        let out = command.spawn().unwrap().wait_with_output().unwrap();
        (out.status.code(), text(&out))
    };
    let full = || {
        fs::OpenOptions::new()
            .write(true)
            .open("/dev/full")
            .unwrap()
    };
    let (code, said) = run(&["up", "1", "--name", "full"], full().into());
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("No space left") && said.contains("removed"),
        "{said}"
    );
    let (_, listed) = run(&["list"], Stdio::piped());
    assert!(listed.contains("no lab is up"), "{listed}");

    // A reader that goes away is not a failure: the lab is there.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let (code, said) = run(&["up", "1", "--name", "closed"], writer.into());
    assert_eq!((code, said.as_str()), (Some(0), ""));
    let (_, listed) = run(&["list"], Stdio::piped());
    assert!(listed.contains("lab closed"), "{listed}");
    let (code, said) = run(&["down", "closed"], full().into());
    assert_eq!(code, Some(1), "{said}");
    let (code, said) = run(&["list"], full().into());
    assert_eq!(code, Some(1), "{said}");
}

#[test]
fn shares_are_those_of_all_programs() {
    let folder = tempfile::tempdir().unwrap();
    for (given, says) in [
        ("10", "10% or 0.1"),
        ("-10%", "between 0 and 1"),
        ("x", "0.1 or 10%"),
    ] {
        let mut command = program(folder.path());
        let out = command
            .args(["run", "2", "--loss", given, "--", "true"])
            .output()
            .unwrap();
        let said = text(&out);
        assert!(
            !out.status.success() && said.contains(says),
            "{given}: {said}"
        );
    }
}

//! `dogwild doctor` and `--iface auto`: what they say as root and as an ordinary user.

#![cfg(feature = "program")]

mod support;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use serde_json::Value;
use support::program::{DOGWILD, dogwild};

/// Runs `doctor --json`, which must end well, and returns its report.
fn report(command: &mut Command) -> Value {
    let output = command
        .args(["doctor", "--json"])
        .env("RUST_LOG", "off")
        .output()
        .expect("doctor runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(!said.contains("panicked"), "{said}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// A check of a section by its name.
fn check<'a>(report: &'a Value, section: &str, name: &str) -> &'a Value {
    let checks = report[section].as_array().expect("a section");
    checks
        .iter()
        .find(|check| check["name"] == name)
        .unwrap_or_else(|| panic!("{section}/{name} is missing in {report}"))
}

fn assert_sound(report: &Value) {
    for section in [
        "host",
        "transports",
        "interfaces",
        "iface_auto",
        "labs",
        "memory",
        "devices",
    ] {
        for check in report[section].as_array().expect("a section") {
            let missing = check["state"] == "missing";
            let needs = check["needs"].as_array().expect("needs");
            let not_built = check["found"] == "not in this build";
            assert!(
                !missing || !needs.is_empty() || not_built,
                "{check} needs what?"
            );
        }
    }
    let udp = check(report, "transports", "udp");
    assert_ne!(udp["state"], "missing", "{udp}");
    let found = udp["found"].as_str().expect("text");
    assert!(found.contains("round trip in"), "{udp}");
    assert!(
        check(report, "interfaces", "lo")["found"]
            .to_string()
            .contains("MTU")
    );
    assert!(
        check(report, "memory", "/dev/shm")["found"]
            .to_string()
            .contains("MiB free")
    );
    check(report, "transports", "packet_mmap");
    check(report, "transports", "af_xdp");
    check(report, "transports", "verbs");
    check(report, "iface_auto", "udp");
    assert_eq!(check(report, "devices", "host")["state"], "works");
    check(report, "devices", "cuda");
}

#[test]
fn every_section_is_there_and_what_is_missing_says_what_it_needs() {
    let report = report(&mut dogwild());
    assert_sound(&report);
    let lab = check(&report, "labs", "hosts")["state"] == "works";
    let raw = check(&report, "transports", "packet_mmap");
    assert!(
        !lab || raw["found"]
            .to_string()
            .contains("hosts of a lab: round trip"),
        "{raw}"
    );
}

#[test]
fn an_ordinary_user_is_told_the_capability() {
    let bin = tempfile::tempdir().expect("a folder");
    std::fs::set_permissions(bin.path(), std::fs::Permissions::from_mode(0o755)).expect("chmod");
    // A copy that any user may run, wherever this tree lies.
    let copy = bin.path().join("dogwild");
    std::fs::copy(DOGWILD, &copy).expect("a copy");
    let mut command = Command::new(copy);
    command.current_dir("/");
    if dogwild_lab::enter::privileged() {
        command.uid(65_534).gid(65_534);
    }
    let report = report(&mut command);
    assert_sound(&report);
    let raw = check(&report, "transports", "packet_mmap");
    assert_ne!(raw["state"], "works", "{raw}");
    let needs = raw["needs"].to_string();
    assert!(
        needs.contains("CAP_NET_RAW") && needs.contains("setcap"),
        "{raw}"
    );
}

#[test]
fn the_table_has_a_line_for_each() {
    let output = dogwild().arg("doctor").output().expect("doctor runs");
    let said = String::from_utf8_lossy(&output.stdout);
    for word in [
        "transports",
        "udp",
        "packet_mmap",
        "af_xdp",
        "labs",
        "/dev/shm",
        "works",
    ] {
        assert!(said.contains(word), "`{word}` is missing in:\n{said}");
    }
}

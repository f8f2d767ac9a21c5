//! Tests of the schedule and of the record; whole snapshots are tested in `tests/resume.rs`.

use std::collections::BTreeMap;
use std::fs;

use super::super::snapshot_record::{FileRecord, MANIFEST, NodeRecord, Reason, WEIGHTS, folders};
use super::*;
use crate::job::Solvers;

const NO_TIME: Duration = Duration::ZERO;

#[test]
fn the_option_comes_before_the_solver_file_and_0_is_none() {
    let of = |asked: &str, file| Schedule::of(Some(asked.parse().expect(asked)), file);
    assert_eq!(Schedule::of(None, 0).every, None);
    let file = Some((50, Reason::SolverFile));
    assert_eq!(Schedule::of(None, 50).every, file);
    assert_eq!(of("7", 50).every, Some((7, Reason::SnapshotEvery)));
    assert_eq!(of("0", 50).every, None);
    assert_eq!(of("0", 50).between, None);
    for schedule in [Schedule::of(None, 0), of("7", 50)] {
        assert_eq!(schedule.between, Some(TIME_BETWEEN));
    }
    // A time takes the place of the minute, and of nothing else.
    assert_eq!(of("5s", 50).every, file);
    assert_eq!(of("5s", 0).between, Some(Duration::from_secs(5)));
}

#[test]
fn one_is_due_when_its_iteration_has_passed_or_its_time() {
    let schedule = Schedule::of(None, 50);
    let due = |last, now, since| schedule.due(last, now, since, NO_TIME);
    assert_eq!(due(0, 49, NO_TIME), None);
    assert_eq!(due(0, 50, NO_TIME), Some(Reason::SolverFile));
    assert_eq!(due(53, 99, NO_TIME), None);
    assert_eq!(due(53, 104, NO_TIME), Some(Reason::SolverFile));
    assert_eq!(due(53, 54, TIME_BETWEEN), Some(Reason::Time));
    // One that takes long comes less often.
    let took = Duration::from_secs(10);
    let late = |since| schedule.due(53, 54, Duration::from_secs(since), took);
    assert_eq!((late(199), late(200)), (None, Some(Reason::Time)));
    let none = Schedule::of(Some(SnapshotEvery::Iterations(0)), 50);
    assert_eq!(none.due(0, 1000, 100 * TIME_BETWEEN, NO_TIME), None);
}

fn record() -> Record {
    Record {
        format: FORMAT,
        dogwild: "0".into(),
        reason: Reason::Time,
        sequence: 3,
        model: "lenet".into(),
        fingerprint: hex(1),
        data: "digits".into(),
        train_images: 10,
        seed: 1,
        nodes: 1,
        solvers_per_node: Solvers::Each(1),
        iterations: 12,
        iterations_asked: 0,
        per_node: vec![NodeRecord {
            node: 0,
            iterations: 12,
            solvers: Vec::new(),
        }],
        files: BTreeMap::new(),
        xxh3: String::new(),
    }
}

#[test]
fn every_changed_byte_of_a_manifest_and_of_a_file_is_seen() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let data = dir.join(WEIGHTS);
    fs::write(&data, [7; 100]).expect("a file");
    let mut record = record();
    let file = FileRecord::of(&data).expect("a file");
    record.files.insert(WEIGHTS.into(), file);
    let text = record.text().expect("JSON").into_bytes();
    let path = dir.join(MANIFEST);
    fs::write(&path, &text).expect("a file");
    let read = Record::read(dir).expect("whole");
    read.check_files(dir).expect("whole");
    assert_eq!((read.iterations, read.sequence), (12, 3));
    for at in 0..text.len() {
        let mut changed = text.clone();
        changed[at] ^= 1;
        fs::write(&path, &changed).expect("a file");
        let same = Record::read(dir).is_ok_and(|found| found == read);
        // White space and the like says nothing.
        assert!(Record::read(dir).is_err() || same, "byte {at}");
    }
    for (damage, word) in [(vec![7; 99], "99 bytes"), (vec![6; 100], "checksum")] {
        fs::write(&data, damage).expect("a file");
        let said = read.check_files(dir).expect_err("damaged").to_string();
        assert!(said.contains(word) && said.contains(WEIGHTS), "{said}");
    }
    fs::remove_file(&data).expect("it is there");
    let said = read.check_files(dir).expect_err("gone").to_string();
    assert!(said.contains(WEIGHTS), "{said}");
}

#[test]
fn a_manifest_of_a_later_program_is_called_that() {
    let dir = tempfile::tempdir().expect("a folder");
    let text = r#"{"format": 2, "what": "is not known yet"}"#;
    fs::write(dir.path().join(MANIFEST), text).expect("a file");
    let said = Record::read(dir.path()).expect_err("newer").to_string();
    assert!(said.contains("format 2"), "{said}");
}

#[test]
fn only_numbers_are_snapshots() {
    let dir = tempfile::tempdir().expect("a folder");
    for name in ["12", "7.old", "12.new", "x", "old", "1.2", ".old"] {
        fs::create_dir(dir.path().join(name)).expect("a folder");
    }
    let mut found = folders(dir.path());
    found.sort();
    assert_eq!(found, ["12", "7.old"].map(|name| dir.path().join(name)));
    assert!(folders(&dir.path().join("none")).is_empty());
    remove_unfinished(dir.path());
    assert!(!dir.path().join("12.new").exists() && dir.path().join("x").exists());
}

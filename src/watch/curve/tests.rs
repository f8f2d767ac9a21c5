//! Rows that survive a kill.

use std::fs;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

pub(super) fn row(iteration: u64) -> CurveRow {
    let seconds = iteration as f64 * 0.5;
    let (loss, test_accuracy) = (
        Some(2.0 / (iteration + 1) as f64),
        (iteration.is_multiple_of(2)).then_some(0.9),
    );
    CurveRow {
        node: 1,
        solver: 0,
        iteration,
        seconds,
        loss,
        test_loss: None,
        test_accuracy,
    }
}

fn place() -> (TempDir, std::path::PathBuf) {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("curve.csv");
    (dir, path)
}

fn write(path: &std::path::Path, iterations: std::ops::Range<u64>) {
    let mut writer = CurveWriter::append(path).unwrap();
    iterations.for_each(|i| writer.write(&row(i)).unwrap());
}

fn rows(range: std::ops::Range<u64>) -> Vec<CurveRow> {
    range.map(row).collect()
}

#[test]
fn rows_are_in_the_file_at_once_and_as_documented() {
    let (_dir, path) = place();
    let mut writer = CurveWriter::append(&path).unwrap();
    writer.write(&row(0)).unwrap();
    writer.write(&row(1)).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    let header = "node,solver,iteration,seconds,loss,test_loss,test_accuracy";
    assert_eq!(
        text,
        format!("{header}\n1,0,0,0.0,2.0,,0.9\n1,0,1,0.5,1.0,,\n")
    );
    assert_eq!(read_rows(&path).unwrap(), rows(0..2));
}

#[test]
fn appending_goes_on_after_a_kill_at_any_byte() {
    let (_dir, path) = place();
    write(&path, 0..3);
    let whole = fs::read(&path).unwrap();
    for len in 0..=whole.len() {
        fs::write(&path, &whole[..len]).unwrap();
        let kept = read_rows(&path).unwrap();
        assert_eq!(kept, rows(0..kept.len() as u64));
        write(&path, 3..4);
        assert_eq!(
            read_rows(&path).unwrap(),
            [&kept[..], &rows(3..4)].concat(),
            "cut at {len}"
        );
    }
}

#[test]
fn losses_that_are_not_finite_come_back() {
    let (_dir, path) = place();
    let mut writer = CurveWriter::append(&path).unwrap();
    writer
        .write(&CurveRow {
            loss: Some(f64::NAN),
            test_loss: Some(f64::INFINITY),
            ..row(1)
        })
        .unwrap();
    let rows = read_rows(&path).unwrap();
    assert!(rows[0].loss.unwrap().is_nan() && rows[0].test_loss == Some(f64::INFINITY));
}

#[test]
fn other_files_are_refused_and_left_alone() {
    let (_dir, path) = place();
    for content in ["name,age\nA,3\n", "notes without an end of line"] {
        fs::write(&path, content).unwrap();
        for message in [
            CurveWriter::append(&path).unwrap_err().to_string(),
            read_rows(&path).unwrap_err().to_string(),
        ] {
            assert!(
                message.contains("curve.csv: is not a learning curve"),
                "{message}"
            );
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), content);
    }
}

#[test]
fn a_damaged_line_is_named() {
    let (_dir, path) = place();
    write(&path, 0..3);
    let text = fs::read_to_string(&path)
        .unwrap()
        .replace("1,0,1,", "1,0,x,");
    fs::write(&path, text).unwrap();
    let message = read_rows(&path).unwrap_err().to_string();
    assert!(
        message.contains("curve.csv") && message.contains("line: 3"),
        "{message}"
    );
}

#[test]
fn a_missing_file_is_named() {
    let message = read_rows("/nowhere/curve.csv".as_ref())
        .unwrap_err()
        .to_string();
    assert!(message.contains("/nowhere/curve.csv"), "{message}");
    let message = CurveWriter::append("/nowhere/curve.csv".as_ref())
        .unwrap_err()
        .to_string();
    assert!(message.contains("/nowhere/curve.csv"), "{message}");
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(start: bool, bytes: Vec<u8>) {
        let (_dir, path) = place();
        let header: &[u8] = if start { b"node,solver,iteration,seconds,loss,test_loss,test_accuracy\n" } else { b"" };
        fs::write(&path, [header, &bytes].concat()).unwrap();
        let _ = read_rows(&path);
    }
}

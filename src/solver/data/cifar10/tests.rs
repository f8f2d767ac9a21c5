//! The CIFAR-10 loader on good files, every kind of bad file, random bytes and the real set.

use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

/// A file of two records; the first byte of each plane tells them apart.
fn file(number: u8) -> Vec<u8> {
    let mut bytes = vec![number; 2 * RECORD_BYTES];
    bytes[0] = number;
    bytes[RECORD_BYTES] = 9 - number;
    bytes[1] = 100 + number;
    bytes
}

fn load_changed(change: impl FnOnce(&Path)) -> Result<DataSet, DataError> {
    let dir = TempDir::new().unwrap();
    for (number, name) in TRAIN.iter().chain(&TEST).enumerate() {
        fs::write(dir.path().join(name), file(number as u8)).unwrap();
    }
    change(dir.path());
    load_records(dir.path(), 2)
}

fn message_with(name: &str, bytes: Vec<u8>) -> String {
    let result = load_changed(|dir| fs::write(dir.join(name), bytes).unwrap());
    result.unwrap_err().to_string()
}

fn check(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "`{part}` is not in: {message}");
    }
}

#[test]
fn good_files_are_read() {
    let set = load_changed(|_| {}).unwrap();
    assert_eq!(
        (set.train.len(), set.train.shape, set.test.len()),
        (10, [3, 32, 32], 2)
    );
    assert_eq!(set.train.labels, [0, 9, 1, 8, 2, 7, 3, 6, 4, 5]);
    assert_eq!(set.test.labels, [5, 4]);
    assert_eq!(set.train.image(4)[..2], [102, 2]);
}

#[test]
fn the_folder_of_the_archive_is_found() {
    let set = load_changed(|dir| {
        fs::create_dir(dir.join(INNER)).unwrap();
        for name in TRAIN.iter().chain(&TEST) {
            fs::rename(dir.join(name), dir.join(INNER).join(name)).unwrap();
        }
    });
    assert_eq!(set.unwrap(), load_changed(|_| {}).unwrap());
}

#[test]
fn a_missing_folder_is_named() {
    let message = load(Path::new("/nowhere/cifar")).unwrap_err().to_string();
    check(
        &message,
        &["/nowhere/cifar", "no such folder", "cifar-10-binary.tar.gz"],
    );
}

#[test]
fn a_missing_file_is_named() {
    let result = load_changed(|dir| fs::remove_file(dir.join(TRAIN[3])).unwrap());
    let message = result.unwrap_err().to_string();
    check(
        &message,
        &["training images are missing", "data_batch_4.bin", "unpack"],
    );
}

#[test]
fn truncated_and_long_files_are_refused() {
    let mut bytes = file(1);
    bytes.push(0);
    check(
        &message_with(TEST[0], bytes),
        &["test_batch.bin", "goes on after the 6146 bytes"],
    );
    for len in [0, 1, RECORD_BYTES, 2 * RECORD_BYTES - 1] {
        let message = message_with(TRAIN[2], file(2)[..len].to_vec());
        check(
            &message,
            &[
                "data_batch_3.bin",
                "truncated",
                &format!(" {len} bytes (unpacked) of 6146"),
            ],
        );
    }
}

#[test]
fn a_label_that_is_no_class_is_refused() {
    let mut bytes = file(1);
    bytes[RECORD_BYTES] = 10;
    check(
        &message_with(TRAIN[4], bytes),
        &["data_batch_5.bin", "label 10 of image 1", "below 10"],
    );
}

#[test]
fn the_real_set_is_read() {
    let Some(dir) = std::env::var_os("DOGWILD_CIFAR10") else {
        return dogwild_lab::skip::skip(
            "DOGWILD_CIFAR10 does not name the folder of data_batch_1.bin",
        );
    };
    let set = load(&PathBuf::from(dir)).unwrap();
    for (images, each) in [(&set.train, 5_000), (&set.test, 1_000)] {
        assert_eq!(images.len(), 10 * each);
        let mut counts = [0; 10];
        images
            .labels
            .iter()
            .for_each(|&label| counts[usize::from(label)] += 1);
        assert_eq!(counts, [each; 10]);
    }
    // The well-known means of red, green and blue: 0.4914, 0.4822, 0.4465 of 255.
    let mean = set.train.mean_image();
    for (plane, known) in mean.chunks(1024).zip([0.4914, 0.4822, 0.4465]) {
        let mean = plane.iter().sum::<f32>() / 1024.0 / 255.0;
        assert!((mean - known).abs() < 2e-3, "{mean} for {known}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn random_bytes_never_panic(start: Vec<u8>, len in 0..3 * RECORD_BYTES, which in 0..6usize) {
        let bytes: Vec<u8> = start.iter().copied().cycle().take(if start.is_empty() { 0 } else { len }).collect();
        let name = TRAIN.iter().chain(&TEST).nth(which).unwrap();
        let _ = load_changed(|dir| fs::write(dir.join(name), bytes).unwrap());
    }
}

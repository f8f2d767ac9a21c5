//! The MNIST loader on good files, every kind of bad file, random bytes and the real set.

use std::fs;
use std::io::Write;

use flate2::{Compression, write::GzEncoder};
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

const TRAIN: [&str; 2] = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte"];
const TEST: [&str; 2] = ["t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"];

fn idx(magic: u32, sizes: &[u32], body: &[u8]) -> Vec<u8> {
    let words = std::iter::once(&magic).chain(sizes);
    words
        .flat_map(|word| word.to_be_bytes())
        .chain(body.iter().copied())
        .collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn images() -> Vec<u8> {
    let body: Vec<u8> = (0..18).collect();
    idx(IMAGES_MAGIC, &[3, 2, 3], &body)
}

fn labels() -> Vec<u8> {
    idx(LABELS_MAGIC, &[3], &[9, 0, 4])
}

/// A folder with a good set of three images each; then `change` spoils it.
fn load_changed(change: impl FnOnce(&Path)) -> Result<DataSet, DataError> {
    let dir = TempDir::new().unwrap();
    for names in [TRAIN, TEST] {
        fs::write(dir.path().join(names[0]), images()).unwrap();
        fs::write(dir.path().join(names[1]), labels()).unwrap();
    }
    change(dir.path());
    load(dir.path())
}

/// The message about a set of which one file was replaced.
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
    for images in [&set.train, &set.test] {
        assert_eq!(
            (images.len(), images.shape, images.classes),
            (3, [1, 2, 3], 10)
        );
        assert_eq!(images.labels, [9, 0, 4]);
        assert_eq!(images.image(1), [6, 7, 8, 9, 10, 11]);
    }
}

#[test]
fn gzip_and_names_with_a_dot_are_read() {
    let set = load_changed(|dir| {
        for name in TRAIN {
            let dotted = format!("{}.gz", name.replace("-idx", ".idx"));
            fs::write(dir.join(dotted), gzip(&fs::read(dir.join(name)).unwrap())).unwrap();
            fs::remove_file(dir.join(name)).unwrap();
        }
        // Packed although the name does not say so.
        fs::write(dir.join(TEST[0]), gzip(&images())).unwrap();
    });
    assert_eq!(set.unwrap(), load_changed(|_| {}).unwrap());
}

#[test]
fn a_missing_folder_is_named() {
    let message = load(Path::new("/nowhere/mnist")).unwrap_err().to_string();
    check(
        &message,
        &["/nowhere/mnist", "no such folder", "four idx files"],
    );
}

#[test]
fn a_file_for_a_folder_is_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let message = load(file.path()).unwrap_err().to_string();
    check(
        &message,
        &[file.path().to_str().unwrap(), "is not a folder"],
    );
}

#[test]
fn a_missing_file_lists_the_names_looked_for() {
    let result = load_changed(|dir| fs::remove_file(dir.join(TEST[1])).unwrap());
    let message = result.unwrap_err().to_string();
    check(
        &message,
        &[
            "test labels are missing",
            "t10k-labels-idx1-ubyte, ",
            "t10k-labels.idx1-ubyte.gz",
        ],
    );
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let result = load_changed(|dir| {
        fs::remove_file(dir.join(TRAIN[0])).unwrap();
        fs::create_dir(dir.join(TRAIN[0])).unwrap();
    });
    check(
        &result.unwrap_err().to_string(),
        &[TRAIN[0], "cannot be read", "directory"],
    );
}

#[test]
fn truncated_files_say_what_is_there_and_what_should_be() {
    for (len, expected) in [
        (0, "0 bytes (unpacked) of 16"),
        (15, "15 bytes (unpacked) of 16"),
        (33, "33 bytes (unpacked) of 34"),
    ] {
        let cut = images()[..len].to_vec();
        check(
            &message_with(TRAIN[0], cut.clone()),
            &[TRAIN[0], "truncated", expected],
        );
        check(
            &message_with(TRAIN[0], gzip(&cut)),
            &[TRAIN[0], "truncated", expected],
        );
    }
    check(
        &message_with(TEST[1], labels()[..9].to_vec()),
        &["9 bytes (unpacked) of 11"],
    );
}

#[test]
fn a_gzip_file_cut_off_anywhere_is_refused() {
    let whole = gzip(&images());
    for len in 3..whole.len() {
        let message = message_with(TRAIN[0], whole[..len].to_vec());
        assert!(
            message.contains("truncated") || message.contains("damaged"),
            "{len}: {message}"
        );
    }
}

#[test]
fn a_damaged_gzip_file_is_named() {
    let mut bytes = gzip(&images());
    let crc = bytes.len() - 8;
    bytes[crc] ^= 1;
    check(
        &message_with(TRAIN[0], bytes),
        &[TRAIN[0], "damaged (gzip: ", "fetch the file again"],
    );
    let mut bytes = gzip(&images());
    bytes[10] = 0xff;
    check(
        &message_with(TRAIN[0], bytes),
        &[TRAIN[0], "damaged (gzip: "],
    );
}

#[test]
fn swapped_files_are_told_by_their_magic_number() {
    check(
        &message_with(TRAIN[0], labels()),
        &[TRAIN[0], "0x00000801", "0x00000803", "images (idx3)"],
    );
    check(
        &message_with(TRAIN[1], images()),
        &[TRAIN[1], "0x00000803", "0x00000801", "labels (idx1)"],
    );
}

#[test]
fn a_header_of_huge_images_takes_no_memory() {
    let bytes = idx(IMAGES_MAGIC, &[u32::MAX, MAX_SIDE, MAX_SIDE], &[1, 2, 3]);
    check(&message_with(TRAIN[0], bytes), &["truncated: 19 bytes"]);
    let bytes = idx(IMAGES_MAGIC, &[1, u32::MAX, u32::MAX], &[]);
    check(
        &message_with(TRAIN[0], bytes),
        &["4294967295x4294967295", "1 to 4096"],
    );
    let bytes = idx(IMAGES_MAGIC, &[1, 0, 28], &[]);
    check(&message_with(TRAIN[0], bytes), &["0x28"]);
}

#[test]
fn a_file_that_goes_on_is_refused() {
    let mut bytes = images();
    bytes.push(0);
    check(
        &message_with(TRAIN[0], bytes.clone()),
        &[TRAIN[0], "goes on after the 34 bytes"],
    );
    check(
        &message_with(TRAIN[0], gzip(&bytes)),
        &["goes on after the 34 bytes"],
    );
}

#[test]
fn images_and_labels_that_differ_in_number_are_refused() {
    let message = message_with(TRAIN[1], idx(LABELS_MAGIC, &[2], &[1, 2]));
    check(&message, &[TRAIN[0], "3 images", TRAIN[1], "2 labels"]);
}

#[test]
fn an_empty_set_is_refused() {
    let result = load_changed(|dir| {
        fs::write(dir.join(TEST[0]), idx(IMAGES_MAGIC, &[0, 2, 3], &[])).unwrap();
        fs::write(dir.join(TEST[1]), idx(LABELS_MAGIC, &[0], &[])).unwrap();
    });
    check(
        &result.unwrap_err().to_string(),
        &[TEST[0], "holds no image"],
    );
}

#[test]
fn train_and_test_of_other_shapes_are_refused() {
    let message = message_with(TEST[0], idx(IMAGES_MAGIC, &[3, 3, 2], &[0; 18]));
    check(&message, &[TRAIN[0], "2x3", TEST[0], "3x2"]);
}

#[test]
fn a_label_that_is_no_digit_is_refused() {
    let message = message_with(TEST[1], idx(LABELS_MAGIC, &[3], &[1, 10, 2]));
    check(&message, &[TEST[1], "label 10 of image 1", "below 10"]);
}

#[test]
fn the_real_set_is_read() {
    let Some(dir) = std::env::var_os("DOGWILD_DATA") else {
        return dogwild_lab::skip::skip("DOGWILD_DATA does not name the folder of mnist/");
    };
    let set = load(&PathBuf::from(dir).join("mnist")).unwrap();
    assert_eq!((set.train.len(), set.test.len()), (60_000, 10_000));
    assert_eq!(
        (set.train.shape, set.test.shape),
        ([1, 28, 28], [1, 28, 28])
    );
    let count = |images: &Images| {
        let mut counts = [0; 10];
        images
            .labels
            .iter()
            .for_each(|&label| counts[usize::from(label)] += 1);
        counts
    };
    assert_eq!(
        count(&set.train),
        [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    );
    assert_eq!(
        count(&set.test),
        [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    );
    assert_eq!(set.train.labels[..5], [5, 0, 4, 1, 9]);
    // The well-known mean of the training pixels, 0.1307 of 255.
    let mean = set.train.mean_image().iter().sum::<f32>() / 784.0 / 255.0;
    assert!((mean - 0.1307).abs() < 1e-4, "{mean}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn random_bytes_never_panic(
        magic in prop::option::of(prop::sample::select(vec![IMAGES_MAGIC, LABELS_MAGIC])),
        bytes: Vec<u8>,
        packed: bool,
        which in 0..4usize,
    ) {
        let mut file = magic.map_or(vec![], |magic| magic.to_be_bytes().to_vec());
        file.extend(bytes);
        let file = if packed { gzip(&file) } else { file };
        let name = [TRAIN, TEST][which / 2][which % 2];
        let _ = load_changed(|dir| fs::write(dir.join(name), file).unwrap());
    }

    #[test]
    fn spoilt_gzip_never_panics(at in 0..60usize, value: u8) {
        let mut bytes = gzip(&images());
        let at = at % bytes.len();
        bytes[at] = value;
        let _ = load_changed(|dir| fs::write(dir.join(TRAIN[0]), bytes).unwrap());
    }
}

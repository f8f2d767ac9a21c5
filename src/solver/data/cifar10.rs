//! CIFAR-10: the six files of the binary version.
//!
//! Format: <https://www.cs.toronto.edu/~kriz/cifar.html>: records of one label byte and 3072
//! pixel bytes (red, green, blue planes of 32×32, row by row), 10,000 to a file. Reads files
//! only; never panics on their content.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::{DataError, DataSet, Images, check_folder, check_labels};

const CLASSES: usize = 10;
const SHAPE: [usize; 3] = [3, 32, 32];
const RECORD_BYTES: usize = 1 + 3 * 32 * 32;
const RECORDS: usize = 10_000;

/// The folder inside `cifar-10-binary.tar.gz`.
const INNER: &str = "cifar-10-batches-bin";
const TRAIN: [&str; 5] = [
    "data_batch_1.bin",
    "data_batch_2.bin",
    "data_batch_3.bin",
    "data_batch_4.bin",
    "data_batch_5.bin",
];
const TEST: [&str; 1] = ["test_batch.bin"];

const HINT: &str = "unpack cifar-10-binary.tar.gz (from https://www.cs.toronto.edu/~kriz/cifar.html) \
                    and name its folder";

/// Reads `data_batch_1.bin` to `data_batch_5.bin` and `test_batch.bin` in `dir`, or in
/// `cifar-10-batches-bin` inside it.
///
/// # Errors
/// The folder or a file is missing, truncated or too long, or a label is above 9.
pub fn load(dir: &Path) -> Result<DataSet, DataError> {
    load_records(dir, RECORDS)
}

/// As [`load`], of files with `records` images each.
fn load_records(dir: &Path, records: usize) -> Result<DataSet, DataError> {
    check_folder(dir, HINT)?;
    let inner = dir.join(INNER);
    let dir = if !dir.join(TRAIN[0]).exists() && inner.is_dir() {
        &inner
    } else {
        dir
    };
    Ok(DataSet {
        train: load_split(dir, &TRAIN, records, "training images")?,
        test: load_split(dir, &TEST, records, "test images")?,
        name: "CIFAR-10".to_owned(),
    })
}

fn load_split(
    dir: &Path,
    names: &[&str],
    records: usize,
    what: &'static str,
) -> Result<Images, DataError> {
    let image_len = RECORD_BYTES - 1;
    let mut pixels = Vec::with_capacity(names.len() * records * image_len);
    let mut labels = Vec::with_capacity(names.len() * records);
    for name in names {
        let path = dir.join(name);
        if !path.exists() {
            let (dir, looked_for) = (
                dir.to_owned(),
                vec![format!("{name}"), format!("{INNER}/{name}")],
            );
            return Err(DataError::NoFile {
                dir,
                what,
                looked_for,
                hint: HINT,
            });
        }
        let bytes = read(&path, records * RECORD_BYTES)?;
        let first = labels.len();
        for record in bytes.chunks_exact(RECORD_BYTES) {
            labels.push(record[0]);
            pixels.extend_from_slice(&record[1..]);
        }
        check_labels(&labels[first..], CLASSES, &path)?;
    }
    Ok(Images {
        pixels,
        labels,
        shape: SHAPE,
        classes: CLASSES,
    })
}

/// The `expected` bytes of a file that must hold no more.
fn read(path: &Path, expected: usize) -> Result<Vec<u8>, DataError> {
    let mut bytes = Vec::with_capacity(expected + 1);
    let file = File::open(path).map_err(DataError::read(path))?;
    file.take(expected as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(DataError::read(path))?;
    let (path, has, expected) = (path.to_owned(), bytes.len() as u64, expected as u64);
    match has.cmp(&expected) {
        std::cmp::Ordering::Less => Err(DataError::Truncated {
            path,
            expected,
            has,
        }),
        std::cmp::Ordering::Equal => Ok(bytes),
        std::cmp::Ordering::Greater => Err(DataError::TooLong { path, expected }),
    }
}

#[cfg(test)]
mod tests;

//! MNIST and sets of its format: four idx files, gzipped or not.
//!
//! Format: <http://yann.lecun.com/exdb/mnist/>: big-endian magic number, count (for images also
//! rows and columns), then bytes. Reads files only; never panics on their content.
//!
//! Invariant: no header is trusted before the bytes are there: memory grows with what the file
//! really holds.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;

use super::{DataError, DataSet, Images, check_folder, check_labels};

const CLASSES: usize = 10;
const IMAGES_MAGIC: u32 = 0x0803;
const LABELS_MAGIC: u32 = 0x0801;

/// Largest height and width accepted; idx images are 28 pixels.
const MAX_SIDE: u32 = 4096;

/// What is reserved at most before bytes are there.
const MAX_RESERVED_BYTES: u64 = 1 << 20;

const HINT: &str = "name the folder that holds the four idx files of MNIST (gzipped or not)";

/// Reads `DIR/{train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz]`; `.idx3` for `-idx3` as well.
///
/// # Errors
/// The folder or a file is missing, truncated, too long, damaged, of another format, or images
/// and labels do not belong together.
pub fn load(dir: &Path) -> Result<DataSet, DataError> {
    check_folder(dir, HINT)?;
    let (train, train_path) = load_split(dir, "train", ["training images", "training labels"])?;
    let (test, test_path) = load_split(dir, "t10k", ["test images", "test labels"])?;
    if train.shape != test.shape {
        return Err(DataError::Shape {
            train_path,
            train: [train.shape[1], train.shape[2]],
            test_path,
            test: [test.shape[1], test.shape[2]],
        });
    }
    Ok(DataSet {
        train,
        test,
        name: "MNIST".to_owned(),
    })
}

/// The images of one split, and the file they came from.
fn load_split(
    dir: &Path,
    prefix: &str,
    [images, labels]: [&'static str; 2],
) -> Result<(Images, PathBuf), DataError> {
    let images_path = find(dir, prefix, "images", 3, images)?;
    let labels_path = find(dir, prefix, "labels", 1, labels)?;
    let ([height, width], pixels) = read_images(&images_path)?;
    let labels = read_labels(&labels_path)?;
    let count = pixels.len() / (height * width);
    if count != labels.len() {
        return Err(DataError::Count {
            images_path,
            images: count,
            labels_path,
            labels: labels.len(),
        });
    }
    if count == 0 {
        return Err(DataError::Empty { path: images_path });
    }
    Ok((
        Images {
            pixels,
            labels,
            shape: [1, height, width],
            classes: CLASSES,
        },
        images_path,
    ))
}

fn find(
    dir: &Path,
    prefix: &str,
    kind: &str,
    idx: u8,
    what: &'static str,
) -> Result<PathBuf, DataError> {
    let names: Vec<String> = ["-", "."]
        .iter()
        .flat_map(|dot| ["", ".gz"].map(|gz| format!("{prefix}-{kind}{dot}idx{idx}-ubyte{gz}")))
        .collect();
    match names
        .iter()
        .map(|name| dir.join(name))
        .find(|path| path.exists())
    {
        Some(path) => Ok(path),
        None => Err(DataError::NoFile {
            dir: dir.to_owned(),
            what,
            looked_for: names,
            hint: HINT,
        }),
    }
}

/// Height, width and pixels of a file of images.
fn read_images(path: &Path) -> Result<([usize; 2], Vec<u8>), DataError> {
    let mut file = Idx::open(path)?;
    let [count, height, width] = file.header(IMAGES_MAGIC, "MNIST images (idx3)")?;
    if !(1..=MAX_SIDE).contains(&height) || !(1..=MAX_SIDE).contains(&width) {
        return Err(DataError::ImageSize {
            path: path.to_owned(),
            height,
            width,
            max: MAX_SIDE,
        });
    }
    // At most 2^32 * 2^12 * 2^12: no overflow.
    let pixels = file.body(16, u64::from(count) * u64::from(height) * u64::from(width))?;
    Ok(([height as usize, width as usize], pixels))
}

fn read_labels(path: &Path) -> Result<Vec<u8>, DataError> {
    let mut file = Idx::open(path)?;
    let [count] = file.header(LABELS_MAGIC, "MNIST labels (idx1)")?;
    let labels = file.body(8, u64::from(count))?;
    check_labels(&labels, CLASSES, path)?;
    Ok(labels)
}

/// An idx file, unpacked while it is read.
struct Idx<'a> {
    path: &'a Path,
    reader: Box<dyn Read>,
    gzip: bool,
}

impl<'a> Idx<'a> {
    fn open(path: &'a Path) -> Result<Self, DataError> {
        let file = File::open(path).map_err(DataError::read(path))?;
        let mut file = BufReader::new(file);
        // By content, not by name: browsers unpack and keep the name, or the reverse.
        let mut start = Vec::new();
        file.by_ref()
            .take(2)
            .read_to_end(&mut start)
            .map_err(DataError::read(path))?;
        let gzip = start == [0x1f, 0x8b];
        let whole = std::io::Cursor::new(start).chain(file);
        let reader: Box<dyn Read> = if gzip {
            Box::new(MultiGzDecoder::new(whole))
        } else {
            Box::new(whole)
        };
        Ok(Self { path, reader, gzip })
    }

    /// Up to `limit` bytes; fewer if the file ends before.
    fn read(&mut self, limit: u64) -> Result<Vec<u8>, DataError> {
        let mut bytes = Vec::with_capacity(limit.min(MAX_RESERVED_BYTES) as usize);
        match self.reader.by_ref().take(limit).read_to_end(&mut bytes) {
            Ok(_) => Ok(bytes),
            // A gzip file that was cut off ends in the middle of its stream.
            Err(e) if self.gzip && e.kind() == std::io::ErrorKind::UnexpectedEof => Ok(bytes),
            Err(source) if self.gzip => Err(DataError::Gzip {
                path: self.path.to_owned(),
                source,
            }),
            Err(source) => Err(DataError::Read {
                path: self.path.to_owned(),
                source,
            }),
        }
    }

    /// The numbers after the magic number.
    fn header<const N: usize>(
        &mut self,
        magic: u32,
        what: &'static str,
    ) -> Result<[u32; N], DataError> {
        let expected = 4 + 4 * N as u64;
        let bytes = self.read(expected)?;
        let mut words = bytes
            .chunks_exact(4)
            .map(|word| u32::from_be_bytes([word[0], word[1], word[2], word[3]]));
        let truncated = || DataError::Truncated {
            path: self.path.to_owned(),
            expected,
            has: bytes.len() as u64,
        };
        let found = words.next().ok_or_else(truncated)?;
        if found != magic {
            let path = self.path.to_owned();
            return Err(DataError::Magic {
                path,
                what,
                found,
                expected: magic,
            });
        }
        let mut numbers = [0; N];
        for number in &mut numbers {
            *number = words.next().ok_or_else(truncated)?;
        }
        Ok(numbers)
    }

    /// The `len` bytes after a header of `header` bytes; the file must end there.
    fn body(&mut self, header: u64, len: u64) -> Result<Vec<u8>, DataError> {
        let bytes = self.read(len)?;
        let (expected, path) = (header + len, self.path.to_owned());
        if (bytes.len() as u64) < len {
            return Err(DataError::Truncated {
                path,
                expected,
                has: header + bytes.len() as u64,
            });
        }
        // Reading past the end also checks the checksum at the end of a gzip file.
        match self.reader.read(&mut [0]) {
            Ok(0) => Ok(bytes),
            Ok(_) => Err(DataError::TooLong { path, expected }),
            Err(source) if self.gzip => Err(DataError::Gzip { path, source }),
            Err(source) => Err(DataError::Read { path, source }),
        }
    }
}

#[cfg(test)]
mod tests;

//! Data sets: labelled images in memory, and the batches that a solver takes.
//!
//! Holds [`Images`] and [`DataSet`], and the [`Source`] that a user names with `--data`. Sets come
//! from the built-in generator ([`digits`]), the loaders of real data ([`mnist`], [`cifar10`]), or
//! a [`feed`] over the network. Caffe's [`Transform`] and the prefetching [`Batches`] bring them to
//! a net. May read files and connect to a feed; touches no weights.
//!
//! Invariants: pixels are bytes, NCHW, row-major, images one after the other without gaps;
//! `labels[i] < classes`; a batch is a pure function of seed, shard and cursor.

pub mod batches;
pub mod cifar10;
pub mod digits;
pub mod feed;
pub mod mnist;
mod source;
pub mod transform;

use std::io;
use std::path::{Path, PathBuf};

pub use batches::{Batch, Batches, BatchesError, Shard};
pub use source::{Source, SourceError};
pub use transform::{Mean, Transform, TransformError};

/// Labelled images of one shape, as bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Images {
    /// `len() * c * h * w` bytes: image by image, plane by plane, row by row.
    pub pixels: Vec<u8>,
    /// One class per image, below `classes`.
    pub labels: Vec<u8>,
    /// Channels, height, width; the last two in pixels.
    pub shape: [usize; 3],
    /// Number of classes.
    pub classes: usize,
}

impl Images {
    /// Number of images.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// True if there is no image.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Bytes of one image: c·h·w.
    pub fn image_len(&self) -> usize {
        self.shape.iter().product()
    }

    /// The pixels of image `i`. Panics if there is no such image.
    pub fn image(&self, i: usize) -> &[u8] {
        let len = self.image_len();
        &self.pixels[i * len..(i + 1) * len]
    }

    /// The mean over all images of each pixel, c·h·w values in 0..=255 (Caffe's
    /// `compute_image_mean`); zeros if there is no image.
    pub fn mean_image(&self) -> Vec<f32> {
        let mut sums = vec![0u64; self.image_len()];
        for i in 0..self.len() {
            for (sum, &pixel) in sums.iter_mut().zip(self.image(i)) {
                *sum += u64::from(pixel);
            }
        }
        let count = self.len().max(1) as f64;
        sums.iter()
            .map(|&sum| (sum as f64 / count) as f32)
            .collect()
    }
}

/// The images to learn from and those to test on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataSet {
    /// Images to learn from.
    pub train: Images,
    /// Images to test on; of the same shape and classes.
    pub test: Images,
    /// What it is, for people: `MNIST`, `CIFAR-10`, `digits (seed 1)`.
    pub name: String,
}

/// Why a data set could not be loaded. Each names the file, what is wrong and what to do.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The folder is not there.
    #[error("{}: there is no such folder; {hint}", path.display())]
    NoFolder {
        /// The folder asked for.
        path: PathBuf,
        /// Where the files come from.
        hint: &'static str,
    },
    /// The path is a file.
    #[error("{}: is not a folder; name the folder that holds the files, not a file", path.display())]
    NotAFolder {
        /// The path asked for.
        path: PathBuf,
    },
    /// A file of the set is not there under any of its names.
    #[error("{}: the {what} are missing (looked for {}); {hint}", dir.display(), looked_for.join(", "))]
    NoFile {
        /// The folder looked in.
        dir: PathBuf,
        /// What the file holds.
        what: &'static str,
        /// The names looked for.
        looked_for: Vec<String>,
        /// Where the files come from.
        hint: &'static str,
    },
    /// The file could not be read.
    #[error("{}: cannot be read: {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The gzip stream is damaged.
    #[error("{}: is damaged (gzip: {source}); fetch the file again", path.display())]
    Gzip {
        /// Path of the file.
        path: PathBuf,
        /// What the decoder found.
        source: io::Error,
    },
    /// The file is something else.
    #[error("{}: begins with 0x{found:08x} instead of 0x{expected:08x}, so it is not a file of {what}; \
             check that files were not renamed or swapped", path.display())]
    Magic {
        /// Path of the file.
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
        /// The magic number it has.
        found: u32,
        /// The magic number of such files.
        expected: u32,
    },
    /// The header speaks of images of an unlikely size.
    #[error("{}: its header says images of {height}x{width} pixels; 1 to {max} are possible; \
             the file is damaged, fetch it again", path.display())]
    ImageSize {
        /// Path of the file.
        path: PathBuf,
        /// Pixels, from the header.
        height: u32,
        /// Pixels, from the header.
        width: u32,
        /// Largest height and width accepted.
        max: u32,
    },
    /// The file ends too early.
    #[error("{}: is truncated: {has} bytes (unpacked) of {expected}; fetch the file again", path.display())]
    Truncated {
        /// Path of the file.
        path: PathBuf,
        /// Bytes that there should be, unpacked.
        expected: u64,
        /// Bytes that there are, unpacked.
        has: u64,
    },
    /// The file goes on after its end.
    #[error("{}: goes on after the {expected} bytes (unpacked) it should have; fetch the file again", path.display())]
    TooLong {
        /// Path of the file.
        path: PathBuf,
        /// Bytes that there should be, unpacked.
        expected: u64,
    },
    /// Images and labels do not belong together.
    #[error("{} holds {images} images but {} holds {labels} labels; they are not of one set",
            images_path.display(), labels_path.display())]
    Count {
        /// The file of images.
        images_path: PathBuf,
        /// Number of images in it.
        images: usize,
        /// The file of labels.
        labels_path: PathBuf,
        /// Number of labels in it.
        labels: usize,
    },
    /// A file without any image.
    #[error("{}: holds no image; fetch the file again", path.display())]
    Empty {
        /// Path of the file.
        path: PathBuf,
    },
    /// Train and test images differ in size.
    #[error("{} holds images of {}x{} pixels but {} of {}x{}; they are not of one set",
            train_path.display(), train[0], train[1], test_path.display(), test[0], test[1])]
    Shape {
        /// The file of images to learn from.
        train_path: PathBuf,
        /// Height and width of its images.
        train: [usize; 2],
        /// The file of images to test on.
        test_path: PathBuf,
        /// Height and width of its images.
        test: [usize; 2],
    },
    /// Another host did not send its set.
    #[error("data from {address}: {what}")]
    Feed {
        /// Host and port.
        address: String,
        /// What went wrong, and what to do.
        what: String,
    },
    /// A label that is not below the number of classes.
    #[error("{}: label {label} of image {index} is not below {classes}; the file is damaged, \
             fetch it again", path.display())]
    Label {
        /// Path of the file.
        path: PathBuf,
        /// Number of the image in it, from 0.
        index: usize,
        /// Label that was found.
        label: u8,
        /// Number of classes.
        classes: usize,
    },
}

impl DataError {
    fn read(path: &Path) -> impl FnOnce(io::Error) -> DataError + '_ {
        move |source| DataError::Read {
            path: path.to_owned(),
            source,
        }
    }
}

/// Refuses a path that is not a folder.
fn check_folder(path: &Path, hint: &'static str) -> Result<(), DataError> {
    match path.metadata() {
        Ok(meta) if meta.is_dir() => Ok(()),
        Ok(_) => Err(DataError::NotAFolder {
            path: path.to_owned(),
        }),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Err(DataError::NoFolder {
            path: path.to_owned(),
            hint,
        }),
        Err(e) => Err(DataError::read(path)(e)),
    }
}

/// Refuses labels that are not below `classes`; `path` is the file they came from.
fn check_labels(labels: &[u8], classes: usize, path: &Path) -> Result<(), DataError> {
    match labels
        .iter()
        .position(|&label| usize::from(label) >= classes)
    {
        None => Ok(()),
        Some(index) => Err(DataError::Label {
            path: path.to_owned(),
            index,
            label: labels[index],
            classes,
        }),
    }
}

/// A generator for the `index`-th thing of a kind, from a seed: SplitMix64's finaliser is a
/// bijection, so for one seed two different keys never give the same stream.
fn stream(seed: u64, key: u64) -> rand_xoshiro::Xoshiro256PlusPlus {
    use rand_xoshiro::rand_core::SeedableRng;
    let key = mix(mix(seed).wrapping_add(key.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    rand_xoshiro::Xoshiro256PlusPlus::seed_from_u64(key)
}

/// SplitMix64's finaliser (Steele, Lea, Flood 2014): a bijection of 64-bit words.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_image_is_the_mean_of_each_pixel() {
        let images = Images {
            pixels: vec![0, 10, 255, 20, 0, 33],
            labels: vec![0, 1, 2],
            shape: [1, 1, 2],
            classes: 3,
        };
        assert_eq!(images.mean_image(), [85.0, 21.0]);
        assert_eq!(images.image(1), [255, 20]);
    }

    #[test]
    fn mean_image_of_nothing_is_zero() {
        let images = Images {
            pixels: vec![],
            labels: vec![],
            shape: [1, 1, 2],
            classes: 3,
        };
        assert_eq!(images.mean_image(), [0.0, 0.0]);
    }
}

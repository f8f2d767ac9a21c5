//! What there is to get: names, checksums and mirrors of published data sets.
//!
//! Plain values. Checksums are of what a loader reads, so a mirror may have packed it anew.
//!
//! MNIST's were computed from files whose MD5 sums are the published ones. CIFAR-10's are those
//! that several projects check the published archive against; `docs/guide/install.md` says which.

/// A data set.
#[derive(Clone, Debug)]
pub struct Set {
    /// What `--data` calls it.
    pub name: String,
    /// The files of a mirror that make it up.
    pub downloads: Vec<Download>,
    /// Folders that have these files, as URLs.
    pub mirrors: Vec<String>,
}

/// A file of a mirror.
#[derive(Clone, Debug)]
pub struct Download {
    /// Its name there.
    pub file: String,
    /// What it is.
    pub packed: Packed,
    /// Its usual length in bytes, to know how far a download is.
    pub bytes: u64,
    /// What is in it; one file if it is not an archive.
    pub holds: Vec<Held>,
}

/// How a download holds files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packed {
    /// One file, gzipped: kept as it is.
    Gzip,
    /// A gzipped tar archive: its files are kept, by their names without folders.
    Tar,
}

/// A file as it is once unpacked.
#[derive(Clone, Debug)]
pub struct Held {
    /// Its name.
    pub name: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// Its SHA-256, 64 digits.
    pub sha256: String,
}

/// Name, unpacked length and checksum; the length gzipped.
const MNIST: [(&str, u64, &str, u64); 4] = [
    (
        "train-images-idx3-ubyte",
        47_040_016,
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        9_912_422,
    ),
    (
        "train-labels-idx1-ubyte",
        60_008,
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        28_881,
    ),
    (
        "t10k-images-idx3-ubyte",
        7_840_016,
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        1_648_877,
    ),
    (
        "t10k-labels-idx1-ubyte",
        10_008,
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        4_542,
    ),
];
const MNIST_MIRRORS: [&str; 2] = [
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "https://storage.googleapis.com/cvdf-datasets/mnist",
];

const CIFAR10_ARCHIVE: (&str, u64) = ("cifar-10-binary.tar.gz", 170_052_171);
const CIFAR10_BYTES: u64 = 30_730_000;
const CIFAR10: [(&str, &str); 6] = [
    (
        "data_batch_1.bin",
        "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    ),
    (
        "data_batch_2.bin",
        "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    ),
    (
        "data_batch_3.bin",
        "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    ),
    (
        "data_batch_4.bin",
        "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    ),
    (
        "data_batch_5.bin",
        "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    ),
    (
        "test_batch.bin",
        "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    ),
];
const CIFAR10_MIRRORS: [&str; 2] = [
    "https://www.cs.toronto.edu/~kriz",
    "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10",
];

impl Set {
    /// MNIST: handwritten digits.
    pub fn mnist() -> Self {
        let download = |(name, bytes, sha256, packed_bytes): (&str, u64, &str, u64)| Download {
            file: format!("{name}.gz"),
            packed: Packed::Gzip,
            bytes: packed_bytes,
            holds: vec![Held::new(name, bytes, sha256)],
        };
        Self {
            name: "mnist".to_owned(),
            downloads: MNIST.map(download).into(),
            mirrors: MNIST_MIRRORS.map(str::to_owned).into(),
        }
    }

    /// CIFAR-10: small coloured pictures, the binary version.
    pub fn cifar10() -> Self {
        let (file, bytes) = CIFAR10_ARCHIVE;
        let archive = Download {
            file: file.to_owned(),
            packed: Packed::Tar,
            bytes,
            holds: CIFAR10
                .map(|(name, sha256)| Held::new(name, CIFAR10_BYTES, sha256))
                .into(),
        };
        Self {
            name: "cifar10".to_owned(),
            downloads: vec![archive],
            mirrors: CIFAR10_MIRRORS.map(str::to_owned).into(),
        }
    }
}

impl Held {
    fn new(name: &str, bytes: u64, sha256: &str) -> Self {
        Self {
            name: name.to_owned(),
            bytes,
            sha256: sha256.to_owned(),
        }
    }
}

impl Download {
    /// Most bytes that it may have, however it is packed: what it holds, and what formats add.
    pub(super) fn bytes_max(&self) -> u64 {
        let held: u64 = self.holds.iter().map(|held| held.bytes).sum();
        held + held / 100 + (1 << 20)
    }
}

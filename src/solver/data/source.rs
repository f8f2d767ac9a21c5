//! What a user writes after `--data`, and the loader it names.
//!
//! Invariant: `Source` → `to_string` → `parse` gives the same `Source`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::super::near;
use super::{DataError, DataSet, cifar10, digits, feed, mnist};

/// Where images come from: `digits[:[SEED][,train=N][,test=N]]`, `mnist:DIR` or `cifar10:DIR`; any
/// of the three from another host's feed: `mnist@HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Built-in digits, generated.
    Digits {
        /// Number of images to learn from.
        train: usize,
        /// Number of images to test on.
        test: usize,
        /// Seed of the generator.
        seed: u64,
    },
    /// The folder of the four idx files.
    Mnist(PathBuf),
    /// The folder of the six binary batches.
    Cifar10(PathBuf),
    /// What another host feeds.
    Fed {
        /// Which data set.
        kind: &'static str,
        /// Host and port of its feed.
        address: String,
    },
}

/// What the default `digits` holds.
const DIGITS: (usize, usize, u64) = (20_000, 4_000, 1);

/// Most digits of one split: 7.8 GB of pixels.
const MAX_DIGITS: usize = 10_000_000;

const USAGE: &str = "use `digits`, `digits:SEED`, `digits:SEED,train=20000,test=4000`, \
                     `mnist:DIR`, `cifar10:DIR` or, from a `dogwild feed`, `mnist@HOST:PORT`";

/// What may stand before the colon.
const KINDS: [&str; 3] = ["digits", "mnist", "cifar10"];

fn kind(text: &str) -> &str {
    text.split_once(':').map_or(text, |(kind, _)| kind)
}

/// Why a text names no data source.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// Nothing known begins like that.
    #[error("`{0}` is not a data source{hint}; {USAGE}", hint = near::hint(kind(.0), KINDS))]
    Unknown(String),
    /// `mnist` or `cifar10` without a folder.
    #[error("`{0}` needs the folder of its files: `{0}:DIR`")]
    NoFolder(&'static str),
    /// A part of `digits:...` that is not understood.
    #[error("`{0}` in a digits source is not understood; {USAGE}")]
    Part(String),
    /// A number of digits that is not possible.
    #[error("`{0}`: a digits source holds 1 to {MAX_DIGITS} images to learn from and to test on")]
    Count(String),
    /// No host and port behind the `@`.
    #[error("`{0}` needs host and port of a `dogwild feed`: `mnist@HOST:PORT`")]
    Address(String),
}

impl Default for Source {
    fn default() -> Self {
        let (train, test, seed) = DIGITS;
        Source::Digits { train, test, seed }
    }
}

impl FromStr for Source {
    type Err = SourceError;

    fn from_str(text: &str) -> Result<Self, SourceError> {
        if let Some((kind, address)) = text.split_once('@')
            && let Some(kind) = KINDS.into_iter().find(|known| *known == kind)
        {
            return parse_fed(kind, address).ok_or_else(|| SourceError::Address(text.to_owned()));
        }
        let (kind, rest) = match text.split_once(':') {
            Some((kind, rest)) => (kind, Some(rest)),
            None => (text, None),
        };
        let folder = |name| match rest {
            Some(dir) if !dir.is_empty() => Ok(PathBuf::from(dir)),
            _ => Err(SourceError::NoFolder(name)),
        };
        match kind {
            "digits" => parse_digits(rest.unwrap_or("")),
            "mnist" => folder("mnist").map(Source::Mnist),
            "cifar10" => folder("cifar10").map(Source::Cifar10),
            _ => Err(SourceError::Unknown(text.to_owned())),
        }
    }
}

fn parse_fed(kind: &'static str, address: &str) -> Option<Source> {
    let (host, port) = address.rsplit_once(':')?;
    let is_port = port.parse::<u16>().is_ok_and(|port| port > 0);
    (!host.is_empty() && is_port).then(|| Source::Fed {
        kind,
        address: address.to_owned(),
    })
}

fn parse_digits(parts: &str) -> Result<Source, SourceError> {
    let (mut train, mut test, mut seed) = DIGITS;
    for part in parts.split(',').filter(|part| !part.is_empty()) {
        let count = |number: &str| match number.parse() {
            Ok(n) if (1..=MAX_DIGITS).contains(&n) => Ok(n),
            _ => Err(SourceError::Count(part.to_owned())),
        };
        match part.split_once('=') {
            Some(("train", number)) => train = count(number)?,
            Some(("test", number)) => test = count(number)?,
            Some(("seed", number)) => {
                seed = number
                    .parse()
                    .map_err(|_| SourceError::Part(part.to_owned()))?;
            }
            Some(_) => return Err(SourceError::Part(part.to_owned())),
            None => {
                seed = part
                    .parse()
                    .map_err(|_| SourceError::Part(part.to_owned()))?
            }
        }
    }
    Ok(Source::Digits { train, test, seed })
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Digits { train, test, seed } => {
                let (default_train, default_test, default_seed) = DIGITS;
                let mut parts = Vec::new();
                if *seed != default_seed {
                    parts.push(seed.to_string());
                }
                if *train != default_train {
                    parts.push(format!("train={train}"));
                }
                if *test != default_test {
                    parts.push(format!("test={test}"));
                }
                write!(
                    f,
                    "digits{}{}",
                    if parts.is_empty() { "" } else { ":" },
                    parts.join(",")
                )
            }
            Source::Mnist(dir) => write!(f, "mnist:{}", dir.display()),
            Source::Cifar10(dir) => write!(f, "cifar10:{}", dir.display()),
            Source::Fed { kind, address } => write!(f, "{kind}@{address}"),
        }
    }
}

impl Source {
    /// One of each kind, whatever its folder.
    pub fn of_each_kind() -> [Self; KINDS.len()] {
        let nowhere = PathBuf::new;
        [
            Source::default(),
            Source::Mnist(nowhere()),
            Source::Cifar10(nowhere()),
        ]
    }

    /// Which data set, whatever its folder or size.
    pub fn kind(&self) -> &'static str {
        match self {
            Source::Digits { .. } => "digits",
            Source::Mnist(_) => "mnist",
            Source::Cifar10(_) => "cifar10",
            Source::Fed { kind, .. } => kind,
        }
    }

    /// Channels, height, width of the images, and the number of classes, without reading any.
    pub fn shape(&self) -> ([usize; 3], usize) {
        match self.kind() {
            "cifar10" => ([3, 32, 32], 10),
            _ => ([1, 28, 28], 10),
        }
    }

    /// Generates or reads the data set.
    ///
    /// # Errors
    /// A file is missing or bad; see [`DataError`]. Digits never fail.
    pub fn load(&self) -> Result<DataSet, DataError> {
        match self {
            Source::Digits { train, test, seed } => Ok(DataSet {
                train: digits::generate(*seed, digits::Split::Train, *train),
                test: digits::generate(*seed, digits::Split::Test, *test),
                name: format!("digits (seed {seed})"),
            }),
            Source::Mnist(dir) => mnist::load(dir),
            Source::Cifar10(dir) => cifar10::load(dir),
            Source::Fed { kind, address } => feed::fetch(kind, address),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_kind_is_there_once() {
        assert_eq!(Source::of_each_kind().map(|source| source.kind()), KINDS);
    }

    #[test]
    fn every_form_is_read() {
        let digits = |train, test, seed| Ok(Source::Digits { train, test, seed });
        assert_eq!("digits".parse(), Ok(Source::default()));
        assert_eq!("digits:".parse(), Ok(Source::default()));
        assert_eq!("digits:7".parse(), digits(20_000, 4_000, 7));
        assert_eq!("digits:7,train=100,test=10".parse(), digits(100, 10, 7));
        assert_eq!("digits:test=10,seed=9".parse(), digits(20_000, 10, 9));
        assert_eq!("mnist:a:b".parse(), Ok(Source::Mnist("a:b".into())));
        assert_eq!("cifar10:/x".parse(), Ok(Source::Cifar10("/x".into())));
        let fed = |kind, address: &str| {
            Ok(Source::Fed {
                kind,
                address: address.to_owned(),
            })
        };
        assert_eq!("mnist@a:22600".parse(), fed("mnist", "a:22600"));
        assert_eq!("digits@[::1]:9".parse(), fed("digits", "[::1]:9"));
        assert_eq!("mnist:/a@b:1".parse(), Ok(Source::Mnist("/a@b:1".into())));
        assert_eq!(
            "mnist@a:22600".parse::<Source>().unwrap().to_string(),
            "mnist@a:22600"
        );
    }

    #[test]
    fn wrong_forms_say_what_is_possible() {
        let message = |text: &str| text.parse::<Source>().unwrap_err().to_string();
        assert!(message("imagenet:/x").contains("`mnist:DIR`"));
        assert!(message("mnist").contains("`mnist:DIR`"));
        assert!(message("mnist:").contains("`mnist:DIR`"));
        assert!(message("digits:x").contains("`x`"));
        for fed in [
            "mnist@",
            "mnist@host",
            "mnist@:1",
            "mnist@host:0",
            "mnist@host:70000",
        ] {
            assert!(message(fed).contains("`mnist@HOST:PORT`"), "{fed}");
        }
        assert!(message("imagenet@host:1").contains("not a data source"));
        assert!(message("digits:size=4").contains("`size=4`"));
        assert!(message("digits:train=0").contains("`train=0`"));
        assert!(message("digits:train=99999999999").contains("1 to 10000000"));
    }

    proptest! {
        #[test]
        fn display_round_trips(train in 1..=MAX_DIGITS, test in 1..=MAX_DIGITS, seed: u64) {
            let source = Source::Digits { train, test, seed };
            prop_assert_eq!(source.to_string().parse(), Ok(source));
        }

        #[test]
        fn any_text_is_read_or_refused(text in ".*") {
            let _ = text.parse::<Source>();
        }

        #[test]
        fn any_digits_are_read_or_refused(text in "digits:[a-z0-9,=-]*") {
            let _ = text.parse::<Source>();
        }
    }
}

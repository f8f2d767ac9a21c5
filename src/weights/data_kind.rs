//! What kind of data a buffer's model learns: a short text and its hash.
//!
//! Pure data. Only the kind counts, neither the place nor the amount of the data: nodes may hold
//! different shares of one data set. Invariant: hash 0 means that nothing is known, and such a
//! buffer takes any data.

use std::fmt;

use xxhash_rust::xxh3::xxh3_64;

/// Bytes of the text that are kept.
pub(super) const DATA_TEXT_BYTES: usize = 32;

/// A kind of data, as `digits 1x28x28/10`. The default is unknown: it agrees with any other.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct DataKind {
    pub(super) hash: u64,
    /// The beginning of the text, padded with zeros.
    pub(super) text: [u8; DATA_TEXT_BYTES],
}

impl DataKind {
    /// The kind of pictures called `name`, with their channels, height and width, in so many
    /// classes.
    pub fn new(name: &str, [channels, height, width]: [usize; 3], classes: usize) -> Self {
        let full = format!("{name} {channels}x{height}x{width}/{classes}");
        let mut end = full.len().min(DATA_TEXT_BYTES);
        while !full.is_char_boundary(end) {
            end -= 1;
        }
        let mut text = [0; DATA_TEXT_BYTES];
        text[..end].copy_from_slice(&full.as_bytes()[..end]);
        Self {
            hash: xxh3_64(full.as_bytes()).max(1),
            text,
        }
    }

    /// A hash of the whole text; 0 if nothing is known.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// False if both are known and differ.
    pub fn agrees(&self, other: &Self) -> bool {
        self.hash == 0 || other.hash == 0 || self.hash == other.hash
    }
}

impl fmt::Display for DataKind {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        if self.hash == 0 {
            return f.write_str("data of unknown kind");
        }
        let end = self.text.iter().position(|&byte| byte == 0);
        let text = &self.text[..end.unwrap_or(DATA_TEXT_BYTES)];
        f.write_str(&String::from_utf8_lossy(text))
    }
}

impl fmt::Debug for DataKind {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "DataKind({self}, {:016x})", self.hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_its_name_its_shape_and_its_classes() {
        let digits = DataKind::new("digits", [1, 28, 28], 10);
        assert_eq!(digits.to_string(), "digits 1x28x28/10");
        let others = [
            DataKind::new("mnist", [1, 28, 28], 10),
            DataKind::new("digits", [3, 28, 28], 10),
            DataKind::new("digits", [1, 28, 28], 11),
        ];
        assert!(others.iter().all(|other| !digits.agrees(other)));
        assert!(digits.agrees(&DataKind::new("digits", [1, 28, 28], 10)));
        let unknown = DataKind::default();
        assert!(digits.agrees(&unknown) && unknown.agrees(&digits));
    }

    #[test]
    fn a_long_name_is_cut_and_still_told_from_others() {
        let [a, b] =
            ["a", "b"].map(|end| DataKind::new(&format!("{}{end}", "ä".repeat(20)), [1, 2, 3], 4));
        assert_eq!(a.text, b.text);
        assert!(!a.agrees(&b));
        assert_eq!(a.to_string(), "ä".repeat(16));
        let cut = DataKind::new(&format!("x{}", "ä".repeat(20)), [1, 2, 3], 4);
        assert_eq!(cut.to_string(), format!("x{}", "ä".repeat(15)));
    }
}

//! The payload of a seek: a host that has no node number asks which numbers are free, and claims
//! one.

use zerocopy::byteorder::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The sender of a seek: no node has this index.
pub const NO_NODE: u16 = 255;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawSeek {
    incarnation: U64,
    first: U16,
    claimed: U16,
}

/// What a host without a number says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seek {
    /// Random number of its memory, which it will have as a node too.
    pub incarnation: u64,
    /// The first node number that the answer is to speak of.
    pub first: u16,
    /// The number that it claims; `None`: it only asks.
    pub claimed: Option<u16>,
}

impl Seek {
    /// Bytes of the payload.
    pub const LEN: usize = size_of::<RawSeek>();

    /// Writes the payload.
    ///
    /// # Panics
    /// If `out` is not [`LEN`](Self::LEN) bytes long: the caller asked for it.
    pub fn emit(&self, out: &mut [u8]) {
        let raw = RawSeek {
            incarnation: self.incarnation.into(),
            first: self.first.into(),
            claimed: self.claimed.unwrap_or(NO_NODE).into(),
        };
        out.copy_from_slice(raw.as_bytes());
    }

    /// Reads a payload; `None` if it has another length.
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let raw = RawSeek::ref_from_bytes(payload).ok()?;
        let claimed = raw.claimed.get();
        Some(Self {
            incarnation: raw.incarnation.get(),
            first: raw.first.get(),
            claimed: (claimed != NO_NODE).then_some(claimed),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seek_is_what_it_was() {
        for claimed in [None, Some(0), Some(254)] {
            let seek = Seek {
                incarnation: 0x0123_4567_89AB_CDEF,
                first: 24,
                claimed,
            };
            let mut bytes = [0; Seek::LEN];
            seek.emit(&mut bytes);
            assert_eq!(Seek::parse(&bytes), Some(seek));
            assert_eq!(Seek::parse(&bytes[1..]), None);
        }
    }
}

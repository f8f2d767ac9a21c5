//! The payload of a hello: who the sender is, the shape of its job, what it has seen of each range.
//!
//! Nodes compare shapes before they take anything from each other. So a node with another model,
//! other data, another number of nodes or another chunk size is found and named. So is a second
//! process with the index of the first.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// How much of a range a node has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RangeSeen {
    /// No chunk of it.
    Nothing = 0,
    /// Some chunks.
    Part = 1,
    /// Every chunk at least once (or it is the sender's own and streams).
    All = 2,
}

impl RangeSeen {
    fn from_byte(byte: u8) -> Option<Self> {
        [Self::Nothing, Self::Part, Self::All]
            .into_iter()
            .find(|seen| *seen as u8 == byte)
    }
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHello {
    fingerprint: U64,
    data: U64,
    first_weights: U64,
    incarnation: U64,
    chunk_weights: U32,
    chunks: U32,
    nodes: U16,
    masters: U16,
    trained_ms: U32,
}

const FIXED_LEN: usize = size_of::<RawHello>();

/// What a node says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Fingerprint of the model (names, shapes, offsets).
    pub fingerprint: u64,
    /// Hash of the kind, shape and classes of its data; 0: not known.
    pub data: u64,
    /// Hash of the weights that it began with; 0: not known.
    pub first_weights: u64,
    /// Random number of its memory: another one is another process, or one that lost its memory; 0:
    /// none.
    pub incarnation: u64,
    /// Weights in a chunk.
    pub chunk_weights: u32,
    /// Chunks in the buffer.
    pub chunks: u32,
    /// Nodes that master a range: the first so many.
    pub masters: u16,
    /// How long the cluster has trained, as far as the sender knows, ms.
    pub trained_ms: u32,
    /// For each node, how much of its range the sender has seen.
    pub seen: Vec<RangeSeen>,
}

impl Hello {
    /// Bytes of the payload.
    pub fn len(nodes: u16) -> usize {
        FIXED_LEN + nodes as usize
    }

    /// Writes the payload; `out` is [`len`](Self::len) bytes.
    pub fn emit(&self, out: &mut [u8]) {
        let raw = RawHello {
            fingerprint: self.fingerprint.into(),
            data: self.data.into(),
            first_weights: self.first_weights.into(),
            incarnation: self.incarnation.into(),
            chunk_weights: self.chunk_weights.into(),
            chunks: self.chunks.into(),
            nodes: (self.seen.len() as u16).into(),
            masters: self.masters.into(),
            trained_ms: self.trained_ms.into(),
        };
        let (fixed, seen) = out.split_at_mut(FIXED_LEN);
        fixed.copy_from_slice(raw.as_bytes());
        for (byte, seen_range) in seen.iter_mut().zip(&self.seen) {
            *byte = *seen_range as u8;
        }
    }

    /// Reads a payload; `None` if its lengths or codes do not fit.
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let (raw, rest) = RawHello::ref_from_prefix(payload).ok()?;
        if rest.len() != raw.nodes.get() as usize {
            return None;
        }
        Some(Self {
            fingerprint: raw.fingerprint.get(),
            data: raw.data.get(),
            first_weights: raw.first_weights.get(),
            incarnation: raw.incarnation.get(),
            chunk_weights: raw.chunk_weights.get(),
            chunks: raw.chunks.get(),
            masters: raw.masters.get(),
            trained_ms: raw.trained_ms.get(),
            seen: rest
                .iter()
                .map(|b| RangeSeen::from_byte(*b))
                .collect::<Option<_>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_emitted_is_parsed(
            words in any::<[u64; 4]>(), chunk_weights: u32, chunks: u32, masters: u16, trained_ms: u32,
            seen in proptest::collection::vec(0u8..3, 0..40),
        ) {
            let seen: Vec<_> = seen.into_iter().map(|b| RangeSeen::from_byte(b).unwrap()).collect();
            let [fingerprint, data, first_weights, incarnation] = words;
            let hello = Hello { fingerprint, data, first_weights, incarnation, chunk_weights, chunks, masters, trained_ms, seen };
            let mut out = vec![0; Hello::len(hello.seen.len() as u16)];
            hello.emit(&mut out);
            // Each field stands where the table of docs/reference/stream-protocol.md has it.
            for (at, word) in [0, 8, 16, 24].into_iter().zip(words) {
                prop_assert!(out[at..at + 8] == word.to_le_bytes());
            }
            prop_assert!(out[42..44] == masters.to_le_bytes());
            prop_assert!(out[44..48] == trained_ms.to_le_bytes());
            prop_assert_eq!(out.len(), 48 + hello.seen.len());
            prop_assert_eq!(Hello::parse(&out), Some(hello));
            // One byte less or more is not a hello, nor is one of version 1.
            prop_assert_eq!(Hello::parse(&out[..out.len() - 1]), None);
            out.push(0);
            prop_assert_eq!(Hello::parse(&out), None);
        }

        #[test]
        fn any_bytes_are_parsed_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = Hello::parse(&bytes);
        }
    }
}

//! The payloads of asks and offers: how the next master of a range finds it in the replicas.
//!
//! An *ask* of part 0 goes to all and has no payload: it is about [`BLOCK_CHUNKS`] chunks from
//! `chunk` on. The answer is an *offer*, a [`Held`] for each. Any other ask goes to one node; its
//! payload is a list of chunks, which come as restores.

use zerocopy::byteorder::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Chunks that one ask of part 0, and its offer, are about: an offer fits into the smallest MTU.
pub const BLOCK_CHUNKS: u32 = 32;
/// Most chunks that one ask of part 1 lists.
pub const ASK_MAX: usize = 64;

/// What an offer says of one chunk.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Held {
    version: U32,
    epoch: U32,
}

impl Held {
    /// The position of `version` in `epoch`, which is not 0; `None`: no position.
    pub fn new(position: Option<(u32, u32)>) -> Self {
        let (epoch, version) = position.unwrap_or_default();
        Self {
            version: version.into(),
            epoch: epoch.into(),
        }
    }

    /// The epoch and the version of the position that is held.
    pub fn position(&self) -> Option<(u32, u32)> {
        (self.epoch.get() != 0).then(|| (self.epoch.get(), self.version.get()))
    }
}

/// Reads an offer; `None` if it is not whole or too long.
pub fn parse_offer(payload: &[u8]) -> Option<&[Held]> {
    let all = <[Held]>::ref_from_bytes(payload).ok()?;
    (all.len() <= BLOCK_CHUNKS as usize).then_some(all)
}

/// Writes a list of chunks; `out` has 4 bytes for each.
pub fn emit_chunks(chunks: &[u32], out: &mut [u8]) {
    for (bytes, chunk) in out.as_chunks_mut::<4>().0.iter_mut().zip(chunks) {
        *bytes = chunk.to_le_bytes();
    }
}

/// Reads a list of chunks; `None` if it is not whole or too long.
pub fn parse_chunks(payload: &[u8]) -> Option<impl Iterator<Item = u32> + use<'_>> {
    let (chunks, rest) = payload.as_chunks::<4>();
    let fits = rest.is_empty() && chunks.len() <= ASK_MAX;
    fits.then(|| chunks.iter().map(|bytes| u32::from_le_bytes(*bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn offers_and_asks_come_back(
            held in proptest::collection::vec(proptest::option::of((1..=u32::MAX, any::<u32>())), 0..40),
            chunks in proptest::collection::vec(any::<u32>(), 0..80),
        ) {
            let all: Vec<Held> = held.iter().map(|one| Held::new(*one)).collect();
            let read = parse_offer(all.as_bytes());
            prop_assert_eq!(read.is_some(), held.len() <= BLOCK_CHUNKS as usize);
            if let Some(read) = read {
                let back: Vec<_> = read.iter().map(Held::position).collect();
                prop_assert_eq!(back, held);
            }
            let mut out = vec![0; 4 * chunks.len()];
            emit_chunks(&chunks, &mut out);
            let read = parse_chunks(&out).map(Iterator::collect::<Vec<_>>);
            prop_assert_eq!(read, (chunks.len() <= ASK_MAX).then_some(chunks));
            out.push(0);
            prop_assert!(parse_chunks(&out).is_none());
        }
    }
}

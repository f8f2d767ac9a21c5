//! The payload of a hello: who the sender is, the shape of its job, what it has seen of each range.
//!
//! Nodes compare shapes before they take anything from each other. So a node with another model,
//! other data, another number of nodes or another chunk size is found and named. So is a second
//! process with the index of the first.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What a node says of one node and of its range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeSeen {
    /// The low half of the incarnation that the sender knows the node by; 0: none.
    pub life: u32,
    /// The latest epoch of its range that the sender has heard of; 0: none.
    pub epoch: u32,
    /// Chunks of its range that the sender holds (of one that it streams: all).
    pub held: u32,
    /// Whether the sender hears nothing of the node.
    pub silent: bool,
    /// Whether the sender knows that the node has left.
    pub gone: bool,
    /// Whether frames of the node reach the sender by multicast.
    pub by_multicast: bool,
    /// Iterations of its solvers, as far as the sender knows: in former lives of the node, or all
    /// where it is silent. At most [`u32::MAX`].
    pub iterations: u32,
}

/// In `held` on the wire: the node is silent; it has left; it is heard by multicast.
const SILENT: u32 = 1 << 31;
const GONE: u32 = 1 << 30;
const MULTICAST: u32 = 1 << 29;
const HELD: u32 = MULTICAST - 1;

impl NodeSeen {
    fn held_and_bits(self) -> u32 {
        let bit = |bit: u32, set: bool| if set { bit } else { 0 };
        self.held & HELD
            | bit(SILENT, self.silent)
            | bit(GONE, self.gone)
            | bit(MULTICAST, self.by_multicast)
    }
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawSeen {
    life: U32,
    epoch: U32,
    held: U32,
    iterations: U32,
}

/// Most nodes that one hello speaks of: with them it fits into the smallest MTU. In larger jobs
/// hellos take turns.
pub const SEEN_MAX: u16 = 24;

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
    first: U16,
    later: u8,
    stay: u8,
}

const FIXED_LEN: usize = size_of::<RawHello>();

/// Whether a node stays in the job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Stay {
    /// It does.
    #[default]
    Stays = 0,
    /// It is about to leave: other nodes are to take its ranges.
    Leaves = 1,
    /// It has left.
    Gone = 2,
}

impl Stay {
    fn of(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Stays),
            1 => Some(Self::Leaves),
            2 => Some(Self::Gone),
            _ => None,
        }
    }
}

/// In `stay` on the wire: the sender has settled.
const SETTLED: u8 = 1 << 7;

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
    /// Nodes that the job begins with.
    pub nodes: u16,
    /// Node numbers behind those, for nodes that join later.
    pub later: u8,
    /// Whether the sender stays.
    pub stay: Stay,
    /// Whether the sender's solvers have finished, and all that they added is with others.
    pub settled: bool,
    /// Nodes that begin with ranges: the first so many.
    pub masters: u16,
    /// How long the cluster has trained, as far as the sender knows, ms.
    pub trained_ms: u32,
    /// The node that `seen` begins with.
    pub first: u16,
    /// What the sender knows of some nodes, [`SEEN_MAX`] at most.
    pub seen: Vec<NodeSeen>,
}

impl Hello {
    /// Bytes of a payload that speaks of `seen` nodes.
    pub fn len(seen: usize) -> usize {
        FIXED_LEN + seen * size_of::<RawSeen>()
    }

    /// Node numbers that there are.
    pub fn places(&self) -> u16 {
        self.nodes.saturating_add(self.later.into())
    }

    /// What it says of `node`; `None`: nothing.
    pub fn seen_of(&self, node: u16) -> Option<NodeSeen> {
        let at = node.checked_sub(self.first)?;
        self.seen.get(usize::from(at)).copied()
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
            nodes: self.nodes.into(),
            masters: self.masters.into(),
            trained_ms: self.trained_ms.into(),
            first: self.first.into(),
            later: self.later,
            stay: self.stay as u8 | if self.settled { SETTLED } else { 0 },
        };
        let (fixed, seen) = out.split_at_mut(FIXED_LEN);
        fixed.copy_from_slice(raw.as_bytes());
        for (raw, seen) in seen.chunks_exact_mut(size_of::<RawSeen>()).zip(&self.seen) {
            let of_node = RawSeen {
                life: seen.life.into(),
                epoch: seen.epoch.into(),
                held: seen.held_and_bits().into(),
                iterations: seen.iterations.into(),
            };
            raw.copy_from_slice(of_node.as_bytes());
        }
    }

    /// Reads a payload; `None` if its lengths or codes do not fit.
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let (raw, rest) = RawHello::ref_from_prefix(payload).ok()?;
        let seen = <[RawSeen]>::ref_from_bytes(rest).ok()?;
        let (first, nodes) = (raw.first.get(), raw.nodes.get());
        let places = usize::from(nodes) + usize::from(raw.later);
        if usize::from(first) + seen.len() > places {
            return None;
        }
        Some(Self {
            fingerprint: raw.fingerprint.get(),
            data: raw.data.get(),
            first_weights: raw.first_weights.get(),
            incarnation: raw.incarnation.get(),
            chunk_weights: raw.chunk_weights.get(),
            chunks: raw.chunks.get(),
            nodes,
            later: raw.later,
            stay: Stay::of(raw.stay & !SETTLED)?,
            settled: raw.stay & SETTLED != 0,
            masters: raw.masters.get(),
            trained_ms: raw.trained_ms.get(),
            first,
            seen: seen.iter().map(NodeSeen::from).collect(),
        })
    }
}

impl From<&RawSeen> for NodeSeen {
    fn from(raw: &RawSeen) -> Self {
        Self {
            life: raw.life.get(),
            epoch: raw.epoch.get(),
            held: raw.held.get() & HELD,
            silent: raw.held.get() & SILENT != 0,
            gone: raw.held.get() & GONE != 0,
            by_multicast: raw.held.get() & MULTICAST != 0,
            iterations: raw.iterations.get(),
        }
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
            first in 0u16..300, more in 0u16..300, later: u8,
            stay in prop_oneof![Just(Stay::Stays), Just(Stay::Leaves), Just(Stay::Gone)], settled: bool,
            seen in proptest::collection::vec(any::<[u32; 4]>(), 0..=usize::from(SEEN_MAX)),
        ) {
            let seen: Vec<_> = seen.into_iter().map(|[life, epoch, held, iterations]| NodeSeen {
                life,
                epoch,
                held: held & HELD,
                silent: held & SILENT != 0,
                gone: held & GONE != 0,
                by_multicast: held & MULTICAST != 0,
                iterations,
            }).collect();
            let [fingerprint, data, first_weights, incarnation] = words;
            let nodes = first + seen.len() as u16 + more;
            let hello = Hello {
                fingerprint, data, first_weights, incarnation, chunk_weights, chunks, nodes, later, stay, settled,
                masters, trained_ms, first, seen,
            };
            let mut out = vec![0; Hello::len(hello.seen.len())];
            hello.emit(&mut out);
            // Each field stands where the table of docs/reference/stream-protocol.md has it.
            for (at, word) in [0, 8, 16, 24].into_iter().zip(words) {
                prop_assert!(out[at..at + 8] == word.to_le_bytes());
            }
            prop_assert!(out[40..42] == nodes.to_le_bytes());
            prop_assert!(out[42..44] == masters.to_le_bytes());
            prop_assert!(out[44..48] == trained_ms.to_le_bytes());
            prop_assert!(out[48..50] == first.to_le_bytes());
            prop_assert_eq!([out[50], out[51]], [later, stay as u8 | u8::from(settled) << 7]);
            if let Some(one) = hello.seen.first() {
                prop_assert!(out[52..56] == one.life.to_le_bytes());
                let bits = u32::from(one.silent) << 31
                    | u32::from(one.gone) << 30
                    | u32::from(one.by_multicast) << 29;
                prop_assert!(out[60..64] == (one.held | bits).to_le_bytes());
                prop_assert!(out[64..68] == one.iterations.to_le_bytes());
            }
            prop_assert_eq!(out.len(), 52 + 16 * hello.seen.len());
            prop_assert_eq!(hello.seen_of(first), hello.seen.first().copied());
            prop_assert_eq!(hello.seen_of(first + hello.seen.len() as u16), None);
            prop_assert_eq!(Hello::parse(&out), Some(hello));
            // One byte less or more is not a hello, nor is one of nodes that the job has not.
            prop_assert_eq!(Hello::parse(&out[..out.len() - 1]), None);
            out.push(0);
            prop_assert_eq!(Hello::parse(&out), None);
        }

        #[test]
        fn any_bytes_are_parsed_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            let _ = Hello::parse(&bytes);
        }
    }

    #[test]
    fn a_hello_of_nodes_that_the_job_has_not_is_none() {
        let mut out = vec![0; Hello::len(2)];
        out[40] = 2;
        assert!(Hello::parse(&out).is_some());
        out[48] = 1;
        assert_eq!(Hello::parse(&out), None);
        // It may have them later; but no node is anything else than here, about to leave, or gone.
        out[50] = 1;
        assert!(Hello::parse(&out).is_some());
        out[51] = 3;
        assert_eq!(Hello::parse(&out), None);
    }
}

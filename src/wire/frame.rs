//! The frame: fixed header, acks, payload. See the module's table for the offsets.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First two bytes of every frame: "DW".
pub const MAGIC: u16 = u16::from_le_bytes(*b"DW");
/// Version of the frame format.
pub const VERSION: u8 = 3;
/// Bytes of the fixed header.
pub const HEADER_LEN: usize = 48;
/// Where in a frame its kind stands.
pub const KIND_AT: usize = 3;
/// Acks are padded to a multiple of this many bytes, which keeps the payload aligned.
pub const ACK_ALIGN: usize = 16;
/// Largest payload that a frame may announce, bytes (16,384 weights).
pub const MAX_PAYLOAD: usize = 64 * 1024;

/// Bits of the header's `flags`.
pub mod flags {
    /// The sender has seen every foreign chunk and its solvers run.
    pub const READY: u8 = 2;
    /// All bits that this version knows.
    pub const KNOWN: u8 = READY;
}

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Master to all slaves: the present values of a chunk.
    Position = 1,
    /// Slave to the master of a chunk: what local solvers added since the last position.
    Delta = 2,
    /// Node to all nodes: I am here, this is my job's shape, this is what I have seen.
    Hello = 3,
    /// Answer to a master that lost its weights: a replica of a chunk as its master sent it.
    Restore = 4,
    /// Node that lacks weights to all nodes, or to one: which replicas are there, or please send me
    /// these.
    Ask = 5,
    /// Answer to the first of these: which positions of some chunks the sender holds.
    Offer = 6,
    /// Node to a node: at which addresses others are.
    Contacts = 7,
    /// Master to all slaves: a position that went before, for those who hold it to compare.
    Check = 8,
    /// A host without a number to all nodes: which numbers are free, or I claim this one.
    Seek = 9,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Position,
        Self::Delta,
        Self::Hello,
        Self::Restore,
        Self::Ask,
        Self::Offer,
        Self::Contacts,
        Self::Check,
        Self::Seek,
    ];

    #[inline]
    fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == byte)
    }

    /// Whether its payload is weights, but for a restore that says only numbers.
    #[inline]
    pub fn has_weights(self) -> bool {
        matches!(
            self,
            Self::Position | Self::Delta | Self::Restore | Self::Check
        )
    }

    /// Whether its payload may be of that type: a restore of numbers, or of nothing, has none.
    #[inline]
    fn may_have(self, dtype: Dtype) -> bool {
        self == Self::Restore || self.has_weights() != (dtype == Dtype::None)
    }
}

/// How the payload encodes weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Dtype {
    /// No weights (hello, ask, offer; a restore that says only numbers).
    None = 0,
    /// IEEE 754 binary32, little-endian.
    F32 = 1,
    /// The upper half of a binary32.
    Bf16 = 2,
    /// Bytes with a scale for each block ([`pack`](super::pack())).
    Int8 = 3,
    /// Two bits with a scale for each block; of deltas alone.
    Int2 = 4,
}

impl Dtype {
    #[inline]
    fn from_byte(byte: u8) -> Option<Self> {
        [Self::None, Self::F32, Self::Bf16, Self::Int8, Self::Int2]
            .into_iter()
            .find(|dtype| *dtype as u8 == byte)
    }
}

/// Why bytes are not a frame of this format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Fewer bytes than the header, or than it announces.
    #[error("frame is cut short: {have} bytes, needs {need}")]
    Short {
        /// Bytes received.
        have: usize,
        /// Bytes needed.
        need: usize,
    },
    /// Not one of our frames.
    #[error("not a dogwild frame (magic {0:#06x})")]
    Magic(u16),
    /// A later or earlier format.
    #[error(
        "frame format version {0}, this program speaks {VERSION}: run the same release on all nodes"
    )]
    Version(u8),
    /// Unknown kind.
    #[error("unknown frame kind {0}")]
    Kind(u8),
    /// Unknown flags.
    #[error("unknown flags are set")]
    Reserved,
    /// Unknown dtype, or one that does not fit the kind.
    #[error("dtype {0} does not go with this kind of frame")]
    Dtype(u8),
    /// Payload longer than any chunk, or not a whole number of weights.
    #[error("payload of {0} bytes is not a whole chunk")]
    Payload(u32),
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHeader {
    magic: U16,
    version: u8,
    kind: u8,
    flags: u8,
    dtype: u8,
    acks: u8,
    seq: u8,
    session: U64,
    epoch: U32,
    sender: U16,
    range: U16,
    chunk: U32,
    chunk_version: U32,
    iterations: U64,
    payload_len: U32,
    content: U16,
    part: u8,
    held: u8,
}

const _: () = assert!(size_of::<RawHeader>() == HEADER_LEN);
const _: () = assert!(std::mem::offset_of!(RawHeader, kind) == KIND_AT);

/// The header's fields, in the units of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the frame is for.
    pub kind: Kind,
    /// Bits of [`flags`].
    pub flags: u8,
    /// Encoding of the payload.
    pub dtype: Dtype,
    /// Number of ack bytes (one for each node of the session; 0 but in positions and restores).
    pub acks: u8,
    /// Sequence number of a delta, modulo 256.
    pub seq: u8,
    /// Which job.
    pub session: u64,
    /// In which epoch the range is streamed: a counter, and in the low byte the node that streams.
    pub epoch: u32,
    /// Index of the sending node.
    pub sender: u16,
    /// Index of the range: the node that mastered it first.
    pub range: u16,
    /// Index of the chunk in the whole buffer.
    pub chunk: u32,
    /// Version of the chunk: of a position its own, of a delta that of the position it answers.
    pub chunk_version: u32,
    /// Iterations of all solvers of the sending node so far.
    pub iterations: u64,
    /// Bytes of payload.
    pub payload_len: u32,
    /// Of a position in a job that is not f32: low half of the version under which these very
    /// weights were sent first. Of a restore: 0 a replica, 1 a base, 2 what is contested, 3 none.
    pub content: u16,
    /// Of a position or check: 0 the whole chunk, k piece k - 1 of it. Of a restore: the piece. Of
    /// an ask: 0 which replicas are there, 1 and 2 send me replicas, 3 bases, 4 what is contested.
    /// Else 0.
    pub part: u8,
    /// Of a delta: how long the position that it answers may have lain unread at the slave, in
    /// units of [`HELD_UNIT_NS`], rounded up; 255: so long or longer. Else 0.
    pub held: u8,
}

/// Unit of [`Header::held`], ns.
pub const HELD_UNIT_NS: u64 = 1 << 18;

/// Bytes that `acks` ack bytes take in a frame.
#[inline]
pub const fn acks_len(acks: u8) -> usize {
    (acks as usize).next_multiple_of(ACK_ALIGN)
}

impl Header {
    /// Bytes of the whole frame.
    #[inline]
    pub fn frame_len(&self) -> usize {
        self.head_len() + self.payload_len as usize
    }

    /// Bytes of the frame before its payload.
    #[inline]
    pub fn head_len(&self) -> usize {
        HEADER_LEN + acks_len(self.acks)
    }

    /// Writes the header and zeroed acks into `slot`; returns (acks, payload) to be filled.
    ///
    /// # Panics
    /// If `slot` is not [`frame_len`](Self::frame_len) bytes long: the caller asked for it.
    #[inline]
    pub fn emit<'s>(&self, slot: &'s mut [u8]) -> (&'s mut [u8], &'s mut [u8]) {
        assert_eq!(
            slot.len(),
            self.frame_len(),
            "transmit slot of another size than the frame"
        );
        let (head, rest) = slot.split_at_mut(self.head_len());
        (self.emit_head(head), &mut rest[..self.payload_len as usize])
    }

    /// Writes the header and zeroed acks into `head`; returns the acks to be filled.
    ///
    /// # Panics
    /// If `head` is not [`head_len`](Self::head_len) bytes long: the caller asked for it.
    #[inline]
    pub fn emit_head<'s>(&self, head: &'s mut [u8]) -> &'s mut [u8] {
        assert_eq!(
            head.len(),
            self.head_len(),
            "the slice is not as long as the head of the frame"
        );
        let (raw, acks) =
            RawHeader::mut_from_prefix(head).expect("as long as the head, checked above");
        *raw = RawHeader {
            magic: MAGIC.into(),
            version: VERSION,
            kind: self.kind as u8,
            flags: self.flags,
            dtype: self.dtype as u8,
            acks: self.acks,
            seq: self.seq,
            session: self.session.into(),
            epoch: self.epoch.into(),
            sender: self.sender.into(),
            range: self.range.into(),
            chunk: self.chunk.into(),
            chunk_version: self.chunk_version.into(),
            iterations: self.iterations.into(),
            payload_len: self.payload_len.into(),
            content: self.content.into(),
            part: self.part,
            held: self.held,
        };
        for line in acks.as_chunks_mut::<ACK_ALIGN>().0 {
            *line = [0; ACK_ALIGN];
        }
        &mut acks[..self.acks as usize]
    }
}

/// A frame whose lengths and codes have been checked.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'b> {
    /// Fixed header, decoded.
    pub header: Header,
    /// One byte for each node: the last delta that the master applied to this chunk.
    pub acks: &'b [u8],
    /// Payload: weights in the encoding of the header.
    pub payload: &'b [u8],
}

impl<'b> Frame<'b> {
    /// Checks `bytes` and lends their parts. Bytes behind the frame (Ethernet padding) are ignored.
    // Inlined, for it is made for every frame: handing the parts over in memory would cost more
    // than finding them.
    #[inline(always)]
    pub fn parse(bytes: &'b [u8]) -> Result<Self, ParseError> {
        let short = |need| ParseError::Short {
            have: bytes.len(),
            need,
        };
        let (raw, rest) = RawHeader::ref_from_prefix(bytes).map_err(|_| short(HEADER_LEN))?;
        let header = raw.check()?;
        if bytes.len() < header.frame_len() {
            return Err(short(header.frame_len()));
        }
        let (acks, rest) = rest.split_at(acks_len(header.acks));
        Ok(Self {
            header,
            acks: &acks[..header.acks as usize],
            payload: &rest[..header.payload_len as usize],
        })
    }
}

/// Session and sender of a frame of any version: they stand at the same place in all of them.
/// `None` if the bytes are too few.
pub fn of_any_version(bytes: &[u8]) -> Option<(u64, u16)> {
    let (raw, _) = RawHeader::ref_from_prefix(bytes).ok()?;
    Some((raw.session.get(), raw.sender.get()))
}

impl RawHeader {
    #[inline(always)]
    fn check(&self) -> Result<Header, ParseError> {
        if self.magic.get() != MAGIC {
            return Err(ParseError::Magic(self.magic.get()));
        }
        if self.version != VERSION {
            return Err(ParseError::Version(self.version));
        }
        let kind = Kind::from_byte(self.kind).ok_or(ParseError::Kind(self.kind))?;
        if self.flags & !flags::KNOWN != 0 {
            return Err(ParseError::Reserved);
        }
        let dtype = Dtype::from_byte(self.dtype)
            .filter(|dtype| kind.may_have(*dtype))
            .ok_or(ParseError::Dtype(self.dtype))?;
        let payload_len = self.payload_len.get();
        let whole = match dtype {
            Dtype::None => true,
            Dtype::F32 => payload_len > 0 && payload_len.is_multiple_of(4),
            Dtype::Bf16 | Dtype::Int8 | Dtype::Int2 => {
                payload_len > 0 && payload_len.is_multiple_of(2)
            }
        };
        if payload_len as usize > MAX_PAYLOAD || !whole {
            return Err(ParseError::Payload(payload_len));
        }
        Ok(Header {
            kind,
            flags: self.flags,
            dtype,
            acks: self.acks,
            seq: self.seq,
            session: self.session.get(),
            epoch: self.epoch.get(),
            sender: self.sender.get(),
            range: self.range.get(),
            chunk: self.chunk.get(),
            chunk_version: self.chunk_version.get(),
            iterations: self.iterations.get(),
            payload_len,
            content: self.content.get(),
            part: self.part,
            held: self.held,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_header() -> impl Strategy<Value = Header> {
        let codes = (0..Kind::ALL.len(), any::<bool>(), any::<u8>(), any::<u8>());
        let ids = (any::<u64>(), any::<u32>(), any::<u16>(), any::<u16>());
        let chunk = (any::<u32>(), any::<u32>(), any::<u64>(), 1u32..600);
        (codes, ids, chunk).prop_map(|(codes, ids, chunk)| {
            let kind = Kind::ALL[codes.0];
            Header {
                kind,
                flags: if codes.1 { flags::READY } else { 0 },
                dtype: if kind.has_weights() {
                    Dtype::F32
                } else {
                    Dtype::None
                },
                acks: codes.2,
                seq: codes.3,
                session: ids.0,
                epoch: ids.1,
                sender: ids.2,
                range: ids.3,
                chunk: chunk.0,
                chunk_version: chunk.1,
                iterations: chunk.2,
                payload_len: chunk.3 * 4,
                content: ids.2,
                part: codes.2,
                held: codes.3,
            }
        })
    }

    proptest! {
        #[test]
        fn what_is_emitted_is_parsed(header in any_header(), fill in any::<u8>(), pad in 0usize..64) {
            let mut slot = vec![0xEE; header.frame_len()];
            let (acks, payload) = header.emit(&mut slot);
            acks.fill(fill);
            payload.fill(fill ^ 0x5A);
            slot.resize(slot.len() + pad, 0);
            let frame = Frame::parse(&slot).unwrap();
            prop_assert_eq!(frame.header, header);
            prop_assert_eq!(frame.acks.len(), header.acks as usize);
            prop_assert!(frame.acks.iter().all(|b| *b == fill));
            prop_assert_eq!(frame.payload.len(), header.payload_len as usize);
            prop_assert!(frame.payload.iter().all(|b| *b == fill ^ 0x5A));
        }

        #[test]
        fn any_bytes_are_parsed_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Frame::parse(&bytes);
        }

        #[test]
        fn mutated_frames_are_parsed_without_panic(
            header in any_header(), at in any::<prop::sample::Index>(), with in any::<u8>(), cut in any::<prop::sample::Index>()
        ) {
            let mut slot = vec![0; header.frame_len()];
            header.emit(&mut slot);
            let at = at.index(HEADER_LEN);
            slot[at] = with;
            let _ = Frame::parse(&slot);
            slot.truncate(cut.index(slot.len()));
            prop_assert!(Frame::parse(&slot).is_err() || slot.len() >= HEADER_LEN);
        }
    }

    #[test]
    fn each_refusal_names_its_reason() {
        let header = Header {
            kind: Kind::Delta,
            flags: 0,
            dtype: Dtype::F32,
            acks: 0,
            seq: 1,
            session: 7,
            epoch: 1,
            sender: 1,
            range: 0,
            chunk: 2,
            chunk_version: 3,
            iterations: 4,
            payload_len: 64,
            content: 0,
            part: 0,
            held: 0,
        };
        let mut good = vec![0; header.frame_len()];
        header.emit(&mut good);
        let with = |at: usize, byte: u8| {
            let mut bad = good.clone();
            bad[at] = byte;
            Frame::parse(&bad).unwrap_err()
        };
        assert_eq!(with(0, b'X'), ParseError::Magic(u16::from_le_bytes(*b"XW")));
        assert_eq!(with(2, 9), ParseError::Version(9));
        assert_eq!(with(3, 77), ParseError::Kind(77));
        assert_eq!(with(4, 0x80), ParseError::Reserved);
        assert_eq!(with(4, 1), ParseError::Reserved);
        assert_eq!(with(5, 0), ParseError::Dtype(0));
        assert_eq!(with(40, 63), ParseError::Payload(63));
        assert_eq!(with(42, 255), ParseError::Payload(64 + (255 << 16)));
        assert_eq!(
            with(40, 68),
            ParseError::Short {
                have: 112,
                need: 116
            }
        );
        assert_eq!(
            Frame::parse(&good[..40]).unwrap_err(),
            ParseError::Short { have: 40, need: 48 }
        );
    }
}

//! The format of a Poseidon message: bytes only.
//!
//! A message is a header of [`HEADER_LEN`] bytes, the length of the payload first, and a payload of
//! floats, words or text. What arrives is bounded by [`Sizes`] before anything is allocated:
//! a payload of data has exactly the size that the cluster's plan gives its subject. Parsing never
//! panics, whatever the bytes. Store and syncer check whether a message is allowed at its time.
//!
//! ```text
//!  0 payload_len u32   4 magic "DP"   6 version u8   7 kind u8
//!  8 subject u32 (pair or layer)     12 sender u16  14 reserved u16 (zero)
//! 16 clock u64
//! 24 payload (payload_len bytes)
//! ```

mod floats;
mod sizes;

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub use floats::{Floats, Pool};
pub use sizes::{PairSize, ParseError, Sizes};

/// First bytes of every message behind its length.
pub(super) const MAGIC: [u8; 2] = *b"DP";
/// Version of the format.
pub const VERSION: u8 = 2;
/// Bytes of the header.
pub const HEADER_LEN: usize = 24;
/// Longest text, bytes.
pub const MAX_TEXT: usize = 4 << 20;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $code:literal carries $payload:ident,)*) => {
        /// What a message is for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum MessageKind { $($(#[$doc])* $name = $code,)* }

        impl MessageKind {
            /// All kinds.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// What its payload is made of.
            pub fn payload(self) -> Payload {
                match self { $(Self::$name => Payload::$payload,)* }
            }
        }
    };
}

kinds! {
    /// First on every connection: the member that sends it.
    Hello = 1 carries Text,
    /// Coordinator to a member: the description of the cluster, once all members have joined.
    ClusterInfo = 2 carries Text,
    /// To the coordinator: a question.
    Query = 3 carries Text,
    /// The coordinator's answer.
    Answer = 4 carries Text,
    /// Worker to server: a pair's gradient.
    Gradient = 5 carries Floats,
    /// Server to worker: a pair's weights, after `clock` steps.
    Weights = 6 carries Floats,
    /// Worker to peer or server: a layer's sufficient factors, u then v.
    Factors = 7 carries Floats,
    /// Worker to server, and the sum back: a pair's gradient, one bit per weight.
    Bits = 8 carries Words,
    /// Worker 0 to the coordinator, and on to the workers: end at `clock`.
    Finish = 9 carries Nothing,
    /// Confirms `Finish`; from the coordinator: all workers have confirmed it.
    FinishKnown = 10 carries Nothing,
    /// Sent when there is nothing else to send, so that the other end does not time out.
    Alive = 11 carries Nothing,
    /// The sender has finished: the connection may be closed.
    Bye = 12 carries Nothing,
    /// The sender ends the run, for this reason.
    Abort = 13 carries Text,
}

/// What a payload is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// No payload.
    Nothing,
    /// Text in UTF-8.
    Text,
    /// Values of f32, little-endian.
    Floats,
    /// Values of u32, little-endian.
    Words,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHeader {
    payload_len: U32,
    magic: [u8; 2],
    version: u8,
    kind: u8,
    subject: U32,
    sender: U16,
    reserved: U16,
    clock: U64,
}

const _: () = assert!(size_of::<RawHeader>() == HEADER_LEN);

/// The header of a message, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What it is for.
    pub kind: MessageKind,
    /// Pair (gradient, weights, bits) or layer (factors); else 0.
    pub subject: u32,
    /// Index of the worker or server that sends it.
    pub sender: u16,
    /// Iteration whose gradient it is, or number of steps made.
    pub clock: u64,
    /// Bytes of the payload.
    pub payload_len: usize,
}

impl Header {
    /// Checks a header, the size it announces too.
    ///
    /// # Errors
    /// See [`ParseError`].
    pub fn parse(bytes: &[u8; HEADER_LEN], sizes: &Sizes) -> Result<Self, ParseError> {
        let raw = RawHeader::ref_from_bytes(bytes).map_err(|_| ParseError::Short {
            have: bytes.len(),
            need: HEADER_LEN,
        })?;
        if raw.magic != MAGIC {
            return Err(ParseError::Magic(raw.magic));
        }
        // Every version has this header and this kind: each can tell the others why it ends.
        if raw.version != VERSION && raw.kind != MessageKind::Abort as u8 {
            return Err(ParseError::Version(raw.version));
        }
        let known = MessageKind::ALL
            .iter()
            .find(|kind| **kind as u8 == raw.kind);
        let kind = *known.ok_or(ParseError::UnknownKind(raw.kind))?;
        if raw.reserved.get() != 0 {
            return Err(ParseError::Reserved);
        }
        let header = Self {
            kind,
            subject: raw.subject.get(),
            sender: raw.sender.get(),
            clock: raw.clock.get(),
            payload_len: raw.payload_len.get() as usize,
        };
        sizes.check(kind, header.subject, header.payload_len)?;
        Ok(header)
    }

    fn emit(&self) -> [u8; HEADER_LEN] {
        let raw = RawHeader {
            // `Sizes::check` refuses what a receiver could not take; a plan refuses such pairs.
            payload_len: (self.payload_len as u32).into(),
            magic: MAGIC,
            version: VERSION,
            kind: self.kind as u8,
            subject: self.subject.into(),
            sender: self.sender.into(),
            reserved: 0.into(),
            clock: self.clock.into(),
        };
        let mut bytes = [0; HEADER_LEN];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }
}

/// The payload of a message.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// No payload.
    Nothing,
    /// UTF-8 text.
    Text(String),
    /// Values in the order of the weights or factors.
    Floats(Floats),
    /// Words of a pair at one bit per weight.
    Words(Vec<u32>),
}

impl Body {
    /// The bytes that follow the header.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Nothing => &[],
            Self::Text(text) => text.as_bytes(),
            Self::Floats(floats) => floats.as_bytes(),
            Self::Words(words) => words.as_bytes(),
        }
    }
}

/// A message: the fields of its header, and its payload.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// What it is for.
    pub kind: MessageKind,
    /// Pair (gradient, weights, bits) or layer (factors); else 0.
    pub subject: u32,
    /// Index of the worker or server that sends it.
    pub sender: u16,
    /// Iteration whose gradient it is, or number of steps made.
    pub clock: u64,
    /// What it carries.
    pub body: Body,
}

impl Message {
    /// A message without payload.
    pub fn bare(kind: MessageKind, sender: u16, clock: u64) -> Self {
        Self {
            kind,
            subject: 0,
            sender,
            clock,
            body: Body::Nothing,
        }
    }

    /// A message of text.
    pub fn text(kind: MessageKind, sender: u16, text: String) -> Self {
        Self {
            body: Body::Text(text),
            ..Self::bare(kind, sender, 0)
        }
    }

    /// Its text; empty if it carries none.
    pub fn as_text(&self) -> &str {
        match &self.body {
            Body::Text(text) => text,
            _ => "",
        }
    }

    /// Its floats; none if it carries none.
    pub fn floats(&self) -> &[f32] {
        match &self.body {
            Body::Floats(floats) => floats,
            _ => &[],
        }
    }

    /// Its words; none if it carries none.
    pub fn words(&self) -> &[u32] {
        match &self.body {
            Body::Words(words) => words,
            _ => &[],
        }
    }

    /// The header's bytes; [`Body::bytes`] of the body follow.
    pub fn header(&self) -> [u8; HEADER_LEN] {
        let header = Header {
            kind: self.kind,
            subject: self.subject,
            sender: self.sender,
            clock: self.clock,
            payload_len: self.body.bytes().len(),
        };
        header.emit()
    }

    /// Reads the payload that `header` announces through `fill`, which fills all it is given.
    /// Floats lie in memory of `pool`.
    ///
    /// # Errors
    /// The error of `fill`, or text that is not UTF-8.
    pub fn read<E: From<ParseError>>(
        header: &Header,
        pool: &Pool,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<Self, E> {
        let body = match header.kind.payload() {
            Payload::Nothing => Body::Nothing,
            Payload::Text => {
                let mut bytes = vec![0; header.payload_len];
                fill(&mut bytes)?;
                Body::Text(String::from_utf8(bytes).map_err(|_| ParseError::Text)?)
            }
            Payload::Floats => {
                let mut floats = pool.take(header.payload_len / 4);
                fill(floats.as_mut_bytes())?;
                Body::Floats(floats)
            }
            Payload::Words => {
                let mut words = vec![0u32; header.payload_len / 4];
                fill(words.as_mut_bytes())?;
                Body::Words(words)
            }
        };
        Ok(Self {
            kind: header.kind,
            subject: header.subject,
            sender: header.sender,
            clock: header.clock,
            body,
        })
    }

    /// Reads one message from the front of `bytes`; gives the rest too.
    ///
    /// # Errors
    /// See [`ParseError`].
    pub fn parse<'b>(bytes: &'b [u8], sizes: &Sizes) -> Result<(Self, &'b [u8]), ParseError> {
        let short = |need| ParseError::Short {
            have: bytes.len(),
            need,
        };
        let (head, rest) = bytes.split_first_chunk().ok_or(short(HEADER_LEN))?;
        let header = Header::parse(head, sizes)?;
        let need = header.payload_len;
        let (payload, rest) = rest
            .split_at_checked(need)
            .ok_or(short(HEADER_LEN + need))?;
        let message = Self::read(&header, &Pool::default(), |to| {
            to.copy_from_slice(payload);
            Ok::<(), ParseError>(())
        })?;
        Ok((message, rest))
    }
}

#[cfg(test)]
mod tests;

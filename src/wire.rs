//! What a frame says: bytes only.
//!
//! Holds the frame format, version 3 (`docs/reference/stream-protocol.md`), as a checked view over
//! received bytes ([`Frame::parse`]) and as headers written into transmit slots ([`Header::emit`]).
//! Touches no sockets, clocks or weights. `parse` never panics, whatever the bytes, and checks
//! every length before the payload is read. What needs to know the job (is this my session? is this
//! chunk that sender's?) is checked by `stream`.
//!
//! ```text
//!  0 magic u16   2 version u8   3 kind u8
//!  4 flags u8    5 dtype u8     6 acks u8    7 seq u8
//!  8 session u64
//! 16 epoch u32  20 sender u16  22 range u16
//! 24 chunk u32  28 chunk_version u32
//! 32 iterations u64
//! 40 payload_len u32           44 content u16   46 part u8   47 held u8
//! 48 acks bytes, padded with zeros to a multiple of 16
//!    payload (payload_len bytes)
//! ```

mod contacts;
mod drop_reason;
mod frame;
mod hello;
mod pack;
mod restore;
mod seek;

pub use contacts::{CONTACTS_MAX, Contact};
pub use drop_reason::DropReason;
pub use frame::{
    ACK_ALIGN, Dtype, Frame, HEADER_LEN, HELD_UNIT_NS, Header, KIND_AT, Kind, MAGIC, MAX_PAYLOAD,
    ParseError, VERSION, acks_len, flags, of_any_version,
};
pub use hello::{Hello, NodeSeen, SEEN_MAX, Stay};
pub use pack::{Q_MAX, SCALE_BLOCK, fits_int2, pack, power_of_two, round, scale_exponent, unpack};
pub use restore::{ASK_MAX, BLOCK_CHUNKS, Held, emit_chunks, parse_chunks, parse_offer};
pub use seek::{NO_NODE, Seek};

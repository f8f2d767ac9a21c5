//! What a frame of `send`, `recv`, `ping`, `sweep` and `latency` says: 40 bytes, little-endian,
//! then filling.
//!
//! Bytes only. Parsing never panics; what is not a frame of ours is `None`.

use super::plan::Mark;

/// Length of the header, and of the smallest frame; Ethernet pads to 46.
pub(crate) const HEADER_BYTES: usize = 40;
/// Magic and version.
const MAGIC: [u8; 4] = *b"DWb2";

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Driver: a run begins; responder: ready. With an `a` of [`SEND_TOO`] or [`SEND_NOW`] the
    /// responder sends by the plan behind the header.
    Begin = 1,
    /// To be counted under the mark `a`. From the responder it is an answer.
    Data = 2,
    /// Driver: the run is over; responder: `a` frames, `b` bytes, `c` ns of CPU.
    End = 3,
    /// Driver: to be sent back as it is, padded to `b` bytes.
    Ping = 4,
    /// Driver: what of the mark `a`; responder: `b` frames arrived and it sent `c` itself, or
    /// [`NOT_YET`].
    Count = 5,
}

/// The responder sends from the driver's first frame on.
pub(crate) const SEND_TOO: u64 = 1;
/// The responder sends at once; the driver sends nothing.
pub(crate) const SEND_NOW: u64 = 2;
/// An answered `Count` says this while frames of the mark may still be sent.
pub(crate) const NOT_YET: u64 = u64::MAX;

/// A frame's header. Which direction it goes tells question from answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) kind: Kind,
    /// From the responder.
    pub(crate) answer: bool,
    /// Of the run, within this session.
    pub(crate) run: u64,
    /// Sequence number of `Ping`; mark of `Data` and `Count`; frames of an answered `End`.
    pub(crate) a: u64,
    /// Bytes of an answered `End`; frames of an answered `Count`.
    pub(crate) b: u64,
    /// CPU time of an answered `End`, ns; when a `Ping` left, ns; frames of an answered `Count`.
    pub(crate) c: u64,
}

impl Packet {
    /// A question with nothing but its kind and run.
    pub(crate) fn ask(kind: Kind, run: u64) -> Self {
        Self {
            kind,
            answer: false,
            run,
            a: 0,
            b: 0,
            c: 0,
        }
    }

    /// The part of the run that this frame belongs to or asks for.
    pub(crate) fn mark(&self) -> Mark {
        Mark::from_word(self.a)
    }

    /// Writes the header to the front of `slot`, which has [`HEADER_BYTES`] at least.
    pub(crate) fn write(&self, slot: &mut [u8]) {
        slot[..4].copy_from_slice(&MAGIC);
        slot[4..8].copy_from_slice(&[self.kind as u8, u8::from(self.answer), 0, 0]);
        for (at, value) in [(8, self.run), (16, self.a), (24, self.b), (32, self.c)] {
            slot[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
    }

    /// Reads a header.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let header = bytes.first_chunk::<HEADER_BYTES>()?;
        if header[..4] != MAGIC || header[5] > 1 || header[6..8] != [0, 0] {
            return None;
        }
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&header[at..at + 8]);
            u64::from_le_bytes(word)
        };
        Some(Self {
            kind: match header[4] {
                1 => Kind::Begin,
                2 => Kind::Data,
                3 => Kind::End,
                4 => Kind::Ping,
                5 => Kind::Count,
                _ => return None,
            },
            answer: header[5] == 1,
            run: word(8),
            a: word(16),
            b: word(24),
            c: word(32),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let packet = Packet {
            answer: true,
            a: 1,
            b: u64::MAX,
            c: 3,
            ..Packet::ask(Kind::End, 0x0102_0304_0506_0708)
        };
        let mut bytes = [0xFF; 64];
        packet.write(&mut bytes);
        assert_eq!(Packet::parse(&bytes), Some(packet));
    }

    #[test]
    fn what_is_not_ours_is_nothing() {
        let mut bytes = [0; HEADER_BYTES];
        Packet::ask(Kind::Data, 1).write(&mut bytes);
        for length in 0..HEADER_BYTES {
            assert_eq!(Packet::parse(&bytes[..length]), None);
        }
        for (at, value) in [(0, b'X'), (4, 0), (4, 6), (5, 2), (6, 1)] {
            let mut wrong = bytes;
            wrong[at] = value;
            assert_eq!(Packet::parse(&wrong), None);
        }
    }
}

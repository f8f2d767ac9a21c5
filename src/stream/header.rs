//! The headers of all frames that a streamer sends.
//!
//! Each kind of frame has one function here, which fills all fields that its kind uses. The others
//! are 0, as in `docs/reference/stream-protocol.md`. Touches no weights and no slots.

use super::common::Common;
use super::narrow::Part;
use crate::wire::{Contact, Dtype, Header, Hello, Kind};

/// In the `part` of an ask: which positions are there; send these replicas to the next master, or
/// to a slave; send the bases of these, or what is contested of them, to the master before; say
/// from which positions they were begun, or those of a block.
pub(super) const SURVEY: u8 = 0;
pub(super) const LIST: u8 = 1;
pub(super) const REPLICA: u8 = 2;
pub(super) const BASE: u8 = 3;
pub(super) const CONTESTED: u8 = 4;
pub(super) const BEGUN: u8 = 5;
pub(super) const BEGUN_BLOCK: u8 = 6;
/// Send what was contested of these when they went to the one that asks.
pub(super) const FORMER: u8 = 7;

/// What every frame of this node says. `range`: whose range it is about.
#[inline(always)]
fn of_kind(common: &Common<'_>, kind: Kind, range: u16) -> Header {
    Header {
        kind,
        flags: common.ready_flag(),
        dtype: Dtype::None,
        acks: 0,
        seq: 0,
        session: common.config.session,
        epoch: 0,
        sender: common.config.node,
        range,
        chunk: 0,
        chunk_version: 0,
        iterations: common.local_iterations(),
        payload_len: 0,
        content: 0,
        part: 0,
        held: 0,
    }
}

/// A position of a whole chunk that this node streams, in f32.
#[inline(always)]
pub(super) fn position(common: &Common<'_>, chunk: u32, version: u32) -> Header {
    let range = common.ranges.range_of(chunk);
    Header {
        dtype: Dtype::F32,
        acks: common.config.places() as u8,
        seq: u8::from(common.leases[usize::from(range)].heard_all),
        epoch: common.streamed(range),
        chunk,
        chunk_version: version,
        payload_len: common.config.chunk_weights * 4,
        ..of_kind(common, Kind::Position, range)
    }
}

/// A position of `part` of a chunk that this node streams: `weights` of them, as `dtype`.
pub(super) fn position_part(
    common: &Common<'_>,
    chunk: u32,
    version: u32,
    part: Part,
    (dtype, weights): (Dtype, usize),
) -> Header {
    Header {
        dtype,
        payload_len: dtype.payload_len(weights) as u32,
        content: part.content,
        part: part.part,
        ..position(common, chunk, version)
    }
}

/// A check, which says once more what the position of `was` said.
#[cold]
pub(super) fn check(common: &Common<'_>, was: &Header) -> Header {
    Header {
        kind: Kind::Check,
        flags: common.ready_flag(),
        acks: 0,
        iterations: common.local_iterations(),
        ..*was
    }
}

/// Delta number `seq`, which answers the position of `answered`; its `content` is how many chunks
/// before it the one is whose position called for it.
#[inline]
pub(super) fn delta(common: &Common<'_>, answered: &Header, seq: u8, dtype: Dtype) -> Header {
    Header {
        dtype,
        seq,
        epoch: answered.epoch,
        chunk: answered.chunk,
        chunk_version: answered.chunk_version,
        payload_len: dtype.payload_len(common.config.chunk_weights as usize) as u32,
        content: answered.content,
        held: common.looks.held_units(),
        ..of_kind(common, Kind::Delta, answered.range)
    }
}

/// A hello, which speaks of `seen` nodes.
pub(super) fn hello(common: &Common<'_>, seen: usize) -> Header {
    Header {
        epoch: common.streamed_first(),
        payload_len: Hello::len(seen) as u32,
        ..of_kind(common, Kind::Hello, common.config.node)
    }
}

/// An ask for replicas of a range from `chunk` on, which this node is to stream in `epoch`: which
/// are there.
pub(super) fn survey(common: &Common<'_>, range: u16, chunk: u32, epoch: u32) -> Header {
    Header {
        epoch,
        chunk,
        content: common.config.incarnation as u16,
        part: SURVEY,
        ..of_kind(common, Kind::Ask, range)
    }
}

/// An ask for the positions that chunks of a range were begun from, those of a block from `chunk`
/// on, which this node streamed.
pub(super) fn ask_for_begun(common: &Common<'_>, range: u16, chunk: u32, epoch: u32) -> Header {
    Header {
        part: BEGUN_BLOCK,
        ..survey(common, range, chunk, epoch)
    }
}

/// An ask for the bases of `chunks` of a range that this node streamed, last in epoch `last`, or
/// another did; or for what is contested of those.
pub(super) fn ask_of_parting(
    common: &Common<'_>,
    range: u16,
    (epoch, last): (u32, u32),
    chunks: &[u32],
    given: Given,
) -> Header {
    let part = match given {
        Given::Contested(_) => CONTESTED,
        Given::Former(_) => FORMER,
        _ => BASE,
    };
    Header {
        seq: given.whose(),
        chunk_version: last,
        ..ask(common, range, epoch, chunks, part)
    }
}

/// An ask for `chunks` of a range, which says in `part` what of them is to be sent.
pub(super) fn ask(common: &Common<'_>, range: u16, epoch: u32, chunks: &[u32], part: u8) -> Header {
    Header {
        epoch,
        chunk: chunks.first().copied().unwrap_or(0),
        payload_len: 4 * chunks.len() as u32,
        content: common.config.incarnation as u16,
        part,
        ..of_kind(common, Kind::Ask, range)
    }
}

/// The answer to a survey: an offer of what this node holds, `bytes` long. `epoch`: what it
/// promised.
pub(super) fn offer(common: &Common<'_>, survey: &Header, epoch: u32, bytes: usize) -> Header {
    Header {
        epoch,
        chunk: survey.chunk,
        chunk_version: survey.epoch,
        payload_len: bytes as u32,
        part: survey.part,
        ..of_kind(common, Kind::Offer, survey.range)
    }
}

/// Addresses of `count` nodes.
pub(super) fn contacts(common: &Common<'_>, count: usize) -> Header {
    Header {
        payload_len: Contact::len(count) as u32,
        ..of_kind(common, Kind::Contacts, common.config.node)
    }
}

/// What the piece of a restore is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Given {
    /// The position that was taken last.
    Replica,
    /// The position that a range was begun from which the asker had streamed, or this node.
    Base(u8),
    /// The delta that was under way to the asker when the master changed. Else to this node, if it
    /// went to another than the asker then.
    Contested(u8),
    /// There is nothing of what was asked for; `seq` and `chunk_version` say what that was.
    Nothing,
    /// Which position it was begun from; the weights are not there.
    Begun,
    /// The delta that was under way to this node when the asker became the master.
    Former(u8),
}

impl Given {
    /// As the `content` of a restore says it.
    pub(super) fn content(self) -> u16 {
        match self {
            Self::Replica => 0,
            Self::Base(_) => 1,
            Self::Contested(_) => 2,
            Self::Nothing => 3,
            Self::Begun => 4,
            Self::Former(_) => 5,
        }
    }

    /// Whose it is.
    pub(super) fn whose(self) -> u8 {
        match self {
            Self::Base(node) | Self::Contested(node) | Self::Former(node) => node,
            _ => 0,
        }
    }

    /// Whether a piece is of what this stands for. Of a base it says whose that was asked for: an
    /// answer about another node, asked for before, may be late.
    pub(super) fn is_given(self, header: &Header) -> bool {
        let of_it = match self {
            Self::Base(node) => header.seq == node,
            _ => true,
        };
        header.content == self.content() && of_it
    }

    /// Whether a piece says that there is nothing of what this stands for. An answer about another
    /// node, asked for before, may be late.
    pub(super) fn is_nothing(self, header: &Header) -> bool {
        let asked = (u16::from(header.seq), header.chunk_version);
        header.content == Self::Nothing.content() && asked == (self.content(), self.whose().into())
    }
}

/// Piece `piece` of a chunk, `weights` of them as `dtype`, that was asked for: a position of
/// `version` in `epoch`.
pub(super) fn restore(
    common: &Common<'_>,
    chunk: u32,
    (epoch, version): (u32, u32),
    given: Given,
    (dtype, piece, weights): (Dtype, u8, usize),
) -> Header {
    Header {
        dtype,
        acks: common.config.places() as u8,
        epoch,
        chunk,
        chunk_version: version,
        payload_len: dtype.payload_len(weights) as u32,
        content: given.content(),
        part: piece,
        ..of_kind(common, Kind::Restore, common.ranges.range_of(chunk))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer to an ask before, about another node, may be late.
    #[test]
    fn nothing_is_so_of_one_kind_and_one_node() {
        let says_nothing_of = |given: Given| Header {
            kind: Kind::Restore,
            flags: 0,
            dtype: Dtype::F32,
            acks: 2,
            seq: given.content() as u8,
            session: 1,
            epoch: 0,
            sender: 1,
            range: 0,
            chunk: 0,
            chunk_version: given.whose().into(),
            iterations: 0,
            payload_len: 64,
            content: Given::Nothing.content(),
            part: 0,
            held: 0,
        };
        let all = [
            Given::Base(1),
            Given::Base(2),
            Given::Contested(2),
            Given::Former(2),
        ];
        for (asked, said) in all.iter().flat_map(|asked| all.map(|said| (*asked, said))) {
            let is_nothing = asked.is_nothing(&says_nothing_of(said));
            assert_eq!(is_nothing, asked == said, "{asked:?}, {said:?}");
        }
        let given = Header {
            content: Given::Base(1).content(),
            seq: 1,
            ..says_nothing_of(Given::Base(1))
        };
        assert!(!Given::Base(1).is_nothing(&given));
        assert!(Given::Base(1).is_given(&given) && !Given::Base(2).is_given(&given));
    }
}

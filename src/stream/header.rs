//! The headers of all frames that a streamer sends.
//!
//! Each kind of frame has one function here, which fills all fields that its kind uses. The others
//! are 0, as in `docs/reference/stream-protocol.md`. Touches no weights and no slots.

use std::sync::atomic::Ordering::Relaxed;

use super::common::Common;
use super::narrow::Part;
use crate::wire::{Dtype, Header, Hello, Kind};

/// In the `part` of an ask: which positions are there, send these to the range's master, or send
/// these to another node.
pub(super) const SURVEY: u8 = 0;
const LIST: u8 = 1;
pub(super) const REPLICA: u8 = 2;

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

/// A position of a whole chunk of the own range, in f32.
#[inline(always)]
pub(super) fn position(common: &Common<'_>, chunk: u32, version: u32) -> Header {
    Header {
        dtype: Dtype::F32,
        acks: common.config.nodes as u8,
        epoch: common.epoch(),
        chunk,
        chunk_version: version,
        payload_len: common.config.chunk_weights * 4,
        ..of_kind(common, Kind::Position, common.config.node)
    }
}

/// A position of `part` of a chunk of the own range: `weights` of them, as `dtype`.
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

/// Delta number `seq`, which answers the position of `answered`.
#[inline]
pub(super) fn delta(common: &Common<'_>, answered: &Header, seq: u8, dtype: Dtype) -> Header {
    Header {
        dtype,
        seq,
        epoch: answered.epoch,
        chunk: answered.chunk,
        chunk_version: answered.chunk_version,
        payload_len: dtype.payload_len(common.config.chunk_weights as usize) as u32,
        held: common.looks.held_units(),
        ..of_kind(common, Kind::Delta, answered.range)
    }
}

/// A hello, which speaks of `seen` nodes.
pub(super) fn hello(common: &Common<'_>, seen: usize) -> Header {
    Header {
        epoch: common.epoch(),
        payload_len: Hello::len(seen) as u32,
        ..of_kind(common, Kind::Hello, common.config.node)
    }
}

/// An ask for replicas of the own range from `chunk` on, which is to begin anew in `epoch`: which
/// are there, or with a `list` of chunks (bytes) for these.
pub(super) fn ask(common: &Common<'_>, chunk: u32, epoch: u32, list: Option<usize>) -> Header {
    Header {
        epoch,
        chunk,
        payload_len: list.unwrap_or(0) as u32,
        content: common.config.incarnation as u16,
        part: if list.is_some() { LIST } else { SURVEY },
        ..of_kind(common, Kind::Ask, common.config.node)
    }
}

/// An ask for replicas of `chunks` of the range of `node`, which is away.
pub(super) fn ask_for_replica(common: &Common<'_>, node: u16, chunks: &[u32]) -> Header {
    Header {
        chunk: chunks.first().copied().unwrap_or(0),
        payload_len: 4 * chunks.len() as u32,
        part: REPLICA,
        ..of_kind(common, Kind::Ask, node)
    }
}

/// An offer, `bytes` long, to master `node`. `epoch`: what this node promised.
pub(super) fn offer(
    common: &Common<'_>,
    node: u16,
    chunk: u32,
    epoch: u32,
    bytes: usize,
) -> Header {
    Header {
        epoch,
        chunk,
        payload_len: bytes as u32,
        ..of_kind(common, Kind::Offer, node)
    }
}

/// A piece of a chunk, `weights` of them, that goes back to its master `node`.
pub(super) fn restore(
    common: &Common<'_>,
    node: u16,
    chunk: u32,
    piece: u8,
    weights: usize,
) -> Header {
    let state = common.state.chunk(chunk);
    Header {
        dtype: Dtype::F32,
        acks: common.config.nodes as u8,
        epoch: common.promised(node),
        chunk,
        chunk_version: state.version.load(Relaxed),
        payload_len: 4 * weights as u32,
        content: state.epoch.load(Relaxed),
        part: piece,
        ..of_kind(common, Kind::Restore, node)
    }
}

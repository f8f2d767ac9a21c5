//! Pieces of chunks, and those that are asked for: the list that asks, which are good, when a chunk
//! is whole, and what becomes of one that is the newest.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use zerocopy::IntoBytes;

use super::common::Common;
use super::common::chunk_flags::{FORKED, JOINED};
use super::epochs::same_reign;
use super::header::Given;
use super::missing::join_replica;
use super::take::{agrees, note_acks, put_back, report_resync, take_unanswered};
use super::{Config, Outbox, To};
use crate::weights::{BLOCK, kernels};
use crate::wire::{self, DropReason, Dtype, Frame, Header, Kind};

impl Config {
    /// The weights of a chunk, counted from its start, of piece `piece`: where a frame holds the
    /// chunk in a narrow payload, it holds only a part of it in f32. Empty behind the last one.
    pub(super) fn piece(&self, piece: u8) -> Range<usize> {
        let len = self.chunk_weights as usize;
        let pieces = usize::from(self.precision.f32_pieces());
        let each = len.div_ceil(pieces).next_multiple_of(BLOCK);
        let start = (usize::from(piece) * each).min(len);
        start..(start + each).min(len)
    }

    /// The weights of a chunk that a restore says: all in a narrow payload, a piece in f32.
    pub(super) fn restored(&self, header: &Header) -> Range<usize> {
        match header.dtype {
            Dtype::F32 => self.piece(header.part),
            _ => 0..self.chunk_weights as usize,
        }
    }

    /// Bytes of a payload of the kind and type of a frame.
    #[inline(always)]
    pub(super) fn payload_len(&self, header: &Header) -> usize {
        let weights = match (header.kind, header.part) {
            (Kind::Restore, _) => self.restored(header).len(),
            (Kind::Position | Kind::Check, part @ 1..) => self.piece(part - 1).len(),
            _ => self.chunk_weights as usize,
        };
        header.dtype.payload_len(weights)
    }
}

/// Sends an ask, which lists `chunks`. False: there was no room.
pub(super) fn send_list(to: u16, header: &Header, chunks: &[u32], out: &mut impl Outbox) -> bool {
    out.send_hello(To::Node(to), header.frame_len(), &mut |slot| {
        wire::emit_chunks(chunks, header.emit(slot).1);
    })
}

/// Checks a piece of a chunk that was asked for: which, its form, its weights. Returns these in
/// f32.
pub(super) fn read_piece<'a>(
    common: &Common<'_>,
    frame: &Frame<'a>,
) -> Result<Cow<'a, [u8]>, DropReason> {
    let (header, nodes) = (&frame.header, common.config.places());
    if header.range >= nodes || !common.ranges.has(header.range, header.chunk) {
        return Err(DropReason::Foreign);
    }
    if frame.acks.len() != usize::from(nodes) {
        return Err(DropReason::Shape);
    }
    if header.dtype == Dtype::None {
        let says = [Given::Nothing, Given::Begun, Given::Base(0)].map(Given::content);
        let says = says.contains(&header.content);
        return says.then_some(Cow::default()).ok_or(DropReason::Shape);
    }
    if header.dtype == Dtype::F32 {
        let finite = !kernels::any_non_finite(frame.payload);
        return finite
            .then_some(frame.payload.into())
            .ok_or(DropReason::NonFinite);
    }
    if header.dtype != common.config.precision || header.part != 0 {
        return Err(DropReason::Shape);
    }
    let mut values = vec![0.0; common.config.chunk_weights as usize];
    if !wire::unpack(header.dtype, frame.payload, &mut values) {
        return Err(DropReason::NonFinite);
    }
    Ok(values.as_bytes().to_vec().into())
}

/// The bits of the pieces that a restore brings.
pub(super) fn pieces_of(config: &Config, header: &Header) -> u8 {
    match header.dtype {
        Dtype::F32 => 1 << header.part,
        _ => all_pieces(config),
    }
}

/// The bits of all pieces that a chunk has.
pub(super) fn all_pieces(config: &Config) -> u8 {
    let pieces = 0..config.precision.f32_pieces();
    let there = pieces.filter(|piece| !config.piece(*piece).is_empty());
    there.fold(0, |all, piece| all | 1 << piece)
}

/// Takes the newest position of a chunk, `bytes`, in place of what is held of it. True: this node
/// streamed the chunk before, and what it did since is lost.
pub(super) fn take_newest(common: &mut Common<'_>, frame: &Frame<'_>, bytes: &[u8]) -> bool {
    let header = &frame.header;
    let state = common.state.chunk(header.chunk);
    let newest = (header.epoch, header.chunk_version);
    let ack = frame.acks[usize::from(common.config.node)];
    if state.flags.load(Relaxed) & FORKED != 0 && common.has_own(header.chunk, newest, ack) {
        common.join_again((header.range, header.chunk), header.sender);
    }
    let flags = state.flags.load(Relaxed);
    if flags & JOINED == 0 {
        let (w, last, sent) = common.chunk_views(header.chunk);
        kernels::adopt(w, last, sent, bytes);
        common.forget_half(header.chunk);
        let lease = &mut common.leases[usize::from(header.range)];
        lease.forked_chunks -= u32::from(flags & FORKED != 0);
        join_replica(common, frame);
        return flags & FORKED != 0;
    }
    if !same_reign(state.epoch.load(Relaxed), header.epoch) {
        common.note_contested(header.chunk, ack, header.epoch);
    }
    if common.exactly_once() && !agrees(common, header.chunk, ack) {
        put_back(common, header, ack);
        report_resync(common, header);
    }
    note_acks(common, frame);
    state.epoch.store(header.epoch, Relaxed);
    take_unanswered(common, header, bytes, ack);
    common.note_inexact(header.chunk);
    false
}

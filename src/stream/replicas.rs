//! Replicas for a master that lost its weights, and for slaves where a master is away: the
//! answering end of [`restore`](super::restore) and [`missing`](super::missing).
//!
//! Each node holds, of every foreign chunk, the position that it took last, with its
//! acknowledgements: it is `last` without what this node has outstanding. That is what it offers
//! and sends. Nothing here changes by it, so that it may be asked for late, twice, or by two.
//!
//! Who answers promises the epoch that the range will begin anew in. So what it offers stays
//! the newest that it holds.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::Ordering::Relaxed;

use zerocopy::IntoBytes;

use super::common::Common;
use super::common::chunk_flags::{JOINED, OUTSTANDING};
use super::{Outbox, To, header};
use crate::wire::{self, DropReason, Frame, Held};

/// Most chunks that wait to be sent.
const QUEUE_MAX: usize = 1024;

/// Replicas that others asked for.
#[derive(Debug, Default)]
pub(super) struct Replicas {
    /// Who wants which chunks.
    queue: VecDeque<(u16, u32)>,
    queued: BTreeSet<(u16, u32)>,
    /// The next piece of the first of them.
    piece: u8,
}

impl Replicas {
    /// Whether anything waits to be sent.
    #[inline]
    pub(super) fn wait(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Takes an ask: promises its epoch, then offers what is held, or notes what is wanted.
    pub(super) fn handle_ask(
        &mut self,
        common: &mut Common<'_>,
        frame: &Frame<'_>,
        out: &mut impl Outbox,
    ) -> Result<(), DropReason> {
        let header = &frame.header;
        if header.part == header::REPLICA && header.range < common.config.nodes {
            return self.note_wanted(common, frame);
        }
        if header.range != header.sender || !common.ranges.owns(header.sender, header.chunk) {
            return Err(DropReason::Foreign);
        }
        if !promise(common, frame) {
            // An epoch that was promised to a former life of the asker may have streamed.
            let known = common.promised(header.sender);
            offer(common, header.sender, header.chunk, known, &[], out);
            return Err(DropReason::Epoch);
        }
        if header.part == header::SURVEY {
            let end = header.chunk.saturating_add(wire::BLOCK_CHUNKS);
            let end = end.min(common.ranges.of(header.sender).end);
            let held: Vec<Held> = (header.chunk..end)
                .map(|chunk| held(common, chunk))
                .collect();
            offer(
                common,
                header.sender,
                header.chunk,
                header.epoch,
                &held,
                out,
            );
            return Ok(());
        }
        self.note_wanted(common, frame)
    }

    /// Notes the chunks that an ask lists, as far as they are held.
    fn note_wanted(&mut self, common: &Common<'_>, frame: &Frame<'_>) -> Result<(), DropReason> {
        let header = &frame.header;
        for chunk in wire::parse_chunks(frame.payload).ok_or(DropReason::Malformed)? {
            let held = common.ranges.owns(header.range, chunk) && is_held(common, chunk);
            let wanted = (header.sender, chunk);
            if held && self.queue.len() < QUEUE_MAX && self.queued.insert(wanted) {
                self.queue.push_back(wanted);
            }
        }
        Ok(())
    }

    /// Sends up to `max` pieces of what was asked for. Returns how many went.
    pub(super) fn poll(
        &mut self,
        common: &mut Common<'_>,
        max: usize,
        out: &mut impl Outbox,
    ) -> usize {
        let mut sent = 0;
        while sent < max
            && let Some((to, chunk)) = self.queue.front().copied()
        {
            if !common.config.piece(self.piece).is_empty() {
                if !send_piece(common, to, chunk, self.piece, out) {
                    break;
                }
                common.shares.own_sent();
                sent += 1;
            }
            self.piece += 1;
            if self.piece >= common.config.precision.f32_pieces() {
                self.piece = 0;
                self.queue.pop_front();
                self.queued.remove(&(to, chunk));
            }
        }
        sent
    }
}

/// Promises the epoch of an ask; false: it is not a later one than any that this node knows, and
/// not promised to this very life of the asker.
fn promise(common: &mut Common<'_>, frame: &Frame<'_>) -> bool {
    let header = &frame.header;
    let asker = usize::from(header.sender);
    let known = common.promised(header.sender);
    let to = Some((header.epoch, header.content));
    if header.epoch == known && common.peers[asker].promised_to == to {
        return true;
    }
    let later = header.epoch != 0 && (known == 0 || super::epochs::ahead(header.epoch, known) > 0);
    if !later || !common.promise(header.sender, header.epoch) {
        return false;
    }
    common.peers[asker].promised_to = to;
    true
}

fn is_held(common: &Common<'_>, chunk: u32) -> bool {
    common.state.chunk(chunk).flags.load(Relaxed) & JOINED != 0
}

fn held(common: &Common<'_>, chunk: u32) -> Held {
    let state = common.state.chunk(chunk);
    let position = (state.epoch.load(Relaxed), state.version.load(Relaxed));
    Held::new(is_held(common, chunk).then_some(position))
}

fn offer(
    common: &Common<'_>,
    to: u16,
    chunk: u32,
    epoch: u32,
    held: &[Held],
    out: &mut impl Outbox,
) {
    let header = header::offer(common, to, chunk, epoch, held.as_bytes().len());
    // Not sent for want of a slot: it is asked for again.
    out.send_hello(To::Node(to), header.frame_len(), &mut |slot| {
        header.emit(slot).1.copy_from_slice(held.as_bytes());
    });
}

/// Sends a piece of the position that was taken last, with its acknowledgements.
fn send_piece(
    common: &mut Common<'_>,
    to: u16,
    chunk: u32,
    piece: u8,
    out: &mut impl Outbox,
) -> bool {
    let (_, last, sent) = common.chunk_views(chunk);
    let weights = common.config.piece(piece);
    let outstanding = common.state.chunk(chunk).flags.load(Relaxed) & OUTSTANDING != 0;
    let master = common.ranges.master_of(chunk);
    let header = header::restore(common, master, chunk, piece, weights.len());
    let applied = common.state.applied(chunk);
    let went = out.send(To::Node(to), header.frame_len(), &mut |slot| {
        let (acks, payload) = header.emit(slot);
        for (ack, applied) in acks.iter_mut().zip(applied) {
            *ack = applied.load(Relaxed);
        }
        for (bytes, i) in payload
            .as_chunks_mut::<4>()
            .0
            .iter_mut()
            .zip(weights.clone())
        {
            let under_way = if outstanding { sent.load(i) } else { 0.0 };
            *bytes = (last.load(i) - under_way).to_le_bytes();
        }
    });
    common.counters.restores_sent += u64::from(went);
    went
}

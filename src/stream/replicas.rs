//! Replicas for the next master of a range, for slaves where a master is away, and for a master
//! before: the answering end of [`restore`](super::restore), [`missing`](super::missing) and
//! [`rejoin`](super::rejoin).
//!
//! Each node holds, of every foreign chunk, the position that it took last, with its
//! acknowledgements: it is `last` without what this node has outstanding. That is what it offers
//! and sends. Nothing here changes by it, so that it may be asked for late, twice, or by two.
//!
//! Who answers a survey promises the epoch that the range will begin anew in. So what it offers
//! stays the newest that it holds.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use zerocopy::IntoBytes;

use super::common::Common;
use super::common::chunk_flags::JOINED;
use super::header::Given;
use super::kept::{Base, Contested};
use super::missing::master_gives;
use super::remains::GIVEN;
use super::{Config, Outbox, To, epochs, header};
use crate::wire::{self, DropReason, Dtype, Frame, Header, Held};

/// Most chunks that wait to be sent.
const QUEUE_MAX: usize = 1024;

/// What a node wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Wanted {
    to: u16,
    chunk: u32,
    given: Given,
    /// The epoch in which that node streamed it last; 0: it does not say.
    last: u32,
}

/// What others asked for.
#[derive(Clone, Debug, Default)]
pub(super) struct Replicas {
    queue: VecDeque<Wanted>,
    queued: BTreeSet<Wanted>,
    /// The next piece of the first of them.
    piece: u8,
}

impl Replicas {
    /// Whether anything waits to be sent.
    #[inline]
    pub(super) fn wait(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Takes an ask: of the next master, promises its epoch, then offers what is held, or notes
    /// what is wanted.
    pub(super) fn handle_ask(
        &mut self,
        common: &mut Common<'_>,
        frame: &Frame<'_>,
        out: &mut impl Outbox,
    ) -> Result<(), DropReason> {
        let header = &frame.header;
        let (range, part) = (header.range, header.part);
        if range >= common.config.places() || !common.ranges.has(range, header.chunk) {
            return Err(DropReason::Foreign);
        }
        match part {
            header::SURVEY | header::LIST => {}
            header::REPLICA => return self.note_wanted(common, frame, Given::Replica),
            header::BASE if is_known(common, header) => {
                return self.note_wanted(common, frame, Given::Base(header.seq));
            }
            header::BEGUN if is_known(common, header) => {
                return self.note_wanted(common, frame, Given::Begun);
            }
            header::BEGUN_BLOCK if is_known(common, header) => {
                let begun = common.begun_from(block_of(common, header));
                offer(common, header, common.streamed(range), &begun, out);
                return Ok(());
            }
            header::CONTESTED => {
                return self.note_wanted(common, frame, Given::Contested(header.seq));
            }
            header::FORMER => return self.note_wanted(common, frame, Given::Former(header.seq)),
            _ => return Err(DropReason::NotReady),
        }
        if epochs::owner(header.epoch) != header.sender {
            return Err(DropReason::Foreign);
        }
        let promised = promise(common, frame);
        common.leases[usize::from(range)].surveyed |= promised;
        if !promised {
            // An epoch that was promised to a former life of the asker may have streamed.
            let known = common.promised(range);
            offer(common, header, known, &[], out);
            return Err(DropReason::Epoch);
        }
        if part == header::LIST {
            return self.note_wanted(common, frame, Given::Replica);
        }
        common.note_asked(part, header.chunk);
        let chunks = block_of(common, header);
        let held: Vec<Held> = chunks.map(|chunk| held(common, chunk)).collect();
        offer(common, header, header.epoch, &held, out);
        Ok(())
    }

    /// Notes the chunks that an ask lists, as far as they are there.
    fn note_wanted(
        &mut self,
        common: &mut Common<'_>,
        frame: &Frame<'_>,
        given: Given,
    ) -> Result<(), DropReason> {
        let header = &frame.header;
        for chunk in wire::parse_chunks(frame.payload).ok_or(DropReason::Malformed)? {
            if !common.ranges.has(header.range, chunk) {
                return Err(DropReason::Foreign);
            }
            if header.part == header::LIST {
                common.note_asked(header.part, chunk);
                common.note_given(chunk, header.sender);
            }
            let there = match given {
                Given::Replica if header.part == header::REPLICA => {
                    common.holds(chunk) || common.streams(header.range) && master_gives(common)
                }
                Given::Replica => common.holds(chunk),
                // Before this node takes positions of that epoch nothing is contested yet.
                Given::Contested(_) | Given::Former(_) => follows(common, header, chunk),
                _ => true,
            };
            let wanted = Wanted {
                to: header.sender,
                chunk,
                given,
                last: header.chunk_version,
            };
            if there && self.queue.len() < QUEUE_MAX && self.queued.insert(wanted) {
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
            && let Some(wanted) = self.queue.front().copied()
        {
            let pieces = if common.config.piece(self.piece).is_empty() {
                1
            } else {
                let Some(pieces) = send_piece(common, wanted, self.piece, out) else {
                    break;
                };
                common.shares.restore_sent();
                sent += 1;
                pieces
            };
            self.piece += pieces;
            if self.piece >= common.config.precision.f32_pieces() {
                self.piece = 0;
                self.queue.pop_front();
                self.queued.remove(&wanted);
                if wanted.given == Given::Replica {
                    common.note_asked(GIVEN, wanted.chunk);
                }
            }
        }
        sent
    }
}

/// Promises the epoch of an ask; false: it is not a later one than any that this node knows, and
/// not promised to this very life of the asker.
fn promise(common: &mut Common<'_>, frame: &Frame<'_>) -> bool {
    let header = &frame.header;
    let range = usize::from(header.range);
    let known = common.promised(header.range);
    let to = Some((header.epoch, header.content));
    if header.epoch == known && common.leases[range].promised_to == to {
        return true;
    }
    if !epochs::is_later(header.epoch, known) || !common.promise(header.range, header.epoch) {
        return false;
    }
    common.leases[range].promised_to = to;
    true
}

/// Whether this node knows what was begun in the epoch of an ask: it streams it, or follows.
fn is_known(common: &Common<'_>, header: &Header) -> bool {
    let epoch = common.promised(header.range);
    let begun = epochs::owner(epoch) != common.config.node || common.streams(header.range);
    begun && !epochs::is_later(header.epoch, epoch)
}

/// Whether this node has taken a position of a chunk in the epoch of an ask, or streams it. Or
/// whether it is about to bring what it did apart: two that are would wait for each other.
fn follows(common: &Common<'_>, header: &Header, chunk: u32) -> bool {
    let taken = common.state.chunk(chunk).epoch.load(Relaxed);
    let joined = common.state.chunk(chunk).flags.load(Relaxed) & JOINED != 0;
    let taken = joined && !epochs::is_later(header.epoch, taken);
    let promised = common.promised(header.range);
    let apart = common.forks.apart.contains(&chunk) && !common.was_asked_for(chunk);
    let brings = apart && !epochs::is_later(header.epoch, promised);
    common.streams(header.range) || taken || brings
}

/// The chunks that an ask without a list is about.
fn block_of(common: &Common<'_>, ask: &Header) -> Range<u32> {
    let end = ask.chunk.saturating_add(wire::BLOCK_CHUNKS);
    ask.chunk..end.min(common.ranges.of(ask.range).end)
}

fn held(common: &Common<'_>, chunk: u32) -> Held {
    let state = common.state.chunk(chunk);
    let position = (state.epoch.load(Relaxed), state.version.load(Relaxed));
    Held::new(common.holds(chunk).then_some(position))
}

fn offer(common: &Common<'_>, ask: &Header, epoch: u32, held: &[Held], out: &mut impl Outbox) {
    let bytes = held.as_bytes();
    let header = header::offer(common, ask, epoch, bytes.len());
    // Not sent for want of a slot: it is asked for again.
    out.send_hello(To::Node(ask.sender), header.frame_len(), &mut |slot| {
        header.emit(slot).1.copy_from_slice(bytes);
    });
}

/// Sends a piece of what was asked for, or all of it where one narrow frame says that. Returns how
/// many pieces that was; `None`: there was no room.
fn send_piece(
    common: &mut Common<'_>,
    asked: Wanted,
    piece: u8,
    out: &mut impl Outbox,
) -> Option<u8> {
    let Wanted {
        to,
        chunk,
        given: wanted,
        last,
    } = asked;
    let state = common.state.chunk(chunk);
    let contested = common.forks.contested(chunk, to, (wanted, last));
    let base = base_of(common, asked, contested);
    let contested = contested.filter(|_| base.is_none());
    let there = wanted == Given::Replica || base.is_some() || contested.is_some();
    let given = if there { wanted } else { Given::Nothing };
    let version = state.version.load(Relaxed);
    // What this node streams is as new as its weights, and so are the acknowledgements.
    let streamed = common.streamed(common.ranges.range_of(chunk));
    let streams = streamed != 0 && wanted == Given::Replica;
    let position = match (base, contested) {
        (Some(base), _) => (base.epoch, base.version),
        (None, Some(contested)) => (contested.epoch, version),
        (None, None) if streams => (streamed, version),
        (None, None) if given == Given::Nothing => (0, wanted.whose().into()),
        (None, None) => (state.epoch.load(Relaxed), version),
    };
    let (w, ..) = common.chunk_views(chunk);
    let applied = common.state.applied(chunk);
    let held = common.held_position(chunk);
    let value = |i: usize| match (wanted, base, contested) {
        (Given::Replica, ..) if streams => w.load(i),
        (Given::Replica, ..) => held(i),
        (Given::Base(_) | Given::Contested(_), Some(base), _) => base.weights[i],
        (_, _, Some(contested)) => contested.weights[i],
        _ => 0.0,
    };
    let numbers = base.is_some_and(|base| base.weights.is_empty());
    let (dtype, says) = match given {
        // Numbers alone: of thin links, and where many nodes are asked, weights take much.
        Given::Nothing | Given::Begun => (Dtype::None, Vec::new()),
        _ if numbers => (Dtype::None, Vec::new()),
        _ => payload_of(&common.config, piece, value),
    };
    let mut header = header::restore(common, chunk, position, given, (dtype, piece, says.len()));
    header.seq = match (given, contested) {
        // Nothing of what: an answer to an ask before must not be taken for one to the last.
        (Given::Nothing, _) => wanted.content() as u8,
        (Given::Base(_), _) => wanted.whose(),
        (_, contested) => contested.map_or(0, |contested| contested.seq),
    };
    let went = out.send(To::Node(to), header.frame_len(), &mut |slot| {
        let (acks, payload) = header.emit(slot);
        for (node, ack) in acks.iter_mut().enumerate().take(applied.len()) {
            *ack = match base {
                Some(base) => base.acks[node],
                None => applied[node].load(Relaxed),
            };
        }
        wire::pack(dtype, &says, payload);
    });
    common.counters.restores_sent += u64::from(went);
    let all = common.config.precision.f32_pieces();
    went.then_some(if dtype == Dtype::F32 { 1 } else { all })
}

/// The base that a node wants, or what this one gave away, where that comes after the delta that is
/// contested.
fn base_of<'a>(
    common: &'a Common<'_>,
    wanted: Wanted,
    contested: Option<&Contested>,
) -> Option<&'a Base> {
    let Wanted {
        to, chunk, last, ..
    } = wanted;
    let (own, forks) = (common.config.node, &common.forks);
    match wanted.given {
        Given::Base(before) => {
            let gone_on = (own == u16::from(before)).then(|| forks.gone_on(chunk, own));
            let kept = || forks.base_for(chunk, [to, before.into()], last);
            let numbers = || {
                forks
                    .base(chunk)
                    .filter(|base| base.is_numbers_of(before.into()))
            };
            gone_on.flatten().or_else(kept).or_else(numbers)
        }
        Given::Begun => forks.base(chunk),
        Given::Contested(before) if u16::from(before) == own => {
            let given = forks.given_away(chunk, own, to);
            given.filter(|base| contested.is_none_or(|one| epochs::is_later(base.epoch, one.epoch)))
        }
        _ => None,
    }
}

/// What goes of the values of a chunk: all, where the precision of the job says them to the last
/// bit; else `piece` of them in f32.
fn payload_of(config: &Config, piece: u8, value: impl Fn(usize) -> f32) -> (Dtype, Vec<f32>) {
    if config.precision != Dtype::F32 && piece == 0 {
        let values: Vec<f32> = (0..config.chunk_weights as usize).map(&value).collect();
        let mut said = values.clone();
        let finite = values.iter().all(|value| value.is_finite());
        if finite {
            wire::round(config.precision, &mut said);
        }
        if finite && said == values {
            return (config.precision, values);
        }
    }
    (Dtype::F32, config.piece(piece).map(value).collect())
}

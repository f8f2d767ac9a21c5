//! The slave: takes a position and returns what local solvers did since the last one.
//!
//! The rules (`docs/protocol.md`), per weight, in one pass over memory:
//!
//! ```text
//! new = w - last
//! confirmed:      w = pos + new; last = w;          sent = new, next number, send it
//! not confirmed:  last = pos + sent; w = last + new; send `sent` again, same number
//! no free slot:   w = pos + new; last = pos          (the delta stays in w - last)
//! ```
//!
//! What goes out is multiplied by the node's portion ([`Streamer::portion`]; 1 in a sum). Nothing here
//! depends on it: the walk ahead counts `sent` whole until the master's position replaces it.

use std::sync::atomic::Ordering::Relaxed;

use super::hello::Standing;
use super::streamer::chunk_flags::{GIVEN, JOINED, OUTSTANDING};
use super::{Dest, Outbox, Streamer};
use crate::weights::{ChunkState, Kind as Work, Taken, kernels};
use crate::wire::{DropReason, Dtype, Frame, Header, Kind};

/// True if `version` comes after `than`, modulo 2^32.
pub(super) fn newer(version: u32, than: u32) -> bool {
    (version.wrapping_sub(than) as i32) > 0
}

impl Streamer<'_> {
    pub(super) fn handle_position(
        &mut self,
        now_ns: u64,
        frame: &Frame<'_>,
        out: &mut impl Outbox,
    ) -> Result<(), DropReason> {
        let header = &frame.header;
        if !self.ranges.owns(header.sender, header.chunk) || header.range != header.sender {
            return Err(DropReason::Foreign);
        }
        let ack = *frame
            .acks
            .get(self.config.node as usize)
            .ok_or(DropReason::Shape)?;
        let state = self.state.chunk(header.chunk);
        let joined = state.flags.load(Relaxed) & JOINED != 0;
        if header.epoch == 0 || (joined && !self.epoch_fits(state, header.epoch)) {
            return Err(DropReason::Epoch);
        }
        let version = state.version.load(Relaxed);
        if joined && !newer(header.chunk_version, version) {
            return Err(DropReason::Late);
        }
        if kernels::any_non_finite(frame.payload) {
            return Err(DropReason::NonFinite);
        }
        let peer = &mut self.peers[header.sender as usize];
        peer.epoch = header.epoch;
        peer.streamed_ns = now_ns.max(1);
        if joined && state.spare.load(Relaxed) != header.epoch as u16 {
            // It streams again, so it asks for nothing any more.
            self.peers[header.sender as usize].standing = Standing::Holds;
            self.rejoin(header.chunk, header.epoch);
            self.take(frame, ack, out);
        } else if joined {
            let skipped = header.chunk_version.wrapping_sub(version).wrapping_sub(1);
            self.counters.positions_missed += u64::from(skipped);
            self.note_age(header.chunk, now_ns);
            self.note_age_steps(header.chunk);
            self.take(frame, ack, out);
        } else {
            self.join(frame, ack);
        }
        self.taken_ns[header.chunk as usize] = now_ns.max(1);
        self.counters.positions_taken += 1;
        Ok(())
    }

    fn note_age(&mut self, chunk: u32, now_ns: u64) {
        let before = self.taken_ns[chunk as usize];
        if before != 0 {
            self.ages_us
                .saturating_record(now_ns.saturating_sub(before) / 1000);
        }
    }

    /// The first position of a chunk: adopted as it is, and the master's count of our deltas with it.
    fn join(&mut self, frame: &Frame<'_>, ack: u8) {
        let chunk = frame.header.chunk;
        let (w, last, sent) = self.chunk_views(chunk);
        kernels::adopt(w, last, sent, frame.payload);
        let state = self.state.chunk(chunk);
        state.spare.store(frame.header.epoch as u16, Relaxed);
        self.note_taken(state, frame.header.chunk_version, Some(ack), false);
        self.peers[frame.header.sender as usize].joined_chunks += 1;
    }

    fn take(&mut self, frame: &Frame<'_>, ack: u8, out: &mut impl Outbox) {
        let state = self.state.chunk(frame.header.chunk);
        let outstanding = state.flags.load(Relaxed) & OUTSTANDING != 0;
        let taken = if !self.exactly_once() {
            self.take_and_forget(frame, out)
        } else if outstanding && ack != state.seq.load(Relaxed) {
            self.take_and_repeat(frame, out)
        } else {
            self.take_and_answer(frame, out)
        };
        self.counters.healed_weights += u64::from(taken.non_finite);
    }

    fn delta_header(&self, answered: &Header, seq: u8) -> Header {
        Header {
            kind: Kind::Delta,
            flags: self.ready_flag(),
            dtype: Dtype::F32,
            acks: 0,
            seq,
            session: self.config.session,
            epoch: answered.epoch,
            sender: self.config.node,
            range: answered.range,
            chunk: answered.chunk,
            chunk_version: answered.chunk_version,
            iterations: self.local_iterations,
            payload_len: answered.payload_len,
        }
    }

    /// Everything sent before has arrived (or nothing was): the present delta goes out.
    fn take_and_answer(&mut self, frame: &Frame<'_>, out: &mut impl Outbox) -> Taken {
        let (w, last, sent) = self.chunk_views(frame.header.chunk);
        let state = self.state.chunk(frame.header.chunk);
        let version = frame.header.chunk_version;
        let seq = state.seq.load(Relaxed).wrapping_add(1);
        let delta = self.delta_header(&frame.header, seq);
        let journal = self.state.journal();
        let mut taken = Taken::default();
        let went = self.shares.may_answer()
            && out.send(
                Dest::Node(frame.header.sender),
                delta.frame_len(),
                &mut |slot| {
                    let (_, payload) = delta.emit(slot);
                    journal.begin(Work::Confirmed, delta.chunk, delta.range, seq, version);
                    taken = kernels::take_confirmed(
                        w,
                        last,
                        sent,
                        frame.payload,
                        payload,
                        self.portion(),
                        journal,
                        self.writes(),
                    );
                },
            );
        if went {
            self.note_taken(state, version, Some(seq), true);
            self.counters.deltas_sent += 1;
            self.shares.answer_sent();
        } else {
            journal.begin(Work::Keep, delta.chunk, delta.range, seq, version);
            taken = kernels::take_keep(w, last, frame.payload, journal, self.writes());
            self.note_taken(state, version, None, false);
            self.counters.deltas_kept += 1;
        }
        journal.end();
        taken
    }

    /// The master has not got our last delta: it goes again, under the same number.
    fn take_and_repeat(&mut self, frame: &Frame<'_>, out: &mut impl Outbox) -> Taken {
        let (w, last, sent) = self.chunk_views(frame.header.chunk);
        let state = self.state.chunk(frame.header.chunk);
        let seq = state.seq.load(Relaxed);
        let version = frame.header.chunk_version;
        let delta = self.delta_header(&frame.header, seq);
        let journal = self.state.journal();
        journal.begin(Work::Unconfirmed, delta.chunk, delta.range, seq, version);
        let mut taken = Taken::default();
        let went = self.shares.may_answer()
            && out.send(
                Dest::Node(frame.header.sender),
                delta.frame_len(),
                &mut |slot| {
                    let (_, payload) = delta.emit(slot);
                    taken = kernels::take_unconfirmed(
                        w,
                        last,
                        sent,
                        frame.payload,
                        Some(payload),
                        self.portion(),
                        journal,
                        self.writes(),
                    );
                },
            );
        if went {
            self.counters.deltas_sent += 1;
            self.shares.answer_sent();
            self.counters.deltas_repeated += 1;
        } else {
            taken = kernels::take_unconfirmed(
                w,
                last,
                sent,
                frame.payload,
                None,
                1.0,
                journal,
                self.writes(),
            );
            self.counters.deltas_kept += 1;
        }
        self.note_taken(state, version, None, true);
        journal.end();
        taken
    }

    /// The paper's original: what is sent is forgotten.
    fn take_and_forget(&mut self, frame: &Frame<'_>, out: &mut impl Outbox) -> Taken {
        let (w, last, _) = self.chunk_views(frame.header.chunk);
        let state = self.state.chunk(frame.header.chunk);
        let seq = state.seq.load(Relaxed).wrapping_add(1);
        let delta = self.delta_header(&frame.header, seq);
        let mut taken = Taken::default();
        let went = self.shares.may_answer()
            && out.send(
                Dest::Node(frame.header.sender),
                delta.frame_len(),
                &mut |slot| {
                    let (_, payload) = delta.emit(slot);
                    taken = kernels::take_forget(
                        w,
                        last,
                        frame.payload,
                        payload,
                        self.portion(),
                        self.writes(),
                    );
                },
            );
        if went {
            self.counters.deltas_sent += 1;
            self.shares.answer_sent();
        } else {
            let journal = self.state.journal();
            taken = kernels::take_keep(w, last, frame.payload, journal, self.writes());
            self.counters.deltas_kept += 1;
        }
        self.note_taken(
            state,
            frame.header.chunk_version,
            went.then_some(seq),
            false,
        );
        taken
    }

    /// True if a position of `epoch` may be taken: not of an earlier epoch than the chunk is in, and, if
    /// the chunk was given back for a new epoch, not of the one before.
    fn epoch_fits(&self, state: &ChunkState, epoch: u32) -> bool {
        // A chunk keeps the low 16 bits of its epoch; 32,768 losses of a range lie between doubts.
        let ahead = (epoch as u16).wrapping_sub(state.spare.load(Relaxed)) as i16;
        let given = state.flags.load(Relaxed) & GIVEN != 0;
        ahead > 0 || (ahead == 0 && !given)
    }

    /// The chunk's master starts again and counts deltas anew: what we had under way is put back into
    /// `w - last`, and goes out under the new count.
    fn rejoin(&mut self, chunk: u32, epoch: u32) {
        let state = self.state.chunk(chunk);
        if state.flags.load(Relaxed) & OUTSTANDING != 0 {
            let (_, last, sent) = self.chunk_views(chunk);
            for i in 0..last.len() {
                last.store(i, last.load(i) - sent.load(i));
            }
        }
        state.flags.store(JOINED, Relaxed);
        state.seq.store(0, Relaxed);
        state.spare.store(epoch as u16, Relaxed);
    }
}

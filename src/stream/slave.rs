//! The slave: takes a position and returns what local solvers did since the last one.
//!
//! The rules (`docs/reference/stream-protocol.md`), per weight, in one pass over memory:
//!
//! ```text
//! new = w - last
//! confirmed:      w = pos + new; last = w;          sent = new, next number, send it
//! not confirmed:  last = pos + sent; w = last + new; send `sent` again, same number
//! no free slot:   w = pos + new; last = pos          (the delta stays in w - last)
//! ```
//!
//! In a narrower payload ([`narrow`](super::narrow)) `sent` is what of `new` it can say, and `last
//! = pos + sent`.
//!
//! What goes out is multiplied by the node's portion ([`Streamer::portion`]; 1 in a sum). Nothing
//! here depends on it: the walk ahead counts `sent` whole until the master's position replaces it.

use std::sync::atomic::Ordering::Relaxed;

use zerocopy::IntoBytes;

use super::hello::Standing;
use super::streamer::chunk_flags::{GIVEN, JOINED, OUTSTANDING};
use super::{Outbox, Streamer, To};
use crate::weights::{ChunkState, JournalOp, Taken, kernels};
use crate::wire::{self, DropReason, Dtype, Frame, Header, Kind};

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
        if header.dtype == Dtype::F32 && header.part == 0 {
            if kernels::any_non_finite(frame.payload) {
                return Err(DropReason::NonFinite);
            }
            self.narrow.forget(header.chunk);
            self.take_position(now_ns, frame, frame.payload, ack, out);
            return Ok(());
        }
        let mut values = std::mem::take(&mut self.narrow.came);
        let position = self.read_position(frame, &mut values);
        let taken = position.map(|()| {
            self.take_position(now_ns, frame, values.as_bytes(), ack, out);
        });
        self.narrow.came = values;
        taken
    }

    /// Takes a position that was found good: `pos`, f32.
    #[inline(always)]
    fn take_position(
        &mut self,
        now_ns: u64,
        frame: &Frame<'_>,
        pos: &[u8],
        ack: u8,
        out: &mut impl Outbox,
    ) {
        let header = &frame.header;
        let state = self.state.chunk(header.chunk);
        let joined = state.flags.load(Relaxed) & JOINED != 0;
        let version = state.version.load(Relaxed);
        let peer = &mut self.peers[header.sender as usize];
        peer.epoch = header.epoch;
        peer.streamed_ns = now_ns.max(1);
        if joined && state.epoch.load(Relaxed) != header.epoch as u16 {
            // It streams again, so it asks for nothing any more.
            self.peers[header.sender as usize].standing = Standing::Holds;
            self.rejoin(header.chunk, header.epoch);
            self.take(header, pos, ack, out);
        } else if joined {
            let skipped = header.chunk_version.wrapping_sub(version).wrapping_sub(1);
            self.counters.positions_missed += u64::from(skipped);
            self.note_age(header.chunk, now_ns);
            self.note_age_steps(header.chunk);
            self.take(header, pos, ack, out);
        } else {
            self.join(header, pos, ack);
        }
        self.taken_ns[header.chunk as usize] = now_ns.max(1);
        self.counters.positions_taken += 1;
    }

    fn note_age(&mut self, chunk: u32, now_ns: u64) {
        let before = self.taken_ns[chunk as usize];
        if before != 0 {
            self.ages_us
                .saturating_record(now_ns.saturating_sub(before) / 1000);
        }
    }

    /// The first position of a chunk: adopted as it is, and the master's count of our deltas with
    /// it.
    fn join(&mut self, header: &Header, pos: &[u8], ack: u8) {
        let (w, last, sent) = self.chunk_views(header.chunk);
        kernels::adopt(w, last, sent, pos);
        let state = self.state.chunk(header.chunk);
        state.epoch.store(header.epoch as u16, Relaxed);
        self.note_taken(state, header.chunk_version, Some(ack), false);
        self.narrow.note_exact(header.chunk);
        self.peers[header.sender as usize].joined_chunks += 1;
    }

    fn take(&mut self, header: &Header, pos: &[u8], ack: u8, out: &mut impl Outbox) {
        let state = self.state.chunk(header.chunk);
        let outstanding = state.flags.load(Relaxed) & OUTSTANDING != 0;
        let repeat = self.exactly_once() && outstanding && ack != state.seq.load(Relaxed);
        let taken = match (self.config.precision, repeat) {
            (Dtype::F32, true) => self.take_and_repeat(header, pos, out),
            (Dtype::F32, false) if !self.exactly_once() => self.take_and_forget(header, pos, out),
            (Dtype::F32, false) => self.take_and_answer(header, pos, out),
            (_, true) => self.take_and_repeat_narrow(header, pos, out),
            (_, false) => self.take_and_answer_narrow(header, pos, out),
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
            payload_len: self.config.chunk_weights * 4,
            content: 0,
            part: 0,
            held: self.looks.held_units(),
        }
    }

    /// Everything sent before has arrived (or nothing was): the present delta goes out.
    fn take_and_answer(&mut self, header: &Header, pos: &[u8], out: &mut impl Outbox) -> Taken {
        let (w, last, sent) = self.chunk_views(header.chunk);
        let state = self.state.chunk(header.chunk);
        let version = header.chunk_version;
        let seq = state.seq.load(Relaxed).wrapping_add(1);
        let delta = self.delta_header(header, seq);
        let journal = self.state.journal();
        let mut taken = Taken::default();
        let went = self.shares.may_answer()
            && out.send(To::Node(header.sender), delta.frame_len(), &mut |slot| {
                let (_, payload) = delta.emit(slot);
                journal.begin(JournalOp::Confirmed, delta.chunk, delta.range, seq, version);
                taken = kernels::take_confirmed(
                    w,
                    last,
                    sent,
                    pos,
                    payload,
                    self.portion(),
                    journal,
                    self.writes(),
                );
            });
        if went {
            self.note_taken(state, version, Some(seq), true);
            self.counters.deltas_sent += 1;
            self.shares.answer_sent();
        } else {
            journal.begin(JournalOp::Keep, delta.chunk, delta.range, seq, version);
            taken = kernels::take_keep(w, last, pos, journal, self.writes());
            self.note_taken(state, version, None, false);
            self.counters.deltas_kept += 1;
        }
        journal.end();
        taken
    }

    /// The master has not got our last delta: it goes again, under the same number.
    fn take_and_repeat(&mut self, header: &Header, pos: &[u8], out: &mut impl Outbox) -> Taken {
        let (w, last, sent) = self.chunk_views(header.chunk);
        let state = self.state.chunk(header.chunk);
        let seq = state.seq.load(Relaxed);
        let version = header.chunk_version;
        let delta = self.delta_header(header, seq);
        let journal = self.state.journal();
        journal.begin(
            JournalOp::Unconfirmed,
            delta.chunk,
            delta.range,
            seq,
            version,
        );
        let mut taken = Taken::default();
        let went = self.shares.may_answer()
            && out.send(To::Node(header.sender), delta.frame_len(), &mut |slot| {
                let (_, payload) = delta.emit(slot);
                taken = kernels::take_unconfirmed(
                    w,
                    last,
                    sent,
                    pos,
                    Some(payload),
                    self.portion(),
                    journal,
                    self.writes(),
                );
            });
        if went {
            self.counters.deltas_sent += 1;
            self.shares.answer_sent();
            self.counters.deltas_repeated += 1;
        } else {
            taken =
                kernels::take_unconfirmed(w, last, sent, pos, None, 1.0, journal, self.writes());
            self.counters.deltas_kept += 1;
        }
        self.note_taken(state, version, None, true);
        journal.end();
        taken
    }

    /// As [`take_and_answer`](Self::take_and_answer); what the payload cannot say stays in `w -
    /// last`.
    fn take_and_answer_narrow(
        &mut self,
        header: &Header,
        pos: &[u8],
        out: &mut impl Outbox,
    ) -> Taken {
        let (w, last, sent) = self.chunk_views(header.chunk);
        let state = self.state.chunk(header.chunk);
        let version = header.chunk_version;
        let seq = state.seq.load(Relaxed).wrapping_add(1);
        let (portion, journal) = (self.portion(), self.state.journal());
        let mut narrow = std::mem::take(&mut self.narrow);
        let mut goes = std::mem::take(&mut narrow.goes);
        let (dtype, rounding) = narrow.rounding(self.config.precision, (w, last), portion);
        let delta = self.narrow_delta_header(header, seq, dtype);
        let mut taken = Taken::default();
        let went = self.shares.may_answer()
            && out.send(To::Node(header.sender), delta.frame_len(), &mut |slot| {
                let (_, payload) = delta.emit(slot);
                journal.begin(JournalOp::Rounded, delta.chunk, delta.range, seq, version);
                taken = kernels::take_rounded(
                    w,
                    last,
                    sent,
                    pos,
                    goes.as_mut_bytes(),
                    rounding,
                    portion,
                    journal,
                    self.config.writes,
                );
                wire::pack(dtype, &goes, payload);
            });
        narrow.goes = goes;
        if went {
            narrow.note_outstanding(header.chunk, portion);
            self.note_taken(state, version, Some(seq), self.exactly_once());
            self.counters.deltas_sent += 1;
            self.shares.answer_sent();
        } else {
            journal.begin(JournalOp::Keep, delta.chunk, delta.range, seq, version);
            taken = kernels::take_keep(w, last, pos, journal, self.writes());
            narrow.note_exact(header.chunk);
            self.note_taken(state, version, None, false);
            self.counters.deltas_kept += 1;
        }
        journal.end();
        self.narrow = narrow;
        taken
    }

    /// As [`take_and_repeat`](Self::take_and_repeat): the same values again, whatever the portion
    /// is by now.
    fn take_and_repeat_narrow(
        &mut self,
        header: &Header,
        pos: &[u8],
        out: &mut impl Outbox,
    ) -> Taken {
        let (w, last, sent) = self.chunk_views(header.chunk);
        let state = self.state.chunk(header.chunk);
        let (seq, version) = (state.seq.load(Relaxed), header.chunk_version);
        let portion = self.narrow.portion_of(header.chunk);
        let portion = portion.unwrap_or_else(|| self.portion());
        let dtype = self.narrow.repeat(self.config.precision, sent, portion);
        let delta = self.narrow_delta_header(header, seq, dtype);
        let goes = &self.narrow.goes;
        let went = self.shares.may_answer()
            && out.send(To::Node(header.sender), delta.frame_len(), &mut |slot| {
                wire::pack(dtype, goes, delta.emit(slot).1);
            });
        let journal = self.state.journal();
        journal.begin(
            JournalOp::Unconfirmed,
            delta.chunk,
            delta.range,
            seq,
            version,
        );
        let taken =
            kernels::take_unconfirmed(w, last, sent, pos, None, 1.0, journal, self.writes());
        if went {
            self.counters.deltas_sent += 1;
            self.shares.answer_sent();
            self.counters.deltas_repeated += 1;
        } else {
            self.counters.deltas_kept += 1;
        }
        self.note_taken(state, version, None, true);
        journal.end();
        taken
    }

    fn narrow_delta_header(&self, answered: &Header, seq: u8, dtype: Dtype) -> Header {
        Header {
            dtype,
            payload_len: dtype.payload_len(self.config.chunk_weights as usize) as u32,
            ..self.delta_header(answered, seq)
        }
    }

    /// The paper's original: what is sent is forgotten.
    fn take_and_forget(&mut self, header: &Header, pos: &[u8], out: &mut impl Outbox) -> Taken {
        let (w, last, _) = self.chunk_views(header.chunk);
        let state = self.state.chunk(header.chunk);
        let seq = state.seq.load(Relaxed).wrapping_add(1);
        let delta = self.delta_header(header, seq);
        let mut taken = Taken::default();
        let went = self.shares.may_answer()
            && out.send(To::Node(header.sender), delta.frame_len(), &mut |slot| {
                let (_, payload) = delta.emit(slot);
                taken = kernels::take_forget(w, last, pos, payload, self.portion(), self.writes());
            });
        if went {
            self.counters.deltas_sent += 1;
            self.shares.answer_sent();
        } else {
            let journal = self.state.journal();
            taken = kernels::take_keep(w, last, pos, journal, self.writes());
            self.counters.deltas_kept += 1;
        }
        self.note_taken(state, header.chunk_version, went.then_some(seq), false);
        taken
    }

    /// True if a position of `epoch` may be taken: not of an earlier epoch than the chunk is in,
    /// and, if the chunk was given back for a new epoch, not of the one before.
    fn epoch_fits(&self, state: &ChunkState, epoch: u32) -> bool {
        // A chunk keeps the low 16 bits of its epoch; 32,768 losses of a range lie between doubts.
        let ahead = (epoch as u16).wrapping_sub(state.epoch.load(Relaxed)) as i16;
        let given = state.flags.load(Relaxed) & GIVEN != 0;
        ahead > 0 || (ahead == 0 && !given)
    }

    /// The chunk's master starts again and counts deltas anew: what we had under way is put back
    /// into `w - last`, and goes out under the new count.
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
        state.epoch.store(epoch as u16, Relaxed);
    }
}

//! What becomes of a chunk when this node begins to stream it, or another does.
//!
//! *From slave to master:* what this node has under way and what it added since goes into the
//! weights that it streams. The acknowledgements are those of the position that it held. *From
//! master to slave:* the weights at that moment are the position that this node holds, newer than
//! any that it sent; what its solvers add from then on is `w - last`, as in any slave. Where
//! payloads are narrow, that position is what a payload can say of them, so that it travels in one
//! frame, and the rest is in `w - last`. Whether the next master began from it is not known yet:
//! the chunk is *forked* until it is ([`forks`](super::forks)). The position counts as a delta of
//! this node: its number shows in the acknowledgements of all that begin from there.
//!
//! Invariant: of a chunk all this is done or none of it: who is killed in between finishes it when
//! it starts again ([`Common::finish_handovers`]).

use std::sync::atomic::Ordering::Relaxed;

use super::Report;
use super::common::Common;
use super::common::chunk_flags::{FORKED, JOINED, OUTSTANDING};
use super::lease::Lease;
use super::narrow::holds_bits;
use crate::weights::kernels;
use crate::wire;

/// Versions that the next master of a chunk leaves out.
const VERSION_STEP: u32 = 1 << 16;

impl<'a> Common<'a> {
    /// Streams a range from now on, in the epoch that this node has promised to itself.
    pub(super) fn begin_streaming(&mut self, range: u16) {
        let state = self.state.node(range);
        state.streamed.store(self.promised(range), Relaxed);
        self.leases[usize::from(range)].heard_all = false;
        self.begin_chunks(range);
    }

    fn begin_chunks(&mut self, range: u16) {
        for chunk in self.ranges.of(range) {
            let state = self.state.chunk(chunk);
            let flags = state.flags.load(Relaxed);
            if flags & (JOINED | FORKED) == 0 {
                continue;
            }
            if flags & OUTSTANDING != 0 {
                self.keep_contested(chunk, self.promised(range));
            }
            if flags & JOINED != 0 {
                self.fold(chunk);
            }
            let version = state.version.load(Relaxed).wrapping_add(VERSION_STEP);
            state.version.store(version, Relaxed);
            state.flags.store(0, Relaxed);
        }
        self.leases[usize::from(range)] = Lease::default();
        self.turns += 1;
        self.tell_soon = true;
    }

    /// Own work counts by the node's portion in the weights that it streams, as it would have at
    /// another master.
    fn fold(&self, chunk: u32) {
        let portion = self.scale(chunk);
        if portion >= 1.0 {
            return;
        }
        let (w, ..) = self.chunk_views(chunk);
        let position = self.held_position(chunk);
        let ahead = (0..w.len()).map(|i| w.load(i) - position(i));
        let finite = |ahead: f32| if ahead.is_finite() { ahead } else { 0.0 };
        let values: Vec<f32> = ahead.map(finite).collect();
        kernels::racy_axpy(w, portion - 1.0, &values);
    }

    /// Another node streams the range from now on.
    pub(super) fn stop_streaming(&mut self, range: u16) {
        let epoch = self.streamed(range);
        for chunk in self.ranges.of(range) {
            self.forget_heirs(chunk);
            self.fork(chunk, epoch);
        }
        self.state.node(range).streamed.store(0, Relaxed);
        self.report(Report::LostRange {
            range,
            to: super::epochs::owner(self.promised(range)),
        });
        self.leases[usize::from(range)] = Lease {
            forked_chunks: self.ranges.of(range).len() as u32,
            ..Lease::default()
        };
        self.turns += 1;
        self.tell_soon = true;
    }

    fn fork(&self, chunk: u32, epoch: u32) {
        let state = self.state.chunk(chunk);
        if state.flags.load(Relaxed) & FORKED != 0 {
            return;
        }
        let (w, last, sent) = self.chunk_views(chunk);
        let mut values = vec![0.0; w.len()];
        kernels::copy_out(w, &mut values);
        let finite = values.iter().all(|value| value.is_finite());
        if finite && !self.is_published(chunk, &values) {
            wire::round(self.config.precision, &mut values);
        }
        kernels::copy_in(last, &values);
        values.fill(0.0);
        kernels::copy_in(sent, &values);
        // After what was under way when this node began the chunk: none has had it.
        let number = state.seq.load(Relaxed).wrapping_add(1);
        state.seq.store(number, Relaxed);
        self.state.applied(chunk)[usize::from(self.config.node)].store(number, Relaxed);
        let version = state.version.load(Relaxed).wrapping_add(1);
        state.version.store(version, Relaxed);
        state.epoch.store(epoch, Relaxed);
        state.flags.store(FORKED, Relaxed);
    }

    /// Whether positions have said these `weights` of a chunk that this node streams, of which they
    /// say the very bits while it rests. Others may count on those.
    fn is_published(&self, chunk: u32, weights: &[f32]) -> bool {
        let (_, _, published) = self.chunk_views(chunk);
        holds_bits(published, weights)
    }

    /// Finishes what a killed predecessor was at.
    pub(super) fn finish_handovers(&mut self) {
        for range in 0..self.config.places() {
            match (self.streamed(range), self.promised(range)) {
                (0, _) => {}
                (streamed, promised) if streamed == promised => self.begin_chunks(range),
                (_, promised) if super::epochs::owner(promised) == self.config.node => {
                    // Between the two stores of a later epoch of its own.
                    self.go_on_in(range, promised);
                    self.begin_chunks(range);
                }
                _ => self.stop_streaming(range),
            }
        }
    }

    /// The weights of a chunk, by their place in it, without what this node has under way: the
    /// position as it was taken.
    pub(super) fn held_position(&self, chunk: u32) -> impl Fn(usize) -> f32 + use<'a> {
        let (_, last, sent) = self.chunk_views(chunk);
        let outstanding = self.state.chunk(chunk).flags.load(Relaxed) & OUTSTANDING != 0;
        move |i| {
            let under_way = if outstanding { sent.load(i) } else { 0.0 };
            last.load(i) - under_way
        }
    }

    /// The node whose position of a chunk this node holds; `None`: it is none, or its own.
    pub(super) fn master_before(&self, chunk: u32) -> Option<u16> {
        let epoch = self.state.chunk(chunk).epoch.load(Relaxed);
        let master = super::epochs::owner(epoch);
        (self.holds(chunk) && master != self.config.node).then_some(master)
    }

    /// Whether this node holds a position of a foreign chunk.
    #[inline]
    pub(super) fn holds(&self, chunk: u32) -> bool {
        self.state.chunk(chunk).flags.load(Relaxed) & (JOINED | FORKED) != 0
    }
}

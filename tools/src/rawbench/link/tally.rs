//! What one end has received in a run, by the marks of the frames.
//!
//! Invariant: every byte of a counted frame is read, and what the memory holds does not grow with
//! what arrives.

use std::collections::VecDeque;

use super::packet::Packet;
use super::plan::Mark;
use crate::raw;

/// Marks that are remembered; the other end asks for each soon after its frames.
const MARKS_MAX: usize = 64;

/// Counts of a run.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Counted frames, without those that are omitted.
    pub(crate) frames: u64,
    pub(crate) bytes: u64,
    /// Frames that are not part of the result.
    pub(crate) omitted: u64,
    marks: VecDeque<(Mark, u64)>,
    sink: Vec<u8>,
}

impl Tally {
    /// Nothing yet; frames have up to `payload_max` bytes.
    pub(crate) fn new(payload_max: usize) -> Self {
        Self {
            sink: vec![0; payload_max],
            ..Self::default()
        }
    }

    /// A new run begins.
    pub(crate) fn clear(&mut self) {
        (self.frames, self.bytes, self.omitted) = (0, 0, 0);
        self.marks.clear();
    }

    /// Takes a frame of the run.
    pub(crate) fn take(&mut self, packet: &Packet, bytes: &[u8]) {
        // A receiver that does not read its bytes measures nothing.
        let n = bytes.len().min(self.sink.len());
        raw::copy(&mut self.sink[..n], &bytes[..n]);
        std::hint::black_box(&mut self.sink);
        let mark = packet.mark();
        match self.marks.iter_mut().rev().find(|one| one.0 == mark) {
            Some((_, frames)) => *frames += 1,
            None => {
                if self.marks.len() == MARKS_MAX {
                    self.marks.pop_front();
                }
                self.marks.push_back((mark, 1));
            }
        }
        if mark.omitted {
            self.omitted += 1;
        } else {
            self.frames += 1;
            self.bytes += n as u64;
        }
    }

    /// Whether anything of the run has arrived.
    pub(crate) fn has_begun(&self) -> bool {
        self.frames + self.omitted > 0
    }

    /// Frames that arrived of one part.
    pub(crate) fn of(&self, mark: Mark) -> u64 {
        let found = self.marks.iter().rev().find(|one| one.0 == mark);
        found.map_or(0, |one| one.1)
    }
}

#[cfg(test)]
mod tests {
    use super::super::packet::Kind;
    use super::*;

    #[test]
    fn frames_count_where_their_mark_says_and_no_mark_fills_the_memory() {
        let mut tally = Tally::new(100);
        let take = |tally: &mut Tally, mark: Mark| {
            let packet = Packet {
                a: mark.to_word(),
                ..Packet::ask(Kind::Data, 1)
            };
            tally.take(&packet, &[1; 50]);
        };
        let mark = |omitted, index| Mark { omitted, index };
        for one in [
            mark(true, 0),
            mark(false, 0),
            mark(false, 1),
            mark(false, 0),
        ] {
            take(&mut tally, one);
        }
        assert_eq!((tally.frames, tally.bytes, tally.omitted), (3, 150, 1));
        let of = |tally: &Tally| [tally.of(mark(true, 0)), tally.of(mark(false, 0))];
        assert_eq!(of(&tally), [1, 2]);
        for index in 2..10_000 {
            take(&mut tally, mark(false, index));
        }
        assert_eq!(tally.frames, 10_001);
        assert_eq!(of(&tally), [0, 0], "the oldest are forgotten");
        assert_eq!(tally.of(mark(false, 9_999)), 1);
        assert_eq!(tally.marks.len(), MARKS_MAX);
        tally.clear();
        assert!(!tally.has_begun());
    }
}

//! Asking for what became of each part of a run, while it goes on.
//!
//! Invariant: a part is told once, in order, when each end has said what it knows. A question goes
//! the way of the frames and behind them, so that an answer holds all that arrives.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::interval::{Interval, Way};
use super::packet::{Kind, NOT_YET, Packet};
use super::pour::Slice;
use super::sending::Ways;
use super::tally::Tally;

/// Between two times of asking the same.
const ASK_EVERY: Duration = Duration::from_millis(20);
/// Parts that are asked for at a time.
const ASKED_MAX: usize = 4;

/// A part whose ends have not all answered.
#[derive(Debug)]
struct Open {
    slice: Slice,
    /// Frames that arrived at each receiver.
    arrived: Vec<Option<u64>>,
    /// Frames that the other end sent.
    sent_back: Option<u64>,
    ask_at: Instant,
}

/// What is known of all parts.
#[derive(Debug)]
pub(crate) struct Counts {
    /// Number of this stream, from 1.
    stream: u32,
    receivers: usize,
    ways: Ways,
    frame_bytes: usize,
    /// Parts that were taken over from the end that sends.
    seen: usize,
    open: VecDeque<Open>,
    /// Frames that the other end sent in the time that counts.
    pub(crate) sent_back: u64,
}

impl Counts {
    /// With no receivers (`--alone`) nothing is asked.
    pub(crate) fn new(stream: u32, receivers: usize, ways: Ways, frame_bytes: usize) -> Self {
        Self {
            stream,
            receivers,
            ways,
            frame_bytes,
            seen: 0,
            open: VecDeque::new(),
            sent_back: 0,
        }
    }

    /// Takes over the parts that have been closed since.
    pub(crate) fn follow(&mut self, closed: &[Slice]) {
        for &slice in &closed[self.seen..] {
            self.open.push_back(Open {
                slice,
                arrived: vec![None; self.receivers],
                sent_back: (self.ways == Ways::There).then_some(0),
                ask_at: Instant::now(),
            });
        }
        self.seen = closed.len();
    }

    /// The questions that are due.
    pub(crate) fn questions(&mut self, run: u64) -> Vec<Packet> {
        let now = Instant::now();
        let open = self.open.iter_mut().take(ASKED_MAX);
        let due = open.filter(|one| one.ask_at <= now && !one.is_complete());
        due.map(|one| {
            one.ask_at = now + ASK_EVERY;
            Packet {
                a: one.slice.mark.to_word(),
                ..Packet::ask(Kind::Count, run)
            }
        })
        .collect()
    }

    /// Receiver `from` has answered.
    pub(crate) fn came(&mut self, from: usize, answer: &Packet) {
        let mark = answer.mark();
        let Some(one) = self.open.iter_mut().find(|one| one.slice.mark == mark) else {
            return;
        };
        if let Some(arrived) = one.arrived.get_mut(from) {
            *arrived = Some(answer.b);
        }
        if one.sent_back.is_none() && answer.c != NOT_YET {
            one.sent_back = Some(answer.c);
        }
    }

    /// Whether anything has not been answered.
    pub(crate) fn waits(&self) -> bool {
        !self.open.is_empty()
    }

    /// The parts that are complete and were not told before. `tally` is what came back.
    pub(crate) fn complete(&mut self, tally: &Tally) -> Vec<Interval> {
        let mut all = Vec::new();
        while self.open.front().is_some_and(Open::is_complete) {
            if let Some(one) = self.open.pop_front() {
                self.tell(&one, tally, &mut all);
            }
        }
        all
    }

    fn tell(&mut self, one: &Open, tally: &Tally, all: &mut Vec<Interval>) {
        let Slice {
            mark,
            start_s,
            end_s,
            sent,
        } = one.slice;
        let interval = |id: u32, way: Way, sent: u64, received: Option<u64>| {
            Interval {
                id: Some(id),
                way,
                omitted: mark.omitted,
                index: mark.index,
                start_s,
                end_s,
                frame_bytes: self.frame_bytes,
                sent,
                received,
                bits_per_s: 0.0,
                lost_share: None,
            }
            .figured()
        };
        match one.arrived.as_slice() {
            _ if self.ways == Ways::Back => {}
            [] => all.push(interval(self.stream, Way::There, sent, None)),
            [one] => all.push(interval(self.stream, Way::There, sent, *one)),
            many => all.extend(
                (1..)
                    .zip(many)
                    .map(|(receiver, arrived)| interval(receiver, Way::There, sent, *arrived)),
            ),
        }
        if let (Ways::Both | Ways::Back, Some(sent)) = (self.ways, one.sent_back) {
            all.push(interval(self.stream, Way::Back, sent, Some(tally.of(mark))));
            self.sent_back += if mark.omitted { 0 } else { sent };
        }
    }
}

impl Open {
    fn is_complete(&self) -> bool {
        self.sent_back.is_some() && self.arrived.iter().all(Option::is_some)
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::Mark;
    use super::*;

    fn slice(index: u32, sent: u64) -> Slice {
        Slice {
            mark: Mark {
                omitted: false,
                index,
            },
            start_s: f64::from(index),
            end_s: f64::from(index + 1),
            sent,
        }
    }

    fn answer(question: &Packet, b: u64, c: u64) -> Packet {
        Packet {
            answer: true,
            b,
            c,
            ..*question
        }
    }

    #[test]
    fn parts_are_told_in_order_when_all_ends_have_answered() {
        let mut counts = Counts::new(1, 2, Ways::There, 100);
        let tally = Tally::new(100);
        counts.follow(&[slice(0, 10)]);
        counts.follow(&[slice(0, 10), slice(1, 20)]);
        let asked = counts.questions(7);
        assert_eq!(asked.len(), 2);
        assert!(counts.questions(7).is_empty(), "not again at once");
        // The second part is answered by both, the first by one.
        counts.came(0, &answer(&asked[1], 20, 0));
        counts.came(1, &answer(&asked[1], 19, 0));
        counts.came(1, &answer(&asked[0], 8, 0));
        assert!(counts.complete(&tally).is_empty() && counts.waits());
        counts.came(0, &answer(&asked[0], 9, 0));
        let told = counts.complete(&tally);
        let figures: Vec<_> = told
            .iter()
            .map(|one| (one.index, one.id, one.received))
            .collect();
        assert_eq!(
            figures,
            [
                (0, Some(1), Some(9)),
                (0, Some(2), Some(8)),
                (1, Some(1), Some(20)),
                (1, Some(2), Some(19))
            ]
        );
        assert!(!counts.waits());
    }

    #[test]
    fn a_part_of_both_ways_waits_for_what_the_other_end_sent() {
        let mut counts = Counts::new(3, 1, Ways::Both, 100);
        let tally = Tally::new(100);
        counts.follow(&[slice(0, 10)]);
        let asked = counts.questions(7);
        counts.came(0, &answer(&asked[0], 10, NOT_YET));
        assert!(counts.complete(&tally).is_empty());
        counts.came(0, &answer(&asked[0], 10, 12));
        let told = counts.complete(&tally);
        assert_eq!(told.len(), 2);
        assert_eq!((told[1].way, told[1].sent), (Way::Back, 12));
        assert_eq!(told[1].received, Some(0));
        assert_eq!(counts.sent_back, 12);
    }

    #[test]
    fn without_a_receiver_nothing_is_asked() {
        let mut counts = Counts::new(1, 0, Ways::There, 100);
        counts.follow(&[slice(0, 10)]);
        assert!(counts.questions(7).is_empty());
        let told = counts.complete(&Tally::new(100));
        assert_eq!((told[0].sent, told[0].received), (10, None));
    }
}

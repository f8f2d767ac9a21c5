//! Sending by a plan: what the driver does, and the responder too where both ways are measured.
//!
//! Touches the clock and the link it is given. Invariant: a frame carries the mark of the part in
//! which it was handed to the link.

use std::time::{Duration, Instant};

use anyhow::Result;
use dogwild_net::bucket::Bucket;
use dogwild_net::{Link, To};

use super::packet::{HEADER_BYTES, Kind, Packet};
use super::plan::{CATCH_UP_S, Mark, Moment, Plan};
use crate::raw::{BATCH, burst};

/// Parts that a run's rate is plotted in.
const PARTS: f64 = 50.0;
/// How many times its rate a sender has that makes up for a pause.
const PEAK_FACTOR: f64 = 2.0;
/// Longest time to sleep: who sends looks at what comes too.
const WAIT_MAX: Duration = Duration::from_millis(10);

/// End of each part of a run in seconds, and frames/s sent in it.
pub(crate) type Parts = Vec<(f64, f64)>;

/// What was sent with one mark.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slice {
    pub(crate) mark: Mark,
    /// From the start of the omitted or the counted time.
    pub(crate) start_s: f64,
    pub(crate) end_s: f64,
    pub(crate) sent: u64,
}

/// What a step has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Sent,
    /// The link takes no more now.
    Full,
    /// Nothing is to be sent for so long.
    Wait(Duration),
    Over,
}

/// Who sends, and to whom.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sender {
    pub(crate) run: u64,
    pub(crate) to: To,
    /// Frames from the responder.
    pub(crate) answer: bool,
    /// Only the head of each frame is written.
    pub(crate) heads_only: bool,
}

/// A run that is being sent.
#[derive(Debug)]
pub(crate) struct Pour {
    plan: Plan,
    sender: Sender,
    payload: Vec<u8>,
    start: Instant,
    /// Rate of the part that is being sent, what has been earned at it, and what may leave now;
    /// none: flat out.
    bucket: Option<(f64, Bucket, Bucket)>,
    /// The part that is being sent.
    open: Option<Slice>,
    /// What the link had dropped when the last part began or ended.
    dropped: u64,
    /// When the omitted or the counted time began.
    phase_s: f64,
    /// The parts that are over.
    pub(crate) closed: Vec<Slice>,
    over: bool,
    pub(crate) parts: Parts,
    part: (f64, u64),
}

impl Pour {
    /// Begins now.
    pub(crate) fn new(plan: &Plan, sender: Sender) -> Self {
        Self {
            plan: *plan,
            sender,
            payload: vec![0x5A; plan.frame_bytes],
            start: Instant::now(),
            bucket: None,
            open: None,
            dropped: 0,
            phase_s: 0.0,
            closed: Vec::new(),
            over: false,
            parts: Vec::new(),
            part: (0.0, 0),
        }
    }

    /// Sends what is due.
    pub(crate) fn step(&mut self, link: &mut Link) -> Result<Step> {
        let now_s = self.start.elapsed().as_secs_f64();
        match self.plan.at(now_s) {
            Moment::Over => {
                self.over = true;
                self.close(now_s, link);
                Ok(Step::Over)
            }
            Moment::Pause { until_s } => {
                self.close(now_s, link);
                Ok(Step::Wait(wait(until_s - now_s)))
            }
            Moment::Send {
                mark,
                rate,
                until_s,
            } => {
                self.open(mark, now_s, link);
                self.keep(rate, now_s);
                let mut count = BATCH as u64;
                if let Some((_, earned, peak)) = &mut self.bucket {
                    for bucket in [&mut *earned, &mut *peak] {
                        bucket.refill((now_s * 1e9) as u64);
                        count = count.min(bucket.tokens() as u64);
                    }
                    if count == 0 {
                        let left = wait(until_s - now_s);
                        let next = earned.wait(1.0).max(peak.wait(1.0));
                        return Ok(Step::Wait(next.min(left)));
                    }
                }
                self.burst(link, count)
            }
        }
    }

    /// Whether what is sent now counts.
    pub(crate) fn counts(&self) -> bool {
        self.open.is_some_and(|slice| !slice.mark.omitted)
    }

    /// Whether all has been sent.
    pub(crate) fn is_over(&self) -> bool {
        self.over
    }

    /// Takes what the link dropped after the end off from the last part.
    pub(crate) fn take_off_dropped(&mut self, link: &Link) {
        let late = link.tx.stats().dropped - self.dropped;
        self.dropped += late;
        if let Some(last) = self.closed.last_mut() {
            last.sent -= late.min(last.sent);
        }
    }

    /// Frames and seconds that count.
    pub(crate) fn counted(&self) -> (u64, f64) {
        let counted = self.closed.iter().filter(|slice| !slice.mark.omitted);
        counted.fold((0, 0.0), |(sent, _), slice| {
            (sent + slice.sent, slice.end_s)
        })
    }

    fn burst(&mut self, link: &mut Link, count: u64) -> Result<Step> {
        // Peer tools prepare their frames once; with a receiver, every byte is written and read.
        let fresh = if self.sender.heads_only {
            HEADER_BYTES
        } else {
            self.payload.len()
        };
        let went = burst(link, self.sender.to, &self.payload, fresh, count)?;
        if let Some(slice) = &mut self.open {
            slice.sent += went;
        }
        self.part.1 += went;
        if let Some((_, earned, peak)) = &mut self.bucket {
            earned.take(went as f64);
            peak.take(went as f64);
        }
        Ok(if went < count { Step::Full } else { Step::Sent })
    }

    /// From now on this is the rate.
    fn keep(&mut self, rate: Option<f64>, now_s: f64) {
        if rate == self.bucket.map(|(rate, ..)| rate) {
            return;
        }
        let empty = |rate: f64, seconds: f64| {
            let mut bucket = Bucket::new(rate, (rate * seconds).max(1.0), 0.0);
            bucket.refill((now_s * 1e9) as u64);
            bucket.take(bucket.tokens());
            bucket
        };
        // All of it at once would ask a queue for room that it frees bit by bit.
        let at_once = |rate: f64| empty(rate * PEAK_FACTOR, CATCH_UP_S);
        let earned = |rate: f64| empty(rate, self.plan.catch_up_s);
        self.bucket = rate.map(|rate| (rate, earned(rate), at_once(rate)));
    }

    /// From now on frames have this mark.
    fn open(&mut self, mark: Mark, now_s: f64, link: &Link) {
        if self.open.is_some_and(|open| open.mark == mark) {
            self.plot(now_s);
            return;
        }
        let before = self.open.map(|open| open.mark.omitted);
        self.close(now_s, link);
        if before != Some(mark.omitted) {
            self.phase_s = now_s;
            self.part = (now_s, 0);
        }
        let at = now_s - self.phase_s;
        self.open = Some(Slice {
            mark,
            start_s: at,
            end_s: at,
            sent: 0,
        });
        self.dropped = link.tx.stats().dropped;
        let header = Packet {
            a: mark.to_word(),
            answer: self.sender.answer,
            ..Packet::ask(Kind::Data, self.sender.run)
        };
        header.write(&mut self.payload);
    }

    fn close(&mut self, now_s: f64, link: &Link) {
        self.plot(now_s);
        let Some(mut slice) = self.open.take() else {
            return;
        };
        slice.end_s = now_s - self.phase_s;
        let dropped = link.tx.stats().dropped - self.dropped;
        self.dropped += dropped;
        slice.sent -= dropped.min(slice.sent);
        if !slice.mark.is_flood() {
            self.closed.push(slice);
        }
    }

    /// Keeps the rate of the last stretch of the counted time.
    fn plot(&mut self, now_s: f64) {
        let (from_s, sent) = self.part;
        let length = now_s - from_s;
        if self.counts() && length >= self.plan.seconds / PARTS {
            let rate = sent as f64 / length;
            self.parts.push((now_s - self.phase_s, rate));
            self.part = (now_s, 0);
        }
    }
}

fn wait(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds.max(0.0)).min(WAIT_MAX)
}

#[cfg(test)]
mod tests {
    use dogwild_net::memory::Hub;

    use super::super::tally::Tally;
    use super::*;

    #[test]
    fn what_is_sent_with_a_mark_arrives_with_it() {
        let [mut a, mut b]: [Link; 2] = Hub::new(2, 1000, 4096).try_into().expect("two links");
        let plan = Plan {
            frame_bytes: 200,
            rate: Some(20_000.0),
            catch_up_s: CATCH_UP_S,
            flood: true,
            omit_s: 0.02,
            seconds: 0.07,
            interval_s: Some(0.03),
            unicast: false,
        };
        let mut pour = Pour::new(
            &plan,
            Sender {
                run: 3,
                to: To::Group,
                answer: false,
                heads_only: false,
            },
        );
        let mut tally = Tally::new(1000);
        loop {
            let step = pour.step(&mut a).expect("a link");
            let take = &mut |_, bytes: &[u8]| {
                let packet = Packet::parse(bytes).expect("a frame");
                assert_eq!(packet.run, 3);
                tally.take(&packet, bytes);
            };
            while b.rx.recv(256, take).expect("a link") > 0 {}
            match step {
                Step::Over => break,
                Step::Wait(time) => std::thread::sleep(time),
                Step::Sent | Step::Full => {}
            }
        }
        assert!(pour.is_over() && tally.omitted > 0);
        let (sent, seconds) = pour.counted();
        assert_eq!(sent, tally.frames);
        assert!(sent as f64 <= seconds * 20_000.0 + 21.0, "{sent}");
        for slice in &pour.closed {
            assert_eq!(slice.sent, tally.of(slice.mark), "{slice:?}");
        }
        pour.take_off_dropped(&a);
        assert_eq!(pour.counted(), (sent, seconds), "nothing was dropped");
    }
}

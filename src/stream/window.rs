//! The flow window: how far positions may run ahead of answers.
//!
//! A queue on the way that is full drops frames in silence (a traffic shaper, a switch) or leaves
//! slaves no slot for their answers. Both show here as positions without an answer, so the window
//! shrinks while more of them stay unanswered than do anyway, and grows again. Frames that get lost
//! by chance do so with a short window too: that share is learnt there.
//!
//! A queue that is not full shows as delay ([`super::queue`]). The window keeps it short: so it
//! finds the rate of a link without filling its queue, and leaves the link to others who do fill it
//! (TCP).
//!
//! Invariant: bounds queues, not correctness. Of the slaves that learn, the one that is furthest on
//! counts, so that no slow or silent one is waited for.

use super::common::{Common, Peer};
use super::queue::{Delay, Looks};
use crate::wire::Header;

/// After this much silence of all slaves and two round trips the window opens again, ns; with each
/// further silence twice as long, up to the second figure: a peer that is not scheduled gains
/// nothing from more frames.
const REOPENS_NS: u64 = 1_000_000;
const REOPENS_NS_MAX: u64 = 32_000_000;
/// A node that was heard so lately lives, ns.
const LIVES_NS: u64 = 1_000_000_000;
/// Longest round trip that is believed, ns: what takes longer is a pause.
const ROUND_TRIP_NS_MAX: u64 = 200_000_000;
/// The shortest window, frames. What is lost with it is lost by chance.
const SHORTEST: u64 = 8;
/// Positions over which the share of answers is taken, at least.
const ROUND: u64 = 64;
/// The window at the start, frames. It doubles with each round until a queue or a loss shows.
const FIRST: u64 = 32;
/// Share of positions without an answer that makes the window shorter, beyond what is lost by
/// chance and this many standard deviations of that.
const CONGESTED: f64 = 0.1;
const DEVIATIONS: f64 = 2.5;
/// Time that frames may lie in queues of the network: enough that a link never idles for want of
/// them, ns.
const QUEUE_NS: u64 = 5_000_000;
/// Who gets this share of what it once got is taken to be alone.
const ALONE: f64 = 0.95;
/// Share of it that is left to a stream that gets next to nothing of the link.
const LEAST_QUEUE: f64 = 0.1;
/// Time over which a rate is smoothed, ns.
const RATE_OVER_NS: f64 = 100e6;
/// What is left of the highest rate after each interval in which a queue stood.
const FADES: f64 = 0.95;

/// The window and what it is adapted by.
#[derive(Clone, Debug)]
pub(super) struct Window {
    /// Positions that were sent: the last one's number.
    sent: u64,
    /// What each node answered.
    answers: Vec<Answers>,
    /// Frames, at most: as configured, or one pass over the range. 0: no limit.
    most: u64,
    /// Frames, now.
    frames: u64,
    /// No queue and no loss has shown yet.
    starting: bool,
    /// Share of positions that stay unanswered with the shortest window.
    by_chance: f64,
    /// When a slave last answered, or the window was opened by silence.
    progress_ns: u64,
    /// Silence after which the window opens again, ns, two round trips not counted.
    silence_ns: u64,
    /// Positions that were sent when silence opened the window.
    given_up: u64,
    /// Time from a position to its answer, the longest of late, ns.
    round_trip_ns: u64,
    /// A position whose answer is timed: its number, when it went.
    timed: Option<(u64, u64)>,
    delay: Delay,
    rate: Rate,
    /// How long frames of the last round lay in queues, ns.
    queued_ns: u64,
}

/// How many frames of the stream the way carries per time, and how many it once did: our positions,
/// and our answers to those of others, which share it. Without the answers, a node would yield to
/// the other nodes of its own stream.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    since_ns: u64,
    /// Positions that were taken until then: each has its answer.
    taken: u64,
    /// Frames per ns, smoothed.
    now: f64,
    most: f64,
}

impl Rate {
    /// Notes that `positions` were answered since the last call, and that `taken` were taken since
    /// the start.
    fn note(&mut self, now_ns: u64, positions: u64, taken: u64) {
        let passed_ns = now_ns.saturating_sub(self.since_ns).max(1);
        self.since_ns = now_ns;
        let frames = positions + taken.saturating_sub(self.taken);
        self.taken = taken;
        // Rounds are as long as a window: the longer one took, the more it says.
        let weight = (passed_ns as f64 / RATE_OVER_NS).min(1.0);
        self.now += weight * (frames as f64 / passed_ns as f64 - self.now);
        self.most = self.most.max(self.now);
    }

    /// The present rate as a share of the highest.
    fn share(self) -> f64 {
        if self.most > 0.0 {
            self.now / self.most
        } else {
            1.0
        }
    }
}

/// What one slave answered.
#[derive(Clone, Copy, Debug, Default)]
struct Answers {
    /// Number of our positions that it is known to have been sent.
    reached: u64,
    /// Answers that came.
    count: u64,
    /// Both when the round began.
    began: (u64, u64),
}

impl Window {
    /// A window of `configured` frames (0: no limit) over a range of `range_chunks`.
    pub(super) fn new(configured: u32, range_chunks: usize, nodes: u16) -> Self {
        // At most one pass over the range: a chunk whose last position is not answered yet would
        // only make its slave send the same delta again.
        let most = match configured {
            0 => 0,
            frames => u64::from(frames).min(range_chunks as u64).max(1),
        };
        Self {
            sent: 0,
            answers: vec![Answers::default(); usize::from(nodes)],
            most,
            frames: most.min(FIRST),
            starting: true,
            by_chance: 0.0,
            progress_ns: 0,
            silence_ns: REOPENS_NS,
            given_up: 0,
            round_trip_ns: 0,
            timed: None,
            delay: Delay::new(),
            rate: Rate::default(),
            queued_ns: 0,
        }
    }

    /// Notes that a position goes now. Returns its number.
    #[inline]
    pub(super) fn note_sent(&mut self, now_ns: u64) -> u64 {
        self.sent += 1;
        self.timed.get_or_insert((self.sent, now_ns));
        self.sent
    }

    /// Positions that were sent.
    #[inline]
    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    /// Notes that position number `reached` was answered; `looks` and `held`: for how long neither
    /// end looked.
    fn note_reached(&mut self, now_ns: u64, reached: u64, looks: Looks, held: u8) {
        if let Some((number, sent_ns)) = self.timed
            && reached >= number
        {
            let trip_ns = now_ns.saturating_sub(sent_ns);
            if let Some(on_network_ns) = looks.on_network_ns(trip_ns, held) {
                self.delay.note(on_network_ns);
            }
            let trip_ns = trip_ns.min(ROUND_TRIP_NS_MAX);
            // Up at once, down slowly: silence is measured in it, and a window that opens too early
            // doubles what stands in a queue already.
            let smoothed_ns = (7 * self.round_trip_ns + trip_ns) / 8;
            self.round_trip_ns = smoothed_ns.max(trip_ns);
            self.timed = None;
        }
    }

    /// Whether slaves have been silent for long enough to open the window again.
    fn is_silent(&self, now_ns: u64) -> bool {
        let silent_ns = now_ns.saturating_sub(self.progress_ns);
        silent_ns >= self.silence_ns + 2 * self.round_trip_ns
    }

    /// Takes note of a round of `sent` positions of which a share of `unanswered` was not answered;
    /// `taken`: positions of others that were taken so far.
    fn adapt(&mut self, now_ns: u64, sent: u64, unanswered: f64, taken: u64) {
        let shortest = SHORTEST.min(self.most);
        if self.frames == shortest {
            self.by_chance += (unanswered - self.by_chance) / 4.0;
        }
        if let Some(queued_ns) = self.delay.end_round() {
            self.queued_ns = queued_ns;
        }
        // A round is a sample: of 64 frames of which half are lost by chance, 6 % more or less are
        // noise. A fixed limit alone would halve the window on such links again and again.
        let deviation = (self.by_chance * (1.0 - self.by_chance) / sent as f64).sqrt();
        let lost = unanswered > self.by_chance + CONGESTED + DEVIATIONS * deviation;
        self.rate.note(now_ns, sent, taken);
        // Who gets less than it once did is not alone: it lets the queue be shorter, and so leaves
        // more to others.
        let share = (self.rate.share() / ALONE).min(1.0);
        let queue_ns = (QUEUE_NS as f64 * share.powi(3).max(LEAST_QUEUE)) as u64;
        self.starting &= !lost && self.queued_ns < queue_ns / 2;
        self.frames = if lost {
            self.frames / 2
        } else if self.queued_ns > queue_ns {
            (self.frames as f64 * self.share_for(queue_ns / 2)) as u64
        } else {
            self.frames + self.growth(queue_ns) + 1
        };
        // A queue of ours that stands is drained now and then: without that it is not seen how long
        // the way is.
        if let Some(longest_ns) = self.delay.next_interval(now_ns)
            && longest_ns > QUEUE_NS / 2
        {
            self.frames = shortest;
            self.rate.most *= FADES;
        }
        self.frames = self.frames.clamp(shortest, self.most);
    }

    /// The share of the window that fills the way and a queue of `queue_ns`; not less than a half.
    fn share_for(&self, queue_ns: u64) -> f64 {
        let way_ns = self.delay.way_ns();
        let share = (way_ns + queue_ns) as f64 / (way_ns + self.queued_ns) as f64;
        share.max(0.5)
    }

    /// Frames by which the window grows: slowly while a queue stands, so that others who shorten it
    /// for us get the room.
    fn growth(&self, queue_ns: u64) -> u64 {
        match self.queued_ns {
            _ if self.starting => self.frames,
            short if short < queue_ns / 4 => self.frames / 8,
            _ => self.frames / 64,
        }
    }

    /// Takes the answer `header` of a slave to position number `reached` or a later one.
    pub(super) fn note_answer(
        &mut self,
        now_ns: u64,
        common: &Common<'_>,
        header: &Header,
        reached: u64,
    ) {
        if !sets_the_pace(&common.peers, now_ns, header.sender) {
            return;
        }
        self.progress_ns = now_ns;
        self.silence_ns = REOPENS_NS;
        self.note_reached(now_ns, reached, common.looks, header.held);
        let answers = &mut self.answers[usize::from(header.sender)];
        answers.count += 1;
        // Answers overtake each other, and repeats come late: only the furthest one says how much
        // of what was sent is no longer on the way.
        if reached > answers.reached {
            answers.reached = reached;
            self.close_round(now_ns, header.sender, common.counters.positions_taken);
        }
    }

    /// Adapts the window if `node`, the slave that is furthest on, has answered a round. `taken`:
    /// positions of others that were taken so far.
    fn close_round(&mut self, now_ns: u64, node: u16, taken: u64) {
        let Answers {
            reached,
            count,
            began,
        } = self.answers[usize::from(node)];
        let round = reached.saturating_sub(began.0);
        // A round is a whole window, so that each one sees what the change before it did.
        if self.most == 0 || round < self.frames.max(ROUND) || reached < self.reached() {
            return;
        }
        let answered = (count - began.1) as f64 / round as f64;
        self.adapt(now_ns, round, 1.0 - answered.min(1.0), taken);
        self.begin_round();
    }

    fn begin_round(&mut self) {
        for answers in &mut self.answers {
            answers.began = (answers.reached.max(self.given_up), answers.count);
        }
    }

    fn reached(&self) -> u64 {
        let all = self.answers.iter().map(|answers| answers.reached);
        all.max().unwrap_or(0)
    }

    /// Positions that it lets go now.
    pub(super) fn left(&mut self, now_ns: u64) -> usize {
        if self.most == 0 {
            return usize::MAX;
        }
        let from = self.reached().max(self.given_up);
        let in_flight = self.sent.saturating_sub(from);
        if in_flight < self.frames {
            return (self.frames - in_flight) as usize;
        }
        if !self.is_silent(now_ns) {
            return 0;
        }
        // Silence: what is on the way is lost, or no slave listens. What was sent so far is given
        // up: it counts neither as on the way nor as unanswered in the next round, so a fresh
        // window can go.
        let again = self.silence_ns > REOPENS_NS;
        self.silence_ns = (self.silence_ns * 2).min(REOPENS_NS_MAX);
        self.progress_ns = now_ns;
        self.given_up = self.sent;
        self.begin_round();
        // And another silence: where frames go as trains (segmentation offload) a queue may drop
        // the whole window, and would again. A short one gets through.
        if again && self.reached() > 0 {
            let shortest = SHORTEST.min(self.most);
            self.frames = (self.frames / 2).max(shortest);
            self.starting = false;
        }
        self.frames as usize
    }

    /// Time that frames lay in queues of the network of late, ns.
    pub(super) fn queued_ns(&self) -> u64 {
        self.queued_ns
    }

    /// Frames that positions may run ahead of answers at present; 0: no limit.
    pub(super) fn frames(&self) -> u64 {
        self.frames
    }
}

/// Whether the window goes by the answers of `node`: where others learn, one without solvers, which
/// has all its time for answers, would have us send more than those others can take.
fn sets_the_pace(peers: &[Peer], now_ns: u64, node: u16) -> bool {
    let learns = |peer: &Peer| peer.iterations > 0;
    let lives = |peer: &Peer| now_ns.saturating_sub(peer.heard_ns) < LIVES_NS;
    learns(&peers[usize::from(node)]) || !peers.iter().any(|peer| learns(peer) && lives(peer))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Feeds one round per ms, each with so many positions answered and taken.
    fn run(rate: &mut Rate, from_ms: u64, rounds: u64, answered: u64, taken: u64) -> f64 {
        for round in 1..=rounds {
            let so_far = rate.taken + taken;
            rate.note((from_ms + round) * MS, answered, so_far);
        }
        rate.share()
    }

    /// A node whose positions are displaced by answers to another's must not make way for those:
    /// both would be its own stream's, and it would end with next to no positions.
    #[test]
    fn a_node_does_not_yield_to_the_others_of_its_stream() {
        let mut rate = Rate::default();
        assert_eq!(run(&mut rate, 0, 1000, 50, 50), 1.0);
        let share = run(&mut rate, 1000, 1000, 5, 95);
        assert!(share > 0.99, "{share}");
        // Something else takes half of the link: that is yielded to.
        let share = run(&mut rate, 2000, 1000, 5, 45);
        assert!((0.49..0.52).contains(&share), "{share}");
    }
}

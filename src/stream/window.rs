//! The flow window: how far positions may run ahead of answers.
//!
//! A queue on the way that is full drops frames in silence (a traffic shaper, a switch) or leaves
//! slaves no slot for their answers. Both show here as positions without an answer, so the window
//! shrinks while more of them stay unanswered than do anyway, and grows again. Frames that get lost
//! by chance do so with a short window too: that share is learnt there.
//!
//! A queue that is not full shows as delay ([`super::queue`]). The window keeps it short: so it
//! finds the rate of a link without filling its queue, and leaves the link to others who do fill it
//! (TCP). A node that begins while others have a queue takes that queue for a part of the way. So
//! each window is drained now and then, as LEDBAT++ does: its next frames find a shorter queue.
//!
//! Invariant: bounds queues, not correctness. Of the slaves that learn, the one that is furthest on
//! counts, so that no slow or silent one is waited for.

use super::answers::Answers;
use super::common::{Common, Peer};
use super::queue::{Delay, Looks};
use super::rate::Rate;
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
/// The shortest window where frames queue and none is lost. BBR may have four on such a way, so
/// more would leave it less than half.
const SHORTEST_QUEUED: u64 = 2;
/// Positions over which the share of answers is taken, at least.
const ROUND: u64 = 64;
/// The window at the start, frames. It doubles with each round until a queue or a loss shows.
const FIRST: u64 = 32;
/// Frames of a window that is drained: two pairs, so that the second one is timed behind nothing of
/// ours.
const DRAINED: u64 = 4;
/// The window is first drained so long after the first answer, ns.
const FIRST_DRAIN_NS: u64 = 250_000_000;
/// And then after so long, ns, or so many round trips: a drain takes some three of them.
const DRAIN_EVERY_NS: u64 = 1_000_000_000;
const DRAIN_EVERY_TRIPS: u64 = 64;
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

/// The window and what it is adapted by.
#[derive(Clone, Debug)]
pub(super) struct Window {
    /// Positions that were sent: the last one's number.
    sent: u64,
    /// What each node answered.
    answers: Answers,
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
    drain: Drain,
    rate: Rate,
    /// How long frames of the last round lay in queues, ns.
    queued_ns: u64,
}

/// A window that is let run empty, so that the way is seen without a queue.
#[derive(Clone, Copy, Debug, Default)]
struct Drain {
    running: Option<Draining>,
    /// When the next one is due, ns; 0: nothing was answered yet.
    due_ns: u64,
    /// Whether one has ended.
    ended: bool,
}

/// A drain while it lasts.
#[derive(Clone, Copy, Debug)]
struct Draining {
    /// The position whose answer ends it.
    last: u64,
    /// The window before, frames, and what its round trip was on the network, ns.
    frames: u64,
    trip_ns: u64,
}

impl Window {
    /// A window of `configured` frames (0: no limit) over a range of `range_chunks`.
    pub(super) fn new(configured: u32, range_chunks: usize, nodes: u16) -> Self {
        let most = most(configured, range_chunks);
        Self {
            sent: 0,
            answers: Answers::new(nodes),
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
            drain: Drain::default(),
            rate: Rate::default(),
            queued_ns: 0,
        }
    }

    /// Goes on over ranges of `chunks` in all, in place of those before: the way to the others is
    /// what it was. What is on the way is not counted, for its answers may go elsewhere.
    pub(super) fn turn_to(&mut self, configured: u32, chunks: usize) {
        self.most = most(configured, chunks);
        self.frames = self.frames.clamp(SHORTEST.min(self.most), self.most);
        self.given_up = self.sent;
        (self.timed, self.drain.running) = (None, None);
        self.begin_round();
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
            // The timed one is lost if the first answer that comes is to one after the silence.
            if number > self.given_up || reached <= self.given_up {
                self.note_trip(now_ns.saturating_sub(sent_ns), looks, held);
            }
            self.timed = None;
        }
        self.look_at_drain(now_ns, reached);
    }

    /// Notes how long a position and its answer took together, ns.
    fn note_trip(&mut self, trip_ns: u64, looks: Looks, held: u8) {
        if let Some(on_network_ns) = looks.on_network_ns(trip_ns, held) {
            self.delay.note(on_network_ns);
        }
        let trip_ns = trip_ns.min(ROUND_TRIP_NS_MAX);
        // Up at once, down slowly: silence is measured in it, and a window that opens too early
        // doubles what stands in a queue already.
        let smoothed_ns = (7 * self.round_trip_ns + trip_ns) / 8;
        self.round_trip_ns = smoothed_ns.max(trip_ns);
    }

    /// Begins or ends a drain, if it is time to.
    fn look_at_drain(&mut self, now_ns: u64, reached: u64) {
        if let Some(was) = self.drain.running {
            if reached >= was.last {
                self.end_drain(now_ns, was);
            }
        } else if self.drain.due_ns == 0 {
            self.drain.due_ns = now_ns + FIRST_DRAIN_NS;
        } else if now_ns >= self.drain.due_ns && self.frames > SHORTEST_QUEUED {
            self.drain.running = Some(Draining {
                last: self.sent + DRAINED,
                frames: self.frames,
                trip_ns: self.delay.way_ns() + self.queued_ns,
            });
            self.frames = SHORTEST_QUEUED;
        }
    }

    /// Opens the window again, as far as the way that was seen meanwhile allows.
    fn end_drain(&mut self, now_ns: u64, was: Draining) {
        let wanted_ns = self.delay.way_ns() + QUEUE_NS / 2;
        let fits = was.frames as f64 * (wanted_ns as f64 / was.trip_ns.max(1) as f64).min(1.0);
        self.frames = (fits as u64).max(self.frames);
        // What came in the first moments lay in queues that others had filled before.
        if !self.drain.ended {
            self.rate.begin_again();
        }
        let apart_ns = DRAIN_EVERY_NS.max(DRAIN_EVERY_TRIPS * self.round_trip_ns);
        self.drain = Drain {
            running: None,
            due_ns: now_ns + apart_ns,
            ended: true,
        };
        self.begin_round();
    }

    /// Whether slaves have been silent for long enough to open the window again.
    fn is_silent(&self, now_ns: u64) -> bool {
        let silent_ns = now_ns.saturating_sub(self.progress_ns);
        silent_ns >= self.silence_ns + 2 * self.round_trip_ns
    }

    /// Takes note of a round of `sent` positions of which a share of `unanswered` was not answered;
    /// `others`: positions of others that were sent so far.
    fn adapt(&mut self, now_ns: u64, sent: u64, unanswered: f64, others: u64) {
        let shortest = SHORTEST.min(self.most);
        let shortest_queued = SHORTEST_QUEUED.min(self.most);
        if self.frames <= shortest {
            self.by_chance += (unanswered - self.by_chance) / 4.0;
        }
        if let Some(queued_ns) = self.delay.end_round() {
            self.queued_ns = queued_ns;
        }
        // A round is a sample: of 64 frames of which half are lost by chance, 6 % more or less are
        // noise. A fixed limit alone would halve the window on such links again and again.
        let deviation = (self.by_chance * (1.0 - self.by_chance) / sent as f64).sqrt();
        let lost = unanswered > self.by_chance + CONGESTED + DEVIATIONS * deviation;
        self.rate.note(now_ns, self.answers.reached(), others);
        // Who gets less than it once did is not alone: it lets the queue be shorter, and so leaves
        // more to others.
        let share = (self.rate.share() / ALONE).min(1.0);
        let queue_ns = (QUEUE_NS as f64 * share.powi(3).max(LEAST_QUEUE)) as u64;
        self.starting &= !lost && self.queued_ns < queue_ns / 2;
        self.frames = if lost {
            (self.frames / 2).max(shortest)
        } else if self.queued_ns > queue_ns {
            (self.frames as f64 * self.share_for(queue_ns / 2)) as u64
        } else {
            self.frames + self.growth(queue_ns) + 1
        };
        if let Some(longest_ns) = self.delay.next_interval(now_ns)
            && longest_ns > QUEUE_NS / 2
        {
            self.rate.fade();
        }
        self.frames = self.frames.clamp(shortest_queued, self.most);
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
        let counters = &common.counters;
        // What is lost by chance takes its time on a link too: were it not counted, who has the
        // smaller part of a link that loses would see less of it go by, and yield more.
        let others = counters.positions_taken + counters.positions_missed;
        self.count_answer(now_ns, header.sender, reached, others);
    }

    /// Counts the answer of `node` to position number `reached`. `others`: positions of others that
    /// were sent so far, those that were lost too.
    fn count_answer(&mut self, now_ns: u64, node: u16, reached: u64, others: u64) {
        // Answers overtake each other, and repeats come late: only the furthest one says how much
        // of what was sent is no longer on the way.
        if self.answers.count(node, reached, self.given_up) {
            self.close_round(now_ns, node, others);
        }
    }

    /// Adapts the window if `node`, the slave that is furthest on, has answered a round.
    fn close_round(&mut self, now_ns: u64, node: u16, others: u64) {
        let round = self.answers.round_of(node);
        // A round is a whole window, so that each one sees what the change before it did.
        let drains = self.drain.running.is_some();
        let whole = round.sent >= self.frames.max(ROUND);
        if self.most == 0 || drains || !whole || !self.answers.is_furthest(node) {
            return;
        }
        let answered = round.answers as f64 / round.sent as f64;
        self.adapt(now_ns, round.sent, 1.0 - answered.min(1.0), others);
        self.begin_round();
    }

    fn begin_round(&mut self) {
        self.answers.begin_round(self.given_up);
    }

    /// Positions that it lets go now.
    pub(super) fn left(&mut self, now_ns: u64) -> usize {
        if self.most == 0 {
            return usize::MAX;
        }
        let from = self.answers.reached().max(self.given_up);
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
        if again && self.answers.reached() > 0 {
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

/// Frames of a window, at most. No more than one pass over the ranges: a chunk whose last position
/// is not answered yet would only make its slave send the same delta again.
fn most(configured: u32, chunks: usize) -> u64 {
    match configured {
        0 => 0,
        frames => u64::from(frames).min(chunks as u64).max(1),
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
    use rand::{RngExt, SeedableRng};
    use rand_xoshiro::Xoshiro256PlusPlus;

    use super::*;

    const MS: u64 = 1_000_000;

    /// Two windows over one link with a queue; the second begins when the first has one.
    struct SharedLink {
        windows: [Window; 2],
        /// When the link has sent all that it was given, ns.
        free_ns: u64,
        /// Answers on the way: when each comes, whose, to which position.
        answers: std::collections::VecDeque<(u64, usize, u64)>,
        /// What each knows that the other sent.
        seen: [u64; 2],
        /// Share of positions, and of answers, that get lost behind the queue.
        loss: f64,
        random: Xoshiro256PlusPlus,
    }

    impl SharedLink {
        const FRAME_NS: u64 = 240_000;
        const WAY_NS: u64 = 500_000;
        const STEP_NS: u64 = 20_000;

        fn new(loss: f64, seed: u64) -> Self {
            Self {
                windows: [0, 1].map(|_| Window::new(1300, 1300, 2)),
                free_ns: 0,
                answers: Default::default(),
                seen: [0; 2],
                loss,
                random: Xoshiro256PlusPlus::seed_from_u64(seed),
            }
        }

        /// `knows_lost`: whether what was lost counts among what the other sent.
        fn step(&mut self, now_ns: u64, sending: usize, knows_lost: bool) {
            while let Some((_, who, number)) =
                self.answers.pop_front_if(|answer| answer.0 <= now_ns)
            {
                let [position_lost, answer_lost] =
                    [(); 2].map(|()| self.random.random_bool(self.loss));
                self.seen[1 - who] += u64::from(knows_lost || !position_lost);
                if position_lost || answer_lost {
                    continue;
                }
                let window = &mut self.windows[who];
                let mut looks = Looks::default();
                looks.note_turn(now_ns);
                (window.progress_ns, window.silence_ns) = (now_ns, REOPENS_NS);
                window.note_reached(now_ns, number, looks, 0);
                window.count_answer(now_ns, 1, number, self.seen[who]);
            }
            for (who, window) in self.windows.iter_mut().enumerate().take(sending) {
                for _ in 0..window.left(now_ns) {
                    let number = window.note_sent(now_ns);
                    self.free_ns = self.free_ns.max(now_ns) + Self::FRAME_NS;
                    let answer = (self.free_ns + Self::WAY_NS, who, number);
                    self.answers.push_back(answer);
                }
            }
        }

        /// Frames that each sent in the last second of five, and the mean queue in it, ms.
        fn run(&mut self, drains: bool) -> ([u64; 2], f64) {
            let mut began = [0; 2];
            let (mut queued_ns, mut steps) = (0, 0);
            for now_ns in (0..5000 * MS).step_by(Self::STEP_NS as usize) {
                if !drains {
                    self.windows[1].drain.due_ns = u64::MAX;
                }
                self.step(now_ns, if now_ns < 100 * MS { 1 } else { 2 }, true);
                if now_ns < 4000 * MS {
                    began = [0, 1].map(|who| self.windows[who].sent);
                } else {
                    queued_ns += self.free_ns.saturating_sub(now_ns);
                    steps += 1;
                }
            }
            let sent = [0, 1].map(|who| self.windows[who].sent - began[who]);
            (sent, queued_ns as f64 / f64::from(steps) / MS as f64)
        }

        /// Frames that each sent in each of the ten seconds after the first two.
        fn seconds(&mut self, knows_lost: bool) -> Vec<[u64; 2]> {
            let mut began = [0; 2];
            let mut all = Vec::new();
            for second in 0..12 {
                let of_second = second * 1000 * MS..(second + 1) * 1000 * MS;
                for now_ns in of_second.step_by(Self::STEP_NS as usize) {
                    self.step(now_ns, 2, knows_lost);
                }
                let sent = [0, 1].map(|who| self.windows[who].sent);
                all.push([0, 1].map(|who| sent[who] - began[who]));
                began = sent;
            }
            all.split_off(2)
        }
    }

    /// A node that joins, or was paused, first answers a position far beyond its last one. Those
    /// between were neither lost nor carried at once: taken for both, they halved the window, and
    /// no rate seemed enough for minutes.
    #[test]
    fn who_answers_after_long_says_nothing_of_before() {
        let mut window = Window::new(1300, 1300, 3);
        let positions_until = |window: &mut Window, last: u64| {
            for number in window.sent + 1..last {
                let now_ns = number * MS / 10;
                window.note_sent(now_ns);
                window.count_answer(now_ns, 1, number, 0);
            }
        };
        for paused_until in [5000, 15_000] {
            positions_until(&mut window, paused_until);
            let frames = window.frames;
            window.note_sent(paused_until * MS / 10);
            window.count_answer(paused_until * MS / 10, 2, paused_until, 0);
            assert!(window.frames >= frames, "{} of {frames}", window.frames);
            positions_until(&mut window, paused_until + 5000);
            assert!(window.rate.share() > 0.9, "{}", window.rate.share());
        }
    }

    /// A second in which one got next to nothing leaves its range old everywhere.
    #[test]
    fn a_link_that_loses_is_shared() {
        for (loss, seed) in [0.1, 0.3, 0.5]
            .map(|loss| (0..8).map(move |seed| (loss, seed)))
            .into_iter()
            .flatten()
        {
            for sent in SharedLink::new(loss, seed).seconds(true) {
                let [least, most] =
                    [sent.iter().min(), sent.iter().max()].map(|one| *one.expect("two"));
                assert!(
                    6 * least > most,
                    "{sent:?} with a loss of {loss}, seed {seed}"
                );
                assert!(
                    least + most > 2500,
                    "{sent:?} of 4167 with a loss of {loss}, seed {seed}"
                );
            }
        }
        // Who sees only what arrives sees less go by the smaller its part is, and yields.
        let apart = |knows_lost| {
            let all = (0..8).flat_map(|seed| SharedLink::new(0.3, seed).seconds(knows_lost));
            let ratios = all.map(|[one, other]| one.max(other) as f64 / one.min(other) as f64);
            let (sum, count) = ratios.fold((0.0, 0), |(sum, count), one| (sum + one, count + 1));
            sum / f64::from(count)
        };
        let (knowing, not) = (apart(true), apart(false));
        assert!(knowing < 1.6 && not > 2.0, "{knowing} and {not}");
    }

    /// Who begins while frames of others queue takes that queue for a part of the way. It would
    /// keep up one as long, and the other, which knows the way, would get next to nothing.
    #[test]
    fn who_begins_late_finds_the_way_too() {
        let ([first, _], queued_ms) = SharedLink::new(0.0, 0).run(false);
        assert!(first < 400 && queued_ms > 7.0, "{first}, {queued_ms} ms");
        let (sent, queued_ms) = SharedLink::new(0.0, 0).run(true);
        assert!(queued_ms < 6.0, "{queued_ms} ms in the queue");
        assert!(sent.iter().all(|sent| *sent > 800), "{sent:?} of 4167");
    }
}

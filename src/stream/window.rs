//! The flow window: how far positions may run ahead of answers.
//!
//! A queue on the way that is full drops frames in silence (a traffic shaper, a switch) or leaves slaves no slot for their
//! answers. Both show here as positions without an answer, so the window shrinks while more of them stay unanswered than
//! do anyway, and grows again. Frames that get lost by chance do so with a short window too: that share is learnt there.
//!
//! Invariant: bounds queues, not correctness. The slave that is furthest on counts, so that no slow or
//! silent one is waited for.

use super::{Streamer, streamer::Peer};
use crate::wire::Header;

/// After this much silence of all slaves and two round trips the window opens again, ns; with each further silence
/// twice as long, up to the second figure: a peer that is not scheduled gains nothing from more frames.
const REOPENS_NS: u64 = 1_000_000;
const REOPENS_NS_MAX: u64 = 32_000_000;
/// Longest round trip that is believed, ns: what takes longer is a pause.
const ROUND_TRIP_NS_MAX: u64 = 200_000_000;
/// The shortest window, frames. What is lost with it is lost by chance.
const SHORTEST: u64 = 8;
/// Positions over which the share of answers is taken, at least.
const ROUND: u64 = 64;
/// Share of positions without an answer, beyond what is lost by chance, that makes the window shorter.
const CONGESTED: f64 = 0.15;

/// The window and what it is adapted by.
#[derive(Clone, Debug)]
pub(super) struct Window {
    /// Frames, at most: as configured, or one pass over the range. 0: no limit.
    most: u64,
    /// Frames, now.
    frames: u64,
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
}

/// What one slave answered.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Answers {
    /// Number of our positions that it is known to have been sent.
    reached: u64,
    /// Answers that came.
    count: u64,
    /// Both when the round began.
    began: (u64, u64),
}

impl Window {
    /// A window of `configured` frames (0: no limit) over a range of `range_chunks`.
    pub(super) fn new(configured: u32, range_chunks: usize) -> Self {
        // At most one pass over the range: a chunk whose last position is not answered yet would only
        // make its slave send the same delta again.
        let most = match configured {
            0 => 0,
            frames => u64::from(frames).min(range_chunks as u64).max(1),
        };
        Self {
            most,
            frames: most,
            by_chance: 0.0,
            progress_ns: 0,
            silence_ns: REOPENS_NS,
            given_up: 0,
            round_trip_ns: 0,
            timed: None,
        }
    }

    /// Notes that position number `number` goes now.
    pub(super) fn note_sent(&mut self, now_ns: u64, number: u64) {
        self.timed.get_or_insert((number, now_ns));
    }

    /// Notes that position number `reached` was answered.
    fn note_reached(&mut self, now_ns: u64, reached: u64) {
        if let Some((number, sent_ns)) = self.timed
            && reached >= number
        {
            let trip_ns = now_ns.saturating_sub(sent_ns).min(ROUND_TRIP_NS_MAX);
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

    /// Takes note of a round in which so much of what was sent stayed unanswered.
    fn adapt(&mut self, unanswered: f64) {
        let shortest = SHORTEST.min(self.most);
        if self.frames == shortest {
            self.by_chance += (unanswered - self.by_chance) / 4.0;
        }
        self.frames = if unanswered > self.by_chance + CONGESTED {
            (self.frames / 2).max(shortest)
        } else {
            (self.frames + self.frames / 8 + 1).min(self.most)
        };
    }
}

impl Streamer<'_> {
    /// Works out how far behind our sending the slave's answer is.
    pub(super) fn note_answer(&mut self, now_ns: u64, header: &Header, lag: u32) {
        let range = self.ranges.of(self.config.node);
        let len = u64::from(range.end - range.start);
        let position = u64::from(header.chunk - range.start);
        let cursor = u64::from(self.cursor - range.start);
        // Frames sent since version `chunk_version` of this chunk left.
        let since = (cursor + len - position - 1) % len + u64::from(lag) * len;
        let reached = match self.sparse.went_as(position as usize) {
            Some(number) if lag == 0 => number,
            _ => self.sent_positions.saturating_sub(since),
        };
        self.window.progress_ns = now_ns;
        self.window.silence_ns = REOPENS_NS;
        self.window.note_reached(now_ns, reached);
        let answers = &mut self.peers[header.sender as usize].answers;
        answers.count += 1;
        if reached > answers.reached {
            answers.reached = reached;
            self.close_round(header.sender);
        }
    }

    /// Adapts the window if `node`, the slave that is furthest on, has answered a round.
    fn close_round(&mut self, node: u16) {
        let Answers {
            reached,
            count,
            began,
        } = self.peers[node as usize].answers;
        let round = reached.saturating_sub(began.0);
        if self.window.most == 0
            || round < self.window.frames.max(ROUND)
            || reached < self.reached()
        {
            return;
        }
        let answered = (count - began.1) as f64 / round as f64;
        self.window.adapt(1.0 - answered.min(1.0));
        self.begin_round();
    }

    fn begin_round(&mut self) {
        let given_up = self.window.given_up;
        for Peer { answers, .. } in &mut self.peers {
            answers.began = (answers.reached.max(given_up), answers.count);
        }
    }

    fn reached(&self) -> u64 {
        let all = self.peers.iter().map(|peer| peer.answers.reached);
        all.max().unwrap_or(0)
    }

    /// Positions that the flow window lets go now.
    pub(super) fn window_left(&mut self, now_ns: u64) -> usize {
        if self.window.most == 0 {
            return usize::MAX;
        }
        let from = self.reached().max(self.window.given_up);
        let in_flight = self.sent_positions.saturating_sub(from);
        if in_flight < self.window.frames {
            return (self.window.frames - in_flight) as usize;
        }
        if !self.window.is_silent(now_ns) {
            return 0;
        }
        // Silence: what is on the way is lost or nobody listens. Go on with a fresh window.
        self.window.silence_ns = (self.window.silence_ns * 2).min(REOPENS_NS_MAX);
        self.window.progress_ns = now_ns;
        self.window.given_up = self.sent_positions;
        self.begin_round();
        self.window.frames as usize
    }

    /// Frames that positions may run ahead of answers at present; 0: no limit.
    pub fn window_frames(&self) -> u64 {
        self.window.frames
    }
}

//! How long before its turn the delta of a chunk is wanted: the *lead*.
//!
//! A delta that answers a position at once waits at the master for the next turn of its chunk.
//! Where a turn takes many steps, what the others did is then one to two turns old when it is seen.
//! So the master says in its positions how far ahead of them slaves are to answer: by what is on
//! the way to them and back, and some more. Then the next position has what they did until shortly
//! before it.
//!
//! Arithmetic over counts. Invariant: only the time of an answer depends on it, so nothing that is
//! wrong here can lose or double anything.

/// A turn in the unit of frames.
const WHOLE: u64 = 256;
/// The longest lead, in that unit. If more is on the way, an answer at once is as good.
const MOST: u64 = 64;
/// A lead is so many times what is on the way, and so many chunks more; in a turn of few chunks,
/// each of which takes long, that share of them.
const TIMES: f64 = 3.0;
const MORE: f64 = 8.0;
const MORE_SHARE: f64 = 1.0 / 16.0;
/// Where that is too much, so many times is enough.
const LEAST_TIMES: f64 = 1.5;
/// Steps in a turn of a master that has a lead, at least. Less than for a first one: where one
/// begins, a turn of answers goes twice.
const STAYS: f64 = 0.5;
/// Share of what is known that the newest answer replaces.
const SMOOTHING: f64 = 1.0 / 32.0;

/// The lead of one master, and what it follows from.
#[derive(Clone, Debug, Default)]
pub(super) struct Lead {
    /// Positions on the way when an answer comes, smoothed.
    flying: f64,
    /// Steps that each node had made when the turn began.
    began: f64,
    /// Steps of each node in the last turn.
    steps: f64,
    /// What was on the way when this turn began; none: answers are to come at once.
    on_the_way: Option<f64>,
}

impl Lead {
    /// Notes that an answer came when so many positions had gone since the one that it answers.
    #[inline]
    pub(super) fn note_answer(&mut self, flying: u64) {
        self.flying += SMOOTHING * (flying as f64 - self.flying);
    }

    /// A turn begins, when each node has made so many steps, ever.
    pub(super) fn begin_turn(&mut self, steps: f64) {
        // Nothing is won in a turn that is shorter than a step, and two passes over a chunk cost
        // more than one.
        self.steps = (steps - self.began).max(0.0);
        self.began = steps;
        let least = if self.on_the_way.is_some() {
            STAYS
        } else {
            1.0
        };
        self.on_the_way = (self.steps >= least).then_some(self.flying);
    }

    /// Steps of each node in the last turn.
    pub(super) fn steps(&self) -> f64 {
        self.steps
    }

    /// The lead in a turn of `len` chunks, in 256ths of it; 0: answers are to come at once.
    #[inline]
    pub(super) fn of(&self, len: usize) -> u8 {
        #[cfg(test)]
        if let Some(lead) = FORCED.get() {
            return lead;
        }
        let Some(flying) = self.on_the_way else {
            return 0;
        };
        let len = len.max(1) as f64;
        let share = |chunks: f64| (chunks * WHOLE as f64 / len).ceil() as u64;
        let more = (len * MORE_SHARE).clamp(1.0, MORE);
        match share(TIMES * flying + more) {
            wanted if wanted <= MOST => wanted as u8,
            _ if share(LEAST_TIMES * flying) <= MOST => MOST as u8,
            _ => 0,
        }
    }
}

/// A lead of a position in chunks of its turn of `len`; 0: it is to be answered at once.
#[inline]
pub(super) fn chunks(lead: u8, len: usize) -> u32 {
    let chunks = (u64::from(lead) * len as u64).div_ceil(WHOLE);
    // An answer has 16 bits for it.
    chunks.min(u64::from(u16::MAX)) as u32
}

#[cfg(test)]
thread_local! {
    /// The lead of all masters of this thread, whatever is measured.
    static FORCED: std::cell::Cell<Option<u8>> = const { std::cell::Cell::new(None) };
}

/// Forces the lead of all masters of this thread while `run` runs.
#[cfg(test)]
pub(super) fn forced(lead: u8, run: impl FnOnce()) {
    FORCED.set(Some(lead));
    run();
    FORCED.set(None);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lead(flying: u64, made: u64) -> Lead {
        let mut lead = Lead::default();
        lead.begin_turn(250.0);
        (0..1000).for_each(|_| lead.note_answer(flying));
        // No step was made: there is no lead yet.
        lead.begin_turn(250.0);
        lead.begin_turn(250.0 + made as f64 / 4.0);
        lead
    }

    #[test]
    fn it_covers_what_is_on_the_way_where_a_turn_takes_steps() {
        let slow = lead(10, 4);
        for len in [160, 306, 5000, 1_000_000] {
            let chunks = chunks(slow.of(len), len);
            assert!(
                chunks >= 30 && chunks <= 39 + len as u32 / 256,
                "{len}: {chunks}"
            );
        }
    }

    /// Weights in int8 have a quarter of the chunks, and nodes of a large job have few each.
    #[test]
    fn it_is_shorter_where_a_range_has_few_chunks() {
        for (len, least, most) in [(8, 2, 2), (20, 5, 5), (26, 5, 6), (100, 10, 11)] {
            let chunks = chunks(lead(1, 4).of(len), len);
            assert!((least..=most).contains(&chunks), "{len}: {chunks}");
        }
        assert_eq!(u64::from(lead(10, 4).of(140)), MOST, "a quarter is enough");
    }

    #[test]
    fn it_stays_where_a_turn_takes_about_a_step() {
        let mut lead = lead(10, 4);
        let mut begun = 251.0;
        let mut of = |steps: f64| {
            begun += steps;
            lead.begin_turn(begun);
            lead.of(1000) > 0
        };
        let leads = [0.9, 0.6, 0.4, 0.6, 0.9, 1.1, 0.9].map(&mut of);
        assert_eq!(leads, [true, true, false, false, false, true, true]);
    }

    #[test]
    fn answers_come_at_once_in_short_turns_and_small_ranges() {
        assert_eq!(lead(10, 3).of(5000), 0, "no step each");
        assert_eq!(lead(10, 4).of(50), 0, "more than a quarter");
        assert_eq!(lead(10, 4).of(0), 0);
        assert_eq!(lead(100_000, 400).of(5000), 0);
        assert_eq!(chunks(0, 5000), 0);
        assert_eq!(chunks(255, usize::MAX >> 8), u32::from(u16::MAX));
    }
}

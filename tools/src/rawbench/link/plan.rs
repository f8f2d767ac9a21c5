//! What one end sends in a run: which frames, at which rate, and in which parts of time.
//!
//! Arithmetic and bytes only. A run is, in this order: a flood and a pause (where asked for), time
//! that is omitted, and the time that counts. The last two are cut into intervals. Each frame
//! carries the [`Mark`] of the part it was sent in: what arrives of a part is known exactly.

/// Bytes of a plan behind the header of a `Begin`.
pub(crate) const PLAN_BYTES: usize = 56;
/// Time of the flood, and its share of the counted time if that is more. It fills queues and
/// empties token buckets on the way, so that a rate that the link does not have cannot be borrowed.
const FLOOD_S_MIN: f64 = 0.2;
const FLOOD_SHARE: f64 = 0.2;
/// How many times the rate the flood has. More would fill a queue with bunches of frames, which
/// leave it whole: the room for the first frames that count would be chance.
const FLOOD_FACTOR: f64 = 2.0;
/// After the flood the next burst must find a place, and a receiver have read what it holds. So
/// much, or this share of the counted time, is what queues can still lend.
const PAUSE_S_MIN: f64 = 0.004;
const PAUSE_SHARE: f64 = 0.004;
/// Time that a sender makes up for after a pause, where nothing else is said.
pub(crate) const CATCH_UP_S: f64 = 0.001;
/// Longest time that an end sends for the other: a day and its omitted part.
const SECONDS_MAX: f64 = 200_000.0;

/// A part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Not part of the result.
    pub(crate) omitted: bool,
    /// Number of the interval, from 0.
    pub(crate) index: u32,
}

impl Mark {
    /// Frames that only fill queues.
    const FLOOD: Self = Self {
        omitted: true,
        index: u32::MAX,
    };
    /// Bit of the word of what is omitted.
    const OMITTED: u64 = 1 << 63;

    /// As a word of a frame.
    pub(crate) fn to_word(self) -> u64 {
        u64::from(self.index) | if self.omitted { Self::OMITTED } else { 0 }
    }

    /// From a word of a frame; any word is a mark.
    pub(crate) fn from_word(word: u64) -> Self {
        Self {
            omitted: word & Self::OMITTED != 0,
            index: word as u32,
        }
    }

    /// Whether frames with it belong to no interval.
    pub(crate) fn is_flood(self) -> bool {
        self == Self::FLOOD
    }
}

/// What to send.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Plan {
    /// Payload of each frame.
    pub(crate) frame_bytes: usize,
    /// Frames per second; none: as fast as it goes.
    pub(crate) rate: Option<f64>,
    /// Time that is made up for when this host kept the sender from sending.
    pub(crate) catch_up_s: f64,
    /// Begin with a flood.
    pub(crate) flood: bool,
    /// Seconds that are sent but not counted.
    pub(crate) omit_s: f64,
    /// Seconds that are counted.
    pub(crate) seconds: f64,
    /// Length of an interval; none: the counted time is one.
    pub(crate) interval_s: Option<f64>,
    /// To the other node instead of the group.
    pub(crate) unicast: bool,
}

/// Where a moment of a run lies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Moment {
    /// Send, and until when of the run this goes on.
    Send {
        mark: Mark,
        /// None: flat out.
        rate: Option<f64>,
        until_s: f64,
    },
    /// Send nothing until then.
    Pause {
        until_s: f64,
    },
    Over,
}

impl Plan {
    /// Where `now_s` after the start of the run lies.
    pub(crate) fn at(&self, now_s: f64) -> Moment {
        let mut begins = 0.0;
        if self.flood {
            let flood_s = (self.seconds * FLOOD_SHARE).max(FLOOD_S_MIN);
            if now_s < flood_s {
                return Moment::Send {
                    mark: Mark::FLOOD,
                    rate: self.rate.map(|rate| rate * FLOOD_FACTOR),
                    until_s: flood_s,
                };
            }
            begins = flood_s + (self.seconds * PAUSE_SHARE).max(PAUSE_S_MIN);
            if now_s < begins {
                return Moment::Pause { until_s: begins };
            }
        }
        for (omitted, length) in [(true, self.omit_s), (false, self.seconds)] {
            let ends = begins + length;
            if now_s < ends {
                let interval = self.interval_s.unwrap_or(length);
                let index = ((now_s - begins) / interval) as u32;
                return Moment::Send {
                    mark: Mark { omitted, index },
                    rate: self.rate,
                    until_s: ends.min(begins + f64::from(index + 1) * interval),
                };
            }
            begins = ends;
        }
        Moment::Over
    }

    /// Writes it to the front of `slot`, which has [`PLAN_BYTES`] at least.
    pub(crate) fn write(&self, slot: &mut [u8]) {
        let flags = u64::from(self.flood) | u64::from(self.unicast) << 1;
        let words = [
            self.frame_bytes as u64,
            flags,
            self.rate.unwrap_or(f64::INFINITY).to_bits(),
            self.omit_s.to_bits(),
            self.seconds.to_bits(),
            self.interval_s.unwrap_or(f64::INFINITY).to_bits(),
            self.catch_up_s.to_bits(),
        ];
        for (to, word) in slot.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
    }

    /// Reads what [`write`](Self::write) wrote; none if no plan is like that.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let (words, _) = bytes.first_chunk::<PLAN_BYTES>()?.as_chunks::<8>();
        let word = |i: usize| u64::from_le_bytes(words[i]);
        let number = |i: usize| f64::from_bits(word(i));
        let time = |i: usize| Some(number(i)).filter(|s| (0.0..=SECONDS_MAX).contains(s));
        let unless_infinite = |i: usize| match number(i) {
            f64::INFINITY => Some(None),
            value => (value.is_finite() && value >= 0.0).then_some(Some(value)),
        };
        Some(Self {
            frame_bytes: word(0).try_into().ok()?,
            flood: word(1) & 1 != 0,
            unicast: word(1) & 2 != 0,
            rate: unless_infinite(2)?,
            omit_s: time(3)?,
            seconds: time(4)?,
            interval_s: unless_infinite(5)?.map(|s| s.max(0.001)),
            catch_up_s: time(6)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: Plan = Plan {
        frame_bytes: 1000,
        rate: Some(2500.0),
        catch_up_s: CATCH_UP_S,
        flood: true,
        omit_s: 0.5,
        seconds: 1.25,
        interval_s: Some(0.5),
        unicast: true,
    };

    #[test]
    fn each_moment_has_its_part() {
        let part = |now_s| match PLAN.at(now_s) {
            Moment::Send { mark, rate, .. } => Some((mark.omitted, mark.index, rate)),
            Moment::Pause { .. } | Moment::Over => None,
        };
        assert_eq!(part(0.0), Some((true, u32::MAX, Some(5000.0))));
        let begins = 0.25 + 0.005;
        assert_eq!(PLAN.at(0.251), Moment::Pause { until_s: begins });
        assert_eq!(part(0.26), Some((true, 0, PLAN.rate)));
        for (after_s, index) in [(0.001, 0), (0.499, 0), (0.501, 1), (1.2, 2)] {
            assert_eq!(
                part(begins + 0.5 + after_s),
                Some((false, index, PLAN.rate))
            );
        }
        assert_eq!(PLAN.at(begins + 1.751), Moment::Over);
        // The last interval is as short as what is left.
        let Moment::Send { until_s, .. } = PLAN.at(begins + 1.7) else {
            panic!("it sends")
        };
        assert!((until_s - begins - 1.75).abs() < 1e-9, "{until_s}");
        let whole = Plan {
            rate: None,
            flood: false,
            omit_s: 0.0,
            interval_s: None,
            ..PLAN
        };
        let Moment::Send { mark, rate, .. } = whole.at(1.2) else {
            panic!("it sends")
        };
        assert_eq!((mark.index, rate), (0, None));
    }

    #[test]
    fn what_is_written_is_read_and_nonsense_is_not() {
        let mut bytes = [0xFF; 64];
        for plan in [
            PLAN,
            Plan {
                rate: None,
                interval_s: None,
                flood: false,
                ..PLAN
            },
        ] {
            plan.write(&mut bytes);
            assert_eq!(Plan::parse(&bytes), Some(plan));
        }
        assert_eq!(Plan::parse(&bytes[..PLAN_BYTES - 1]), None);
        for (word, value) in [
            (2, -1.0),
            (3, f64::NAN),
            (4, 1e9),
            (5, f64::NEG_INFINITY),
            (6, -0.1),
        ] {
            let mut wrong = bytes;
            wrong[word * 8..][..8].copy_from_slice(&f64::to_le_bytes(value));
            assert_eq!(Plan::parse(&wrong), None, "{value} in word {word}");
        }
    }

    #[test]
    fn a_mark_is_a_word_and_back() {
        for word in [0, 7, 1 << 63, 1 << 63 | 3] {
            assert_eq!(Mark::from_word(word).to_word(), word);
        }
        assert!(Mark::from_word(Mark::FLOOD.to_word()).is_flood());
        assert!(!Mark::from_word(3).is_flood());
    }
}

//! Messages that would repeat: each is logged once, then once a minute with how often it came.
//!
//! Touches nothing; time is an argument. Invariant: bounded memory, whatever the keys (forged
//! frames may make them up).

use std::collections::HashMap;
use std::hash::Hash;

/// Time between two messages of one key, ns.
const EVERY_NS: u64 = 60_000_000_000;
/// Keys that are remembered.
const KEYS_MAX: usize = 1024;

/// When each message was said last, and how often it came since.
#[derive(Debug)]
pub(super) struct Repeat<K> {
    said: HashMap<K, (u64, u64)>,
}

impl<K: Eq + Hash> Repeat<K> {
    pub(super) fn new() -> Self {
        Self {
            said: HashMap::new(),
        }
    }

    /// Whether a message of `key` that comes `times` times at `now_ns` is to be said: then how
    /// often it came since it was said last.
    pub(super) fn say(&mut self, key: K, now_ns: u64, times: u64) -> Option<u64> {
        if self.said.len() >= KEYS_MAX && !self.said.contains_key(&key) {
            self.said
                .retain(|_, (said_ns, _)| now_ns - *said_ns < EVERY_NS);
            if self.said.len() >= KEYS_MAX {
                return None;
            }
        }
        let first = !self.said.contains_key(&key);
        let (said_ns, count) = self.said.entry(key).or_insert((now_ns, 0));
        *count += times;
        if !first && now_ns.saturating_sub(*said_ns) < EVERY_NS {
            return None;
        }
        *said_ns = now_ns;
        Some(std::mem::take(count))
    }
}

/// What follows a message that came `times` times since it was said last.
pub(super) fn times(times: u64) -> String {
    if times > 1 {
        format!(" ({times} times)")
    } else {
        String::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn once_then_once_a_minute() {
        let mut repeat = Repeat::new();
        let mut said = Vec::new();
        for tenth in 0..1300 {
            if let Some(times) = repeat.say("mtu", tenth * S / 10, 2) {
                said.push((tenth, times));
            }
        }
        assert_eq!(said, [(0, 2), (600, 1200), (1200, 1200)]);
        assert_eq!(repeat.say("other", 131 * S, 1), Some(1));
    }

    #[test]
    fn keys_that_are_made_up_take_no_memory() {
        let mut repeat = Repeat::new();
        for key in 0..100_000u64 {
            repeat.say(key, key, 1);
        }
        assert!(repeat.said.len() <= KEYS_MAX);
        assert_eq!(repeat.say(7, 61 * S, 1), Some(1));
    }
}

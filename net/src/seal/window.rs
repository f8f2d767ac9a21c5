//! Which frames of which link have been taken: a sliding window for each (RFC 6479).
//!
//! Touches nothing. Invariants: a number is taken at most once; memory is bounded by [`LINKS_MAX`]
//! windows of 2 KiB; a window is never given to another link.

/// Frames of one link that may come out of order. A receiver sees only some of the numbers of a
/// link: those of frames to other nodes are missing.
pub const WINDOW_FRAMES: u64 = 16_384 - 64;

/// Links that are remembered, those that are gone included: a node takes one each time it starts.
pub const LINKS_MAX: usize = 4096;

const WORDS: usize = 256;

/// One bit for each of the last numbers.
struct Window {
    /// The highest number taken.
    top: u64,
    bits: Box<[u64; WORDS]>,
}

impl Window {
    fn new() -> Self {
        Window {
            top: 0,
            bits: Box::new([0; WORDS]),
        }
    }

    /// Takes a number; false if it was taken, or is too old to tell.
    fn take(&mut self, number: u64) -> bool {
        if number == 0 || number + WINDOW_FRAMES <= self.top {
            return false;
        }
        if number > self.top {
            // Words between the old top and the new one belong to numbers that have not come yet.
            let (old, new) = (self.top / 64, number / 64);
            for word in (old + 1..=new).take(WORDS) {
                self.bits[word as usize % WORDS] = 0;
            }
            // More than the whole ring ahead: all of it was cleared above, whatever the order.
            self.top = number;
        }
        let word = &mut self.bits[(number / 64) as usize % WORDS];
        let bit = 1 << (number % 64);
        let fresh = *word & bit == 0;
        *word |= bit;
        fresh
    }
}

/// The windows of all links heard so far.
pub(super) struct Windows {
    /// Apart from the windows: looking for a link is one pass over this.
    links: Vec<u64>,
    windows: Vec<Window>,
    /// Where the last frame's link stands.
    last: usize,
}

impl Windows {
    pub(super) fn new() -> Self {
        Windows {
            links: Vec::new(),
            windows: Vec::new(),
            last: 0,
        }
    }

    /// Takes a frame: whether it is new; `None` if its link is one more than are remembered.
    pub(super) fn take(&mut self, link: u64, number: u64) -> Option<bool> {
        if self.links.get(self.last) != Some(&link) {
            // From the back: links that are gone are in front.
            self.last = match self.links.iter().rposition(|known| *known == link) {
                Some(at) => at,
                None if self.links.len() < LINKS_MAX => {
                    self.links.push(link);
                    self.windows.push(Window::new());
                    self.links.len() - 1
                }
                None => return None,
            };
        }
        Some(self.windows[self.last].take(number))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a set that remembers everything.
        #[test]
        fn a_window_agrees_with_a_set(
            steps in proptest::collection::vec((0u8..8, 0u64..40_000), 1..400)
        ) {
            let (mut window, mut seen, mut top) = (Window::new(), HashSet::new(), 0u64);
            for (kind, by) in steps {
                let number = match kind {
                    0 => top + by,
                    1 => top.saturating_sub(by % 64),
                    2 => top.saturating_sub(by),
                    3 => top + 64 * 256,
                    4 => (top + WINDOW_FRAMES).saturating_sub(2 * WINDOW_FRAMES) + by % 3,
                    _ => top + by % 130,
                };
                let old = number == 0 || number + WINDOW_FRAMES <= top;
                prop_assert_eq!(window.take(number), !old && !seen.contains(&number), "{} after {}", number, top);
                if !old {
                    seen.insert(number);
                    top = top.max(number);
                }
            }
        }
    }

    #[test]
    fn the_edge_of_the_window() {
        let mut window = Window::new();
        assert!(window.take(100_000));
        assert!(!window.take(100_000));
        assert!(!window.take(100_000 - WINDOW_FRAMES));
        assert!(window.take(100_000 - WINDOW_FRAMES + 1));
        assert!(!window.take(0));
    }

    #[test]
    fn links_do_not_disturb_each_other_and_are_bounded() {
        let mut windows = Windows::new();
        for link in 0..LINKS_MAX as u64 {
            assert_eq!(windows.take(link, 7), Some(true));
        }
        assert_eq!(windows.take(u64::MAX, 7), None);
        for link in 0..LINKS_MAX as u64 {
            assert_eq!(windows.take(link, 7), Some(false));
            assert_eq!(windows.take(link, 6), Some(true));
        }
    }
}

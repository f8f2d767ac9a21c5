//! How many frames of replicas may be on the way to the node that asks for them: as many as come
//! without a queue that grows.
//!
//! All at once would fill the queue in front of a thin link, which drops what does not fit, and
//! the positions and answers of that moment with it. Arithmetic over times. Invariant: it bounds
//! queues, not correctness: what does not come is asked for again.

use std::fmt;

/// Frames at first, at least and at most.
const FIRST: f64 = 32.0;
const LEAST: f64 = 16.0;
const MOST: f64 = 1024.0;
/// A chunk that takes so much longer than the quickest one lay in a queue, ns.
const QUEUE_NS: u64 = 10_000_000;
/// By so much of what came it grows: until a queue or a loss shows, and after that.
const STARTING: f64 = 1.0;
const LATER: f64 = 0.25;
/// What is left of the window where frames queue, and where they get lost.
const QUEUED: f64 = 0.75;
const LOST: f64 = 0.5;

/// The window, and what it is adapted by.
#[derive(Clone)]
pub(super) struct PullWindow {
    frames: f64,
    growth: f64,
    /// The shortest time from an ask to its chunk, ns.
    quickest_ns: u64,
    /// When it last became shorter, ns: what was asked for before says nothing of that.
    shrunk_ns: u64,
}

/// Tests that go through all states print them. This does not belong to one: it holds
/// up no chunk of a range that has a few.
impl fmt::Debug for PullWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PullWindow")
    }
}

impl Default for PullWindow {
    fn default() -> Self {
        Self {
            frames: FIRST,
            growth: STARTING,
            quickest_ns: u64::MAX,
            shrunk_ns: 0,
        }
    }
}

impl PullWindow {
    /// Frames that may be asked for while so many are on the way.
    pub(super) fn room(&self, on_the_way: usize) -> usize {
        (self.frames as usize).saturating_sub(on_the_way)
    }

    /// A chunk of so many frames came that was asked for at `asked_ns`.
    pub(super) fn note_came(&mut self, now_ns: u64, asked_ns: u64, frames: usize) {
        let took_ns = now_ns.saturating_sub(asked_ns);
        self.quickest_ns = self.quickest_ns.min(took_ns);
        if took_ns - self.quickest_ns <= QUEUE_NS {
            self.frames = (self.frames + self.growth * frames as f64).min(MOST);
        } else {
            self.shrink(now_ns, asked_ns, QUEUED);
        }
    }

    /// A chunk is asked for again that was asked for at `asked_ns`.
    pub(super) fn note_lost(&mut self, now_ns: u64, asked_ns: u64) {
        self.shrink(now_ns, asked_ns, LOST);
    }

    fn shrink(&mut self, now_ns: u64, asked_ns: u64, share: f64) {
        if asked_ns >= self.shrunk_ns {
            self.frames = (self.frames * share).max(LEAST);
            self.growth = LATER;
            self.shrunk_ns = now_ns;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const MS: u64 = 1_000_000;

    /// A link that carries a frame in `frame_ns`, `way_ns` long, with a queue of `most_ns`. Returns
    /// the time that so many frames take, and how many were sent.
    fn pull(frames: usize, frame_ns: u64, way_ns: u64, most_ns: u64) -> (u64, usize) {
        let mut window = PullWindow::default();
        let (mut now_ns, mut free_ns, mut sent, mut came) = (0, 0, 0, 0);
        // When each of those on the way comes, and was asked for. Of a lost one that is known once
        // 16 that went later have come.
        let mut way: VecDeque<(u64, u64, bool)> = VecDeque::new();
        while came < frames {
            while window.room(way.len()) > 0 && came + way.len() < frames {
                free_ns = free_ns.max(now_ns) + frame_ns;
                let lost = free_ns - now_ns > most_ns;
                if lost {
                    free_ns -= frame_ns;
                }
                let due_ns = if lost {
                    free_ns + way_ns + 16 * frame_ns
                } else {
                    free_ns + way_ns
                };
                way.push_back((due_ns, now_ns, lost));
                sent += 1;
            }
            now_ns += MS / 10;
            way.retain(|(due_ns, asked_ns, lost)| {
                let due = *due_ns <= now_ns;
                match lost {
                    _ if !due => {}
                    true => window.note_lost(now_ns, *asked_ns),
                    false => {
                        window.note_came(now_ns, *asked_ns, 1);
                        came += 1;
                    }
                }
                !due
            });
        }
        (now_ns, sent)
    }

    /// It may lose a window when it first finds the queue.
    #[test]
    fn a_link_is_filled_and_its_queue_is_not() {
        for (frame_ns, way_ns) in [(750_000, MS), (75_000, MS), (75_000, 20 * MS), (7_500, MS)] {
            // A queue of 256 KiB, in frames of 1,472 bytes.
            let (took_ns, sent) = pull(5_000, frame_ns, way_ns, 178 * frame_ns);
            let least_ns = 5_000 * frame_ns + way_ns;
            assert!(
                took_ns < least_ns * 6 / 5 + 50 * way_ns,
                "{frame_ns} {way_ns}: {took_ns}"
            );
            assert!(sent < 5_000 + 1_024, "{frame_ns} {way_ns}: {sent} sent");
        }
    }
}

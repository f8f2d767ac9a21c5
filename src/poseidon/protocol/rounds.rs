//! Updates by clock: which workers have sent which iteration, in a window of bounded size.
//!
//! Invariant: what is held is at most one update per worker for each of `window` clocks.

use std::collections::VecDeque;

/// What became of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Added {
    /// It waits for the others of its clock.
    Kept,
    /// Its clock is over: it is dropped.
    Late,
}

/// Why an update breaks the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RoundError {
    /// The worker does not exist.
    #[error("an update of worker {0} in a cluster of {1}")]
    NoWorker(u16, usize),
    /// It sent a clock for the second time.
    #[error("worker {0} sent clock {1} twice")]
    Twice(u16, u64),
    /// It is further ahead than staleness allows.
    #[error("worker {worker} sent clock {clock} while clock {now} is open: it did not wait")]
    Early {
        /// Index of the worker.
        worker: u16,
        /// Clock of its update.
        clock: u64,
        /// The oldest clock that is not complete.
        now: u64,
    },
}

/// Updates `U` of a number of workers.
#[derive(Debug)]
pub(super) struct Rounds<U> {
    workers: usize,
    window: u64,
    now: u64,
    open: VecDeque<Vec<Option<U>>>,
}

impl<U> Rounds<U> {
    /// Rounds of `workers` from clock `now` on; `window` clocks may be open at a time.
    pub(super) fn new(workers: u16, window: u64, now: u64) -> Self {
        Self {
            workers: workers.into(),
            window,
            now,
            open: VecDeque::new(),
        }
    }

    /// The oldest clock that is not complete: so many steps have been made.
    pub(super) fn now(&self) -> u64 {
        self.now
    }

    /// Adds an update.
    ///
    /// # Errors
    /// See [`RoundError`]; nothing has changed then.
    pub(super) fn add(&mut self, worker: u16, clock: u64, update: U) -> Result<Added, RoundError> {
        if usize::from(worker) >= self.workers {
            return Err(RoundError::NoWorker(worker, self.workers));
        }
        let Some(ahead) = clock.checked_sub(self.now) else {
            return Ok(Added::Late);
        };
        if ahead >= self.window {
            let now = self.now;
            return Err(RoundError::Early { worker, clock, now });
        }
        while self.open.len() as u64 <= ahead {
            self.open
                .push_back((0..self.workers).map(|_| None).collect());
        }
        let place = &mut self.open[ahead as usize][usize::from(worker)];
        if place.is_some() {
            return Err(RoundError::Twice(worker, clock));
        }
        *place = Some(update);
        Ok(Added::Kept)
    }

    /// Forgets what a worker has sent for clocks that are still open.
    pub(super) fn forget(&mut self, worker: u16) {
        for round in &mut self.open {
            if let Some(place) = round.get_mut(usize::from(worker)) {
                *place = None;
            }
        }
    }

    /// True if `quorum` updates of the oldest clock have come.
    pub(super) fn is_complete(&self, quorum: usize) -> bool {
        let oldest = self.open.front();
        oldest.is_some_and(|round| round.iter().flatten().count() >= quorum)
    }

    /// Workers whose update of the oldest clock has not come, if any of its updates has.
    pub(super) fn late(&self) -> Vec<u16> {
        let oldest = self.open.front().into_iter().flatten();
        let late = (0..).zip(oldest).filter(|(_, update)| update.is_none());
        late.map(|(worker, _)| worker).collect()
    }

    /// The oldest clock and its updates, in the order of the workers, if `quorum` of them have
    /// come.
    pub(super) fn take(&mut self, quorum: usize) -> Option<(u64, Vec<(u16, U)>)> {
        if !self.is_complete(quorum) {
            return None;
        }
        let round = self.open.pop_front()?;
        let clock = self.now;
        self.now += 1;
        let updates = (0..).zip(round).filter_map(|(w, u)| u.map(|u| (w, u)));
        Some((clock, updates.collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_complete_when_all_have_sent() {
        let mut rounds = Rounds::new(2, 2, 5);
        assert_eq!(rounds.add(1, 5, "b5"), Ok(Added::Kept));
        assert_eq!((rounds.take(2), rounds.late()), (None, vec![0]));
        assert_eq!(rounds.add(1, 6, "b6"), Ok(Added::Kept));
        assert_eq!(rounds.add(0, 5, "a5"), Ok(Added::Kept));
        assert_eq!(rounds.take(2), Some((5, vec![(0, "a5"), (1, "b5")])));
        assert_eq!(rounds.take(2), None);
        assert_eq!((rounds.now(), rounds.add(0, 5, "x")), (6, Ok(Added::Late)));
        assert_eq!(rounds.take(1), Some((6, vec![(1, "b6")])));
        assert_eq!(rounds.add(0, 6, "a6"), Ok(Added::Late));
        // Another one takes the place of a dead worker, and sends its clock anew.
        assert_eq!(rounds.add(1, 7, "b7"), Ok(Added::Kept));
        rounds.forget(1);
        assert_eq!(rounds.add(1, 7, "c7"), Ok(Added::Kept));
        assert_eq!(rounds.take(1), Some((7, vec![(1, "c7")])));
    }

    #[test]
    fn a_worker_that_breaks_the_rules_is_named() {
        let mut rounds = Rounds::new(2, 2, 0);
        assert_eq!(rounds.add(2, 0, ()), Err(RoundError::NoWorker(2, 2)));
        rounds.add(1, 1, ()).unwrap();
        assert_eq!(rounds.add(1, 1, ()), Err(RoundError::Twice(1, 1)));
        let (worker, clock, now) = (0, 2, 0);
        let early = RoundError::Early { worker, clock, now };
        assert_eq!(rounds.add(0, 2, ()), Err(early));
        assert!(rounds.add(0, u64::MAX, ()).is_err());
    }
}

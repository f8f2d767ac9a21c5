//! The places of the workers at a server: who is awaited, connected, gone or dead.
//!
//! Holds the writing halves of the connections. Invariant: a worker that left or died never comes
//! back, but another one may take the place of a dead one.

use std::sync::Mutex;

use super::super::link::Link;
use super::super::sync::lock;

/// The connection of a worker.
enum Place {
    /// It has not connected yet.
    Awaited,
    /// It is connected.
    Here(Link),
    /// It has sent `Bye`. The connection stays.
    Left(Link),
    /// It died, and the others go on.
    Dead,
}

/// The workers that a message goes to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Recipients {
    /// All workers that are connected.
    All,
    /// The worker of this index.
    Worker(u16),
}

/// How a worker has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entered {
    /// It is the first of its index.
    First,
    /// The one before it died.
    AfterAnother,
}

/// See the module.
pub(super) struct Places(Mutex<Vec<Place>>);

impl Place {
    fn link(&self) -> Option<&Link> {
        match self {
            Self::Here(link) | Self::Left(link) => Some(link),
            Self::Awaited | Self::Dead => None,
        }
    }

    fn take(&mut self) -> Option<Link> {
        match std::mem::replace(self, Self::Dead) {
            Self::Here(link) | Self::Left(link) => Some(link),
            Self::Awaited | Self::Dead => None,
        }
    }
}

impl Places {
    /// Places of so many workers, all awaited.
    pub(super) fn new(workers: u16) -> Self {
        Self(Mutex::new((0..workers).map(|_| Place::Awaited).collect()))
    }

    /// Takes a worker that has connected; or gives its connection back if its place is not free.
    /// That of a dead one is free if `may_follow`.
    pub(super) fn enter(&self, worker: u16, link: Link, may_follow: bool) -> Result<Entered, Link> {
        let mut places = lock(&self.0);
        let Some(place) = places.get_mut(usize::from(worker)) else {
            return Err(link);
        };
        let entered = match place {
            Place::Awaited => Entered::First,
            Place::Dead if may_follow => Entered::AfterAnother,
            _ => return Err(link),
        };
        *place = Place::Here(link);
        Ok(entered)
    }

    /// Notes that a worker has sent `Bye`.
    pub(super) fn leave(&self, worker: u16) {
        if let Some(place) = lock(&self.0).get_mut(usize::from(worker)) {
            match std::mem::replace(place, Place::Dead) {
                Place::Here(link) => *place = Place::Left(link),
                other => *place = other,
            }
        }
    }

    /// Gives the connection of a worker that died, if the run `goes_on` with so many others.
    pub(super) fn lose(&self, worker: u16, goes_on: impl FnOnce(usize) -> bool) -> Option<Link> {
        let mut places = lock(&self.0);
        let at = usize::from(worker);
        let others = places.iter().enumerate().filter(|(other, _)| *other != at);
        let others = others.filter(|(_, place)| place.link().is_some());
        if !goes_on(others.count()) {
            return None;
        }
        places.get_mut(at)?.take()
    }

    /// True once all workers have sent `Bye`, but for those that died.
    pub(super) fn all_left(&self) -> bool {
        let places = lock(&self.0);
        let gone = |place: &Place| matches!(place, Place::Left(_) | Place::Dead);
        places.iter().all(gone)
    }

    /// True if that worker has sent `Bye`.
    pub(super) fn has_left(&self, worker: u16) -> bool {
        let places = lock(&self.0);
        let place = places.get(usize::from(worker));
        place.is_some_and(|place| matches!(place, Place::Left(_)))
    }

    /// Workers that have not connected.
    pub(super) fn absent(&self) -> Vec<u16> {
        let places = lock(&self.0);
        let absent = (0..).zip(&*places);
        let absent = absent.filter(|(_, place)| matches!(place, Place::Awaited));
        absent.map(|(worker, _)| worker).collect()
    }

    /// Number of connections.
    pub(super) fn connected(&self) -> usize {
        lock(&self.0).iter().filter_map(Place::link).count()
    }

    /// Calls `send` with the connection of each recipient.
    pub(super) fn each(&self, to: Recipients, send: impl Fn(&Link)) {
        let places = lock(&self.0);
        let to = match to {
            Recipients::All => &places[..],
            Recipients::Worker(worker) => {
                let at = usize::from(worker);
                places.get(at..=at).unwrap_or_default()
            }
        };
        to.iter().filter_map(Place::link).for_each(send);
    }

    /// Removes all connections, for the caller to close.
    pub(super) fn take(&self) -> Vec<Link> {
        lock(&self.0).iter_mut().filter_map(Place::take).collect()
    }
}

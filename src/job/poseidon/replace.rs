//! What members are started again from; and workers that are started again alone, while the others
//! go on (`--stragglers drop`).
//!
//! Invariant: a worker is started alone only where the others can go on without it.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::super::children::{Component, Gone};
use super::super::fleet::{Dead, Fleet};
use super::super::restarts::Restarts;
use super::Watched;
use crate::poseidon::{Member, MemberRole, common_clocks};
use crate::settings::{ClusterSettings, StragglerChoice};

/// Time after which a worker that runs without a coordinator will not join any more.
const STRANDED: Duration = Duration::from_secs(10);

/// Workers that were started again alone.
#[derive(Debug, Default)]
pub(super) struct Replaced {
    restarts: Restarts,
    /// Since when workers run without a coordinator.
    alone_since: Option<Instant>,
}

impl Replaced {
    /// True if a worker was started again, and found that the coordinator had come to its end.
    pub(super) fn is_stranded(&mut self, fleet: &Fleet) -> bool {
        let done = fleet.0.first().is_some_and(Component::done);
        if !done || fleet.done() || self.restarts.total() == 0 {
            self.alone_since = None;
            return false;
        }
        let since = *self.alone_since.get_or_insert_with(Instant::now);
        since.elapsed() >= STRANDED
    }
}

impl Watched<'_> {
    /// The newest checkpoint that all members have, by the names of their files.
    pub(super) fn newest_common(&self) -> Option<u64> {
        if !self.plan.checkpoints() {
            return None;
        }
        let ClusterSettings {
            workers, servers, ..
        } = self.plan.own.cluster;
        let of = |role, count| (0..count).map(move |index| Member { role, index });
        let members = of(MemberRole::Worker, workers).chain(of(MemberRole::Server, servers));
        common_clocks(&self.plan.own.checkpoint_folder, members)
            .last()
            .copied()
    }

    /// Starts others in the place of `dead` workers, if the rest goes on without them. False if
    /// all must be started again.
    pub(super) fn replace(&mut self, fleet: &mut Fleet, dead: &[Dead]) -> Result<bool> {
        let cluster = &self.plan.own.cluster;
        // Under one bit per weight no server has the weights that a new worker needs.
        if cluster.stragglers != StragglerChoice::Drop || cluster.scheme.sends_bits() {
            return Ok(false);
        }
        let first = 1 + usize::from(cluster.servers);
        let (rest, workers) = fleet.0.split_at(first);
        let left = workers.iter().filter(|w| w.runs() || w.done()).count();
        let quorum = (cluster.quorum * f64::from(cluster.workers)).ceil() as usize;
        if left < quorum.max(1) || !rest.iter().all(Component::runs) {
            return Ok(false);
        }
        let of = |dead: &Dead| workers.iter().position(|worker| worker.name == dead.name);
        let places: Option<Vec<usize>> = dead.iter().map(of).collect();
        let may_come = |dead: &Dead| {
            let gone = Gone::of(&dead.name, dead.status, String::new());
            dead.blames_another() || gone.is_none()
        };
        let Some(places) = places.filter(|_| dead.iter().all(may_come)) else {
            return Ok(false);
        };
        for (place, dead) in places.into_iter().zip(dead) {
            let Some(pause) = self.replaced.restarts.another(Instant::now()) else {
                return Ok(false);
            };
            std::thread::sleep(pause);
            let (name, status) = (&dead.name, dead.status);
            log::warn!("{name} ended with {status}; the others go on, and another takes its place");
            let address = self.address.clone();
            fleet.0[first + place] = self.worker(place as u16, &address, true)?;
            self.restarts += 1;
        }
        Ok(true)
    }
}

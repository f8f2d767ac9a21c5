//! Looks for what a server waits for, so that its log can say it, or the run end where it cannot
//! come.

use std::time::{Duration, Instant};

use super::super::error::PoseidonError;
use super::Server;
use crate::poseidon::{Member, MemberRole, Stragglers};

/// Time after which a step that still waits is logged, with the workers it waits for.
const LATE: Duration = Duration::from_secs(5);

/// Logs workers that have not connected, and a step that has waited for the same ones for long.
pub(super) struct StepWatch {
    seen: Option<(u64, Vec<u16>)>,
    since: Instant,
}

impl StepWatch {
    pub(super) fn new() -> Self {
        Self {
            seen: None,
            since: Instant::now(),
        }
    }

    pub(super) fn look(&mut self, server: &Server<'_>) {
        if self.since.elapsed() < LATE / 2 {
            return;
        }
        self.since = Instant::now();
        let absent = server.places.absent();
        if !absent.is_empty() {
            log::info!("waiting for {} to connect", named(&absent));
            return;
        }
        let late = server.store.late();
        if let (Some((step, workers)), true) = (&late, late == self.seen) {
            let left = workers
                .iter()
                .find(|worker| server.places.has_left(**worker));
            if let (Some(index), Stragglers::Wait) = (left, server.cluster.plan.stragglers) {
                let (role, index) = (MemberRole::Worker, *index);
                let why = PoseidonError::LeftEarly(Member { role, index });
                return server.shutdown.fail(why);
            }
            log::info!("step {step} is waiting for {}", named(workers));
        }
        self.seen = late;
    }
}

/// Workers, for messages.
fn named(workers: &[u16]) -> String {
    let names: Vec<_> = workers.iter().map(|w| format!("worker {w}")).collect();
    names.join(", ")
}

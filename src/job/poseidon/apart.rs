//! The members of one node of a cluster whose others run elsewhere.
//!
//! Invariants: members start only when nothing of the cluster runs on any node any more, and all go
//! on from a checkpoint that all have, or all from the beginning; a node that was killed or told to
//! end is waited for, by name.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::super::boards::Boards;
use super::super::children::{Gone, LOOK_EVERY, reason, stop_all};
use super::super::fleet::Fleet;
use super::super::meeting::Round;
use super::super::plan::Here;
use super::super::progress::Progress;
use super::Watched;
use crate::node::Stop;
use crate::poseidon::{Member, MemberRole, common_clocks};
use crate::settings::StragglerChoice;

/// Rounds without a step in between before the job gives up.
const MOST_ROUNDS_WITHOUT_PROGRESS: u32 = 5;

/// Time in which all members of a cluster have ended after the first.
const IDLE: Duration = Duration::from_secs(3);

impl Watched<'_> {
    /// Runs the members of this node, in as many rounds as it takes, or until a signal.
    pub(super) fn run_apart(
        &mut self,
        here: &Here,
        fleet: &mut Fleet,
        (progress, boards): (&mut Progress, &mut Boards),
        stop: &Stop,
    ) -> Result<()> {
        let mut rounds_without_progress = 0;
        loop {
            let before = self.buffers.iterations();
            here.meeting.ready(&self.clocks_here());
            let Some(round) = self.next_round(here, fleet, progress, stop)? else {
                return Ok(());
            };
            self.address.clone_from(&round.coordinator);
            self.start_members(fleet, round.resume)?;
            if self.watch_round(here, fleet, (&mut *progress, &mut *boards), stop)? {
                return Ok(());
            }
            self.restarts += 1;
            rounds_without_progress = if self.buffers.iterations() > before {
                0
            } else {
                rounds_without_progress + 1
            };
            if rounds_without_progress > MOST_ROUNDS_WITHOUT_PROGRESS {
                bail!(
                    "the cluster was started {rounds_without_progress} times without a step in between; see the logs of all nodes"
                );
            }
        }
    }

    /// Waits until all nodes are ready, and says for whom. `None`: a signal came.
    fn next_round(
        &mut self,
        here: &Here,
        fleet: &mut Fleet,
        progress: &mut Progress,
        stop: &Stop,
    ) -> Result<Option<Round>> {
        fleet.0.clear();
        while !stop.load(Relaxed) {
            if here.node == 0 {
                match here.meeting.all_ready() {
                    Ok(newest) => return self.begin_round(here, fleet, newest, stop),
                    Err(nodes) => {
                        let nodes: Vec<String> = nodes.iter().map(u16::to_string).collect();
                        progress.waiting(&format!("node {} to be ready", nodes.join(", ")));
                    }
                }
            } else if let Some(round) = here.meeting.take_round() {
                return Ok(Some(round));
            } else {
                progress.waiting("all nodes to be ready, as node 0 says");
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(None)
    }

    /// On node 0: starts the coordinator, and tells all.
    fn begin_round(
        &mut self,
        here: &Here,
        fleet: &mut Fleet,
        newest: Option<u64>,
        stop: &Stop,
    ) -> Result<Option<Round>> {
        let resume = newest.is_some();
        if let Some(steps) = newest {
            log::info!("all nodes are ready: going on from the checkpoint after {steps} steps");
        }
        self.start_coordinator(fleet, resume, stop)?;
        if stop.load(Relaxed) {
            return Ok(None);
        }
        let round = Round {
            coordinator: self.address.clone(),
            resume,
        };
        here.meeting.begin_round(&round);
        Ok(Some(round))
    }

    /// Watches the members until all have ended well, or a signal comes: true. False: one has not,
    /// here or elsewhere, and none runs here any more.
    fn watch_round(
        &mut self,
        here: &Here,
        fleet: &mut Fleet,
        (progress, boards): (&mut Progress, &mut Boards),
        stop: &Stop,
    ) -> Result<bool> {
        let mut idle_since = None;
        while !stop.load(Relaxed) && !fleet.done() {
            self.count_time();
            let idle = here.meeting.idle_node().filter(|_| here.node == 0);
            if let Some(node) = idle.filter(|node| !self.lets_back_in(here, *node)) {
                // What runs here will end too, or waits for members that do not come.
                let since = *idle_since.get_or_insert_with(Instant::now);
                if since.elapsed() >= IDLE {
                    stop_all(fleet.all());
                    log::warn!("nothing runs on node {node}; all members start again");
                    return Ok(stop.load(Relaxed));
                }
            }
            let mut dead = fleet.dead()?;
            if !dead.is_empty() {
                fleet.wait_for_the_one_to_blame(&mut dead)?;
                stop_all(fleet.all());
                let first = &dead[0];
                let gone = Gone::of(&first.name, first.status, first.words.clone());
                // A refusal (wrong argument, missing file) would be repeated.
                if let Some(gone) = gone.filter(|_| !first.blames_another()) {
                    return Err(gone.into());
                }
                log::warn!(
                    "{} ended with {}; all members start again{}",
                    first.name,
                    first.status,
                    reason(&first.words)
                );
                return Ok(stop.load(Relaxed));
            }
            progress.show(&self.buffers.nodes);
            boards.look(&self.buffers.nodes);
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(true)
    }

    /// Where late updates are dropped, a node with only a worker may begin again while the others
    /// go on. Tells it so: true.
    fn lets_back_in(&self, here: &Here, node: u16) -> bool {
        let cluster = &self.plan.own.cluster;
        // Under one bit per weight no server has the weights that a new worker needs.
        let one_bit = cluster.scheme.sends_bits();
        let alone = cluster.stragglers == StragglerChoice::Drop && !one_bit;
        if !alone || node < cluster.servers {
            return false;
        }
        log::warn!("nothing runs on node {node}; the others go on, and it begins again");
        let round = Round {
            coordinator: self.address.clone(),
            resume: true,
        };
        here.meeting.tell_round(node, &round);
        true
    }

    /// Clocks of the checkpoints that all members of this node have.
    fn clocks_here(&self) -> Vec<u64> {
        if !self.plan.checkpoints() {
            return Vec::new();
        }
        let own = &self.plan.own;
        let of = |role, range: std::ops::Range<u16>| range.map(move |index| Member { role, index });
        let members = of(MemberRole::Worker, own.workers_here())
            .chain(of(MemberRole::Server, own.servers_here()));
        let common = common_clocks(&own.checkpoint_folder, members);
        common.into_iter().collect()
    }
}

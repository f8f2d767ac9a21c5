//! What went wrong while a job ran, though it went on: collected from the counters of the
//! components.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::settle::Settled;
use crate::node::{SMALLER_MTU, SolverWatch, What};
use crate::watch::{SolverMeter, StreamMeter};
use crate::weights::{Role, SharedWeights, SlotInfo};

/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// One thing that went wrong.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Warning {
    /// What: `silent_node`, `long_frames_lost`, `old_range`, `solvers_stand_still`,
    /// `solver_stopped`, `solver_stands_still`, `no_quorum`, `replicas_differ`,
    /// `streamer_stands_still`, `loss_rose`, `not_settled`.
    pub what: &'static str,
    /// Whose: the node that was silent, that masters the range, whose solver it is, whose replica
    /// differs.
    pub node: u16,
    /// The same in words.
    pub text: String,
    /// When it was first seen, s after the job began.
    pub first_s: f64,
    /// How long it was seen, s.
    pub seconds: f64,
}

/// Collects warnings of a job. Each is logged when it is first seen.
pub(super) struct Warnings {
    start: Instant,
    looked: Option<Instant>,
    solvers: Vec<SolverWatch>,
    /// How often each solver had halved its steps, by node and number.
    halvings: BTreeMap<(u16, u32), u64>,
    seen: BTreeMap<(&'static str, u16, String), (f64, f64)>,
}

impl Default for Warnings {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            looked: None,
            solvers: Vec::new(),
            halvings: BTreeMap::new(),
            seen: BTreeMap::new(),
        }
    }
}

impl Warnings {
    fn add(&mut self, what: &'static str, node: u16, text: String, already_s: u64) {
        let now = self.start.elapsed().as_secs_f64();
        let since = (now - already_s as f64).max(0.0);
        let first = !self.seen.contains_key(&(what, node, text.clone()));
        if first {
            log::warn!("{text}");
        }
        let seen = self.seen.entry((what, node, text)).or_insert((since, 0.0));
        seen.1 += if first {
            now - since
        } else {
            LOOK_EVERY.as_secs_f64()
        };
    }

    /// Looks at the counters of nodes, from number `first` on, if it is time for it.
    pub(super) fn look(&mut self, first: u16, nodes: &[SharedWeights]) {
        if self
            .looked
            .is_some_and(|looked| looked.elapsed() < LOOK_EVERY)
        {
            return;
        }
        self.looked = Some(Instant::now());
        self.solvers.resize_with(nodes.len(), SolverWatch::default);
        let now_ns = self.start.elapsed().as_nanos() as u64 + 1;
        for (node, shared) in (first..).zip(nodes) {
            if let Some((heard, quorum)) = shared.globals().lacks_quorum() {
                let text =
                    format!("solvers wait: {heard} of {quorum} nodes are heard, says node {node}");
                self.add("no_quorum", node, text, 0);
            }
            for trouble in self.solvers[usize::from(node - first)].look(shared, now_ns) {
                let text = format!("node {node}: {}", trouble.what.name_of(trouble.who));
                self.add(trouble.what.name(), node, text, trouble.seconds);
            }
            let slots = shared.slots();
            for slot in slots.iter().filter(|slot| slot.role == Role::Solver) {
                self.look_at_halvings(node, slot);
            }
            let Some(slot) = slots
                .iter()
                .find(|slot| slot.role == Role::Stream && slot.alive)
            else {
                continue;
            };
            let masks = [
                (StreamMeter::SilentNodes, What::Silent),
                (StreamMeter::LongFramesLost, What::LongFramesLost),
                (StreamMeter::OldRanges, What::OldRange),
                (StreamMeter::StillNodes, What::StillNode),
            ];
            for (meter, what) in masks {
                let mask = meter.of(&slot.meters);
                for who in (0..64u16).filter(|who| mask & 1 << who != 0) {
                    let mut text = format!("{}, says node {node}", what.name_of(who));
                    if what == What::LongFramesLost {
                        text += &format!(": {SMALLER_MTU}");
                    }
                    self.add(what.name(), who, text, 0);
                }
            }
        }
    }

    /// Looks once more at what may have happened since the last look: a solver that diverges ends
    /// soon after its loss rises.
    pub(super) fn look_last(&mut self, first: u16, nodes: &[SharedWeights]) {
        for (node, shared) in (first..).zip(nodes) {
            for slot in &shared.slots() {
                if slot.role == Role::Solver {
                    self.look_at_halvings(node, slot);
                }
            }
        }
    }

    /// Warns of a solver whose loss has risen since the last look.
    fn look_at_halvings(&mut self, node: u16, slot: &SlotInfo) {
        let now = SolverMeter::Halvings.of(&slot.meters);
        let before = self.halvings.insert((node, slot.index), now).unwrap_or(0);
        if now > before {
            let solver = slot.index;
            let text =
                format!("node {node}: the loss of solver {solver} rose, its steps were halved");
            self.add("loss_rose", node, text, 0);
        }
    }

    /// Notes what was lacking when the end was not waited for any longer.
    pub(super) fn unsettled(&mut self, settled: &Settled) {
        for lack in &settled.lacking {
            self.add("replicas_differ", lack.node, lack.to_string(), 0);
        }
        for (node, silent) in &settled.stuck {
            let text = format!("the streamer of node {node} stands still");
            self.add("streamer_stands_still", *node, text, silent.as_secs());
        }
    }

    /// Notes what a node that ran here did not see of the others at its end.
    pub(super) fn unfinished(&mut self, node: u16, text: String, seconds: u64) {
        self.add("not_settled", node, text, seconds);
    }

    /// All of them, by the time they were first seen.
    pub(super) fn all(&self) -> Vec<Warning> {
        let mut all: Vec<Warning> = self
            .seen
            .iter()
            .map(|((what, node, text), (first_s, seconds))| Warning {
                what,
                node: *node,
                text: text.clone(),
                first_s: *first_s,
                seconds: *seconds,
            })
            .collect();
        all.sort_by(|a, b| a.first_s.total_cmp(&b.first_s));
        all
    }
}

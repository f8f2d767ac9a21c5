//! What the loop of the streamer tells: counters in its slot, troubles and rates in its log.

use std::sync::atomic::Ordering::Relaxed;

use super::super::clock::cpu_ns;
use super::super::health::{LOOK_EVERY_NS, Peers, SILENT_NS, SolverWatch, Trouble, What};
use super::say::Totals;
use super::{Loop, tell_own_ranges};
use crate::stream::Report;
use crate::watch::{DROPS_AT, SolverMeter, StreamMeter, finished_of};
use crate::weights::Role;

/// A node that hears no other for so long says what may be wrong, ns.
const ALONE_NS: u64 = 5_000_000_000;

/// What was seen of others and of the solvers of this buffer.
#[derive(Debug, Default)]
pub(super) struct Health {
    peers: Peers,
    solvers: SolverWatch,
    looked_ns: u64,
    /// Nodes that began with other weights, as a bit mask of the first 64.
    began_otherwise: u64,
}

/// The nodes with one of these kinds of trouble, as a bit mask of the first 64.
fn mask(troubles: &[Trouble], kinds: &[What]) -> u64 {
    let them = troubles
        .iter()
        .filter(|one| kinds.contains(&one.what) && one.who < 64);
    them.fold(0, |mask, one| mask | 1 << one.who)
}

impl Loop<'_> {
    pub(super) fn publish(&mut self, now: u64) {
        self.published_ns = now;
        // Before solvers are told that they may start: they look at what is told here.
        self.publish_reports(now);
        self.publish_globals();
        self.publish_heard(now);
        self.publish_settled(now);
        self.publish_counters();
        if now.saturating_sub(self.health.looked_ns) >= LOOK_EVERY_NS {
            self.health.looked_ns = now;
            self.look(now);
            self.say_refusals(now);
            let totals = self.totals();
            self.say.line(&totals, now);
        }
    }

    fn publish_reports(&mut self, now: u64) {
        for report in self.stream.streamer_mut().take_reports() {
            if let Report::OtherFirstWeights {
                node: node @ ..64, ..
            } = report
            {
                self.health.began_otherwise |= 1 << node;
            }
            self.say.report(&report, now);
        }
        StreamMeter::OtherFirstWeights.set(self.meters, self.health.began_otherwise);
    }

    /// The last publication: all counters, in the log too.
    pub(super) fn finish(&mut self) {
        tell_own_ranges(self.shared, self.stream.streamer(), self.node);
        self.publish_globals();
        self.publish_counters();
        let (streamer, now) = (self.stream.streamer(), self.stream.now_ns());
        self.peers.publish(self.shared, streamer, now);
        let text: Vec<String> = StreamMeter::ALL
            .iter()
            .map(|meter| (meter.name(), self.meters[*meter as usize].load(Relaxed)))
            .chain(
                crate::wire::DropReason::ALL
                    .iter()
                    .map(|reason| (reason.name(), *reason as usize))
                    .map(|(name, at)| (name, self.meters[DROPS_AT + at].load(Relaxed))),
            )
            .filter(|(_, count)| *count > 0)
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        log::info!("counters: {}", text.join(", "));
    }

    fn publish_globals(&mut self) {
        let globals = self.shared.globals();
        globals
            .remote_iterations
            .fetch_max(self.stream.streamer().remote_iterations(), Relaxed);
        let streamer = self.stream.streamer_mut();
        streamer.set_local_trained_ns(globals.local_trained_ns.load(Relaxed));
        globals
            .remote_trained_ns
            .fetch_max(streamer.trained_ns(), Relaxed);
        globals
            .portion_bits
            .store(self.stream.streamer().portion().to_bits(), Relaxed);
        globals
            .most_stride_bits
            .store(self.stream.streamer().most_stride().to_bits(), Relaxed);
        self.told_ready = self.stream.ready();
        globals.ready.store(u32::from(self.told_ready), Relaxed);
    }

    /// Tells solvers whether so many nodes are heard as they are to wait for.
    fn publish_heard(&self, now: u64) {
        let globals = self.shared.globals();
        let heard = 1 + self.hears(now, true).count() as u64;
        globals.heard_nodes.store(heard, Relaxed);
        globals.quorum.store(self.quorum.into(), Relaxed);
    }

    /// Tells the stream whether the solvers of this buffer have finished, and them how far it is.
    fn publish_settled(&mut self, now: u64) {
        let solvers = self.shared.slots().into_iter();
        let solvers = solvers.filter(|slot| slot.role == Role::Solver && slot.alive);
        let ends: Vec<u64> = solvers
            .map(|slot| SolverMeter::Finished.of(&slot.meters))
            .collect();
        // Those who have ended since add nothing either.
        if !ends.is_empty() {
            self.finished = finished_of(ends.into_iter());
        }
        let finished = self.finished;
        let streamer = self.stream.streamer_mut();
        streamer.set_finished(finished);
        let others = streamer.unsettled(now).filter(|node| *node < 64);
        let unsettled = others.fold(0, |mask, node| mask | 1 << node);
        let undelivered = if finished != 0 {
            streamer.undelivered()
        } else {
            0
        };
        StreamMeter::UndeliveredChunks.set(self.meters, undelivered.into());
        StreamMeter::UnsettledNodes.set(self.meters, unsettled);
        // A reader that sees what this is about sees no older state: it reads that first.
        StreamMeter::Settled.set(self.meters, streamer.settled() as u64);
        StreamMeter::FinishedWith.set(self.meters, finished);
    }

    /// The other nodes of the job that are heard, or those that are not.
    fn hears(&self, now: u64, heard: bool) -> impl Iterator<Item = u16> {
        let streamer = self.stream.streamer();
        let hears = move |node: &u16| {
            let at_ns = streamer.peer(*node).heard_ns;
            at_ns != 0 && now.saturating_sub(at_ns) < SILENT_NS
        };
        streamer.others().filter(move |node| hears(node) == heard)
    }

    fn publish_counters(&mut self) {
        let counters = *self.stream.streamer().counters();
        let (sent, received) = self.stream.link_stats();
        let ages = self.stream.streamer().ages_us();
        let totals = [
            (StreamMeter::Cycles, counters.cycles),
            (StreamMeter::PositionsSent, counters.positions_sent),
            (StreamMeter::PositionsTaken, counters.positions_taken),
            (StreamMeter::PositionsMissed, counters.positions_missed),
            (StreamMeter::DeltasSent, counters.deltas_sent),
            (StreamMeter::DeltasRepeated, counters.deltas_repeated),
            (StreamMeter::DeltasKept, counters.deltas_kept),
            (StreamMeter::DeltasCoarse, counters.deltas_coarse),
            (StreamMeter::DeltasApplied, counters.deltas_applied),
            (StreamMeter::HealedWeights, counters.healed_weights),
            (StreamMeter::HellosSent, counters.hellos_sent),
            (StreamMeter::RestoresSent, counters.restores_sent),
            (StreamMeter::RestoresTaken, counters.restores_taken),
            (StreamMeter::Resyncs, counters.resyncs),
            (StreamMeter::Takeovers, counters.takeovers),
            (StreamMeter::ForksJoined, counters.forks_joined),
            (StreamMeter::AbandonedChunks, counters.abandoned_chunks),
            (StreamMeter::DoubledDeltas, counters.doubled_deltas),
            (StreamMeter::FramesSent, sent.frames),
            (StreamMeter::BytesSent, sent.bytes),
            (StreamMeter::FramesReceived, received.frames),
            (StreamMeter::BytesReceived, received.bytes),
            (StreamMeter::KernelDrops, received.kernel_drops),
            (StreamMeter::NoSlot, sent.no_slot),
            (StreamMeter::TransmitErrors, sent.errors + sent.dropped),
            (StreamMeter::FaultDropped, received.fault.dropped),
            (StreamMeter::FaultDuplicated, received.fault.duplicated),
            (StreamMeter::FaultReordered, received.fault.reordered),
            (StreamMeter::CpuNs, cpu_ns()),
            (StreamMeter::FramesTaken, self.stream.taken()),
            (StreamMeter::FaultCorrupted, received.fault.corrupted),
            (StreamMeter::SealBadTag, received.seal.bad_tag),
            (StreamMeter::SealReplayed, received.seal.replayed),
            (StreamMeter::SealTruncated, received.seal.truncated),
            (StreamMeter::SealTooManyLinks, received.seal.too_many_links),
            (StreamMeter::WaitedNs, self.waited_ns),
            (StreamMeter::RunNs, self.stream.now_ns()),
            (StreamMeter::RefusedSums, counters.refused_sums),
            (StreamMeter::RefusedClaims, counters.refused_claims),
            (StreamMeter::ChecksSent, counters.checks_sent),
            (StreamMeter::ChunksChecked, counters.chunks_checked),
            (StreamMeter::DifferingChunks, counters.differing_chunks),
            (StreamMeter::HeldBack, self.stream.held_back() + sent.paced),
        ];
        for (meter, total) in totals {
            meter.set(self.meters, self.base[meter as usize] + total);
        }
        for (i, dropped) in counters.dropped.iter().enumerate() {
            self.meters[DROPS_AT + i].store(self.base[DROPS_AT + i] + dropped, Relaxed);
        }
        StreamMeter::AgeP50.set(self.meters, ages.value_at_quantile(0.5));
        StreamMeter::AgeP99.set(self.meters, ages.value_at_quantile(0.99));
        StreamMeter::AgeMax.set(self.meters, ages.max());
        self.publish_state();
    }

    /// Gauges: values of the moment, which do not add up.
    fn publish_state(&self) {
        let steps = self.stream.streamer().age_steps();
        for (meter, value) in [
            (StreamMeter::AgeStepsP50, steps.local.value_at_quantile(0.5)),
            (
                StreamMeter::AgeStepsP99,
                steps.local.value_at_quantile(0.99),
            ),
            (StreamMeter::AgeStepsMax, steps.local.max()),
            (
                StreamMeter::ClusterStepsP50,
                steps.cluster.value_at_quantile(0.5),
            ),
            (
                StreamMeter::ClusterStepsP99,
                steps.cluster.value_at_quantile(0.99),
            ),
            (
                StreamMeter::CpuSharePermille,
                (self.budget.share() * 1e3) as u64,
            ),
            (
                StreamMeter::SolversWaitPermille,
                (self.budget.solvers_wait() * 1e3) as u64,
            ),
            (
                StreamMeter::QueuedUs,
                self.stream.streamer().queued_ns() / 1_000,
            ),
            (
                StreamMeter::WindowFrames,
                self.stream.streamer().window_frames(),
            ),
            (StreamMeter::CopyNodes, self.stream.copies() as u64),
            (
                StreamMeter::PortionMillionths,
                (self.stream.streamer().portion() * 1e6) as u64,
            ),
        ] {
            meter.set(self.meters, value);
        }
    }

    /// Judges the other nodes, and logs what is wrong.
    fn look(&mut self, now: u64) {
        self.peers.publish(self.shared, self.stream.streamer(), now);
        let globals = self.shared.globals();
        let local = globals.local_iterations.load(Relaxed);
        let target = globals.target_iterations.load(Relaxed);
        let mut troubles = self
            .health
            .peers
            .look(self.stream.streamer(), local, target, now);
        troubles.extend(self.health.solvers.look(self.shared, now));
        let set =
            |meter: StreamMeter, kinds: &[What]| meter.set(self.meters, mask(&troubles, kinds));
        let streamer = self.stream.streamer();
        let unseen = (0..streamer.places()).filter(|range| !streamer.has_joined(*range));
        let masters = unseen
            .map(|range| streamer.master(range))
            .filter(|node| *node < 64);
        let unseen = masters.fold(0, |mask, node| mask | 1 << node);
        StreamMeter::UnseenRanges.set(self.meters, unseen);
        set(StreamMeter::SilentNodes, &[What::Silent]);
        set(StreamMeter::OldRanges, &[What::NoPositions, What::OldRange]);
        set(StreamMeter::LongFramesLost, &[What::LongFramesLost]);
        set(StreamMeter::StillNodes, &[What::StillNode]);
        set(
            StreamMeter::StillSolvers,
            &[What::SolverStopped, What::SolverStill],
        );
        let streamer = self.stream.streamer();
        let ages = (0..streamer.places()).map(|range| streamer.range_age_ns(range, now));
        StreamMeter::OldestMs.set(self.meters, ages.max().unwrap_or(0) / 1_000_000);
        let mut peers = (0..streamer.places()).map(|node| streamer.peer(node));
        if let Some(join) = &self.join
            && now > ALONE_NS
            && peers.all(|peer| peer.heard_ns == 0)
        {
            self.say.alone(join, now);
        }
        let lacking = globals.lacks_quorum();
        let lacking = lacking.map(|(heard, quorum)| {
            let silent: Vec<String> = self.hears(now, false).map(|node| node.to_string()).collect();
            format!(
                "solvers wait: {heard} of the {quorum} nodes of --quorum are heard, this one included; silent: {}",
                if silent.is_empty() { "none that is known".to_owned() } else { silent.join(", ") }
            )
        });
        self.say.quorum(lacking, now);
        let silent = troubles.iter().any(|one| one.what == What::Silent);
        self.say.troubles(troubles, now);
        if !self.said_ready && self.stream.streamer().ready() {
            self.said_ready = true;
            log::info!("every range has been seen: solvers may start");
        }
        if !self.said_heard && !silent && now > SILENT_NS {
            self.said_heard = true;
            log::info!("all nodes are heard");
        }
    }

    /// Says what the seal refused, and what should have been sealed or should not.
    fn say_refusals(&mut self, now: u64) {
        let (_, received) = self.stream.link_stats();
        let refused = |stats: &dogwild_net::ReceiveStats| stats.seal.bad_tag + stats.seal.truncated;
        let bad = refused(&received) - refused(&self.said);
        if let (Some(from), true) = (received.seal_refused_from, bad > 0) {
            self.say.bad_tags(from, bad, now);
        }
        let links = received.seal.too_many_links - self.said.seal.too_many_links;
        if links > 0 {
            self.say.too_many_links(links, now);
        }
        self.said = received;
        if let (frames @ 1.., Some(from)) = self.stream.take_sealed() {
            self.say.sealed(from, frames, now);
        }
    }

    fn totals(&mut self) -> Totals {
        let (sent, received) = self.stream.link_stats();
        let ages = self.stream.streamer().ages_us();
        Totals {
            counters: *self.stream.streamer().counters(),
            bytes_sent: sent.bytes,
            bytes_received: received.bytes,
            ages_us: (ages.value_at_quantile(0.5), ages.max()),
        }
    }
}

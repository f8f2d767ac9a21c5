//! Mutants of what brings work back that masters of one range did apart. Each line that is changed
//! is one rule of *Forks* in `docs/reference/stream-protocol.md`.

use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "who asked for a chunk has it",
        file: "begun.rs",
        old: "position == (state.epoch.load(Relaxed), state.version.load(Relaxed))",
        new: "position == (state.epoch.load(Relaxed), state.version.load(Relaxed)) \
              || self.given(chunk) == Some(owner(position.0))",
    },
    Mutant {
        name: "nothing of another reign is nothing at all",
        file: "header.rs",
        old: "(self.content(), self.whose().into())",
        new: "(self.content(), header.chunk_version)",
    },
    Mutant {
        name: "who is forked takes a range again at once",
        file: "takeover.rs",
        old: "FORKED_TURNS.max(places)",
        new: "places",
    },
    Mutant {
        name: "bases are forgotten while others are silent",
        file: "kept.rs",
        old: "self.back_ns.max(silent_ns.min(self.back_ns + SILENT_NS))",
        new: "self.back_ns.max(silent_ns.min(0))",
    },
    Mutant {
        name: "own work that both masters took counts twice",
        file: "rejoin/asked.rs",
        old: "base.add(&sent.weights);",
        new: "let _ = &sent.weights;",
    },
    Mutant {
        name: "work of a slave that both masters took counts twice",
        file: "rejoin/asked.rs",
        old: "self.others.extend(both.map(|node| (node, former)));",
        new: "self.others.extend(both.take(0).map(|node| (node, former)));",
    },
    Mutant {
        name: "a base that a third node needs is not kept",
        file: "restore.rs",
        old: "!going.is_from(at, before) || going.has_rivals(before)",
        new: "!going.is_from(at, before)",
    },
    Mutant {
        name: "a master that a third node hears counts as silent",
        file: "epochs.rs",
        old: "another && self.is_heard(now_ns, owner(epoch))",
        new: "another && self.is_alive(now_ns, owner(epoch))",
    },
    Mutant {
        name: "who leaves goes as soon as no node is silent",
        file: "leave.rs",
        old: "self.forks.was_silent(now_ns, BACK * self.config.silence_ns)",
        new: "self.forks.was_silent(now_ns, BACK)",
    },
    Mutant {
        name: "who has just started knows only whom it heard",
        file: "rejoin.rs",
        old: "!started || common.known(now_ns).all(lives)",
        new: "common.members().all(lives)",
    },
    Mutant {
        name: "a base of an earlier reign is given",
        file: "forks.rs",
        old: "if b.is_later(a) { b } else { a }",
        new: "if b.is_later(a) { a } else { b }",
    },
    Mutant {
        name: "a base of a later reign is given",
        file: "forks.rs",
        old: "last == 0 || !is_later(base.epoch, last)",
        new: "last == 0 || !is_later(base.epoch, base.epoch)",
    },
    Mutant {
        name: "the base of another node is taken",
        file: "header.rs",
        old: "header.seq == node",
        new: "header.seq == node || true",
    },
    Mutant {
        name: "a streamer that starts forgets bases",
        file: "forks/forget.rs",
        old: "*back_ns = now_ns.max(1)",
        new: "*back_ns = now_ns.min(1)",
    },
    Mutant {
        name: "a streamer that stood still forgets bases",
        file: "forks/forget.rs",
        old: "now_ns > self.due_ns + FORGET_NS",
        new: "self.due_ns == 0",
    },
    Mutant {
        name: "an earlier master goes on where a later one is silent",
        file: "epochs.rs",
        old: "another && self.config.is_master(node) && !self.gives_up(node)",
        new: "another && node == own",
    },
    Mutant {
        name: "a contested delta of a reign long before is given",
        file: "kept.rs",
        old: "both.filter(of_then).reduce(latest)",
        new: "both.filter(of_then).reduce(|first, _| first)",
    },
    Mutant {
        name: "the line of masters is not followed",
        file: "begun.rs",
        old: "node != self.config.node && node < self.config.places()",
        new: "node != node",
    },
    Mutant {
        name: "who was asked by a master that heard none trusts it",
        file: "unsure.rs",
        old: "self.leases[usize::from(header.range)].surveyed && header.seq != 0",
        new: "self.leases[usize::from(header.range)].surveyed",
    },
    Mutant {
        name: "an heir that is silent is not waited for",
        file: "begun.rs",
        old: "heir && now_ns.saturating_sub(since_ns) < HEIR * self.config.silence_ns",
        new: "heir && now_ns < since_ns",
    },
    Mutant {
        name: "who hears none takes ranges of nodes that hear none",
        file: "takeover.rs",
        old: "told_here(*node).is_some_and(|told| !told.silent)",
        new: "told_here(*node).is_some()",
    },
    Mutant {
        name: "who leaves waits only for nodes that it has heard",
        file: "forks/forget.rs",
        old: "self.silent(now_ns).next().is_some() || self.forks.of_bases().any(is_away)",
        new: "self.silent(now_ns).next().is_some()",
    },
    Mutant {
        name: "all members count as heard",
        file: "pull.rs",
        old: "others.all(all)",
        new: "others.all(|node| all(node) || node < u16::MAX)",
    },
    Mutant {
        name: "no later position has what a node streamed last",
        file: "begun.rs",
        old: "self.is_own(chunk, position) || later && self.acknowledges(chunk, ack)",
        new: "self.is_own(chunk, position) || later && ack != ack",
    },
    Mutant {
        name: "no position tells what its master began from",
        file: "begun.rs",
        old: "self.acknowledges(header.chunk, ack)",
        new: "self.acknowledges(header.chunk, ack) && header.chunk == u32::MAX",
    },
    Mutant {
        name: "what a master streamed last has no number of its own",
        file: "handover.rs",
        old: "state.seq.load(Relaxed).wrapping_add(1)",
        new: "state.seq.load(Relaxed)",
    },
    Mutant {
        name: "what a narrow position leaves out counts by the portion",
        file: "begun.rs",
        old: "state.flags.store(JOINED | rest, Relaxed);",
        new: "state.flags.store(JOINED | (rest ^ rest), Relaxed);",
    },
    Mutant {
        name: "what all hold is rounded where its master stops",
        file: "handover.rs",
        old: "finite && !self.is_published(chunk, &values)",
        new: "finite",
    },
    Mutant {
        name: "a replica is rounded on its way",
        file: "replicas.rs",
        old: "finite && said == values",
        new: "finite",
    },
];

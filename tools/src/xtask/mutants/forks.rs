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
        name: "an heir that was silent is not asked",
        file: "rejoin/asked.rs",
        old: "!common.ask_heir(now_ns, self.chunk)",
        new: "self.chunk < common.config.chunks",
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
];

//! The mutants. Each line that is changed is one rule of `docs/reference/stream-protocol.md`.

use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "acks of a replica are not kept",
        file: "take.rs",
        old: "        kept.store(*ack, Relaxed);",
        new: "        let _ = (kept, ack);",
    },
    Mutant {
        name: "a new life begins no epoch",
        file: "lives.rs",
        old: "            self.raise_epochs();",
        new: "            let _ = Self::raise_epochs;",
    },
    Mutant {
        name: "a promise refuses nothing",
        file: "epochs.rs",
        old: "(epoch == self.promised(range) || self.begin_epoch(range, epoch))",
        new: "(self.begin_epoch(range, epoch) || true)",
    },
    Mutant {
        name: "nothing is put back",
        file: "take.rs",
        old: "        kernels::put_back(last, sent, 0, journal);",
        new: "        let _ = (last, sent);",
    },
    Mutant {
        name: "a replica is given with what is under way",
        file: "handover.rs",
        old: "        last.load(i) - under_way\n",
        new: "        last.load(i) + 0.0 * under_way\n",
    },
    Mutant {
        name: "numbers start anew after a restore",
        file: "missing.rs",
        old: "    note_taken(state, header.chunk_version, Some(ack), false);",
        new: "    note_taken(state, header.chunk_version, Some(ack.wrapping_add(1)), false);",
    },
    Mutant {
        name: "a survey does not wait for all",
        file: "pull.rs",
        old: "    living.all(|node| block.has_offer(node))",
        new: "    living.any(|node| block.has_offer(node))",
    },
    Mutant {
        name: "the first offer wins",
        file: "pull.rs",
        old: "                .is_none_or(|newest| newest.is_older(epoch, version));",
        new: "                .is_none();",
    },
    Mutant {
        name: "an ack one too early",
        file: "master.rs",
        old: "        applied.store(header.seq, Relaxed);",
        new: "        applied.store(header.seq.wrapping_add(1), Relaxed);",
    },
    Mutant {
        name: "any number is applied",
        file: "master.rs",
        old: "        if header.seq != applied.load(Relaxed).wrapping_add(1) {",
        new: "        if header.seq == applied.load(Relaxed).wrapping_add(7) {",
    },
    Mutant {
        name: "a delta of any epoch is applied",
        file: "master.rs",
        old: "        if header.epoch != epoch {",
        new: "        if header.epoch == epoch.wrapping_sub(1 << 30) {",
    },
    Mutant {
        name: "versions are compared as numbers",
        file: "slave.rs",
        old: "    (version.wrapping_sub(than) as i32) > 0",
        new: "    version < than",
    },
    Mutant {
        name: "who answers promises nothing",
        file: "replicas.rs",
        old: "    if !epochs::is_later(header.epoch, known) || !common.promise(header.range, header.epoch) {",
        new: "    if !epochs::is_later(header.epoch, known) {",
    },
    Mutant {
        name: "a slave joins before its life is known",
        file: "slave.rs",
        old: ".by_replica) && !admits {",
        new: ".by_replica) && !admits && header.chunk == u32::MAX {",
    },
    Mutant {
        name: "own work under way is not in what a new master streams",
        file: "handover.rs",
        old: "            own.store(state.seq.load(Relaxed), Relaxed);",
        new: "            own.store(state.seq.load(Relaxed).wrapping_sub(1), Relaxed);",
    },
    Mutant {
        name: "a master that is replaced keeps no snapshot",
        file: "handover.rs",
        old: "        kernels::copy_in(last, &values);\n        values.fill(0.0);",
        new: "        values.fill(0.0);",
    },
    Mutant {
        name: "a replaced master joins as if nothing had forked",
        file: "replicas.rs",
        old: "    if flags.load(Relaxed) & FORKED != 0 {\n        flags.store(JOINED, Relaxed);",
        new: "    if flags.load(Relaxed) & FORKED != 0 {\n        flags.store(0, Relaxed);",
    },
    Mutant {
        name: "no base is kept",
        file: "restore.rs",
        old: "            common.keep_base(chunk);",
        new: "            common.forks.begin_whole(chunk);",
    },
    Mutant {
        name: "what is contested is not left out",
        file: "rejoin.rs",
        old: "            contested.for_each(|(sum, came)| *sum += came);",
        new: "            contested.for_each(|(sum, came)| *sum += 0.0 * came);",
    },
    Mutant {
        name: "slaves keep nothing that is contested",
        file: "forks.rs",
        old: "        self.forks.contested.insert(chunk, contested);",
        new: "        let _ = (chunk, contested);",
    },
    Mutant {
        name: "a slave goes over without asking",
        file: "unsure.rs",
        old: "        if sure || surveyed || !self.exactly_once() {",
        new: "        if sure || !surveyed || surveyed {",
    },
    Mutant {
        name: "what went apart is not put back",
        file: "unsure.rs",
        old: "            put_back(common, header, frame.acks",
        new: "            let _ = (put_back, header, frame.acks",
    },
    Mutant {
        name: "a node alone takes ranges",
        file: "takeover.rs",
        old: "        others > 0 && all && waited",
        new: "        all && waited",
    },
    Mutant {
        name: "one deaf node takes a range",
        file: "takeover.rs",
        old: "        others > 0 && all && waited",
        new: "        others > 0 && waited",
    },
    Mutant {
        name: "a home never takes its range back",
        file: "takeover.rs",
        old: "                restore.begin(common, home, self.told_ns);",
        new: "                let _ = (&restore, home, self.told_ns);",
    },
    Mutant {
        name: "of two epochs the earlier wins",
        file: "epochs.rs",
        old: "    a != 0 && (b == 0 || (a.wrapping_sub(b) as i32) > 0)",
        new: "    a != 0 && (b == 0 || (a.wrapping_sub(b) as i32) < 0)",
    },
];

//! What a streamer says: troubles once and then once a minute, a line of rates now and then,
//! counters at the end.
//!
//! Prints by `log` only. Time is an argument.

use dogwild_net::Source;

use super::super::health::{Trouble, What};
use super::super::line::line_every;
use super::super::repeat::{Repeat, times};
use super::kinds::words;
use crate::stream::{Counters, Report, Severity};
use crate::weights::DataKind;

/// What messages are about, for those that come again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    Report(u8, u16),
    Trouble(What, u16),
    Over(What, u16),
    BadTag(Source),
    Sealed(Source),
    Links,
    Alone,
    Quorum(bool),
}

/// Writes the log of one streamer.
#[derive(Debug)]
pub(super) struct Say {
    repeat: Repeat<Key>,
    /// What this node's buffer learns.
    data: DataKind,
    every_ns: Option<u64>,
    line_ns: u64,
    troubles: Vec<Trouble>,
    lacks_quorum: bool,
    before: Totals,
}

/// Totals that the line shows the rates of.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    pub(super) counters: Counters,
    pub(super) bytes_sent: u64,
    pub(super) bytes_received: u64,
    /// Age of foreign chunks, median and longest, µs.
    pub(super) ages_us: (u64, u64),
}

impl Say {
    pub(super) fn new(data: DataKind) -> Self {
        Self {
            repeat: Repeat::new(),
            data,
            every_ns: line_every().map(|every| every.as_nanos() as u64),
            line_ns: 0,
            troubles: Vec::new(),
            lacks_quorum: false,
            before: Totals::default(),
        }
    }

    pub(super) fn report(&mut self, report: &Report, now_ns: u64) {
        let (kind, node) = report.key();
        if let Some(count) = self.repeat.say(Key::Report(kind, node), now_ns, 1) {
            let level = match report.severity() {
                Severity::Info => log::Level::Info,
                Severity::Warning => log::Level::Warn,
                Severity::Error => log::Level::Error,
            };
            log::log!(level, "{}{}", words(report, self.data), times(count));
        }
    }

    /// No other node was ever heard. `join`: where they were asked for.
    pub(super) fn alone(&mut self, join: &[String], now_ns: u64) {
        if self.repeat.say(Key::Alone, now_ns, 1).is_none() {
            return;
        }
        if join.is_empty() {
            log::warn!(
                "no other node is heard: where no multicast passes between hosts (clouds, routers), give all nodes \
                 the host of one of them (--join HOST)"
            );
        } else {
            log::warn!(
                "no node answers at {} (--join): look whether a node of this job is there, and whether UDP passes",
                join.join(", ")
            );
        }
    }

    /// Names what is wrong, and what has become well again.
    pub(super) fn troubles(&mut self, troubles: Vec<Trouble>, now_ns: u64) {
        for trouble in &troubles {
            let key = Key::Trouble(trouble.what, trouble.who);
            if self.repeat.say(key, now_ns, 1).is_some() {
                log::warn!("{trouble}");
            }
        }
        let gone = self.troubles.iter().filter(|old| {
            !troubles
                .iter()
                .any(|new| (new.what, new.who) == (old.what, old.who))
        });
        // What comes and goes is not said each time either.
        for old in gone {
            let key = Key::Over(old.what, old.who);
            if self.repeat.say(key, now_ns, 1).is_some() {
                let who = old.what.name_of(old.who);
                log::info!("over after {} s: {who}", old.seconds);
            }
        }
        self.troubles = troubles;
    }

    /// For whom solvers wait, `None`: they go on.
    pub(super) fn quorum(&mut self, lacking: Option<String>, now_ns: u64) {
        let over = self.lacks_quorum && lacking.is_none();
        self.lacks_quorum = lacking.is_some();
        if let Some(lacking) = lacking
            && self.repeat.say(Key::Quorum(true), now_ns, 1).is_some()
        {
            log::warn!("{lacking}");
        }
        if over && self.repeat.say(Key::Quorum(false), now_ns, 1).is_some() {
            log::info!("as many nodes are heard as --quorum asks for: solvers go on");
        }
    }

    /// Frames whose seal is not of our key.
    pub(super) fn bad_tags(&mut self, from: Source, frames: u64, now_ns: u64) {
        if let Some(count) = self.repeat.say(Key::BadTag(from), now_ns, frames) {
            log::warn!(
                "{count} frames with a bad tag from {from}: it has another key or none, or forges; \
                 give all nodes the same --key-file"
            );
        }
    }

    /// Frames that are sealed, where this node seals none.
    pub(super) fn sealed(&mut self, from: Source, frames: u64, now_ns: u64) {
        if let Some(count) = self.repeat.say(Key::Sealed(from), now_ns, frames) {
            log::warn!(
                "{count} sealed frames from {from}, and this node has no key: give it that node's --key-file \
                 (or give it to none)"
            );
        }
    }

    /// Frames of one link more than are remembered.
    pub(super) fn too_many_links(&mut self, frames: u64, now_ns: u64) {
        if let Some(count) = self.repeat.say(Key::Links, now_ns, frames) {
            log::warn!(
                "{count} sealed frames refused: {}",
                dogwild_net::seal::TOO_MANY_LINKS
            );
        }
    }

    /// The line of rates, if it is time for it.
    pub(super) fn line(&mut self, totals: &Totals, now_ns: u64) {
        let Some(every_ns) = self.every_ns else {
            return;
        };
        let passed_ns = now_ns.saturating_sub(self.line_ns);
        if passed_ns < every_ns {
            return;
        }
        let (now, then) = (&totals.counters, &self.before.counters);
        let per_s =
            |now: u64, then: u64| (now.saturating_sub(then)) as f64 * 1e9 / passed_ns.max(1) as f64;
        let missed = now.positions_missed - then.positions_missed;
        let taken = now.positions_taken - then.positions_taken;
        let who = if self.troubles.is_empty() {
            String::new()
        } else {
            let names = self
                .troubles
                .iter()
                .map(|trouble| trouble.what.name_of(trouble.who));
            format!("; {}", names.collect::<Vec<_>>().join(", "))
        };
        log::info!(
            "positions/s {:.0} out {:.0} in, deltas/s {:.0} out {:.0} in, MB/s {:.2} out {:.2} in, lost {:.1} %, \
             age {:.1} ms (longest {:.1}){who}",
            per_s(now.positions_sent, then.positions_sent),
            per_s(now.positions_taken, then.positions_taken),
            per_s(now.deltas_sent, then.deltas_sent),
            per_s(now.deltas_applied, then.deltas_applied),
            per_s(totals.bytes_sent, self.before.bytes_sent) / 1e6,
            per_s(totals.bytes_received, self.before.bytes_received) / 1e6,
            100.0 * missed as f64 / (missed + taken).max(1) as f64,
            totals.ages_us.0 as f64 / 1e3,
            totals.ages_us.1 as f64 / 1e3,
        );
        self.before = *totals;
        self.line_ns = now_ns;
    }
}

//! Rounds as a table.

use dogwild::watch::screen::{self, Columns};

use super::{Counted, Round, Rounds};
use crate::compare::notes;
use crate::rounds::Spread;

impl Counted {
    fn name(self) -> &'static str {
        match self {
            Self::Sent => "frames sent",
            Self::Received => "frames received",
            Self::ReceivedUnread => "frames received,\ntheirs not read",
            Self::ReceivedBits => "bits received",
        }
    }
}

impl Round {
    /// The core-to-core rate before and after, and `*` if it changed too much.
    fn cores(&self) -> String {
        let [before, after] = self
            .core_to_core_bytes_per_s
            .map(|rate| format!("{:.1}", rate / 1e9));
        let star = if self.mode_changed { " *" } else { "" };
        format!("{before}, {after}{star}")
    }

    fn own_rate(&self) -> f64 {
        if self.ours.alone {
            self.ours.sent_by_interface()
        } else {
            self.ours.received_frames_per_s
        }
    }

    /// What is told as soon as the round is over.
    pub(super) fn line(&self, number: usize, count: u32) -> String {
        let mut text = format!(
            "round {number} of {count}: {:.0} frames/s, core to core {} GB/s",
            self.own_rate(),
            self.cores()
        );
        for one in &self.peers {
            let said = match (one.compared, &one.peer.error) {
                (Some(both), _) => format!("{:.3}", both.ratio),
                (None, Some(error)) => error.clone(),
                (None, None) => "not comparable".to_owned(),
            };
            text += &format!("; {} {said}", one.peer.tool);
        }
        screen::wrap(&text, screen::width())
    }
}

impl Rounds {
    pub(crate) fn table(&self) -> String {
        let ours = format!("ours, frames/s\nof {} bytes", self.frame_bytes);
        let own = ["round".to_owned(), "core to core,\nGB/s".to_owned(), ours];
        let tools = self.ratios.iter().map(|one| format!("/ {}", one.tool));
        let mut table = Columns::boxed(own.into_iter().chain(tools));
        for (i, round) in self.rounds.iter().enumerate() {
            let ratios = round.peers.iter().map(|one| match one.compared {
                Some(both) => format!("{:.3}", both.ratio),
                None => "-".to_owned(),
            });
            let own = [
                (i + 1).to_string(),
                round.cores(),
                format!("{:.0}", round.own_rate()),
            ];
            table.row(own.into_iter().chain(ratios));
        }
        let mut text = format!("\n{table}");
        if self.rounds.iter().any(|round| round.mode_changed) {
            let said = "* the rate from core to core changed by more than two within the round: its ratios say little";
            text += &format!("\n{}", screen::wrap(said, screen::width()));
        }
        text += &format!("\n{}", self.summary());
        let mut errors: Vec<String> = Vec::new();
        for one in self.rounds.iter().flat_map(|round| &round.peers) {
            let Some(error) = &one.peer.error else {
                continue;
            };
            let said = format!("{} failed: {error}", one.peer.tool);
            let said = format!("\n{}", screen::wrap(&said, screen::width()));
            if !errors.contains(&said) {
                errors.push(said);
            }
        }
        text += &errors.concat();
        let ran = |i: usize| {
            let mut runs = self
                .rounds
                .iter()
                .filter_map(move |round| round.peers.get(i));
            runs.find(|one| one.peer.command.is_some())
        };
        let peers = (0..self.ratios.len()).filter_map(ran).map(|one| &one.peer);
        text + &notes(peers, &self.missing)
    }

    /// Median, lowest and highest.
    fn summary(&self) -> Columns {
        let mut table = Columns::boxed([
            "",
            "median",
            "lowest",
            "highest",
            "best / best",
            "compared",
            "theirs/s, median",
        ]);
        if let Some(own) = Spread::of(self.rounds.iter().map(Round::own_rate)) {
            let [median, lowest, highest] =
                [own.median, own.lowest, own.highest].map(|rate| format!("{rate:.0}"));
            let name = "ours, frames/s".to_owned();
            table.row([name, median, lowest, highest]);
        }
        for one in &self.ratios {
            let name = format!("ours / {}", one.tool);
            let (Some(ratio), Some(counted)) = (one.ratio, one.counted) else {
                table.row([name.as_str(), "-", "-", "-", "-", "never comparable"]);
                continue;
            };
            let [median, lowest, highest] =
                [ratio.median, ratio.lowest, ratio.highest].map(|ratio| format!("{ratio:.3}"));
            let best = one.best_ratio.map(|ratio| format!("{ratio:.3}"));
            let theirs = one.theirs_per_s.map(|rate| format!("{:.0}", rate.median));
            table.row([
                name,
                median,
                lowest,
                highest,
                best.unwrap_or_default(),
                counted.name().to_owned(),
                theirs.unwrap_or_default(),
            ]);
        }
        table
    }
}

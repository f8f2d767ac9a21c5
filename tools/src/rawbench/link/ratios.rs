//! How many times the rate of its peers ours is: once, or in rounds that measure ours and each peer
//! in turns.
//!
//! Invariant: a ratio is made only of what both sides count alike ([`Counted`]).

use anyhow::{Result, bail};
use dogwild_lab::Lab;
use serde::{Deserialize, Serialize};

use super::report::{Outcome, Report};
use super::run::Run;
use super::{DriverArgs, Measurement};
use crate::compare::names::{Name, Tool, Way};
use crate::compare::{self, Comparison, Missing, Peer};
use crate::rounds::{Spread, between_core_rates};

mod table;

/// A mode of the machine ends where the rate from core to core changes by more than this.
const SAME_MODE_FACTOR: f64 = 2.0;

/// What ours and another are compared by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Counted {
    /// Frames sent: no program reads them on either side. Those of raw Ethernet in a lab are
    /// counted by the interface.
    Sent,
    /// Frames received by a program, on both sides.
    Received,
    /// Frames received: ours by a program that reads every byte, the others' by the interface. To
    /// their favour.
    ReceivedUnread,
    /// Bits of payload received by a program, on both sides.
    ReceivedBits,
}

/// Two rates of the same.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Compared {
    pub(crate) counted: Counted,
    pub(crate) ours_per_s: f64,
    pub(crate) theirs_per_s: f64,
    /// Ours as a multiple of theirs.
    pub(crate) ratio: f64,
}

/// One peer in one round.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PeerRun {
    pub(crate) peer: Peer,
    /// None if it failed or counts something else.
    pub(crate) compared: Option<Compared>,
    /// Before and after this measurement.
    pub(crate) core_to_core_bytes_per_s: [f64; 2],
}

/// Ours and all others, once each.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Round {
    /// Ours began this round; else it ended it.
    pub(crate) ours_first: bool,
    pub(crate) ours: Run,
    /// Before and after ours.
    pub(crate) ours_core_to_core_bytes_per_s: [f64; 2],
    /// In the order of the names, whatever the order in time.
    pub(crate) peers: Vec<PeerRun>,
    /// Before and after the whole round.
    pub(crate) core_to_core_bytes_per_s: [f64; 2],
    /// Whether that rate changed so much within the round that its ratios say little.
    pub(crate) mode_changed: bool,
}

/// One of the others over all rounds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Ratio {
    pub(crate) tool: String,
    pub(crate) counted: Option<Counted>,
    /// Ours as a multiple of theirs; none if they never could be compared.
    pub(crate) ratio: Option<Spread>,
    /// The highest of ours over the highest of theirs: both as they are while nothing slows the
    /// machine down.
    pub(crate) best_ratio: Option<f64>,
    pub(crate) theirs_per_s: Option<Spread>,
}

/// All of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Rounds {
    pub(crate) frame_bytes: usize,
    pub(crate) rounds: Vec<Round>,
    pub(crate) ratios: Vec<Ratio>,
    pub(crate) missing: Vec<Missing>,
}

/// What there is to compare with, and what is not installed.
pub(super) type Others = (Vec<Way>, Vec<Missing>);

impl DriverArgs {
    /// What was asked for and is there.
    pub(super) fn peers(&self, what: &Measurement<'_>) -> Result<Others> {
        let mut ways = Name::all_ways(&self.compare);
        let why_not = if self.link.transport.key_file.is_none() {
            Some("there is no --key-file: ours is not sealed anyway")
        } else if what.name != "send" {
            Some("only `send` measures it")
        } else if !self.lab {
            Some("only with --lab: the other host's `recv` has the key")
        } else {
            None
        };
        if let Some(why_not) = why_not {
            if self.compare.contains(&Name::Unsealed) {
                bail!("--compare=unsealed: {why_not}");
            }
            ways.retain(|&way| way != Way::Unsealed);
        }
        Ok(compare::installed(ways))
    }

    /// Ours, then all others.
    pub(super) fn once_with_peers(
        &mut self,
        lab: Option<&Lab>,
        what: &Measurement<'_>,
        (ways, missing): Others,
    ) -> Result<Report> {
        let mut report = self.ours(lab, what)?;
        if !self.compare.is_empty() {
            let full = report.settings.mtu_payload_bytes;
            let frame_bytes = what.frame_bytes.unwrap_or(full);
            let one = |way: &Way| self.other(lab, what, *way, frame_bytes);
            report.comparison = Some(Comparison {
                frame_bytes,
                peers: ways.iter().map(one).collect(),
                missing,
            });
        }
        Ok(report)
    }

    /// One of the others; one that fails says why.
    fn other(
        &self,
        lab: Option<&Lab>,
        what: &Measurement<'_>,
        way: Way,
        frame_bytes: usize,
    ) -> Peer {
        dogwild_lab::progress!("comparing with {}", way.name());
        let peer = match way {
            Way::Tool(tool) => compare::run(&self.places(lab), tool, frame_bytes, self.seconds),
            Way::Unsealed => self.unsealed(lab, what, frame_bytes),
        };
        peer.unwrap_or_else(|error| Peer::failed(way, &error))
    }

    /// The same without the key.
    fn unsealed(
        &self,
        lab: Option<&Lab>,
        what: &Measurement<'_>,
        frame_bytes: usize,
    ) -> Result<Peer> {
        let mut without = self.clone();
        without.link.transport.key_file = None;
        let mut args = what.args.clone();
        if what.frame_bytes.is_none() {
            // A full frame would be longer without the seal.
            args.extend(["--frame".to_owned(), frame_bytes.to_string()]);
        }
        let report = without.ours(lab, &Measurement { args, ..*what })?;
        let Outcome::Send(run) = &report.outcome else {
            bail!("a run of `send` reports another");
        };
        let received = |value: f64| (!run.alone).then_some(value);
        Ok(Peer {
            tool: Way::Unsealed.name().to_owned(),
            sent_frames_per_s: Some(run.sent_by_interface()),
            received_frames_per_s: received(run.received_frames_per_s),
            received_bits_per_s: received(run.received_bits_per_s),
            payload_bytes: Some(run.frame_bytes as f64),
            command: Some(format!("send {}", report.settings.arguments)),
            error: None,
        })
    }

    /// Ours and all others again and again. The report is that of our median run.
    pub(super) fn in_rounds_with_peers(
        &mut self,
        lab: Option<&Lab>,
        what: &Measurement<'_>,
        (ways, missing): Others,
        count: u32,
    ) -> Result<Report> {
        let (mut reports, mut rounds) = (Vec::new(), Vec::<Round>::new());
        let mut frame_bytes = what.frame_bytes;
        for number in 0..count {
            // The first may find the machine in another state than the last.
            let ours_first = number % 2 == 0;
            let mut ours = None;
            if ours_first {
                ours = Some(between_core_rates(|| self.ours(lab, what))?);
            }
            let full = ours.as_ref().or(reports.last());
            let full = full.map(|(report, _): &(Report, _)| report.settings.mtu_payload_bytes);
            let bytes = *frame_bytes.get_or_insert(full.unwrap_or_default());
            let one = |way: &Way| between_core_rates(|| Ok(self.other(lab, what, *way, bytes)));
            let mut others = if ours_first {
                ways.iter().map(one).collect::<Result<Vec<_>>>()?
            } else {
                ways.iter().rev().map(one).collect::<Result<Vec<_>>>()?
            };
            if !ours_first {
                others.reverse();
            }
            let ours = match ours {
                Some(ours) => ours,
                None => between_core_rates(|| self.ours(lab, what))?,
            };
            let round = Round::of(ours_first, &ours, &ways, others)?;
            dogwild_lab::progress!("{}", round.line(rounds.len() + 1, count));
            rounds.push(round);
            reports.push(ours);
        }
        reports.sort_by(|(a, _), (b, _)| a.rate().total_cmp(&b.rate()));
        let (mut report, _) = reports.swap_remove(reports.len() / 2);
        report.rounds = Some(Rounds {
            frame_bytes: frame_bytes.unwrap_or(report.settings.mtu_payload_bytes),
            ratios: ratios(&ways, &rounds),
            rounds,
            missing,
        });
        Ok(report)
    }
}

impl Round {
    fn of(
        ours_first: bool,
        (report, own): &(Report, [f64; 2]),
        ways: &[Way],
        others: Vec<(Peer, [f64; 2])>,
    ) -> Result<Self> {
        let Outcome::Send(run) = &report.outcome else {
            bail!("rounds of another measurement than `send`");
        };
        let peers: Vec<PeerRun> = ways
            .iter()
            .zip(others)
            .map(|(&way, (peer, core_to_core_bytes_per_s))| PeerRun {
                compared: compare(run, &peer, way),
                peer,
                core_to_core_bytes_per_s,
            })
            .collect();
        let others = peers.iter().map(|one| one.core_to_core_bytes_per_s);
        let all: Vec<[f64; 2]> = std::iter::once(*own).chain(others).collect();
        // The one that is not ours and was measured first or last, in this order of time.
        let last = *all.last().unwrap_or(own);
        let core_to_core_bytes_per_s = if ours_first {
            [own[0], last[1]]
        } else {
            [last[0], own[1]]
        };
        let spread = Spread::of(all.into_iter().flatten());
        Ok(Self {
            ours_first,
            ours: Run::clone(run),
            ours_core_to_core_bytes_per_s: *own,
            peers,
            core_to_core_bytes_per_s,
            mode_changed: spread
                .is_some_and(|rates| rates.highest > rates.lowest * SAME_MODE_FACTOR),
        })
    }
}

/// How many times theirs ours is, by what both count alike.
fn compare(ours: &Run, peer: &Peer, way: Way) -> Option<Compared> {
    let alone = ours.alone;
    let (counted, ours_per_s, theirs) = match way {
        Way::Tool(Tool::Trafgen | Tool::TestpmdAfPacket | Tool::TestpmdAfXdp) | Way::Unsealed
            if alone =>
        {
            (
                Counted::Sent,
                ours.sent_by_interface(),
                peer.sent_frames_per_s,
            )
        }
        // iperf3 has a receiver, ours has none.
        _ if alone => return None,
        Way::Tool(Tool::Iperf3Tcp) => (
            Counted::ReceivedBits,
            ours.received_bits_per_s,
            peer.received_bits_per_s,
        ),
        Way::Tool(Tool::Iperf3Udp) | Way::Unsealed => (
            Counted::Received,
            ours.received_frames_per_s,
            peer.received_frames_per_s,
        ),
        Way::Tool(_) => (
            Counted::ReceivedUnread,
            ours.received_frames_per_s,
            peer.received_frames_per_s,
        ),
    };
    let theirs_per_s = theirs.filter(|&rate| rate > 0.0)?;
    Some(Compared {
        counted,
        ours_per_s,
        theirs_per_s,
        ratio: ours_per_s / theirs_per_s,
    })
}

/// Each of the others over all rounds.
fn ratios(ways: &[Way], rounds: &[Round]) -> Vec<Ratio> {
    let one = |(i, way): (usize, &Way)| {
        let of = || rounds.iter().filter_map(move |round| round.peers.get(i));
        let compared = || of().filter_map(|one| one.compared);
        let named = of().find(|one| one.compared.is_some()).or(of().next());
        let ours = Spread::of(compared().map(|both| both.ours_per_s));
        let theirs = Spread::of(compared().map(|both| both.theirs_per_s));
        Ratio {
            tool: named.map_or(way.name(), |one| &one.peer.tool).to_owned(),
            counted: compared().next().map(|both| both.counted),
            ratio: Spread::of(compared().map(|both| both.ratio)),
            best_ratio: ours.zip(theirs).map(|(o, t)| o.highest / t.highest),
            theirs_per_s: theirs,
        }
    };
    ways.iter().enumerate().map(one).collect()
}

#[cfg(test)]
mod tests;

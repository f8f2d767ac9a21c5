//! The end that drives: finds `recv`, sends frames at a rate or as fast as it can, asks what
//! arrived, and pings.
//!
//! Invariant: a run has its own number, which both ends put into every frame, so that late frames
//! of one are not counted for another.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};
use dogwild_net::{Link, Source, To};

use super::LinkArgs;
use super::packet::{HEADER_BYTES, Kind, Packet, SEND_NOW, SEND_TOO};
use super::pings::{Pings, histogram};
use super::plan::{PLAN_BYTES, Plan};
use super::sending::Ways;
use super::tally::Tally;

/// Time for `recv` to be started on the other host.
const BEGIN_WITHIN: Duration = Duration::from_secs(10);
/// Time for an answer at the end of a run; `recv` stays as long after its last one.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Between two times of asking the same.
const ASK_EVERY: Duration = Duration::from_millis(20);
/// After this a ping counts as lost.
pub(super) const PING_WITHIN: Duration = Duration::from_millis(200);
/// Pings before the first that is counted: routes, caches, clocks.
const WARM_UP_PINGS: u64 = 10;
/// Frames looked at in one go.
const BATCH: usize = 256;

/// Which ends take part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    /// Number of this stream, from 0.
    pub(crate) stream: u32,
    /// Hosts that receive; 0: none is looked for or asked (`--alone`).
    pub(crate) receivers: usize,
}

/// A question, and whom to ask.
struct Question<'a> {
    to: To,
    packet: Packet,
    /// Length of the frame.
    len: usize,
    plan: Option<&'a Plan>,
    every: Duration,
    within: Duration,
    /// Hosts that are to answer.
    answers: usize,
}

/// The end that drives.
pub(crate) struct Driver {
    pub(super) link: Link,
    pub(super) args: LinkArgs,
    pub(super) run: u64,
    pub(super) ends: Ends,
    /// Where the receivers are; the first is node 1.
    pub(super) receivers: Vec<Source>,
    /// What came back.
    pub(super) tally: Tally,
    /// Answers that no one has looked at.
    pub(super) heard: Vec<(Source, Packet)>,
}

impl Driver {
    /// Opens the link, and finds `recv` unless this end is alone.
    pub(crate) fn open(args: &mut LinkArgs, ends: Ends) -> Result<Self> {
        let link = args.open(ends.stream)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let mut driver = Self {
            tally: Tally::new(link.tx.mtu()),
            link,
            args: args.clone(),
            // Two drivers after each other must not take each other's answers.
            run: now.map_or(1, |now| now.as_nanos() as u64),
            ends,
            receivers: Vec::new(),
            heard: Vec::new(),
        };
        driver.meet(None)?;
        Ok(driver)
    }

    /// Payload of a full frame.
    pub(crate) fn payload_max(&self) -> usize {
        self.link.tx.mtu()
    }

    /// Refuses frames that do not fit.
    pub(crate) fn check_frame(&self, frame_bytes: usize) -> Result<()> {
        let most = self.payload_max();
        if (HEADER_BYTES..=most).contains(&frame_bytes) {
            return Ok(());
        }
        bail!(
            "a frame of {frame_bytes} bytes does not fit: {} to {most} here (--mtu)",
            HEADER_BYTES
        )
    }

    /// Begins a run; the receiver sends by the same plan if it is to.
    pub(super) fn begin(&mut self, plan: &Plan, ways: Ways) -> Result<()> {
        self.meet(match ways {
            Ways::There => None,
            Ways::Both => Some((plan, SEND_TOO)),
            Ways::Back => Some((plan, SEND_NOW)),
        })
    }

    /// Finds the receivers for a new run.
    fn meet(&mut self, plan: Option<(&Plan, u64)>) -> Result<()> {
        self.run += 1;
        self.tally.clear();
        if self.ends.receivers == 0 {
            return Ok(());
        }
        let found = self.ask(&Question {
            to: To::Group,
            packet: Packet {
                a: plan.map_or(0, |(_, when)| when),
                ..Packet::ask(Kind::Begin, self.run)
            },
            len: HEADER_BYTES + plan.map_or(0, |_| PLAN_BYTES),
            plan: plan.map(|(plan, _)| plan),
            every: ASK_EVERY,
            // With the first stream the others have been opened too.
            within: match self.ends.stream {
                0 => BEGIN_WITHIN,
                _ => ANSWER_WITHIN,
            },
            answers: self.ends.receivers,
        })?;
        if found.len() < self.ends.receivers {
            bail!("{}", self.not_found(found.len()));
        }
        for (from, _) in found {
            let place = self.place(from).unwrap_or_else(|| {
                self.receivers.push(from.sender());
                self.receivers.len() - 1
            });
            self.link.tx.learn(place as u16 + 1, from);
        }
        Ok(())
    }

    /// Why the other ends did not answer.
    fn not_found(&self, found: usize) -> String {
        let iface = self.args.iface();
        if found > 0 {
            return format!(
                "only {found} of --receivers {} answer on `{iface}`: run `dogwild-rawbench recv` on \
                 each of the other hosts",
                self.ends.receivers
            );
        }
        match self.ends.stream {
            0 => format!(
                "nothing answers on `{iface}`: run `dogwild-rawbench recv` of the same version on the \
                 other host with the same --transport and --session (or use --lab); a firewall may \
                 be in the way"
            ),
            stream => format!(
                "nothing answers to stream {} on `{iface}`: run `dogwild-rawbench recv` on the other \
                 host with -P {0} or more",
                stream + 1
            ),
        }
    }

    /// Which receiver this is.
    pub(super) fn place(&self, from: Source) -> Option<usize> {
        let from = from.sender();
        self.receivers.iter().position(|known| *known == from)
    }

    /// Takes what has arrived: frames of the run are counted, answers kept. Returns how many.
    pub(super) fn hear(&mut self) -> Result<usize> {
        let (run, tally, heard) = (self.run, &mut self.tally, &mut self.heard);
        let got = self
            .link
            .rx
            .recv(BATCH, &mut |from, bytes| match Packet::parse(bytes)
                .filter(|packet| packet.answer && packet.run == run)
            {
                Some(packet) if packet.kind == Kind::Data => tally.take(&packet, bytes),
                Some(packet) => heard.push((from, packet)),
                None => {}
            })?;
        Ok(got)
    }

    /// Asks again and again until all have answered or the time is over; returns who did.
    fn ask(&mut self, question: &Question<'_>) -> Result<Vec<(Source, Packet)>> {
        let packet = question.packet;
        let start = Instant::now();
        let mut due = Duration::ZERO;
        let mut found: Vec<(Source, Packet)> = Vec::new();
        while found.len() < question.answers && start.elapsed() < question.within {
            if start.elapsed() >= due {
                due = start.elapsed() + question.every;
                self.link.tx.send(question.to, question.len, &mut |slot| {
                    slot.fill(0);
                    packet.write(slot);
                    if let Some(plan) = question.plan {
                        plan.write(&mut slot[HEADER_BYTES..]);
                    }
                });
                self.link.tx.flush()?;
            }
            let got = self.hear()?;
            for (from, heard) in self.heard.drain(..) {
                // An answered End carries counts in `a`; an answered ping its number.
                let same = packet.kind != Kind::Ping || heard.a == packet.a;
                let new = !found
                    .iter()
                    .any(|(known, _)| known.sender() == from.sender());
                if heard.kind == packet.kind && same && new {
                    found.push((from, heard));
                }
            }
            if got == 0 {
                self.args.idle(&mut self.link)?;
            }
        }
        Ok(found)
    }

    /// Ends a run: what each receiver says, in their order.
    pub(super) fn end(&mut self, to: To) -> Result<Vec<Packet>> {
        let answers = self.ask(&Question {
            to,
            packet: Packet::ask(Kind::End, self.run),
            len: HEADER_BYTES,
            plan: None,
            every: ASK_EVERY,
            within: ANSWER_WITHIN,
            answers: self.ends.receivers,
        })?;
        let mut said = vec![None; self.ends.receivers];
        for (from, answer) in answers {
            if let Some(place) = self.place(from) {
                said[place] = Some(answer);
            }
        }
        match said.into_iter().collect() {
            Some(all) => Ok(all),
            None => bail!("`recv` has gone: it did not say what arrived"),
        }
    }

    /// One ping after the other.
    pub(crate) fn ping(
        &mut self,
        frame_bytes: usize,
        seconds: f64,
        progress: &dyn Fn(u64, u64, String),
    ) -> Result<Pings> {
        self.check_frame(frame_bytes)?;
        let mut times = histogram()?;
        let (mut sent, mut lost) = (0, 0);
        let mut start = Instant::now();
        let mut warm_up = WARM_UP_PINGS;
        while warm_up > 0 || start.elapsed().as_secs_f64() < seconds || sent == 0 {
            let packet = Packet {
                a: sent + (warm_up << 32),
                b: frame_bytes as u64,
                ..Packet::ask(Kind::Ping, self.run)
            };
            let asked = Instant::now();
            let answer = self.ask(&Question {
                to: To::Node(1),
                packet,
                len: frame_bytes,
                plan: None,
                every: PING_WITHIN,
                within: PING_WITHIN,
                answers: 1,
            })?;
            let took = asked.elapsed().as_nanos() as u64;
            if warm_up > 0 {
                warm_up -= 1;
                start = Instant::now();
                continue;
            }
            sent += 1;
            match answer.is_empty() {
                false => times.record(took)?,
                true => lost += 1,
            }
            let done = start.elapsed().as_secs_f64() / seconds * 100.0;
            progress(
                (done as u64).min(99),
                100,
                format!("{sent} pings, {lost} lost"),
            );
        }
        progress(1, 1, String::new());
        Ok(Pings::of(frame_bytes, sent, &times))
    }
}

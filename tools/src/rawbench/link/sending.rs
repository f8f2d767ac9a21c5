//! One run of the end that drives: it sends by a plan, and in the same loop hears what comes back,
//! asks what arrived of each part, and pings.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use dogwild_net::{To, TransmitStats};

use super::counts::Counts;
use super::driver::{ANSWER_WITHIN, Driver, PING_WITHIN};
use super::interval::Interval;
use super::packet::{HEADER_BYTES, Kind, Packet};
use super::pings::Train;
use super::plan::Plan;
use super::pour::{Pour, Sender, Step};
use super::run::{Flow, Run};
use crate::machine::thread_cpu_ns;

/// Frames may lie this long in a block of a receive ring.
const SETTLE: Duration = Duration::from_millis(20);
/// An end that sends for a driver stops when it hears nothing.
const HERE_EVERY: Duration = Duration::from_secs(1);

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trial {
    pub(crate) plan: Plan,
    pub(crate) ways: Ways,
    /// Payload of the pings, and how many leave per second.
    pub(crate) pings: Option<(usize, f64)>,
}

/// Which ends send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ways {
    /// This one.
    There,
    /// Both, the same.
    Both,
    /// The other one.
    Back,
}

/// A run on its way.
struct Running<'a> {
    pour: Pour,
    counts: Counts,
    train: Option<Train>,
    to: To,
    start: Instant,
    /// What the link and this thread had done when the time that counts began.
    before: Option<(TransmitStats, u64)>,
    /// What the link dropped after the end is known.
    settled: bool,
    /// When the other end was last told that this one is there.
    here_at: Instant,
    tell: &'a mut dyn FnMut(&Interval),
}

impl Driver {
    /// Sends frames and asks what arrived. Each interval is told when it is known.
    pub(crate) fn send(&mut self, trial: &Trial, tell: &mut dyn FnMut(&Interval)) -> Result<Run> {
        let plan = &trial.plan;
        self.check_frame(plan.frame_bytes)?;
        self.begin(plan, trial.ways)?;
        let to = match plan.unicast {
            true => To::Node(1),
            false => To::Group,
        };
        let alone = self.ends.receivers == 0;
        let sender = Sender {
            run: self.run,
            to,
            answer: false,
            heads_only: alone,
        };
        let own = Plan {
            rate: match trial.ways {
                Ways::Back => Some(0.0),
                Ways::There | Ways::Both => plan.rate,
            },
            ..*plan
        };
        let pings = trial.pings.map(|(bytes, rate)| Train::new(rate, bytes));
        let mut running = Running {
            pour: Pour::new(&own, sender),
            counts: Counts::new(
                self.ends.stream + 1,
                self.ends.receivers,
                trial.ways,
                plan.frame_bytes,
            ),
            train: pings.transpose()?,
            to,
            start: Instant::now(),
            before: (!plan.flood && plan.omit_s <= 0.0).then(|| self.done()),
            settled: false,
            here_at: Instant::now(),
            tell,
        };
        let back = trial.ways != Ways::There;
        let attends = plan.interval_s.is_some() || back || trial.pings.is_some();
        self.pour(&mut running, attends)?;
        let (_, cpu_ns) = self.done();
        self.settle(&mut running, attends)?;
        self.result(trial, running, cpu_ns)
    }

    /// What the link and this thread have done so far.
    fn done(&self) -> (TransmitStats, u64) {
        (self.link.tx.stats(), thread_cpu_ns())
    }

    /// Sends for the time of the plan.
    fn pour(&mut self, running: &mut Running<'_>, attends: bool) -> Result<()> {
        loop {
            let step = running.pour.step(&mut self.link)?;
            if running.before.is_none() && running.pour.counts() {
                running.before = Some(self.done());
            }
            if attends {
                self.attend(running)?;
            }
            match step {
                Step::Over => return Ok(()),
                Step::Sent => {}
                Step::Full => std::thread::yield_now(),
                Step::Wait(_) if attends && self.args.spin => std::thread::yield_now(),
                Step::Wait(time) if attends && self.ends.receivers > 0 => {
                    self.link.rx.wait(running.wait(time))?;
                }
                Step::Wait(time) => std::thread::sleep(time),
            }
        }
    }

    /// Hears, asks, pings and tells what is known.
    fn attend(&mut self, running: &mut Running<'_>) -> Result<()> {
        self.hear()?;
        let heard = std::mem::take(&mut self.heard);
        for (from, packet) in &heard {
            match (packet.kind, &mut running.train) {
                (Kind::Ping, Some(train)) => {
                    train.came(packet, running.start.elapsed().as_nanos() as u64)?;
                }
                (Kind::Count, _) => {
                    if let Some(place) = self.place(*from) {
                        running.counts.came(place, packet);
                    }
                }
                _ => {}
            }
        }
        if running.settled || !running.pour.is_over() {
            running.counts.follow(&running.pour.closed);
        }
        let mut sent = false;
        if running.here_at.elapsed() > HERE_EVERY {
            running.here_at = Instant::now();
            sent |= self.put(
                running.to,
                HEADER_BYTES,
                &Packet::ask(Kind::Begin, self.run),
            );
        }
        for question in running.counts.questions(self.run) {
            // One that finds no slot is asked again.
            sent |= self.put(running.to, HEADER_BYTES, &question);
        }
        sent |= self.send_ping(running);
        if sent {
            self.link.tx.flush()?;
        }
        for interval in running.counts.complete(&self.tally) {
            (running.tell)(&interval);
        }
        Ok(())
    }

    fn send_ping(&mut self, running: &mut Running<'_>) -> bool {
        let now_ns = running.start.elapsed().as_nanos() as u64;
        let Some(train) = running.train.as_mut().filter(|_| running.pour.counts()) else {
            return false;
        };
        let Some(ping) = train.next(self.run, now_ns) else {
            return false;
        };
        let went = self.put(To::Node(1), ping.b as usize, &ping);
        if went {
            train.left(now_ns);
        }
        went
    }

    /// Puts a frame of `len` bytes into a slot, if one is free.
    fn put(&mut self, to: To, len: usize, packet: &Packet) -> bool {
        self.link.tx.send(to, len, &mut |slot| {
            slot.fill(0);
            packet.write(slot);
        })
    }

    /// Waits for what is still on its way.
    fn settle(&mut self, running: &mut Running<'_>, attends: bool) -> Result<()> {
        let over = Instant::now();
        // Answers to pings still come in.
        while attends && over.elapsed() < SETTLE {
            self.attend(running)?;
            self.args.idle(&mut self.link)?;
        }
        std::thread::sleep(SETTLE.saturating_sub(over.elapsed()));
        self.link.tx.flush()?;
        running.pour.take_off_dropped(&self.link);
        running.settled = true;
        if !attends {
            return Ok(());
        }
        loop {
            self.attend(running)?;
            let waits = running.train.as_ref().is_some_and(Train::waits);
            let pings = waits && over.elapsed() < PING_WITHIN;
            let counts = running.counts.waits() && over.elapsed() < ANSWER_WITHIN;
            if !pings && !counts {
                break;
            }
            self.args.idle(&mut self.link)?;
        }
        if running.counts.waits() {
            bail!("`recv` has gone: it did not say what arrived in each interval");
        }
        Ok(())
    }

    /// Asks for the end, and sets what came out.
    fn result(&mut self, trial: &Trial, running: Running<'_>, cpu_ns: u64) -> Result<Run> {
        let Running {
            mut pour,
            counts,
            train,
            to,
            before,
            ..
        } = running;
        let (before, began_cpu_ns) = before.unwrap_or((self.link.tx.stats(), cpu_ns));
        let stats = self.link.tx.stats();
        let ends = self.end(to)?;
        let (bytes, plan) = (trial.plan.frame_bytes, &trial.plan);
        let (sent, seconds) = pour.counted();
        let parts = std::mem::take(&mut pour.parts);
        let flow = |end: &Packet| Flow::of(sent, end.a, end.b, seconds);
        let flows: Vec<Flow> = ends.iter().map(flow).collect();
        let fewest = ends.iter().min_by_key(|end| end.a);
        let per_frame = |ns: u64, n: u64| ns as f64 / n.max(1) as f64;
        let mut run = Run {
            frame_bytes: bytes,
            alone: ends.is_empty(),
            offered_frames_per_s: plan.rate,
            seconds,
            sent_frames_per_s: sent as f64 / seconds,
            send_cpu_ns_per_frame: per_frame(cpu_ns.saturating_sub(began_cpu_ns), sent),
            receive_cpu_ns_per_frame: fewest.map_or(0.0, |end| per_frame(end.c, end.a)),
            no_slot: stats.no_slot - before.no_slot,
            send_calls: stats.calls - before.calls,
            parts,
            pings: train.map(|train| train.result()),
            ..Run::default()
        };
        run.put(fewest.map_or(
            Flow {
                sent,
                ..Flow::default()
            },
            flow,
        ));
        if trial.ways != Ways::There {
            let (frames, came) = (self.tally.frames, self.tally.bytes);
            run.back = Some(Flow::of(counts.sent_back, frames, came, seconds));
        }
        if flows.len() > 1 {
            run.receivers = flows;
        }
        Ok(run)
    }
}

impl Running<'_> {
    /// Time until something is to be sent, a ping too.
    fn wait(&self, time: Duration) -> Duration {
        let now_ns = self.start.elapsed().as_nanos() as u64;
        let train = self.train.as_ref().filter(|_| self.pour.counts());
        let ping = train.map(|train| Duration::from_nanos(train.due_in_ns(now_ns)));
        ping.map_or(time, |ping| ping.min(time))
    }
}

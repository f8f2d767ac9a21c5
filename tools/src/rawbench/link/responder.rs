//! `dogwild-rawbench recv`: the end that counts, answers pings, and sends as well where both ways
//! are measured.
//!
//! Serves one driver after the other until it is told to stop, each stream on a thread. Invariant:
//! it counts no frame of another run or session.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use dogwild::node::{
    drop_privileges_after_opening, drop_privileges_before_opening, stop_on_signals,
};
use dogwild_net::{Link, Source, To};
use serde::Serialize;

use super::packet::{HEADER_BYTES, Kind, NOT_YET, Packet, SEND_NOW, SEND_TOO};
use super::plan::Plan;
use super::pour::{Pour, Sender, Step};
use super::tally::Tally;
use super::{Guard, LinkArgs, parallel};
use crate::compare;
use crate::machine::thread_cpu_ns;

/// Frames looked at in one go.
const BATCH: usize = 256;
/// A driver that is silent for so long gets no more frames; it tells each second that it is there.
const GONE: Duration = Duration::from_secs(12);

/// Arguments of `dogwild-rawbench recv`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    link: LinkArgs,
    /// End after this many runs [default: on Ctrl-C]
    #[arg(long, value_name = "N")]
    runs: Option<u64>,
    /// Streams that a driver may use at the same time, with as many threads
    #[arg(short = 'P', long, value_name = "N", default_value_t = 1, value_parser = parallel())]
    parallel: u32,
    /// Also serve iperf3, for the other host's --compare
    #[arg(long)]
    compare: bool,
}

/// One run of a driver, as this end saw it.
#[derive(Debug, Default, Serialize)]
struct Run {
    /// Number of the stream, from 1.
    stream: u32,
    run: u64,
    frames: u64,
    bytes: u64,
    /// From the first frame to the last.
    seconds: f64,
    cpu_ns: u64,
    kernel_drops: u64,
    #[serde(skip)]
    began_cpu_ns: u64,
    #[serde(skip)]
    began_drops: u64,
    #[serde(skip)]
    first: Option<Instant>,
    #[serde(skip)]
    ended: bool,
}

impl Args {
    pub(crate) fn run(mut self) -> Result<()> {
        let stop = stop_on_signals()?;
        let transport = self.link.transport.transport;
        drop_privileges_before_opening(transport)?;
        let links: Result<Vec<Link>> = (0..self.parallel)
            .map(|stream| self.link.open(stream))
            .collect();
        let links = links?;
        let _server = self.compare.then(iperf3_server).transpose()?;
        drop_privileges_after_opening(transport)?;
        dogwild_lab::progress!(
            "listening on {} ({}, session `{}`): start `dogwild-rawbench send`, `ping`, `sweep` or `latency` on the other host; Ctrl-C ends this",
            self.link.iface(),
            transport.name(),
            self.link.session,
        );
        let (args, stop) = (&self, &*stop);
        let serve = |(stream, link): (u32, Link)| {
            let served = Responder::new(stream, link).serve(args, stop);
            // One stream that cannot go on ends them all.
            if served.is_err() {
                stop.store(true, Relaxed);
            }
            served
        };
        thread::scope(|scope| {
            let mut streams = (1..).zip(links);
            let first = streams.next();
            let others: Vec<_> = streams.map(|one| scope.spawn(move || serve(one))).collect();
            let mut served = first.map_or(Ok(()), serve);
            for other in others {
                let other = other
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                served = served.and(other);
            }
            served
        })
    }
}

fn iperf3_server() -> Result<Guard> {
    let Some(iperf3) = compare::find("iperf3") else {
        bail!("--compare: iperf3 is not installed (apt-get install iperf3)");
    };
    let mut command = Command::new(iperf3);
    command.arg("-s").stdin(Stdio::null()).stdout(Stdio::null());
    dogwild_lab::process::die_with_parent(&mut command);
    Ok(Guard(command.spawn()?))
}

struct Responder {
    link: Link,
    tally: Tally,
    run: Run,
    /// What this end is to send, and what it does of it.
    plan: Option<Plan>,
    pour: Option<Pour>,
    /// Not only when the driver's first frame has come.
    at_once: bool,
    /// When the driver's last frame came.
    heard_at: Instant,
    finished: u64,
}

impl Responder {
    fn new(stream: u32, link: Link) -> Self {
        Self {
            tally: Tally::new(link.tx.mtu()),
            link,
            run: Run {
                stream,
                ..Run::default()
            },
            plan: None,
            pour: None,
            at_once: false,
            heard_at: Instant::now(),
            finished: 0,
        }
    }

    fn serve(mut self, args: &Args, stop: &AtomicBool) -> Result<()> {
        // After the last run the driver may not have the answer to its End yet.
        let mut leave_at: Option<Instant> = None;
        while !stop.load(Relaxed) && leave_at.is_none_or(|at| Instant::now() < at) {
            let got = self.turn(args)?;
            if !self.sends()? && got == 0 {
                args.link.idle(&mut self.link)?;
            }
            if args.runs.is_some_and(|runs| self.finished >= runs) {
                leave_at.get_or_insert_with(|| Instant::now() + super::driver::ANSWER_WITHIN);
            }
        }
        Ok(())
    }

    /// Takes what has arrived and answers; returns the number of frames.
    fn turn(&mut self, args: &Args) -> Result<usize> {
        let (run, tally) = (&self.run, &mut self.tally);
        let mut asked: Vec<(Source, Packet, Option<Plan>)> = Vec::new();
        let before = tally.frames;
        let got = self.link.rx.recv(BATCH, &mut |from, bytes| {
            let Some(packet) = Packet::parse(bytes).filter(|packet| !packet.answer) else {
                return;
            };
            if packet.kind != Kind::Data {
                asked.push((from, packet, Plan::parse(&bytes[HEADER_BYTES..])));
            } else if packet.run == run.run && !run.ended {
                tally.take(&packet, bytes);
            }
        })?;
        if self.tally.frames > before {
            self.time();
        }
        if got > 0 && self.plan.is_some() {
            self.heard_at = Instant::now();
        }
        for (from, packet, plan) in asked {
            self.link.tx.learn(0, from);
            self.answer(args, packet, plan)?;
        }
        Ok(got)
    }

    /// Counted frames have come.
    fn time(&mut self) {
        let run = &mut self.run;
        let first = run.first.is_none();
        let since = run.first.get_or_insert_with(Instant::now);
        run.seconds = since.elapsed().as_secs_f64();
        if first && self.tally.omitted > 0 {
            // What the omitted ones took is no part of the result.
            run.began_cpu_ns = thread_cpu_ns();
            run.began_drops = self.link.rx.stats().kernel_drops;
        }
    }

    /// Sends what the driver has asked for; true if there is more now.
    fn sends(&mut self) -> Result<bool> {
        let may = self.at_once || self.tally.has_begun();
        if let (Some(plan), None, true) = (&self.plan, &self.pour, may) {
            let to = match plan.unicast {
                true => To::Node(0),
                false => To::Group,
            };
            self.pour = Some(Pour::new(
                plan,
                Sender {
                    run: self.run.run,
                    to,
                    answer: true,
                    heads_only: false,
                },
            ));
        }
        if self.heard_at.elapsed() > GONE {
            (self.plan, self.pour) = (None, None);
        }
        let Some(pour) = self.pour.as_mut().filter(|pour| !pour.is_over()) else {
            return Ok(false);
        };
        Ok(match pour.step(&mut self.link)? {
            Step::Sent => true,
            Step::Full => {
                thread::yield_now();
                true
            }
            Step::Wait(_) => false,
            Step::Over => {
                pour.take_off_dropped(&self.link);
                false
            }
        })
    }

    fn answer(&mut self, args: &Args, mut packet: Packet, plan: Option<Plan>) -> Result<()> {
        packet.answer = true;
        let mut len = HEADER_BYTES;
        match packet.kind {
            Kind::Begin if packet.run != self.run.run => {
                self.begin(&packet, plan);
            }
            Kind::End if packet.run == self.run.run => {
                if self.pour.as_ref().is_some_and(|pour| !pour.is_over()) {
                    // The driver asks again.
                    return Ok(());
                }
                self.end(args)?;
                (packet.a, packet.b, packet.c) = (self.run.frames, self.run.bytes, self.run.cpu_ns);
            }
            Kind::Count if packet.run == self.run.run => {
                packet.b = self.tally.of(packet.mark());
                packet.c = self.sent_of(&packet);
            }
            // Of a run that this end never saw begin.
            Kind::End | Kind::Count => return Ok(()),
            Kind::Ping => len = (packet.b as usize).clamp(HEADER_BYTES, self.link.tx.mtu()),
            Kind::Begin | Kind::Data => {}
        }
        // A refused answer is like a lost one: the driver asks again.
        self.link.tx.send(To::Node(0), len, &mut |slot| {
            slot.fill(0);
            packet.write(slot);
        });
        self.link.tx.flush()?;
        Ok(())
    }

    fn begin(&mut self, packet: &Packet, plan: Option<Plan>) {
        let fits = HEADER_BYTES..=self.link.tx.mtu();
        let asked = packet.a == SEND_TOO || packet.a == SEND_NOW;
        self.plan = plan.filter(|plan| asked && fits.contains(&plan.frame_bytes));
        self.at_once = packet.a == SEND_NOW;
        self.pour = None;
        self.heard_at = Instant::now();
        self.tally.clear();
        self.run = Run {
            stream: self.run.stream,
            run: packet.run,
            began_cpu_ns: thread_cpu_ns(),
            began_drops: self.link.rx.stats().kernel_drops,
            ..Run::default()
        };
    }

    /// Frames that this end sent with the mark of a question.
    fn sent_of(&self, question: &Packet) -> u64 {
        let Some(pour) = &self.pour else {
            // Without a frame from the driver nothing is sent.
            return 0;
        };
        let mark = question.mark();
        let closed = pour.closed.iter().rev().find(|slice| slice.mark == mark);
        let none = if pour.is_over() { 0 } else { NOT_YET };
        closed.map_or(none, |slice| slice.sent)
    }

    fn end(&mut self, args: &Args) -> Result<()> {
        let run = &mut self.run;
        if run.ended {
            return Ok(());
        }
        run.ended = true;
        (run.frames, run.bytes) = (self.tally.frames, self.tally.bytes);
        run.cpu_ns = thread_cpu_ns().saturating_sub(run.began_cpu_ns);
        run.kernel_drops = self.link.rx.stats().kernel_drops - run.began_drops;
        self.finished += 1;
        if args.link.json {
            dogwild_lab::say!("{}", serde_json::to_string(run)?);
        } else {
            dogwild_lab::say!(
                "{} frames in {:.3} s: {:.0} frames/s, {:.3} Gb/s, dropped by the kernel {}",
                run.frames,
                run.seconds,
                run.frames as f64 / run.seconds.max(1e-9),
                run.bytes as f64 * 8.0 / run.seconds.max(1e-9) / 1e9,
                run.kernel_drops,
            );
        }
        Ok(())
    }
}

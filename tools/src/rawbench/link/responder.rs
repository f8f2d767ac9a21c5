//! `dogwild-rawbench recv`: the end that counts, and answers pings.
//!
//! Serves one driver after the other until it is told to stop. Invariant: it reads every byte of
//! what it counts, and counts no frame of another run or session.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use anyhow::{Result, bail};
use dogwild::node::{
    drop_privileges_after_opening, drop_privileges_before_opening, stop_on_signals,
};
use dogwild_net::{Link, Source, To};
use serde::Serialize;

use super::packet::{HEADER_BYTES, Kind, Packet};
use super::{Guard, LinkArgs};
use crate::compare;
use crate::machine::thread_cpu_ns;
use crate::raw;

/// Frames looked at in one go.
const BATCH: usize = 256;

/// Arguments of `dogwild-rawbench recv`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    link: LinkArgs,
    /// End after this many runs [default: on Ctrl-C]
    #[arg(long, value_name = "N")]
    runs: Option<u64>,
    /// Also serve iperf3, for the other host's --compare
    #[arg(long)]
    compare: bool,
}

/// One run of a driver, as this end saw it.
#[derive(Debug, Default, Serialize)]
struct Run {
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
        let link = self.link.open()?;
        let _server = self.compare.then(iperf3_server).transpose()?;
        drop_privileges_after_opening(transport)?;
        dogwild_lab::note!(
            "listening on {} ({}, session `{}`): start `dogwild-rawbench send`, `ping` or `sweep` on the other host; Ctrl-C ends this",
            self.link.iface(),
            transport.name(),
            self.link.session,
        );
        let mut responder = Responder {
            sink: vec![0; link.tx.mtu()],
            link,
            run: Run::default(),
            finished: 0,
        };
        responder.serve(&self, &stop)
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
    sink: Vec<u8>,
    run: Run,
    finished: u64,
}

impl Responder {
    fn serve(&mut self, args: &Args, stop: &AtomicBool) -> Result<()> {
        // After the last run the driver may not have the answer to its End yet.
        let mut leave_at: Option<Instant> = None;
        while !stop.load(Relaxed) && leave_at.is_none_or(|at| Instant::now() < at) {
            if self.turn(args)? == 0 {
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
        let (run, sink) = (&mut self.run, &mut self.sink);
        let mut asked: Vec<(Source, Packet)> = Vec::new();
        let mut last = None;
        let got = self.link.rx.recv(BATCH, &mut |from, bytes| {
            let Some(packet) = Packet::parse(bytes).filter(|packet| !packet.answer) else {
                return;
            };
            if packet.kind != Kind::Data {
                asked.push((from, packet));
            } else if packet.run == run.run && !run.ended {
                let n = bytes.len().min(sink.len());
                raw::copy(&mut sink[..n], &bytes[..n]);
                run.frames += 1;
                run.bytes += n as u64;
                last = run.first.is_none().then(Instant::now).or(last);
                run.first = run.first.or(last);
            }
        })?;
        std::hint::black_box(&mut self.sink);
        if let (Some(first), true) = (self.run.first, got > 0 && !self.run.ended) {
            self.run.seconds = first.elapsed().as_secs_f64();
        }
        for (from, packet) in asked {
            self.link.tx.learn(0, from);
            self.answer(args, packet)?;
        }
        Ok(got)
    }

    fn answer(&mut self, args: &Args, mut packet: Packet) -> Result<()> {
        packet.answer = true;
        let mut len = HEADER_BYTES;
        match packet.kind {
            Kind::Begin if packet.run != self.run.run => {
                self.run = Run {
                    run: packet.run,
                    began_cpu_ns: thread_cpu_ns(),
                    began_drops: self.link.rx.stats().kernel_drops,
                    ..Run::default()
                };
            }
            Kind::End if packet.run == self.run.run => {
                self.end(args)?;
                (packet.a, packet.b, packet.c) = (self.run.frames, self.run.bytes, self.run.cpu_ns);
            }
            // The end of a run that this end never saw begin.
            Kind::End => return Ok(()),
            Kind::Ping => len = (packet.b as usize).clamp(HEADER_BYTES, self.sink.len()),
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

    fn end(&mut self, args: &Args) -> Result<()> {
        let run = &mut self.run;
        if run.ended {
            return Ok(());
        }
        run.ended = true;
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

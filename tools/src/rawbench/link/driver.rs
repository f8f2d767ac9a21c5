//! The end that drives: finds `recv`, sends frames at a rate or as fast as it can, asks what
//! arrived, and pings.
//!
//! Invariant: a run has its own number, which both ends put into every frame, so that late frames
//! of one are not counted for another.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};
use dogwild_net::bucket::Bucket;
use dogwild_net::{Link, Source, To};
use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};

use super::LinkArgs;
use super::packet::{HEADER_BYTES, Kind, Packet};
use crate::machine::thread_cpu_ns;
use crate::raw::{BATCH, burst};

/// Time for `recv` to be started on the other host.
const BEGIN_WITHIN: Duration = Duration::from_secs(10);
/// Time for an answer at the end of a run; `recv` stays as long after its last one.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Between two times of asking the same.
const ASK_EVERY: Duration = Duration::from_millis(20);
/// After this a ping counts as lost.
const PING_WITHIN: Duration = Duration::from_millis(200);
/// Pings before the first that is counted: routes, caches, clocks.
const WARM_UP_PINGS: u64 = 10;
/// Frames may lie this long in a block of a receive ring.
const SETTLE: Duration = Duration::from_millis(20);
/// Parts that a run's rate is plotted in.
const PARTS: f64 = 50.0;

/// What to send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trial {
    /// Payload of each frame.
    pub(crate) frame_bytes: usize,
    pub(crate) seconds: f64,
    /// Frames per second; none: as fast as it goes.
    pub(crate) rate: Option<f64>,
    /// To the other node instead of the group.
    pub(crate) unicast: bool,
}

/// End of each part of a run in seconds, and frames/s sent in it.
type Parts = Vec<(f64, f64)>;

/// What became of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) frame_bytes: usize,
    /// No responder counted what arrived.
    pub(crate) alone: bool,
    pub(crate) offered_frames_per_s: Option<f64>,
    pub(crate) seconds: f64,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) lost_share: f64,
    pub(crate) sent_frames_per_s: f64,
    pub(crate) received_frames_per_s: f64,
    /// Of payload.
    pub(crate) received_bits_per_s: f64,
    pub(crate) send_cpu_ns_per_frame: f64,
    /// Waiting for frames included.
    pub(crate) receive_cpu_ns_per_frame: f64,
    /// Times that no slot was free.
    pub(crate) no_slot: u64,
    /// System calls that sending took.
    #[serde(default)]
    pub(crate) send_calls: u64,
    /// What the interface counted, where it counts frames one by one (raw Ethernet in a lab).
    #[serde(default)]
    pub(crate) interface_sent_frames_per_s: Option<f64>,
    /// The rate over time.
    pub(crate) parts: Parts,
}

impl Run {
    /// Frames sent per second by the count that peer tools are held to as well; by our own where
    /// there is none.
    pub(crate) fn sent_by_interface(&self) -> f64 {
        self.interface_sent_frames_per_s
            .unwrap_or(self.sent_frames_per_s)
    }
}

/// Round trips.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Pings {
    pub(crate) frame_bytes: usize,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    pub(crate) max_us: f64,
    pub(crate) mean_us: f64,
    /// Per cent of the round trips, and the time they took at most, µs.
    pub(crate) percentiles: Vec<(f64, f64)>,
}

/// The end that drives.
pub(crate) struct Driver {
    link: Link,
    args: LinkArgs,
    run: u64,
    /// There is no responder: none is looked for or asked.
    alone: bool,
    bar: ProgressBar,
}

impl Driver {
    /// Opens the link, and finds `recv` unless this end is `alone`.
    pub(crate) fn open(args: &mut LinkArgs, alone: bool) -> Result<Self> {
        let link = args.open()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let bar = ProgressBar::new(0);
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {wide_msg}") {
            bar.set_style(style);
        }
        let mut driver = Self {
            link,
            args: args.clone(),
            // Two drivers after each other must not take each other's answers.
            run: now.map_or(1, |now| now.as_nanos() as u64),
            alone,
            bar,
        };
        driver.begin()?;
        Ok(driver)
    }

    /// Payload of a full frame.
    pub(crate) fn payload_max(&self) -> usize {
        self.link.tx.mtu()
    }

    /// Prints how far the measurement is: part `done` of `all`.
    pub(crate) fn progress(&self, done: u64, all: u64, doing: String) {
        self.bar.set_length(all);
        self.bar.set_position(done);
        self.bar.set_message(doing);
        if done == all {
            self.bar.finish_and_clear();
        }
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

    fn begin(&mut self) -> Result<()> {
        self.run += 1;
        if self.alone {
            return Ok(());
        }
        let begin = Packet::ask(Kind::Begin, self.run);
        match self.ask(To::Group, begin, HEADER_BYTES, ASK_EVERY, BEGIN_WITHIN)? {
            Some((from, _)) => {
                self.link.tx.learn(1, from);
                Ok(())
            }
            None => bail!(
                "nothing answers on `{}`: run `dogwild-rawbench recv` on the other host with the \
                 same --transport and --session (or use --lab); a firewall may be in the way",
                self.args.iface()
            ),
        }
    }

    /// Sends `packet` each `every` until it is answered; none if no answer comes `within` that
    /// time.
    fn ask(
        &mut self,
        to: To,
        packet: Packet,
        len: usize,
        every: Duration,
        within: Duration,
    ) -> Result<Option<(Source, Packet)>> {
        let start = Instant::now();
        let mut due = Duration::ZERO;
        let mut found = None;
        while found.is_none() && start.elapsed() < within {
            if start.elapsed() >= due {
                due = start.elapsed() + every;
                self.link.tx.send(to, len, &mut |slot| {
                    slot.fill(0);
                    packet.write(slot);
                });
                self.link.tx.flush()?;
            }
            let got = self.link.rx.recv(BATCH, &mut |from, bytes| {
                let answer = Packet::parse(bytes).filter(|heard| {
                    heard.answer && heard.kind == packet.kind && heard.run == packet.run
                });
                // An answered End carries counts in `a`; an answered ping its number.
                let same = |heard: &Packet| heard.kind != Kind::Ping || heard.a == packet.a;
                found = answer.filter(same).map(|heard| (from, heard)).or(found);
            })?;
            if got == 0 {
                self.args.idle(&mut self.link)?;
            }
        }
        Ok(found)
    }

    /// Sends frames and asks what arrived.
    pub(crate) fn send(&mut self, trial: &Trial) -> Result<Run> {
        self.check_frame(trial.frame_bytes)?;
        self.begin()?;
        let to = if trial.unicast {
            To::Node(1)
        } else {
            To::Group
        };
        let mut payload = vec![0x5A; trial.frame_bytes];
        Packet::ask(Kind::Data, self.run).write(&mut payload);
        let before = (self.link.tx.stats(), thread_cpu_ns());
        let (mut sent, seconds, parts) = self.pour(to, &payload, trial)?;
        let cpu_ns = thread_cpu_ns().saturating_sub(before.1);
        std::thread::sleep(SETTLE);
        self.link.tx.flush()?;
        let stats = self.link.tx.stats();
        sent -= (stats.dropped - before.0.dropped).min(sent);
        let end = Packet::ask(Kind::End, self.run);
        let end = if self.alone {
            end
        } else {
            match self.ask(to, end, HEADER_BYTES, ASK_EVERY, ANSWER_WITHIN)? {
                Some((_, end)) => end,
                None => bail!("`recv` has gone: it did not say what arrived"),
            }
        };
        let (received, per_frame) = (end.a, |ns: u64, n: u64| ns as f64 / n.max(1) as f64);
        Ok(Run {
            frame_bytes: trial.frame_bytes,
            offered_frames_per_s: trial.rate,
            seconds,
            sent,
            received,
            lost_share: if self.alone {
                0.0
            } else {
                sent.saturating_sub(received) as f64 / sent.max(1) as f64
            },
            alone: self.alone,
            sent_frames_per_s: sent as f64 / seconds,
            received_frames_per_s: received as f64 / seconds,
            received_bits_per_s: end.b as f64 * 8.0 / seconds,
            send_cpu_ns_per_frame: per_frame(cpu_ns, sent),
            receive_cpu_ns_per_frame: per_frame(end.c, received),
            no_slot: stats.no_slot - before.0.no_slot,
            send_calls: stats.calls - before.0.calls,
            interface_sent_frames_per_s: None,
            parts,
        })
    }

    /// Sends for the time of `trial`; returns frames, seconds, and the rate in parts of it.
    fn pour(&mut self, to: To, payload: &[u8], trial: &Trial) -> Result<(u64, f64, Parts)> {
        // Peer tools prepare their frames once; with a receiver, every byte is written and read.
        let fresh = if self.alone {
            HEADER_BYTES
        } else {
            payload.len()
        };
        let start = Instant::now();
        let (mut sent, mut parts, mut part) = (0u64, Vec::new(), (0.0, 0u64));
        // A bucket of tokens: what a pause has left undone is made up for up to a millisecond.
        let mut bucket = trial
            .rate
            .map(|rate| Bucket::new(rate, (rate / 1000.0).max(1.0), 0.0));
        loop {
            let now = start.elapsed().as_secs_f64();
            if now - part.0 >= trial.seconds / PARTS {
                parts.push((now, (sent - part.1) as f64 / (now - part.0)));
                part = (now, sent);
            }
            if now >= trial.seconds {
                return Ok((sent, now, parts));
            }
            let mut count = BATCH as u64;
            if let Some(bucket) = &mut bucket {
                bucket.refill((now * 1e9) as u64);
                count = count.min(bucket.tokens() as u64);
                if count == 0 {
                    let left = Duration::from_secs_f64((trial.seconds - now).clamp(0.0, 0.01));
                    std::thread::sleep(bucket.wait(1.0).min(left));
                    continue;
                }
            }
            let went = burst(&mut self.link, to, payload, fresh, count)?;
            sent += went;
            if let Some(bucket) = &mut bucket {
                bucket.take(went as f64);
            }
            if went < count {
                std::thread::yield_now();
            }
        }
    }

    /// One ping after the other.
    pub(crate) fn ping(&mut self, frame_bytes: usize, seconds: f64) -> Result<Pings> {
        self.check_frame(frame_bytes)?;
        let mut times = Histogram::<u64>::new(3)?;
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
            let to = To::Node(1);
            let answer = self.ask(to, packet, frame_bytes, PING_WITHIN, PING_WITHIN)?;
            let took = asked.elapsed().as_nanos() as u64;
            if warm_up > 0 {
                warm_up -= 1;
                start = Instant::now();
                continue;
            }
            sent += 1;
            match answer {
                Some(_) => times.record(took)?,
                None => lost += 1,
            }
            let done = start.elapsed().as_secs_f64() / seconds * 100.0;
            let text = format!("{sent} pings, {lost} lost");
            self.progress((done as u64).min(99), 100, text);
        }
        self.progress(1, 1, String::new());
        let us = |quantile: f64| times.value_at_quantile(quantile) as f64 / 1e3;
        let steps = (0..=99).map(f64::from).chain([99.5, 99.9, 99.99, 100.0]);
        Ok(Pings {
            frame_bytes,
            sent,
            received: sent - lost,
            p50_us: us(0.5),
            p99_us: us(0.99),
            p999_us: us(0.999),
            max_us: times.max() as f64 / 1e3,
            mean_us: times.mean() / 1e3,
            percentiles: steps
                .map(|per_cent| (per_cent, us(per_cent / 100.0)))
                .collect(),
        })
    }
}

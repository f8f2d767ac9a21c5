//! The attacker: a host on the same network that hears the stream and has no key.
//!
//! It records genuine frames first. Then it sends runs of frames of one kind and length, as the
//! kernel sends them fastest: forged ones most of the time, and recorded ones as they were,
//! damaged, cut, or without their seal. No two forged frames are the same.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use dogwild::cli::args::transports;
use dogwild::node::{Transport, TransportSpec, cpu_ns, open_link};
use dogwild_net::{Link, To, Transmit, seal};
use rand::{Rng, RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::{Deserialize, Serialize};

/// Genuine frames that it records.
const RECORDED: usize = 500;
/// How long it listens for them.
const LISTEN: Duration = Duration::from_secs(10);
/// Frames of a run.
const RUN: u64 = 64;
/// Runs until the kinds begin anew: the last four are of recorded frames.
const RUNS: u64 = 16;

/// Arguments of the hidden component.
#[derive(Debug, clap::Args)]
pub(crate) struct AttackerArgs {
    #[arg(long, value_parser = transports())]
    transport: Transport,
    #[arg(long)]
    iface: Option<String>,
    #[arg(long)]
    mtu: usize,
    #[arg(long)]
    session: u64,
    #[arg(long)]
    frames: u64,
    #[arg(long)]
    forged_bytes: usize,
    #[arg(long)]
    attack_rate: Option<u64>,
}

/// What it did.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Outcome {
    /// Frames that the transport took.
    pub(super) sent: u64,
    /// Those of them that the kernel did not take in the end.
    pub(super) dropped: u64,
    pub(super) seconds: f64,
    pub(super) cpu_share: f64,
}

impl AttackerArgs {
    pub(crate) fn run(self) -> Result<()> {
        let spec = TransportSpec {
            mtu: Some(self.mtu),
            ..TransportSpec::of(self.transport, self.iface.clone())
        };
        let mut link = open_link(&spec, self.session)?;
        let recorded = record(&mut link)?;
        // What is received from now on would only take time.
        let Link { mut tx, rx } = link;
        drop(rx);
        let start = Instant::now();
        let cpu = cpu_ns();
        let sent = self.storm(tx.as_mut(), &recorded)?;
        let seconds = start.elapsed().as_secs_f64();
        let outcome = Outcome {
            sent,
            dropped: tx.stats().dropped,
            seconds,
            cpu_share: (cpu_ns() - cpu) as f64 / 1e9 / seconds,
        };
        dogwild_lab::say!("{}", serde_json::to_string(&outcome)?);
        Ok(())
    }

    fn storm(&self, tx: &mut dyn Transmit, recorded: &[Vec<u8>]) -> Result<u64> {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(7);
        let mut frame = Vec::new();
        let start = Instant::now();
        let mut sent = 0;
        for turn in 0.. {
            if sent >= self.frames {
                break;
            }
            let genuine = &recorded[rng.random_range(0..recorded.len())];
            let kind = turn % RUNS;
            for _ in 0..RUN.min(self.frames - sent) {
                self.fill(kind, genuine, &mut rng, &mut frame);
                while !tx.send(To::Group, frame.len(), &mut |slot| {
                    slot.copy_from_slice(&frame)
                }) {
                    tx.flush()?;
                    std::thread::sleep(Duration::from_micros(20));
                }
                sent += 1;
            }
            if let Some(rate) = self.attack_rate {
                tx.flush()?;
                let due = Duration::from_secs_f64(sent as f64 / rate as f64);
                std::thread::sleep(due.saturating_sub(start.elapsed()));
            }
        }
        tx.flush()?;
        Ok(sent)
    }

    /// The next frame of a run of this kind.
    fn fill(&self, kind: u64, genuine: &[u8], rng: &mut impl Rng, frame: &mut Vec<u8>) {
        if kind < RUNS - 4 {
            frame.resize(self.forged_bytes, 0);
            rng.fill_bytes(frame);
            return;
        }
        frame.clear();
        frame.extend_from_slice(genuine);
        match RUNS - kind {
            // As it was: taken already.
            4 => {}
            3 => {
                let bit = rng.random_range(0..frame.len() * 8);
                frame[bit / 8] ^= 1 << (bit % 8);
            }
            // Too short for a seal.
            2 => frame.truncate(seal::OVERHEAD_BYTES - 1),
            // As from a node that knows no seals.
            _ => frame.truncate(frame.len() - seal::OVERHEAD_BYTES),
        }
    }
}

fn record(link: &mut Link) -> Result<Vec<Vec<u8>>> {
    let mut recorded = Vec::new();
    let start = Instant::now();
    while recorded.len() < RECORDED && start.elapsed() < LISTEN {
        link.rx.wait(Duration::from_millis(10))?;
        let each = &mut |_, frame: &[u8]| recorded.push(frame.to_vec());
        link.rx.recv(RECORDED, each)?;
    }
    ensure!(
        !recorded.is_empty(),
        "the attacker hears no frame of the stream: multicast does not reach it"
    );
    Ok(recorded)
}

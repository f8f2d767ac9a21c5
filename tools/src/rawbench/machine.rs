//! The machine, interface and settings that a figure was measured with.
//!
//! Reads /proc, /sys and the list of interfaces; times copies between two cores.

use std::fs;
use std::process::Command;
use std::sync::mpsc::{self, TryRecvError};
use std::time::{Duration, Instant};

use dogwild_net::{iface, verbs};
use serde::{Deserialize, Serialize};

/// Where something was measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) kernel: String,
    /// Load average of the last minute: others were measuring too.
    pub(crate) load: f64,
    pub(crate) iface: String,
    pub(crate) mtu: usize,
    pub(crate) speed_mbit_per_s: Option<u32>,
    pub(crate) driver: Option<String>,
}

impl Machine {
    pub(crate) fn here(iface: &str) -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let model = cpuinfo.lines().find(|line| line.starts_with("model name"));
        let model = model.and_then(|line| Some(line.split_once(':')?.1.trim().to_owned()));
        // The name of an RDMA port stands for the interface it belongs to.
        let of_port = || {
            let port = verbs::find(Some(iface)).ok()?;
            iface::find(port.interfaces.first()?).ok()
        };
        let found = iface::find(iface).ok().or_else(of_port);
        let load = read("/proc/loadavg");
        Self {
            processor: model.unwrap_or_else(|| "unknown".into()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            load: load
                .split(' ')
                .next()
                .and_then(|l| l.parse().ok())
                .unwrap_or(0.0),
            iface: iface.to_owned(),
            mtu: found.as_ref().map_or(0, |found| found.mtu),
            speed_mbit_per_s: found.as_ref().and_then(iface::Interface::speed_mbit_per_s),
            driver: found.as_ref().and_then(iface::Interface::driver),
        }
    }
}

/// CPU time of the calling thread so far, ns; the kernel brings it up to date each tick.
pub(crate) fn thread_cpu_ns() -> u64 {
    // The first word of schedstat is time on a CPU in ns (Documentation/scheduler/sched-stats.rst).
    fs::read_to_string("/proc/thread-self/schedstat")
        .ok()
        .and_then(|text| text.split(' ').next()?.parse().ok())
        .unwrap_or_else(dogwild::node::cpu_ns)
}

/// How fast a core writes into lines that another has just read, bytes/s: what sender and receiver
/// on two cores do to each other through the kernel's packet buffers. Takes some 50 ms.
///
/// Cores that share a last-level cache do ten times what others do, and the host of a virtual
/// machine moves it between such pairs. Rates of frames change with that by a factor of two and
/// more.
pub(crate) fn core_to_core_bytes_per_s() -> f64 {
    const BLOCK: usize = 32 << 10;
    const BLOCKS: usize = 64;
    const LAPS: usize = 32;
    let (full_in, full_out) = mpsc::channel::<Vec<u8>>();
    let (empty_in, empty_out) = mpsc::channel::<Vec<u8>>();
    // Both threads spin: one that slept would be woken on the core of the other.
    let reader = std::thread::spawn(move || {
        let mut sink = vec![0u8; BLOCK];
        loop {
            match full_out.try_recv() {
                Ok(block) => {
                    super::raw::copy(&mut sink, &block);
                    std::hint::black_box(&mut sink);
                    if empty_in.send(block).is_err() {
                        break;
                    }
                }
                Err(TryRecvError::Empty) => std::hint::spin_loop(),
                Err(TryRecvError::Disconnected) => break,
            }
        }
    });
    let source = vec![1u8; BLOCK];
    let mut busy = Duration::ZERO;
    for i in 0..LAPS * BLOCKS {
        // The first lap's blocks are fresh; they are not counted.
        let mut block = if i < BLOCKS {
            vec![0; BLOCK]
        } else {
            loop {
                match empty_out.try_recv() {
                    Ok(block) => break block,
                    Err(TryRecvError::Empty) => std::hint::spin_loop(),
                    Err(TryRecvError::Disconnected) => panic!("the reader lives until we hang up"),
                }
            }
        };
        let start = Instant::now();
        super::raw::copy(&mut block, std::hint::black_box(&source));
        if i >= BLOCKS {
            busy += start.elapsed();
        }
        full_in
            .send(block)
            .expect("the reader lives until we hang up");
    }
    drop(full_in);
    // It cannot panic.
    let _ = reader.join();
    ((LAPS - 1) * BLOCKS * BLOCK) as f64 / busy.as_secs_f64()
}

/// What an interface has counted so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InterfaceCounters {
    pub(crate) received_bytes: u64,
    pub(crate) received_frames: u64,
    pub(crate) sent_frames: u64,
    pub(crate) sent_bytes: u64,
}

impl InterfaceCounters {
    /// Those of `iface` in the network namespace where `cat` will run.
    pub(crate) fn read(mut cat: Command, iface: &str) -> Option<Self> {
        let output = cat.arg("/proc/net/dev").output().ok()?;
        Self::parse(&String::from_utf8_lossy(&output.stdout), iface)
    }

    fn parse(text: &str, iface: &str) -> Option<Self> {
        let start = format!("{iface}:");
        let mut lines = text.lines();
        let line = lines.find_map(|line| line.trim().strip_prefix(&start))?;
        // Bytes, packets and six more of what came, then the same of what went.
        let mut words = line.split_ascii_whitespace().map(str::parse);
        let mut nth = |n: usize| words.nth(n)?.ok();
        Some(Self {
            received_bytes: nth(0)?,
            received_frames: nth(0)?,
            sent_bytes: nth(6)?,
            sent_frames: nth(0)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_those_of_the_interface() {
        let text = "Inter-| Receive | Transmit\n face |bytes packets\n    \
            lo: 1 2 3 4 5 6 7 8 9 10 11 12\n  eth0:11 12 0 0 0 0 0 0 21 22 0 0\n";
        let counters = InterfaceCounters::parse(text, "eth0").expect("eth0");
        assert_eq!(
            [
                counters.received_bytes,
                counters.received_frames,
                counters.sent_bytes,
                counters.sent_frames
            ],
            [11, 12, 21, 22]
        );
        assert!(InterfaceCounters::parse(text, "eth1").is_none());
    }
}

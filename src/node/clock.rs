//! Time and CPU time, for the loops of this module.

use std::time::Instant;

/// A monotonic clock in ns since its start.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// A clock that starts now. Its zero lies a little back, so that no reading is 0.
    pub fn start() -> Self {
        Self {
            start: Instant::now(),
        }
    }

    /// Time since the start, ns.
    pub fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64 + 1
    }
}

/// CPU time of this process so far, ns; 0 where /proc does not say.
pub fn cpu_ns() -> u64 {
    // schedstat's first word counts ns on a CPU, for the main thread only; utime and stime of
    // /proc/self/stat (fields 14 and 15) cover all threads, in clock ticks of 10 ms.
    let Ok(stat) = std::fs::read_to_string("/proc/self/stat") else {
        return 0;
    };
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks: u64 = after_name
        .split_ascii_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|f| f.parse::<u64>().ok())
        .sum();
    ticks * 10_000_000
}

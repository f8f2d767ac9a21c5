//! What this process has used so far, as the kernel counts it.

use std::time::Instant;

use anyhow::{Context, Result};

use super::Cost;

/// Ticks per second of the times in /proc (USER_HZ).
const TICKS_PER_S: f64 = 100.0;

/// Time and counters of this process at one moment, those of threads that have ended too.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usage {
    at: Instant,
    cpu_s: f64,
    page_faults: f64,
}

impl Usage {
    /// Reads `/proc/self/stat` (proc_pid_stat(5)).
    pub(super) fn now() -> Result<Self> {
        let text = std::fs::read_to_string("/proc/self/stat").context("/proc/self/stat")?;
        // The second field is the name in brackets, which may hold blanks.
        let (_, behind) = text
            .rsplit_once(')')
            .context("/proc/self/stat has no name")?;
        let fields: Vec<&str> = behind.split_whitespace().collect();
        // The first one behind the name has number 3.
        let field = |number: usize| -> Result<f64> {
            let text = fields.get(number - 3).context("/proc/self/stat is short")?;
            Ok(text.parse()?)
        };
        Ok(Self {
            at: Instant::now(),
            cpu_s: (field(14)? + field(15)?) / TICKS_PER_S,
            page_faults: field(10)?,
        })
    }

    /// What each of `iterations` took until `end`.
    pub(super) fn cost_until(self, end: Self, iterations: u64, sent_bytes: f64) -> Cost {
        let n = iterations as f64;
        Cost {
            seconds: (end.at - self.at).as_secs_f64() / n,
            cpu_s: (end.cpu_s - self.cpu_s) / n,
            sent_bytes,
            page_faults: (end.page_faults - self.page_faults) / n,
        }
    }
}

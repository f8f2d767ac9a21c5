//! How many cores of this machine have nothing to do.
//!
//! Reads the second word of /proc/uptime: the sum of the idle times of all cores, in hundredths of
//! a second (Linux, Documentation/filesystems/proc.rst). That is for the whole machine. So a
//! process that may use a part of it only does not look: an affinity, a cpuset, a quota of a group.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// Weight of the newest look. Idle time comes in steps of 10 ms, and looks are 0.1 s apart.
const NEWEST: f64 = 0.25;

/// Cores without work, smoothed.
pub(super) struct Idle {
    uptime: File,
    seen_s: f64,
    cores: f64,
}

impl Idle {
    /// `None`: this process may not use all cores, or there is no /proc.
    pub(super) fn of_whole_machine() -> Option<Self> {
        let all = online(&std::fs::read_to_string("/sys/devices/system/cpu/online").ok()?)?;
        let own = std::thread::available_parallelism().ok()?;
        if own.get() < all {
            return None;
        }
        let uptime = File::open("/proc/uptime").ok()?;
        let seen_s = read(&uptime)?;
        Some(Self {
            uptime,
            seen_s,
            cores: 0.0,
        })
    }

    /// Cores that have had no work lately, after another look that came `passed_ns` after the last.
    pub(super) fn cores(&mut self, passed_ns: u64) -> f64 {
        if let Some(now_s) = read(&self.uptime) {
            let idle_s = (now_s - std::mem::replace(&mut self.seen_s, now_s)).max(0.0);
            let newest = idle_s / (passed_ns.max(1) as f64 / 1e9);
            self.cores += NEWEST * (newest - self.cores);
        }
        self.cores
    }
}

fn read(uptime: &File) -> Option<f64> {
    let mut text = [0; 64];
    let len = uptime.read_at(&mut text, 0).ok()?;
    idle_s(std::str::from_utf8(&text[..len]).ok()?)
}

fn idle_s(text: &str) -> Option<f64> {
    text.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Number of cores in a list as `0-3,8`.
fn online(list: &str) -> Option<usize> {
    let ranges = list.trim().split(',').map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let [first, last] = [first, last].map(|end| end.parse::<usize>().ok());
        Some(last?.checked_sub(first?)? + 1)
    });
    ranges.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_kernel_are_read() {
        assert_eq!(idle_s("75617.94 40425.26\n"), Some(40425.26));
        assert_eq!(idle_s("7"), None);
        assert_eq!(online("0-3,8\n"), Some(5));
        assert_eq!(online("0"), Some(1));
        assert_eq!(online("3-0"), None);
        assert_eq!(online(""), None);
    }

    /// As many threads as cores leave none of them idle, whatever else the machine does.
    #[test]
    fn busy_cores_are_not_idle() {
        let Some(mut idle) = Idle::of_whole_machine() else {
            return dogwild_lab::skip::skip("this process may not use all cores");
        };
        let all = std::thread::available_parallelism().unwrap().get();
        let until = std::time::Instant::now() + std::time::Duration::from_secs(2);
        std::thread::scope(|scope| {
            for _ in 0..2 * all {
                scope.spawn(|| while std::time::Instant::now() < until {});
            }
            let mut before = std::time::Instant::now();
            while before < until {
                std::thread::sleep(std::time::Duration::from_millis(100));
                idle.cores(before.elapsed().as_nanos() as u64);
                before = std::time::Instant::now();
            }
        });
        assert!(idle.cores < 0.2, "{} cores of {all}", idle.cores);
    }
}

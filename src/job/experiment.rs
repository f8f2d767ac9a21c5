//! What an experiment is: the settings with their values, the program, the command line, the host,
//! the start.
//!
//! Reads /proc and the program's own arguments; everything here is known before a job begins.

use std::fs;
use std::time::SystemTime;

use serde::Serialize;
use serde_json::{Map, Value};

/// What was run, where and when. In `summary.json` all but `settings` stand at the top.
#[derive(Clone, Debug, Serialize)]
pub struct Experiment {
    /// Version of the program.
    pub dogwild: &'static str,
    /// The commit it was built from, with `+` if files had been changed since; none outside git.
    pub commit: Option<&'static str>,
    /// The command line, word by word.
    pub command: Vec<String>,
    /// When the job began, RFC 3339, UTC.
    pub started: String,
    /// The machine.
    pub host: Host,
    /// Every argument with the value that it had, given or by default.
    pub settings: Map<String, Value>,
}

/// A machine.
#[derive(Clone, Debug, Serialize)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// Version of its kernel.
    pub kernel: String,
    /// Model of its processor.
    pub processor: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// Memory, bytes.
    pub memory_bytes: u64,
}

impl Experiment {
    /// An experiment with these settings that begins now.
    pub fn new(settings: Map<String, Value>) -> Self {
        let words = std::env::args_os();
        Self {
            dogwild: env!("CARGO_PKG_VERSION"),
            commit: Some(env!("DOGWILD_COMMIT")).filter(|commit| !commit.is_empty()),
            command: words.map(|w| w.to_string_lossy().into_owned()).collect(),
            started: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            host: Host::here(),
            settings,
        }
    }
}

impl Host {
    /// This one; what cannot be read is empty.
    pub fn here() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let kernel = |name: &str| {
            let text = read(&format!("/proc/sys/kernel/{name}"));
            text.trim().to_owned()
        };
        let memory_kib = field(&read("/proc/meminfo"), "MemTotal")
            .and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
        Self {
            name: kernel("hostname"),
            kernel: kernel("osrelease"),
            processor: field(&read("/proc/cpuinfo"), "model name").unwrap_or_default(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: memory_kib.unwrap_or(0) * 1024,
        }
    }
}

/// The value of `field` in a file of `field : value` lines.
fn field(text: &str, field: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with(field))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// A value as JSON, numbers as they are written: 0.9 stays 0.9, whatever the width of the float
/// was.
///
/// # Panics
/// `value` is something that JSON cannot hold, as a map with keys that are no texts.
pub fn json(value: &impl Serialize) -> Value {
    let text = serde_json::to_string(value).expect("settings have names");
    serde_json::from_str(&text).expect("what serde_json writes it reads")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_experiment_names_program_host_and_time() {
        let found = Experiment::new(Map::new());
        assert!(!found.host.name.is_empty() && !found.host.kernel.is_empty());
        assert!(found.host.cores > 0 && found.host.memory_bytes > 1 << 20);
        let time = humantime::parse_rfc3339(&found.started).expect("RFC 3339");
        assert!(time <= SystemTime::now());
        let hex = |commit: &str| {
            commit
                .trim_end_matches('+')
                .bytes()
                .all(|b| b.is_ascii_hexdigit())
        };
        assert!(
            found
                .commit
                .is_none_or(|commit| commit.len() >= 7 && hex(commit))
        );
    }

    #[test]
    fn floats_stay_as_they_are_written() {
        assert_eq!(json(&0.9f32).to_string(), "0.9");
        assert_eq!(json(&Some(f32::NAN)), Value::Null);
    }
}

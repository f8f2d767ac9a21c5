//! How nodes reach each other, and what happens to their frames on purpose.

use std::path::{Path, PathBuf};
use std::time::Duration;

use dogwild_net::fault::{Bursts, FaultConfig};
use serde::{Deserialize, Serialize};

use super::error::SettingsError;
use super::limits::{BYTES_MIN, DELAY_MS, MTU, SHARE};
use crate::node::{Transport, TransportSpec, Wrappers};

/// How nodes reach each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TransportSettings {
    /// How frames travel.
    pub transport: Transport,
    /// Network interface, or `auto`; none: loopback for udp, the one active port for verbs.
    pub iface: Option<String>,
    /// MTU of the link, bytes; none: the interface's, at most 9000. The same on all nodes.
    pub mtu: Option<u32>,
    /// UDP port of the group, and of the node itself; none: from the session.
    pub port: Option<u16>,
    /// Each frame is a packet of its own (udp).
    pub no_segmentation: bool,
    /// File with the key that seals frames; the key itself is in no settings.
    pub key_file: Option<PathBuf>,
    /// Bytes per second that leave at most, headers included; none: no limit.
    pub pace_bytes_per_s: Option<f64>,
    /// pcapng file of what is sent and received.
    pub capture: Option<PathBuf>,
}

/// What happens to received frames on purpose.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FaultSettings {
    /// Share of frames to drop, 0 to 1.
    pub loss: f64,
    /// Losses in bursts.
    pub loss_burst: Option<BurstSettings>,
    /// Share of frames to flip bits in, 0 to 1.
    pub corrupt: f64,
    /// Share of frames to deliver twice, 0 to 1.
    pub duplicate: f64,
    /// Share of frames to deliver late, 0 to 1.
    pub reorder: f64,
    /// Longest extra delay of every frame, ms.
    pub delay_ms: f64,
    /// Seed of these faults.
    pub fault_seed: u64,
}

/// A line that is good or bad by turns (Gilbert-Elliott), each value 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BurstSettings {
    /// Chance that a good line turns bad, for each frame.
    pub p: f64,
    /// Chance that a bad line turns good.
    pub r: f64,
    /// Chance of a loss while the line is bad.
    #[serde(default = "always")]
    pub loss_bad: f64,
    /// Chance of a loss while it is good.
    #[serde(default)]
    pub loss_good: f64,
}

fn always() -> f64 {
    1.0
}

impl Default for TransportSettings {
    fn default() -> Self {
        Self {
            transport: Transport::Udp,
            iface: None,
            mtu: None,
            port: None,
            no_segmentation: false,
            key_file: None,
            pace_bytes_per_s: None,
            capture: None,
        }
    }
}

impl Default for FaultSettings {
    fn default() -> Self {
        Self {
            loss: 0.0,
            loss_burst: None,
            corrupt: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            delay_ms: 0.0,
            fault_seed: 1,
        }
    }
}

impl TransportSettings {
    /// What to open, with `faults` on top.
    pub fn spec(&self, faults: &FaultSettings) -> TransportSpec {
        TransportSpec {
            transport: self.transport,
            iface: self.iface.clone(),
            mtu: self.mtu.map(|mtu| mtu as usize),
            segmentation: !self.no_segmentation,
            port: self.port,
            join: Vec::new(),
            fault: faults.config(),
            wrap: Wrappers {
                key_file: self.key_file.clone(),
                replay_windows: None,
                capture: self.capture.clone(),
                pace_bytes_per_s: self.pace_bytes_per_s,
            },
        }
    }

    /// Those of one node of a job: it has a capture file of its own.
    pub fn of_node(&self, node: u16) -> Self {
        let capture = self.capture.as_deref();
        Self {
            capture: capture.map(|base| capture_of_node(base, node)),
            ..self.clone()
        }
    }

    pub(super) fn validate(&self) -> Result<(), SettingsError> {
        if let Some(mtu) = self.mtu.filter(|mtu| !MTU.contains(mtu)) {
            let (least, most) = (MTU.start(), MTU.end());
            let what = format!("{mtu}: give {least} to {most} (bytes), or leave it out");
            return Err(SettingsError::new("transport.mtu", what));
        }
        rate("transport.pace_bytes_per_s", self.pace_bytes_per_s)
    }
}

impl From<BurstSettings> for Bursts {
    fn from(bursts: BurstSettings) -> Self {
        Self::GilbertElliott {
            p: bursts.p,
            r: bursts.r,
            loss_bad: bursts.loss_bad,
            loss_good: bursts.loss_good,
        }
    }
}

/// The capture file of one node of a job that was given `base`.
pub fn capture_of_node(base: &Path, node: u16) -> PathBuf {
    let extension = base.extension().unwrap_or("pcapng".as_ref());
    base.with_extension(format!("n{node}.{}", extension.display()))
}

impl FaultSettings {
    fn config(&self) -> FaultConfig {
        FaultConfig {
            seed: self.fault_seed,
            drop: self.loss,
            bursts: self.loss_burst.map_or(Bursts::None, Bursts::from),
            corrupt: self.corrupt,
            duplicate: self.duplicate,
            reorder: self.reorder,
            delay: Duration::ZERO..Duration::from_secs_f64(self.delay_ms / 1000.0),
            ..FaultConfig::default()
        }
    }

    /// Those of one node of a job: each has faults of its own.
    pub fn of_node(&self, node: u16) -> Self {
        Self {
            fault_seed: self.fault_seed.wrapping_add(u64::from(node)),
            ..self.clone()
        }
    }

    pub(super) fn validate(&self) -> Result<(), SettingsError> {
        let bursts = self.loss_burst.map_or([0.0; 4], |bursts| {
            [bursts.p, bursts.r, bursts.loss_bad, bursts.loss_good]
        });
        let names = ["faults.loss_burst"; 4].into_iter().zip(bursts);
        let shares = [
            ("faults.loss", self.loss),
            ("faults.corrupt", self.corrupt),
            ("faults.duplicate", self.duplicate),
            ("faults.reorder", self.reorder),
        ];
        for (field, value) in shares.into_iter().chain(names) {
            share(field, value)?;
        }
        if DELAY_MS.contains(&self.delay_ms) {
            return Ok(());
        }
        let what = format!("{}: give 0 to {} ms", self.delay_ms, DELAY_MS.end());
        Err(SettingsError::new("faults.delay_ms", what))
    }
}

/// Refuses what is not a share.
pub(super) fn share(field: &'static str, value: f64) -> Result<(), SettingsError> {
    if SHARE.contains(&value) {
        return Ok(());
    }
    let what = format!("{value}: give a share, 0 to 1");
    Err(SettingsError::new(field, what))
}

/// Refuses bytes (per second) that are too few to be meant.
pub(super) fn rate(field: &'static str, bytes: Option<f64>) -> Result<(), SettingsError> {
    match bytes {
        Some(bytes) if bytes.is_nan() || bytes < BYTES_MIN => {
            let what = format!("{bytes}: give {BYTES_MIN} bytes or more, or leave it out (null)");
            Err(SettingsError::new(field, what))
        }
        _ => Ok(()),
    }
}

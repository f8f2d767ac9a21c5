//! The ways between nodes, as a file says them.

use anyhow::Result;
use dogwild::cli::args;
use dogwild::settings::BurstSettings;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use super::within;

/// What every way between two nodes is like.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Link {
    /// What a node can send, bytes per second: `100Mbit`, `12.5MB`, or `max`. Headers of UDP, IP
    /// and Ethernet are counted.
    pub(crate) rate: Rate,
    /// What waits in front of it before frames are lost, ms at that rate.
    pub(crate) queue_ms: f64,
    /// Time on the way, ms.
    pub(crate) delay_ms: f64,
    /// Share of frames that are lost, at each receiver.
    pub(crate) loss: f64,
    /// Losses in bursts, in addition.
    pub(crate) loss_burst: Option<BurstSettings>,
    /// Share in which a bit is flipped.
    pub(crate) corrupt: f64,
    /// Share that arrives twice.
    pub(crate) duplicate: f64,
    /// Share that is up to `reorder_ms` late.
    pub(crate) reorder: f64,
    pub(crate) reorder_ms: f64,
}

/// What one way differs in from `link`. Its `rate` is that of a queue behind the sender's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LinkOf {
    pub(crate) from: u16,
    pub(crate) to: u16,
    pub(crate) rate: Option<Rate>,
    queue_ms: Option<f64>,
    delay_ms: Option<f64>,
    loss: Option<f64>,
    loss_burst: Option<BurstSettings>,
    corrupt: Option<f64>,
    duplicate: Option<f64>,
    reorder: Option<f64>,
    reorder_ms: Option<f64>,
}

/// Bytes per second; none: no limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rate(pub(crate) Option<f64>);

impl Serialize for Rate {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Some(bytes) => to.serialize_f64(bytes),
            None => to.serialize_str("max"),
        }
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a rate, as \"100Mbit\", \"12.5MB\" or \"max\"")]
        enum Written {
            Bytes(f64),
            Text(String),
        }
        let text = match Written::deserialize(from)? {
            Written::Bytes(bytes) => bytes.to_string(),
            Written::Text(text) => text,
        };
        let rate = args::rate(&text).map_err(D::Error::custom)?;
        Ok(Self(rate.0))
    }
}

impl Default for Link {
    fn default() -> Self {
        Self {
            rate: Rate(Some(12.5e6)),
            queue_ms: 50.0,
            delay_ms: 0.1,
            loss: 0.0,
            loss_burst: None,
            corrupt: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            reorder_ms: 10.0,
        }
    }
}

impl Link {
    pub(super) fn validate(&self, name: &str) -> Result<()> {
        let bursts = self.loss_burst.map_or([0.0; 4], |bursts| {
            [bursts.p, bursts.r, bursts.loss_bad, bursts.loss_good]
        });
        let shares = [
            ("loss", self.loss),
            ("corrupt", self.corrupt),
            ("duplicate", self.duplicate),
            ("reorder", self.reorder),
        ];
        let bursts = ["p", "r", "loss_bad", "loss_good"]
            .map(|part| format!("loss_burst.{part}"))
            .into_iter()
            .zip(bursts);
        let shares = shares.map(|(field, value)| (field.to_owned(), value));
        for (field, value) in shares.into_iter().chain(bursts) {
            within(&format!("{name}.{field}"), value, 0.0, 1.0)?;
        }
        within(&format!("{name}.delay_ms"), self.delay_ms, 0.0, 60_000.0)?;
        within(
            &format!("{name}.reorder_ms"),
            self.reorder_ms,
            0.0,
            60_000.0,
        )?;
        within(&format!("{name}.queue_ms"), self.queue_ms, 0.1, 60_000.0)
    }
}

impl LinkOf {
    /// The whole link: `link` with what differs. Its rate is that of `link`.
    pub(crate) fn over(&self, link: &Link) -> Link {
        Link {
            rate: link.rate,
            queue_ms: self.queue_ms.unwrap_or(link.queue_ms),
            delay_ms: self.delay_ms.unwrap_or(link.delay_ms),
            loss: self.loss.unwrap_or(link.loss),
            loss_burst: self.loss_burst.or(link.loss_burst),
            corrupt: self.corrupt.unwrap_or(link.corrupt),
            duplicate: self.duplicate.unwrap_or(link.duplicate),
            reorder: self.reorder.unwrap_or(link.reorder),
            reorder_ms: self.reorder_ms.unwrap_or(link.reorder_ms),
        }
    }
}

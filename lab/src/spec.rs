//! What a lab shall look like: plain data and its checks.

use crate::LabError;

/// How the hosts are joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cable {
    /// `Direct` for two hosts without a rate limit, `Bridge` otherwise: a limit on a direct cable
    /// sits at the sender, where `PACKET_QDISC_BYPASS` skips it silently.
    #[default]
    Auto,
    /// One veth pair; exactly two hosts.
    Direct,
    /// A bridge in a namespace of its own that floods multicast, as a plain switch does.
    Bridge,
}

/// What a lab shall look like.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// Number of hosts, 1 to 254.
    pub hosts: usize,
    /// MTU of every interface in bytes (Ethernet header not counted), 68 to 65535.
    pub mtu: u32,
    /// Rate limit per host and direction in tc's words (`1gbit`, `100mbit`): a token bucket at
    /// the sender, and behind a bridge also on the port towards each receiver. None: none.
    pub rate: Option<String>,
    /// Bytes that wait at each rate limit before frames are dropped; none: 256 KiB. Many senders to
    /// one receiver need more, or TCP spends its time waiting for what was lost.
    pub queue_bytes: Option<u32>,
    /// Share of the frames dropped on receive by every host, 0 to 1: raw frames and IP alike.
    /// Segmentation offload is then off, so that single frames are lost, not trains of 40.
    pub loss: Option<f64>,
    /// TCP's congestion control on the way to the other hosts (`cubic`, `bbr`); none: the kernel's.
    pub congestion: Option<String>,
    /// How the hosts are joined.
    pub cable: Cable,
    /// Spread receive work over all cores (receive packet steering), else it stays on the core
    /// that sends. Lifts one-way traffic where cores are to spare. Needs Linux 6.3.
    pub steer_receive: bool,
}

impl Default for Spec {
    /// Two hosts, one cable, MTU 1500, no limit, no loss.
    fn default() -> Self {
        Spec {
            hosts: 2,
            mtu: 1500,
            rate: None,
            queue_bytes: None,
            loss: None,
            congestion: None,
            cable: Cable::Auto,
            steer_receive: false,
        }
    }
}

impl Spec {
    /// `hosts` hosts, everything else as by default.
    pub fn of(hosts: usize) -> Self {
        Spec {
            hosts,
            ..Spec::default()
        }
    }

    /// Refuses a spec that no lab can have.
    pub fn validate(&self) -> Result<(), LabError> {
        if !(1..=254).contains(&self.hosts) {
            return Err(LabError::Hosts(self.hosts));
        }
        if self.cable == Cable::Direct && self.hosts != 2 {
            return Err(LabError::Direct(self.hosts));
        }
        if !(68..=65535).contains(&self.mtu) {
            return Err(LabError::Mtu(self.mtu));
        }
        if let Some(asked) = &self.congestion {
            let path = "/proc/sys/net/ipv4/tcp_available_congestion_control";
            let known = std::fs::read_to_string(path).unwrap_or_default();
            if !known.split_whitespace().any(|known| known == asked) {
                return Err(LabError::Congestion {
                    asked: asked.clone(),
                    known: known.trim().to_owned(),
                });
            }
        }
        match self.loss {
            Some(loss) if !(0.0..=1.0).contains(&loss) => Err(LabError::Loss(loss)),
            _ => Ok(()),
        }
    }

    /// True if the hosts are joined by a bridge.
    pub fn bridged(&self) -> bool {
        match self.cable {
            Cable::Auto => self.hosts != 2 || self.rate.is_some(),
            Cable::Direct => false,
            Cable::Bridge => true,
        }
    }

    /// Frames dropped out of a million, if any.
    pub(crate) fn loss_per_million(&self) -> Option<u32> {
        let drops = (self.loss? * 1e6).round() as u32;
        (drops > 0).then_some(drops)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_labs_are_refused_with_the_reason() {
        let says = |spec: Spec| spec.validate().unwrap_err().to_string();
        assert!(says(Spec::of(0)).contains("1 to 254 hosts"));
        assert!(says(Spec::of(255)).contains("255"));
        assert!(
            says(Spec {
                cable: Cable::Direct,
                ..Spec::of(3)
            })
            .contains("exactly 2")
        );
        assert!(
            says(Spec {
                mtu: 20,
                ..Spec::default()
            })
            .contains("68 to 65535")
        );
        assert!(
            says(Spec {
                loss: Some(10.0),
                ..Spec::default()
            })
            .contains("0 (nothing)")
        );
        assert!(
            says(Spec {
                loss: Some(f64::NAN),
                ..Spec::default()
            })
            .contains("NaN")
        );
    }

    #[test]
    fn a_rate_limit_asks_for_a_bridge() {
        assert!(!Spec::of(2).bridged());
        assert!(Spec::of(3).bridged());
        assert!(
            Spec {
                rate: Some("1gbit".into()),
                ..Spec::of(2)
            }
            .bridged()
        );
    }
}

//! The ports of RDMA devices on this host, and which of them is meant.
//!
//! Opens devices to read what they are (`sys` makes the calls) and closes them again. Invariant:
//! nothing is assumed of a device, port, identifier or MTU that the device was not asked for.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr};

use super::OpenError;
use super::sys::{GID_IB, GID_ROCE_V2, Gid, LINK_ETHERNET, PORT_ACTIVE, library};
use crate::iface;

pub(super) mod sys;

use sys::Context;

/// What a port is plugged into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fabric {
    /// Ethernet: datagrams travel in UDP (RoCE v2).
    Ethernet,
    /// InfiniBand, with a subnet manager.
    InfiniBand,
}

/// The address of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) gid: Gid,
    pub(super) gid_index: u8,
    /// The network interface it belongs to (RoCE).
    pub(super) interface: u32,
}

/// A port of an RDMA device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// Name of the device, such as `mlx5_0` or `rxe0`.
    pub device: String,
    /// Number of the port, from 1.
    pub number: u8,
    /// Whether it can send.
    pub active: bool,
    /// What it is plugged into.
    pub fabric: Fabric,
    /// Largest datagram in bytes: the active MTU.
    pub mtu: usize,
    /// Network interfaces that it belongs to.
    pub interfaces: Vec<String>,
    /// Multicast groups that the device can serve.
    pub groups: usize,
    /// Entries that a queue of the device can have.
    pub(super) queue: usize,
    /// None: no address that datagrams could come from.
    pub(super) address: Option<Address>,
    pub(super) lid: u16,
    pub(super) sm_lid: u16,
}

impl Port {
    /// Why nothing can be sent from here, and what to do.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        let at = &self.device;
        let interface = self.interfaces.first().map_or("DEV", String::as_str);
        if !self.active {
            return Some(match self.fabric {
                Fabric::Ethernet => format!(
                    "port {} of `{at}` is not active: a cable, and `ip link set {interface} up`",
                    self.number
                ),
                Fabric::InfiniBand => format!(
                    "port {} of `{at}` is not active: a cable, and a subnet manager (opensm)",
                    self.number
                ),
            });
        }
        if self.address.is_none() {
            return Some(format!(
                "port {} of `{at}` has no RoCE v2 address over IPv4: `ip addr add A.B.C.D/24 dev {interface}`",
                self.number
            ));
        }
        None
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fabric = match self.fabric {
            Fabric::Ethernet => "RoCE",
            Fabric::InfiniBand => "InfiniBand",
        };
        let state = if self.active { "active" } else { "not active" };
        write!(f, "{}:{} ({fabric}, {state}", self.device, self.number)?;
        for interface in &self.interfaces {
            write!(f, ", {interface}")?;
        }
        f.write_str(")")
    }
}

/// All ports of all devices that this user may open.
///
/// # Errors
/// [`OpenError::NoLibrary`], [`OpenError::NoDevice`], or a device that would not say what it is.
pub fn ports() -> Result<Vec<Port>, OpenError> {
    let library = library().map_err(OpenError::no_library)?;
    let (devices, refused) = sys::open_all(library, None).map_err(|source| OpenError::System {
        what: "list RDMA devices",
        device: "this host".to_owned(),
        source,
    })?;
    if devices.is_empty() {
        return Err(match refused.into_iter().next() {
            Some((device, source)) => OpenError::System {
                what: "open (access to /dev/infiniband/uverbs*)",
                device,
                source,
            },
            None => OpenError::NoDevice,
        });
    }
    let mut ports = Vec::new();
    for device in &devices {
        let found = ports_of(device).map_err(|source| OpenError::System {
            what: "read the ports",
            device: device.name.clone(),
            source,
        })?;
        ports.extend(found);
    }
    Ok(ports)
}

fn ports_of(device: &Context) -> io::Result<Vec<Port>> {
    let limits = device.limits()?;
    let mut attributes = Vec::new();
    for number in 1..=limits.ports {
        attributes.push((number, device.port(number)?));
    }
    let most: i32 = attributes.iter().map(|(_, attr)| attr.gid_tbl_len).sum();
    let gids = device.gids(usize::try_from(most).unwrap_or(0))?;
    let interfaces = iface::list();
    let describe = |(number, attr): (u8, super::sys::PortAttr)| {
        let fabric = if attr.link_layer == LINK_ETHERNET {
            Fabric::Ethernet
        } else {
            Fabric::InfiniBand
        };
        let own: Vec<_> = gids
            .iter()
            .filter(|entry| entry.port_num == u32::from(number))
            .collect();
        let usable = own.iter().find(|entry| match fabric {
            Fabric::Ethernet => entry.gid_type == GID_ROCE_V2 && ipv4_of(entry.gid).is_some(),
            Fabric::InfiniBand => entry.gid_type == GID_IB,
        });
        let belongs = |one: &&iface::Interface| own.iter().any(|e| e.ndev_ifindex == one.index);
        Port {
            device: device.name.clone(),
            number,
            active: attr.state == PORT_ACTIVE,
            fabric,
            // `enum ibv_mtu`: 1 is 256, each next twice as much.
            mtu: 128 << attr.active_mtu.clamp(1, 5),
            interfaces: interfaces
                .iter()
                .filter(belongs)
                .map(|one| one.name.clone())
                .collect(),
            groups: limits.groups,
            queue: limits.queue,
            address: usable.and_then(|entry| {
                Some(Address {
                    gid: entry.gid,
                    gid_index: u8::try_from(entry.gid_index).ok()?,
                    interface: entry.ndev_ifindex,
                })
            }),
            lid: attr.lid,
            sm_lid: attr.sm_lid,
        }
    };
    Ok(attributes.into_iter().map(describe).collect())
}

/// The IPv4 address that a global identifier stands for.
pub(super) fn ipv4_of(gid: Gid) -> Option<IpAddr> {
    Ipv6Addr::from(gid.0).to_ipv4_mapped().map(IpAddr::V4)
}

/// The port that `wanted` names: a device, `device:port`, or a network interface that belongs to
/// one. None: the only one that can send.
pub(super) fn choose(ports: Vec<Port>, wanted: Option<&str>) -> Result<Port, OpenError> {
    let all = list(&ports);
    let meant: Vec<Port> = match wanted {
        None => ports,
        Some(name) => {
            let (device, number) = match name.rsplit_once(':') {
                Some((device, number)) => (device, number.parse::<u8>().ok()),
                None => (name, None),
            };
            let is = |port: &Port| {
                (port.device == device && number.is_none_or(|number| port.number == number))
                    || port.interfaces.iter().any(|interface| interface == name)
            };
            ports.into_iter().filter(is).collect()
        }
    };
    let Some(first) = meant.first() else {
        return Err(OpenError::NoSuchPort {
            name: wanted.unwrap_or_default().to_owned(),
            existing: all,
        });
    };
    let trouble = first.trouble();
    let mut usable = meant.into_iter().filter(|port| port.trouble().is_none());
    match (usable.next(), usable.next()) {
        (Some(port), None) => Ok(port),
        (None, _) => Err(OpenError::NotReady(trouble.unwrap_or_default())),
        (Some(_), Some(_)) => Err(OpenError::Several { existing: all }),
    }
}

fn list(ports: &[Port]) -> String {
    let names: Vec<String> = ports.iter().map(ToString::to_string).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(device: &str, number: u8, active: bool) -> Port {
        Port {
            device: device.to_owned(),
            number,
            active,
            fabric: Fabric::Ethernet,
            mtu: 1024,
            interfaces: vec![format!("eth{number}")],
            groups: 1,
            queue: 1,
            address: Some(Address {
                gid: Gid([1; 16]),
                gid_index: 1,
                interface: 7,
            }),
            lid: 0,
            sm_lid: 0,
        }
    }

    fn chosen(ports: &[Port], wanted: Option<&str>) -> String {
        match choose(ports.to_vec(), wanted) {
            Ok(port) => format!("{}:{}", port.device, port.number),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn the_only_active_port_is_taken_and_others_have_to_be_named() {
        let ports = [port("mlx5_0", 1, false), port("mlx5_0", 2, true)];
        assert_eq!(chosen(&ports, None), "mlx5_0:2");
        assert_eq!(chosen(&ports, Some("mlx5_0")), "mlx5_0:2");
        assert_eq!(chosen(&ports, Some("mlx5_0:2")), "mlx5_0:2");
        assert_eq!(chosen(&ports, Some("eth2")), "mlx5_0:2");
        assert!(chosen(&ports, Some("mlx5_0:1")).contains("ip link set eth1 up"));
        let unknown = chosen(&ports, Some("rxe9"));
        assert!(
            unknown.contains("`rxe9`") && unknown.contains("mlx5_0:1 (RoCE, not active, eth1)"),
            "{unknown}"
        );
        let two = [port("rxe0", 1, true), port("rxe1", 1, true)];
        let several = chosen(&two, None);
        assert!(
            several.contains("--iface") && several.contains("rxe1:1"),
            "{several}"
        );
    }

    #[test]
    fn a_port_without_an_address_says_how_to_get_one() {
        let mut bare = port("rxe0", 1, true);
        bare.address = None;
        assert!(chosen(&[bare], None).contains("ip addr add"));
    }
}

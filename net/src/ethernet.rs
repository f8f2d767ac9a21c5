//! What the raw Ethernet transports share: the header of a frame, whose frames are ours, the choice
//! of an interface, membership in the group.
//!
//! Touches interfaces and the sockets it is given. Invariant: knows no ring; the transports
//! that use it do not know each other.

use std::io;

use libc::packet_mreq;
use socket2::Socket;

use crate::address_table::AddressTable;
use crate::{Source, To, TransmitStats, iface, syscalls};

/// Length of an Ethernet header: destination, source, EtherType.
pub(crate) const ETHERNET_HEADER: usize = 14;
/// Smallest payload that makes sense: what the shortest Ethernet frame carries.
const MTU_MIN: usize = 46;

/// Why an interface cannot be used for raw Ethernet.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PortError {
    /// The interface does not exist or cannot be read.
    #[error(transparent)]
    Interface(#[from] iface::FindError),
    /// The interface is switched off.
    #[error("network interface `{iface}` is down: switch it on (`ip link set {iface} up`)")]
    Down {
        /// Name of the interface.
        iface: String,
    },
    /// The interface has no Ethernet address.
    #[error(
        "network interface `{iface}` is not an Ethernet interface: on loopback and tunnels take \
         the udp transport"
    )]
    NotEthernet {
        /// Name of the interface.
        iface: String,
    },
    /// The group is the address of a single host.
    #[error(
        "the group {group} is not an Ethernet multicast address: its first byte must be odd, as in 03:44:57:00:00:01"
    )]
    NotMulticast {
        /// Address that was given.
        group: Source,
    },
    /// The MTU does not fit the interface.
    #[error(
        "an MTU of {mtu} bytes does not fit network interface `{iface}`: it takes {least} to {most}"
    )]
    Mtu {
        /// MTU that was asked for, in bytes.
        mtu: usize,
        /// Name of the interface.
        iface: String,
        /// The smallest that makes sense.
        least: usize,
        /// What the interface carries.
        most: usize,
    },
}

/// The interface, as far as it matters here.
pub(crate) struct Port {
    pub(crate) index: u32,
    pub(crate) mac: [u8; 6],
    pub(crate) payload_max: usize,
}

/// Checks an interface, a group and an MTU (`None`: that of the interface, `default_max` at most).
pub(crate) fn choose(
    iface: &str,
    group: [u8; 6],
    mtu: Option<usize>,
    default_max: usize,
) -> Result<Port, PortError> {
    let found = iface::find(iface)?;
    let iface = || iface.to_owned();
    if found.loopback || found.mac == [0; 6] {
        return Err(PortError::NotEthernet { iface: iface() });
    }
    if !found.up {
        return Err(PortError::Down { iface: iface() });
    }
    if group[0] & 1 == 0 {
        let group = Source::Mac(group);
        return Err(PortError::NotMulticast { group });
    }
    let mtu = mtu.unwrap_or(found.mtu.min(default_max));
    if mtu < MTU_MIN || mtu > found.mtu {
        return Err(PortError::Mtu {
            mtu,
            iface: iface(),
            least: MTU_MIN,
            most: found.mtu,
        });
    }
    Ok(Port {
        index: found.index,
        mac: found.mac,
        payload_max: mtu,
    })
}

/// Lets the interface accept frames to the group, for as long as this packet socket is open.
pub(crate) fn join_group(socket: &Socket, index: u32, group: [u8; 6]) -> io::Result<()> {
    let mut membership = packet_mreq {
        mr_ifindex: index.cast_signed(),
        mr_type: libc::PACKET_MR_MULTICAST as u16,
        mr_alen: 6,
        mr_address: [0; 8],
    };
    membership.mr_address[..6].copy_from_slice(&group);
    syscalls::set(
        socket,
        libc::SOL_PACKET,
        libc::PACKET_ADD_MEMBERSHIP,
        membership,
    )
}

/// Destinations and headers of frames: what the sending halves have in common.
pub(crate) struct Heads {
    /// Largest payload, in bytes.
    pub(crate) mtu: usize,
    pub(crate) mac: [u8; 6],
    group: [u8; 6],
    ether_type: [u8; 2],
    addresses: AddressTable<[u8; 6]>,
}

impl Heads {
    pub(crate) fn new(port: &Port, group: [u8; 6], ether_type: u16) -> Self {
        Heads {
            mtu: port.payload_max,
            mac: port.mac,
            group,
            ether_type: ether_type.to_be_bytes(),
            addresses: AddressTable::new(),
        }
    }

    /// The header of a frame of `len` bytes; none, and counted, if it is too long or `to` is not
    /// known.
    pub(crate) fn of(
        &self,
        to: To,
        len: usize,
        stats: &mut TransmitStats,
    ) -> Option<[u8; ETHERNET_HEADER]> {
        if len > self.mtu {
            stats.too_long += 1;
            return None;
        }
        let destination = match to {
            To::Group | To::All => Some(self.group),
            To::Node(node) => self.addresses.get(node),
        };
        if destination.is_none() {
            stats.no_address += 1;
        }
        Some(self.to(destination?))
    }

    /// The header of a frame to an address.
    pub(crate) fn to(&self, destination: [u8; 6]) -> [u8; ETHERNET_HEADER] {
        let mut header = [0; ETHERNET_HEADER];
        write_header(&mut header, destination, self.mac, self.ether_type);
        header
    }

    /// See [`crate::Transmit::learn`].
    pub(crate) fn learn(&mut self, node: u16, source: Source) {
        if let Source::Mac(mac) = source {
            self.addresses.learn(node, mac);
        }
    }

    /// See [`crate::Transmit::knows`].
    pub(crate) fn knows(&self, node: u16) -> bool {
        self.addresses.get(node).is_some()
    }
}

/// Writes the header at the start of `slot`.
fn write_header(slot: &mut [u8], to: [u8; 6], from: [u8; 6], ether_type: [u8; 2]) {
    slot[..6].copy_from_slice(&to);
    slot[6..12].copy_from_slice(&from);
    slot[12..14].copy_from_slice(&ether_type);
}

/// Which frames are lent: those to the group or to this interface that others have sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Filter {
    pub(crate) group: [u8; 6],
    pub(crate) mac: [u8; 6],
}

/// What a [`Filter`] makes of a frame.
pub(crate) enum Verdict<'a> {
    /// To be lent: who sent it, and its payload.
    Ours([u8; 6], &'a [u8]),
    /// For another node, or our own come back.
    NotOurs,
    /// Shorter than a header.
    Truncated,
}

impl Filter {
    /// Looks at a frame from its Ethernet header on. Networks flood: the destination is checked.
    pub(crate) fn judge<'a>(&self, frame: &'a [u8]) -> Verdict<'a> {
        let Some((header, payload)) = frame.split_first_chunk::<ETHERNET_HEADER>() else {
            return Verdict::Truncated;
        };
        let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, _, _] = *header;
        let to = [d0, d1, d2, d3, d4, d5];
        let from = [s0, s1, s2, s3, s4, s5];
        if (to != self.group && to != self.mac) || from == self.mac {
            return Verdict::NotOurs;
        }
        Verdict::Ours(from, payload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_frames_for_us_from_others_are_ours() {
        let (group, mac, other) = ([3; 6], [2; 6], [4; 6]);
        let filter = Filter { group, mac };
        let frame = |to, from| {
            let mut frame = [9; 20];
            write_header(&mut frame, to, from, [0x88, 0xB5]);
            frame
        };
        for to in [group, mac] {
            let frame = frame(to, other);
            assert!(
                matches!(filter.judge(&frame), Verdict::Ours(from, [9, 9, 9, 9, 9, 9]) if from == other)
            );
        }
        for (to, from) in [(other, other), (group, mac), (mac, mac)] {
            assert!(matches!(filter.judge(&frame(to, from)), Verdict::NotOurs));
        }
        assert!(matches!(filter.judge(&[3; 13]), Verdict::Truncated));
    }

    #[test]
    fn a_group_is_multicast_and_an_interface_is_ethernet() {
        let refusal = |iface, group| match choose(iface, group, None, 9000) {
            Err(error) => error.to_string(),
            Ok(_) => panic!("{iface} must be refused"),
        };
        assert!(refusal("nosuch0", [3; 6]).contains("nosuch0"));
        assert!(refusal("lo", [3; 6]).contains("not an Ethernet"));
    }
}

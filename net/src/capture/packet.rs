//! The headers that a payload has, or might have, on the wire.
//!
//! Touches nothing. Invariant: addresses of different kinds never meet in one packet: the sender's
//! kind decides, and a destination of another kind becomes all zeros.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use pnet::packet::ip::IpNextHeaderProtocols;
use pnet::packet::{ipv4, ipv6, udp};

use crate::Source;

/// The IEEE's local experimental EtherType, the one of the `packet_mmap` transport.
const ETHERTYPE: u16 = 0x88B5;
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86DD;
/// Made up. Wireshark warns of small ones.
const TTL: u8 = 64;
const UDP_HEADER: usize = 8;
const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;

/// Writes a whole Ethernet frame into `packet`.
pub(super) fn build(from: Source, to: Source, payload: &[u8], packet: &mut Vec<u8>) {
    packet.clear();
    let ethertype = match from {
        Source::Socket(at) if at.is_ipv4() => ETHERTYPE_IPV4,
        Source::Socket(_) => ETHERTYPE_IPV6,
        _ => ETHERTYPE,
    };
    packet.extend_from_slice(&mac(to));
    packet.extend_from_slice(&mac(from));
    packet.extend_from_slice(&ethertype.to_be_bytes());
    let Source::Socket(from) = from else {
        packet.extend_from_slice(payload);
        return;
    };
    let to = match to {
        Source::Socket(to) if to.is_ipv4() == from.is_ipv4() => to,
        _ if from.is_ipv4() => SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
        _ => SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0),
    };
    match (from.ip(), to.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            add_ipv4(source, destination, payload.len(), packet);
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            add_ipv6(source, destination, payload.len(), packet);
        }
        _ => return,
    }
    let udp_at = packet.len();
    packet.extend_from_slice(&from.port().to_be_bytes());
    packet.extend_from_slice(&to.port().to_be_bytes());
    packet.extend_from_slice(&length_field(UDP_HEADER + payload.len()));
    // Over IPv4 a checksum of zero says that there is none.
    packet.extend_from_slice(&[0, 0]);
    packet.extend_from_slice(payload);
    if let (IpAddr::V6(source), IpAddr::V6(destination)) = (from.ip(), to.ip())
        && let Some(view) = udp::UdpPacket::new(&packet[udp_at..])
    {
        let sum = udp::ipv6_checksum(&view, &source, &destination);
        packet[udp_at + 6..udp_at + 8].copy_from_slice(&sum.to_be_bytes());
    }
}

/// A length in a header; what does not fit (no such packet exists) is cut.
fn length_field(len: usize) -> [u8; 2] {
    u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes()
}

fn add_ipv4(source: Ipv4Addr, destination: Ipv4Addr, payload_len: usize, packet: &mut Vec<u8>) {
    let at = packet.len();
    packet.resize(at + IPV4_HEADER, 0);
    let Some(mut header) = ipv4::MutableIpv4Packet::new(&mut packet[at..]) else {
        return;
    };
    header.set_version(4);
    header.set_header_length((IPV4_HEADER / 4) as u8);
    let total = IPV4_HEADER + UDP_HEADER + payload_len;
    header.set_total_length(u16::try_from(total).unwrap_or(u16::MAX));
    header.set_ttl(TTL);
    header.set_next_level_protocol(IpNextHeaderProtocols::Udp);
    header.set_source(source);
    header.set_destination(destination);
    let sum = ipv4::checksum(&header.to_immutable());
    header.set_checksum(sum);
}

fn add_ipv6(source: Ipv6Addr, destination: Ipv6Addr, payload_len: usize, packet: &mut Vec<u8>) {
    let at = packet.len();
    packet.resize(at + IPV6_HEADER, 0);
    let Some(mut header) = ipv6::MutableIpv6Packet::new(&mut packet[at..]) else {
        return;
    };
    header.set_version(6);
    let total = UDP_HEADER + payload_len;
    header.set_payload_length(u16::try_from(total).unwrap_or(u16::MAX));
    header.set_next_header(IpNextHeaderProtocols::Udp);
    header.set_hop_limit(TTL);
    header.set_source(source);
    header.set_destination(destination);
}

/// The Ethernet address of an address: its own, that which IP multicast has, or an invented one.
fn mac(of: Source) -> [u8; 6] {
    match of {
        Source::Mac(mac) => mac,
        Source::Memory(node) => {
            let [high, low] = node.to_be_bytes();
            // Locally administered, "DW".
            [0x02, 0x44, 0x57, 0, high, low]
        }
        Source::Queue { qpn, .. } => {
            let [_, a, b, c] = qpn.to_be_bytes();
            [0x02, 0x44, 0x57, a, b, c]
        }
        Source::Socket(at) => match at.ip() {
            IpAddr::V4(ip) if ip.is_multicast() => {
                let [_, b, c, d] = ip.octets();
                [0x01, 0x00, 0x5E, b & 0x7F, c, d]
            }
            IpAddr::V6(ip) if ip.is_multicast() => {
                let [.., a, b, c, d] = ip.octets();
                [0x33, 0x33, a, b, c, d]
            }
            _ => [0; 6],
        },
    }
}

//! The headers that a payload has, or might have, on the wire.
//!
//! Touches nothing. Invariant: addresses of different kinds never meet in one packet: the sender's
//! kind decides, and a destination of another kind becomes all zeros.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::Source;

/// The IEEE's local experimental EtherType, the one of the `packet_mmap` transport.
const ETHERTYPE: u16 = 0x88B5;
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86DD;
/// Made up. Wireshark warns of small ones.
const TTL: u8 = 64;
/// UDP's number in an IP header.
const PROTOCOL_UDP: u8 = 17;
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
    if let (IpAddr::V6(source), IpAddr::V6(destination)) = (from.ip(), to.ip()) {
        let sum = ipv6_udp_checksum(source, destination, &packet[udp_at..]);
        packet[udp_at + 6..udp_at + 8].copy_from_slice(&sum.to_be_bytes());
    }
}

/// A length in a header; what does not fit (no such packet exists) is cut.
fn length_field(len: usize) -> [u8; 2] {
    u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes()
}

fn add_ipv4(source: Ipv4Addr, destination: Ipv4Addr, payload_len: usize, packet: &mut Vec<u8>) {
    let mut header = [0; IPV4_HEADER];
    // The version, and the header's length in words of 4 bytes.
    header[0] = 4 << 4 | (IPV4_HEADER / 4) as u8;
    header[2..4].copy_from_slice(&length_field(IPV4_HEADER + UDP_HEADER + payload_len));
    header[8] = TTL;
    header[9] = PROTOCOL_UDP;
    header[12..16].copy_from_slice(&source.octets());
    header[16..20].copy_from_slice(&destination.octets());
    let sum = checksum(&[&header]);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend_from_slice(&header);
}

fn add_ipv6(source: Ipv6Addr, destination: Ipv6Addr, payload_len: usize, packet: &mut Vec<u8>) {
    let mut header = [0; IPV6_HEADER];
    header[0] = 6 << 4;
    header[4..6].copy_from_slice(&length_field(UDP_HEADER + payload_len));
    header[6] = PROTOCOL_UDP;
    header[7] = TTL;
    header[8..24].copy_from_slice(&source.octets());
    header[24..40].copy_from_slice(&destination.octets());
    packet.extend_from_slice(&header);
}

/// The checksum of `datagram`, a UDP header without its checksum and what follows it: over a
/// pseudo-header too (RFC 8200, 8.1).
fn ipv6_udp_checksum(source: Ipv6Addr, destination: Ipv6Addr, datagram: &[u8]) -> u16 {
    let len = length_field(datagram.len());
    let pseudo: &[&[u8]] = &[
        &source.octets(),
        &destination.octets(),
        &[0, 0, len[0], len[1], 0, 0, 0, PROTOCOL_UDP],
        datagram,
    ];
    // Zero would say that there is none, which IPv6 does not allow.
    match checksum(pseudo) {
        0 => 0xFFFF,
        sum => sum,
    }
}

/// The Internet checksum (RFC 1071) of `parts` in a row, all of them but the last of even length.
fn checksum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let sum: u32 = words
        .map(|word| u32::from(word[0]) << 8 | word.get(1).map_or(0, |&low| u32::from(low)))
        .sum();
    // Twice, as the first may carry again. A packet of 64 KiB is far from overflowing 32 bits.
    let folded = (sum & 0xFFFF) + (sum >> 16);
    let folded = (folded & 0xFFFF) + (folded >> 16);
    !(folded as u16)
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
        Source::Socket(at) | Source::Multicast(at) => match at.ip() {
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

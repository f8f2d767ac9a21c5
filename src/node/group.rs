//! The multicast groups of a job, from its session.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// The multicast groups of a session: IP address and port, Ethernet address. Jobs with different
/// sessions do not disturb each other on one network.
pub fn job_group(session: u64, port: Option<u16>) -> (SocketAddr, [u8; 6]) {
    let [a, b, c, d, ..] = session.to_le_bytes();
    // 239.0.0.0/8 is administratively scoped (RFC 2365); ports from 22340 ("DW") on.
    let ip = IpAddr::V4(Ipv4Addr::new(239, 68, a, b));
    let port = port.unwrap_or(22_340 + u16::from(c) % 200);
    // Bit 0 of the first octet: multicast; bit 1: locally administered.
    (SocketAddr::new(ip, port), [0x03, 0x44, 0x57, a, b, d])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_multicast_and_differ_by_session() {
        let (ip, mac) = job_group(0x0102_0304_0506_0708, None);
        assert!(ip.ip().is_multicast());
        assert_eq!(mac[0] & 3, 3);
        assert_ne!(job_group(1, None), job_group(2, None));
        assert_eq!(job_group(1, Some(5)).0.port(), 5);
    }
}

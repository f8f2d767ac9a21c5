//! What a connection has sent and the other host never acknowledged. A peer may be silent because
//! what it waits for does not arrive.

use std::fs;
use std::net::{IpAddr, SocketAddr, TcpStream};

/// Bytes that the kernel has sent again, and that were not acknowledged; 0: there are none, or it
/// cannot be told. A peer that is only slow to read does not count: its host acknowledges.
pub(super) fn unacknowledged(stream: &TcpStream) -> u64 {
    let (Ok(own), Ok(peer)) = (stream.local_addr(), stream.peer_addr()) else {
        return 0;
    };
    let table = if own.is_ipv4() { "tcp" } else { "tcp6" };
    let table = fs::read_to_string(format!("/proc/thread-self/net/{table}"));
    in_table(&table.unwrap_or_default(), own, peer)
}

/// As [`unacknowledged`], from a table of the kernel (Documentation/networking/proc_net_tcp.rst).
fn in_table(table: &str, own: SocketAddr, peer: SocketAddr) -> u64 {
    let (own, peer) = (as_shown(own), as_shown(peer));
    let of_line = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [_, local, remote, _, queues, _, resent, ..] = fields[..] else {
            return None;
        };
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        let (sent, _) = queues.split_once(':')?;
        let ours = (local, remote) == (&*own, &*peer) && number(resent)? > 0;
        ours.then(|| number(sent)).flatten()
    };
    table.lines().find_map(of_line).unwrap_or(0)
}

/// An address as the table has it: words of the host, then the port.
fn as_shown(address: SocketAddr) -> String {
    let words = |bytes: &[u8]| -> String {
        let words = bytes.chunks_exact(4).map(|word| {
            let word = word.try_into().unwrap_or_default();
            format!("{:08X}", u32::from_ne_bytes(word))
        });
        words.collect()
    };
    let ip = match address.ip() {
        IpAddr::V4(ip) => words(&ip.octets()),
        IpAddr::V6(ip) => words(&ip.octets()),
    };
    format!("{ip}:{:04X}", address.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Lines of this machine's kernel, of a connection that a filter had cut.
    #[cfg(target_endian = "little")]
    #[test]
    fn what_was_sent_again_and_not_acknowledged_is_found() {
        let line = |resent: u32| {
            format!(
                "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n   \
                 3: 01004D0A:A5B1 02004D0A:C6CA 01 000013A6:00000000 01:000000D1 {resent:08X}     0        0 77 2\n"
            )
        };
        let own = "10.77.0.1:42417".parse().expect("an address");
        let peer = "10.77.0.2:50890".parse().expect("an address");
        assert_eq!(in_table(&line(5), own, peer), 0x13a6);
        assert_eq!(in_table(&line(0), own, peer), 0, "it may be on the way");
        assert_eq!(in_table(&line(5), peer, own), 0, "of another connection");
        assert_eq!(
            as_shown("[::1]:7".parse().expect("an address")),
            "00000000000000000000000001000000:0007"
        );
    }

    /// A peer that reads nothing has acknowledged what it got.
    #[test]
    fn of_a_peer_that_reads_nothing_all_is_acknowledged() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(host) else {
                continue;
            };
            let at = listener.local_addr().expect("an address");
            let mut stream = TcpStream::connect(at).expect("a connection");
            std::io::Write::write_all(&mut stream, &[7; 1000]).expect("sent");
            assert_eq!(unacknowledged(&stream), 0);
            let table = if at.is_ipv4() { "tcp" } else { "tcp6" };
            let table = fs::read_to_string(format!("/proc/thread-self/net/{table}"));
            let shown = as_shown(stream.local_addr().expect("an address"));
            assert!(table.expect("a table").contains(&shown), "{shown}");
        }
    }
}

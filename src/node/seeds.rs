//! Addresses at which a node asks for the others.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};

/// Why an address to join at cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The name is not known, or the text is no address.
    #[error(
        "cannot join at `{text}`: {source}; give the host of any node of the job, and its port if that is not the job's: HOST or \
         HOST:PORT"
    )]
    Unknown {
        /// What was given.
        text: String,
        /// What the system says.
        source: io::Error,
    },
    /// The host has IPv6 addresses alone.
    #[error(
        "cannot join at `{text}`: it has no IPv4 address, and the frames of a job travel over IPv4"
    )]
    NoIpv4 {
        /// What was given.
        text: String,
    },
    /// No route leads there.
    #[error("cannot join at {address}: no route leads there ({source}); name an interface")]
    NoRoute {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
}

/// The address that `text` names: HOST or HOST:PORT; without a port `port`.
///
/// # Errors
/// The host is not known.
pub(super) fn resolve(text: &str, port: u16) -> Result<SocketAddr, JoinError> {
    // Every second part of an IPv6 address would pass for a port.
    let port_of = |text: &str| text.rsplit_once(':')?.1.parse::<u16>().ok();
    let has_port = text.parse::<IpAddr>().is_err() && port_of(text).is_some();
    let found = if has_port {
        text.to_socket_addrs().map(Vec::from_iter)
    } else {
        (text, port).to_socket_addrs().map(Vec::from_iter)
    };
    let found = found.map_err(|source| JoinError::Unknown {
        text: text.into(),
        source,
    })?;
    let mut found = found.into_iter().filter(SocketAddr::is_ipv4);
    found
        .next()
        .ok_or_else(|| JoinError::NoIpv4 { text: text.into() })
}

/// The own address from which the kernel would send to `address`.
///
/// # Errors
/// No route leads there.
pub(super) fn local_for(address: SocketAddr) -> Result<IpAddr, JoinError> {
    let routed = || {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.connect(address)?;
        Ok(socket.local_addr()?.ip())
    };
    routed().map_err(|source| JoinError::NoRoute { address, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_may_have_a_port() {
        let at = |text| resolve(text, 22_400).map_err(|error| error.to_string());
        assert_eq!(at("127.0.0.1"), Ok(([127, 0, 0, 1], 22_400).into()));
        assert_eq!(at("127.0.0.1:7000"), Ok(([127, 0, 0, 1], 7000).into()));
        assert_eq!(at("localhost:7000"), Ok(([127, 0, 0, 1], 7000).into()));
        let refused = at("::1").expect_err("no IPv4");
        assert!(refused.contains("IPv4"), "{refused}");
        for text in [
            "",
            "10.0.0.1:port",
            "no.such.host.invalid:1",
            "10.0.0.1:70000",
        ] {
            let refused = at(text).expect_err(text);
            assert!(refused.contains("HOST:PORT"), "{refused}");
        }
    }

    #[test]
    fn this_host_is_reached_from_its_own_address() {
        let local = local_for(([127, 0, 0, 5], 1).into()).map_err(|error| error.to_string());
        assert!(local.is_ok_and(|local| local.is_loopback()));
    }
}

//! The network interfaces of this host (or of the network namespace the thread is in): name,
//! index, addresses, MTU, state.
//!
//! Only reads. Invariant: everything comes from system calls, nothing from /sys, which keeps showing
//! the namespace it was mounted in.

use std::io;
use std::net::IpAddr;

use pnet::datalink;

/// One network interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Its name, such as `eth0`.
    pub name: String,
    /// Its index in the kernel.
    pub index: u32,
    /// Its Ethernet address; zero where it has none (loopback, tunnels).
    pub mac: [u8; 6],
    /// Its IPv4 and IPv6 addresses.
    pub ips: Vec<IpAddr>,
    /// The largest packet it carries, in bytes, without the Ethernet header.
    pub mtu: usize,
    /// Whether it is switched on (not whether a cable is plugged in).
    pub up: bool,
    /// Whether it only leads back to this host.
    pub loopback: bool,
}

/// Why an interface was not found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FindError {
    /// No interface has this name.
    #[error("there is no network interface `{name}`; there are: {existing}")]
    NoSuchInterface {
        /// The name asked for.
        name: String,
        /// The names that exist, with commas.
        existing: String,
    },
    /// The kernel would not tell about it.
    #[error("cannot read the MTU of network interface `{name}`: {source}")]
    Read {
        /// The name asked for.
        name: String,
        /// What the kernel said.
        source: io::Error,
    },
}

/// All interfaces, in the order of the kernel. One that vanishes meanwhile is left out.
#[must_use]
pub fn list() -> Vec<Interface> {
    let all = datalink::interfaces();
    all.into_iter()
        .filter_map(|found| describe(found).ok())
        .collect()
}

/// The interface of this name.
///
/// # Errors
/// [`FindError`]: no such name (it lists those that exist), or its MTU cannot be read.
pub fn find(name: &str) -> Result<Interface, FindError> {
    let all = datalink::interfaces();
    let names: Vec<String> = all.iter().map(|one| one.name.clone()).collect();
    match all.into_iter().find(|one| one.name == name) {
        Some(found) => describe(found).map_err(|source| FindError::Read {
            name: name.to_owned(),
            source,
        }),
        None => Err(FindError::NoSuchInterface {
            name: name.to_owned(),
            existing: names.join(", "),
        }),
    }
}

fn describe(found: datalink::NetworkInterface) -> io::Result<Interface> {
    Ok(Interface {
        mtu: crate::udp::sys::interface_mtu(&found.name)?,
        index: found.index,
        mac: found.mac.map_or([0; 6], |mac| mac.octets()),
        ips: found.ips.iter().map(|net| net.ip()).collect(),
        up: found.is_up(),
        loopback: found.is_loopback(),
        name: found.name,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_found() {
        let lo = find("lo").expect("every Linux host has lo");
        assert!(lo.loopback);
        assert!(lo.mtu >= 1500, "{lo:?}");
        assert!(list().contains(&lo));
    }

    #[test]
    fn an_unknown_name_lists_those_that_exist() {
        let message = find("nosuch0").expect_err("must fail").to_string();
        assert!(
            message.contains("`nosuch0`") && message.contains("lo"),
            "{message}"
        );
    }
}

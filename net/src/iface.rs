//! The network interfaces of this host (or of the network namespace the thread is in): name,
//! index, addresses, MTU, state.
//!
//! Only reads. Invariant: everything comes from system calls, nothing from /sys, which keeps showing
//! the namespace it was mounted in; the one exception, speed and driver, is checked against the
//! interface's address first. `auto` chooses one.

use std::io;
use std::net::IpAddr;

use pnet::datalink;

mod auto;

pub use auto::{Choice, ChooseError, Need, choose};

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
    /// Whether it has a carrier: a cable with something at its other end.
    pub carrier: bool,
    /// Whether it can send and receive multicast.
    pub multicast: bool,
    /// Whether it only leads back to this host.
    pub loopback: bool,
}

impl Interface {
    /// Its speed in Mb/s, where the driver tells one.
    #[must_use]
    pub fn speed_mbit_per_s(&self) -> Option<u32> {
        self.sys("speed")?.trim().parse().ok().filter(|&s| s > 0)
    }

    /// The name of its driver, where it has a device.
    #[must_use]
    pub fn driver(&self) -> Option<String> {
        self.sys("address")?;
        let link = std::fs::read_link(format!("/sys/class/net/{}/device/driver", self.name));
        Some(link.ok()?.file_name()?.to_string_lossy().into_owned())
    }

    /// A file of /sys about this interface; none if /sys shows another one of that name.
    fn sys(&self, file: &str) -> Option<String> {
        let read = |file| std::fs::read_to_string(format!("/sys/class/net/{}/{file}", self.name));
        let is = |file, value: String| read(file).is_ok_and(|text| text.trim() == value);
        let same = is("ifindex", self.index.to_string())
            && is("address", crate::Source::Mac(self.mac).to_string());
        if same { read(file).ok() } else { None }
    }
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
        carrier: found.is_running(),
        multicast: found.is_multicast(),
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

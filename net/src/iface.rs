//! The network interfaces of this host (or of the network namespace the thread is in): name, index,
//! addresses, MTU, state. [`choose`] finds the one that a transport takes where none is named.
//!
//! Only reads, and sends nothing: the default route is read off a socket that is connected and
//! never used. Invariants:
//! - Everything comes from system calls, nothing from /sys, which keeps showing the namespace it
//!   was mounted in. The one exception, speed and driver, is checked against the interface's
//!   address first.
//! - The choice is a pure function of the list of interfaces, their speeds and the routed address.
//!   Of two that are equally good it takes neither.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

use pnet_datalink as datalink;

use crate::syscalls::interface_mtu;

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

/// The interface that has this address.
#[must_use]
pub fn with_address(ip: IpAddr) -> Option<Interface> {
    list().into_iter().find(|one| one.ips.contains(&ip))
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
        mtu: interface_mtu(&found.name)?,
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

/// What an interface has to have for a transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Need {
    /// An IPv4 address.
    Ipv4,
    /// An Ethernet address.
    Ethernet,
}

/// The interface that was chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The interface itself.
    pub iface: Interface,
    /// Why this one.
    pub why: String,
    /// The others, each with the reason against it.
    pub others: Vec<(String, String)>,
}

/// Why none was chosen.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChooseError {
    /// None can be used.
    #[error(
        "no network interface can be chosen ({reasons}): switch one on, or name one (`lo` for udp \
         between processes of this host)"
    )]
    None {
        /// Each with the reason against it, with semicolons.
        reasons: String,
    },
    /// Several are equally good.
    #[error(
        "several network interfaces would do ({names}): the default route leads through none of \
         them, and none is the fastest; name one"
    )]
    Ambiguous {
        /// Names of these interfaces, separated by commas.
        names: String,
    },
}

/// Chooses among the interfaces of this host: up, not loopback, with carrier, multicast and what
/// `need` says. Of several the one that the default route leads through, else the fastest.
///
/// # Errors
/// [`ChooseError`]: none can be used, or several are equally good.
pub fn choose(need: Need) -> Result<Choice, ChooseError> {
    let speeds = list()
        .into_iter()
        .map(|iface| (iface.speed_mbit_per_s().unwrap_or(0), iface))
        .collect();
    decide(need, speeds, default_route_address())
}

/// The own address that packets to the rest of the world would have.
fn default_route_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    // 198.51.100.0/24 is documentation (RFC 5737): no host of it is on any link.
    let outside = SocketAddr::from((Ipv4Addr::new(198, 51, 100, 1), 9));
    socket.connect(outside).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// What speaks against an interface.
fn against(need: Need, iface: &Interface) -> Option<&'static str> {
    if iface.loopback {
        return Some("loopback");
    }
    if !iface.up {
        return Some("down");
    }
    if !iface.carrier {
        return Some("no carrier");
    }
    if !iface.multicast {
        return Some("no multicast");
    }
    match need {
        Need::Ipv4 if !iface.ips.iter().any(IpAddr::is_ipv4) => Some("no IPv4 address"),
        Need::Ethernet if iface.mac == [0; 6] => Some("no Ethernet address"),
        _ => None,
    }
}

fn decide(
    need: Need,
    all: Vec<(u32, Interface)>,
    routed: Option<IpAddr>,
) -> Result<Choice, ChooseError> {
    let mut others = Vec::new();
    let mut usable = Vec::new();
    for (speed, iface) in all {
        match against(need, &iface) {
            Some(reason) => others.push((iface.name, reason.to_owned())),
            None => usable.push((speed, iface)),
        }
    }
    let (at, why) = best(&usable, &others, routed)?;
    let (_, iface) = usable.remove(at);
    others.extend(usable.into_iter().map(|(speed, other)| {
        let reason = format!("usable ({}), but not {why}", speed_text(speed));
        (other.name, reason)
    }));
    Ok(Choice { iface, why, others })
}

/// Which of `usable`, and why.
fn best(
    usable: &[(u32, Interface)],
    others: &[(String, String)],
    routed: Option<IpAddr>,
) -> Result<(usize, String), ChooseError> {
    if usable.len() == 1 {
        return Ok((0, "the only one that can be used".into()));
    }
    let through = |(_, iface): &(u32, Interface)| routed.is_some_and(|ip| iface.ips.contains(&ip));
    if let Some(at) = usable.iter().position(through) {
        return Ok((at, "where the default route leads".into()));
    }
    let Some(top) = usable.iter().map(|(speed, _)| *speed).max() else {
        let reasons: Vec<String> = others.iter().map(|(n, r)| format!("{n}: {r}")).collect();
        return Err(ChooseError::None {
            reasons: reasons.join("; "),
        });
    };
    let fastest: Vec<usize> = (0..usable.len()).filter(|&i| usable[i].0 == top).collect();
    match fastest[..] {
        [at] => Ok((at, format!("the fastest ({})", speed_text(top)))),
        _ => {
            let names: Vec<&str> = fastest.iter().map(|&i| &*usable[i].1.name).collect();
            Err(ChooseError::Ambiguous {
                names: names.join(", "),
            })
        }
    }
}

fn speed_text(mbit_per_s: u32) -> String {
    match mbit_per_s {
        0 => "speed unknown".into(),
        speed => format!("{speed} Mb/s"),
    }
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

    fn eth(name: &str, last: u8) -> Interface {
        Interface {
            name: name.into(),
            index: u32::from(last),
            mac: [2, 0, 0, 0, 0, last],
            ips: vec![IpAddr::from([10, 0, 0, last])],
            mtu: 1500,
            up: true,
            carrier: true,
            multicast: true,
            loopback: false,
        }
    }

    #[test]
    fn the_default_route_comes_before_speed() {
        let all = || vec![(1000, eth("a", 1)), (10_000, eth("b", 2))];
        let routed = decide(Need::Ipv4, all(), Some([10, 0, 0, 1].into())).expect("a choice");
        assert_eq!(routed.iface.name, "a");
        let fastest = decide(Need::Ipv4, all(), None).expect("a choice");
        assert_eq!(fastest.iface.name, "b");
        assert!(fastest.why.contains("10000 Mb/s"), "{}", fastest.why);
        assert_eq!(fastest.others[0].0, "a");
    }

    #[test]
    fn what_cannot_be_used_is_passed_over_with_its_reason() {
        let down = Interface {
            up: false,
            ..eth("down0", 1)
        };
        let bare = Interface {
            ips: Vec::new(),
            ..eth("bare0", 2)
        };
        let all = vec![(0, down), (0, bare), (0, eth("eth0", 3))];
        let choice = decide(Need::Ipv4, all.clone(), None).expect("a choice");
        assert_eq!(choice.iface.name, "eth0");
        assert_eq!(choice.others[0], ("down0".into(), "down".into()));
        assert_eq!(choice.others[1].1, "no IPv4 address");
        let none = decide(Need::Ipv4, all[..2].to_vec(), None).expect_err("none");
        assert!(none.to_string().contains("down0: down"), "{none}");
    }

    #[test]
    fn equals_are_refused_by_name() {
        let all = vec![(0, eth("a", 1)), (0, eth("b", 2))];
        let refused = decide(Need::Ethernet, all, None).expect_err("ambiguous");
        assert!(refused.to_string().contains("a, b"), "{refused}");
    }
}

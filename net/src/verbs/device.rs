//! The ports of RDMA devices on this host, and which of them is meant.
//!
//! Opens devices, reads what they are and closes them again. Invariants: nothing is assumed of a
//! device, port, identifier or MTU that the device was not asked for. An open device is closed with
//! its [`Context`], after everything that was made on it.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::fmt;
use std::io;
use std::mem::{self, size_of};
use std::net::{IpAddr, Ipv6Addr};
use std::ptr;

use super::VerbsError;
use super::ffi::{
    self, DeviceAttr, GID_IB, GID_ROCE_V2, Gid, GidEntry, LINK_ETHERNET, Library, PORT_ACTIVE,
    PortAttr, library,
};
use crate::iface;

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
/// [`VerbsError::NoLibrary`], [`VerbsError::NoDevice`], or a device that would not say what it is.
pub fn ports() -> Result<Vec<Port>, VerbsError> {
    let library = library().map_err(VerbsError::no_library)?;
    let (devices, refused) = open_all(library, None).map_err(|source| VerbsError::System {
        what: "list RDMA devices",
        device: "this host".to_owned(),
        source,
    })?;
    if devices.is_empty() {
        return Err(match refused.into_iter().next() {
            Some((device, source)) => VerbsError::System {
                what: "open (access to /dev/infiniband/uverbs*)",
                device,
                source,
            },
            None => VerbsError::NoDevice,
        });
    }
    let mut ports = Vec::new();
    for device in &devices {
        let found = ports_of(device).map_err(|source| VerbsError::System {
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
    let describe = |(number, attr): (u8, PortAttr)| {
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
pub(super) fn choose(ports: Vec<Port>, wanted: Option<&str>) -> Result<Port, VerbsError> {
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
        return Err(VerbsError::NoSuchPort {
            name: wanted.unwrap_or_default().to_owned(),
            existing: all,
        });
    };
    let trouble = first.trouble();
    let mut usable = meant.into_iter().filter(|port| port.trouble().is_none());
    match (usable.next(), usable.next()) {
        (Some(port), None) => Ok(port),
        (None, _) => Err(VerbsError::NotReady(trouble.unwrap_or_default())),
        (Some(_), Some(_)) => Err(VerbsError::Several { existing: all }),
    }
}

fn list(ports: &[Port]) -> String {
    let names: Vec<String> = ports.iter().map(ToString::to_string).collect();
    names.join(", ")
}

/// An open device.
pub(super) struct Context {
    pub(super) library: &'static Library,
    pub(super) raw: *mut ffi::Context,
    pub(super) name: String,
}

// SAFETY: libibverbs may be called from any thread; the pointer is only read.
unsafe impl Send for Context {}

/// What of a device holds for all its ports.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) ports: u8,
    /// Work requests of a queue, and entries of a completion queue.
    pub(super) queue: usize,
    pub(super) groups: usize,
}

/// Opens all devices, or those of this name; second, what could not be opened and why.
#[expect(clippy::type_complexity)]
pub(super) fn open_all(
    library: &'static Library,
    wanted: Option<&str>,
) -> io::Result<(Vec<Context>, Vec<(String, io::Error)>)> {
    let mut count = 0;
    // SAFETY: the library writes the number of entries.
    let list = unsafe { (library.get_device_list)(&raw mut count) };
    if list.is_null() {
        let error = io::Error::last_os_error();
        // A kernel without RDMA.
        return match error.raw_os_error() {
            Some(libc::ENOSYS) => Ok((Vec::new(), Vec::new())),
            _ => Err(error),
        };
    }
    let (mut opened, mut refused) = (Vec::new(), Vec::new());
    for i in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the list has `count` entries and lives until `free_device_list`; names are
        // terminated strings inside of them.
        let (device, name) = unsafe {
            let device = *list.add(i);
            let name = CStr::from_ptr((library.get_device_name)(device));
            (device, name.to_string_lossy().into_owned())
        };
        if wanted.is_some_and(|wanted| wanted != name) {
            continue;
        }
        // SAFETY: an entry of the list, which is not freed yet; the context outlives it.
        let raw = unsafe { (library.open_device)(device) };
        if raw.is_null() {
            refused.push((name, io::Error::last_os_error()));
        } else {
            opened.push(Context { library, raw, name });
        }
    }
    // SAFETY: the list, once.
    unsafe { (library.free_device_list)(list) };
    Ok((opened, refused))
}

/// The result of a call that returns an error number.
pub(super) fn check(result: i32) -> io::Result<()> {
    match result {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        number => Err(io::Error::from_raw_os_error(number.abs())),
    }
}

/// Raises the limit of locked memory of this process as far as it may: without end for those who
/// have CAP_SYS_RESOURCE, else to the hard limit. To be called before capabilities are given up.
pub fn raise_locked_memory_limit() {
    let mut limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: the kernel reads the structure.
    if unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) } == 0 {
        return;
    }
    // SAFETY: the kernel writes the structure.
    if unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) } == 0 {
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: the kernel reads the structure. The hard limit is never refused.
        unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) };
    }
}

impl Context {
    pub(super) fn limits(&self) -> io::Result<Limits> {
        // SAFETY: numbers all; all zero is valid.
        let mut attr: DeviceAttr = unsafe { mem::zeroed() };
        // SAFETY: the context is open; the library fills the structure, whose layout is tested.
        check(unsafe { (self.library.query_device)(self.raw, &raw mut attr) })?;
        let number = |value: i32| usize::try_from(value).unwrap_or(0);
        Ok(Limits {
            ports: attr.phys_port_cnt,
            queue: number(attr.max_qp_wr.min(attr.max_cqe)),
            groups: number(attr.max_mcast_grp),
        })
    }

    pub(super) fn port(&self, number: u8) -> io::Result<PortAttr> {
        let mut attr = PortAttr::default();
        // SAFETY: the exported function fills an older, shorter form of the same structure.
        check(unsafe { (self.library.query_port)(self.raw, number, &raw mut attr) })?;
        Ok(attr)
    }

    /// The global identifiers of all ports.
    pub(super) fn gids(&self, most: usize) -> io::Result<Vec<GidEntry>> {
        let mut entries = vec![GidEntry::default(); most.max(1)];
        // SAFETY: there is space for as many entries of this size as are announced.
        let found = unsafe {
            (self.library.query_gid_table)(
                self.raw,
                entries.as_mut_ptr(),
                entries.len(),
                0,
                size_of::<GidEntry>(),
            )
        };
        match usize::try_from(found) {
            Ok(found) => {
                entries.truncate(found);
                Ok(entries)
            }
            Err(_) => Err(io::Error::from_raw_os_error(
                i32::try_from(-found).unwrap_or(libc::EIO),
            )),
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: open, and everything made on it is gone.
            unsafe { (self.library.close_device)(self.raw) };
            self.raw = ptr::null_mut();
        }
    }
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
            several.contains("name one") && several.contains("rxe1:1"),
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

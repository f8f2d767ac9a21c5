//! The payload of contacts: at which addresses nodes are, for nodes that multicast does not bring
//! together.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};

use zerocopy::byteorder::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Most nodes that one frame of contacts names: with them it fits into the smallest MTU.
pub const CONTACTS_MAX: usize = 20;

/// Where a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contact {
    /// The node.
    pub node: u16,
    /// Its address.
    pub address: SocketAddr,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawContact {
    node: U16,
    port: U16,
    /// IPv6; IPv4 as ::ffff:a.b.c.d (RFC 4291, section 2.5.5.2).
    ip: [u8; 16],
}

impl Contact {
    /// Bytes of a payload that names `count` nodes.
    pub fn len(count: usize) -> usize {
        count * size_of::<RawContact>()
    }

    /// Writes a payload; `out` is [`len`](Self::len) bytes.
    pub fn emit(contacts: &[Self], out: &mut [u8]) {
        let out = out.chunks_exact_mut(size_of::<RawContact>());
        for (bytes, contact) in out.zip(contacts) {
            let ip = match contact.address.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            let raw = RawContact {
                node: contact.node.into(),
                port: contact.address.port().into(),
                ip: ip.octets(),
            };
            bytes.copy_from_slice(raw.as_bytes());
        }
    }

    /// Reads a payload; `None` if it is not whole, too long, or has an address that no node has.
    pub fn parse(payload: &[u8]) -> Option<Vec<Self>> {
        let all = <[RawContact]>::ref_from_bytes(payload).ok()?;
        if all.len() > CONTACTS_MAX {
            return None;
        }
        all.iter().map(Self::of).collect()
    }

    fn of(raw: &RawContact) -> Option<Self> {
        let ip = Ipv6Addr::from(raw.ip).to_canonical();
        let port = raw.port.get();
        let usual = port != 0 && !ip.is_unspecified() && !ip.is_multicast();
        usual.then(|| Self {
            node: raw.node.get(),
            address: SocketAddr::new(ip, port),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_emitted_is_parsed(
            all in proptest::collection::vec((any::<u16>(), any::<SocketAddr>()), 0..30),
        ) {
            let contacts: Vec<Contact> = all
                .into_iter()
                .map(|(node, mut address)| {
                    // The scope of an interface means nothing elsewhere.
                    address.set_ip(address.ip().to_canonical());
                    let address = SocketAddr::new(address.ip(), address.port());
                    Contact { node, address }
                })
                .collect();
            let mut out = vec![0; Contact::len(contacts.len())];
            Contact::emit(&contacts, &mut out);
            prop_assert_eq!(out.len(), 20 * contacts.len());
            if let Some(first) = contacts.first() {
                prop_assert!(out[..2] == first.node.to_le_bytes());
                prop_assert!(out[2..4] == first.address.port().to_le_bytes());
            }
            let usual = |one: &Contact| {
                let ip = one.address.ip();
                one.address.port() != 0 && !ip.is_unspecified() && !ip.is_multicast()
            };
            let fits = contacts.len() <= CONTACTS_MAX && contacts.iter().all(usual);
            prop_assert_eq!(Contact::parse(&out), fits.then_some(contacts));
            out.push(0);
            prop_assert_eq!(Contact::parse(&out), None);
        }

        #[test]
        fn any_bytes_are_parsed_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..500)) {
            let _ = Contact::parse(&bytes);
        }
    }
}

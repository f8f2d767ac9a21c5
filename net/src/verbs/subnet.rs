//! Joins a multicast group of an InfiniBand fabric: its subnet administrator gives the group a
//! local identifier, makes it if need be, and tells the switches that this port is a member.
//!
//! Holds the one request that is made, as bytes (`InfiniBand Architecture Specification` volume 1,
//! 13.4 management datagrams, 15.2.5.17 MCMemberRecord). Touches `/sys/class/infiniband*` and,
//! through `sys`, `/dev/infiniband/umad*`. Was never run: no InfiniBand was at hand.
//!
//! Invariant: the port stays a member when the process ends. Membership is the port's, and other
//! processes of the host may use it; the subnet manager forgets it when the port goes down.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use super::device::Port;
use super::sys::Gid;

pub(super) mod sys;

/// Length of a management datagram.
pub(super) const MAD_BYTES: usize = 256;
/// Where the record begins: behind the headers of datagram, segmentation and administration.
const RECORD: usize = 56;
/// Base version 1, class 3 (subnet administration) version 2, method 2 (set).
const HEADER: [u8; 4] = [1, 3, 2, 2];
/// Attribute MCMemberRecord.
const MEMBER_RECORD: u16 = 0x38;
/// Components that are set: group, port, queue key, traffic class, partition key, service level,
/// flow label, join state. Those are what making a group needs.
const COMPONENTS: u64 = 1 | 1 << 1 | 1 << 2 | 1 << 6 | 1 << 7 | 1 << 12 | 1 << 13 | 1 << 16;
/// Join state: full member.
const FULL_MEMBER: u8 = 1;

/// A group on a fabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) gid: Gid,
    /// 0 on Ethernet.
    pub(super) lid: u16,
}

/// The global identifier that a group has on InfiniBand: transient, of this subnet, "DW".
pub(super) fn gid_of(group: Ipv4Addr) -> Gid {
    let mut gid = [0; 16];
    gid[..4].copy_from_slice(&[0xFF, 0x12, 0x44, 0x57]);
    gid[12..].copy_from_slice(&group.octets());
    Gid(gid)
}

/// Asks the subnet administrator to make this port a member.
pub(super) fn join(port: &Port, own: Gid, group: Ipv4Addr, key: u32) -> io::Result<Group> {
    let gid = gid_of(group);
    let partition = partition_key(port)?;
    let request = request(gid, own, key, partition, std::process::id().into());
    let answer = sys::ask(&device_file(port)?, port.sm_lid, &request)?;
    Ok(Group {
        gid,
        lid: parse(&answer)?,
    })
}

fn request(gid: Gid, own: Gid, key: u32, partition: u16, number: u64) -> [u8; MAD_BYTES] {
    let mut mad = [0; MAD_BYTES];
    let mut put = |at: usize, bytes: &[u8]| mad[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &HEADER);
    put(8, &number.to_be_bytes());
    put(16, &MEMBER_RECORD.to_be_bytes());
    put(48, &COMPONENTS.to_be_bytes());
    put(RECORD, &gid.0);
    put(RECORD + 16, &own.0);
    put(RECORD + 32, &key.to_be_bytes());
    put(RECORD + 40, &partition.to_be_bytes());
    put(RECORD + 48, &[FULL_MEMBER]);
    mad
}

/// The local identifier of the group.
fn parse(answer: &[u8; MAD_BYTES]) -> io::Result<u16> {
    let number = |at: usize| u16::from_be_bytes([answer[at], answer[at + 1]]);
    let status = number(4);
    if status != 0 {
        return Err(io::Error::other(format!(
            "the subnet administrator refuses: status {status:#06x}"
        )));
    }
    match number(RECORD + 36) {
        lid @ 0xC000.. => Ok(lid),
        lid => Err(io::Error::other(format!(
            "the subnet administrator gives {lid:#06x}, which is no multicast identifier"
        ))),
    }
}

/// The first partition of the port.
fn partition_key(port: &Port) -> io::Result<u16> {
    let Port { device, number, .. } = port;
    let text = fs::read_to_string(format!(
        "/sys/class/infiniband/{device}/ports/{number}/pkeys/0"
    ))?;
    let digits = text.trim().trim_start_matches("0x");
    u16::from_str_radix(digits, 16).map_err(io::Error::other)
}

/// The file through which management datagrams of the port go.
fn device_file(port: &Port) -> io::Result<PathBuf> {
    for entry in fs::read_dir("/sys/class/infiniband_mad")? {
        let folder = entry?.path();
        let is = |file: &str, value: &str| {
            fs::read_to_string(folder.join(file)).is_ok_and(|text| text.trim() == value)
        };
        if let Some(name) = folder.file_name()
            && is("ibdev", &port.device)
            && is("port", &port.number.to_string())
        {
            return Ok(PathBuf::from("/dev/infiniband").join(name));
        }
    }
    Err(io::Error::other(
        "the port has no management device (modprobe ib_umad)",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_is_laid_out_as_specified() {
        let gid = gid_of(Ipv4Addr::new(239, 68, 1, 2));
        let mad = request(gid, Gid([9; 16]), 0x0102_0304, 0xFFFF, 7);
        assert_eq!(mad[..4], [1, 3, 2, 2]);
        assert_eq!(mad[8..18], [0, 0, 0, 0, 0, 0, 0, 7, 0, 0x38]);
        assert_eq!(mad[48..56], [0, 0, 0, 0, 0, 1, 0x30, 0xC7]);
        assert_eq!(mad[56..60], [0xFF, 0x12, 0x44, 0x57]);
        assert_eq!(mad[68..72], [239, 68, 1, 2]);
        assert_eq!(mad[72..88], [9; 16]);
        assert_eq!(mad[88..92], [1, 2, 3, 4]);
        assert_eq!(mad[96..98], [0xFF, 0xFF]);
        assert_eq!(mad[104], 1);
    }

    #[test]
    fn an_answer_gives_a_multicast_identifier_or_says_why_not() {
        let mut answer = [0; MAD_BYTES];
        assert!(
            parse(&answer)
                .expect_err("none")
                .to_string()
                .contains("0x0000")
        );
        answer[RECORD + 36..RECORD + 38].copy_from_slice(&[0xC0, 0x05]);
        assert_eq!(parse(&answer).expect("an identifier"), 0xC005);
        answer[4..6].copy_from_slice(&[0x02, 0x00]);
        assert!(
            parse(&answer)
                .expect_err("refused")
                .to_string()
                .contains("0x0200")
        );
    }
}

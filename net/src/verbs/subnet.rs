//! Joins a multicast group of an InfiniBand fabric. Its subnet administrator makes the group if it
//! does not exist, gives it a local identifier, and tells the switches that this port is a member.
//!
//! Holds the one request that is made, as bytes (`InfiniBand Architecture Specification` volume 1,
//! 13.4 management datagrams, 15.2.5.17 MCMemberRecord), and its way through the kernel's `ib_umad`
//! (`rdma/ib_user_mad.h` and Documentation/infiniband/user_mad.rst of the kernel). A test of `ffi`
//! compares the layouts with the header. Touches `/sys/class/infiniband*` and
//! `/dev/infiniband/umad*`. Was never run: no InfiniBand was at hand.
//!
//! Invariant: the port stays a member when the process ends. Membership is the port's, and other
//! processes of the host may use it; the subnet manager forgets it when the port goes down.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use super::device::Port;
use super::ffi::Gid;
use crate::syscalls::check;

/// Length of a management datagram.
const MAD_BYTES: usize = 256;
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

/// `IB_USER_MAD_REGISTER_AGENT` and `IB_USER_MAD_ENABLE_PKEY`.
pub(super) const REGISTER_AGENT: libc::c_ulong = 0xC01C_1B01;
pub(super) const ENABLE_PKEY: libc::c_ulong = 0x1B03;
/// Bytes of `struct ib_user_mad_hdr`, and where its fields are.
pub(super) const HEADER_BYTES: usize = 64;
pub(super) const STATUS: usize = 4;
const TIMEOUT_MS: usize = 8;
const RETRIES: usize = 12;
pub(super) const LENGTH: usize = 16;
pub(super) const QPN: usize = 20;
const QKEY: usize = 24;
pub(super) const LID: usize = 28;
/// The administrator listens on queue pair 1, whose key is the same everywhere.
const ADMINISTRATOR_QPN: u32 = 1;
const ADMINISTRATOR_QKEY: u32 = 0x8001_0000;
const WAIT_MS: u32 = 1000;
const TRIES: u32 = 3;

/// `struct ib_user_mad_reg_req`.
#[repr(C)]
pub(super) struct Agent {
    id: u32,
    method_mask: [u32; 4],
    qpn: u8,
    class: u8,
    class_version: u8,
    oui: [u8; 3],
    rmpp_version: u8,
}

/// A group on a fabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) gid: Gid,
    /// 0 on Ethernet.
    pub(super) lid: u16,
}

/// The global identifier that a group has on InfiniBand: transient, of this subnet, "DW".
fn gid_of(group: Ipv4Addr) -> Gid {
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
    let answer = ask(&device_file(port)?, port.sm_lid, &request)?;
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
            "the subnet administrator gives {lid:#06x}, which is not a multicast identifier"
        ))),
    }
}

/// Sends a request and returns the answer. The kernel asks again by itself, a few seconds in all.
#[allow(unsafe_code)]
fn ask(file: &Path, sm_lid: u16, request: &[u8; MAD_BYTES]) -> io::Result<[u8; MAD_BYTES]> {
    let opened = OpenOptions::new().read(true).write(true).open(file);
    let mut device = opened.map_err(|error| {
        let text = format!(
            "{}: {error} (run as root, or give the user access)",
            file.display()
        );
        io::Error::new(error.kind(), text)
    })?;
    let mut agent = Agent {
        id: 0,
        method_mask: [0; 4],
        qpn: 1,
        class: 3,
        class_version: 2,
        oui: [0; 3],
        rmpp_version: 0,
    };
    // SAFETY: takes no argument.
    check(unsafe { libc::ioctl(device.as_raw_fd(), ENABLE_PKEY) })?;
    // SAFETY: the kernel reads and writes one structure of this layout, which outlives the call.
    check(unsafe { libc::ioctl(device.as_raw_fd(), REGISTER_AGENT, &raw mut agent) })?;
    let mut message = [0; HEADER_BYTES + MAD_BYTES];
    let mut put = |at: usize, bytes: &[u8]| message[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &agent.id.to_ne_bytes());
    put(TIMEOUT_MS, &WAIT_MS.to_ne_bytes());
    put(RETRIES, &TRIES.to_ne_bytes());
    put(LENGTH, &(MAD_BYTES as u32).to_ne_bytes());
    put(QPN, &ADMINISTRATOR_QPN.to_be_bytes());
    put(QKEY, &ADMINISTRATOR_QKEY.to_be_bytes());
    put(LID, &sm_lid.to_be_bytes());
    put(HEADER_BYTES, request);
    device.write_all(&message)?;
    let mut answer = [0; HEADER_BYTES + MAD_BYTES];
    // One datagram with each call.
    let got = device.read(&mut answer)?;
    let status = answer[STATUS..STATUS + 4]
        .try_into()
        .map_or(0, i32::from_ne_bytes);
    if status != 0 || got < answer.len() {
        return Err(io::Error::other(format!(
            "the subnet administrator at lid {sm_lid} does not answer"
        )));
    }
    let mut mad = [0; MAD_BYTES];
    mad.copy_from_slice(&answer[HEADER_BYTES..]);
    Ok(mad)
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

//! Management datagrams to the subnet administrator, through the kernel's `ib_umad`.
//!
//! Touches the device file it is given. Source: `rdma/ib_user_mad.h` and
//! Documentation/infiniband/user_mad.rst of the kernel; a test holds the layouts against the header.
#![allow(unsafe_code)]

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;

use super::MAD_BYTES;
use crate::ethernet::sys::check;

/// `IB_USER_MAD_REGISTER_AGENT` and `IB_USER_MAD_ENABLE_PKEY`.
pub(in crate::verbs) const REGISTER_AGENT: libc::c_ulong = 0xC01C_1B01;
pub(in crate::verbs) const ENABLE_PKEY: libc::c_ulong = 0x1B03;
/// Bytes of `struct ib_user_mad_hdr`, and where its fields are.
pub(in crate::verbs) const HEADER_BYTES: usize = 64;
pub(in crate::verbs) const STATUS: usize = 4;
const TIMEOUT_MS: usize = 8;
const RETRIES: usize = 12;
pub(in crate::verbs) const LENGTH: usize = 16;
pub(in crate::verbs) const QPN: usize = 20;
const QKEY: usize = 24;
pub(in crate::verbs) const LID: usize = 28;
/// The administrator listens on queue pair 1, whose key everybody knows.
const ADMINISTRATOR_QPN: u32 = 1;
const ADMINISTRATOR_QKEY: u32 = 0x8001_0000;
const WAIT_MS: u32 = 1000;
const TRIES: u32 = 3;

/// `struct ib_user_mad_reg_req`.
#[repr(C)]
pub(in crate::verbs) struct Agent {
    id: u32,
    method_mask: [u32; 4],
    qpn: u8,
    class: u8,
    class_version: u8,
    oui: [u8; 3],
    rmpp_version: u8,
}

/// Sends a request and returns the answer. The kernel asks again by itself, a few seconds in all.
pub(super) fn ask(
    file: &Path,
    sm_lid: u16,
    request: &[u8; MAD_BYTES],
) -> io::Result<[u8; MAD_BYTES]> {
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

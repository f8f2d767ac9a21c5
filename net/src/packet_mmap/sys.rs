//! The system calls of packet sockets (see also `syscalls`).
//!
//! Touches only the sockets it is given. Invariant: every pointer given to the kernel points to a
//! value that outlives the call.
//!
//! Sources: packet(7) and the kernel's `Documentation/networking/packet_mmap.rst`; layouts are
//! those of `include/uapi/linux/if_packet.h` as the `libc` crate has them.
#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::os::fd::AsRawFd;
use std::ptr;

use libc::{c_int, sockaddr_ll};
use socket2::Socket;

use crate::syscalls::{self, OptionValue, check};

impl OptionValue for libc::tpacket_req {}
impl OptionValue for libc::tpacket_req3 {}
impl OptionValue for libc::tpacket_stats_v3 {}

/// Sets an option of the packet level.
pub(super) fn set<T: OptionValue>(socket: &Socket, name: c_int, value: T) -> io::Result<()> {
    syscalls::set(socket, libc::SOL_PACKET, name, value)
}

/// Packets seen and dropped since this was last asked, and how often the ring was found full.
pub(super) fn statistics(socket: &Socket) -> io::Result<libc::tpacket_stats_v3> {
    syscalls::get(socket, libc::SOL_PACKET, libc::PACKET_STATISTICS)
}

/// The address of an interface, with an EtherType (0: receive nothing).
pub(super) fn address(index: u32, ether_type: u16) -> sockaddr_ll {
    sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: ether_type.to_be(),
        sll_ifindex: index.cast_signed(),
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 6,
        sll_addr: [0; 8],
    }
}

/// Binds to an interface: from now on the socket receives.
pub(super) fn bind(socket: &Socket, address: &sockaddr_ll) -> io::Result<()> {
    // SAFETY: the pointer and length are those of `address`, which outlives the call.
    check(unsafe {
        libc::bind(
            socket.as_raw_fd(),
            ptr::from_ref(address).cast(),
            mem::size_of_val(address) as libc::socklen_t,
        )
    })?;
    Ok(())
}

/// Whether the interface that the socket was bound to is still there.
pub(super) fn has_interface(socket: &Socket) -> bool {
    let mut bound = address(0, 0);
    let mut len = mem::size_of_val(&bound) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into `bound`, integers all.
    let result = check(unsafe {
        libc::getsockname(socket.as_raw_fd(), (&raw mut bound).cast(), &raw mut len)
    });
    // The kernel sets the index to -1 when the interface goes.
    result.is_ok() && bound.sll_ifindex > 0
}

/// Tells the kernel to send what is marked in the ring; returns the bytes it took, Ethernet
/// headers included. Does not block.
pub(super) fn kick(socket: &Socket, address: &sockaddr_ll) -> io::Result<usize> {
    // SAFETY: no data is passed (null, 0): the kernel reads the ring. The address outlives the
    // call.
    let taken = unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            ptr::null(),
            0,
            libc::MSG_DONTWAIT,
            ptr::from_ref(address).cast(),
            mem::size_of_val(address) as libc::socklen_t,
        )
    };
    usize::try_from(taken).map_err(|_| io::Error::last_os_error())
}

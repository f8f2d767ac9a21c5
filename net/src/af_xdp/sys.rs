//! The system calls of AF_XDP sockets and bpf(2).
//!
//! Touches only the sockets and descriptors it is given. Invariant: every pointer given to the
//! kernel points to a value that outlives the call.
//!
//! Sources: the kernel's `Documentation/networking/af_xdp.rst`, `include/uapi/linux/if_xdp.h`
//! (layouts as the `libc` crate has them), `bpf.h` (`union bpf_attr`) and `ethtool.h`.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use libc::{c_int, sockaddr_xdp, xdp_mmap_offsets, xdp_options, xdp_statistics, xdp_umem_reg};
use socket2::{Domain, Socket, Type};

use crate::syscalls::{self, OptionValue, check};

impl OptionValue for xdp_mmap_offsets {}
impl OptionValue for xdp_options {}
impl OptionValue for xdp_statistics {}
impl OptionValue for xdp_umem_reg {}

/// Frames that one `sendto` may copy (since Linux 6.17; before that always 32).
const XDP_MAX_TX_SKB_BUDGET: c_int = 9;

/// An AF_XDP socket, not bound.
pub(super) fn socket() -> io::Result<Socket> {
    Socket::new(Domain::from(libc::AF_XDP), Type::RAW, None)
}

/// Sets an option of the XDP level.
pub(super) fn set<T: OptionValue>(socket: &Socket, name: c_int, value: T) -> io::Result<()> {
    syscalls::set(socket, libc::SOL_XDP, name, value)
}

/// Makes a ring of `frames` descriptors; `name` says which.
pub(super) fn set_ring(socket: &Socket, name: c_int, frames: usize) -> io::Result<()> {
    set(socket, name, c_int::try_from(frames).unwrap_or(c_int::MAX))
}

/// Lets one call hand over this many frames in copy mode, where the kernel knows how.
pub(super) fn set_tx_budget(socket: &Socket, frames: usize) {
    // An older kernel takes 32 at a time, and the caller calls again.
    let _ = set_ring(socket, XDP_MAX_TX_SKB_BUDGET, frames);
}

/// Where producer, consumer, flags and descriptors are in the mapping of each ring.
pub(super) fn offsets(socket: &Socket) -> io::Result<xdp_mmap_offsets> {
    syscalls::get(socket, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS)
}

/// What the socket has lost since it was made.
pub(super) fn statistics(socket: &Socket) -> io::Result<xdp_statistics> {
    syscalls::get(socket, libc::SOL_XDP, libc::XDP_STATISTICS)
}

/// Whether the driver reads and writes the UMEM itself.
pub(super) fn is_zero_copy(socket: &Socket) -> bool {
    let options: io::Result<xdp_options> = syscalls::get(socket, libc::SOL_XDP, libc::XDP_OPTIONS);
    options.is_ok_and(|options| options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0)
}

/// Binds to one queue of an interface. Without `copy` the kernel tries zero copy first.
pub(super) fn bind(socket: &Socket, index: u32, queue: u32, copy: bool) -> io::Result<()> {
    let address = sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: libc::XDP_USE_NEED_WAKEUP | if copy { libc::XDP_COPY } else { 0 },
        sxdp_ifindex: index,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: 0,
    };
    // SAFETY: the pointer and length are those of `address`, which outlives the call.
    check(unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            mem::size_of_val(&address) as libc::socklen_t,
        )
    })?;
    Ok(())
}

/// Tells the kernel to send what is in the transmit ring. Does not block.
pub(super) fn kick(socket: &Socket) -> io::Result<()> {
    // SAFETY: no data and no address are passed (null, 0): the kernel reads the ring.
    let sent = unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            ptr::null(),
            0,
            libc::MSG_DONTWAIT,
            ptr::null(),
            0,
        )
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())?;
    Ok(())
}

/// Tells the driver that there are frames in the fill ring again. Does not block; what it cannot do
/// now the next call does.
pub(super) fn wake(socket: &Socket) {
    // SAFETY: no buffer and no address are passed (null, 0).
    unsafe {
        libc::recvfrom(
            socket.as_raw_fd(),
            ptr::null_mut(),
            0,
            libc::MSG_DONTWAIT,
            ptr::null_mut(),
            ptr::null_mut(),
        );
    }
}

/// How many queues of each kind an interface has now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Queues {
    pub(super) rx: u32,
    pub(super) tx: u32,
}

/// `struct ethtool_channels`.
#[repr(C)]
#[derive(Default)]
struct Channels {
    cmd: u32,
    max: [u32; 4],
    rx: u32,
    tx: u32,
    other: u32,
    combined: u32,
}

const ETHTOOL_GCHANNELS: u32 = 0x3C;
const SIOCETHTOOL: libc::c_ulong = 0x8946;

/// The queues of an interface; `None` where the driver does not tell.
pub(super) fn queues(iface: &str) -> Option<Queues> {
    let mut channels = Channels {
        cmd: ETHTOOL_GCHANNELS,
        ..Channels::default()
    };
    // SAFETY: `ifreq` is plain old data; all zero is valid.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    if iface.len() >= request.ifr_name.len() {
        return None;
    }
    for (to, from) in request.ifr_name.iter_mut().zip(iface.bytes()) {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_data = (&raw mut channels).cast();
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).ok()?;
    // SAFETY: `ifru_data` points to a `struct ethtool_channels` that outlives the call; the kernel
    // writes integers into it.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &raw mut request) }).ok()?;
    let queues = Queues {
        rx: channels.rx + channels.combined,
        tx: channels.tx + channels.combined,
    };
    (queues.rx > 0 && queues.tx > 0).then_some(queues)
}

// Commands, types and flags of bpf(2).
const BPF_MAP_CREATE: c_int = 0;
const BPF_MAP_UPDATE_ELEM: c_int = 2;
const BPF_PROG_LOAD: c_int = 5;
const BPF_LINK_CREATE: c_int = 28;
const BPF_MAP_TYPE_XSKMAP: u32 = 17;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_XDP: u32 = 37;
const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

/// The members of `union bpf_attr` for `BPF_MAP_CREATE`, as far as they are used.
#[repr(C)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
}

/// For `BPF_MAP_UPDATE_ELEM`.
#[repr(C)]
struct MapUpdate {
    map_fd: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// For `BPF_PROG_LOAD`.
#[repr(C)]
struct ProgLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
    prog_ifindex: u32,
    expected_attach_type: u32,
}

/// For `BPF_LINK_CREATE`.
#[repr(C)]
struct LinkCreate {
    prog_fd: u32,
    target_ifindex: u32,
    attach_type: u32,
    flags: u32,
}

fn fd(of: BorrowedFd<'_>) -> u32 {
    of.as_raw_fd().cast_unsigned()
}

fn address<T: ?Sized>(of: &T) -> u64 {
    ptr::from_ref(of).cast::<u8>().addr() as u64
}

/// bpf(2).
///
/// # Safety
/// `attr` is the part of `union bpf_attr` that `command` takes. Addresses in it are those of values
/// that are as large as it says and outlive the call. What is left out at its end counts as zero.
unsafe fn bpf<T>(command: c_int, attr: &T) -> io::Result<c_int> {
    // SAFETY: as the caller promises; the length is that of `attr`.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            ptr::from_ref(attr),
            mem::size_of::<T>(),
        )
    };
    check(c_int::try_from(result).unwrap_or(-1))
}

/// # Safety
/// As [`bpf`], for a command that returns a new descriptor.
unsafe fn bpf_open<T>(command: c_int, attr: &T) -> io::Result<OwnedFd> {
    // SAFETY: as the caller promises; the descriptor is new and has no other owner.
    unsafe { bpf(command, attr).map(|fd| OwnedFd::from_raw_fd(fd)) }
}

/// A map from queue to AF_XDP socket.
pub(super) fn create_xskmap(queues: u32) -> io::Result<OwnedFd> {
    let attr = MapCreate {
        map_type: BPF_MAP_TYPE_XSKMAP,
        key_size: 4,
        value_size: 4,
        max_entries: queues,
        map_flags: 0,
    };
    // SAFETY: plain numbers; the command returns a descriptor.
    unsafe { bpf_open(BPF_MAP_CREATE, &attr) }
}

/// Writes the socket of a queue into the map.
pub(super) fn update_xskmap(map: &OwnedFd, queue: u32, socket: &Socket) -> io::Result<()> {
    let value = fd(socket.as_fd());
    let attr = MapUpdate {
        map_fd: fd(map.as_fd()),
        pad: 0,
        key: address(&queue),
        value: address(&value),
        flags: 0,
    };
    // SAFETY: key and value have the four bytes that the map was made with, and outlive the call.
    unsafe { bpf(BPF_MAP_UPDATE_ELEM, &attr) }?;
    Ok(())
}

/// Loads an XDP program.
///
/// # Errors
/// What the kernel said, with the last words of its verifier if it had any.
pub(super) fn load_program(insns: &[u64], name: [u8; 16], license: &CStr) -> io::Result<OwnedFd> {
    let load = |log: &mut [u8]| {
        let attr = ProgLoad {
            prog_type: BPF_PROG_TYPE_XDP,
            insn_cnt: insns.len() as u32,
            insns: address(insns),
            license: license.as_ptr().addr() as u64,
            log_level: u32::from(!log.is_empty()),
            log_size: log.len() as u32,
            log_buf: if log.is_empty() {
                0
            } else {
                log.as_mut_ptr().expose_provenance() as u64
            },
            kern_version: 0,
            prog_flags: 0,
            prog_name: name,
            prog_ifindex: 0,
            expected_attach_type: BPF_XDP,
        };
        // SAFETY: instructions, licence (ends in zero) and log outlive the call; the log has
        // `log_size` bytes that the kernel may write.
        unsafe { bpf_open(BPF_PROG_LOAD, &attr) }
    };
    load(&mut []).or_else(|error| {
        if error.kind() == io::ErrorKind::PermissionDenied {
            return Err(error);
        }
        let mut log = vec![0; 16 << 10];
        load(&mut log).map_err(|error| {
            let log = CStr::from_bytes_until_nul(&log).unwrap_or_default();
            let log = log.to_string_lossy();
            io::Error::new(error.kind(), format!("{error}: {}", log.trim()))
        })
    })
}

/// Attaches a program to an interface for as long as the returned link is open.
pub(super) fn attach(program: &OwnedFd, index: u32, driver: bool) -> io::Result<OwnedFd> {
    let attr = LinkCreate {
        prog_fd: fd(program.as_fd()),
        target_ifindex: index,
        attach_type: BPF_XDP,
        flags: if driver {
            XDP_FLAGS_DRV_MODE
        } else {
            XDP_FLAGS_SKB_MODE
        },
    };
    // SAFETY: plain numbers; the command returns a descriptor.
    unsafe { bpf_open(BPF_LINK_CREATE, &attr) }
}

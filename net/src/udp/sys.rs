//! The system calls of the `udp` transport that `socket2` lacks (see also `syscalls`).
//!
//! Touches only the sockets it is given. Invariants: every pointer given to the kernel points into
//! a buffer that is borrowed for the length of the call; nothing here keeps one.
//!
//! Sources: udp(7), ip(7), socket(7), sendmmsg(2), recvmmsg(2); the kernel's
//! `Documentation/networking/segmentation-offloads.rst` and `include/uapi/linux/sock_diag.h`.
#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::AsRawFd;
use std::ptr;

use libc::{c_int, iovec, mmsghdr, msghdr, sockaddr_in, sockaddr_in6, sockaddr_storage};
use socket2::{SockAddr, Socket};

use crate::syscalls::{OptionValue, check, get, set};

/// Index of the drop count in what `SO_MEMINFO` returns.
const SK_MEMINFO_DROPS: usize = 8;
/// Length of what `SO_MEMINFO` returns, in words.
const SK_MEMINFO_VARS: usize = 9;

/// Messages handed over in one call, at most.
pub(super) const MESSAGES_MAX: usize = 64;

impl OptionValue for libc::ip_mreqn {}
impl OptionValue for [u32; SK_MEMINFO_VARS] {}

/// Sends IPv4 multicast through this interface.
pub(super) fn set_multicast_interface_v4(
    socket: &Socket,
    local: Ipv4Addr,
    index: u32,
) -> io::Result<()> {
    let request = libc::ip_mreqn {
        imr_multiaddr: libc::in_addr { s_addr: 0 },
        imr_address: libc::in_addr {
            s_addr: u32::from(local).to_be(),
        },
        imr_ifindex: index.cast_signed(),
    };
    set(socket, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, request)
}

/// Whether the kernel can cut a long buffer into datagrams (since Linux 4.18).
pub(super) fn can_segment(socket: &Socket) -> bool {
    get::<c_int>(socket, libc::SOL_UDP, libc::UDP_SEGMENT).is_ok()
}

/// Asks for datagrams of one flow to be delivered joined (since Linux 5.0).
pub(super) fn join_received(socket: &Socket) -> io::Result<()> {
    set(socket, libc::SOL_UDP, libc::UDP_GRO, 1)
}

/// One of the two buffers of a socket.
#[derive(Debug, Clone, Copy)]
pub(super) enum Buffer {
    Send,
    Receive,
}

/// Sets the size of a buffer, beyond the limit of the host where privilege allows. Returns the
/// bytes granted, counted as they were asked for (the kernel doubles them for its own bookkeeping).
pub(super) fn set_buffer(socket: &Socket, which: Buffer, bytes: usize) -> io::Result<usize> {
    let asked = c_int::try_from(bytes.min(1 << 30)).unwrap_or(c_int::MAX);
    let (plain, force) = match which {
        Buffer::Send => (libc::SO_SNDBUF, libc::SO_SNDBUFFORCE),
        Buffer::Receive => (libc::SO_RCVBUF, libc::SO_RCVBUFFORCE),
    };
    if set(socket, libc::SOL_SOCKET, force, asked).is_err() {
        set(socket, libc::SOL_SOCKET, plain, asked)?;
    }
    let granted: c_int = get(socket, libc::SOL_SOCKET, plain)?;
    Ok(usize::try_from(granted / 2).unwrap_or(0))
}

/// Datagrams (or joined datagrams) that this socket dropped: buffer full, bad checksum, or refused
/// by its filter. Wraps around.
pub(super) fn drops(socket: &Socket) -> io::Result<u32> {
    let info: [u32; SK_MEMINFO_VARS] = get(socket, libc::SOL_SOCKET, libc::SO_MEMINFO)?;
    Ok(info[SK_MEMINFO_DROPS])
}

/// Space for one control message that holds a `T`-sized value, aligned as the kernel wants it.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; 32]);

/// What is to leave in one system call: one datagram, or several of `segment` bytes each (the last
/// may be shorter).
pub(super) struct Outgoing<'a> {
    pub(super) to: &'a SockAddr,
    pub(super) bytes: &'a [u8],
    pub(super) segment: Option<u16>,
}

/// Hands over up to [`MESSAGES_MAX`] messages without blocking; returns how many the kernel took.
///
/// # Errors
/// What the kernel said about the first message; nothing was taken then.
pub(super) fn send<'a>(
    socket: &Socket,
    messages: impl Iterator<Item = Outgoing<'a>>,
) -> io::Result<usize> {
    // SAFETY: these are plain old data for which all zero is valid.
    let (mut headers, mut vectors): ([mmsghdr; MESSAGES_MAX], [iovec; MESSAGES_MAX]) =
        unsafe { (mem::zeroed(), mem::zeroed()) };
    let mut controls = [Control([0; 32]); MESSAGES_MAX];
    let mut count: c_int = 0;
    for (message, ((header, vector), control)) in
        messages.zip(headers.iter_mut().zip(&mut vectors).zip(&mut controls))
    {
        // The kernel only reads through these pointers.
        vector.iov_base = message.bytes.as_ptr().cast_mut().cast();
        vector.iov_len = message.bytes.len();
        let header = &mut header.msg_hdr;
        header.msg_name = message.to.as_ptr().cast_mut().cast();
        header.msg_namelen = message.to.len();
        header.msg_iov = vector;
        header.msg_iovlen = 1;
        if let Some(segment) = message.segment {
            put_segment_size(header, control, segment);
        }
        count += 1;
    }
    // SAFETY: the first `count` headers are filled in; what they point to (addresses and bytes
    // borrowed for 'a, vectors and controls of this frame) outlives the call.
    let sent = check(unsafe {
        libc::sendmmsg(
            socket.as_raw_fd(),
            headers.as_mut_ptr(),
            count as libc::c_uint,
            libc::MSG_DONTWAIT,
        )
    })?;
    Ok(sent as usize)
}

fn put_segment_size(header: &mut msghdr, control: &mut Control, segment: u16) {
    let len = mem::size_of::<u16>() as libc::c_uint;
    header.msg_control = control.0.as_mut_ptr().cast();
    // SAFETY: CMSG_SPACE only computes.
    header.msg_controllen = unsafe { libc::CMSG_SPACE(len) } as usize;
    // SAFETY: `msg_control` has space for CMSG_SPACE(2) = 24 of 32 bytes and is aligned for
    // `cmsghdr`, so the first header is not null and its data lies inside.
    unsafe {
        let first = libc::CMSG_FIRSTHDR(header);
        (*first).cmsg_level = libc::SOL_UDP;
        (*first).cmsg_type = libc::UDP_SEGMENT;
        (*first).cmsg_len = libc::CMSG_LEN(len) as usize;
        ptr::write_unaligned(libc::CMSG_DATA(first).cast::<u16>(), segment);
    }
}

/// One received message: what it holds and how to read it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Incoming {
    /// Which part of the buffer holds it.
    pub(super) index: usize,
    pub(super) from: SocketAddr,
    pub(super) len: usize,
    /// Length of each datagram joined in it (the last may be shorter); `len` if it is but one.
    pub(super) segment: usize,
    /// Cut off: it was longer than the buffer.
    pub(super) truncated: bool,
}

/// What the kernel writes about a message.
struct Slot {
    vector: iovec,
    name: sockaddr_storage,
    control: Control,
}

/// Space for what the kernel writes about the messages of one call. It is made once: clearing it
/// for each call costs more than a call that finds nothing.
pub(super) struct Slots {
    // Pointers in here are set before each call and mean nothing between calls.
    headers: Vec<mmsghdr>,
    slots: Vec<Slot>,
}

// SAFETY: the pointers in `headers` and `slots` are never followed but by the call that has set
// them.
unsafe impl Send for Slots {}

impl Slots {
    /// For up to `messages` messages a call.
    pub(super) fn new(messages: usize) -> Self {
        Slots {
            // SAFETY: plain old data for which all zero is valid.
            headers: (0..messages).map(|_| unsafe { mem::zeroed() }).collect(),
            // SAFETY: as above.
            slots: (0..messages).map(|_| unsafe { mem::zeroed() }).collect(),
        }
    }
}

/// Receives messages without blocking, as many as there are slots at most: message `i` into
/// `buffer[i * stride..][..size]`. Fills `incoming` anew and returns how many messages
/// the kernel gave.
pub(super) fn receive(
    socket: &Socket,
    buffer: &mut [u8],
    (stride, size): (usize, usize),
    Slots { headers, slots }: &mut Slots,
    incoming: &mut Vec<Incoming>,
) -> io::Result<usize> {
    incoming.clear();
    let mut count = 0;
    for ((chunk, header), slot) in buffer
        .chunks_exact_mut(stride)
        .zip(headers.iter_mut())
        .zip(slots.iter_mut())
    {
        let bytes = &mut chunk[..size];
        slot.vector.iov_base = bytes.as_mut_ptr().cast();
        slot.vector.iov_len = bytes.len();
        let header = &mut header.msg_hdr;
        header.msg_name = (&raw mut slot.name).cast();
        header.msg_namelen = mem::size_of::<sockaddr_storage>() as libc::socklen_t;
        header.msg_iov = &raw mut slot.vector;
        header.msg_iovlen = 1;
        header.msg_control = slot.control.0.as_mut_ptr().cast();
        header.msg_controllen = slot.control.0.len();
        header.msg_flags = 0;
        count += 1;
    }
    // SAFETY: the first `count` headers are filled in and point into `slots` and `buffer`, which
    // are borrowed mutably; no two share a byte. A null time limit is allowed.
    let received = check(unsafe {
        libc::recvmmsg(
            socket.as_raw_fd(),
            headers.as_mut_ptr(),
            count,
            libc::MSG_DONTWAIT,
            ptr::null_mut(),
        )
    })?;
    let filled = headers.iter().zip(&*slots).take(received as usize);
    for (index, (header, slot)) in filled.enumerate() {
        let len = header.msg_len as usize;
        let segment = segment_size(&header.msg_hdr).unwrap_or(len);
        if let Some(from) = socket_address(&slot.name) {
            incoming.push(Incoming {
                index,
                from,
                len,
                segment: segment.min(len),
                truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
            });
        }
    }
    Ok(received as usize)
}

/// The length of the joined datagrams, if the kernel joined any.
fn segment_size(header: &msghdr) -> Option<usize> {
    // SAFETY: the kernel has filled the control buffer and set `msg_controllen` to what is valid
    // of it; the macros stay inside of that. The value of UDP_GRO is an int.
    unsafe {
        let mut control = libc::CMSG_FIRSTHDR(header);
        while let Some(found) = control.as_ref() {
            if found.cmsg_level == libc::SOL_UDP && found.cmsg_type == libc::UDP_GRO {
                let size = ptr::read_unaligned(libc::CMSG_DATA(control).cast::<c_int>());
                return usize::try_from(size).ok().filter(|&size| size > 0);
            }
            control = libc::CMSG_NXTHDR(header, control);
        }
    }
    None
}

fn socket_address(name: &sockaddr_storage) -> Option<SocketAddr> {
    match c_int::from(name.ss_family) {
        libc::AF_INET => {
            // SAFETY: `sockaddr_storage` is larger than `sockaddr_in` and as strictly aligned; the
            // family says which it is.
            let v4 = unsafe { &*ptr::from_ref(name).cast::<sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Some((ip, u16::from_be(v4.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above, for `sockaddr_in6`.
            let v6 = unsafe { &*ptr::from_ref(name).cast::<sockaddr_in6>() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let port = u16::from_be(v6.sin6_port);
            Some(SocketAddrV6::new(ip, port, 0, v6.sin6_scope_id).into())
        }
        _ => None,
    }
}

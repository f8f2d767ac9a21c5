//! System calls that several transports share: socket options, waiting, the MTU of an interface.
//!
//! Touches only the sockets it is given. Invariant: every pointer given to the kernel points to a
//! value that outlives the call.
#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::os::fd::AsRawFd;
use std::ptr;
use std::time::Duration;

use libc::{c_int, c_void, pollfd};
use socket2::Socket;

/// The error of a system call that returned a negative number.
pub(crate) fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

/// Plain old data, integers all, that an option of a socket may hold.
pub(crate) trait OptionValue: Copy {}
impl OptionValue for c_int {}
impl OptionValue for libc::packet_mreq {}

/// Sets an option.
pub(crate) fn set<T: OptionValue>(
    socket: &Socket,
    level: c_int,
    name: c_int,
    value: T,
) -> io::Result<()> {
    // SAFETY: the pointer and length are those of `value`, which outlives the call.
    check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast::<c_void>(),
            mem::size_of::<T>() as libc::socklen_t,
        )
    })?;
    Ok(())
}

/// Reads an option; what an older kernel leaves out is zero.
pub(crate) fn get<T: OptionValue>(socket: &Socket, level: c_int, name: c_int) -> io::Result<T> {
    // SAFETY: integers all (see `OptionValue`); all zero is valid.
    let mut value: T = unsafe { mem::zeroed() };
    let mut len = mem::size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into `value`, and any bytes are a valid `T`.
    check(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw mut value).cast::<c_void>(),
            &raw mut len,
        )
    })?;
    Ok(value)
}

/// Asks for a send buffer of this size, beyond the limit of the host where privilege allows.
pub(crate) fn set_send_buffer(socket: &Socket, bytes: usize) -> io::Result<()> {
    let asked = c_int::try_from(bytes.min(1 << 30)).unwrap_or(c_int::MAX);
    set(socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, asked)
        .or_else(|_| set(socket, libc::SOL_SOCKET, libc::SO_SNDBUF, asked))
}

/// The MTU of an interface by name, in bytes.
pub(crate) fn interface_mtu(name: &str) -> io::Result<usize> {
    // SAFETY: `ifreq` is plain old data; all zero is valid.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    let socket = Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None)?;
    // SAFETY: SIOCGIFMTU reads the name of `request` and writes its `ifru_mtu`, which is an integer
    // and therefore valid to read.
    let mtu = unsafe {
        check(libc::ioctl(
            socket.as_raw_fd(),
            libc::SIOCGIFMTU,
            &raw mut request,
        ))?;
        request.ifr_ifru.ifru_mtu
    };
    usize::try_from(mtu).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// A socket (or another descriptor) to wait for, as [`poll`] takes it.
pub(crate) fn readable(source: &impl AsRawFd) -> pollfd {
    pollfd {
        fd: source.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    }
}

/// Sleeps until one of the sockets can be read (true) or the time has passed (false). The second
/// of the pair tells whether a socket has an error to be taken.
pub(crate) fn poll(fds: &mut [pollfd], timeout: Duration) -> io::Result<(bool, bool)> {
    let limit = libc::timespec {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // SAFETY: descriptors and time limit outlive the call; a null signal mask is allowed.
    let result = check(unsafe {
        libc::ppoll(
            fds.as_mut_ptr(),
            fds.len() as libc::nfds_t,
            &raw const limit,
            ptr::null(),
        )
    });
    match result {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok((false, false)),
        other => other?,
    };
    let any = |events: i16| fds.iter().any(|fd| fd.revents & events != 0);
    Ok((
        any(libc::POLLIN),
        any(libc::POLLERR | libc::POLLHUP | libc::POLLNVAL),
    ))
}

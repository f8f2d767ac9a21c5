//! Opens RDMA devices and reads what they are.
//!
//! Touches the library and the devices it finds. Invariant: an open device is closed with its
//! [`Context`], after everything that was made on it.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::mem::{self, size_of};
use std::ptr;

use crate::verbs::sys::{self, DeviceAttr, GidEntry, Library, PortAttr};

/// An open device.
pub(in crate::verbs) struct Context {
    pub(in crate::verbs) library: &'static Library,
    pub(in crate::verbs) raw: *mut sys::Context,
    pub(in crate::verbs) name: String,
}

// SAFETY: libibverbs may be called from any thread; the pointer is only read.
unsafe impl Send for Context {}

/// What of a device holds for all its ports.
#[derive(Debug, Clone, Copy)]
pub(in crate::verbs) struct Limits {
    pub(in crate::verbs) ports: u8,
    /// Work requests of a queue, and entries of a completion queue.
    pub(in crate::verbs) queue: usize,
    pub(in crate::verbs) groups: usize,
}

/// Opens all devices, or those of this name; second, what could not be opened and why.
#[expect(clippy::type_complexity)]
pub(in crate::verbs) fn open_all(
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
pub(in crate::verbs) fn check(result: i32) -> io::Result<()> {
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
        // SAFETY: the kernel reads the structure. Nobody is refused the hard limit.
        unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) };
    }
}

impl Context {
    pub(in crate::verbs) fn limits(&self) -> io::Result<Limits> {
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

    pub(in crate::verbs) fn port(&self, number: u8) -> io::Result<PortAttr> {
        let mut attr = PortAttr::default();
        // SAFETY: the exported function fills an older, shorter form of the same structure.
        check(unsafe { (self.library.query_port)(self.raw, number, &raw mut attr) })?;
        Ok(attr)
    }

    /// The global identifiers of all ports.
    pub(in crate::verbs) fn gids(&self, most: usize) -> io::Result<Vec<GidEntry>> {
        let mut entries = vec![GidEntry::default(); most.max(1)];
        // SAFETY: room for as many entries of this size as are announced.
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

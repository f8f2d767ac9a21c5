//! Queue pairs for datagrams: what one of either direction has, protection domain, completion
//! queue, registered memory. `send_ring` and `recv_ring` use them.
//!
//! Each half of a link has a queue pair to itself, on a device opened for itself. So an error when
//! sending (a link that is down) leaves the receiving half alone, and the two may live on different
//! threads without a lock.
//!
//! Touches the device and memory of its own. Invariant: what was made is destroyed in the opposite
//! order, the memory last: until then the device may write to it.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_uint};
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;
use std::sync::atomic::AtomicU32;

use memmap2::{MmapOptions, MmapRaw};

use super::device::{Context, check};
use super::ffi::{
    self, ACCESS_LOCAL_WRITE, AhAttr, Cq, GlobalRoute, Mr, QP_PKEY_INDEX, QP_PORT, QP_QKEY,
    QP_SQ_PSN, QP_STATE, QPS_ERR, QPS_INIT, QPS_RESET, QPS_RTR, QPS_RTS, QPT_UD, QpAttr, QpCap,
    QpInitAttr, Wc,
};

/// Slots of equal size, in memory of their own.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slots {
    pub(super) count: usize,
    pub(super) bytes: usize,
}

/// What a queue pair is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Send,
    Receive,
}

/// A step of opening that failed.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) what: &'static str,
    pub(super) source: io::Error,
}

/// Where datagrams go: a port or a group. Valid as long as the queue it was made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Handle(pub(super) *mut ffi::Ah);

// SAFETY: only ever handed back to the library, which may be called from any thread.
unsafe impl Send for Handle {}

/// A queue pair and everything it stands on.
pub(super) struct Queue {
    context: Context,
    pd: *mut ffi::Pd,
    channel: *mut ffi::Channel,
    cq: *mut Cq,
    pub(super) qp: *mut ffi::Qp,
    mr: *mut Mr,
    lent: Vec<*mut Mr>,
    handles: Vec<*mut ffi::Ah>,
    groups: Vec<(ffi::Gid, u16)>,
    memory: MmapRaw,
    pub(super) slots: Slots,
    port: u8,
    qkey: u32,
}

// SAFETY: libibverbs may be called from any thread, and everything behind these pointers belongs
// to this queue alone.
unsafe impl Send for Queue {}

impl Queue {
    /// Makes a queue pair on a port and brings it up.
    pub(super) fn open(
        context: Context,
        port: u8,
        qkey: u32,
        direction: Direction,
        slots: Slots,
    ) -> Result<Self, Failed> {
        let step = |what| move |source| Failed { what, source };
        let memory = MmapOptions::new()
            .len(slots.count * slots.bytes)
            .populate()
            .map_anon()
            .map_err(step("map memory for slots"))?;
        let mut queue = Queue {
            context,
            pd: ptr::null_mut(),
            channel: ptr::null_mut(),
            cq: ptr::null_mut(),
            qp: ptr::null_mut(),
            mr: ptr::null_mut(),
            lent: Vec::new(),
            handles: Vec::new(),
            groups: Vec::new(),
            memory: memory.into(),
            slots,
            port,
            qkey,
        };
        queue.build(direction)?;
        queue.raise().map_err(step("bring up a queue pair"))?;
        Ok(queue)
    }

    fn build(&mut self, direction: Direction) -> Result<(), Failed> {
        let library = self.context.library;
        let made = |what, there: bool| {
            let source = io::Error::last_os_error();
            if there {
                Ok(())
            } else {
                Err(Failed { what, source })
            }
        };
        // SAFETY: the context is open; what is passed was made on it before.
        self.pd = unsafe { (library.alloc_pd)(self.context.raw) };
        made("make a protection domain", !self.pd.is_null())?;
        let (start, len) = (self.memory.as_mut_ptr(), self.memory.len());
        // SAFETY: the memory is ours and outlives its registration (see `drop`).
        self.mr = unsafe { (library.reg_mr)(self.pd, start.cast(), len, ACCESS_LOCAL_WRITE) };
        made(REGISTER, !self.mr.is_null())?;
        if direction == Direction::Receive {
            // SAFETY: as above.
            self.channel = unsafe { (library.create_comp_channel)(self.context.raw) };
            made("make a completion channel", !self.channel.is_null())?;
        }
        let entries = c_int::try_from(self.slots.count).unwrap_or(c_int::MAX);
        // SAFETY: as above; no channel is a null pointer.
        self.cq = unsafe {
            (library.create_cq)(self.context.raw, entries, ptr::null_mut(), self.channel, 0)
        };
        made("make a completion queue", !self.cq.is_null())?;
        let (send, receive) = match direction {
            Direction::Send => (self.slots.count as u32, 1),
            Direction::Receive => (1, self.slots.count as u32),
        };
        let mut attr = QpInitAttr {
            qp_context: ptr::null_mut(),
            send_cq: self.cq,
            recv_cq: self.cq,
            srq: ptr::null_mut(),
            cap: QpCap {
                max_send_wr: send,
                max_recv_wr: receive,
                // A header and weights.
                max_send_sge: 2,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: QPT_UD,
            sq_sig_all: 0,
        };
        // SAFETY: as above; the attributes outlive the call.
        self.qp = unsafe { (library.create_qp)(self.pd, &raw mut attr) };
        made("make a queue pair", !self.qp.is_null())
    }

    fn modify(&self, attr: &mut QpAttr, mask: c_int) -> io::Result<()> {
        // SAFETY: the queue pair is ours; the attributes outlive the call.
        check(unsafe { (self.context.library.modify_qp)(self.qp, attr, mask) })
    }

    fn to_state(&self, state: u32) -> io::Result<()> {
        let mut attr = QpAttr::default();
        attr.qp_state = state;
        match state {
            QPS_INIT => {
                attr.port_num = self.port;
                attr.qkey = self.qkey;
                let mask = QP_STATE | QP_PKEY_INDEX | QP_PORT | QP_QKEY;
                self.modify(&mut attr, mask)
            }
            QPS_RTS => self.modify(&mut attr, QP_STATE | QP_SQ_PSN),
            _ => self.modify(&mut attr, QP_STATE),
        }
    }

    /// From reset to ready to send.
    fn raise(&self) -> io::Result<()> {
        [QPS_INIT, QPS_RTR, QPS_RTS]
            .into_iter()
            .try_for_each(|state| self.to_state(state))
    }

    /// Starts the queue pair again; all posted requests are dropped.
    pub(super) fn restart(&self) -> io::Result<()> {
        // One that is in error already refuses; nothing is left to be stopped then.
        let _ = self.to_state(QPS_ERR);
        self.to_state(QPS_RESET)?;
        // Completions that came meanwhile are of requests that are dropped.
        while !self.poll(&mut [Wc::default(); 32])?.is_empty() {}
        self.raise()
    }

    /// The number of the queue pair.
    pub(super) fn number(&self) -> u32 {
        // SAFETY: the queue pair lives as long as `self`.
        unsafe { (*self.qp).qp_num }
    }

    /// The key of the slots.
    pub(super) fn key(&self) -> u32 {
        // SAFETY: the registration lives as long as `self`.
        unsafe { (*self.mr).lkey }
    }

    /// Where slot `index` begins.
    pub(super) fn slot(&self, index: usize) -> *mut u8 {
        assert!(index < self.slots.count, "slot {index}");
        // SAFETY: inside the mapping, as just checked.
        unsafe { self.memory.as_mut_ptr().add(index * self.slots.bytes) }
    }

    /// Registers memory to be read by the device. It stays pinned until the queue is dropped.
    pub(super) fn lend(&mut self, words: &[AtomicU32]) -> io::Result<u32> {
        let (start, len) = (words.as_ptr().cast_mut(), mem::size_of_val(words));
        // SAFETY: the memory exists; the device only reads it, and the kernel pins its pages, so
        // that unmapping them later changes nothing for the device. Words that change under
        // its eyes are atomics.
        let mr = unsafe { (self.context.library.reg_mr)(self.pd, start.cast(), len, 0) };
        if mr.is_null() {
            return Err(io::Error::last_os_error());
        }
        self.lent.push(mr);
        // SAFETY: just made.
        Ok(unsafe { (*mr).lkey })
    }

    /// Makes a way to a port (`lid`: InfiniBand) or group. Ways are few and kept.
    pub(super) fn handle(
        &mut self,
        gid: ffi::Gid,
        lid: u16,
        own_gid_index: u8,
    ) -> io::Result<Handle> {
        let mut attr = AhAttr {
            grh: GlobalRoute {
                dgid: gid,
                sgid_index: own_gid_index,
                hop_limit: 64,
                ..GlobalRoute::default()
            },
            dlid: lid,
            is_global: 1,
            port_num: self.port,
            ..AhAttr::default()
        };
        // SAFETY: the protection domain is ours; the attributes outlive the call.
        let handle = unsafe { (self.context.library.create_ah)(self.pd, &raw mut attr) };
        if handle.is_null() {
            return Err(io::Error::last_os_error());
        }
        self.handles.push(handle);
        Ok(Handle(handle))
    }

    /// Joins the queue pair to a group of its device.
    pub(super) fn attach(&mut self, group: ffi::Gid, lid: u16) -> io::Result<()> {
        // SAFETY: the queue pair is ours.
        check(unsafe { (self.context.library.attach_mcast)(self.qp, &raw const group, lid) })?;
        self.groups.push((group, lid));
        Ok(())
    }

    /// Takes completions; returns those it took.
    pub(super) fn poll<'w>(&self, wcs: &'w mut [Wc]) -> io::Result<&'w [Wc]> {
        let most = c_int::try_from(wcs.len()).unwrap_or(c_int::MAX);
        // SAFETY: the completion queue is ours; the driver writes `most` completions at most.
        let took = unsafe { ((*(*self.cq).context).ops.poll_cq)(self.cq, most, wcs.as_mut_ptr()) };
        match usize::try_from(took) {
            Ok(took) => Ok(&wcs[..took]),
            Err(_) => Err(io::Error::other("the completion queue cannot be read")),
        }
    }

    /// Asks for an event on the channel when the next completion comes.
    pub(super) fn arm(&self) -> io::Result<()> {
        // SAFETY: the completion queue is ours.
        check(unsafe { ((*(*self.cq).context).ops.req_notify_cq)(self.cq, 0) })
    }

    /// Takes an event from the channel (its descriptor can be read).
    pub(super) fn take_sign(&self) -> io::Result<()> {
        let (mut cq, mut user) = (ptr::null_mut(), ptr::null_mut());
        let get = self.context.library.get_cq_event;
        // SAFETY: the channel is ours; both results are written or the call fails.
        check(unsafe { get(self.channel, &raw mut cq, &raw mut user) })?;
        const ONE: c_uint = 1;
        // SAFETY: the event just taken was this queue's, the only one of the channel.
        unsafe { (self.context.library.ack_cq_events)(cq, ONE) };
        Ok(())
    }

    /// What the library calls a status.
    pub(super) fn status(&self, status: u32) -> String {
        // SAFETY: returns a static string for any number.
        let text = unsafe { CStr::from_ptr((self.context.library.wc_status_str)(status)) };
        text.to_string_lossy().into_owned()
    }
}

/// What registering memory is called when it fails: usually for a limit.
pub(super) const REGISTER: &str = "register memory";

impl AsRawFd for Queue {
    /// Of the completion channel; receiving queues have one.
    fn as_raw_fd(&self) -> RawFd {
        if self.channel.is_null() {
            return -1;
        }
        // SAFETY: the channel lives as long as `self`.
        unsafe { (*self.channel).fd }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let library = self.context.library;
        // SAFETY: each was made by the library and is destroyed once, what stands on
        // others first; null where making it failed. Then the device has let go of the memory.
        unsafe {
            for (group, lid) in &self.groups {
                (library.detach_mcast)(self.qp, group, *lid);
            }
            if !self.qp.is_null() {
                (library.destroy_qp)(self.qp);
            }
            for &handle in &self.handles {
                (library.destroy_ah)(handle);
            }
            if !self.cq.is_null() {
                (library.destroy_cq)(self.cq);
            }
            if !self.channel.is_null() {
                (library.destroy_comp_channel)(self.channel);
            }
            for &mr in self
                .lent
                .iter()
                .chain([&self.mr])
                .filter(|mr| !mr.is_null())
            {
                (library.dereg_mr)(mr);
            }
            if !self.pd.is_null() {
                (library.dealloc_pd)(self.pd);
            }
        }
    }
}

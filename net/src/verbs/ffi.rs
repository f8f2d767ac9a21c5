//! libibverbs as it is on the host: loaded at run time, so that neither building nor starting
//! needs it.
//!
//! Holds the layouts of its structures and the functions we call. Touches the dynamic loader only.
//!
//! Invariants:
//! - Layouts are those of rdma-core's `infiniband/verbs.h`, whose binary interface has not changed
//!   since `IBVERBS_1.1`; a test compiles that header and compares sizes and offsets.
//! - The library is never unloaded: drivers that it loads keep threads and handlers.
//! - What is inline in the header (polling, posting) goes through the table in the context.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

/// The library, by the name that its binary interface has.
pub(super) const LIBRARY: &str = "libibverbs.so.1";

/// A global identifier: the address of a port, or of a multicast group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[repr(C, align(8))]
pub(super) struct Gid(pub(super) [u8; 16]);

/// `enum ibv_qp_type`: unreliable datagrams.
pub(super) const QPT_UD: u32 = 4;
/// `enum ibv_qp_state`.
pub(super) const QPS_RESET: u32 = 0;
pub(super) const QPS_INIT: u32 = 1;
pub(super) const QPS_RTR: u32 = 2;
pub(super) const QPS_RTS: u32 = 3;
pub(super) const QPS_ERR: u32 = 6;
/// `enum ibv_qp_attr_mask`.
pub(super) const QP_STATE: c_int = 1;
pub(super) const QP_PKEY_INDEX: c_int = 1 << 4;
pub(super) const QP_PORT: c_int = 1 << 5;
pub(super) const QP_QKEY: c_int = 1 << 6;
pub(super) const QP_SQ_PSN: c_int = 1 << 16;
/// `enum ibv_wr_opcode`.
pub(super) const WR_SEND_WITH_IMM: u32 = 3;
/// `enum ibv_send_flags`.
pub(super) const SEND_SIGNALED: c_uint = 1 << 1;
/// `enum ibv_wc_status`.
pub(super) const WC_SUCCESS: u32 = 0;
/// `enum ibv_wc_flags`.
pub(super) const WC_GRH: c_uint = 1;
pub(super) const WC_WITH_IMM: c_uint = 1 << 1;
/// `enum ibv_access_flags`.
pub(super) const ACCESS_LOCAL_WRITE: c_int = 1;
/// `enum ibv_port_state`.
pub(super) const PORT_ACTIVE: u32 = 4;
/// The `link_layer` of a port.
pub(super) const LINK_ETHERNET: u8 = 2;
/// `enum ibv_gid_type`.
pub(super) const GID_IB: u32 = 0;
pub(super) const GID_ROCE_V2: u32 = 2;
/// The queue pair number of every multicast group.
pub(super) const MULTICAST_QPN: u32 = 0xFF_FFFF;
/// What stands before the payload of a received datagram: a global routing header, or for RoCE v2
/// over IPv4 twenty unused bytes and the IPv4 header.
pub(super) const GRH_BYTES: usize = 40;

pub(super) enum Device {}
pub(super) enum Pd {}
pub(super) enum Ah {}

type PollCq = unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int;
type RequestNotify = unsafe extern "C" fn(*mut Cq, c_int) -> c_int;
type PostSend = unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int;
type PostRecv = unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int;

/// `struct ibv_context_ops`: what drivers fill in, and entries of old releases.
#[repr(C)]
pub(super) struct ContextOps {
    before: [*const c_void; 11],
    pub(super) poll_cq: PollCq,
    pub(super) req_notify_cq: RequestNotify,
    between: [*const c_void; 12],
    pub(super) post_send: PostSend,
    pub(super) post_recv: PostRecv,
    after: [*const c_void; 5],
}

/// `struct ibv_context`, as far as it is read.
#[repr(C)]
pub(super) struct Context {
    device: *mut Device,
    pub(super) ops: ContextOps,
}

/// `struct ibv_comp_channel`.
#[repr(C)]
pub(super) struct Channel {
    context: *mut Context,
    pub(super) fd: c_int,
    refcnt: c_int,
}

/// `struct ibv_cq`, as far as it is read.
#[repr(C)]
pub(super) struct Cq {
    pub(super) context: *mut Context,
}

/// `struct ibv_mr`.
#[repr(C)]
pub(super) struct Mr {
    context: *mut Context,
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    handle: u32,
    pub(super) lkey: u32,
    rkey: u32,
}

/// `struct ibv_qp`, as far as it is read.
#[repr(C)]
pub(super) struct Qp {
    pub(super) context: *mut Context,
    qp_context: *mut c_void,
    pd: *mut Pd,
    send_cq: *mut Cq,
    recv_cq: *mut Cq,
    srq: *mut c_void,
    handle: u32,
    pub(super) qp_num: u32,
}

/// `struct ibv_device_attr`.
#[repr(C)]
pub(super) struct DeviceAttr {
    fw_ver: [c_char; 64],
    guids: [u64; 2],
    max_mr_size: u64,
    page_size_cap: u64,
    vendor: [u32; 3],
    max_qp: c_int,
    pub(super) max_qp_wr: c_int,
    device_cap_flags: c_uint,
    max_sge: c_int,
    max_sge_rd: c_int,
    max_cq: c_int,
    pub(super) max_cqe: c_int,
    limits: [c_int; 13],
    pub(super) max_mcast_grp: c_int,
    more_limits: [c_int; 8],
    max_pkeys: u16,
    local_ca_ack_delay: u8,
    pub(super) phys_port_cnt: u8,
}

/// `struct ibv_port_attr`.
#[repr(C)]
#[derive(Default)]
pub(super) struct PortAttr {
    pub(super) state: u32,
    max_mtu: u32,
    pub(super) active_mtu: u32,
    pub(super) gid_tbl_len: c_int,
    port_cap_flags: u32,
    max_msg_sz: u32,
    counters: [u32; 2],
    pkey_tbl_len: u16,
    pub(super) lid: u16,
    pub(super) sm_lid: u16,
    lmc: u8,
    max_vl_num: u8,
    sm_sl: u8,
    subnet_timeout: u8,
    init_type_reply: u8,
    active_width: u8,
    active_speed: u8,
    phys_state: u8,
    pub(super) link_layer: u8,
    flags: u8,
    port_cap_flags2: u16,
}

/// `struct ibv_gid_entry`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct GidEntry {
    pub(super) gid: Gid,
    pub(super) gid_index: u32,
    pub(super) port_num: u32,
    pub(super) gid_type: u32,
    pub(super) ndev_ifindex: u32,
}

/// `struct ibv_qp_cap`.
#[repr(C)]
#[derive(Default)]
pub(super) struct QpCap {
    pub(super) max_send_wr: u32,
    pub(super) max_recv_wr: u32,
    pub(super) max_send_sge: u32,
    pub(super) max_recv_sge: u32,
    pub(super) max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
pub(super) struct QpInitAttr {
    pub(super) qp_context: *mut c_void,
    pub(super) send_cq: *mut Cq,
    pub(super) recv_cq: *mut Cq,
    pub(super) srq: *mut c_void,
    pub(super) cap: QpCap,
    pub(super) qp_type: u32,
    pub(super) sq_sig_all: c_int,
}

/// `struct ibv_global_route`.
#[repr(C)]
#[derive(Default)]
pub(super) struct GlobalRoute {
    pub(super) dgid: Gid,
    pub(super) flow_label: u32,
    pub(super) sgid_index: u8,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
}

/// `struct ibv_ah_attr`.
#[repr(C)]
#[derive(Default)]
pub(super) struct AhAttr {
    pub(super) grh: GlobalRoute,
    pub(super) dlid: u16,
    pub(super) sl: u8,
    pub(super) src_path_bits: u8,
    pub(super) static_rate: u8,
    pub(super) is_global: u8,
    pub(super) port_num: u8,
}

/// `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Default)]
pub(super) struct QpAttr {
    pub(super) qp_state: u32,
    cur_qp_state: u32,
    path_mtu: u32,
    path_mig_state: u32,
    pub(super) qkey: u32,
    rq_psn: u32,
    pub(super) sq_psn: u32,
    dest_qp_num: u32,
    qp_access_flags: c_uint,
    cap: QpCap,
    ah_attr: AhAttr,
    alt_ah_attr: AhAttr,
    pub(super) pkey_index: u16,
    alt_pkey_index: u16,
    reliable: [u8; 5],
    pub(super) port_num: u8,
    retries: [u8; 3],
    alt_port_num: u8,
    alt_timeout: u8,
    rate_limit: u32,
}

/// `struct ibv_sge`: a piece of registered memory.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Sge {
    pub(super) addr: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
}

/// `struct ibv_recv_wr`.
#[repr(C)]
pub(super) struct RecvWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut RecvWr,
    pub(super) sg_list: *mut Sge,
    pub(super) num_sge: c_int,
}

/// `struct ibv_send_wr` as datagrams need it; `wr` and what follows are unions.
#[repr(C)]
pub(super) struct SendWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut SendWr,
    pub(super) sg_list: *mut Sge,
    pub(super) num_sge: c_int,
    pub(super) opcode: u32,
    pub(super) send_flags: c_uint,
    /// Its bytes are big-endian.
    pub(super) imm_data: u32,
    pub(super) ah: *mut Ah,
    pub(super) remote_qpn: u32,
    pub(super) remote_qkey: u32,
    pub(super) rest_of_wr: [u64; 2],
    pub(super) others: [u64; 7],
}

/// `struct ibv_wc`: a completion.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Wc {
    pub(super) wr_id: u64,
    pub(super) status: u32,
    opcode: u32,
    vendor_err: u32,
    pub(super) byte_len: u32,
    /// Its bytes are big-endian.
    pub(super) imm_data: u32,
    qp_num: u32,
    src_qp: u32,
    pub(super) wc_flags: c_uint,
    pkey_index: u16,
    pub(super) slid: u16,
    sl: u8,
    dlid_path_bits: u8,
}

/// Declares the functions of the library and how they are looked up.
macro_rules! library {
    ($($name:ident($symbol:literal): fn($($arg:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of libibverbs.
        pub(super) struct Library {
            $(pub(super) $name: unsafe extern "C" fn($($arg),*) $(-> $result)?,)*
        }

        impl Library {
            fn load() -> Result<Self, libloading::Error> {
                // SAFETY: rdma-core's initialisers only read the environment and its own files.
                // Leaked: drivers must not vanish below their threads.
                let library = Box::leak(Box::new(unsafe { libloading::Library::new(LIBRARY)? }));
                Ok(Library {
                    $($name: {
                        // SAFETY: the type is that of the function in `infiniband/verbs.h`.
                        *unsafe {
                            library.get::<unsafe extern "C" fn($($arg),*) $(-> $result)?>(
                                concat!($symbol, "\0").as_bytes(),
                            )?
                        }
                    },)*
                })
            }
        }
    };
}

library! {
    get_device_list("ibv_get_device_list"): fn(*mut c_int) -> *mut *mut Device;
    free_device_list("ibv_free_device_list"): fn(*mut *mut Device);
    get_device_name("ibv_get_device_name"): fn(*mut Device) -> *const c_char;
    open_device("ibv_open_device"): fn(*mut Device) -> *mut Context;
    close_device("ibv_close_device"): fn(*mut Context) -> c_int;
    query_device("ibv_query_device"): fn(*mut Context, *mut DeviceAttr) -> c_int;
    query_port("ibv_query_port"): fn(*mut Context, u8, *mut PortAttr) -> c_int;
    query_gid_table("_ibv_query_gid_table"): fn(*mut Context, *mut GidEntry, usize, u32, usize) -> isize;
    alloc_pd("ibv_alloc_pd"): fn(*mut Context) -> *mut Pd;
    dealloc_pd("ibv_dealloc_pd"): fn(*mut Pd) -> c_int;
    reg_mr("ibv_reg_mr"): fn(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr;
    dereg_mr("ibv_dereg_mr"): fn(*mut Mr) -> c_int;
    create_comp_channel("ibv_create_comp_channel"): fn(*mut Context) -> *mut Channel;
    destroy_comp_channel("ibv_destroy_comp_channel"): fn(*mut Channel) -> c_int;
    create_cq("ibv_create_cq"): fn(*mut Context, c_int, *mut c_void, *mut Channel, c_int) -> *mut Cq;
    destroy_cq("ibv_destroy_cq"): fn(*mut Cq) -> c_int;
    get_cq_event("ibv_get_cq_event"): fn(*mut Channel, *mut *mut Cq, *mut *mut c_void) -> c_int;
    ack_cq_events("ibv_ack_cq_events"): fn(*mut Cq, c_uint);
    create_qp("ibv_create_qp"): fn(*mut Pd, *mut QpInitAttr) -> *mut Qp;
    modify_qp("ibv_modify_qp"): fn(*mut Qp, *mut QpAttr, c_int) -> c_int;
    destroy_qp("ibv_destroy_qp"): fn(*mut Qp) -> c_int;
    create_ah("ibv_create_ah"): fn(*mut Pd, *mut AhAttr) -> *mut Ah;
    destroy_ah("ibv_destroy_ah"): fn(*mut Ah) -> c_int;
    attach_mcast("ibv_attach_mcast"): fn(*mut Qp, *const Gid, u16) -> c_int;
    detach_mcast("ibv_detach_mcast"): fn(*mut Qp, *const Gid, u16) -> c_int;
    wc_status_str("ibv_wc_status_str"): fn(u32) -> *const c_char;
}

/// The library, loaded on first use; the text says why not.
pub(super) fn library() -> Result<&'static Library, &'static str> {
    static LOADED: OnceLock<Result<Library, String>> = OnceLock::new();
    let loaded = LOADED.get_or_init(|| Library::load().map_err(|error| error.to_string()));
    loaded.as_ref().map_err(String::as_str)
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;
    use std::path::Path;
    use std::process::Command;

    use super::*;
    use crate::verbs::subnet;

    /// A structure: its name in C, its size if we have all of it, and the fields we use.
    type Layout = (&'static str, Option<usize>, Vec<(&'static str, usize)>);

    macro_rules! layout {
        ($rust:ident, $c:literal, $whole:literal: $($field:ident)*) => {
            (
                concat!("struct ", $c),
                $whole.then(size_of::<$rust>),
                vec![$((stringify!($field), offset_of!($rust, $field))),*],
            )
        };
    }

    #[rustfmt::skip]
    fn layouts() -> Vec<Layout> {
        vec![
            layout!(ContextOps, "ibv_context_ops", true: poll_cq req_notify_cq post_send post_recv),
            layout!(Context, "ibv_context", false: ops),
            layout!(Channel, "ibv_comp_channel", true: fd),
            layout!(Cq, "ibv_cq", false: context),
            layout!(Mr, "ibv_mr", true: lkey),
            layout!(Qp, "ibv_qp", false: context qp_num),
            layout!(DeviceAttr, "ibv_device_attr", true: max_qp_wr max_cqe max_mcast_grp phys_port_cnt),
            layout!(PortAttr, "ibv_port_attr", true: state active_mtu gid_tbl_len lid sm_lid link_layer),
            layout!(GidEntry, "ibv_gid_entry", true: gid gid_index port_num gid_type ndev_ifindex),
            layout!(QpCap, "ibv_qp_cap", true: max_send_wr max_recv_wr max_send_sge max_recv_sge max_inline_data),
            layout!(QpInitAttr, "ibv_qp_init_attr", true: qp_context send_cq recv_cq srq cap qp_type sq_sig_all),
            layout!(GlobalRoute, "ibv_global_route", true: dgid flow_label sgid_index hop_limit traffic_class),
            layout!(AhAttr, "ibv_ah_attr", true: grh dlid sl src_path_bits static_rate is_global port_num),
            layout!(QpAttr, "ibv_qp_attr", true: qp_state qkey sq_psn pkey_index port_num rate_limit),
            layout!(Sge, "ibv_sge", true: addr length lkey),
            layout!(RecvWr, "ibv_recv_wr", true: wr_id next sg_list num_sge),
            layout!(SendWr, "ibv_send_wr", true: wr_id next sg_list num_sge opcode send_flags imm_data),
            ("struct ibv_send_wr", None, vec![
                ("wr.ud.ah", offset_of!(SendWr, ah)),
                ("wr.ud.remote_qpn", offset_of!(SendWr, remote_qpn)),
                ("wr.ud.remote_qkey", offset_of!(SendWr, remote_qkey)),
            ]),
            layout!(Wc, "ibv_wc", true: wr_id status byte_len imm_data wc_flags slid),
        ]
    }

    /// Constants: their names in C, and ours.
    fn constants() -> Vec<(&'static str, i64)> {
        vec![
            ("IBV_QPT_UD", QPT_UD.into()),
            ("IBV_QPS_RESET", QPS_RESET.into()),
            ("IBV_QPS_INIT", QPS_INIT.into()),
            ("IBV_QPS_RTR", QPS_RTR.into()),
            ("IBV_QPS_RTS", QPS_RTS.into()),
            ("IBV_QPS_ERR", QPS_ERR.into()),
            ("IBV_QP_STATE", QP_STATE.into()),
            ("IBV_QP_PKEY_INDEX", QP_PKEY_INDEX.into()),
            ("IBV_QP_PORT", QP_PORT.into()),
            ("IBV_QP_QKEY", QP_QKEY.into()),
            ("IBV_QP_SQ_PSN", QP_SQ_PSN.into()),
            ("IBV_WR_SEND_WITH_IMM", WR_SEND_WITH_IMM.into()),
            ("IBV_SEND_SIGNALED", SEND_SIGNALED.into()),
            ("IBV_WC_SUCCESS", WC_SUCCESS.into()),
            ("IBV_WC_GRH", WC_GRH.into()),
            ("IBV_WC_WITH_IMM", WC_WITH_IMM.into()),
            ("IBV_ACCESS_LOCAL_WRITE", ACCESS_LOCAL_WRITE.into()),
            ("IBV_PORT_ACTIVE", PORT_ACTIVE.into()),
            ("IBV_LINK_LAYER_ETHERNET", LINK_ETHERNET.into()),
            ("IBV_GID_TYPE_IB", GID_IB.into()),
            ("IBV_GID_TYPE_ROCE_V2", GID_ROCE_V2.into()),
            ("IBV_MTU_256", 1),
            ("IBV_MTU_4096", 5),
            ("sizeof(struct ibv_grh)", GRH_BYTES as i64),
            ("IB_USER_MAD_REGISTER_AGENT", subnet::REGISTER_AGENT as i64),
            ("IB_USER_MAD_ENABLE_PKEY", subnet::ENABLE_PKEY as i64),
            (
                "sizeof(struct ib_user_mad_reg_req)",
                size_of::<subnet::Agent>() as i64,
            ),
            (
                "sizeof(struct ib_user_mad_hdr)",
                subnet::HEADER_BYTES as i64,
            ),
            (
                "offsetof(struct ib_user_mad_hdr, status)",
                subnet::STATUS as i64,
            ),
            (
                "offsetof(struct ib_user_mad_hdr, length)",
                subnet::LENGTH as i64,
            ),
            ("offsetof(struct ib_user_mad_hdr, qpn)", subnet::QPN as i64),
            ("offsetof(struct ib_user_mad_hdr, lid)", subnet::LID as i64),
        ]
    }

    /// A C program that holds every figure against the header, and names those that differ.
    #[test]
    fn layouts_are_those_of_the_header() {
        if !Path::new("/usr/include/infiniband/verbs.h").exists() {
            dogwild_lab::skip::skip("infiniband/verbs.h (Debian: apt-get install libibverbs-dev)");
            return;
        }
        let mut program =
            "#include <stddef.h>\n#include <infiniband/verbs.h>\n#include <rdma/ib_user_mad.h>\n"
                .to_owned();
        let mut is = |what: &str, ours: i64| {
            program +=
                &format!("_Static_assert((long)({what}) == {ours}, \"{what} is not {ours}\");\n");
        };
        for (name, size, fields) in layouts() {
            if let Some(size) = size {
                is(&format!("sizeof({name})"), size as i64);
            }
            for (field, offset) in fields {
                is(&format!("offsetof({name}, {field})"), offset as i64);
            }
        }
        for (name, ours) in constants() {
            is(name, ours);
        }
        let compile = |program: &str| {
            let folder = tempfile::tempdir().expect("a folder");
            let file = folder.path().join("layout.c");
            std::fs::write(&file, program).expect("write");
            Command::new("cc")
                .args(["-fsyntax-only", "-w"])
                .arg(&file)
                .output()
        };
        let Ok(output) = compile(&program) else {
            dogwild_lab::skip::skip("a C compiler, cc (Debian: apt-get install gcc)");
            return;
        };
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        // The test can fail.
        let wrong = compile(&program.replace("offsetof(struct ibv_qp, qp_num)) == ", "0) == "));
        assert!(!wrong.expect("cc").status.success());
    }
}

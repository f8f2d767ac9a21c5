//! Checks the settings against the interface and makes the sockets with their rings.
//!
//! The order of calls is the kernel's: version and options, ring, mapping, and last `bind`, so that
//! nothing is received before the ring is there.

use std::io;

use libc::{c_int, tpacket_req, tpacket_req3};
use socket2::{Domain, Socket, Type};

use super::ring::{Layout, ReceiveRing, TRANSMIT_DATA, TransmitRing};
use super::rx::Rx;
use super::sys;
use super::tx::Tx;
use super::{PacketMmapConfig, PacketMmapError};
use crate::ethernet::{self, ETHERNET_HEADER, Port};
use crate::syscalls::set_send_buffer;

/// Largest payload by default: the common jumbo size.
const MTU_DEFAULT_MAX: usize = 9000;
/// The smallest page that Linux has.
const PAGE_BYTES: usize = 4096;
/// Longest transmit ring; what waits in a longer one is old before it leaves.
const TRANSMIT_FRAMES_MAX: usize = 1 << 16;
/// The transmit ring by default.
const TRANSMIT_BYTES: usize = 1 << 20;
/// A block of the transmit ring: small, as it has to be contiguous memory.
const TRANSMIT_BLOCK_BYTES: usize = 64 << 10;
/// Blocks of the receive ring, if memory allows. The kernel closes a block per `retire_ms` on a
/// slow line, however little is in it: with so many, a receiver may look away for a tenth of a
/// second.
const RECEIVE_BLOCKS: usize = 128;
/// The smallest block of the receive ring: some 40 frames of 1500 bytes, or 7 of 9000.
const RECEIVE_BLOCK_BYTES_MIN: usize = 64 << 10;
/// The largest block: the kernel has to find it in one piece.
const RECEIVE_BLOCK_BYTES_MAX: usize = 1 << 20;
/// The kernel's bookkeeping of a frame being sent, in addition to the frame; generously.
const SKB_BYTES: usize = 2048;

pub(super) fn choose(config: &PacketMmapConfig) -> Result<Port, PacketMmapError> {
    let PacketMmapConfig {
        iface, group, mtu, ..
    } = config;
    Ok(ethernet::choose(iface, *group, *mtu, MTU_DEFAULT_MAX)?)
}

/// Adds to an error what was tried and where.
fn tried<T>(
    config: &PacketMmapConfig,
    what: &'static str,
    result: io::Result<T>,
) -> Result<T, PacketMmapError> {
    result.map_err(|source| PacketMmapError::System {
        what,
        iface: config.iface.clone(),
        source,
    })
}

/// A packet socket that receives nothing before it is bound.
fn packet_socket(config: &PacketMmapConfig) -> Result<Socket, PacketMmapError> {
    match Socket::new(Domain::PACKET, Type::RAW, None) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Err(PacketMmapError::NoPrivilege {
                iface: config.iface.clone(),
            })
        }
        other => tried(config, "make a packet socket", other),
    }
}

fn ring_memory<T>(
    config: &PacketMmapConfig,
    which: &'static str,
    layout: Layout,
    result: io::Result<T>,
) -> Result<T, PacketMmapError> {
    result.map_err(|source| PacketMmapError::RingMemory {
        which,
        bytes: layout.bytes(),
        iface: config.iface.clone(),
        source,
    })
}

/// A number for the kernel, which refuses what is absurd.
fn number(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

fn transmit_layout(config: &PacketMmapConfig, port: &Port) -> Layout {
    let bytes = TRANSMIT_DATA + ETHERNET_HEADER + port.payload_max;
    let frame_bytes = if bytes <= PAGE_BYTES {
        // Within a page: the kernel sends each page of a frame as a fragment of its own.
        bytes.next_power_of_two()
    } else {
        bytes.next_multiple_of(64)
    };
    let block_bytes = TRANSMIT_BLOCK_BYTES.max(frame_bytes.next_power_of_two());
    let layout = Layout {
        block_bytes,
        blocks: 1,
        frame_bytes,
    };
    Layout {
        blocks: config
            .tx_frames
            .unwrap_or(TRANSMIT_BYTES / frame_bytes)
            .clamp(2, TRANSMIT_FRAMES_MAX)
            .div_ceil(layout.frames_per_block()),
        ..layout
    }
}

pub(super) fn open_transmit(config: &PacketMmapConfig, port: &Port) -> Result<Tx, PacketMmapError> {
    let socket = packet_socket(config)?;
    let layout = transmit_layout(config, port);
    let version = libc::tpacket_versions::TPACKET_V2 as c_int;
    let options = sys::set(&socket, libc::PACKET_VERSION, version)
        .and_then(|()| sys::set(&socket, libc::PACKET_QDISC_BYPASS, 1))
        // 0: a frame that the kernel refuses stops the ring and is seen, instead of vanishing.
        .and_then(|()| sys::set(&socket, libc::PACKET_LOSS, 0));
    tried(config, "set up a packet socket for sending", options)?;
    let buffer = layout.frames() * (layout.frame_bytes + SKB_BYTES);
    tried(
        config,
        "set the send buffer",
        set_send_buffer(&socket, buffer),
    )?;
    let request = tpacket_req {
        tp_block_size: layout.block_bytes as u32,
        tp_block_nr: number(layout.blocks),
        tp_frame_size: layout.frame_bytes as u32,
        tp_frame_nr: number(layout.frames()),
    };
    let set = sys::set(&socket, libc::PACKET_TX_RING, request);
    ring_memory(config, "transmit", layout, set)?;
    let mapped = TransmitRing::map(&socket, layout);
    let ring = ring_memory(config, "transmit", layout, mapped)?;
    // EtherType 0: this socket never receives.
    let bound = sys::bind(&socket, &sys::address(port.index, 0));
    tried(config, "bind a packet socket for sending", bound)?;
    Ok(Tx::new(socket, ring, config, port, layout.bytes()))
}

fn receive_layout(config: &PacketMmapConfig) -> Layout {
    let bytes = config.rx_ring_bytes;
    let block_bytes = (bytes / RECEIVE_BLOCKS)
        .clamp(RECEIVE_BLOCK_BYTES_MIN, RECEIVE_BLOCK_BYTES_MAX)
        .next_power_of_two();
    Layout {
        block_bytes,
        blocks: (bytes / block_bytes).max(2),
        // Frames of any length follow each other in a block; the kernel only checks this.
        frame_bytes: 2048,
    }
}

pub(super) fn open_receive(config: &PacketMmapConfig, port: &Port) -> Result<Rx, PacketMmapError> {
    let socket = packet_socket(config)?;
    let layout = receive_layout(config);
    let version = libc::tpacket_versions::TPACKET_V3 as c_int;
    let options = sys::set(&socket, libc::PACKET_VERSION, version)
        .and_then(|()| sys::set(&socket, libc::PACKET_IGNORE_OUTGOING, 1));
    tried(config, "set up a packet socket for receiving", options)?;
    let request = tpacket_req3 {
        tp_block_size: layout.block_bytes as u32,
        tp_block_nr: number(layout.blocks),
        tp_frame_size: layout.frame_bytes as u32,
        tp_frame_nr: number(layout.frames()),
        tp_retire_blk_tov: config.retire_ms.max(1),
        tp_sizeof_priv: 0,
        tp_feature_req_word: 0,
    };
    let set = sys::set(&socket, libc::PACKET_RX_RING, request);
    ring_memory(config, "receive", layout, set)?;
    let mapped = ReceiveRing::map(&socket, layout);
    let ring = ring_memory(config, "receive", layout, mapped)?;
    let joined = ethernet::join_group(&socket, port.index, config.group);
    tried(config, "join the group", joined)?;
    let bound = sys::bind(&socket, &sys::address(port.index, config.ether_type));
    tried(config, "bind a packet socket for receiving", bound)?;
    Ok(Rx::new(socket, ring, config, port, layout.bytes()))
}

//! Checks the settings against the interface and makes the sockets with their rings.
//!
//! The order of calls: the program is attached with an empty map, which passes everything. Then
//! each queue gets a socket (UMEM, rings, filled fill ring, and last `bind`). Only then is the
//! socket written into the map, so that no frame is taken before there is a chunk for it.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use super::program::{Mode, Program};
use super::ring::{ReceiveRings, TransmitRings, Umem};
use super::rx::{Queue, Rx};
use super::sys::{self, Queues};
use super::tx::Tx;
use super::{AfXdpConfig, AfXdpError, MTU_MAX};
use crate::Source;
use crate::ethernet::{self, ETHERNET_HEADER, Port};
use crate::syscalls::set_send_buffer;

/// Space that the kernel leaves before each received frame (`XDP_PACKET_HEADROOM`).
const HEADROOM: usize = 256;
/// Sizes of a chunk of UMEM: a page at most, so that frames never cross one.
const CHUNK_BYTES: [usize; 2] = [2048, 4096];
/// Fewest frames per half and queue.
const FRAMES_MIN: usize = 64;
/// The kernel's bookkeeping of a frame being sent, in addition to the frame; generously.
const SKB_BYTES: usize = 2048;
/// The kernel frees a queue, or detaches a program, some time after its owner has closed.
const RELEASE_TIME: Duration = Duration::from_secs(1);

/// What a socket is made for.
#[derive(Clone, Copy)]
struct Frames {
    tx: usize,
    rx: usize,
}

/// A bound socket with the rings that were asked for.
struct Opened {
    socket: Arc<Socket>,
    tx: Option<TransmitRings>,
    rx: Option<ReceiveRings>,
    zero_copy: bool,
    umem_bytes: usize,
}

pub(super) fn choose(config: &AfXdpConfig) -> Result<Port, AfXdpError> {
    let AfXdpConfig {
        iface, group, mtu, ..
    } = config;
    let port = ethernet::choose(iface, *group, *mtu, usize::MAX)?;
    if port.payload_max > MTU_MAX {
        return Err(AfXdpError::Mtu {
            mtu: port.payload_max,
            iface: iface.clone(),
        });
    }
    Ok(port)
}

/// Adds to an error what was tried and where.
fn tried<T>(
    config: &AfXdpConfig,
    what: &'static str,
    result: io::Result<T>,
) -> Result<T, AfXdpError> {
    result.map_err(|source| {
        let iface = config.iface.clone();
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => AfXdpError::NoPrivilege { what, iface },
            Some(libc::EAFNOSUPPORT | libc::ENOSYS) => AfXdpError::NoKernelSupport,
            _ => AfXdpError::System {
                what,
                iface,
                source,
            },
        }
    })
}

/// Tries again for a while if `busy` says that what is asked for may become free.
fn patiently<T>(
    mut attempt: impl FnMut() -> Result<T, AfXdpError>,
    busy: fn(&AfXdpError) -> bool,
) -> Result<T, AfXdpError> {
    let start = Instant::now();
    loop {
        match attempt() {
            Err(error) if busy(&error) && start.elapsed() < RELEASE_TIME => {
                thread::sleep(Duration::from_millis(10));
            }
            other => return other,
        }
    }
}

fn check_queue(
    config: &AfXdpConfig,
    queue: u32,
    count: Option<u32>,
    purpose: &'static str,
) -> Result<(), AfXdpError> {
    match count {
        Some(count) if queue >= count => Err(AfXdpError::NoSuchQueue {
            queue,
            purpose,
            count,
            iface: config.iface.clone(),
        }),
        _ => Ok(()),
    }
}

/// The queues to receive from and, first, to send to.
fn choose_queues(config: &AfXdpConfig, known: Option<Queues>) -> Result<Vec<u32>, AfXdpError> {
    let all = known.map_or(1, |known| known.rx);
    let queues = config.queues.clone().unwrap_or_else(|| (0..all).collect());
    if queues.is_empty() {
        return Err(AfXdpError::NoQueue {
            iface: config.iface.clone(),
        });
    }
    Ok(queues)
}

pub(super) fn open_both(config: &AfXdpConfig, port: &Port) -> Result<(Tx, Rx), AfXdpError> {
    let (tx, rx) = open_halves(config, port, true)?;
    let tx = tx.expect("asked for");
    Ok((tx, rx))
}

pub(super) fn open_receive(config: &AfXdpConfig, port: &Port) -> Result<Rx, AfXdpError> {
    Ok(open_halves(config, port, false)?.1)
}

pub(super) fn open_transmit(config: &AfXdpConfig, port: &Port) -> Result<Tx, AfXdpError> {
    let known = sys::queues(&config.iface);
    let queue = choose_queues(config, known)?[0];
    check_queue(config, queue, known.map(|known| known.tx), "sending")?;
    let frames = Frames {
        tx: frames(config.tx_frames),
        rx: 0,
    };
    let mut opened = open_queue(config, port, queue, frames, !config.zero_copy)?;
    tell(config, port, "transmit", &opened, None);
    let rings = opened.tx.take().expect("asked for");
    Ok(Tx::new(
        opened.socket,
        rings,
        opened.zero_copy,
        config,
        port,
    ))
}

/// Rings have a power of two of entries.
fn frames(asked: usize) -> usize {
    asked.clamp(FRAMES_MIN, 1 << 20).next_power_of_two()
}

fn open_halves(
    config: &AfXdpConfig,
    port: &Port,
    transmit: bool,
) -> Result<(Option<Tx>, Rx), AfXdpError> {
    let known = sys::queues(&config.iface);
    let queues = choose_queues(config, known)?;
    for &queue in &queues {
        check_queue(config, queue, known.map(|known| known.rx), "receiving")?;
    }
    if transmit {
        check_queue(config, queues[0], known.map(|known| known.tx), "sending")?;
    }
    let membership = tried(
        config,
        "make a packet socket",
        Socket::new(Domain::PACKET, Type::RAW, None),
    )?;
    let joined = ethernet::join_group(&membership, port.index, config.group);
    tried(config, "join the group", joined)?;
    let entries = queues.iter().max().map_or(1, |last| last + 1);
    let program = attach(config, port, entries)?;
    let copy = !config.zero_copy || program.mode == Mode::Generic;
    let rx_frames = frames(config.rx_frames / queues.len());
    let mut tx = None;
    let mut receivers = Vec::with_capacity(queues.len());
    let mut bytes = 0;
    for (place, &queue) in queues.iter().enumerate() {
        let both = transmit && place == 0;
        let wanted = Frames {
            tx: if both { frames(config.tx_frames) } else { 0 },
            rx: rx_frames,
        };
        let mut opened = open_queue(config, port, queue, wanted, copy)?;
        if place == 0 {
            let half = if transmit { "both halves" } else { "receive" };
            tell(config, port, half, &opened, Some(program.mode));
        }
        let steered = program.steer(queue, &opened.socket);
        tried(config, "steer frames to a socket", steered)?;
        bytes += opened.umem_bytes;
        if let Some(rings) = opened.tx.take() {
            let socket = Arc::clone(&opened.socket);
            tx = Some(Tx::new(socket, rings, opened.zero_copy, config, port));
        }
        let rings = opened.rx.take().expect("asked for");
        receivers.push(Queue::new(opened.socket, rings));
    }
    let rx = Rx::new(receivers, program, membership, config, port, bytes);
    Ok((tx, rx))
}

fn attach(config: &AfXdpConfig, port: &Port, entries: u32) -> Result<Program, AfXdpError> {
    patiently(
        || {
            Program::attach(port.index, config.ether_type, entries, config.driver_mode).map_err(
                |error| match error.raw_os_error() {
                    Some(libc::EBUSY | libc::EEXIST) => AfXdpError::ProgramTaken {
                        iface: config.iface.clone(),
                    },
                    _ => tried::<()>(config, "attach an XDP program", Err(error))
                        .expect_err("it is one"),
                },
            )
        },
        |error| matches!(error, AfXdpError::ProgramTaken { .. }),
    )
}

fn open_queue(
    config: &AfXdpConfig,
    port: &Port,
    queue: u32,
    frames: Frames,
    copy: bool,
) -> Result<Opened, AfXdpError> {
    patiently(
        || try_queue(config, port, queue, frames, copy),
        |error| matches!(error, AfXdpError::QueueTaken { .. }),
    )
}

fn try_queue(
    config: &AfXdpConfig,
    port: &Port,
    queue: u32,
    frames: Frames,
    copy: bool,
) -> Result<Opened, AfXdpError> {
    let socket = tried(config, "make an AF_XDP socket", sys::socket())?;
    let room = ETHERNET_HEADER + port.payload_max + if frames.rx > 0 { HEADROOM } else { 0 };
    let [small, large] = CHUNK_BYTES;
    let chunk_bytes = if room <= small { small } else { large };
    let umem = tried(
        config,
        "map memory for frames",
        Umem::map(frames.tx, frames.rx, chunk_bytes),
    )?;
    let registered = sys::set(&socket, libc::XDP_UMEM_REG, umem.registration());
    if let Err(error) = &registered
        && error.raw_os_error() == Some(libc::ENOBUFS)
    {
        return Err(AfXdpError::LockedMemory {
            bytes: umem.bytes(),
            iface: config.iface.clone(),
        });
    }
    tried(config, "register memory for frames", registered)?;
    let umem = Arc::new(umem);
    let (tx, rx) = tried(
        config,
        "make AF_XDP rings",
        make_rings(&socket, &umem, frames),
    )?;
    if frames.tx > 0 {
        let buffer = frames.tx * (chunk_bytes + SKB_BYTES);
        tried(
            config,
            "set the send buffer",
            set_send_buffer(&socket, buffer),
        )?;
        sys::set_tx_budget(&socket, config.tx_batch_frames.clamp(32, frames.tx));
    }
    match sys::bind(&socket, port.index, queue, copy) {
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
            return Err(AfXdpError::QueueTaken {
                queue,
                iface: config.iface.clone(),
            });
        }
        other => tried(config, "bind an AF_XDP socket to its queue", other)?,
    }
    Ok(Opened {
        zero_copy: sys::is_zero_copy(&socket),
        socket: Arc::new(socket),
        tx,
        rx,
        umem_bytes: umem.bytes(),
    })
}

fn make_rings(
    socket: &Socket,
    umem: &Arc<Umem>,
    frames: Frames,
) -> io::Result<(Option<TransmitRings>, Option<ReceiveRings>)> {
    // Each socket needs a fill and a completion ring, used or not.
    sys::set_ring(socket, libc::XDP_UMEM_FILL_RING, frames.rx.max(FRAMES_MIN))?;
    let completion = frames.tx.max(FRAMES_MIN);
    sys::set_ring(socket, libc::XDP_UMEM_COMPLETION_RING, completion)?;
    if frames.rx > 0 {
        sys::set_ring(socket, libc::XDP_RX_RING, frames.rx)?;
    }
    if frames.tx > 0 {
        sys::set_ring(socket, libc::XDP_TX_RING, frames.tx)?;
    }
    let offsets = sys::offsets(socket)?;
    let tx = if frames.tx > 0 {
        Some(TransmitRings::map(socket, umem, &offsets)?)
    } else {
        None
    };
    let rx = if frames.rx > 0 {
        Some(ReceiveRings::map(socket, umem, &offsets, frames.rx)?)
    } else {
        None
    };
    Ok((tx, rx))
}

fn tell(config: &AfXdpConfig, port: &Port, half: &str, opened: &Opened, mode: Option<Mode>) {
    log::info!(
        "af_xdp {half}: {} in group {} on `{}`, EtherType {:#06x}, {} bytes of payload, {}, {}",
        Source::Mac(port.mac),
        Source::Mac(config.group),
        config.iface,
        config.ether_type,
        port.payload_max,
        if opened.zero_copy {
            "zero copy"
        } else {
            "copy mode"
        },
        match mode {
            Some(Mode::Driver) => "program in the driver",
            Some(Mode::Generic) => "program in the kernel (generic)",
            None => "no program",
        },
    );
}

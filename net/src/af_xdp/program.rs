//! The XDP program that steers frames of our EtherType to the sockets of their queues and passes
//! everything else to the kernel, untouched.
//!
//! Touches the interface it is attached to. Invariants: it is attached by a bpf link, so that it
//! vanishes with its descriptor, whatever ends the process. A queue without a socket passes its
//! frames on.
//!
//! Source: the kernel's `Documentation/bpf/standardization/instruction-set.rst` and
//! `Documentation/bpf/map_xskmap.rst`.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use socket2::Socket;

use super::sys;
use crate::ethernet::ETHERNET_HEADER;

// Opcodes.
const MOV_IMM: u8 = 0xB7;
const MOV: u8 = 0xBF;
const ADD_IMM: u8 = 0x07;
const LOAD_U16: u8 = 0x69;
const LOAD_U32: u8 = 0x61;
const LOAD_IMM_U64: u8 = 0x18;
const JUMP_GREATER: u8 = 0x2D;
const JUMP_NOT_EQUAL_IMM: u8 = 0x55;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// Source register of `LOAD_IMM_U64`: the number is the descriptor of a map.
const PSEUDO_MAP_FD: u8 = 1;
const HELPER_REDIRECT_MAP: i32 = 51;
const XDP_PASS: i32 = 2;

// Offsets in `struct xdp_md`.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const RX_QUEUE_INDEX: i16 = 16;

/// One instruction: opcode, destination and source register, offset, number.
fn insn(opcode: u8, dst: u8, src: u8, offset: i16, imm: i32) -> u64 {
    let [o0, o1] = offset.to_le_bytes();
    let [i0, i1, i2, i3] = imm.to_le_bytes();
    u64::from_le_bytes([opcode, src << 4 | dst, o0, o1, i0, i1, i2, i3])
}

/// The program for an EtherType and the descriptor of an XSKMAP.
fn assemble(ether_type: u16, map: i32) -> [u64; 16] {
    let header = ETHERNET_HEADER as i32;
    [
        insn(MOV, 6, 1, 0, 0),             // r6 = context
        insn(LOAD_U32, 2, 6, DATA_END, 0), // r2 = end of the frame
        insn(LOAD_U32, 1, 6, DATA, 0),     // r1 = its start
        insn(MOV, 3, 1, 0, 0),             //
        insn(ADD_IMM, 3, 0, 0, header),    //
        insn(JUMP_GREATER, 3, 2, 8, 0),    // shorter than a header: pass
        insn(LOAD_U16, 4, 1, 12, 0),       // r4 = EtherType, in network order
        insn(JUMP_NOT_EQUAL_IMM, 4, 0, 6, i32::from(ether_type.to_be())),
        insn(LOAD_U32, 2, 6, RX_QUEUE_INDEX, 0),
        insn(LOAD_IMM_U64, 1, PSEUDO_MAP_FD, 0, map),
        0,                                // upper half of the number
        insn(MOV_IMM, 3, 0, 0, XDP_PASS), // if the queue has no socket
        insn(CALL, 0, 0, 0, HELPER_REDIRECT_MAP),
        insn(EXIT, 0, 0, 0, 0),
        insn(MOV_IMM, 0, 0, 0, XDP_PASS),
        insn(EXIT, 0, 0, 0, 0),
    ]
}

/// Where in the kernel the program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// In the driver, before the kernel has made a packet of the frame.
    Driver,
    /// In the kernel, for any driver.
    Generic,
}

/// The program on an interface. Dropping it takes it off.
pub(super) struct Program {
    _link: OwnedFd,
    map: OwnedFd,
    pub(super) mode: Mode,
}

impl Program {
    /// Loads and attaches the program, in the driver if `driver` is set and the driver can.
    pub(super) fn attach(
        index: u32,
        ether_type: u16,
        queues: u32,
        driver: bool,
    ) -> io::Result<Program> {
        let map = sys::create_xskmap(queues)?;
        let insns = assemble(ether_type, map.as_raw_fd());
        let program = sys::load_program(&insns, *b"dogwild_af_xdp\0\0", c"Dual MIT/GPL")?;
        let in_driver = if driver {
            match sys::attach(&program, index, true) {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => return Err(error),
                Err(error) => {
                    log::info!("af_xdp: the driver takes no program ({error}): generic mode");
                    None
                }
                Ok(link) => Some(link),
            }
        } else {
            None
        };
        let mode = if in_driver.is_some() {
            Mode::Driver
        } else {
            Mode::Generic
        };
        let link = match in_driver {
            Some(link) => link,
            None => sys::attach(&program, index, false)?,
        };
        Ok(Program {
            _link: link,
            map,
            mode,
        })
    }

    /// From now on frames of this queue go to this socket.
    pub(super) fn steer(&self, queue: u32, socket: &Socket) -> io::Result<()> {
        sys::update_xskmap(&self.map, queue, socket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_lead_to_the_pass_at_the_end() {
        let program = assemble(0x88B5, 7);
        let pass = program.len() - 2;
        let mut jumps = 0;
        for (at, insn) in program.iter().enumerate() {
            let [opcode, _, o0, o1, ..] = insn.to_le_bytes();
            if opcode == JUMP_GREATER || opcode == JUMP_NOT_EQUAL_IMM {
                assert_eq!(at + 1 + usize::from(u16::from_le_bytes([o0, o1])), pass);
                jumps += 1;
            }
        }
        assert_eq!(jumps, 2);
        assert_eq!(program[pass].to_le_bytes(), [MOV_IMM, 0, 0, 0, 2, 0, 0, 0]);
        // The EtherType is compared as it lies in the frame.
        let compare = program[7].to_le_bytes();
        assert_eq!(compare[4..], [0x88, 0xB5, 0, 0]);
    }
}

//! The layout of the buffer file, and the words in its header that live.
//!
//! ```text
//!        0  Head: what the file is; written once, before the file has its name (only
//!           `first_weights`, `checksum` and then `state` change afterwards, once, when the weights
//!           are ready)
//!      256  Globals: counters and switches, one cache line per writer
//!     4096  64 slots of components
//!    57344  table of other nodes
//!    90112  manifest, JSON
//!  n*2 MiB  weights, then zeros
//! ```
//! Invariant: offsets are computed from the lengths, and a file whose header says
//! otherwise is refused; no offset is ever taken from a file.

use std::sync::atomic::{AtomicU32, AtomicU64};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use xxhash_rust::xxh3::Xxh3;

use super::buffer::BufferSpec;
use super::data_kind::{DATA_TEXT_BYTES, DataKind};
use super::mapping::Shared;
use super::peers::{PEERS, PeerRecord};
use super::slots::{SLOTS, SlotRecord};
use super::{METERS, padded_len};

/// Version of this layout; it changes with every change of this file or of `slots.rs`.
pub const LAYOUT_VERSION: u32 = 6;

pub(super) const MAGIC: [u8; 8] = *b"DOGWILD\0";
pub(super) const BYTE_ORDER: u32 = 0x0102_0304;
pub(super) const INITIALISING: u32 = 1;
pub(super) const READY: u32 = 2;

pub(super) const STATE_OFFSET: usize = std::mem::offset_of!(Head, state);
pub(super) const FIRST_WEIGHTS_OFFSET: usize = std::mem::offset_of!(Head, first_weights);
pub(super) const CHECKSUM_OFFSET: usize = std::mem::offset_of!(Head, checksum);
pub(super) const GLOBALS_OFFSET: usize = 256;
pub(super) const SLOTS_OFFSET: usize = 4096;
pub(super) const PEERS_OFFSET: usize = SLOTS_OFFSET + SLOTS * size_of::<SlotRecord>();
pub(super) const MANIFEST_OFFSET: usize = PEERS_OFFSET + PEERS * size_of::<PeerRecord>();
const HUGE_PAGE: u64 = 2 << 20;

const _: () = assert!(size_of::<Head>() <= GLOBALS_OFFSET);
const _: () = assert!(GLOBALS_OFFSET + size_of::<Globals>() <= SLOTS_OFFSET);

/// The first bytes of the file.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Head {
    pub(super) magic: [u8; 8],
    pub(super) byte_order: u32,
    pub(super) layout_version: u32,
    pub(super) state: u32,
    pub(super) creator_pid: u32,
    pub(super) creator_start: u64,
    pub(super) created_unix_ns: u64,
    pub(super) session: u64,
    pub(super) fingerprint: u64,
    /// Weights used, and weights with the tail of zeros.
    pub(super) used: u64,
    pub(super) padded: u64,
    pub(super) manifest_offset: u64,
    pub(super) manifest_bytes: u64,
    pub(super) weights_offset: u64,
    pub(super) file_bytes: u64,
    pub(super) slots: u32,
    pub(super) meters: u32,
    /// Random, drawn when the buffer was made: tells it from any other that had its name.
    pub(super) identity: u64,
    /// What the model learns: hash and text of a [`DataKind`].
    pub(super) data: u64,
    pub(super) data_text: [u8; DATA_TEXT_BYTES],
    /// A hash of the used weights when they were ready; 0 until then.
    pub(super) first_weights: u64,
    /// Of the head (but `state`) and the manifest; valid in state `ready`.
    pub(super) checksum: u64,
}

impl Head {
    /// The header of a new buffer, state `initialising`, and its manifest as JSON.
    pub(super) fn new(spec: &BufferSpec, identity: u64) -> (Self, String) {
        let manifest = &spec.manifest;
        let json = manifest.to_json();
        let padded = padded_len(manifest.len()) as u64;
        let weights_offset = weights_offset(json.len() as u64);
        let creator = super::process::Process::current();
        let head = Self {
            magic: MAGIC,
            byte_order: BYTE_ORDER,
            layout_version: LAYOUT_VERSION,
            state: INITIALISING,
            creator_pid: creator.pid,
            creator_start: creator.start,
            created_unix_ns: super::slots::unix_ns(),
            session: spec.session,
            fingerprint: manifest.fingerprint(),
            used: manifest.len() as u64,
            padded,
            manifest_offset: MANIFEST_OFFSET as u64,
            manifest_bytes: json.len() as u64,
            weights_offset,
            file_bytes: weights_offset + padded * 4,
            slots: SLOTS as u32,
            meters: METERS as u32,
            identity,
            data: spec.data.hash,
            data_text: spec.data.text,
            first_weights: 0,
            checksum: 0,
        };
        (head, json)
    }

    /// What `checksum` must be with this manifest. Leaves out `state`, which changes last.
    pub(super) fn sum(&self, json: &[u8]) -> u64 {
        let constant = Self {
            state: 0,
            checksum: 0,
            ..self.clone()
        };
        let mut hash = Xxh3::new();
        hash.update(constant.as_bytes());
        hash.update(json);
        hash.digest()
    }

    /// The kind of data.
    pub(super) fn data(&self) -> DataKind {
        DataKind {
            hash: self.data,
            text: self.data_text,
        }
    }
}

/// Where the weights begin behind a manifest of that length. The length is at most that
/// of a file, so the sum does not overflow.
pub(super) fn weights_offset(manifest_bytes: u64) -> u64 {
    (MANIFEST_OFFSET as u64 + manifest_bytes).next_multiple_of(HUGE_PAGE)
}

/// Runs of weights that one node masters, at most.
pub const OWN_RANGES: usize = 8;

/// Counters and switches of the whole node. Every cache line has one kind of writer, so
/// that the others read it without slowing it down.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Globals {
    /// Iterations of all solvers of this node. Written by its solvers (`fetch_add`).
    pub local_iterations: AtomicU64,
    /// Not 0: solvers want to know `oldest_step` at every moment. Written by solvers.
    pub age_wanted: AtomicU64,
    /// How long they have trained, the longest of them, ns. Written by solvers (`fetch_max`).
    pub local_trained_ns: AtomicU64,
    _solvers: [AtomicU64; 5],
    /// Iterations of all other nodes, as far as their frames have told. Written by the streamer.
    pub remote_iterations: AtomicU64,
    /// 1 once every foreign chunk was seen, so that solvers may start. Written by the streamer.
    pub ready: AtomicU32,
    /// What this node's deltas are multiplied by, above 0 and at most 1, as f32 bits; 0: no
    /// streamer has said it, 1 holds. Written by the streamer.
    pub portion_bits: AtomicU32,
    /// Of the living nodes, the one whose range is oldest here, and 1; 0: none. Written by the
    /// streamer.
    pub oldest_node: AtomicU64,
    /// Local iterations when its oldest chunk was taken. Written by the streamer.
    pub oldest_step: AtomicU64,
    /// How long the cluster has trained, as far as frames have told, ns. Written by the streamer.
    pub remote_trained_ns: AtomicU64,
    /// Nodes that must be heard, this one included, for solvers to go on; 0: any number. Written by
    /// the streamer.
    pub quorum: AtomicU64,
    /// Nodes that are heard, this one included, if there is a quorum. Written by the streamer.
    pub heard_nodes: AtomicU64,
    /// Steps that a solver may take at once, 1 or more, as f32 bits; 0: no streamer has said it,
    /// any number. Written by the streamer.
    pub most_stride_bits: AtomicU32,
    _streamer: AtomicU32,
    /// The weights that this node masters, in runs: the first, and the one behind the last; both 0:
    /// none. Written by the streamer.
    pub own_ranges: [[AtomicU64; 2]; OWN_RANGES],
    /// Iterations, local and remote together, at which solvers stop; 0: none. Written by
    /// the operator (`train`, or a person).
    pub target_iterations: AtomicU64,
    /// Not 0: every component ends. Written by the operator.
    pub stop: AtomicU32,
    /// Learning rate as f32 bits that overrides the schedule; 0: none. Written by the operator.
    pub rate_bits: AtomicU32,
    /// Momentum as f32 bits. Written by the operator.
    pub momentum_bits: AtomicU32,
    /// Weight decay as f32 bits. Written by the operator.
    pub decay_bits: AtomicU32,
    /// Iterations, local and remote together, at the last complete save of the weights; 0:
    /// never saved. Written by the operator.
    pub saved_iterations: AtomicU64,
    _operator: [AtomicU64; 4],
}

// SAFETY: `repr(C)`, atomics only.
unsafe impl Shared for Globals {}

impl Globals {
    /// Iterations of the whole cluster, as far as they are known here.
    pub fn iterations(&self) -> u64 {
        use std::sync::atomic::Ordering::Relaxed;
        self.local_iterations
            .load(Relaxed)
            .saturating_add(self.remote_iterations.load(Relaxed))
    }

    /// How long the cluster has trained, as far as it is known here, ns.
    pub fn trained_ns(&self) -> u64 {
        use std::sync::atomic::Ordering::Relaxed;
        let local = self.local_trained_ns.load(Relaxed);
        local.max(self.remote_trained_ns.load(Relaxed))
    }

    /// Nodes that are heard, and those that solvers wait for, where those are more.
    pub fn lacks_quorum(&self) -> Option<(u64, u64)> {
        use std::sync::atomic::Ordering::Relaxed;
        let heard = self.heard_nodes.load(Relaxed);
        let quorum = self.quorum.load(Relaxed);
        (heard < quorum).then_some((heard, quorum))
    }

    /// What this node's deltas are multiplied by, above 0, at most 1.
    pub fn portion(&self) -> f32 {
        use std::sync::atomic::Ordering::Relaxed;
        let portion = f32::from_bits(self.portion_bits.load(Relaxed));
        if portion > 0.0 && portion <= 1.0 {
            portion
        } else {
            1.0
        }
    }

    /// Steps that a solver may take at once, 1 or more.
    pub fn most_stride(&self) -> f32 {
        use std::sync::atomic::Ordering::Relaxed;
        let most = f32::from_bits(self.most_stride_bits.load(Relaxed));
        if most >= 1.0 { most } else { f32::INFINITY }
    }

    /// The weights that this node masters, in runs that rise; none until a streamer has said it.
    pub fn own_ranges(&self) -> Vec<std::ops::Range<usize>> {
        use std::sync::atomic::Ordering::Relaxed;
        let runs = self.own_ranges.iter().map(|run| {
            let [begin, end] = run.each_ref().map(|word| word.load(Relaxed) as usize);
            begin..end
        });
        runs.filter(|run| !run.is_empty()).collect()
    }

    /// Tells which weights this node masters: at most [`OWN_RANGES`] runs, which rise.
    pub fn tell_own_ranges(&self, runs: &[std::ops::Range<usize>]) {
        use std::sync::atomic::Ordering::Relaxed;
        for (i, told) in self.own_ranges.iter().enumerate() {
            let run = runs.get(i).cloned().unwrap_or_default();
            told[0].store(run.start as u64, Relaxed);
            told[1].store(run.end as u64, Relaxed);
        }
    }

    /// True if iterations were done since the weights were last saved.
    pub fn unsaved(&self) -> bool {
        use std::sync::atomic::Ordering::Relaxed;
        self.iterations() > self.saved_iterations.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn one_cache_line_per_writer() {
        assert_eq!(size_of::<Globals>(), 5 * 64);
        assert_eq!(offset_of!(Globals, remote_iterations), 64);
        assert_eq!(offset_of!(Globals, own_ranges), 128);
        assert_eq!(offset_of!(Globals, target_iterations), 256);
    }
}

//! What a streamer must not forget when it is killed: `last`, `sent`, sequence numbers,
//! acknowledgements and the journal of the chunk it was working on.
//!
//! One file next to the buffer, used by one live streamer at a time.
//!
//! Layout: header; journal; interrupted deltas; one `ChunkState` per chunk; one acknowledged
//! sequence number per chunk and node; one `NodeState` per node; `last`; `sent`. Invariant: `last`
//! and `sent` begin at odd cache lines of their pages, different ones, and the weights at the start
//! of a page. So no two of the three are ever a power of two apart: then every store would evict
//! the others' lines, up to 15 times slower.

use std::path::{Path, PathBuf};
use std::sync::atomic::{
    AtomicU8, AtomicU16, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use super::error::StateError;
use super::fork_file::ForkFile;
use super::journal::{Interrupted, Journal};
use super::mapping::{Mapping, Shared};
use super::state_file::{BufferId, STATE_HEAD_BYTES, StateFile, beside};
use super::state_layout::Layout;
use super::view::WeightsView;

const MAGIC: &[u8; 8] = b"DOGWSTRM";
const JOURNAL_OFFSET: usize = 512;
const PARTIALS_OFFSET: usize = 2048;
pub(super) const CHUNKS_OFFSET: usize = 4096;
const _: () = assert!(STATE_HEAD_BYTES <= JOURNAL_OFFSET);
const _: () = assert!(JOURNAL_OFFSET + size_of::<Journal>() <= PARTIALS_OFFSET);
const _: () = assert!(PARTIALS_OFFSET + PARTIALS * size_of::<Partial>() <= CHUNKS_OFFSET);

/// Half-applied deltas that can be remembered at once.
pub const PARTIALS: usize = 16;

/// What a streamer's state is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamStateSpec {
    /// The session of the buffer.
    pub session: u64,
    /// The fingerprint of its model.
    pub fingerprint: u64,
    /// Its identity: another once it was made anew.
    pub identity: u64,
    /// This node.
    pub node: u16,
    /// Nodes that the job begins with.
    pub nodes: u16,
    /// Node numbers that there are: those, and those of nodes that join later.
    pub places: u16,
    /// Nodes that begin with ranges.
    pub masters: u16,
    /// Weights per chunk: a multiple of 16, at most [`MAX_CHUNK`](super::MAX_CHUNK).
    pub chunk_weights: u32,
    /// Chunks of the model.
    pub chunks: u32,
    /// Padded length of the buffer, in weights.
    pub padded: usize,
}

impl StreamStateSpec {
    /// The numbers that must agree.
    fn shape(&self) -> [(&'static str, u64); 7] {
        [
            ("node", u64::from(self.node)),
            ("number of nodes", self.nodes.into()),
            ("number of places", self.places.into()),
            ("number of masters", self.masters.into()),
            (
                "chunk size (from MTU and precision)",
                self.chunk_weights.into(),
            ),
            ("number of chunks", self.chunks.into()),
            ("padded length", self.padded as u64),
        ]
    }

    fn file<'a>(&self, shape: &'a [(&'static str, u64)], layout: &Layout) -> StateFile<'a> {
        StateFile {
            magic: *MAGIC,
            buffer: BufferId {
                session: self.session,
                fingerprint: self.fingerprint,
                identity: self.identity,
            },
            shape,
            file_bytes: layout.end as u64,
        }
    }
}

/// What the streamer knows of one chunk.
#[derive(Debug)]
#[repr(C)]
pub struct ChunkState {
    /// Version of the newest position (as master: sent; as slave: taken).
    pub version: AtomicU32,
    /// The epoch of the position that was taken last.
    pub epoch: AtomicU32,
    /// Sequence number of `sent`.
    pub seq: AtomicU8,
    /// Free for the streamer.
    pub flags: AtomicU8,
    /// The node that asked for what this one streamed last, and 1; 0: none has.
    pub given: AtomicU16,
    /// Epoch and version of the position that this node began the chunk from when it took it last;
    /// the epoch is 0 if it has not, or began with initial weights.
    pub begun_epoch: AtomicU32,
    /// See `begun_epoch`.
    pub begun_version: AtomicU32,
}

// SAFETY: `repr(C)`, atomics only.
unsafe impl Shared for ChunkState {}

/// What the streamer knows of one node and of its range.
#[derive(Debug)]
#[repr(C)]
pub struct NodeState {
    /// The incarnation that the node was last heard with; 0: none.
    pub life: AtomicU64,
    /// Iterations that its solvers made in earlier incarnations.
    pub iterations_before: AtomicU64,
    /// Positions of its range in an earlier epoch than this are refused.
    pub promised: AtomicU32,
    /// The epoch in which this streamer streams its range; 0: it does not.
    pub streamed: AtomicU32,
}

// SAFETY: `repr(C)`, atomics only.
unsafe impl Shared for NodeState {}

/// A delta that was applied in part when the streamer was killed.
#[repr(C)]
struct Partial {
    /// 0: free; stored last, cleared first.
    used: AtomicU32,
    chunk: AtomicU32,
    peer: AtomicU16,
    seq: AtomicU8,
    _reserved: AtomicU8,
    progress: AtomicU32,
}

// SAFETY: `repr(C)`, atomics only.
unsafe impl Shared for Partial {}

/// The state of one node's streamer.
#[derive(Debug)]
pub struct StreamState {
    mapping: Mapping,
    spec: StreamStateSpec,
    layout: Layout,
    forks: ForkFile,
}

impl StreamState {
    /// The name of the streamer's state for the buffer `buffer`.
    pub fn path_beside(buffer: &Path) -> PathBuf {
        beside(buffer, ".stream")
    }

    /// Opens a state to read it while its streamer may be at work: what is read is as racy as the
    /// weights are. The file says what it is for.
    ///
    /// # Errors
    /// As [`StreamState::open_or_create`], but for the lock; and the file must be there.
    pub fn look(path: &Path, buffer: BufferId, padded: usize) -> Result<Self, StateError> {
        let [node, nodes, places, masters, chunk_weights, chunks, _] =
            StateFile::shape_of(path, *MAGIC, buffer)?;
        let not_ours = || StateError::NotOurs {
            path: path.into(),
            why: "it says of itself what cannot be".into(),
        };
        let small = |value: u64| u16::try_from(value).map_err(|_| not_ours());
        let spec = StreamStateSpec {
            session: buffer.session,
            fingerprint: buffer.fingerprint,
            identity: buffer.identity,
            node: small(node)?,
            nodes: small(nodes)?,
            places: small(places)?,
            masters: small(masters)?,
            chunk_weights: chunk_weights.try_into().map_err(|_| not_ours())?,
            chunks: chunks.try_into().map_err(|_| not_ours())?,
            padded,
        };
        let (layout, shape) = (Layout::of(path, &spec)?, spec.shape());
        let mapping = spec.file(&shape, &layout).look(path)?;
        Ok(Self {
            mapping,
            spec,
            layout,
            forks: ForkFile::unopened(path, &spec),
        })
    }

    /// Opens the state (`true`), or makes a new one of zeros (`false`).
    ///
    /// # Errors
    /// See [`StateError`]: another live streamer holds it, it is of another session, model,
    /// buffer or shape, it is not ours, or there is no space.
    pub fn open_or_create(path: &Path, spec: &StreamStateSpec) -> Result<(Self, bool), StateError> {
        let (layout, shape) = (Layout::of(path, spec)?, spec.shape());
        let (mapping, resumed) = spec.file(&shape, &layout).open_or_create(path)?;
        let forks = ForkFile::open(path, spec, resumed).map_err(|source| StateError::Io {
            path: ForkFile::path_of(path),
            source,
        })?;
        Ok((
            Self {
                mapping,
                spec: *spec,
                layout,
                forks,
            },
            resumed,
        ))
    }

    /// What it is for.
    pub fn spec(&self) -> &StreamStateSpec {
        &self.spec
    }

    /// Per weight, the value that the slave wrote at the last position.
    #[inline]
    pub fn last(&self) -> WeightsView<'_> {
        self.mapping.weights(self.layout.last, self.spec.padded)
    }

    /// Per weight, the delta that is not confirmed yet.
    #[inline]
    pub fn sent(&self) -> WeightsView<'_> {
        self.mapping.weights(self.layout.sent, self.spec.padded)
    }

    /// What is kept of ranges that had two masters.
    pub fn forks(&self) -> &ForkFile {
        &self.forks
    }

    /// The journal of the chunk that is being worked on.
    #[inline]
    pub fn journal(&self) -> &Journal {
        self.mapping.at(JOURNAL_OFFSET)
    }

    /// What is known of chunk `c`. Panics if there is no such chunk.
    #[inline]
    pub fn chunk(&self, c: u32) -> &ChunkState {
        assert!(c < self.spec.chunks, "chunk {c} of {}", self.spec.chunks);
        self.mapping
            .at(CHUNKS_OFFSET + c as usize * size_of::<ChunkState>())
    }

    /// For chunk `c`, per node, the sequence number of its last applied delta: as master what is in
    /// the weights, as slave what is in the position that was taken last.
    /// Panics if there is no such chunk.
    #[inline]
    pub fn applied(&self, c: u32) -> &[AtomicU8] {
        assert!(c < self.spec.chunks, "chunk {c} of {}", self.spec.chunks);
        let nodes = usize::from(self.spec.places);
        self.mapping
            .slice(self.layout.applied + c as usize * nodes, nodes)
    }

    /// What is known of `node`. Panics if there is no such node.
    #[inline]
    pub fn node(&self, node: u16) -> &NodeState {
        assert!(
            node < self.spec.places,
            "node {node} of {}",
            self.spec.places
        );
        self.mapping
            .at(self.layout.nodes + usize::from(node) * size_of::<NodeState>())
    }

    /// Remembers a delta that recovery found half applied, until the slave repeats it, so that
    /// the journal is free for other chunks. A newer entry of the same chunk and peer replaces
    /// the older. False if there are [`PARTIALS`] of them already: then its rest, applied
    /// again from the start, would be doubled, and the caller must drop and count that delta.
    pub fn remember_partial(&self, found: &Interrupted) -> bool {
        let same = |p: &&Partial| p.is(found.chunk, found.peer);
        let free = |p: &&Partial| p.used.load(Acquire) == 0;
        let partials = self.partials();
        let Some(p) = partials
            .iter()
            .find(same)
            .or_else(|| partials.iter().find(free))
        else {
            return false;
        };
        p.used.store(0, Release);
        p.chunk.store(found.chunk, Release);
        p.peer.store(found.peer, Release);
        p.seq.store(found.seq, Release);
        p.progress.store(found.progress, Release);
        p.used.store(1, Release);
        true
    }

    /// Weights of delta `seq` of `peer` for `chunk` that are applied already; usually 0. Pass it to
    /// [`Journal::begin_at`] and to [`kernels::apply_delta`](super::kernels::apply_delta).
    pub fn partial(&self, chunk: u32, peer: u16, seq: u8) -> u32 {
        let found = self.partial_of(chunk, peer);
        found.map_or(0, |(of, done)| if of == seq { done } else { 0 })
    }

    /// The delta of `peer` for `chunk` of which weights are applied already: its number, and how
    /// many.
    pub fn partial_of(&self, chunk: u32, peer: u16) -> Option<(u8, u32)> {
        let found = self.partials().iter().find(|p| p.is(chunk, peer))?;
        Some((found.seq.load(Relaxed), found.progress.load(Relaxed)))
    }

    /// Forgets what was remembered of that chunk and peer: call it when the rest was applied
    /// (before [`Journal::end`]).
    pub fn forget_partial(&self, chunk: u32, peer: u16) {
        for p in self.partials().iter().filter(|p| p.is(chunk, peer)) {
            p.used.store(0, Release);
        }
    }

    /// Forgets what was remembered of `peer`.
    pub fn forget_partials_of(&self, peer: u16) {
        for p in self.partials() {
            if p.used.load(Acquire) == 1 && p.peer.load(Relaxed) == peer {
                p.used.store(0, Release);
            }
        }
    }

    /// Whether any delta is remembered as applied in part.
    #[inline]
    pub fn has_partials(&self) -> bool {
        self.partials().iter().any(|p| p.used.load(Acquire) == 1)
    }

    fn partials(&self) -> &[Partial] {
        self.mapping.slice(PARTIALS_OFFSET, PARTIALS)
    }
}

impl Partial {
    fn is(&self, chunk: u32, peer: u16) -> bool {
        self.used.load(Acquire) == 1
            && self.chunk.load(Relaxed) == chunk
            && self.peer.load(Relaxed) == peer
    }
}

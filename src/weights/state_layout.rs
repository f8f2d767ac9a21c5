//! Where in a streamer's state file its arrays are. [`state`](super::state) has the order and why
//! they begin where they do.

use std::path::Path;

use super::error::StateError;
use super::state::{CHUNKS_OFFSET, ChunkState, NodeState, StreamStateSpec};
use super::{BLOCK, MAX_CHUNK};

const PAGE: usize = 4096;
/// Where in their pages the arrays begin: 21, 43 and (solver history) 59 cache lines.
pub(super) const LAST_IN_PAGE: usize = 21 * 64;
const SENT_IN_PAGE: usize = 43 * 64;
pub(super) const HISTORY_IN_PAGE: usize = 59 * 64;

/// Byte offsets behind the fixed part.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) applied: usize,
    pub(super) nodes: usize,
    pub(super) last: usize,
    pub(super) sent: usize,
    pub(super) end: usize,
}

impl Layout {
    pub(super) fn of(path: &Path, spec: &StreamStateSpec) -> Result<Self, StateError> {
        Self::new(spec).map_err(|what| StateError::BadSpec {
            path: path.into(),
            what,
        })
    }

    fn new(spec: &StreamStateSpec) -> Result<Self, String> {
        let (chunk, chunks) = (spec.chunk_weights as usize, spec.chunks as usize);
        if chunk == 0 || chunk > MAX_CHUNK || !chunk.is_multiple_of(BLOCK) {
            return Err(format!(
                "chunks of {chunk} weights; use a multiple of {BLOCK} up to {MAX_CHUNK}"
            ));
        }
        if spec.node >= spec.places {
            let (node, places) = (spec.node, spec.places);
            return Err(format!("node {node} of {places}; nodes are counted from 0"));
        }
        if chunks.checked_mul(chunk).is_none_or(|n| n > spec.padded) {
            return Err(format!(
                "{chunks} chunks of {chunk} weights do not fit into {} weights",
                spec.padded
            ));
        }
        let layout = || {
            let applied = CHUNKS_OFFSET + chunks.checked_mul(size_of::<ChunkState>())?;
            let bytes = spec.padded.checked_mul(4)?;
            let nodes = applied
                .checked_add(chunks.checked_mul(spec.places.into())?)?
                .checked_next_multiple_of(align_of::<NodeState>())?;
            let node_bytes = usize::from(spec.places) * size_of::<NodeState>();
            let last = in_page(nodes.checked_add(node_bytes)?, LAST_IN_PAGE)?;
            let sent = in_page(last.checked_add(bytes)?, SENT_IN_PAGE)?;
            let end = sent.checked_add(bytes)?;
            i64::try_from(end).ok()?;
            Some(Self {
                applied,
                nodes,
                last,
                sent,
                end,
            })
        };
        layout().ok_or_else(|| format!("{} weights are more than a file can hold", spec.padded))
    }
}

/// The first offset from `offset` on that lies `line` bytes into its page.
pub(super) fn in_page(offset: usize, line: usize) -> Option<usize> {
    offset.checked_next_multiple_of(PAGE)?.checked_add(line)
}

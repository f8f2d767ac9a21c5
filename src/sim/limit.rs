//! A limit of what each node sends. The node knows of it (a token bucket), or it is a shaper with a
//! queue on the way, which silently drops what does not fit.
//!
//! Arithmetic over the virtual clock. Invariant: over any stretch of time no more goes than the
//! rate and one burst.

use crate::stream::Room;

/// What a node may send.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// Bytes per second.
    pub bytes_per_s: f64,
    /// Size of the bucket, or of the queue, in bytes.
    pub burst_bytes: usize,
    /// Bytes of a frame with a chunk if the node knows of the limit; 0: a shaper on the way.
    pub known_frame_bytes: usize,
}

/// What became of the last frame.
#[derive(Clone, Copy)]
enum Fate {
    /// It leaves at this time.
    Leaves(u64),
    /// The queue was full.
    Dropped,
}

/// The queues of all nodes, or of all ways, each of which may have a limit.
pub(super) struct Limits {
    /// When all that was sent so far has left, ns. May lie in the past.
    free_ns: Vec<f64>,
    last: Fate,
}

impl Limits {
    pub(super) fn new(queues: usize) -> Self {
        Self {
            free_ns: vec![0.0; queues],
            last: Fate::Leaves(0),
        }
    }

    /// Bytes of the bucket (or of the queue) of `from` that are free now.
    fn free_bytes(&self, limit: Limit, now_ns: u64, from: usize) -> f64 {
        let behind_ns = (self.free_ns[from] - now_ns as f64).max(0.0);
        limit.burst_bytes as f64 - behind_ns * limit.bytes_per_s / 1e9
    }

    /// Takes a frame of `len` bytes; false: the node has no budget for it.
    pub(super) fn admit(
        &mut self,
        limit: Option<Limit>,
        now_ns: u64,
        from: usize,
        len: usize,
    ) -> bool {
        self.last = Fate::Leaves(now_ns);
        let Some(limit) = limit else { return true };
        if self.free_bytes(limit, now_ns, from) < len as f64 {
            self.last = Fate::Dropped;
            return limit.known_frame_bytes == 0;
        }
        let free_ns = &mut self.free_ns[from];
        *free_ns = free_ns.max(now_ns as f64) + len as f64 * 1e9 / limit.bytes_per_s;
        if limit.known_frame_bytes == 0 {
            self.last = Fate::Leaves(*free_ns as u64);
        }
        true
    }

    /// Time that a frame of `from` would spend in its queue now, ns.
    pub(super) fn queue_ns(&self, now_ns: u64, from: usize) -> u64 {
        (self.free_ns[from] - now_ns as f64).max(0.0) as u64
    }

    /// Foreign traffic fills the queue of `from`, so that a frame spends `queue_ns` in it.
    pub(super) fn fill(&mut self, now_ns: u64, from: usize, queue_ns: u64) {
        let free_ns = &mut self.free_ns[from];
        *free_ns = free_ns.max((now_ns + queue_ns) as f64);
    }

    /// Time that the frame that was taken last spends in the queue; `None`: it was dropped there.
    pub(super) fn queued_ns(&self, now_ns: u64) -> Option<u64> {
        match self.last {
            Fate::Leaves(at_ns) => Some(at_ns.saturating_sub(now_ns)),
            Fate::Dropped => None,
        }
    }

    /// What a node that knows its limit may send.
    pub(super) fn room(&self, limit: Option<Limit>, now_ns: u64, from: usize) -> Option<Room> {
        let limit = limit.filter(|limit| limit.known_frame_bytes > 0)?;
        let frames = |bytes: f64| (bytes / limit.known_frame_bytes as f64) as usize;
        Some(Room {
            now: frames(self.free_bytes(limit, now_ns, from)),
            most: frames(limit.burst_bytes as f64),
        })
    }
}

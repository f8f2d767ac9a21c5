//! What the counters of a component slot mean: names and places, for writers and readers alike.
//!
//! A slot holds [`METERS`](crate::weights::METERS) words. Each has one writer (the component that
//! holds the slot) and any number of readers. All accesses are relaxed, so a reader sees each
//! counter whole but not all of the same moment.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::weights::METERS;
use crate::wire::DropReason;

macro_rules! meters {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum $name { $($(#[$vdoc])* $variant,)* }

        impl $name {
            /// All, in the order of their words.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Name in summaries and metrics.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            /// Its word in a slot.
            pub fn of(self, meters: &[u64; METERS]) -> u64 {
                meters[self as usize]
            }

            /// Sets it in a slot.
            pub fn set(self, meters: &[AtomicU64; METERS], value: u64) {
                meters[self as usize].store(value, Relaxed);
            }

            /// Adds to it in a slot (its one writer is this process).
            pub fn add(self, meters: &[AtomicU64; METERS], value: u64) {
                let word = &meters[self as usize];
                word.store(word.load(Relaxed).wrapping_add(value), Relaxed);
            }
        }
    };
}

meters! {
    /// Counters of a streamer.
    StreamMeter {
        /// Passes over the own range.
        Cycles = "cycles",
        /// Positions sent.
        PositionsSent = "positions_sent",
        /// Positions taken.
        PositionsTaken = "positions_taken",
        /// Positions sent by their masters and never taken here.
        PositionsMissed = "positions_missed",
        /// Deltas sent.
        DeltasSent = "deltas_sent",
        /// Deltas sent again.
        DeltasRepeated = "deltas_repeated",
        /// Deltas kept back because no transmit slot was free.
        DeltasKept = "deltas_kept",
        /// Deltas applied.
        DeltasApplied = "deltas_applied",
        /// Weights healed of NaN or infinity.
        HealedWeights = "healed_weights",
        /// Hellos sent.
        HellosSent = "hellos_sent",
        /// Pieces of chunks given to a node that asked for them.
        RestoresSent = "restores_sent",
        /// Pieces of chunks taken that this node asked for.
        RestoresTaken = "restores_taken",
        /// Times that a chunk and its master did not agree, and were made to.
        Resyncs = "resyncs",
        /// Ranges taken from a silent node, or back from the node that had taken them.
        Takeovers = "takeovers",
        /// Chunks that another node had begun, and what was done here apart became a delta.
        ForksJoined = "forks_joined",
        /// Chunks of which that was not possible: what was done here apart is lost.
        AbandonedChunks = "abandoned_chunks",
        /// Deltas of nodes that lost their memory that may count twice.
        DoubledDeltas = "doubled_deltas",
        /// Frames handed to the transport.
        FramesSent = "frames_sent",
        /// Bytes of those frames, transport headers not counted.
        BytesSent = "bytes_sent",
        /// Frames received.
        FramesReceived = "frames_received",
        /// Bytes of those frames.
        BytesReceived = "bytes_received",
        /// Frames the kernel or NIC dropped because our receive ring or socket was full.
        KernelDrops = "kernel_drops",
        /// Times no transmit slot was free.
        NoSlot = "no_slot",
        /// Transmit errors.
        TransmitErrors = "transmit_errors",
        /// Frames that the fault wrapper dropped on purpose.
        FaultDropped = "fault_dropped",
        /// Frames that it doubled on purpose.
        FaultDuplicated = "fault_duplicated",
        /// Frames that it held back on purpose.
        FaultReordered = "fault_reordered",
        /// Age of a foreign chunk when its next position came, median, µs.
        AgeP50 = "age_p50_us",
        /// The same, 99th percentile, µs.
        AgeP99 = "age_p99_us",
        /// The same, longest, µs.
        AgeMax = "age_max_us",
        /// CPU time of the streamer, ns.
        CpuNs = "cpu_ns",
        /// Nodes that have sent nothing for two seconds, as a bit mask of the first 64.
        SilentNodes = "silent_nodes",
        /// Frames that passed the checks of the stream.
        FramesTaken = "frames_taken",
        /// Frames in which the fault wrapper flipped bits on purpose.
        FaultCorrupted = "fault_corrupted",
        /// Frames refused because their seal is not of our key.
        SealBadTag = "seal_bad_tag",
        /// Sealed frames refused because they had been taken already.
        SealReplayed = "seal_replayed",
        /// Frames refused because they are too short for a seal.
        SealTruncated = "seal_truncated",
        /// Sealed frames refused because too many links are remembered.
        SealTooManyLinks = "seal_too_many_links",
        /// Time in which nothing came and nothing could be sent, ns.
        WaitedNs = "waited_ns",
        /// Weights for which a delta was not added, because the sum is NaN or infinite.
        RefusedSums = "refused_sums",
        /// Times that frames of a node claimed more iterations than it can have made.
        RefusedClaims = "refused_claims",
        /// MTU of the link; 0: not known.
        LinkMtu = "link_mtu",
        /// Bytes of a frame at most.
        FrameBytes = "frame_bytes",
        /// Weights of a chunk.
        ChunkWeights = "chunk_weights",
        /// Ranges that have not been seen whole, as a bit mask of the first 64.
        UnseenRanges = "unseen_ranges",
        /// Frames held back by a limit of rate (`--rate`, `--pace`).
        HeldBack = "held_back",
        /// Age of the oldest foreign chunk at present, ms.
        OldestMs = "oldest_ms",
        /// Nodes whose range does not come or grows old, as a bit mask of the first 64.
        OldRanges = "old_ranges",
        /// Nodes whose solvers stand still while others go on, as a bit mask of the first 64.
        StillNodes = "still_nodes",
        /// Solvers of this buffer that are stopped or stand still, as a bit mask of the first 64.
        StillSolvers = "still_solvers",
        /// Steps of this node's solvers between two positions of a chunk, median.
        AgeStepsP50 = "age_steps_p50",
        /// The same, 99th percentile.
        AgeStepsP99 = "age_steps_p99",
        /// The same, largest.
        AgeStepsMax = "age_steps_max",
        /// Steps of the whole cluster between two positions of a chunk, median.
        ClusterStepsP50 = "cluster_steps_p50",
        /// The same, 99th percentile.
        ClusterStepsP99 = "cluster_steps_p99",
        /// What this node's deltas are multiplied by, millionths.
        PortionMillionths = "portion_millionths",
        /// Share of a core that the streamer takes at most, since solvers want it, thousandths.
        CpuSharePermille = "cpu_share_permille",
        /// Share of the time that a solver of this buffer has recently waited for a core,
        /// thousandths.
        SolversWaitPermille = "solvers_wait_permille",
        /// Time that frames have recently spent in queues of the network, µs.
        QueuedUs = "queued_us",
        /// Frames of positions that may be on the way without an answer at present.
        WindowFrames = "window_frames",
        /// Nodes to which copies of frames to all go, because multicast does not reach them.
        CopyNodes = "copy_nodes",
        /// Positions sent a second time, for slaves to compare.
        ChecksSent = "checks_sent",
        /// Chunks compared with what their masters sent.
        ChunksChecked = "chunks_checked",
        /// Those of them that differed, and were set right.
        DifferingChunks = "differing_chunks",
        /// What the solvers of this buffer have finished with, as far as the streamer knows
        /// ([`finished_of`]).
        FinishedWith = "finished_with",
        /// Since solvers have finished: 1: all that they added is with others; 2: the others say
        /// the same; 3: this node holds what its masters hold; else 0.
        Settled = "settled",
        /// Since solvers have finished: chunks that may have something under way.
        UndeliveredChunks = "undelivered_chunks",
        /// Nodes that have not settled, as a bit mask of the first 64.
        UnsettledNodes = "unsettled_nodes",
        /// Nodes that began this new job with other weights than this one, as a bit mask of the
        /// first 64.
        OtherFirstWeights = "other_first_weights",
    }
}

meters! {
    /// Counters of a solver.
    SolverMeter {
        /// Iterations done.
        Iterations = "iterations",
        /// Training pictures seen.
        Images = "images",
        /// Loss of the last iterations (smoothed), f32 bits.
        LossBits = "loss_bits",
        /// Learning rate of the last iteration, f32 bits.
        RateBits = "rate_bits",
        /// Accuracy of the last test, f32 bits.
        AccuracyBits = "accuracy_bits",
        /// Time spent training, ns (waiting and testing left out).
        TrainNs = "train_ns",
        /// CPU time of the solver, ns.
        CpuNs = "cpu_ns",
        /// How many of its steps the solver made at once in the last iteration, f32 bits.
        StrideBits = "stride_bits",
        /// Times that steps were halved because the loss rose.
        Halvings = "halvings",
        /// Time spent waiting for other nodes: for younger weights (`--max-age`), or for so many as
        /// are to be heard (`--quorum`), ns.
        WaitedNs = "waited_ns",
        /// Not 0: it adds nothing more, though its process goes on. Another number each time.
        Finished = "finished",
    }
}

/// What all solvers of a buffer have finished with, of [`SolverMeter::Finished`] of each; 0: one of
/// them works, or there is none.
pub fn finished_of(mut ends: impl Iterator<Item = u64>) -> u64 {
    let sum = |sum: u64, end| (end != 0).then(|| sum.wrapping_add(end));
    ends.try_fold(0, sum).unwrap_or(0)
}

meters! {
    /// Counters of a GPU syncer.
    GpuMeter {
        /// Passes over the weights.
        Cycles = "cycles",
        /// Chunks exchanged with the device.
        Chunks = "chunks",
        /// Bytes copied to the device.
        BytesUp = "bytes_up",
        /// Bytes copied from it.
        BytesDown = "bytes_down",
        /// Deltas added to the buffer; chunks in which no weight moved give none.
        DeltasApplied = "deltas_applied",
        /// Deltas that a killed syncer had left and this one added.
        DeltasRecovered = "deltas_recovered",
        /// Weights of the device healed of NaN or infinity.
        HealedWeights = "healed_weights",
        /// Weights of a chunk.
        ChunkWeights = "chunk_weights",
        /// Time spent waiting for the device, ns.
        WaitNs = "wait_ns",
        /// CPU time of the process, ns.
        CpuNs = "cpu_ns",
    }
}

const _: () = assert!(GpuMeter::ALL.len() <= METERS);

/// First word of a worker's counters behind those of its solver.
const SYNC_AT: usize = 16;

const _: () =
    assert!(SolverMeter::ALL.len() <= SYNC_AT && SYNC_AT + SyncMeter::ALL.len() <= METERS);

/// Counters of a worker of the reliable path, behind those of [`SolverMeter`] in the same slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum SyncMeter {
    /// Time spent waiting for the steps of others, ns.
    WaitNs = SYNC_AT,
    /// Bytes sent, headers included, those of TCP not.
    BytesSent,
    /// Bytes received.
    BytesReceived,
    /// Steps that were missing in the weights when iterations began, summed over iterations.
    StepsMissing,
    /// The most that were missing at once.
    StepsMissingMax,
}

impl SyncMeter {
    /// All, in the order of their words.
    pub const ALL: &[Self] = &[
        Self::WaitNs,
        Self::BytesSent,
        Self::BytesReceived,
        Self::StepsMissing,
        Self::StepsMissingMax,
    ];

    /// Name in summaries and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::WaitNs => "sync_wait_ns",
            Self::BytesSent => "sync_bytes_sent",
            Self::BytesReceived => "sync_bytes_received",
            Self::StepsMissing => "sync_steps_missing",
            Self::StepsMissingMax => "sync_steps_missing_max",
        }
    }

    /// Its word in a slot.
    pub fn of(self, meters: &[u64; METERS]) -> u64 {
        meters[self as usize]
    }

    /// Sets it in a slot.
    pub fn set(self, meters: &[AtomicU64; METERS], value: u64) {
        meters[self as usize].store(value, Relaxed);
    }

    /// Adds to it in a slot (its one writer is this process).
    pub fn add(self, meters: &[AtomicU64; METERS], value: u64) {
        self.set(
            meters,
            meters[self as usize].load(Relaxed).wrapping_add(value),
        );
    }

    /// Raises it in a slot to `value`, if it is lower.
    pub fn raise(self, meters: &[AtomicU64; METERS], value: u64) {
        self.set(meters, meters[self as usize].load(Relaxed).max(value));
    }
}

/// First word of the streamer's drop counters, one for each [`DropReason`].
pub const DROPS_AT: usize = 80;

const _: () = assert!(DROPS_AT + DropReason::ALL.len() <= METERS);
const _: () = assert!(StreamMeter::ALL.len() <= DROPS_AT);

/// Reads the streamer's drop counters: (reason, frames).
pub fn drops(meters: &[u64; METERS]) -> impl Iterator<Item = (DropReason, u64)> + '_ {
    DropReason::ALL
        .into_iter()
        .map(|reason| (reason, meters[DROPS_AT + reason as usize]))
}

//! What the counters of a component slot mean: names and places, for writers and readers alike.
//!
//! A slot holds [`METERS`](crate::weights::METERS) words. Each has one writer (the component that
//! holds the slot) and any number of readers. All accesses are relaxed, so a reader sees each
//! counter whole but not all of the same moment.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::weights::{METERS, PEER_METERS};
use crate::wire::DropReason;

/// What a counter is, for those who show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A total: it only grows.
    Counter,
    /// A value of the moment.
    Gauge,
    /// A value of the moment: a bit for each of the first 64 nodes, or solvers.
    Mask,
    /// A value of the moment, as the bits of an f32; 0: there is none yet.
    Float,
    /// A word between components, which tells a person nothing.
    Inner,
}

/// A counter, for those who show all of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Described {
    /// Name in summaries and metrics; its end is its unit.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// What it counts, with its unit.
    pub help: &'static str,
    /// Its word among those of a component, or node.
    pub word: usize,
}

macro_rules! kind {
    () => {
        Kind::Counter
    };
    ($kind:ident) => {
        Kind::$kind
    };
}

macro_rules! meters {
    (
        $(#[$doc:meta])*
        $name:ident[$len:ident] from $first:literal {
            $($(#[doc = $vdoc:literal])* $variant:ident = $text:literal $($kind:ident)?,)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum $name { $($(#[doc = $vdoc])* $variant,)* }

        impl $name {
            /// All, in the order of their words.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];
            /// Their words begin at this one.
            const FIRST: usize = $first;

            /// Name in summaries and metrics.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            /// Itself, for those who show all of a kind.
            pub fn described(self) -> Described {
                let (kind, help) = match self {
                    $(Self::$variant => (kind!($($kind)?), concat!($($vdoc),*)),)*
                };
                Described {
                    name: self.name(),
                    kind,
                    help: help.trim_ascii(),
                    word: Self::FIRST + self as usize,
                }
            }

            /// Its word in a slot.
            pub fn of(self, meters: &[u64; $len]) -> u64 {
                meters[Self::FIRST + self as usize]
            }

            /// Sets it in a slot.
            pub fn set(self, meters: &[AtomicU64; $len], value: u64) {
                meters[Self::FIRST + self as usize].store(value, Relaxed);
            }

            /// Adds to it in a slot (its one writer is this process).
            pub fn add(self, meters: &[AtomicU64; $len], value: u64) {
                let word = &meters[Self::FIRST + self as usize];
                word.store(word.load(Relaxed).wrapping_add(value), Relaxed);
            }
        }

        const _: () = assert!($name::FIRST + $name::ALL.len() <= $len);
    };
}

meters! {
    /// Counters of a streamer.
    StreamMeter[METERS] from 0 {
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
        /// Chunks that another node had begun, and what was done here apart is lost.
        AbandonedChunks = "abandoned_chunks",
        /// Deltas of nodes that lost their memory that may count twice.
        DoubledDeltas = "doubled_deltas",
        /// Frames handed to the transport.
        FramesSent = "frames_sent",
        /// Bytes of frames handed to the transport, its headers not counted.
        BytesSent = "bytes_sent",
        /// Frames received.
        FramesReceived = "frames_received",
        /// Bytes of frames received, headers of the transport not counted.
        BytesReceived = "bytes_received",
        /// Frames the kernel or NIC dropped because our receive ring or socket was full.
        KernelDrops = "kernel_drops",
        /// Times no transmit slot was free.
        NoSlot = "no_slot",
        /// Transmit errors.
        TransmitErrors = "transmit_errors",
        /// Frames that the fault wrapper dropped on purpose.
        FaultDropped = "fault_dropped",
        /// Frames that the fault wrapper doubled on purpose.
        FaultDuplicated = "fault_duplicated",
        /// Frames that the fault wrapper held back on purpose.
        FaultReordered = "fault_reordered",
        /// Age of a foreign chunk when its next position came, median, µs.
        AgeP50 = "age_p50_us" Gauge,
        /// Age of a foreign chunk when its next position came, 99th percentile, µs.
        AgeP99 = "age_p99_us" Gauge,
        /// Age of a foreign chunk when its next position came, longest, µs.
        AgeMax = "age_max_us" Gauge,
        /// CPU time of the streamer, ns.
        CpuNs = "cpu_ns",
        /// Nodes that have sent nothing for two seconds, as a bit mask of the first 64.
        SilentNodes = "silent_nodes" Mask,
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
        LinkMtu = "link_mtu" Gauge,
        /// Bytes of a frame at most.
        FrameBytes = "frame_bytes" Gauge,
        /// Weights of a chunk.
        ChunkWeights = "chunk_weights" Gauge,
        /// Ranges that have not been seen whole, as a bit mask of the first 64.
        UnseenRanges = "unseen_ranges" Mask,
        /// Frames held back by a limit of rate (`--rate`, `--pace`).
        HeldBack = "held_back",
        /// Age of the oldest foreign chunk at present, ms.
        OldestMs = "oldest_ms" Gauge,
        /// Nodes whose range does not come or grows old, as a bit mask of the first 64; but for
        /// those of which no long frame comes.
        OldRanges = "old_ranges" Mask,
        /// Nodes whose solvers stand still while others go on, as a bit mask of the first 64.
        StillNodes = "still_nodes" Mask,
        /// Solvers of this buffer that are stopped or stand still, as a bit mask of the first 64.
        StillSolvers = "still_solvers" Mask,
        /// Steps of this node's solvers between two positions of a chunk, median.
        AgeStepsP50 = "age_steps_p50" Gauge,
        /// Steps of this node's solvers between two positions of a chunk, 99th percentile.
        AgeStepsP99 = "age_steps_p99" Gauge,
        /// Steps of this node's solvers between two positions of a chunk, largest.
        AgeStepsMax = "age_steps_max" Gauge,
        /// Steps of the whole cluster between two positions of a chunk, median.
        ClusterStepsP50 = "cluster_steps_p50" Gauge,
        /// Steps of the whole cluster between two positions of a chunk, 99th percentile.
        ClusterStepsP99 = "cluster_steps_p99" Gauge,
        /// What this node's deltas are multiplied by, millionths.
        PortionMillionths = "portion_millionths" Gauge,
        /// Share of a core that the streamer takes at most, since solvers want it, thousandths.
        CpuSharePermille = "cpu_share_permille" Gauge,
        /// Share of the time that a solver of this buffer has recently waited for a core,
        /// thousandths.
        SolversWaitPermille = "solvers_wait_permille" Gauge,
        /// Time that frames have recently spent in queues of the network, µs.
        QueuedUs = "queued_us" Gauge,
        /// Frames of positions that may be on the way without an answer at present.
        WindowFrames = "window_frames" Gauge,
        /// Nodes to which copies of frames to all go, because multicast does not reach them.
        CopyNodes = "copy_nodes" Gauge,
        /// Positions sent a second time, for slaves to compare.
        ChecksSent = "checks_sent",
        /// Chunks compared with what their masters sent.
        ChunksChecked = "chunks_checked",
        /// Chunks that differed from what their masters sent, and were set right.
        DifferingChunks = "differing_chunks",
        /// What the solvers of this buffer have finished with, as far as the streamer knows
        /// ([`finished_of`]).
        FinishedWith = "finished_with" Inner,
        /// Since solvers have finished: 1: all that they added is with others; 2: the others say
        /// the same; 3: this node holds what its masters hold. Else 0.
        Settled = "settled" Gauge,
        /// Since solvers have finished: chunks that may have something under way.
        UndeliveredChunks = "undelivered_chunks" Gauge,
        /// Nodes that have not settled, as a bit mask of the first 64.
        UnsettledNodes = "unsettled_nodes" Mask,
        /// Nodes that began this new job with other weights than this one, as a bit mask of the
        /// first 64.
        OtherFirstWeights = "other_first_weights" Mask,
        /// Time that the streamer has run.
        RunNs = "run_ns",
        /// New deltas sent in int2, because turns take steps.
        DeltasCoarse = "deltas_coarse",
        /// Nodes of which short frames come and none that is as long as the MTU allows, as a bit
        /// mask of the first 64.
        LongFramesLost = "long_frames_lost" Mask,
    }
}

meters! {
    /// Counters of a solver.
    SolverMeter[METERS] from 0 {
        /// Iterations done.
        Iterations = "iterations",
        /// Training pictures seen.
        Images = "images",
        /// Loss of the last iterations (smoothed), f32 bits.
        LossBits = "loss_bits" Float,
        /// Learning rate of the last iteration, f32 bits.
        RateBits = "rate_bits" Float,
        /// Accuracy of the last test, f32 bits.
        AccuracyBits = "accuracy_bits" Float,
        /// Time spent training, waiting and testing left out, ns.
        TrainNs = "train_ns",
        /// CPU time of the solver, ns.
        CpuNs = "cpu_ns",
        /// How many of its steps the solver made at once in the last iteration, f32 bits.
        StrideBits = "stride_bits" Float,
        /// Times that steps were halved because the loss rose.
        Halvings = "halvings",
        /// Time spent waiting for other nodes: for younger weights (`--max-age`), or for so many as
        /// are to be heard (`--quorum`), ns.
        WaitedNs = "waited_ns",
        /// Not 0: it adds nothing more, though its process goes on. Another number each time.
        Finished = "finished" Inner,
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
    GpuMeter[METERS] from 0 {
        /// Passes over the weights.
        Cycles = "cycles",
        /// Chunks exchanged with the device.
        Chunks = "chunks",
        /// Bytes copied to the device.
        BytesUp = "bytes_up",
        /// Bytes copied from the device.
        BytesDown = "bytes_down",
        /// Deltas added to the buffer; chunks in which no weight moved give none.
        DeltasApplied = "deltas_applied",
        /// Deltas that a killed syncer had left and this one added.
        DeltasRecovered = "deltas_recovered",
        /// Weights of the device healed of NaN or infinity.
        HealedWeights = "healed_weights",
        /// Weights of a chunk.
        ChunkWeights = "chunk_weights" Gauge,
        /// Time spent waiting for the device, ns.
        WaitNs = "wait_ns",
        /// CPU time of the process, ns.
        CpuNs = "cpu_ns",
    }
}

meters! {
    /// Counters of a worker of the reliable path, behind those of [`SolverMeter`] in the same slot.
    SyncMeter[METERS] from 16 {
        /// Time spent waiting for the steps of others, ns.
        WaitNs = "sync_wait_ns",
        /// Bytes sent, headers included, those of TCP not.
        BytesSent = "sync_bytes_sent",
        /// Bytes received, headers included, those of TCP not.
        BytesReceived = "sync_bytes_received",
        /// Steps that were missing in the weights when iterations began, summed over iterations.
        StepsMissing = "sync_steps_missing",
        /// Steps that were missing in the weights when an iteration began, at most.
        StepsMissingMax = "sync_steps_missing_max" Gauge,
    }
}

const _: () = assert!(SolverMeter::ALL.len() <= SyncMeter::FIRST);

impl SyncMeter {
    /// Raises it in a slot to `value`, if it is lower.
    pub fn raise(self, meters: &[AtomicU64; METERS], value: u64) {
        let word = &meters[Self::FIRST + self as usize];
        word.store(word.load(Relaxed).max(value), Relaxed);
    }
}

meters! {
    /// What a streamer counts of each other node, in the table of other nodes.
    PeerMeter[PEER_METERS] from 0 {
        /// 1: it is a node of the job; 0: it is none yet, or has left.
        Member = "member" Gauge,
        /// Positions taken that the node sent.
        PositionsTaken = "positions_taken",
        /// Positions sent by the node and never taken here.
        PositionsMissed = "positions_missed",
        /// Deltas sent to the node.
        DeltasSent = "deltas_sent",
        /// Deltas sent to the node again.
        DeltasRepeated = "deltas_repeated",
        /// Deltas applied that the node sent.
        DeltasApplied = "deltas_applied",
        /// Iterations of the node's solvers, as far as its frames have told.
        Iterations = "iterations",
        /// Time since its last valid frame, ms.
        SilentMs = "silent_ms" Gauge,
        /// Age of the oldest chunk that the node masters, ms; 0: it masters none.
        OldestMs = "oldest_ms" Gauge,
        /// Distance of this node's weights from the positions that the node sends, when they come:
        /// root mean square of some chunks, in units of a weight, smoothed.
        DriftBits = "drift_bits" Float,
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

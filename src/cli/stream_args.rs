//! Arguments of the stream, wherever there is one: what becomes of deltas, and how fast they go.

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use serde::Serialize;

use super::args::{Rate, as_value, as_value_or_none, rate};
use crate::settings::FlowSettings;
use crate::stream::{Deltas, MAX_NODES, Merge};
use crate::wire::Dtype;

/// How the stream behaves.
#[derive(Clone, Debug, Args, Serialize)]
#[command(next_help_heading = "Stream")]
pub struct StreamArgs {
    /// What becomes of deltas whose frame is lost
    #[arg(long, value_enum, default_value = "exactly-once")]
    #[serde(serialize_with = "as_value")]
    pub deltas: DeltasArg,
    /// How the work of several nodes becomes one
    #[arg(long, value_enum, default_value = "mean")]
    #[serde(serialize_with = "as_value")]
    pub merge: MergeArg,
    /// Node numbers that there are, for the nodes of the beginning and for those that join; the
    /// same on all nodes [default: the next multiple of 16; train, or one node: no more than
    /// --nodes]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_NODES)))]
    pub places: Option<u16>,
    /// Nodes that begin a new job; with fewer it waits [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub min_nodes: Option<u16>,
    /// `dogwild stream` and `train` have it by flags of their own: of `train` it is the reliable
    /// path's too.
    #[arg(skip)]
    pub quorum: Option<u16>,
    /// Nodes that master a part of the weights, the first so many; the same on all nodes [default:
    /// all]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u16).range(1..))]
    pub masters: Option<u16>,
    /// How weights travel; the same on all nodes [default: auto; dogwild stream: f32]
    #[arg(long, value_enum)]
    #[serde(serialize_with = "as_value_or_none")]
    pub precision: Option<PrecisionArg>,
    /// Send chunks that moved most first, and those that rest now and then
    #[arg(long)]
    pub sparse: bool,
    /// Bytes per second that a node sends at most, as 64MB or 2GB; max: what solvers and link leave
    #[arg(long, allow_hyphen_values = true, value_name = "RATE", default_value = "max", value_parser = rate)]
    #[serde(rename = "rate_bytes_per_s")]
    pub rate: Rate,
    /// Bytes of positions on the way without any answer, at most, as 2MB, or max
    #[arg(long, allow_hyphen_values = true, value_name = "BYTES", default_value = "2MB", value_parser = rate)]
    #[serde(rename = "window_bytes")]
    pub window: Rate,
    /// Local writers add atomically: the streamer then loses none of their additions (slower)
    #[arg(long)]
    pub atomic: bool,
}

/// See [`Deltas`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DeltasArg {
    /// A lost delta is sent again
    ExactlyOnce,
    /// A lost delta is lost (the 2014 paper's behaviour)
    FireAndForget,
}

/// See [`Merge`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MergeArg {
    /// A mean weighted by iterations; solvers make longer steps for it. Stable at any delay
    Mean,
    /// Deltas are added as they are; more than two solvers diverge unless the delay is short
    Sum,
}

impl From<MergeArg> for Merge {
    fn from(arg: MergeArg) -> Self {
        match arg {
            MergeArg::Mean => Self::Mean,
            MergeArg::Sum => Self::Sum,
        }
    }
}

/// See [`Dtype`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PrecisionArg {
    /// 4 bytes per weight
    F32,
    /// 2 bytes per weight; the rest follows when weights rest
    Bf16,
    /// 1 byte per weight and 2 for each 64; the rest follows when weights rest
    Int8,
    /// The widest with which weights are a step old at most, else int8; chosen where a job begins
    Auto,
}

impl PrecisionArg {
    /// See [`Dtype`].
    ///
    /// # Errors
    /// It is `auto`, which only a job with solvers resolves.
    pub fn dtype(self) -> Result<Dtype> {
        Ok(match self {
            Self::F32 => Dtype::F32,
            Self::Bf16 => Dtype::Bf16,
            Self::Int8 => Dtype::Int8,
            Self::Auto => bail!(
                "--precision auto is chosen by `dogwild train`, `node` and `launch`, which know the solvers: here give f32, bf16 or int8, the same on all nodes"
            ),
        })
    }
}

impl From<Dtype> for PrecisionArg {
    fn from(dtype: Dtype) -> Self {
        match dtype {
            Dtype::None | Dtype::F32 => Self::F32,
            Dtype::Bf16 => Self::Bf16,
            Dtype::Int8 | Dtype::Int2 => Self::Int8,
        }
    }
}

impl StreamArgs {
    /// The settings that they make.
    ///
    /// # Errors
    /// The precision is `auto`.
    pub fn settings(&self) -> Result<FlowSettings> {
        Ok(FlowSettings {
            deltas: match self.deltas {
                DeltasArg::ExactlyOnce => Deltas::ExactlyOnce,
                DeltasArg::FireAndForget => Deltas::FireAndForget,
            },
            merge: self.merge.into(),
            places: self.places,
            min_nodes: self.min_nodes,
            quorum: self.quorum,
            masters: self.masters,
            precision: self.precision.map_or(Ok(Dtype::F32), PrecisionArg::dtype)?,
            sparse: self.sparse,
            rate_bytes_per_s: self.rate.0,
            window_bytes: self.window.0,
            atomic: self.atomic,
        })
    }
}

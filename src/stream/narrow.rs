//! Payloads narrower than f32: what leaves of a chunk, what comes of it, and how the rest follows.
//!
//! **Positions.** A master sends a chunk as the nearest values that the payload can say. As long as
//! its weights stay as they are (its *content*), further positions are *pieces* of it in f32, as
//! long as fit into a frame, and then it begins again. So a slave at rest ends with the very bits.
//! A piece replaces a part of what the whole chunk of the same content made: a slave that missed
//! that waits for it. While a chunk moves every position is a whole one.
//!
//! **Deltas.** What leaves is what the payload can say of the delta. The rest stays in `w - last`
//! and leaves later: `take_rounded` of the kernels. (In a mean, a rest below 2^-100 counts as
//! sent.)
//!
//! Invariants: what was published of a chunk of the own range is in `sent`, which a master does not
//! need otherwise. `last` of a foreign chunk is what its master sent, exactly, while
//! [`Seen::exact`].

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use super::streamer::chunk_flags::JOINED;
use super::{Config, Streamer};
use crate::weights::kernels::{self, Rounding, STEP_BLOCK};
use crate::weights::{BLOCK, WeightsView};
use crate::wire::{self, DropReason, Dtype, Frame, Header, Kind};

const _: () = assert!(STEP_BLOCK == wire::SCALE_BLOCK);
/// Largest exponent of a step: a kernel rounds by adding 1.5 * 2^23 steps.
const EXPONENT_MAX: i32 = 104;
/// Below it bf16 may say nothing of a value.
const BF16_LEAST: i32 = -133;
/// Versions after which the low half of a version may come again.
const CONTENT_TURN: u32 = 1 << 16;

/// What was published of a chunk of the own range.
#[derive(Clone, Copy, Debug)]
struct Published {
    /// Low half of the version that its content has had first.
    content: u16,
    /// As in the header of the frame that went last.
    part: u8,
}

/// What a slave has taken of a chunk's present content.
#[derive(Clone, Copy, Debug)]
struct Seen {
    content: u16,
    /// Nothing of our own that moved a weight is outstanding: `last` is what the master sent.
    exact: bool,
    /// The portion that the outstanding delta was multiplied by; 0: not known.
    portion: f32,
}

impl Seen {
    const NOTHING: Self = Self {
        content: 0,
        exact: false,
        portion: 0.0,
    };
}

/// What a streamer keeps of narrow payloads, and room for one chunk on its way.
#[derive(Debug, Default)]
pub(super) struct Narrow {
    /// Pieces of each chunk of the own range that have been given back, one bit each.
    pub(super) restored: Vec<u8>,
    /// Per chunk of the own range; empty in f32.
    published: Vec<Option<Published>>,
    /// Per chunk; empty in f32.
    seen: Vec<Option<Seen>>,
    /// Of a position or delta that came.
    pub(super) came: Vec<f32>,
    /// Of a delta that goes.
    pub(super) goes: Vec<f32>,
    /// Steps of a delta's blocks.
    steps: Vec<f32>,
}

impl Narrow {
    pub(super) fn new(config: &Config, own_chunks: usize) -> Self {
        let restored = vec![0; own_chunks];
        if config.precision == Dtype::F32 {
            return Self {
                restored,
                ..Self::default()
            };
        }
        let len = config.chunk_weights as usize;
        Self {
            restored,
            published: vec![None; own_chunks],
            seen: vec![None; config.chunks as usize],
            goes: vec![0.0; len],
            steps: vec![0.0; len.div_ceil(STEP_BLOCK)],
            ..Self::default()
        }
    }

    fn seen(&mut self, chunk: u32) -> Option<&mut Seen> {
        self.seen.get_mut(chunk as usize)?.as_mut()
    }

    /// Forgets what was taken of a chunk.
    #[inline]
    pub(super) fn forget(&mut self, chunk: u32) {
        if let Some(seen) = self.seen.get_mut(chunk as usize) {
            *seen = None;
        }
    }

    /// Notes that nothing is outstanding now that moves a weight.
    pub(super) fn note_exact(&mut self, chunk: u32) {
        if let Some(seen) = self.seen(chunk) {
            seen.exact = true;
        }
    }

    /// Notes that the delta in `goes`, multiplied by `portion`, is outstanding.
    pub(super) fn note_outstanding(&mut self, chunk: u32, portion: f32) {
        let exact = self.goes.iter().all(|value| *value == 0.0);
        if let Some(seen) = self.seen(chunk) {
            (seen.exact, seen.portion) = (exact, portion);
        }
    }

    /// How the present delta of a chunk, times `portion`, leaves.
    pub(super) fn rounding(
        &mut self,
        precision: Dtype,
        (w, last): (WeightsView<'_>, WeightsView<'_>),
        portion: f32,
    ) -> (Dtype, Rounding<'_>) {
        kernels::largest_moves(w, last, &mut self.steps);
        self.steps.iter_mut().for_each(|move_| *move_ *= portion);
        let dtype = dtype_for(precision, &self.steps);
        if dtype == Dtype::Bf16 {
            return (dtype, Rounding::Bf16);
        }
        for step in &mut self.steps {
            *step = wire::power_of_two(wire::scale_exponent(*step).min(EXPONENT_MAX));
        }
        (dtype, Rounding::Steps(&self.steps))
    }

    /// The portion that the outstanding delta of a chunk was multiplied by, where it is known.
    pub(super) fn portion_of(&mut self, chunk: u32) -> Option<f32> {
        let portion = self.seen(chunk)?.portion;
        (portion > 0.0).then_some(portion)
    }

    /// Puts an outstanding delta into `goes`, as it left; returns the type it leaves in.
    pub(super) fn repeat(
        &mut self,
        precision: Dtype,
        sent: WeightsView<'_>,
        portion: f32,
    ) -> Dtype {
        kernels::copy_out(sent, &mut self.goes);
        self.goes.iter_mut().for_each(|value| *value *= portion);
        dtype_for(precision, &self.goes)
    }
}

/// How the `values` of a delta leave: bf16 cannot say the least of them, a scale can.
fn dtype_for(precision: Dtype, values: &[f32]) -> Dtype {
    if precision != Dtype::Bf16 {
        return precision;
    }
    let largest = values.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    if largest > 0.0 && largest < wire::power_of_two(BF16_LEAST) {
        Dtype::Int8
    } else {
        Dtype::Bf16
    }
}

/// Which part of which content a position of the own range is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) content: u16,
    /// 0: the whole chunk, in the narrow payload; k: piece k - 1, in f32.
    pub(super) part: u8,
    new: bool,
}

impl Streamer<'_> {
    /// What the next position of `chunk`, of `version`, is to be. `weights` are the present ones.
    pub(super) fn next_part(&self, chunk: u32, version: u32, weights: &[f32]) -> Part {
        let (_, _, published_weights) = self.chunk_views(chunk);
        let own = (chunk - self.ranges.of(self.config.node).start) as usize;
        let before = self.narrow.published[own];
        match before.filter(|_| holds(published_weights, weights)) {
            None => Part {
                content: version as u16,
                part: 0,
                new: true,
            },
            Some(Published { content, part }) => Part {
                content,
                // After the last piece the whole again.
                part: match part {
                    last if self.piece(last).is_empty() => 0,
                    part => part + 1,
                },
                new: false,
            },
        }
    }

    /// Notes that `part` of `weights` went.
    pub(super) fn note_published(&mut self, chunk: u32, part: Part, weights: &[f32]) {
        if part.new {
            let (_, _, published) = self.chunk_views(chunk);
            kernels::copy_in(published, weights);
        }
        let own = (chunk - self.ranges.of(self.config.node).start) as usize;
        self.narrow.published[own] = Some(Published {
            content: part.content,
            part: part.part,
        });
    }

    /// The weights of a chunk, counted from its start, of piece `piece`: where a frame holds the
    /// chunk in a narrow payload, it holds only a part of it in f32. Empty behind the last one.
    pub(super) fn piece(&self, piece: u8) -> Range<usize> {
        let len = self.config.chunk_weights as usize;
        let pieces = usize::from(self.config.precision.f32_pieces());
        let each = len.div_ceil(pieces).next_multiple_of(BLOCK);
        let start = (usize::from(piece) * each).min(len);
        start..(start + each).min(len)
    }

    /// Bytes of a payload of the kind and type of a frame.
    #[inline(always)]
    pub(super) fn payload_len(&self, header: &Header) -> usize {
        let weights = match (header.kind, header.part) {
            (Kind::Restore, part) => self.piece(part).len(),
            (Kind::Position, part @ 1..) => self.piece(part - 1).len(),
            _ => self.config.chunk_weights as usize,
        };
        header.dtype.payload_len(weights)
    }

    /// Puts the position that a frame stands for into `values`, and notes what of its content is
    /// known then. (A whole chunk of f32 stands for itself.)
    pub(super) fn read_position(
        &mut self,
        frame: &Frame<'_>,
        values: &mut Vec<f32>,
    ) -> Result<(), DropReason> {
        let header = &frame.header;
        let (_, last, _) = self.chunk_views(header.chunk);
        values.resize(last.len(), 0.0);
        let known = self.knows_content(frame);
        if known {
            kernels::copy_out(last, values);
        }
        let fine = match (header.part, known) {
            (0, true) => true,
            (0, false) => wire::unpack(header.dtype, frame.payload, values),
            (_, false) => return Err(DropReason::Piece),
            (part, true) => {
                let piece = &mut values[self.piece(part - 1)];
                wire::unpack(header.dtype, frame.payload, piece)
            }
        };
        if !fine {
            return Err(DropReason::NonFinite);
        }
        if let Some(seen) = self.narrow.seen.get_mut(header.chunk as usize) {
            *seen = Some(Seen {
                content: header.content,
                ..seen.unwrap_or(Seen::NOTHING)
            });
        }
        Ok(())
    }

    /// Whether `last` is made of the content that a frame is a part of.
    fn knows_content(&self, frame: &Frame<'_>) -> bool {
        let header = &frame.header;
        let state = self.state.chunk(header.chunk);
        let joined = state.flags.load(Relaxed) & JOINED != 0;
        let ahead = header
            .chunk_version
            .wrapping_sub(state.version.load(Relaxed));
        let same_life = joined && state.epoch.load(Relaxed) == header.epoch as u16;
        let seen = self
            .narrow
            .seen
            .get(header.chunk as usize)
            .copied()
            .flatten();
        seen.is_some_and(|seen| {
            same_life && seen.exact && seen.content == header.content && ahead < CONTENT_TURN
        })
    }
}

/// Whether `view` holds the very bits of `values`.
fn holds(view: WeightsView<'_>, values: &[f32]) -> bool {
    let mut there = view.words().iter().zip(values);
    there.all(|(word, value)| word.load(Relaxed) == value.to_bits())
}

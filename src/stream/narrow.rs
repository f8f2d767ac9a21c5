//! Payloads narrower than f32: what leaves of a chunk, what comes of it, and how the rest follows.
//!
//! **Positions.** A master sends a chunk as the nearest values that the payload can say. As long as
//! its weights stay as they are (its *content*), further positions are *pieces* of it in f32, as
//! long as fit into a frame, and then it begins again. So a slave at rest ends with the very bits.
//! A piece replaces a part of what the whole chunk of the same content made: a slave that missed
//! that waits for it. While a chunk moves every position is a whole one. What a slave has
//! outstanding does not keep it from pieces: they replace parts of the position that it holds,
//! `last - sent`.
//!
//! **Deltas.** What leaves is what the payload can say of the delta. The rest stays in `w - last`
//! and leaves later: `take_rounded` of the kernels. (In a mean, a rest below 2^-100 counts as
//! sent.) In place of int8 it may be [`coarse`](super::coarse).
//!
//! Invariants: what was published of a chunk of the own range is in `sent`, which a master does not
//! need otherwise. `last` of a foreign chunk is what its master sent, exactly, while
//! [`Seen::exact`].

use std::sync::atomic::Ordering::Relaxed;

use super::Config;
use super::coarse::{COARSER, Coarse};
use super::common::Common;
use super::common::chunk_flags::{JOINED, OUTSTANDING};
use super::pieces::all_pieces;
use crate::weights::WeightsView;
use crate::weights::kernels::{self, Rounding, STEP_BLOCK};
use crate::wire::{self, DropReason, Dtype, Frame};

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

/// Which part of which content a position of the own range is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) content: u16,
    /// 0: the whole chunk, in the narrow payload; k: piece k - 1, in f32.
    pub(super) part: u8,
    new: bool,
}

/// The master's half: what was published of each chunk of the own range. Empty in f32.
#[derive(Clone, Debug)]
pub(super) struct Parts(Vec<Option<Published>>);

impl Parts {
    pub(super) fn new(config: &Config, own_chunks: usize) -> Self {
        let narrow = config.precision != Dtype::F32;
        Self(vec![None; if narrow { own_chunks } else { 0 }])
    }

    /// What the next position, of `version`, of the `own`th chunk is to be. `weights` are the
    /// present ones, `published` those that went.
    pub(super) fn next(
        &self,
        config: &Config,
        own: usize,
        version: u32,
        (weights, published): (&[f32], WeightsView<'_>),
    ) -> Part {
        let before = self.0[own];
        match before.filter(|_| holds_bits(published, weights)) {
            None => Part {
                content: version as u16,
                part: 0,
                new: true,
            },
            Some(Published { content, part }) => Part {
                content,
                // After the last piece the whole again.
                part: match part {
                    last if config.piece(last).is_empty() => 0,
                    part => part + 1,
                },
                new: false,
            },
        }
    }

    /// Notes that `part` of `weights` went.
    pub(super) fn note_went(
        &mut self,
        own: usize,
        part: Part,
        (weights, published): (&[f32], WeightsView<'_>),
    ) {
        if part.new {
            kernels::copy_in(published, weights);
        }
        self.0[own] = Some(Published {
            content: part.content,
            part: part.part,
        });
    }
}

/// What a slave has taken of a chunk's present content.
#[derive(Clone, Copy, Debug)]
struct Seen {
    content: u16,
    /// Nothing of our own that moved a weight is outstanding: `last` is what the master sent.
    exact: bool,
    /// The portion that the outstanding delta was multiplied by; 0: not known.
    portion: f32,
    /// Pieces of the position that is held that may be off by a rounding, one bit each: they were
    /// found without what was outstanding.
    rough: u8,
    /// Pieces of this content that have not come in f32, one bit each.
    lacking: u8,
}

impl Seen {
    const NOTHING: Self = Self {
        content: 0,
        exact: false,
        portion: 0.0,
        rough: 0,
        lacking: u8::MAX,
    };
}

/// The slave's half: what was taken of each chunk's content, and buffers for a delta that goes.
/// Empty in f32.
#[derive(Clone, Debug)]
pub(super) struct Narrow {
    /// Per chunk.
    seen: Vec<Option<Seen>>,
    /// Of a delta that goes.
    goes: Vec<f32>,
    /// Steps of a delta's blocks.
    steps: Vec<f32>,
    /// No node adds anything any more, and all hold the same bits.
    at_rest: bool,
    /// Whether deltas leave in int2 in place of int8.
    coarse: Coarse,
}

impl Narrow {
    pub(super) fn new(config: &Config) -> Self {
        let narrow = config.precision != Dtype::F32;
        let len = if narrow {
            config.chunk_weights as usize
        } else {
            0
        };
        Self {
            seen: vec![None; if narrow { config.chunks as usize } else { 0 }],
            goes: vec![0.0; len],
            steps: vec![0.0; len.div_ceil(STEP_BLOCK)],
            at_rest: false,
            coarse: Coarse::default(),
        }
    }

    /// Tells whether all nodes hold the same bits, and add nothing.
    #[inline]
    pub(super) fn set_at_rest(&mut self, at_rest: bool) {
        self.at_rest = at_rest;
    }

    /// Takes how many local steps lie between two positions of a chunk, of late.
    #[inline]
    pub(super) fn note_age(&mut self, steps: f64) {
        self.coarse.note_age(steps);
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

    /// How the present delta of a chunk, times `portion`, leaves, and the buffer that it leaves
    /// from.
    pub(super) fn rounding(
        &mut self,
        precision: Dtype,
        (w, last): (WeightsView<'_>, WeightsView<'_>),
        portion: f32,
    ) -> (Dtype, Rounding<'_>, &mut [f32]) {
        kernels::largest_moves(w, last, &mut self.steps);
        self.steps.iter_mut().for_each(|move_| *move_ *= portion);
        let (dtype, coarser, most) = match dtype_for(precision, &self.steps) {
            Dtype::Bf16 => return (Dtype::Bf16, Rounding::Bf16, &mut self.goes),
            Dtype::Int8 if self.coarse.is_so() && precision == Dtype::Int8 => {
                (Dtype::Int2, COARSER, 1.0)
            }
            dtype => (dtype, 0, wire::Q_MAX),
        };
        for step in &mut self.steps {
            let exponent = wire::scale_exponent(*step) + coarser;
            *step = wire::power_of_two(exponent.min(EXPONENT_MAX));
        }
        (dtype, Rounding::Steps(&self.steps, most), &mut self.goes)
    }

    /// The portion that the outstanding delta of a chunk was multiplied by, where it is known.
    pub(super) fn portion_of(&mut self, chunk: u32) -> Option<f32> {
        let portion = self.seen(chunk)?.portion;
        (portion > 0.0).then_some(portion)
    }

    /// An outstanding delta as it left, and the type that it leaves in.
    pub(super) fn repeat(
        &mut self,
        precision: Dtype,
        sent: WeightsView<'_>,
        portion: f32,
    ) -> (Dtype, &[f32]) {
        kernels::copy_out(sent, &mut self.goes);
        self.goes.iter_mut().for_each(|value| *value *= portion);
        let dtype = match dtype_for(precision, &self.goes) {
            // As it left first.
            Dtype::Int8 if precision == Dtype::Int8 && wire::fits_int2(&self.goes) => Dtype::Int2,
            dtype => dtype,
        };
        (dtype, &self.goes)
    }

    /// Puts the position that a frame stands for into `values`, and notes what of its content is
    /// known then. (A whole chunk of f32 stands for itself.)
    pub(super) fn read_position(
        &mut self,
        common: &Common<'_>,
        frame: &Frame<'_>,
        values: &mut Vec<f32>,
    ) -> Result<(), DropReason> {
        let header = &frame.header;
        let (_, last, _) = common.chunk_views(header.chunk);
        values.resize(last.len(), 0.0);
        let known = self.knows_content(common, frame);
        // Another node streams it now, and rounds what is here already.
        let rests = !known && header.part == 0 && self.rests(common, header.chunk);
        if rests || known && self.is_exact(header.chunk) {
            kernels::copy_out(last, values);
        } else if known {
            let position = common.held_position(header.chunk);
            values
                .iter_mut()
                .zip(0..)
                .for_each(|(value, i)| *value = position(i));
        }
        let fine = match (header.part, known) {
            (0, _) if known || rests => true,
            (0, _) => wire::unpack(header.dtype, frame.payload, values),
            (_, false) => return Err(DropReason::Piece),
            (part, true) => {
                let piece = &mut values[common.config.piece(part - 1)];
                wire::unpack(header.dtype, frame.payload, piece)
            }
        };
        if !fine {
            return Err(DropReason::NonFinite);
        }
        let came = header.part.checked_sub(1).map_or(0, |piece| 1 << piece);
        if let Some(seen) = self.seen.get_mut(header.chunk as usize) {
            let before = seen.unwrap_or(Seen::NOTHING);
            let all = all_pieces(&common.config);
            let (rough, lacking) = match (known, before.exact) {
                (false, _) => (if rests { all } else { 0 }, all),
                (true, true) => (before.rough, before.lacking),
                (true, false) => (all, before.lacking),
            };
            *seen = Some(Seen {
                content: header.content,
                rough: rough & !came,
                lacking: lacking & !came,
                ..before
            });
        }
        Ok(())
    }

    /// Whether the position of a chunk that is held may be off by a rounding.
    pub(super) fn is_rough(&self, chunk: u32) -> bool {
        let seen = self.seen.get(chunk as usize).copied().flatten();
        seen.is_some_and(|seen| seen.rough != 0)
    }

    /// Whether the very bits of a chunk's content have come: all of its pieces.
    pub(super) fn has_bits(&self, chunk: u32) -> bool {
        let seen = self.seen.get(chunk as usize).copied().flatten();
        self.seen.is_empty() || seen.is_some_and(|seen| seen.lacking == 0 && seen.rough == 0)
    }

    /// Whether what is held of a chunk is what all hold, and this node adds nothing to it.
    fn rests(&self, common: &Common<'_>, chunk: u32) -> bool {
        let (w, last, sent) = common.chunk_views(chunk);
        let outstanding = common.state.chunk(chunk).flags.load(Relaxed) & OUTSTANDING != 0;
        let word = |view: WeightsView<'_>, i: usize| view.words()[i].load(Relaxed);
        let is_still = |i| word(w, i) == word(last, i) && !(outstanding && sent.load(i) != 0.0);
        self.at_rest && common.holds(chunk) && (0..w.len()).all(is_still)
    }

    fn is_exact(&self, chunk: u32) -> bool {
        let seen = self.seen.get(chunk as usize).copied().flatten();
        seen.is_some_and(|seen| seen.exact)
    }

    /// Whether the position that is held is made of the content that a frame is a part of. It is
    /// `last` without what is outstanding, and so may be off by a rounding: until the pieces that
    /// come have replaced all of it.
    fn knows_content(&self, common: &Common<'_>, frame: &Frame<'_>) -> bool {
        let header = &frame.header;
        let state = common.state.chunk(header.chunk);
        let flags = state.flags.load(Relaxed);
        let joined = flags & JOINED != 0;
        let outstanding = flags & OUTSTANDING != 0;
        let ahead = header
            .chunk_version
            .wrapping_sub(state.version.load(Relaxed));
        let same_life = joined && state.epoch.load(Relaxed) == header.epoch;
        let seen = self.seen.get(header.chunk as usize).copied().flatten();
        seen.is_some_and(|seen| {
            let held = seen.exact || outstanding;
            same_life && held && seen.content == header.content && ahead < CONTENT_TURN
        })
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

/// Whether `view` holds the very bits of `values`.
pub(super) fn holds_bits(view: WeightsView<'_>, values: &[f32]) -> bool {
    let mut there = view.words().iter().zip(values);
    there.all(|(word, value)| word.load(Relaxed) == value.to_bits())
}

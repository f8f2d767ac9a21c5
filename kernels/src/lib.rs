//! The arithmetic that is not a matrix product: convolution, pooling, element-wise loops.
//!
//! **Layout.** The images of a batch lie in blocks of [`BLOCK`], innermost:
//! `[block][channel][row][column][image of the block]`. A pixel of a block is one cache line (one
//! AVX-512 register), so every loop runs over whole vectors whatever kernel, stride or padding the
//! layer has. Nothing is copied into columns (im2col) or added back (col2im), and a block's
//! channels fit the second-level cache. A batch that does not fill its last block is padded with
//! images whose gradients are zero.
//!
//! Vectors are `pulp`'s: the instruction set (AVX-512, AVX2, NEON, scalar) is chosen at run
//! time. Nothing here is unsafe or touches more than the memory of its arguments.

pub mod correlate;
pub mod elementwise;
pub mod pool;
pub mod weight_gradient;

use std::ops::{Deref, DerefMut};

use pulp::Simd;

/// The windows of a convolution or a pooling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Kernel height and width.
    pub kernel: [usize; 2],
    /// Step from one window to the next: rows, columns.
    pub stride: [usize; 2],
    /// Zeros added on each side.
    pub pad: [usize; 2],
    /// Distance between the kernel's taps.
    pub dilation: [usize; 2],
}

/// Images per block.
pub const BLOCK: usize = 16;

/// `f32`s that begin on a cache line, so that no vector straddles two.
#[derive(Default)]
pub struct Buffer {
    words: Vec<f32>,
    start: usize,
    len: usize,
}

impl Buffer {
    /// So many zeros.
    pub fn zeros(len: usize) -> Self {
        let words = vec![0.0; len + BLOCK];
        let start = words.as_ptr().align_offset(64).min(BLOCK);
        Self { words, start, len }
    }
}

impl Deref for Buffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.words[self.start..self.start + self.len]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.words[self.start..self.start + self.len]
    }
}

/// Pixels of one block as `NV` vectors each; `NV` vectors are [`BLOCK`] lanes.
#[inline(always)]
pub(crate) fn pixels<S: Simd, const NV: usize>(data: &[f32]) -> &[[S::f32s; NV]] {
    S::as_simd_f32s(data).0.as_chunks().0
}

/// As [`pixels`], to write.
#[inline(always)]
pub(crate) fn pixels_mut<S: Simd, const NV: usize>(data: &mut [f32]) -> &mut [[S::f32s; NV]] {
    S::as_mut_simd_f32s(data).0.as_chunks_mut().0
}

/// Implements `pulp::WithSimd` by calling `run::<S, NV>` with the number of vectors that make
/// a pixel on the instruction set at hand.
macro_rules! with_block_vectors {
    ($op:ty) => {
        impl pulp::WithSimd for $op {
            type Output = ();

            #[inline(always)]
            fn with_simd<S: pulp::Simd>(self, simd: S) {
                match S::F32_LANES {
                    16 => self.run::<S, 1>(simd),
                    8 => self.run::<S, 2>(simd),
                    4 => self.run::<S, 4>(simd),
                    _ => self.run::<S, 16>(simd),
                }
            }
        }
    };
}
use with_block_vectors;

/// Splits `n` outputs into tiles of at most `most`, as even as can be: start and size of each.
pub(crate) fn tiles(n: usize, most: usize) -> impl Iterator<Item = (usize, usize)> {
    let count = n.div_ceil(most).max(1);
    (0..count).map(move |i| {
        let (from, to) = (n * i / count, n * (i + 1) / count);
        (from, to - from)
    })
}

/// The instruction sets this machine has, slowest first: tests run every one of them.
pub fn archs() -> Vec<pulp::Arch> {
    #[allow(unused_mut)]
    let mut all = vec![pulp::Arch::Scalar];
    #[cfg(target_arch = "x86_64")]
    {
        all.extend(pulp::x86::V3::try_new().map(pulp::Arch::V3));
        all.extend(pulp::x86::V4::try_new().map(pulp::Arch::V4));
    }
    all
}

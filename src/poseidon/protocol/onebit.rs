//! One bit per weight, with the error kept for the next time (Seide et al. 2014, CNTK).
//!
//! A gradient becomes its signs and, for the weights of each output, two values: the means of what
//! is negative and of what is not. What that leaves out is the residual, which is added to the next
//! gradient: so the sum of what was sent plus the residual is the sum of the gradients.

use pulp::Arch;

use super::plan::Pair;

/// Weights of a word of bits.
const WORD: usize = 32;
/// Words between which sums are kept in f32: so many additions lose less than the bits do.
const WORDS_IN_F32: usize = 64;

/// Sums of what is negative and of what is not, an f32 for each place of a word. So they depend on
/// no width of vectors, and all machines make the same values.
struct Sums([[f32; WORD]; 2]);

impl Sums {
    const ZERO: Self = Self([[0.0; WORD]; 2]);

    fn totals(&self) -> [f64; 2] {
        self.0
            .map(|lanes| lanes.iter().map(|sum| f64::from(*sum)).sum())
    }
}

/// Quantises `gradient` plus `residual`, which becomes what is left over. Gives two values and the
/// bits of each row of `pair` as words: see [`PairSize::bits_len`](super::message::PairSize).
pub(super) fn quantise(pair: &Pair, gradient: &[f32], residual: &mut [f32]) -> Vec<u32> {
    let mut words = vec![0; pair.size().bits_len()];
    let row = pair.row.max(1);
    Arch::new().dispatch(
        #[inline(always)]
        || {
            let mut words = &mut words[..];
            for (gradient, residual) in gradient.chunks(row).zip(residual.chunks_mut(row)) {
                let (of_row, rest) = words.split_at_mut(2 + residual.len().div_ceil(WORD));
                quantise_row(gradient, residual, of_row);
                words = rest;
            }
        },
    );
    words
}

/// One row of [`quantise`].
#[inline(always)]
fn quantise_row(gradient: &[f32], residual: &mut [f32], words: &mut [u32]) {
    let (values, bits) = words.split_at_mut(2);
    let totals = add_and_sign(gradient, residual, bits);
    let high: u32 = bits.iter().map(|word| word.count_ones()).sum();
    let counts = [residual.len() as u32 - high, high];
    let mean = |side: usize| (totals[side] / f64::from(counts[side].max(1))) as f32;
    let [low, high] = [mean(0), mean(1)];
    for value in residual {
        *value -= if *value >= 0.0 { high } else { low };
    }
    values.copy_from_slice(&[low, high].map(f32::to_bits));
}

/// Adds the gradient to the residual, and notes which sums are not negative. Gives the totals of
/// both sides.
#[inline(always)]
fn add_and_sign(gradient: &[f32], residual: &mut [f32], bits: &mut [u32]) -> [f64; 2] {
    let mut totals = [0.0; 2];
    let blocks = residual.chunks_mut(WORD * WORDS_IN_F32);
    let gradients = gradient.chunks(WORD * WORDS_IN_F32);
    for ((block, gradient), bits) in blocks.zip(gradients).zip(bits.chunks_mut(WORDS_IN_F32)) {
        let mut sums = Sums::ZERO;
        let (whole, rest) = block.as_chunks_mut::<WORD>();
        let (whole_gradient, rest_gradient) = gradient.as_chunks::<WORD>();
        let words = whole.iter_mut().zip(whole_gradient).zip(&mut *bits);
        for ((r, g), bits) in words {
            *bits = sign(r, g, &mut sums);
        }
        if let (Some(bits), false) = (bits.get_mut(whole_gradient.len()), rest.is_empty()) {
            // What is not there adds nothing, and has no bit.
            let (mut r, mut g) = ([0.0; WORD], [0.0; WORD]);
            r[..rest.len()].copy_from_slice(rest);
            g[..rest.len()].copy_from_slice(rest_gradient);
            *bits = sign(&mut r, &g, &mut sums) & ((1 << rest.len()) - 1);
            rest.copy_from_slice(&r[..rest.len()]);
        }
        let sums = sums.totals();
        (0..2).for_each(|side| totals[side] += sums[side]);
    }
    totals
}

/// One word of [`add_and_sign`].
#[inline(always)]
fn sign(r: &mut [f32; WORD], g: &[f32; WORD], sums: &mut Sums) -> u32 {
    let mut bits = 0;
    for i in 0..WORD {
        r[i] += g[i];
        let positive = r[i] >= 0.0;
        sums.0[0][i] += if positive { 0.0 } else { r[i] };
        sums.0[1][i] += if positive { r[i] } else { 0.0 };
        bits |= u32::from(positive) << i;
    }
    bits
}

/// Adds what `words` of `pair` stand for to `to`. Words that are missing stand for nothing.
pub(super) fn add(pair: &Pair, words: &[u32], to: &mut [f32]) {
    Arch::new().dispatch(
        #[inline(always)]
        || {
            let mut words = words;
            for to in to.chunks_mut(pair.row.max(1)) {
                let of_row = 2 + to.len().div_ceil(WORD);
                let (of_row, rest) = words.split_at_checked(of_row).unwrap_or((words, &[]));
                add_row(of_row, to);
                words = rest;
            }
        },
    );
}

/// One row of [`add`].
#[inline(always)]
fn add_row(words: &[u32], to: &mut [f32]) {
    let [low, high, bits @ ..] = words else {
        return;
    };
    let [low, high] = [*low, *high].map(f32::from_bits);
    let value = |bits: u32, i: usize| if bits >> i & 1 == 1 { high } else { low };
    let (whole, rest) = to.as_chunks_mut::<WORD>();
    let left = bits.get(whole.len());
    for (word, &bits) in whole.iter_mut().zip(bits) {
        for (i, to) in word.iter_mut().enumerate() {
            *to += value(bits, i);
        }
    }
    for (i, to) in rest.iter_mut().enumerate() {
        *to += left.map_or(0.0, |bits| value(*bits, i));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::poseidon::Scheme;
    use proptest::prelude::*;

    /// A pair of so many weights, `row` of each output.
    fn pair(len: usize, row: usize) -> Pair {
        Pair {
            id: 0,
            layer: 0,
            tensor: 0,
            offset: 0,
            in_layer: 0,
            len,
            scheme: Scheme::OneBit,
            row,
            home: None,
        }
    }

    proptest! {
        /// Whatever the gradients: what was sent plus what is kept is what there was.
        #[test]
        fn nothing_is_lost(
            steps in (1usize..70).prop_flat_map(|n| {
                prop::collection::vec(prop::collection::vec(-100.0f32..100.0, n), 1..12)
            }),
            row in 1usize..80,
        ) {
            let n = steps[0].len();
            let pair = pair(n, row);
            let (mut residual, mut sent) = (vec![0.0; n], vec![0.0; n]);
            let mut sums = vec![0.0f64; n];
            for gradient in &steps {
                let words = quantise(&pair, gradient, &mut residual);
                prop_assert_eq!(words.len(), pair.size().bits_len());
                add(&pair, &words, &mut sent);
                sums.iter_mut().zip(gradient).for_each(|(s, g)| *s += f64::from(*g));
            }
            for ((sent, kept), sum) in sent.iter().zip(&residual).zip(&sums) {
                // At most a dozen additions of values below some thousands, rounded each.
                prop_assert!((f64::from(*sent) + f64::from(*kept) - sum).abs() < 1e-2);
            }
        }
    }

    /// One weight after the other, in f64: the two means of each row, and the signs.
    fn plainly(row: usize, gradient: &[f32], residual: &mut [f32]) -> (Vec<[f64; 2]>, Vec<bool>) {
        let (mut means, mut signs) = (Vec::new(), Vec::new());
        for (residual, gradient) in residual.chunks_mut(row).zip(gradient.chunks(row)) {
            let mut sides = [(0.0, 0u32); 2];
            for (r, g) in residual.iter_mut().zip(gradient) {
                *r += g;
                let (sum, count) = &mut sides[usize::from(*r >= 0.0)];
                (*sum, *count) = (*sum + f64::from(*r), *count + 1);
                signs.push(*r >= 0.0);
            }
            means.push(sides.map(|(sum, count): (f64, u32)| sum / f64::from(count.max(1))));
        }
        (means, signs)
    }

    #[test]
    fn any_length_is_quantised_as_one_by_one() {
        let sizes = [1, 31, 32, 33, 64, 2047, 2048, 2049, 10_007];
        let of_one_row = sizes.map(|len| (len, len));
        let of_several = [(64, 32), (100, 33), (10_007, 100), (10_007, 2049), (9, 1)];
        for (len, row) in of_one_row.into_iter().chain(of_several) {
            let pair = pair(len, row);
            let number = |i: usize| ((i * 7919 + len) % 2003) as f32 / 1001.5 - 1.0;
            let gradient: Vec<f32> = (0..len).map(number).collect();
            let mut residual: Vec<f32> = (0..len).map(|i| number(i + 17) / 4.0).collect();
            let mut expected = residual.clone();
            let (means, signs) = plainly(row, &gradient, &mut expected);
            let words = quantise(&pair, &gradient, &mut residual);
            assert_eq!(words.len(), pair.size().bits_len());
            let mut sent = vec![0.0; len];
            add(&pair, &words, &mut sent);
            for i in 0..len {
                let mean = means[i / row][usize::from(signs[i])];
                assert!(
                    (f64::from(sent[i]) - mean).abs() < 1e-6,
                    "{len}, rows of {row}, {i}: {}, not {mean}",
                    sent[i]
                );
                assert_eq!(residual[i], expected[i] - sent[i], "{len}, {row}, {i}");
            }
        }
    }

    #[test]
    fn the_values_are_the_means_of_both_sides_of_each_row() {
        let mut residual = vec![0.0; 6];
        let gradient = [1.0, -2.0, 3.0, -4.0, 10.0, 30.0];
        let words = quantise(&pair(6, 4), &gradient, &mut residual);
        let f = f32::to_bits;
        assert_eq!(words, [f(-3.0), f(2.0), 0b0101, f(0.0), f(20.0), 0b11]);
        assert_eq!(residual, [-1.0, 1.0, 1.0, -1.0, -10.0, 10.0]);
        let mut sent = vec![1.0; 6];
        add(&pair(6, 4), &words[..4], &mut sent);
        assert_eq!(sent, [3.0, -2.0, 3.0, -2.0, 1.0, 1.0], "a row that is cut");
    }
}

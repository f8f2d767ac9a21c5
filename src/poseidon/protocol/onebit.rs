//! One bit per weight, with the error kept for the next time (Seide et al. 2014, CNTK).
//!
//! A pair's gradient becomes its signs and two values, the means of what is negative and of what
//! is not. What that leaves out is the residual, which is added to the next gradient: so
//! the sum of what was sent plus the residual is the sum of the gradients.

/// Quantises `gradient` plus `residual`, which becomes what is left over. Gives the two values and
/// the bits as words: see [`bits_len`](super::message::bits_len).
pub(super) fn quantise(gradient: &[f32], residual: &mut [f32]) -> Vec<u32> {
    let mut sums = [0.0f64; 2];
    let mut counts = [0u32; 2];
    for (r, g) in residual.iter_mut().zip(gradient) {
        *r += g;
        let positive = usize::from(*r >= 0.0);
        sums[positive] += f64::from(*r);
        counts[positive] += 1;
    }
    let means = [0, 1].map(|i| (sums[i] / f64::from(counts[i].max(1))) as f32);
    let mut words = vec![means[0].to_bits(), means[1].to_bits()];
    words.extend(residual.chunks_mut(32).map(|chunk| {
        let mut bits = 0;
        for (i, r) in chunk.iter_mut().enumerate() {
            let positive = usize::from(*r >= 0.0);
            bits |= (positive as u32) << i;
            *r -= means[positive];
        }
        bits
    }));
    words
}

/// Adds what `words` stand for to `to`. Words that are missing stand for nothing.
pub(super) fn add(words: &[u32], to: &mut [f32]) {
    let [low, high, bits @ ..] = words else {
        return;
    };
    let means = [*low, *high].map(f32::from_bits);
    for (chunk, bits) in to.chunks_mut(32).zip(bits) {
        for (i, value) in chunk.iter_mut().enumerate() {
            *value += means[(bits >> i & 1) as usize];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::poseidon::bits_len;
    use proptest::prelude::*;

    proptest! {
        /// Whatever the gradients: what was sent plus what is kept is what there was.
        #[test]
        fn nothing_is_lost(
            steps in (1usize..70).prop_flat_map(|n| {
                prop::collection::vec(prop::collection::vec(-100.0f32..100.0, n), 1..12)
            }),
        ) {
            let n = steps[0].len();
            let (mut residual, mut sent) = (vec![0.0; n], vec![0.0; n]);
            let mut sums = vec![0.0f64; n];
            for gradient in &steps {
                let words = quantise(gradient, &mut residual);
                prop_assert_eq!(words.len(), bits_len(n));
                add(&words, &mut sent);
                sums.iter_mut().zip(gradient).for_each(|(s, g)| *s += f64::from(*g));
            }
            for ((sent, kept), sum) in sent.iter().zip(&residual).zip(&sums) {
                // At most a dozen additions of values below some thousands, rounded each.
                prop_assert!((f64::from(*sent) + f64::from(*kept) - sum).abs() < 1e-2);
            }
        }
    }

    #[test]
    fn the_values_are_the_means_of_both_sides() {
        let mut residual = vec![0.0; 4];
        let words = quantise(&[1.0, -2.0, 3.0, -4.0], &mut residual);
        assert_eq!(words, [(-3.0f32).to_bits(), 2.0f32.to_bits(), 0b0101]);
        assert_eq!(residual, [-1.0, 1.0, 1.0, -1.0]);
    }
}

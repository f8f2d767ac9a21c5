//! How weights become payload bytes and back: f32, bf16, int8 or int2 with a scale per block.
//!
//! Arithmetic on private memory only. Invariants: what is packed is the nearest finite value of the
//! format (ties to even), so that packing what was unpacked changes no bit. Every finite weight
//! packs to finite values; unpacked zeros are +0.0.
//!
//! ```text
//! f32   4 bytes per weight
//! bf16  2 bytes per weight: the upper half of an f32
//! int8  for each 64 weights (the last block may be shorter): exponent e i16, then a byte q per
//!       weight; the weight is q * 2^e, q from -127 to 127
//! int2  the same with four weights in a byte, the first in its lowest two bits: 0, 1, or 2 for -1
//! ```
//!
//! A power of two as scale makes all arithmetic exact. The difference between a weight and what was
//! packed of it is an f32 again. Packing that next ends at the weight itself, bit for bit.

use std::f32::consts::SQRT_2;

use super::Dtype;

/// Weights that share a scale in [`Dtype::Int8`] and [`Dtype::Int2`].
pub const SCALE_BLOCK: usize = 64;
/// Bytes of a scale.
const SCALE_BYTES: usize = 2;
/// Largest magnitude of a packed byte.
pub const Q_MAX: f32 = 127.0;
/// What a product of a power of two and its inverse may be off by.
const LAST_PLACES: f32 = 1e-6;
/// Exponents of the least f32, and of the largest scale with which 127 is finite.
const EXPONENTS: std::ops::RangeInclusive<i32> = -149..=121;

impl Dtype {
    /// Bytes of a payload of `weights` weights.
    pub const fn payload_len(self, weights: usize) -> usize {
        match self {
            Self::None => 0,
            Self::F32 => 4 * weights,
            Self::Bf16 => 2 * weights,
            Self::Int8 => weights + SCALE_BYTES * weights.div_ceil(SCALE_BLOCK),
            Self::Int2 => weights.div_ceil(4) + SCALE_BYTES * weights.div_ceil(SCALE_BLOCK),
        }
    }

    /// Most weights, in whole blocks of 16 (64 where they share scales), whose payload has at most
    /// `bytes` bytes.
    pub const fn weights_in(self, bytes: usize) -> usize {
        match self {
            Self::None => 0,
            Self::F32 => bytes / 64 * 16,
            Self::Bf16 => bytes / 32 * 16,
            Self::Int8 => bytes / (SCALE_BLOCK + SCALE_BYTES) * SCALE_BLOCK,
            Self::Int2 => bytes / (SCALE_BLOCK / 4 + SCALE_BYTES) * SCALE_BLOCK,
        }
    }

    /// Payloads as long as that of some weights in this type that hold the same weights in f32.
    pub const fn f32_pieces(self) -> u8 {
        match self {
            Self::None | Self::F32 => 1,
            Self::Bf16 => 2,
            Self::Int8 => 4,
            Self::Int2 => 15,
        }
    }

    /// The name in options, tables and summaries.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
            Self::Int2 => "int2",
        }
    }
}

/// Packs finite `values` into `out`, each as the nearest value of `dtype`.
///
/// # Panics
/// If `out` is not [`Dtype::payload_len`] bytes long.
pub fn pack(dtype: Dtype, values: &[f32], out: &mut [u8]) {
    assert_eq!(
        out.len(),
        dtype.payload_len(values.len()),
        "payload of another size than the weights"
    );
    match dtype {
        Dtype::None => {}
        Dtype::F32 => {
            for (out, value) in out.as_chunks_mut::<4>().0.iter_mut().zip(values) {
                *out = value.to_le_bytes();
            }
        }
        Dtype::Bf16 => {
            for (out, value) in out.as_chunks_mut::<2>().0.iter_mut().zip(values) {
                *out = to_bf16(*value).to_le_bytes();
            }
        }
        Dtype::Int8 => {
            let blocks = out.chunks_mut(SCALE_BLOCK + SCALE_BYTES);
            for (out, values) in blocks.zip(values.chunks(SCALE_BLOCK)) {
                pack_block(values, out);
            }
        }
        Dtype::Int2 => {
            let blocks = out.chunks_mut(SCALE_BLOCK / 4 + SCALE_BYTES);
            for (out, values) in blocks.zip(values.chunks(SCALE_BLOCK)) {
                pack_signs(values, out);
            }
        }
    }
}

/// The upper half of the nearest f32 that has no lower half. What would round to infinity is cut.
fn to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    let cut = bits >> 16;
    let infinite = rounded & 0x7fff == 0x7f80;
    (if infinite { cut } else { rounded }) as u16
}

fn pack_block(values: &[f32], out: &mut [u8]) {
    let (scale, bytes) = out.split_at_mut(SCALE_BYTES);
    let exponent = scale_exponent(largest(values));
    scale.copy_from_slice(&(exponent as i16).to_le_bytes());
    // Twice, because the inverse of the smallest scales is not an f32.
    let [half, rest] = [-exponent / 2, -exponent - -exponent / 2].map(power_of_two);
    for (byte, value) in bytes.iter_mut().zip(values) {
        let q = (value * half * rest).round_ties_even();
        // Beyond only where no larger scale is finite.
        *byte = q.clamp(-Q_MAX, Q_MAX) as i8 as u8;
    }
}

/// Puts what a payload of `dtype` says of finite `values` in their place.
pub fn round(dtype: Dtype, values: &mut [f32]) {
    let mut payload = vec![0; dtype.payload_len(values.len())];
    pack(dtype, values, &mut payload);
    let finite = unpack(dtype, &payload, values);
    debug_assert!(finite, "what is packed is finite");
}

/// As [`pack_block`], in int2: the scale is the power of two next to the largest value.
fn pack_signs(values: &[f32], out: &mut [u8]) {
    let (scale, bytes) = out.split_at_mut(SCALE_BYTES);
    let exponent = sign_exponent(largest(values));
    scale.copy_from_slice(&(exponent as i16).to_le_bytes());
    let half = power_of_two(exponent) * 0.5;
    for (byte, values) in bytes.iter_mut().zip(values.chunks(4)) {
        let code = |x: f32| u8::from(x > half) | u8::from(x < -half) << 1;
        let codes = values.iter().rev().map(|x| code(*x));
        *byte = codes.fold(0, |byte, code| byte << 2 | code);
    }
}

fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |most, x| most.max(x.abs()))
}

fn sign_exponent(largest: f32) -> i32 {
    let (least, most) = (*EXPONENTS.start(), *EXPONENTS.end());
    exponent_of(largest * SQRT_2).clamp(least, most)
}

/// Whether int2 says what these `values` are, but for a last place: in each block nothing but
/// zeros and one power of two.
pub fn fits_int2(values: &[f32]) -> bool {
    values.chunks(SCALE_BLOCK).all(|values| {
        let scale = power_of_two(sign_exponent(largest(values)));
        let fits = |x: &f32| *x == 0.0 || (x.abs() / scale - 1.0).abs() <= LAST_PLACES;
        values.iter().all(fits)
    })
}

/// The least `e` for which `largest` is at most 127 * 2^e.
pub fn scale_exponent(largest: f32) -> i32 {
    let (least, most) = (*EXPONENTS.start(), *EXPONENTS.end());
    // 2^(exponent of the largest) / 64 holds 64 to 128 of them; above 127 it has to be the next.
    let floor = exponent_of(largest).saturating_sub(6).clamp(least, most);
    let fits = largest <= Q_MAX * power_of_two(floor);
    if fits { floor } else { (floor + 1).min(most) }
}

/// `e` for which `x` (not negative) is from 2^e to below 2^(e+1); -150 for 0.
fn exponent_of(x: f32) -> i32 {
    let bits = x.to_bits();
    match bits >> 23 {
        0 => -118 - bits.leading_zeros() as i32,
        biased => biased as i32 - 127,
    }
}

/// 2^e, for `e` from -149 to 127.
pub fn power_of_two(e: i32) -> f32 {
    f32::from_bits(if e < -126 {
        1 << (e + 149)
    } else {
        ((e + 127) as u32) << 23
    })
}

/// Unpacks a payload into `values`; false, and `values` are whatever they are, if it holds NaN,
/// infinity or a scale that does not exist.
///
/// # Panics
/// If `payload` is not [`Dtype::payload_len`] bytes long.
#[must_use]
pub fn unpack(dtype: Dtype, payload: &[u8], values: &mut [f32]) -> bool {
    assert_eq!(
        payload.len(),
        dtype.payload_len(values.len()),
        "payload of another size than the weights"
    );
    match dtype {
        Dtype::None => true,
        Dtype::F32 => finite(values, payload.as_chunks::<4>().0, |bytes| {
            f32::from_le_bytes(*bytes)
        }),
        Dtype::Bf16 => finite(values, payload.as_chunks::<2>().0, |bytes| {
            f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16)
        }),
        Dtype::Int8 => payload
            .chunks(SCALE_BLOCK + SCALE_BYTES)
            .zip(values.chunks_mut(SCALE_BLOCK))
            .all(|(payload, values)| unpack_block(payload, values)),
        Dtype::Int2 => payload
            .chunks(SCALE_BLOCK / 4 + SCALE_BYTES)
            .zip(values.chunks_mut(SCALE_BLOCK))
            .all(|(payload, values)| unpack_signs(payload, values)),
    }
}

/// Stores each value plus zero (so that none is -0.0); false if one is not finite.
fn finite<B>(values: &mut [f32], from: &[B], value: impl Fn(&B) -> f32) -> bool {
    let mut all = true;
    for (to, from) in values.iter_mut().zip(from) {
        *to = value(from) + 0.0;
        all &= to.is_finite();
    }
    all
}

/// The scale of a block, and its bytes; `None`: there is no such scale.
fn scale_and_bytes(payload: &[u8]) -> Option<(f32, &[u8])> {
    let (scale, bytes) = payload.split_at(SCALE_BYTES);
    let exponent = i32::from(i16::from_le_bytes([scale[0], scale[1]]));
    let exists = EXPONENTS.contains(&exponent);
    exists.then(|| (power_of_two(exponent), bytes))
}

fn unpack_block(payload: &[u8], values: &mut [f32]) -> bool {
    scale_and_bytes(payload)
        .is_some_and(|(scale, bytes)| finite(values, bytes, |byte| f32::from(*byte as i8) * scale))
}

fn unpack_signs(payload: &[u8], values: &mut [f32]) -> bool {
    let Some((scale, bytes)) = scale_and_bytes(payload) else {
        return false;
    };
    let mut known = true;
    for (values, byte) in values.chunks_mut(4).zip(bytes) {
        for (value, at) in values.iter_mut().zip(0..) {
            let code = byte >> (2 * at) & 3;
            known &= code < 3;
            *value = [0.0, scale, -scale, 0.0][usize::from(code)];
        }
    }
    known
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NARROW: [Dtype; 2] = [Dtype::Bf16, Dtype::Int8];
    const ALL: [Dtype; 4] = [Dtype::F32, Dtype::Bf16, Dtype::Int8, Dtype::Int2];

    fn finite_bits() -> impl Strategy<Value = f32> {
        any::<u32>().prop_map(|bits| {
            let x = f32::from_bits(bits) + 0.0;
            if x.is_finite() { x } else { 1.5 }
        })
    }

    /// Weights of a block as they are in nets, and anything finite.
    fn weights() -> impl Strategy<Value = Vec<f32>> {
        prop_oneof![
            prop::collection::vec(-0.3f32..0.3, 0..200),
            prop::collection::vec(finite_bits(), 0..200),
        ]
    }

    fn round(dtype: Dtype, values: &[f32]) -> Vec<f32> {
        let mut payload = vec![0xaa; dtype.payload_len(values.len())];
        pack(dtype, values, &mut payload);
        let mut back = vec![f32::NAN; values.len()];
        assert!(unpack(dtype, &payload, &mut back), "{values:?}");
        back
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|x| x.to_bits()).collect()
    }

    proptest! {
        #[test]
        fn f32_comes_back_as_it_is(values in weights()) {
            prop_assert_eq!(bits(&round(Dtype::F32, &values)), bits(&values));
        }

        #[test]
        fn what_was_rounded_rounds_to_itself(values in weights()) {
            for dtype in ALL {
                let once = round(dtype, &values);
                prop_assert_eq!(bits(&round(dtype, &once)), bits(&once));
            }
        }

        #[test]
        fn bf16_is_within_half_of_its_last_place(value in -1e30f32..1e30) {
            let error = (round(Dtype::Bf16, &[value])[0] - value).abs();
            prop_assert!(error <= value.abs() / 256.0);
        }

        #[test]
        fn int8_is_within_half_of_the_scale(values in prop::collection::vec(-5f32..5.0, 1..64)) {
            let largest = values.iter().fold(0.0f32, |most, x| most.max(x.abs()));
            for (x, back) in values.iter().zip(round(Dtype::Int8, &values)) {
                // The scale is below 2 / 127 of the largest.
                prop_assert!((x - back).abs() <= largest / 127.0);
            }
        }

        #[test]
        fn int2_says_zeros_and_one_power_of_two(
            signs in prop::collection::vec(-1i8..=1, 1..200), exponent in EXPONENTS, portion in 0.01f32..1.0,
        ) {
            let scale = power_of_two(exponent);
            let values: Vec<f32> = signs.iter().map(|sign| f32::from(*sign) * scale).collect();
            prop_assert!(fits_int2(&values));
            prop_assert_eq!(&round(Dtype::Int2, &values), &values);
            // As of a delta that is sent again.
            if (-100..100).contains(&exponent) {
                let again: Vec<f32> = values.iter().map(|x| x * (1.0 / portion) * portion).collect();
                prop_assert!(fits_int2(&again));
                prop_assert_eq!(&round(Dtype::Int2, &again), &values);
                let other: Vec<f32> = values.iter().map(|x| x * 1.25).collect();
                prop_assert_eq!(fits_int2(&other), values.iter().all(|x| *x == 0.0));
            }
        }

        /// What was left out, packed again and again, ends at the weights themselves.
        #[test]
        fn remainders_end_at_the_very_bits(values in weights()) {
            for dtype in NARROW {
                let mut have = vec![0.0f32; values.len()];
                for _ in 0..64 {
                    let left: Vec<f32> = values.iter().zip(&have).map(|(x, h)| x - h).collect();
                    if left.iter().all(|x| *x == 0.0) {
                        break;
                    }
                    let mut more = round(dtype, &left);
                    if more.iter().all(|x| *x == 0.0) {
                        // bf16 cannot say the least of f32.
                        more = round(Dtype::Int8, &left);
                    }
                    have.iter_mut().zip(more).for_each(|(have, more)| *have += more);
                }
                prop_assert_eq!(bits(&have), bits(&values));
            }
        }

        #[test]
        fn any_payload_is_unpacked_without_panic(payload in prop::collection::vec(any::<u8>(), 132..=132)) {
            let mut values = vec![0.0; 128];
            if unpack(Dtype::Int8, &payload, &mut values) {
                prop_assert!(values.iter().all(|x| x.is_finite() && x.to_bits() != 1 << 31));
            }
            let mut values = vec![0.0; 64 * 7];
            if unpack(Dtype::Int2, &payload[..7 * 18], &mut values) {
                prop_assert!(values.iter().all(|x| x.is_finite() && x.to_bits() != 1 << 31));
            }
            let mut values = vec![0.0; 66];
            if unpack(Dtype::Bf16, &payload, &mut values) {
                prop_assert!(values.iter().all(|x| x.is_finite() && x.to_bits() != 1 << 31));
            }
        }
    }

    #[test]
    fn a_scale_that_does_not_exist_is_refused() {
        for exponent in [122i16, -150, i16::MAX, i16::MIN] {
            let mut payload = vec![1; 66];
            payload[..2].copy_from_slice(&exponent.to_le_bytes());
            assert!(!unpack(Dtype::Int8, &payload, &mut [0.0; 64]), "{exponent}");
            assert!(
                !unpack(Dtype::Int2, &payload[..18], &mut [0.0; 64]),
                "{exponent}"
            );
        }
    }

    #[test]
    fn the_scale_is_the_least_that_holds_the_largest() {
        for largest in [
            0.0,
            f32::from_bits(1),
            1e-40,
            0.05,
            1.0,
            127.0,
            128.0,
            127.5,
            1e38,
        ] {
            let e = scale_exponent(largest);
            assert!(f64::from(largest) <= 127.5 * 2f64.powi(e), "{largest}");
            if e > -149 {
                assert!(f64::from(largest) > 127.0 * 2f64.powi(e - 1), "{largest}");
            }
        }
    }

    #[test]
    fn as_many_weights_as_fit() {
        for dtype in ALL {
            for bytes in [0, 63, 64, 1408, 65_536] {
                let n = dtype.weights_in(bytes);
                assert!(n.is_multiple_of(16) && dtype.payload_len(n) <= bytes);
                assert!(dtype.payload_len(n + 64) > bytes);
                // So many f32 fit into as many payloads.
                assert!(4 * n <= usize::from(dtype.f32_pieces()) * dtype.payload_len(n).max(1));
            }
        }
        assert_eq!(Dtype::Int8.weights_in(1408), 1344);
    }
}

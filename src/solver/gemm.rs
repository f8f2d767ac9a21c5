//! Matrix products with the weights of an inner product, read straight from the shared buffer.
//!
//! The only file of this module with `unsafe`: products take raw pointers, for the weights may
//! change while they are read (Hogwild) and so must never be a `&[f32]`. Everything is checked
//! before the call; one thread only.
#![allow(unsafe_code)]

use crate::device::product::{Operand, matrix_product};
use crate::weights::WeightsView;

/// `to = from * weights × x`, or `to += ...` if `keep`.
///
/// `weights` is `[outputs][inputs]`; `x` is `[inputs][images]` and `to` `[outputs][images]`.
/// With `transpose` the weights are taken as `[inputs][outputs]`, and `x` and `to` swap sizes.
///
/// # Panics
/// If a length does not fit the sizes.
pub(crate) fn weights_times(
    weights: WeightsView<'_>,
    [outputs, inputs]: [usize; 2],
    transpose: bool,
    x: &[f32],
    to: &mut [f32],
    keep: bool,
) {
    let images = if transpose {
        x.len() / outputs
    } else {
        x.len() / inputs
    };
    let (rows, inner) = if transpose {
        (inputs, outputs)
    } else {
        (outputs, inputs)
    };
    assert_eq!(
        weights.len(),
        outputs * inputs,
        "weights of an inner product"
    );
    assert_eq!(
        (x.len(), to.len()),
        (inner * images, rows * images),
        "values of an inner product"
    );
    let (row_step, column_step) = if transpose { (1, inputs) } else { (inputs, 1) };
    let left = Operand {
        ptr: weights.as_ptr(),
        row_step,
        column_step,
    };
    let right = Operand {
        ptr: x.as_ptr(),
        row_step: images,
        column_step: 1,
    };
    // SAFETY: `left` spans rows × inner = all weights of a valid view; the crate only reads them,
    // through plain vector loads that stand for relaxed per-word loads: a racing writer changes
    // which value is read, as Hogwild allows (docs/reference/memory-model.md). `right` spans inner
    // × images = all of `x`, `to` is rows × images and unaliased, as just checked.
    unsafe { matrix_product([rows, images, inner], to.as_mut_ptr(), keep, &left, &right) }
}

/// `gradient += diff × xᵀ`: `diff` is `[outputs][images]`, `x` `[inputs][images]`, the gradient
/// `[outputs][inputs]`. Overwrites the gradient unless `keep`.
///
/// # Panics
/// If a length does not fit the sizes.
pub(crate) fn weight_gradient(
    [outputs, inputs]: [usize; 2],
    diff: &[f32],
    x: &[f32],
    gradient: &mut [f32],
    keep: bool,
) {
    let images = x.len() / inputs;
    assert_eq!(
        gradient.len(),
        outputs * inputs,
        "gradient of an inner product"
    );
    assert_eq!(
        (x.len(), diff.len()),
        (inputs * images, outputs * images),
        "values of an inner product"
    );
    let left = Operand {
        ptr: diff.as_ptr(),
        row_step: images,
        column_step: 1,
    };
    let right = Operand {
        ptr: x.as_ptr(),
        row_step: 1,
        column_step: images,
    };
    // SAFETY: `left` spans outputs × images = all of `diff`, `right` images × inputs = all of
    // `x`, and the unaliased target is outputs × inputs, as just checked.
    unsafe {
        matrix_product(
            [outputs, inputs, images],
            gradient.as_mut_ptr(),
            keep,
            &left,
            &right,
        )
    }
}

/// `gradient += u × vᵀ`: the gradient of a fully connected layer, `[outputs][inputs]`, from its
/// sufficient factors: `u` (`[outputs][images]`, gradients of its top) and `v`
/// (`[inputs][images]`, its bottom). Nothing if there is no image.
///
/// # Panics
/// If a length does not fit the sizes.
pub fn add_outer_products(sizes: [usize; 2], u: &[f32], v: &[f32], gradient: &mut [f32]) {
    if !u.is_empty() || !v.is_empty() {
        weight_gradient(sizes, u, v, gradient, true);
    }
}

/// `to = left × right`, all row-major: the bare product, which `benches/solver.rs` measures the
/// passes of a net against. Sizes are rows, columns and the inner one.
///
/// # Panics
/// If an operand is shorter than its sizes say.
pub fn bare_product(sizes: [usize; 3], left: &[f32], right: &[f32], to: &mut [f32]) {
    let [rows, columns, inner] = sizes;
    assert!(
        left.len() >= rows * inner && right.len() >= inner * columns && to.len() >= rows * columns
    );
    let left = Operand {
        ptr: left.as_ptr(),
        row_step: inner,
        column_step: 1,
    };
    let right = Operand {
        ptr: right.as_ptr(),
        row_step: columns,
        column_step: 1,
    };
    // SAFETY: the operands are long enough, as just checked, and `to` is unaliased.
    unsafe { matrix_product(sizes, to.as_mut_ptr(), false, &left, &right) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn products_equal_sums() {
        let value = |i: usize| ((i * 7 + 3) % 11) as f32 - 5.0;
        let (m, k, n) = (5, 9, 16);
        let words: Vec<AtomicU32> = (0..m * k)
            .map(|i| AtomicU32::new(value(i).to_bits()))
            .collect();
        let w = WeightsView::of(&words);
        let x: Vec<f32> = (0..k * n).map(|i| value(i + 1)).collect();
        let d: Vec<f32> = (0..m * n).map(|i| value(i + 2)).collect();
        let sum = |f: &dyn Fn(usize) -> f32, count: usize| (0..count).map(f).sum::<f32>();
        let mut y = vec![1.0; m * n];
        weights_times(w, [m, k], false, &x, &mut y, true);
        let mut dx = vec![1.0; k * n];
        weights_times(w, [m, k], true, &d, &mut dx, false);
        let mut dw = vec![1.0; m * k];
        weight_gradient([m, k], &d, &x, &mut dw, true);
        for o in 0..m {
            for i in 0..n {
                assert_eq!(
                    y[o * n + i],
                    1.0 + sum(&|c| value(o * k + c) * x[c * n + i], k)
                );
            }
            for c in 0..k {
                assert_eq!(
                    dw[o * k + c],
                    1.0 + sum(&|i| d[o * n + i] * x[c * n + i], n)
                );
            }
        }
        for c in 0..k {
            for i in 0..n {
                assert_eq!(dx[c * n + i], sum(&|o| value(o * k + c) * d[o * n + i], m));
            }
        }
    }
}

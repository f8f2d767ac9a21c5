//! Products of matrices on the CPU, by pointer: so the weights of a shared buffer are read.
//!
//! Touches the memory of its arguments only; one thread. `gemm_f32` is the part of the crate `gemm`
//! that this needs: the whole compiles the same kernels for three more kinds of numbers.
#![allow(unsafe_code)]

use gemm_common::Parallelism;
use gemm_f32::gemm::f32::get_gemm_fn;

/// A matrix by pointer: element `(row, column)` lies at `row * row_step + column * column_step`.
pub(crate) struct Operand {
    pub(crate) ptr: *const f32,
    pub(crate) row_step: usize,
    pub(crate) column_step: usize,
}

/// `to (+)= left × right` with a row-major target of `rows × columns`; sizes are rows, columns and
/// the inner one.
///
/// # Safety
/// Every element of `left` (rows × inner) and `right` (inner × columns) must be readable, and
/// `to` must be writable for rows × columns and not overlap them.
pub(crate) unsafe fn matrix_product(
    [rows, columns, inner]: [usize; 3],
    to: *mut f32,
    keep: bool,
    left: &Operand,
    right: &Operand,
) {
    // The kernels want the target by columns, so its transpose is computed: toᵀ = rightᵀ × leftᵀ.
    // A single column is both.
    let transpose = columns > 1;
    let [m, n] = if transpose {
        [columns, rows]
    } else {
        [rows, columns]
    };
    let (first, second) = if transpose {
        (right, left)
    } else {
        (left, right)
    };
    let steps = |of: &Operand| {
        let [row, column] = [of.row_step, of.column_step].map(|step| step as isize);
        if transpose {
            (row, column)
        } else {
            (column, row)
        }
    };
    let (first_column, first_row) = steps(first);
    let (second_column, second_row) = steps(second);
    let target = if transpose { columns as isize } else { 1 };
    // SAFETY: the caller's promise is the crate's requirement. Steps are isize-safe because they
    // are at most the length of a slice, and none is negative, which the crate does not allow.
    unsafe {
        get_gemm_fn()(
            m,
            n,
            inner,
            to,
            target,
            if transpose { 1 } else { columns as isize },
            keep,
            first.ptr,
            first_column,
            first_row,
            second.ptr,
            second_column,
            second_row,
            1.0,
            1.0,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

//! The kernel of the GPU syncer (`sync.cu`).

use std::sync::atomic::Ordering::Relaxed;

use crate::device::{DeviceError, Kernel, Number, Part, Shape, Stream};
use crate::weights::{WeightsView, kernels};

/// Words behind the deltas in `out`: weights healed since the memory was made, and the `tag` of the
/// last launch that found a weight moved.
pub const TOLD: usize = 2;

/// See [`take_position`].
pub static TAKE_POSITION: Kernel = Kernel {
    name: "take_position",
    source: "sync.cu",
    plan: |lens, numbers| {
        let &[w, last, position, out] = lens else {
            panic!("take_position takes 4 parts, not {}", lens.len());
        };
        let n = numbers[0].u();
        let _tag = numbers[1].u();
        assert!(
            w == n && last == n && position == n && out == n + TOLD,
            "take_position of {n} weights, not {lens:?}"
        );
        Shape::of(n)
    },
    host: |parts, numbers| take(parts, numbers[1].u() as u32),
};

/// A slave takes a position: `new = w - last; w = last = position + new`, and `out = new`.
///
/// A difference that is not finite is taken as zero, which heals the weight, and counted. `out` has
/// [`TOLD`] words more than there are weights: the number of weights healed so (added to what is
/// there) and `tag` if any weight had moved (else left as it is).
///
/// # Errors
/// The device has failed.
///
/// # Panics
/// If the parts differ in length.
pub fn take_position<S: Stream>(
    stream: &S,
    w: Part<'_, S::Memory>,
    last: Part<'_, S::Memory>,
    position: Part<'_, S::Memory>,
    out: Part<'_, S::Memory>,
    tag: u32,
) -> Result<(), DeviceError> {
    let n = Number::U(w.len() as u32);
    stream.launch(
        &TAKE_POSITION,
        &[w, last, position, out],
        &[n, Number::U(tag)],
    )
}

fn take(parts: &[WeightsView<'_>], tag: u32) {
    let &[w, last, position, out] = parts else {
        unreachable!("as planned")
    };
    let n = w.len();
    let taken = kernels::take_view(w, last, position, out.slice(0, n));
    out.word(n).fetch_add(taken.non_finite, Relaxed);
    if taken.moved {
        out.word(n + 1).store(tag, Relaxed);
    }
}

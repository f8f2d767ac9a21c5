//! Kernels of the GPU syncer, and of what measures and tests it (`sync.cu`).

use std::sync::atomic::Ordering::Relaxed;

use crate::device::{DeviceError, Kernel, Number, Part, Shape, Stream};
use crate::weights::{WeightsView, kernels};

/// Words before the deltas in `out`: first the number of weights healed since the memory was made,
/// then the `tag` of the last launch that found a weight moved; the rest is free.
pub const TOLD: usize = crate::weights::LANDING_HEAD;

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
/// A difference that is not finite is taken as zero, which heals the weight, and counted. `out`
/// begins with [`TOLD`] words: the number of weights healed so (added to what is there), `tag` if
/// any weight had moved (else left as it is), and free ones; the deltas follow.
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

/// See [`add_scalar`].
pub static ADD_SCALAR: Kernel = Kernel {
    name: "add_scalar",
    source: "sync.cu",
    plan: |lens, numbers| {
        let _value = numbers[1].f();
        assert_eq!(lens, [numbers[0].u()], "add_scalar takes one part");
        Shape::of(lens[0])
    },
    host: |parts, numbers| kernels::racy_add_scalar(parts[0], numbers[1].f()),
};

/// `w += a`: a solver in its simplest form.
///
/// # Errors
/// The device has failed.
pub fn add_scalar<S: Stream>(
    stream: &S,
    w: Part<'_, S::Memory>,
    a: f32,
) -> Result<(), DeviceError> {
    let n = Number::U(w.len() as u32);
    stream.launch(&ADD_SCALAR, &[w], &[n, Number::F(a)])
}

fn take(parts: &[WeightsView<'_>], tag: u32) {
    let &[w, last, position, out] = parts else {
        unreachable!("as planned")
    };
    let n = w.len();
    let taken = kernels::take_view(w, last, position, out.slice(TOLD, n));
    out.word(0).fetch_add(taken.non_finite, Relaxed);
    if taken.moved {
        out.word(1).store(tag, Relaxed);
    }
}

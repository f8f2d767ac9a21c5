//! What values may be: for files and for the command line.

use std::ops::RangeInclusive;

/// Shares of something.
pub const SHARE: RangeInclusive<f64> = 0.0..=1.0;
/// Longest extra delay of a frame, ms.
pub const DELAY_MS: RangeInclusive<f64> = 0.0..=10_000.0;
/// Steps per second of a paced solver.
pub const STEPS_PER_S: RangeInclusive<f64> = 0.001..=1e6;
/// Bytes per second, and bytes on the way, at least: less than one frame in a few seconds is a
/// mistyped unit.
pub const BYTES_MIN: f64 = 1000.0;
/// MTU of a link, bytes.
pub const MTU: RangeInclusive<u32> = 256..=65_536;

/// The model that is meant where none is named.
pub(super) fn lenet() -> String {
    "lenet".to_owned()
}

/// Test pictures of a test on the way, where a field is left out.
pub(super) fn test_images() -> usize {
    crate::node::TEST_IMAGES
}

/// 1, where a field is left out.
pub(super) fn one<N: From<u8>>() -> N {
    N::from(1)
}

/// 2, where a field is left out.
pub(super) fn two<N: From<u8>>() -> N {
    N::from(2)
}

/// True, where a field is left out.
pub(super) fn yes() -> bool {
    true
}

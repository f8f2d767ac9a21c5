//! libFuzzer's way into `src/streamer.rs`. Says how many frames were given, by kind.
#![no_main]

use std::io::{Write, stderr};
use std::sync::atomic::Ordering::Relaxed;

use dogwild_fuzz::streamer::{FRAMES, TAKEN, run};
use libfuzzer_sys::fuzz_target;

/// Frames between two lines.
const SAY_EVERY: u64 = 10_000_000;

fuzz_target!(|bytes: &[u8]| {
    let before = FRAMES.load(Relaxed);
    run(bytes);
    let now = FRAMES.load(Relaxed);
    if now / SAY_EVERY > before / SAY_EVERY {
        let _ = writeln!(stderr(), "{now} frames; of kinds 0 to 8: {TAKEN:?}");
    }
});

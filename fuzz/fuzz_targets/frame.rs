//! libFuzzer's way into `src/frame.rs`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| dogwild_fuzz::frame::run(bytes));

//! libFuzzer's way into `src/poseidon.rs`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| dogwild_fuzz::poseidon::run(bytes));

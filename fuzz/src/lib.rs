//! What the fuzz targets do with their bytes. Each function panics if what must hold does not.
//!
//! `fuzz_targets/` gives them to libFuzzer, and `tests/corpus.rs` runs the kept corpus through them
//! in an ordinary test.

pub mod files;
pub mod frame;
pub mod poseidon;
pub mod streamer;

//! Room: solver.
pub mod data;

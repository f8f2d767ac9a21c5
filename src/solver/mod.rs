//! Room: solver.

//! Learning curves: rows of a CSV file, and a picture (SVG) made of them.
//!
//! Touches the files it is told to. One process appends to one CSV file.
//!
//! Invariants: a row is written by one call and at once, so that a killed process leaves at most
//! one half-written line, the last. Readers pass over that line and writers remove it.

mod rows;

cfg_if::cfg_if! {
    if #[cfg(feature = "plots")] {
        mod axis;
        mod learning;
        mod picture;
        #[cfg(test)]
        mod picture_tests;

        pub use axis::Axis;
        pub use picture::{Curve, Panel, PictureError, Series};
    }
}

pub use rows::{CurveError, CurveRow, CurveWriter, read_rows};

#[cfg(test)]
mod tests;

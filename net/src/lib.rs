//! Frames in and out.

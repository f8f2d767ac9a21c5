//! Room: watch.

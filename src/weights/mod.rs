//! The shared weight buffer.

mod view;
pub use view::WeightsView;

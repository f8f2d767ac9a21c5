//! Tests of the module as a whole: files, processes, kills.

mod buffer;
mod child;
mod kill;
mod state;

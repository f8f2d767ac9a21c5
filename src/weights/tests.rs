//! Tests of the module as a whole: files, processes, kills.

mod buffer;
mod child;
mod forks;
mod kill;
mod state;

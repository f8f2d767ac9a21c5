//! Churn: eight hosts of a lab, and every second one of them is killed, stands still, is cut off,
//! leaves, or comes. `adding` has the test add numbers and looks for each of them; in `training`
//! solvers learn.
//!
//! `DOGWILD_CHURN_S` sets how long, `DOGWILD_CHURN_SEED` what happens.

#![cfg(feature = "program")]

mod adding;
mod cluster;
mod pace;
#[path = "../support/mod.rs"]
mod support;
mod training;

//! Watching a job: what it did, for people and programs.
//!
//! Holds learning curves ([`curve`]): their rows as CSV and their picture. Writes files only.

pub mod curve;

//! What programs are shipped with: what they say of their build, man pages, shell completions.

#[path = "../support/mod.rs"]
mod support;

mod pages;
mod version;

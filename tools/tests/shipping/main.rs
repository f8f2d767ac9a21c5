//! What programs are shipped with and as: what they say of their build, man pages, shell
//! completions, the Debian package.

#[path = "../support/mod.rs"]
mod support;

mod deb;
mod pages;
mod version;

//! `cargo xtask`: one command that checks the whole tree.
fn main() {}

//! `dogwild-lab`.
fn main() {}

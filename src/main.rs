//! The program `dogwild`.
fn main() {}

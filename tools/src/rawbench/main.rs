//! `dogwild-rawbench`: what the pieces of dogwild can do on this machine.
fn main() {}

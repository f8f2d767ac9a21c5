//! `dogwild-rawbench`: what the pieces of dogwild can do on this machine.
//!
//! Holds the command line; each benchmark has its own file.

mod hogwild;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(
    name = "dogwild-rawbench",
    version,
    about = "What the pieces of dogwild can do on this machine"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Updates that solvers on one buffer lose to each other, by size and kernel.
    Hogwild(hogwild::HogwildArgs),
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Hogwild(args) => hogwild::run(&args),
    }
}

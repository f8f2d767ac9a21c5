//! `dogwild-study`: what loss, delay and the number of nodes do to learning.
//!
//! `twin` trains in virtual time: real streamers and real gradients under a virtual clock, all
//! decided by one seed. `repeat` runs `dogwild train`, processes in real time, with many seeds.

mod course;
mod repeat;
mod seeds;
mod twin;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(
    name = "dogwild-study",
    version,
    about = "Studies of learning over networks that lose and delay"
)]
struct Cli {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Train in virtual time: the same seed gives the same run, to the bit
    Twin(twin::Args),
    /// Run `dogwild train` once for each seed: median and range of what came of it
    Repeat(repeat::Args),
}

fn main() -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("info")).init();
    let result = match Cli::parse().action {
        Action::Twin(args) => args.run(),
        Action::Repeat(args) => args.run(),
    };
    dogwild::cli::finish("dogwild-study", result)
}

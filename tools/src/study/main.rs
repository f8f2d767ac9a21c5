//! `dogwild-study`: what loss, delay and the number of nodes do to learning.
//!
//! `run` makes the runs of an experiment file and a report of them; `check` and `list` say what
//! there is to run, `report` and `compare` what came of it. `twin` trains once in virtual time:
//! real gradients under a virtual clock, all decided by one seed. `repeat` runs
//! `dogwild train`, processes in real time, with many seeds.

mod check;
mod collect;
mod compare;
mod cost;
mod engine;
mod experiment;
mod repeat;
mod report;
mod results;
mod run;
mod seeds;
mod twin;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(
    name = "dogwild-study",
    version = dogwild::cli::version::text(env!("DOGWILD_COMMIT")),
    about = "Studies of learning over networks that lose and delay"
)]
struct Cli {
    #[command(flatten)]
    quiet: dogwild::cli::quiet::Quiet,
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Run an experiment: all its cells with all seeds, and a report
    Run(run::Args),
    /// Show the cells of an experiment and what they will cost
    Check(check::CheckArgs),
    /// Show the experiments of a folder
    List(check::ListArgs),
    /// Write the report of a folder of results anew
    Report(collect::Args),
    /// Show the cells of two folders of results next to each other
    Compare(compare::Args),
    /// Train in virtual time: the same seed gives the same run, to the bit
    Twin(Box<twin::Args>),
    /// Run `dogwild train` once for each seed: median and range of what came of it
    Repeat(repeat::Args),
}

fn main() -> ExitCode {
    let cli: Cli = dogwild::cli::args::parse();
    let level = cli.quiet.log_level("info");
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or(level)).init();
    let result = match cli.action {
        Action::Run(args) => args.run(),
        Action::Check(args) => args.run(),
        Action::List(args) => args.run(),
        Action::Report(args) => args.run(),
        Action::Compare(args) => args.run(),
        Action::Twin(args) => args.run(),
        Action::Repeat(args) => args.run(),
    };
    dogwild::cli::finish("dogwild-study", result)
}

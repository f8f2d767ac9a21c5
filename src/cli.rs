//! The command line: one file per subcommand, arguments in, one call out.
//!
//! Holds no logic of its own: it parses, validates, calls a module and prints errors.

pub mod args;
mod capture;
mod clean;
mod closing;
pub mod cluster_args;
pub mod coordinator;
#[cfg(feature = "data-get")]
mod data;
mod doctor;
mod exit;
mod explicit;
mod feed;
pub mod given;
mod gpu;
mod hint;
mod init;
mod job;
mod job_file;
mod lab_args;
mod launch;
mod node;
mod parse;
mod pictures;
mod poseidon_flags;
mod precision;
pub mod quiet;
pub mod server;
mod snapshot;
mod solver;
mod status;
pub mod stream;
pub mod stream_args;
mod tester;
#[cfg(feature = "top")]
mod top;
mod train;
mod train_checks;
mod train_poseidon;
pub mod version;
pub mod worker;

use std::io::Write;
use std::process::ExitCode;
use std::time::SystemTime;

use clap::{Parser, Subcommand};

/// Keeps the weights of a model in step across processes and machines, without locks and without
/// waiting, over networks that lose packets.
#[derive(Debug, Parser)]
#[command(
    name = "dogwild",
    version = version::text(env!("DOGWILD_COMMIT")),
    max_term_width = 100
)]
struct Cli {
    #[command(flatten)]
    quiet: quiet::Quiet,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Train on this machine: makes the buffers, starts all components, ends with a report
    Train(Box<explicit::Explicit<train::Args>>),
    /// Run a job file on this machine: all of its nodes
    Launch(launch::Args),
    /// Run one node of a job file, under srun, mpirun, torchrun, Kubernetes or by hand
    Node(node::Args),
    /// Check a job file, or show all that it means
    Job(job::Args),
    /// Make the shared weight buffer of one node
    Init(init::Args),
    /// Run a solver on a buffer
    Solver(solver::Args),
    /// Test a buffer's weights now and then, and do nothing else
    Tester(tester::Args),
    /// Stream a buffer to and from the other nodes
    Stream(stream::Args),
    /// Keep a GPU's weights in step with a buffer, and train on them
    Gpu(gpu::Args),
    /// Coordinate servers and workers of the reliable path
    Coordinator(coordinator::Args),
    /// Hold shards of the weights for the reliable path
    Server(server::Args),
    /// Train on a buffer over the reliable path
    Worker(worker::Args),
    /// Show what the nodes of this host do, live
    #[cfg(feature = "top")]
    Top(top::Args),
    /// Say what the components of a buffer do, with all their counters
    Status(status::Args),
    /// Write a buffer's weights as .safetensors
    Snapshot(snapshot::Args),
    /// List what jobs have left in shared memory, and remove it
    Clean(clean::Args),
    /// Download a published data set
    #[cfg(feature = "data-get")]
    Data(data::Args),
    /// Send a data set to hosts that have no files
    Feed(feed::Args),
    /// Say what works on this host, and what the rest needs
    Doctor(doctor::Args),
}

/// Parses the command line of this process and runs it.
pub fn main() -> ExitCode {
    let cli: Cli = args::parse();
    start_log(cli.quiet.log_level("info"));
    let result = match cli.command {
        Command::Train(args) => args.run(),
        Command::Launch(args) => args.run(),
        Command::Node(args) => args.run(),
        Command::Job(args) => args.run(),
        Command::Init(args) => args.run(),
        Command::Solver(args) => args.run(),
        Command::Tester(args) => args.run(),
        Command::Stream(args) => args.run(),
        Command::Gpu(args) => args.run(),
        Command::Coordinator(args) => args.run(),
        Command::Server(args) => args.run(),
        Command::Worker(args) => args.run(),
        #[cfg(feature = "top")]
        Command::Top(args) => args.run(),
        Command::Status(args) => args.run(),
        Command::Snapshot(args) => args.run(),
        Command::Clean(args) => args.run(),
        #[cfg(feature = "data-get")]
        Command::Data(args) => args.run(),
        Command::Feed(args) => args.run(),
        Command::Doctor(args) => args.run(),
    };
    finish("dogwild", result)
}

/// Messages go to standard error, from `level` on unless RUST_LOG says otherwise.
fn start_log(level: &str) {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or(level))
        .format(|out, record| {
            let (level, style) = (record.level(), out.default_level_style(record.level()));
            let now = humantime::format_rfc3339_seconds(SystemTime::now());
            let text = record.args().to_string().replace('\n', "\n    ");
            writeln!(out, "[{now} {style}{level:<5}{style:#}] {text}")
        })
        .init();
}

/// How `program` ends: with one line about what went wrong, and a code that tells a launcher what
/// kind of end it was (`exit`).
pub fn finish(program: &str, result: anyhow::Result<()>) -> ExitCode {
    let code = match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let told = dogwild_lab::out::told(&*error);
            match hint::of(&error) {
                Some(hint) => dogwild_lab::note!("{program}: {told} ({hint})"),
                None => dogwild_lab::note!("{program}: {told}"),
            }
            ExitCode::from(exit::code_of(&error))
        }
    };
    dogwild_lab::out::end(program, code)
}

//! `dogwild-rawbench`: what the pieces of dogwild can do on this machine.
//!
//! Holds the command line; each benchmark has its own file.

mod accumulate;
mod compare;
mod conserve;
mod fleet;
mod gpu;
mod highest;
mod hogwild;
mod hostile;
mod join;
mod latency;
mod link;
mod machine;
mod measure;
mod raw;
mod reliable;
mod rounds;
mod stream;
mod tcp;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use dogwild::cli::args::parse;
use dogwild::cli::finish;

/// Measures transports, the stream, its conservation and lost updates; each figure with what bounds
/// it.
#[derive(Debug, Parser)]
#[command(
    name = "dogwild-rawbench",
    version = dogwild::cli::version::text(env!("DOGWILD_COMMIT")),
    max_term_width = 100
)]
struct Cli {
    #[command(flatten)]
    quiet: dogwild::cli::quiet::Quiet,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Send frames to `recv`: frames/s, bits/s, loss, CPU per frame
    Send(measure::SendArgs),
    /// Count what `send`, `ping`, `sweep` or `latency` on another host sends, and answer pings
    Recv(link::responder::Args),
    /// Round trips to `recv`
    Ping(measure::PingArgs),
    /// Frame sizes and rates, up to the highest rate without loss
    Sweep(measure::SweepArgs),
    /// Round trips while the link carries a share of its highest rate without loss
    Latency(latency::Args),
    /// How fast buffers are kept in step, compared with the raw rate of the transport and memcpy
    Stream(stream::Args),
    /// What a TCP flow keeps of a slow link that the stream uses too, and how soon the stream finds
    /// the link's rate
    Tcp(tcp::Args),
    /// How soon a node that joins is ready, as a ratio to one transfer of the buffer
    Join(join::Args),
    /// Whether anything that is added gets lost or doubled on the way
    Conserve(conserve::Args),
    /// What a sealed stream keeps of its rate while another host sends frames without the key
    Hostile(hostile::Args),
    /// How many updates racing solvers lose to each other
    Hogwild(hogwild::HogwildArgs),
    /// How fast a device is kept in step with a buffer, compared with plain copies
    Gpu(gpu::Args),
    /// How long devices wait for the sums of their gradients, overlapped with the backward pass and
    /// not
    Accumulate(accumulate::Args),
    /// What an iteration of the reliable path costs, compared with plain TCP and Gloo
    Reliable(reliable::Args),
    /// A part of another benchmark
    #[command(hide = true)]
    Component {
        #[command(subcommand)]
        part: Part,
    },
}

#[derive(Debug, Subcommand)]
enum Part {
    Stream(Box<dogwild::cli::stream::Args>),
    Raw(raw::Args),
    Adder(conserve::AdderArgs),
    Attacker(hostile::AttackerArgs),
    TcpFlow(tcp::FlowArgs),
    TcpSink(tcp::SinkArgs),
}

fn main() -> ExitCode {
    let cli: Cli = parse();
    let level = cli.quiet.log_level("warn");
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or(level))
        .format_target(false)
        .init();
    let result = match cli.command {
        Command::Send(args) => args.run(),
        Command::Recv(args) => args.run(),
        Command::Ping(args) => args.run(),
        Command::Sweep(args) => args.run(),
        Command::Latency(args) => args.run(),
        Command::Stream(args) => args.run(),
        Command::Tcp(args) => args.run(),
        Command::Join(args) => args.run(),
        Command::Conserve(args) => args.run(),
        Command::Hostile(args) => args.run(),
        Command::Hogwild(args) => hogwild::run(&args),
        Command::Gpu(args) => args.run(),
        Command::Accumulate(args) => args.run(),
        Command::Reliable(args) => args.run(),
        Command::Component {
            part: Part::Stream(args),
        } => args.run(),
        Command::Component {
            part: Part::Raw(args),
        } => args.run(),
        Command::Component {
            part: Part::Adder(args),
        } => args.run(),
        Command::Component {
            part: Part::Attacker(args),
        } => args.run(),
        Command::Component {
            part: Part::TcpFlow(args),
        } => args.run(),
        Command::Component {
            part: Part::TcpSink(args),
        } => args.run(),
    };
    finish("dogwild-rawbench", result)
}

/// An option as the arguments of another process; none if it was not given.
fn option(name: &str, value: Option<impl ToString>) -> Vec<String> {
    value.map_or_else(Vec::new, |value| vec![name.to_owned(), value.to_string()])
}

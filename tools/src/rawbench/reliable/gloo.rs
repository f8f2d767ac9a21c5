//! PyTorch's all-reduce over Gloo, a process for each worker.

use std::net::TcpListener;
use std::process::Command;

use anyhow::{Context, Result};
use dogwild_tools::gloo::{PYTHON, printed, worker};
use serde::Deserialize;

use super::{Args, Cost, WARM_UP};

/// The program of each worker.
const PROGRAM: &str = include_str!("gloo.py");

/// What a worker prints.
#[derive(Deserialize)]
struct Printed {
    seconds: f64,
    cpu_s: f64,
    page_faults: f64,
}

/// Reduces a tensor of as many weights, and gives what one iteration cost.
pub(super) fn run(args: &Args) -> Result<Cost> {
    let first = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let start = |rank: u16| {
        let mut command = Command::new(PYTHON);
        dogwild_lab::process::die_with_parent(&mut command);
        let numbers = [args.weights as u64, WARM_UP, args.iterations];
        command
            .args(["-c", PROGRAM])
            .args(numbers.map(|n| n.to_string()));
        worker(&mut command, first, "lo", [rank, args.workers]);
        command.spawn()
    };
    let children = (0..args.workers).map(start).collect::<Result<Vec<_>, _>>();
    let all: Vec<Printed> = printed(children.context(PYTHON)?)?;
    let p = f64::from(args.workers);
    Ok(Cost {
        seconds: all.iter().map(|one| one.seconds).fold(0.0, f64::max),
        cpu_s: all.iter().map(|one| one.cpu_s).sum(),
        // A ring's reduce-scatter and all-gather: each worker sends 2(P-1)/P of the tensor.
        sent_bytes: 2.0 * (p - 1.0) * 4.0 * args.weights as f64,
        page_faults: all.iter().map(|one| one.page_faults).sum(),
    })
}

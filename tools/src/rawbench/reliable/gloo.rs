//! PyTorch's all-reduce over Gloo, a process for each worker.

use std::net::TcpListener;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::{Args, Cost, WARM_UP};

/// The program of each worker.
const PROGRAM: &str = include_str!("gloo.py");
/// Debian's, which has the package python3-torch.
const PYTHON: &str = "/usr/bin/python3";

/// What a worker prints.
#[derive(Deserialize)]
struct Printed {
    seconds: f64,
    cpu_s: f64,
    page_faults: f64,
}

/// Why it cannot be measured; `None`: it can.
pub(super) fn missing() -> Option<String> {
    let mut import = Command::new(PYTHON);
    let import = import.args(["-c", "import torch.distributed"]);
    let there = import.stdin(Stdio::null()).stderr(Stdio::null()).status();
    let there = there.is_ok_and(|status| status.success());
    (!there).then(|| "PyTorch is not installed: apt-get install python3-torch".to_owned())
}

/// Reduces a tensor of as many weights, and gives what one iteration cost.
pub(super) fn run(args: &Args) -> Result<Cost> {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let start = |rank: u16| {
        let mut command = Command::new(PYTHON);
        dogwild_lab::process::die_with_parent(&mut command);
        let numbers = [args.weights as u64, WARM_UP, args.iterations];
        command
            .args(["-c", PROGRAM])
            .args(numbers.map(|n| n.to_string()));
        command
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", port.to_string());
        command
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", args.workers.to_string());
        // Of its own threads PyTorch uses one for each core; a worker has a core here.
        command
            .env("OMP_NUM_THREADS", "1")
            .env("GLOO_SOCKET_IFNAME", "lo");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()
    };
    let children = (0..args.workers).map(start).collect::<Result<Vec<_>, _>>();
    let mut all = Vec::new();
    for child in children.context(PYTHON)? {
        let output = child.wait_with_output()?;
        ensure!(
            output.status.success(),
            "PyTorch with Gloo ended with {} (its message is above)",
            output.status
        );
        all.push(serde_json::from_slice::<Printed>(&output.stdout)?);
    }
    let p = f64::from(args.workers);
    Ok(Cost {
        seconds: all.iter().map(|one| one.seconds).fold(0.0, f64::max),
        cpu_s: all.iter().map(|one| one.cpu_s).sum(),
        // A ring's reduce-scatter and all-gather: each worker sends 2(P-1)/P of the tensor.
        sent_bytes: 2.0 * (p - 1.0) * 4.0 * args.weights as f64,
        page_faults: all.iter().map(|one| one.page_faults).sum(),
    })
}

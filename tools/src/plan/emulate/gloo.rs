//! PyTorch's all-reduce over Gloo in the same emulated network, by the layers' times.

use std::net::SocketAddr;
use std::process::Child;

use anyhow::{Context, Result};
use dogwild_lab::Lab;
use dogwild_tools::gloo::{PYTHON, printed, worker};
use dogwild_tools::scratch::Scratch;
use serde::{Deserialize, Serialize};

use super::WARM_UP;
use crate::Task;

/// The program of each worker.
const PROGRAM: &str = include_str!("gloo.py");
/// Bytes of a bucket of gradients in DistributedDataParallel, unless it is told otherwise.
const BUCKET: f64 = 25.0 * (1 << 20) as f64;
/// Where the workers meet, in the first host.
const FIRST: &str = "10.77.0.1:7701";

/// What a worker prints.
#[derive(Deserialize)]
struct Printed {
    iteration_s: f64,
    bytes: f64,
}

/// What another program took to do the same.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Peer {
    pub(crate) name: &'static str,
    pub(crate) iteration_s: f64,
    pub(crate) speedup: f64,
    /// Bytes through the interface of each node in one iteration, headers included.
    pub(crate) bytes_per_node: Vec<f64>,
}

/// Starts the workers of `task`, which is `scale` times smaller, and waits until they have ended.
pub(super) fn run(lab: &Lab, task: &Task, scale: f64, iterations: u64) -> Result<Peer> {
    let folder = Scratch::new("dogwild-plan")?;
    let file = folder.file("recording.json");
    std::fs::write(&file, task.recording().to_json())?;
    let first: SocketAddr = FIRST.parse()?;
    let world = task.place.workers() as u16;
    let bucket = (BUCKET / scale) as u64;
    let start = |rank: u16| -> Result<Child> {
        let host = usize::from(rank);
        let mut command = lab.command(host, PYTHON);
        command.args(["-c", PROGRAM]).arg(&file);
        command.args([bucket, WARM_UP, iterations].map(|number| number.to_string()));
        worker(
            &mut command,
            first,
            lab.hosts()[host].iface(),
            [rank, world],
        );
        command.spawn().context(PYTHON)
    };
    let children = (0..world).map(start).collect::<Result<Vec<_>>>()?;
    let all: Vec<Printed> = printed(children)?;
    let iteration_s = all.iter().map(|one| one.iteration_s).fold(0.0, f64::max);
    Ok(Peer {
        name: "Gloo",
        iteration_s,
        speedup: task.place.cluster.workers() as f64 * task.alone_s / iteration_s,
        bytes_per_node: all.iter().map(|one| one.bytes).collect(),
    })
}

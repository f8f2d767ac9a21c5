//! PyTorch with Gloo, the program that several measurements compare dogwild with: whether it is
//! here, and how its workers find each other.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use anyhow::{Result, ensure};
use serde::de::DeserializeOwned;

/// Debian's, which has the package python3-torch.
pub const PYTHON: &str = "/usr/bin/python3";

/// Why it cannot be measured; `None`: it can.
pub fn missing() -> Option<String> {
    let mut import = Command::new(PYTHON);
    let import = import.args(["-c", "import torch.distributed"]);
    let there = import.stdin(Stdio::null()).stderr(Stdio::null()).status();
    let there = there.is_ok_and(|status| status.success());
    (!there).then(|| "PyTorch is not installed: apt-get install python3-torch".to_owned())
}

/// Makes `command`, which starts [`PYTHON`], one of `world` workers that meet at `first`, the
/// address of the first one, and talk over `iface`. What it prints is for the caller.
pub fn worker(command: &mut Command, first: SocketAddr, iface: &str, [rank, world]: [u16; 2]) {
    for (name, value) in [
        ("MASTER_ADDR", first.ip().to_string()),
        ("MASTER_PORT", first.port().to_string()),
        ("RANK", rank.to_string()),
        ("WORLD_SIZE", world.to_string()),
        // Of its own threads PyTorch uses one for each core; a worker has a core here.
        ("OMP_NUM_THREADS", "1".to_owned()),
        ("GLOO_SOCKET_IFNAME", iface.to_owned()),
    ] {
        command.env(name, value);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped());
}

/// Waits until all workers have ended, and reads what each has printed.
///
/// # Errors
/// One that failed; one that has printed something else.
pub fn printed<T: DeserializeOwned>(workers: Vec<Child>) -> Result<Vec<T>> {
    let read = |worker: Child| {
        let output = worker.wait_with_output()?;
        ensure!(
            output.status.success(),
            "PyTorch with Gloo ended with {} (its message is above)",
            output.status
        );
        Ok(serde_json::from_slice(&output.stdout)?)
    };
    workers.into_iter().map(read).collect()
}

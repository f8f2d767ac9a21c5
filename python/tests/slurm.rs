//! The examples under Slurm: it says who is who, and nothing else does.

mod support;

use std::collections::HashSet;
use std::path::PathBuf;
use std::process::Command;

use support::output::succeeds;
use support::python::{Python, mnist};
use support::slurm::Slurm;

/// The values of a field, one for each process, as they were printed.
fn values<'s>(said: &'s str, field: &str) -> Vec<&'s str> {
    let name = format!("\"{field}\": ");
    let rest = said.split(&*name).skip(1);
    rest.filter_map(|rest| rest.split([',', '}']).next())
        .collect()
}

/// Buffers of jobs that Slurm named.
fn buffers() -> HashSet<PathBuf> {
    let all = std::fs::read_dir("/dev/shm").expect("a folder").flatten();
    let all = all.map(|entry| entry.path());
    let named = |path: &PathBuf| path.to_string_lossy().contains("/dogwild-Slurm-");
    all.filter(named).collect()
}

/// Removes those that were not there when it was made: nodes keep their buffers.
struct Cleaning(HashSet<PathBuf>);

impl Drop for Cleaning {
    fn drop(&mut self) {
        for path in buffers().difference(&self.0) {
            // Another test's, which removes it too.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Runs an example in four processes on two nodes, which must end well.
fn srun(slurm: &Slurm, python: &Python, words: &[&str]) -> String {
    let mut srun: Command = slurm.command("srun");
    srun.args(["-N2", "-n4", &python.name, "-W", "ignore"])
        .args(words);
    let said = succeeds(python.prepare(&mut srun));
    slurm.wait_until_idle();
    said
}

#[test]
fn examples_on_two_nodes_with_two_processes_each() {
    if !mnist() {
        return;
    }
    let (Some(slurm), Some(python)) = (Slurm::there(), Python::new()) else {
        return;
    };
    let _cleaning = Cleaning(buffers());
    let options = ["--iterations", "40", "--batch", "16", "--test", "500"];
    let share = [&["../examples/mnist_share.py"][..], &options].concat();
    let said = srun(&slurm, &python, &share);
    let mut places: Vec<_> = values(&said, "node")
        .into_iter()
        .zip(values(&said, "index"))
        .collect();
    places.sort_unstable();
    let all = [("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")];
    assert_eq!(places, all, "{said}");
    assert_eq!(values(&said, "equal"), ["true"; 4], "{said}");
    assert_eq!(values(&said, "iterations"), ["160"; 4], "{said}");
    let mut digests = values(&said, "digest");
    digests.dedup();
    assert_eq!(digests.len(), 1, "{said}");

    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = free.local_addr().expect("an address").to_string();
    drop(free);
    let poseidon = ["../examples/mnist_poseidon.py", "--address", &address];
    let said = srun(&slurm, &python, &[&poseidon[..], &options].concat());
    let mut ranks = values(&said, "rank");
    ranks.sort_unstable();
    assert_eq!(ranks, ["0", "1", "2", "3"], "{said}");
    let mut digests = values(&said, "digest");
    digests.dedup();
    assert_eq!(digests.len(), 1, "{said}");
}

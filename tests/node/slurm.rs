//! A job under Slurm: two nodes of it on this host, a step of two tasks, and a batch job that is
//! put into the queue again.

use std::fs;

use super::support::output::succeeds;
use super::support::process::{processes, signal};
use super::support::slurm::Slurm;
use super::support::wait::{wait_for, wait_for_or};
use super::{Job, program};

#[test]
fn srun_starts_the_same_file_on_two_nodes() {
    let Some(slurm) = Slurm::there() else {
        return;
    };
    let job = Job::new(60, "");
    let mut srun = slurm.command("srun");
    // The names of its nodes are none of this host's.
    srun.env("MASTER_ADDR", "127.0.0.1");
    srun.args(["-N2", "-n2"])
        .arg(program())
        .arg("node")
        .arg(job.file());
    succeeds(&mut srun);
    slurm.wait_until_idle();
    job.check(2);
}

/// A task of a batch job is killed, and the other one is told to end for it. Slurm puts the job
/// into the queue again, by its script: both go on, each with what it remembers.
#[test]
fn a_batch_job_that_is_queued_again_goes_on() {
    let Some(slurm) = Slurm::there() else {
        return;
    };
    let job = Job::new(900, "");
    let script = job.folder.path().join("script");
    let text = format!(
        "#!/bin/sh\nexport MASTER_ADDR=127.0.0.1\n\
         srun -K1 {} node {} || scontrol requeue $SLURM_JOB_ID\n",
        program().display(),
        job.file().display()
    );
    fs::write(&script, text).expect("written");
    let log = job.folder.path().join("log");
    let mut sbatch = slurm.command("sbatch");
    sbatch.args(["-N2", "-n2", "--requeue", "--open-mode=append", "-o"]);
    succeeds(sbatch.arg(&log).arg(&script));
    wait_for("both to train", || {
        job.iterations(0) > 20 && job.iterations(1) > 20
    });
    signal("KILL", &task(&job, 1).to_string());
    let said = || fs::read_to_string(&log).unwrap_or_default();
    let ends = "replicas: identical bit for bit";
    wait_for_or("both to end", || said().matches(ends).count() == 2, said);
    slurm.wait_until_idle();
    job.check(2);
    let said = said();
    assert_eq!(said.matches("going on with /dev/shm").count(), 2, "{said}");
    assert!(
        said.contains("is kept in"),
        "the other kept its memory: {said}"
    );
}

/// The process of a node that Slurm runs.
fn task(job: &Job, rank: u16) -> u32 {
    let file = job.file().display().to_string();
    let is_task = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let own = format!("SLURM_PROCID={rank}");
        environment
            .split(|byte| *byte == 0)
            .any(|variable| variable == own.as_bytes())
    };
    let nodes = processes().into_iter().filter(|(_, words)| {
        words.get(1).is_some_and(|word| word == "node") && words.contains(&file)
    });
    let mut tasks = nodes.map(|(pid, _)| pid).filter(is_task);
    tasks.next().expect("a task")
}

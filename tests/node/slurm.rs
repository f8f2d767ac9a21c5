//! A job under Slurm: two nodes of it on this host, a step of two tasks, and a batch job that is
//! put into the queue again.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

use dogwild_lab::skip::skip;

use super::support::output::succeeds;
use super::support::process::{Process, processes, signal};
use super::support::wait::{wait_for, wait_for_or, wait_while};
use super::{Job, has, program};

/// Slurm's daemons for two nodes of this host, which end with the test.
struct Slurm {
    folder: tempfile::TempDir,
    _daemons: Vec<Process>,
}

impl Slurm {
    /// Slurm, if it is installed and may be run.
    fn there() -> Option<Self> {
        let needed = [
            ("srun", "slurm-client"),
            ("slurmctld", "slurmctld"),
            ("slurmd", "slurmd"),
            ("munged", "munge"),
        ];
        if !needed
            .iter()
            .all(|(program, package)| has(program, package))
        {
            return None;
        }
        if !is_root() {
            skip("Slurm's daemons need root");
            return None;
        }
        Some(Self::new())
    }

    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name).display().to_string();
        let key: Vec<u8> = (0..128).collect();
        fs::write(path("key"), key).expect("written");
        succeeds(Command::new("chmod").args(["600", &path("key")]));
        succeeds(Command::new("chmod").args(["755", &path("")]));
        let host = fs::read_to_string("/proc/sys/kernel/hostname").expect("a name");
        let host = host.trim().split('.').next().unwrap_or_default();
        let ports = ports();
        fs::write(path("slurm.conf"), config(&path(""), host, ports)).expect("written");
        let quiet = |command: &mut Command| {
            command
                .env("SLURM_CONF", path("slurm.conf"))
                .stdin(Stdio::null());
            Process::start(command.stdout(Stdio::null()).stderr(Stdio::null()))
        };
        let mut munged = Command::new("munged");
        munged.args(["-F", "--force"]);
        let options = ["key-file=key", "socket=socket", "pid-file=munge.pid"];
        for option in options
            .into_iter()
            .chain(["log-file=munge.log", "seed-file=seed"])
        {
            let (name, file) = option.split_once('=').expect("a file");
            munged.arg(format!("--{name}={}", path(file)));
        }
        let mut daemons = vec![quiet(&mut munged)];
        wait_for("munged", || Path::new(&path("socket")).exists());
        daemons.push(quiet(Command::new("slurmctld").args(["-D", "-c"])));
        for node in ["n1", "n2"] {
            daemons.push(quiet(Command::new("slurmd").args(["-D", "-N", node])));
        }
        let slurm = Self {
            folder,
            _daemons: daemons,
        };
        slurm.wait_until_idle();
        slurm
    }

    /// Its processes on the nodes have ended then, too.
    fn wait_until_idle(&self) {
        wait_while("both nodes of Slurm to be idle", || {
            let idle = self
                .command("sinfo")
                .args(["-h", "-t", "idle", "-o", "%D"])
                .output();
            let idle = String::from_utf8_lossy(&idle.expect("it runs").stdout).into_owned();
            (idle.trim() != "2").then(|| format!("{idle} idle; {}", self.complaints()))
        });
    }

    /// What its daemons say went wrong: one that has ended, as its port was taken, is never idle.
    fn complaints(&self) -> String {
        let logs = ["ctld.log", "d.n1.log", "d.n2.log", "munge.log"];
        let logs = logs.map(|log| fs::read_to_string(self.folder.path().join(log)));
        let lines = logs.iter().flatten().flat_map(|log| log.lines());
        let bad = lines.filter(|line| line.contains("error") || line.contains("fatal"));
        bad.collect::<Vec<_>>().join("\n")
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("SLURM_CONF", self.folder.path().join("slurm.conf"));
        command.stdin(Stdio::null());
        command
    }
}

/// Ports that are free, and below those that Linux gives to outgoing connections: a port that was
/// only asked for may be one of theirs by the time a daemon binds it.
fn ports() -> [u16; 3] {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 20_000 + u16::try_from(std::process::id() % 1_000).expect("below 1000") * 10;
    let is_free = |port: &u16| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let next = std::iter::repeat_with(|| first + NEXT.fetch_add(1, Ordering::Relaxed));
    let mut free = next.filter(is_free);
    std::array::from_fn(|_| free.next().expect("a port"))
}

/// The numbers of jobs, from which nodes make their port, are others in each cluster.
fn config(folder: &str, host: &str, ports: [u16; 3]) -> String {
    let [control, one, two] = ports;
    format!(
        "ClusterName=dogwild\nFirstJobId={control}\nSlurmctldHost={host}(127.0.0.1)\nSlurmUser=root\n\
         AuthType=auth/munge\nAuthInfo=socket={folder}/socket,cred_expire=5\nCredType=cred/munge\n\
         MpiDefault=none\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n\
         ReturnToService=2\nSlurmctldPort={control}\nStateSaveLocation={folder}/state\n\
         SlurmdSpoolDir={folder}/spool.%n\nSlurmctldPidFile={folder}/ctld.pid\n\
         SlurmdPidFile={folder}/d.%n.pid\nSlurmctldLogFile={folder}/ctld.log\n\
         SlurmdLogFile={folder}/d.%n.log\nSchedulerType=sched/builtin\n\
         SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\n\
         JobAcctGatherType=jobacct_gather/none\n\
         AccountingStorageType=accounting_storage/none\n\
         NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={one} CPUs=2 State=UNKNOWN\n\
         NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={two} CPUs=2 State=UNKNOWN\n\
         PartitionName=p Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP\n"
    )
}

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

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|id| id.stdout.starts_with(b"0"))
}
